"""May this reconciler act on Slurm now? Slurm obeys whoever asks, so reconcilers take turns by a file they all see.

Who holds its lock looks and acts; everybody else only looks. It says the newest generation that anybody acted on, as an
agent's journal does, and nobody with an older one acts any more. So of two reconcilers none submits what the other has
submitted, and one whose link to git is cut does not go on with what was decided over. Which decision counts is for the
push. Where the file cannot be kept (no shared folder here, none of root's, no locks), only what jobs say fences.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

PATIENCE: Final = 2.0
_MOST_BYTES: Final = 64
Order = tuple[int, int]


class Turn(StrEnum):
    """Whose turn it is. Only `OURS` and `OPEN` may act."""

    OURS = "Ours"
    OPEN = "Open"  # nothing can be kept here
    THEIRS = "Theirs"  # another reconciler is at it
    OVER = "Over"  # a newer generation than ours was acted on
    SLOW = "Slow"  # the file system has not answered


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """The answer for one order; `handle` holds the lock, None when there is none to hold."""

    order: Order
    turn: Turn
    handle: int | None = None


class Fence:
    """The turns of one cluster. A file system that hangs is waited for briefly: until it answers nobody here acts."""

    def __init__(self, cluster: str) -> None:
        self._name = f".gangops-{hashlib.sha256(cluster.encode()).hexdigest()[:8]}"
        self._opener = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gangops-slurm-fence")
        self._asked: Future[_Taken] | None = None

    def path(self, folder: str) -> Path:
        """The file beneath the folder that nodes and reconcilers share."""
        return Path(folder) / self._name

    @contextmanager
    def turn(self, folder: str, order: Order) -> Iterator[Turn]:
        """Whose turn it is to act on the (epoch, generation) `order`, for as long as the block lasts."""
        taken = self._take(folder, order)
        try:
            # An answer to what was asked earlier came late: the next look asks for this order.
            yield taken.turn if taken.order == order else Turn.SLOW
        finally:
            if taken.handle is not None:
                os.close(taken.handle)

    def close(self) -> None:
        """End the thread, as soon as it comes back from the file system."""
        self._opener.shutdown(wait=False, cancel_futures=True)

    def _take(self, folder: str, order: Order) -> _Taken:
        if self._asked is None:
            self._asked = self._opener.submit(_taken, self.path(folder), order)
        try:
            taken = self._asked.result(timeout=PATIENCE)
        except TooLate:
            return _Taken(order=order, turn=Turn.SLOW)
        self._asked = None
        return taken


def _taken(path: Path, order: Order) -> _Taken:
    try:
        # Nobody else's to open, or any user could keep the turn.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        return _Taken(order=order, turn=Turn.OPEN)
    turn = _turn(handle, order)
    if turn is Turn.OURS:
        return _Taken(order=order, turn=turn, handle=handle)
    os.close(handle)
    return _Taken(order=order, turn=turn)


def _turn(handle: int, order: Order) -> Turn:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return Turn.OPEN
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        newest = _newest(os.pread(handle, _MOST_BYTES, 0))
        if order > newest:  # one write of few bytes: whoever dies here leaves the old number or the new one
            os.pwrite(handle, f"{order[0]:>10} {order[1]:>20}\n".encode(), 0)
            os.fsync(handle)
    except BlockingIOError:
        return Turn.THEIRS
    except OSError:
        return Turn.OPEN
    return Turn.OVER if order < newest else Turn.OURS


def _newest(content: bytes) -> Order:
    """What the file says; before everything when it is new, or holds something else."""
    try:
        epoch, generation = map(int, content.split())
    except ValueError:
        return (0, 0)
    return epoch, generation
