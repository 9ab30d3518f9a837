"""What did a gang leave on the shared file system: its receipts, its checkpoint marker, its last heartbeat?

A shared file system may hang, and whatever jobs wrote there is theirs: files are read in a thread that is waited for
briefly, a bounded part of each, never through a symbolic link. What could not be read in time is as it was last seen.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from reconciler.engines.slurm.judge import NO_RECEIPT, Receipt
from reconciler.engines.slurm.script import BEGUN, ENDED, LOCK, RANKS, launched, log_name
from reconciler.engines.slurm.submit import attempt_folder
from reconciler.model.desired import SlurmRules
from reconciler.model.units import NodeName
from reconciler.wire import AttemptOrder

Gang = Mapping[NodeName, AttemptOrder]

PATIENCE: Final = 2.0
_MOST_BYTES: Final = 64 << 10
_EXIT: Final = re.compile(r"\bexit=([0-9]{1,3})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What one attempt left behind. `marker` is an mtime in ns, None when there is none. `up`: every rank has opened
    its log, so that it can be signalled. `held`: Slurm does not know it, and something of it still runs."""

    receipt: Receipt = NO_RECEIPT
    marker: int | None = None
    held: bool = False
    up: bool = False
    progress: Mapping[str, Any] = field(default_factory=dict)


NOTHING_LEFT: Final = Left()


class Lookout:
    """Reads what attempts leave, and never waits long for it."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gangops-slurm-files")
        self._known: dict[tuple[str, int], Left] = {}
        self._running: Future[dict[tuple[str, int], Left]] | None = None

    def look(
        self, gangs: Iterable[Gang], rules: SlurmRules, absent: frozenset[tuple[str, int]]
    ) -> Mapping[tuple[str, int], Left]:
        """What each attempt left, as far as it could be read by now. Those that are `absent` from Slurm may still run."""
        if self._running is None:
            up = frozenset(key for key, left in self._known.items() if left.up)
            self._running = self._readers.submit(_read_all, tuple(gangs), rules, up, absent)
        try:
            self._known = self._running.result(timeout=PATIENCE)
        except TooLate:
            return self._known
        self._running = None
        return self._known

    def close(self) -> None:
        """End the thread, as soon as it comes back from the file system."""
        self._readers.shutdown(wait=False, cancel_futures=True)


def _read_all(
    gangs: tuple[Gang, ...],
    rules: SlurmRules,
    up: frozenset[tuple[str, int]],
    absent: frozenset[tuple[str, int]],
) -> dict[tuple[str, int], Left]:
    found = {}
    for gang in gangs:
        order = next(iter(gang.values()))
        key = (order.job, order.attempt)
        left = _read(gang, order, rules, known_up=key in up)
        if key in absent and left.receipt.begun:
            folder = Path(attempt_folder(rules, order.job, order.attempt))
            left = replace(left, held=_is_locked(folder / LOCK) or _is_locked(folder / RANKS))
        found[key] = left
    return found


def _read(gang: Gang, order: AttemptOrder, rules: SlurmRules, *, known_up: bool) -> Left:
    folder = Path(attempt_folder(rules, order.job, order.attempt))
    ended = _EXIT.search(_tail(folder / ENDED))
    beat = order.run.heartbeatFile
    begun = _mtime(folder / BEGUN) is not None
    return Left(
        receipt=Receipt(begun=begun, code=int(ended[1]) if ended else None),
        marker=_mtime(Path(order.checkpoint.marker)) if order.checkpoint else None,
        up=known_up or (begun and all(_mtime(folder / log_name(rank)) is not None for rank in launched(gang))),
        progress=_progress(Path(beat)) if beat.startswith("/") else {},
    )


def _is_locked(path: Path) -> bool:
    """Whether a script or a rank still has its lock. Where the file system has no locks, nothing is known."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        return None


def _progress(path: Path) -> Mapping[str, Any]:
    lines = _tail(path).strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tail(path: Path) -> str:
    """The last part of a plain file; "" for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return ""
        return os.pread(handle, _MOST_BYTES, max(0, found.st_size - _MOST_BYTES)).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(handle)
