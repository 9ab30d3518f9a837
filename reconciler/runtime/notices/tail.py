"""What did the rank print last that failed? From the shared log folder, without following anybody's link.

Logs belong to who runs the job. A link in their place must not make us read, and send away, a file of this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from reconciler.model.units import JobKey, task_key
from reconciler.runtime.notices.events import Notice, NoticeKind
from reconciler.runtime.notices.hooks import Tail

LINES = 20
_BYTES, _LONGEST, _MOST_RANKS = 16_384, 400, 16
_SPEAKS = re.compile(r"Traceback|Error|ERROR|error:|Exception|FATAL|CUDA|NCCL|Killed|Segmentation|core dumped")


def tail_of(folder: Path | None) -> Tail:
    """Answers for notices of failed attempts, from the log folder as it is mounted here; () without one."""

    def tail(notice: Notice) -> tuple[str, ...]:
        ranks = notice.detail("ranks")
        if folder is None or notice.kind is not NoticeKind.FAILED or notice.job is None or not isinstance(ranks, tuple):
            return ()
        first = notice.tasks.partition(",")[0].partition("-")[0]
        job = task_key(notice.job, int(first)) if first else notice.job
        return last_lines(folder, job, notice.attempt, ranks)

    return tail


def last_lines(folder: Path, job: JobKey, attempt: int, ranks: Sequence[str]) -> tuple[str, ...]:
    """The end of the log of the first of these ranks that speaks of an error, else of the first that has one.

    Each line begins with its rank: `3 | RuntimeError: ...`.
    """
    first: tuple[str, ...] = ()
    for rank in ranks[:_MOST_RANKS]:
        found = _end_of(folder, (*job.split("/"), str(attempt), f"{rank}.log"))
        lines = tuple(f"{rank} | {line}" for line in found)
        if any(_SPEAKS.search(line) for line in found):
            return lines
        first = first or lines
    return first


def _end_of(folder: Path, steps: Sequence[str]) -> list[str]:
    """The last printable lines of a plain file below the folder; [] when there is none, or a link is on the way."""
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
        at = _opened(opened, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for step in steps[:-1]:
            at = _opened(opened, os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = _opened(opened, os.open(steps[-1], flags, dir_fd=at))
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            return []
        text = os.pread(file, _BYTES, max(0, found.st_size - _BYTES)).decode("utf-8", "replace")
        return [line for line in map(_shown, text.split("\n")) if line][-LINES:]
    return []


def _opened(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _shown(line: str) -> str:
    """As a terminal would show it: what a carriage return wrote over is gone, and no sign does anything."""
    last = line.rstrip("\r").rpartition("\r")[2]
    return "".join(c if c.isprintable() else " " for c in last)[:_LONGEST].rstrip()
