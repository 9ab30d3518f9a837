"""Where does a rank's output go, without filling a disk or stalling the rank? Into a log with a size and a rate.

The log lies on a file system users share, so it is opened as the user, never through a symlink. What comes faster
than the rate, or finds the disk full, is dropped and counted: a rank never waits for its log. Beside it `N.times` says
at which offset of the log which instant begins, so that the logs of a gang can be read as one (`loglines`).
"""

# Not pathlib: it would double what a shim imports, and there is one shim for each rank.
# ruff: noqa: PTH105

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

BURST = 8
"""Seconds' worth of the rate that may come at once."""
MARK_EVERY = 0.05
"""Seconds between two marks of time at least: they must stay small beside what they mark."""


class Log:
    """One log file. `limits`: maxBytes before it is rotated, keep old ones, bytesPerSecond (0: no limit)."""

    def __init__(self, path: str, limits: dict[str, int], uid: int | None, gid: int | None) -> None:
        self.path = path
        self.limits = limits
        self.owner = (uid, gid)
        self.dropped = 0
        self.fd = -1
        self.times = -1
        self.size = 0
        self.marked = float("-inf")
        self.allowance = float(limits["bytesPerSecond"] * BURST)
        self.at = time.monotonic()
        self._open()

    def write(self, content: bytes) -> None:
        """Append, within the limits. Never raises."""
        allowed = content[: self._allowed(len(content))]
        lost = len(content) - len(allowed)
        if allowed:
            if self.dropped:
                allowed = f"\n[gangops: {self.dropped} bytes dropped here]\n".encode() + allowed
                self.dropped = 0
            if self.size + len(allowed) > self.limits["maxBytes"] > 0:
                self._rotate()
            lost += len(allowed) - self._append(allowed)
        self.dropped += lost

    def _append(self, content: bytes) -> int:
        self._mark()
        written = 0
        with contextlib.suppress(OSError):
            while written < len(content):
                written += os.write(self.fd, content[written:])
        self.size += written
        return written

    def _mark(self) -> None:
        """Before what it is about: who has read that finds the mark."""
        now = time.monotonic()
        if self.times >= 0 and now - self.marked >= MARK_EVERY:
            self.marked = now
            with contextlib.suppress(OSError):
                os.write(self.times, b"%d %d\n" % (self.size, time.time_ns()))

    def close(self) -> None:
        """Say what was dropped last, and close."""
        if self.dropped:
            with contextlib.suppress(OSError):
                os.write(self.fd, f"\n[gangops: {self.dropped} bytes dropped here]\n".encode())
        self._let_go()

    def _let_go(self) -> None:
        for fd in (self.fd, self.times):
            if fd >= 0:
                os.close(fd)
        self.fd = self.times = -1

    def _allowed(self, wanted: int) -> int:
        rate = self.limits["bytesPerSecond"]
        if rate <= 0:
            return wanted
        now = time.monotonic()
        self.allowance = min(self.allowance + (now - self.at) * rate, float(rate * BURST))
        self.at = now
        allowed = min(wanted, int(self.allowance))
        self.allowance -= allowed
        return allowed

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with contextlib.suppress(OSError), _as(self.owner):
            self.fd = os.open(self.path, flags, 0o644)
            found = os.fstat(self.fd)
            self.size, self.marked = found.st_size, float("-inf")
            self.times = os.open(self.path.removesuffix(".log") + ".times", flags, 0o644)
            if os.fstat(self.times).st_size == 0:  # both are renamed at a rotation: which log it goes with is said
                os.write(self.times, b"inode %d\n" % found.st_ino)

    def _rotate(self) -> None:
        with contextlib.suppress(OSError), _as(self.owner):
            for path in (self.path.removesuffix(".log") + ".times", self.path):
                for age in range(self.limits["keep"] - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(f"{path}.{age}", f"{path}.{age + 1}")
                with contextlib.suppress(FileNotFoundError):
                    os.replace(path, f"{path}.1")
        self._let_go()
        self._open()


@contextlib.contextmanager
def _as(owner: tuple[int | None, int | None]) -> Iterator[None]:
    """File access as the user. Only the effective ids change, and only for a moment."""
    uid, gid = owner
    if uid is None or gid is None:
        yield
        return
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
