"""What can one look at a GPU not tell? Faults its driver logged earlier, slowing down that lasts, its link at work.

A `Course` is kept for the life of the agent and shown each look. What it answers holds still: a fault is told until
the node restarts, slowing down only when it lasts, and a link's speed as it was when the GPU last worked, for an idle
one slows its link to save power. What a fault means is judged where decisions are made, never here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from pathlib import Path

BEGINS_SECONDS = 60
"""Slowing down is told when every look for so long saw it,"""
ENDS_SECONDS = 600
"""and no more when none did for so long."""

_OF_THE_JOB = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that end a job and say nothing of the GPU."""
_SAID_BETTER = frozenset({63, 154})
"""Rows that wait for a reset and what the driver asks for: the driver answers both as they are now."""
_RECORD = re.compile(rb"^([0-9]+),[0-9]+,([0-9]+),[^;\n]*;([^\n]*)", re.MULTILINE)
_XID = re.compile(rb"NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): ([0-9]{1,4})")
_KERNEL = 8
"""A record with a smaller number is the kernel's own; programs that write to the log get larger ones."""
_MOST_RECORDS = 100_000  # at one look


class Course:
    """What was seen of this node's GPUs until now.

    `log` is the kernel's, None not to read it. `reset_mark` is a file touched after a reset: older faults are over.
    """

    def __init__(self, *, log: Path | None = None, reset_mark: Path | None = None) -> None:
        self._log = log
        self._fd = -1
        self._reset_mark = reset_mark
        self._logged: dict[str, dict[int, int]] = {}
        self._slow: dict[str, tuple[str, float, float, bool]] = {}
        self._speeds: dict[str, int] = {}

    def read_log(self) -> None:
        """Take in what the kernel logged since the last time; a log that cannot be read says nothing."""
        if self._fd < 0:
            if self._log is None:
                return
            try:
                self._fd = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(self._fd, 1 << 16)
            except OSError as err:
                if err.errno == errno.EPIPE:  # records were overwritten before they were read: the next one comes
                    continue
                return
            if not record:
                return
            self.take_in(record)

    def take_in(self, records: bytes) -> None:
        """One or more records as /dev/kmsg has them, a line each."""
        for found in _RECORD.finditer(records):
            xid = _XID.match(found[3])
            if xid and int(found[1]) < _KERNEL:
                address = xid[1].decode().lower()
                self._logged.setdefault(address, {})[int(xid[2])] = int(found[2])

    def xids(self, address: str) -> list[int]:
        """Faults of the GPU at a PCI address (`0000:3b:00`, also as nvidia-smi writes it), in the order of numbers."""
        domain, _, rest = address.strip().lower().partition(":")
        logged = self._logged.get(f"{domain[-4:]}:{rest.partition('.')[0]}", {})
        since = self._reset_at()
        return sorted(x for x, at in logged.items() if x not in _OF_THE_JOB | _SAID_BETTER and at > since)

    def _reset_at(self) -> int:
        """When the mark was last touched, in the log's microseconds since the node started; 0 for never."""
        if self._reset_mark is None:
            return 0
        with contextlib.suppress(OSError):
            return int((self._reset_mark.stat().st_mtime - time.time() + time.monotonic()) * 1_000_000)
        return 0

    def throttled(self, uuid: str, why: str, now: float) -> str:
        """Why a GPU has been slowed down for a while; "" when it is not, or not for long. `why` is this look's."""
        told, began, last, lasting = self._slow.get(uuid, ("", now, now, False))
        if why:
            told, last = told if lasting else why, now
            began = began if uuid in self._slow else now
            lasting = lasting or now - began >= BEGINS_SECONDS
        elif not lasting or now - last >= ENDS_SECONDS:
            self._slow.pop(uuid, None)
            return ""
        self._slow[uuid] = (told, began, last, lasting)
        return told if lasting else ""

    def speed(self, uuid: str, seen: int, *, at_work: bool) -> int:
        """The speed of its link when it last worked; 0 when it has not yet."""
        if at_work and seen:
            self._speeds[uuid] = seen
        return self._speeds.get(uuid, 0)
