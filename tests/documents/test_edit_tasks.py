"""Single tasks run again or cancelled in an array's file: one line changes, the rest stays byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconciler.documents.edit_tasks import cancel_tasks, rerun_tasks
from reconciler.errors import GangOpsError, InvalidInput

FILE = """\
# The sweep of the spring.
apiVersion: gangops/v1
kind: Job
metadata: {name: sweep}  # keep the name
spec:
  queue: nlp
  gpus: 1
  array:
    count: 12  # a dozen
    maxParallel: 4
%s  run: {command: [a]}
"""


def written(*lines: str) -> bytes:
    return (FILE % "".join(f"    {line}\n" for line in lines)).encode()


@pytest.mark.parametrize(
    ("edit", "tasks", "before", "after"),
    [
        (cancel_tasks, [3, 7, 8, 9], [], ['cancelled: "3,7-9"']),
        (cancel_tasks, [4, 3], ['cancelled: "3,7-9"'], ['cancelled: "3-4,7-9"']),
        (cancel_tasks, [3], ['cancelled: "3,7-9"'], ['cancelled: "3,7-9"']),
        (rerun_tasks, [3, 7, 8, 9], [], ['rerun: ["3,7-9"]']),
        (rerun_tasks, [3], ['rerun: ["3,7-9"]'], ['rerun: ["3,7-9", "3"]']),
        (rerun_tasks, [3], ['cancelled: "3,7-9"'], ['rerun: ["3"]', 'cancelled: "7-9"']),
        (rerun_tasks, [7], ['cancelled: "7"'], ['rerun: ["7"]']),
        (rerun_tasks, [0, 11], ["onTaskFailure: stop"], ["onTaskFailure: stop", 'rerun: ["0,11"]']),
    ],
)
def test_a_line_of_the_array_changes_and_nothing_else(
    edit: Callable[[bytes, list[int]], bytes], tasks: list[int], before: list[str], after: list[str]
) -> None:
    assert edit(written(*before), tasks).decode() == written(*after).decode()


@pytest.mark.parametrize("edit", [cancel_tasks, rerun_tasks])
@pytest.mark.parametrize(
    ("content", "tasks", "code"),
    [
        (written(), [12], "UnknownTask"),
        (written(), [3, -1], "UnknownTask"),
        (written(), [], "UnknownTask"),
        (written().replace(b"  array:\n    count: 12  # a dozen\n    maxParallel: 4\n", b""), [0], "NotAnArray"),
    ],
)
def test_what_cannot_be_is_refused(
    edit: Callable[[bytes, list[int]], bytes], content: bytes, tasks: list[int], code: str
) -> None:
    with pytest.raises(GangOpsError) as caught:
        edit(content, tasks)
    assert caught.value.code == code


@pytest.mark.parametrize("edit", [cancel_tasks, rerun_tasks])
def test_a_file_that_is_wrong_is_left_alone(edit: Callable[[bytes, list[int]], bytes]) -> None:
    with pytest.raises(InvalidInput):
        edit(written("cancelled: no"), [1])
