"""What ranks printed, as people read it: from the shared log folder where it is mounted.

Finding, merging and following lines is `agent.loglines`', which agents do the same way for who has no such folder.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from reconciler.agent.loglines import LogFolder, Printed, follow, read
from reconciler.documents.tasklist import print_tasks
from reconciler.errors import NotFound
from reconciler.model.units import SECOND

_LOOK_AGAIN_SECONDS = 0.2


def log_lines(root: Path, job: str, attempt: int | None = None, rank: int | None = None) -> Iterator[Printed]:
    """Every line so far of an attempt (the latest when None), by time. Raises NotFound (LogsMissing)."""
    if not root.is_dir():
        raise NotFound(
            f"there is no folder {root}",
            code="LogsMissing",
            remedy="name logs.dir of agent.conf with --dir or GANGOPS_LOGS",
        )
    folder = LogFolder(root, job)
    attempts = folder.attempts()
    wanted = attempt if attempt is not None else max(attempts, default=0)
    ranks = [found for found in folder.ranks(wanted) if rank in (None, found)]
    if not ranks:
        raise logs_missing(job, attempt, rank, str(root), attempts, _tasks_with_logs(root / job))
    _allow_files()
    return read(folder, wanted, ranks)


def followed_lines(
    root: Path,
    job: str,
    attempt: int | None = None,
    rank: int | None = None,
    *,
    over: Callable[[], bool] = lambda: False,
    pause: Callable[[], None] | None = None,
) -> Iterator[Printed]:
    """Every line so far and each as it comes, through attempts to come unless one is named, until `over`.

    Logs that are not there yet are waited for.
    """
    _allow_files()
    return follow(LogFolder(root, job), attempt, rank, pause or (lambda: time.sleep(_LOOK_AGAIN_SECONDS)), over)


def has_several(root: Path, job: str, attempt: int | None) -> bool:
    """Whether several ranks of the attempt (the latest when None) have logs now."""
    folder = LogFolder(root, job)
    return len(folder.ranks(attempt if attempt is not None else max(folder.attempts(), default=0))) > 1


def _tasks_with_logs(array: Path) -> str:
    """The numbers of the tasks of an array that printed something; "" for a job that is none."""
    ends = (path.name.removeprefix(f"{array.name}.") for path in array.parent.glob(f"{array.name}.*"))
    return print_tasks(int(end) for end in ends if end.isdecimal())


def logs_missing(
    job: str, attempt: int | None, rank: int | None, where: str, attempts: list[int], tasks: str = ""
) -> NotFound:
    """The error that says which logs there are."""
    whose = job if rank is None else f"rank {rank} of {job}"
    which = f" of attempt {attempt}" if attempt is not None else ""
    return NotFound(
        f"{whose} has no logs{which} in {where}",
        code="LogsMissing",
        remedy=f"tasks with logs: {tasks}; name one as {job}.N"
        if tasks
        else f"attempts with logs: {', '.join(map(str, attempts)) or 'none'}",
    )


class Labels:
    """Puts before each line what tells it from others: its rank as soon as there are several, its time when asked."""

    def __init__(self, *, several: bool, timestamps: bool = False) -> None:
        self._several, self._timestamps = several, timestamps
        self._ranks: set[int] = set()

    def text(self, line: Printed) -> str:
        """The line as it is shown."""
        self._ranks.add(line.rank)
        front = [f"{line.rank:>4}"] if self._several or len(self._ranks) > 1 else []
        if self._timestamps:
            front.insert(0, _instant(line.at))
        return f"{' '.join(front)} | {line.text}" if front else line.text


def _instant(at: int) -> str:
    """UTC to the millisecond, of one width."""
    if not at:
        return f"{'-':<24}"
    return f"{datetime.fromtimestamp(at // SECOND, UTC):%Y-%m-%dT%H:%M:%S}.{at // 1_000_000 % 1000:03}Z"


def _allow_files() -> None:
    """Two files are held open for each rank, and a big gang has more ranks than a shell allows files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
