"""What did the ranks of a job print, and when? Lines out of the shared log folder, merged by time, also as they come.

A log is `{queue}/{job}/{attempt}/{rank}.log`, its rotated parts beside it; `{rank}.times` says at which offset of the
log which instant begins (`rotate` writes both). Read by the command line where the folder is mounted, and by the agent
for people where it is not: so folders belong to users, and nothing is opened through a link.
"""

# ruff: noqa: PTH208 - paths are opened step by step from a descriptor

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.agent.beneath import open_beneath

LONGEST_LINE = 1 << 20
"""Bytes after which a line is cut in two: what never ends a line must not fill the reader's memory."""
_AT_ONCE = 1 << 18
_LOOKS = 256


@dataclass(frozen=True)
class Printed:
    """One line. `at` is an instant in ns, never before that of the line above it; 0 when nothing tells it."""

    at: int
    attempt: int
    rank: int
    text: str


@dataclass(frozen=True)
class LogFolder:
    """The logs of one job. With `owner`, a uid, only files of that user are read: links made by others lead nowhere."""

    root: Path
    job: str
    owner: int | None = None

    def attempts(self) -> list[int]:
        """Attempts that have a folder, ascending."""
        return sorted(int(name) for name in self._names("") if name.isdecimal())

    def ranks(self, attempt: int) -> list[int]:
        """Ranks that have a log in this attempt, ascending."""
        return sorted(int(n[:-4]) for n in self._names(str(attempt)) if n.endswith(".log") and n[:-4].isdecimal())

    def parts(self, attempt: int, rank: int) -> list[str]:
        """Endings of a log's rotated parts, oldest first: `.1` is the youngest of them."""
        front = f"{rank}.log."
        found = [n[len(front) :] for n in self._names(str(attempt)) if n.startswith(front)]
        return [f".{age}" for age in sorted((int(age) for age in found if age.isdecimal()), reverse=True)]

    def open(self, attempt: int, name: str) -> int:
        """A descriptor to read one file. Raises OSError."""
        fd = open_beneath(str(self.root), f"{self.job}/{attempt}/{name}", os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or self.owner not in (None, found.st_uid):
            os.close(fd)
            raise PermissionError(errno.EACCES, "not a log of this job's user", name)
        return fd

    def _names(self, below: str) -> list[str]:
        try:
            fd = open_beneath(str(self.root), f"{self.job}/{below}", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return []
        try:
            return os.listdir(fd)
        finally:
            os.close(fd)


def read(folder: LogFolder, attempt: int, ranks: list[int]) -> Iterator[Printed]:
    """Every line so far of these ranks of an attempt, by time; of equal times by rank."""
    return heapq.merge(*(_whole(folder, attempt, rank) for rank in ranks), key=_by_time)


def follow(
    folder: LogFolder, attempt: int | None, rank: int | None, pause: Callable[[], None], over: Callable[[], bool]
) -> Iterator[Printed]:
    """Every line so far and then each as it comes, of one attempt or (None) of the latest one and all after it.

    `pause` waits between two looks at which nothing was new; once `over` says so, the next such look is the last.
    """
    tails: dict[int, Tail] = {}
    current = attempt or 0
    try:
        while True:
            last = over()  # asked first: what was written before it turned true is still read
            if attempt is None and (newest := max(folder.attempts(), default=0)) > current:
                yield from _rests(tails)
                tails, current = {}, newest
            for found in folder.ranks(current):
                if found not in tails and rank in (None, found):
                    tails[found] = Tail(folder, current, found)
            quiet = True
            for line in heapq.merge(*(_look(tail) for tail in tails.values()), key=_by_time):
                quiet = False
                yield line
            if quiet and last:
                yield from _rests(tails)
                return
            if quiet:
                pause()
    finally:
        for tail in tails.values():
            tail.close()


def _by_time(line: Printed) -> tuple[int, int]:
    return line.at, line.rank


def _look(tail: Tail) -> Iterator[Printed]:
    """What came, but not without an end: a rank that prints faster than is read must not keep the others waiting."""
    for _ in range(_LOOKS):
        lines = tail.lines()
        if not lines:
            return
        yield from lines


def _rests(tails: Mapping[int, Tail]) -> list[Printed]:
    return sorted((line for tail in tails.values() for line in tail.end()), key=_by_time)


def _whole(folder: LogFolder, attempt: int, rank: int) -> Iterator[Printed]:
    tail = Tail(folder, attempt, rank)
    try:
        while lines := tail.lines():
            yield from lines
        yield from tail.end()
    finally:
        tail.close()


class Tail:
    """One rank's log being read, from its oldest part on. What was read stays read when a file is renamed."""

    def __init__(self, folder: LogFolder, attempt: int, rank: int) -> None:
        self._folder, self._attempt, self._rank = folder, attempt, rank
        self._older = folder.parts(attempt, rank)
        self._part: _Part | None = None
        self._rest = bytearray()
        self._rest_at = 0
        self._at = 0

    def lines(self) -> list[Printed]:
        """The whole lines that came since the last look; [] when none did."""
        while True:
            found = self._more()
            if not found:
                return []
            if lines := self._split(found):
                return lines

    def end(self) -> list[Printed]:
        """What is left: the lines not read yet, and a last one that nothing ended."""
        found = []
        while lines := self.lines():
            found += lines
        if self._rest:
            found.append(self._printed(bytes(self._rest), self._rest_at))
            self._rest.clear()
        self.close()
        return found

    def close(self) -> None:
        """Let go of the files."""
        if self._part is not None:
            self._part.close()
            self._part = None

    def _more(self) -> bytes:
        """Bytes not seen yet, of this part or of the next one; b"" when there are none now."""
        while True:
            if self._part is not None:
                if found := self._part.read():
                    return found
                if not self._is_replaced(self._part):
                    return b""
            if not self._next():
                return b""

    def _is_replaced(self, part: _Part) -> bool:
        """Whether the log's name stands for another file than the part that was read to its end."""
        if self._older:
            return True
        try:
            fd = self._folder.open(self._attempt, f"{self._rank}.log")
        except OSError:
            return False
        try:
            return not os.path.samestat(os.fstat(fd), os.fstat(part.log))
        finally:
            os.close(fd)

    def _next(self) -> bool:
        """Go on to the part that follows; False when there is none yet."""
        ending = self._older.pop(0) if self._older else ""
        try:
            part = _Part(self._folder, self._attempt, self._rank, ending)
        except FileNotFoundError:
            return bool(ending)  # a part that was dropped meanwhile is passed over
        except OSError:
            return False
        self.close()
        self._part = part
        return True

    def _split(self, found: bytes) -> list[Printed]:
        """Whole lines out of the bytes just read; only a line feed ends one, so that a progress bar stays one line."""
        part = self._part
        assert part is not None  # it has just been read from
        start, lines = part.offset - len(found), []
        at = 0
        while (end := found.find(b"\n", at)) >= 0 or len(self._rest) + len(found) - at > LONGEST_LINE:
            end, skip = (end, 1) if end >= 0 else (len(found), 0)
            when = self._rest_at if self._rest else part.time_of(start + at)
            lines.append(self._printed(bytes(self._rest) + found[at:end], when))
            self._rest.clear()
            at = end + skip
        if at < len(found):
            if not self._rest:
                self._rest_at = part.time_of(start + at)
            self._rest += found[at:]
        return lines

    def _printed(self, content: bytes, at: int) -> Printed:
        self._at = max(self._at, at)  # a clock that was set back must not put lines out of their order
        return Printed(self._at, self._attempt, self._rank, content.decode("utf-8", "replace"))


class _Part:
    """One file of a log and the times that go with it. Raises OSError."""

    def __init__(self, folder: LogFolder, attempt: int, rank: int, ending: str) -> None:
        self.log = folder.open(attempt, f"{rank}.log{ending}")
        self.offset = 0
        self._times = -1
        self._unread = b""
        self._marks: deque[tuple[int, int]] = deque()
        self._at = 0
        with contextlib.suppress(OSError):
            self._times = folder.open(attempt, f"{rank}.times{ending}")
            if not self._is_about_us():
                os.close(self._times)
                self._times = -1

    def read(self) -> bytes:
        found = os.read(self.log, _AT_ONCE)
        self.offset += len(found)
        if found:
            self._read_marks()
        return found

    def time_of(self, offset: int) -> int:
        """The instant at which this byte was written, as far as it is told; offsets never go back."""
        while self._marks and self._marks[0][0] <= offset:
            self._at = self._marks.popleft()[1]
        return self._at

    def close(self) -> None:
        os.close(self.log)
        if self._times >= 0:
            os.close(self._times)

    def _is_about_us(self) -> bool:
        """Whether the times are of this very file: both are renamed at a rotation, one after the other."""
        first, found, self._unread = os.read(self._times, 64).partition(b"\n")
        return bool(found) and first == b"inode %d" % os.fstat(self.log).st_ino

    def _read_marks(self) -> None:
        """What came since; a mark is written before what it marks, and so is there once that was read."""
        if self._times < 0:
            return
        found = self._unread + os.read(self._times, _AT_ONCE)
        while found:
            *lines, self._unread = found.split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):  # a full disk leaves half a mark
                    offset, at = line.split(b" ")
                    self._marks.append((int(offset), int(at)))
            found = self._unread + more if (more := os.read(self._times, _AT_ONCE)) else b""
