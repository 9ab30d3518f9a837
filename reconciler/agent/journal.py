"""What must a node still know after its agent was killed? An append-only file tells: the order held, the attempts.

Each line carries its own CRC and is synced before anyone acts on it or hears of it. A line that was torn by a crash
ends the file: what was never completely written was never promised. Facts about processes are the shims' to keep.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from reconciler.agent.verify import NOTHING, Accepted
from reconciler.errors import GangOpsError

COMPACT_ABOVE = 1 << 20
"""Bytes of journal above which it is rewritten as what it amounts to."""


class JournalFull(GangOpsError):
    """The disk does not take another line. What was written before still stands."""

    code = "LocalStorageFull"


@dataclass(frozen=True)
class Record:
    """What the node has promised or done about one attempt.

    `stage` is prepared, launched, ended or refused. `boot` is that of the launch. `begun` is the boottime at which
    the checkpoint was asked for and `baseline` the marker's mtime then. `at`, `generation` and `commit` belong to
    the last change of `state`, which is what was reported.
    """

    job: str
    attempt: int
    digest: str
    stage: str
    state: str
    at: int
    generation: int
    commit: str
    boot: str = ""
    exit_code: int | None = None
    reason: str = ""
    begun: int | None = None
    baseline: int | None = None


Key = tuple[str, int]


class Journal:
    """The file, and what it amounts to. Use from one thread at a time. Raises JournalFull on every write that fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accepted = NOTHING
        self.records: dict[Key, Record] = {}
        self.unsaved: set[Key] = set()
        self.torn = 0
        self._read()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, self._end)
        os.lseek(self._fd, 0, os.SEEK_END)

    def accept(self, order: Accepted) -> None:
        """Hold another order from now on."""
        self._append(_line_of_order(order))
        self.accepted = order

    def keep(self, record: Record) -> None:
        """Replace what is known of one attempt. When that cannot be written it is still known, until we end."""
        key = (record.job, record.attempt)
        if self.records.get(key) == record and key not in self.unsaved:
            return
        self.records[key] = record
        self.unsaved.add(key)
        self._append(_line("attempt", asdict(record)))
        self.unsaved.discard(key)

    def flush(self) -> None:
        """Try again to write what a full disk did not take; never raises."""
        with contextlib.suppress(JournalFull):
            for key in sorted(self.unsaved):
                self.keep(self.records[key])

    def forget(self, key: Key) -> None:
        """Drop an attempt that nobody orders any more."""
        if key in self.records:
            self._append(_line("forgotten", {"job": key[0], "attempt": key[1]}))
            del self.records[key]
            self.unsaved.discard(key)

    def close(self) -> None:
        """Close the file; the journal is not to be used afterwards."""
        os.close(self._fd)

    def _read(self) -> None:
        content = self.path.read_bytes() if self.path.exists() else b""
        self._end = 0
        while (line_end := content.find(b"\n", self._end)) >= 0:
            entry = _entry_of(content[self._end : line_end])
            if entry is None or not self._replay(*entry):
                break
            self._end = line_end + 1
        self.torn = len(content) - self._end

    def _replay(self, kind: str, fields: dict[str, Any]) -> bool:
        try:
            if kind == "order":
                self.accepted = replace(Accepted(**fields), file=base64.b64decode(fields["file"]))
            elif kind == "attempt":
                record = Record(**fields)
                self.records[record.job, record.attempt] = record
            elif kind == "forgotten":
                self.records.pop((fields["job"], fields["attempt"]), None)
        except (TypeError, KeyError, ValueError):
            return False
        return True

    def _append(self, line: bytes) -> None:
        if self._end > COMPACT_ABOVE:
            self._compact()
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were taken")  # noqa: TRY301  handled as the system's own would be
            os.fsync(self._fd)
        except OSError as err:
            with contextlib.suppress(OSError):  # half a line would hide all that follow
                os.ftruncate(self._fd, self._end)
                os.lseek(self._fd, 0, os.SEEK_END)
            raise JournalFull(f"{self.path} cannot be written: {err}", remedy="free space on that disk") from err
        self._end += len(line)

    def _compact(self) -> None:
        """Rewrite as what it amounts to. When that fails, the long journal is as good as before."""
        lines = [_line_of_order(self.accepted)] if self.accepted != NOTHING else []
        lines += [_line("attempt", asdict(record)) for record in self.records.values()]
        fresh = self.path.with_suffix(".new")
        content = b"".join(lines)
        try:
            fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            if os.write(fd, content) != len(content):
                raise OSError("disk full")  # noqa: TRY301  handled as the system's own would be
            os.fsync(fd)
            fresh.replace(self.path)
        except OSError:
            os.close(fd)
            return
        _sync_folder(self.path.parent)
        os.close(self._fd)
        self._fd, self._end = fd, len(content)


def _line_of_order(order: Accepted) -> bytes:
    return _line("order", {**asdict(order), "file": base64.b64encode(order.file).decode("ascii")})


def _line(kind: str, fields: dict[str, Any]) -> bytes:
    content = json.dumps([kind, fields], separators=(",", ":")).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _entry_of(line: bytes) -> tuple[str, dict[str, Any]] | None:
    checksum, _, content = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(content):
        return None
    try:
        kind, fields = json.loads(content)
    except ValueError:
        return None
    return (kind, fields) if isinstance(kind, str) and isinstance(fields, dict) else None


def _sync_folder(folder: Path) -> None:
    """Make the rename last. A disk that refuses this leaves one of two journals that say the same."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
