"""What ranks printed, from the shared log folder: `{queue}/{job}/{attempt}/{rank}.log`, rotated parts beside it."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from reconciler.documents.tasklist import print_tasks
from reconciler.errors import NotFound

_LOOK_AGAIN_SECONDS = 0.2
_MOST_AT_ONCE = 1 << 20


def log_files(folder: Path, job: str, attempt: int | None, rank: int | None) -> tuple[Path, ...]:
    """The log of each rank of an attempt (the latest when None), by rank. Raises NotFound (LogsMissing)."""
    base = folder / job
    attempts = sorted(int(path.name) for path in base.glob("*") if path.name.isdecimal())
    wanted = attempt if attempt is not None else max(attempts, default=0)
    files = [path for path in (base / str(wanted)).glob("*.log") if path.stem.isdecimal()]
    chosen = sorted((path for path in files if rank is None or int(path.stem) == rank), key=lambda path: int(path.stem))
    if not chosen:
        whose = job if rank is None else f"rank {rank} of {job}"
        which = f" of attempt {wanted}" if wanted else ""
        tasks = _tasks_with_logs(base)
        there = f"tasks with logs: {tasks}; name one as {job}.N" if tasks else ""
        raise NotFound(
            f"{whose} has no logs{which} in {folder}",
            code="LogsMissing",
            remedy=there or f"attempts with logs: {', '.join(map(str, attempts)) or 'none'}",
        )
    return tuple(chosen)


def _tasks_with_logs(array: Path) -> str:
    """The numbers of the tasks of an array that printed something; "" for a job that is none."""
    ends = (path.name.removeprefix(f"{array.name}.") for path in array.parent.glob(f"{array.name}.*"))
    return print_tasks(int(end) for end in ends if end.isdecimal())


def read_logs(files: Sequence[Path]) -> Iterator[str]:
    """Every line so far, a rank after the other, each with its rank in front when there are several."""
    for file in files:
        for part in [*_older_parts(file), file]:
            # Only a line feed ends a line: a progress bar is one line however often it returns.
            with part.open(encoding="utf-8", errors="replace", newline="\n") as stream:
                for line in stream:
                    yield _labelled(file, line.rstrip("\n"), len(files) > 1)


def follow(files: Sequence[Path], pause: Callable[[], None] | None = None) -> Iterator[str]:
    """Lines as they are written, until interrupted; `pause` waits between two looks. A rotation loses nothing."""
    wait = pause or (lambda: time.sleep(_LOOK_AGAIN_SECONDS))
    tails = [_Tail(file) for file in files]
    try:
        while True:
            quiet = True
            for tail in tails:
                for line in tail.lines():
                    quiet = False
                    yield _labelled(tail.file, line, len(files) > 1)
            if quiet:
                wait()
    finally:
        for tail in tails:
            tail.close()


class _Tail:
    """One file being written. What was read stays read when the file is renamed and another takes its name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._stream: BinaryIO | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def lines(self) -> list[str]:
        """The whole lines that came since the last look."""
        if self._stream is None:
            self._open()
        found = self._read()
        if not found and self._renamed():
            self._open()
            found = self._read()
        *lines, self._rest = (self._rest + self._decoder.decode(found)).split("\n")
        return lines

    def _read(self) -> bytes:
        return self._stream.read(_MOST_AT_ONCE) if self._stream else b""

    def _renamed(self) -> bool:
        """Whether the name now stands for another file than the one we read."""
        if self._stream is None or not self.file.exists():
            return False
        return not os.path.samestat(os.fstat(self._stream.fileno()), self.file.stat())

    def close(self) -> None:
        """Let go of the file."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self) -> None:
        self.close()
        if self.file.exists():
            self._stream = self.file.open("rb", buffering=0)


def _older_parts(file: Path) -> list[Path]:
    """Rotated parts, oldest first: `.1` is the youngest of them."""
    found = {path.suffix[1:]: path for path in file.parent.glob(f"{file.name}.*") if path.suffix[1:].isdecimal()}
    return [found[age] for age in sorted(found, key=int, reverse=True)]


def _labelled(file: Path, line: str, several: bool) -> str:
    return f"{int(file.stem):>4} | {line}" if several else line
