"""Which decisions has a hook not been told of yet? A file for each, in the state folder.

A file is made before its commit is pushed and removed when all of it was told, so a crash at any line loses nothing.
Whether the commit became the record is asked of git later; what is told of it is derived from the record anew. So a
file holds one number: how many of its notices are settled.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reconciler.model.units import CommitId

_NAME = re.compile(r"(?P<generation>\d{12})-(?P<commit>[0-9a-f]{40,64})")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Entry:
    """One state commit of ours that is not fully told; ordered by generation."""

    generation: int
    commit: CommitId

    @property
    def name(self) -> str:
        return f"{self.generation:012d}-{self.commit}"


class Outbox:
    """The folder of one hook. `expect` and `withdraw` are the loop's, the rest the courier's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def expect(self, generation: int, commit: CommitId) -> None:
        """Remember a commit that is about to be pushed. Raises OSError, when the disk will not have it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write(Entry(generation=generation, commit=commit), 0)

    def withdraw(self, generation: int, commit: CommitId) -> None:
        """Forget a commit: it lost the race, or all of it is told."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / Entry(generation=generation, commit=commit).name).unlink()

    def entries(self) -> list[Entry]:
        """What is left to tell, oldest generation first."""
        return sorted(self._entries())

    def settled(self, entry: Entry) -> int:
        """How many notices of a commit were told or given up."""
        try:
            text = (self._folder / entry.name).read_text(encoding="ascii").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return 0
        return int(text) if text.isdecimal() else 0  # a torn file: told again rather than not at all

    def settle(self, entry: Entry, count: int) -> None:
        """So many notices of a commit are settled. Raises OSError."""
        self._write(entry, count)

    def _entries(self) -> Iterator[Entry]:
        try:
            names = os.listdir(self._folder)  # noqa: PTH208  names are all that is wanted
        except FileNotFoundError:
            return
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None:
                yield Entry(generation=int(match["generation"]), commit=CommitId(match["commit"]))

    def _write(self, entry: Entry, count: int) -> None:
        """Whole or not at all, and on the disk before we go on."""
        fresh = self._folder / f".{entry.name}.new"
        with fresh.open("w", encoding="ascii") as out:
            out.write(f"{count}\n")
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self._folder / entry.name)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
