"""Where does a rank's output go, without filling a disk or stalling the rank? Into a log with a size and a rate.

The log lies on a file system users share, so it is opened as the user, never through a symlink. What comes faster
than the rate, or finds the disk full, is dropped and counted: a rank never waits for its log.
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


class Log:
    """One log file. `limits`: maxBytes before it is rotated, keep old ones, bytesPerSecond (0: no limit)."""

    def __init__(self, path: str, limits: dict[str, int], uid: int | None, gid: int | None) -> None:
        self.path = path
        self.limits = limits
        self.owner = (uid, gid)
        self.dropped = 0
        self.fd = -1
        self.size = 0
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
        written = 0
        with contextlib.suppress(OSError):
            while written < len(content):
                written += os.write(self.fd, content[written:])
        self.size += written
        return written

    def close(self) -> None:
        """Say what was dropped last, and close."""
        if self.dropped:
            with contextlib.suppress(OSError):
                os.write(self.fd, f"\n[gangops: {self.dropped} bytes dropped here]\n".encode())
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

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
            self.size = os.fstat(self.fd).st_size

    def _rotate(self) -> None:
        with contextlib.suppress(OSError), _as(self.owner):
            for age in range(self.limits["keep"] - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}.{age}", f"{self.path}.{age + 1}")
            os.replace(self.path, f"{self.path}.1")
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
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
