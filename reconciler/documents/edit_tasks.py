"""How are single tasks of an array run again, or cancelled, in its file? As fields that anybody could write by hand.

`array.rerun` gets one more entry that names them, `array.cancelled` lists those that nobody wants. A task that is to run
again is no longer cancelled. Comments and layout of the rest stay; which file it is, and who may, is for others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reconciler.documents.check import check
from reconciler.documents.convert import task_count
from reconciler.documents.edit import remove_value, set_value
from reconciler.documents.loader import load
from reconciler.documents.tasklist import print_tasks
from reconciler.errors import GangOpsError, InvalidInput
from reconciler.model.counting import counted

_RERUN = ("spec", "array", "rerun")
_CANCELLED = ("spec", "array", "cancelled")


def rerun_tasks(content: bytes, tasks: Iterable[int], *, index: int = 0, file: str = "") -> bytes:
    """The file of an array with these tasks to be run once more, from their beginning, whatever became of them.

    Raises: InvalidInput for a file that is refused; GangOpsError (NotAnArray, UnknownTask, EditRefused).
    """
    wanted, array = _checked(content, tasks, index, file)
    entries = [print_tasks(entry) for entry in array.rerun]
    content = set_value(content, _RERUN, [*entries, print_tasks(wanted)], index=index, file=file)
    return _with_cancelled(content, set(array.cancelled) - wanted, array, index, file)


def cancel_tasks(content: bytes, tasks: Iterable[int], *, index: int = 0, file: str = "") -> bytes:
    """The file of an array with these tasks cancelled: stopped through their checkpoints, or never started.

    Raises: as `rerun_tasks` does.
    """
    wanted, array = _checked(content, tasks, index, file)
    return _with_cancelled(content, set(array.cancelled) | wanted, array, index, file)


def _with_cancelled(content: bytes, cancelled: set[int], array: Any, index: int, file: str) -> bytes:
    if cancelled == set(array.cancelled):
        return content
    if not cancelled:
        return remove_value(content, _CANCELLED, index=index, file=file)
    return set_value(content, _CANCELLED, print_tasks(cancelled), index=index, file=file)


def _checked(content: bytes, tasks: Iterable[int], index: int, file: str) -> tuple[set[int], Any]:
    """The tasks, all of which the array has, and what the file says of the array."""
    loaded = load(content, file)
    if not loaded.ok:
        raise InvalidInput(loaded.diagnostics)
    item, problems = check(loaded.documents[index])
    if item is None or problems:
        raise InvalidInput(problems)
    array = item.model.spec.array if item.kind == "Job" else None
    if array is None:
        raise GangOpsError(
            f"{item.name} is no array, so it has no tasks", code="NotAnArray", remedy="Leave --tasks out."
        )
    wanted, count = set(tasks), task_count(array)
    unknown = [task for task in wanted if not 0 <= task < count]
    if unknown or not wanted:
        named = print_tasks(unknown) if all(task >= 0 for task in unknown) else str(min(unknown))
        raise GangOpsError(
            f"{item.name} has no task {named or 'of an empty list'}: it has {counted(count, 'task')}, 0-{count - 1}",
            code="UnknownTask",
            remedy=f"gangops status {item.model.spec.queue}/{item.name} lists them",
        )
    return wanted, array
