"""The lines of a Slurm configuration file: which keys and values does each have, and where does it stand?

Slurm's own rules: keys in any case, a backslash continues a line, an unescaped `#` starts a comment, values may be quoted.
Other files that a line includes are not read, and said to be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.discovery.hostlists import expand
from reconciler.discovery.parsed import MAX_NAMES, Notes, shortened

_LONGEST: Final = 1 << 20  # of a line with its continuations
_COMMENT: Final = re.compile(r"(?<!\\)#.*")
_PAIR: Final = re.compile(r'\s*([A-Za-z0-9_.]{1,64})\s*[-*+/]?=\s*(?:"([^"]*)"|([^\s"]\S*)|(?=\s|\Z))(?=\s|\Z)')
_INCLUDE: Final = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, continuation lines included: values by key in lower case."""

    number: int  # of its first line, from 1
    values: Mapping[str, str]

    def get(self, *keys: str) -> str | None:
        """The value under the first of these keys that is there; None for an absent or empty one."""
        return next((self.values[key] for key in keys if self.values.get(key)), None)


def lines_of(text: str, notes: Notes) -> Iterator[Line]:
    """Each line that has anything on it; what cannot be read is an error, what is included a gap."""
    whole, first = "", 0
    for number, physical in enumerate([*text.split("\n"), ""], 1):
        part = _COMMENT.sub("", physical).rstrip()
        first = first or number
        if part.endswith("\\"):
            whole += part[:-1]
            continue
        whole += part
        if len(whole) > _LONGEST:
            notes.fail("LINE_TOO_LONG", f"line {first}: {len(whole)} characters")
        elif whole.strip() and (line := _read(whole, first, notes)):
            yield line
        whole, first = "", 0


def _read(text: str, number: int, notes: Notes) -> Line | None:
    if include := _INCLUDE.match(text):
        notes.gap("INCLUDE", f"line {number}: {shortened(include[1])} is another file, which is not read")
        return None
    values: dict[str, str] = {}
    position, text = 0, text.rstrip()
    while position < len(text):
        pair = _PAIR.match(text, position)
        if not pair:
            notes.fail("BAD_LINE", f"line {number}: {shortened(text[position:].strip(), 40)} is not Key=Value")
            return None
        key = pair[1].lower()
        if key in values:
            notes.fail("DUPLICATE_KEY", f"line {number}: {shortened(pair[1])} comes twice")
            return None
        values[key] = pair[2] if pair[2] is not None else pair[3] or ""
        position = pair.end()
    return Line(number=number, values=values)


class Names:
    """Expands the hostlists of one text, and bounds how many names they make together."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._left = MAX_NAMES

    def take(self, names: list[str], where: str) -> list[str]:
        """The names, counted like others; none, and an error, when they are too many."""
        if len(names) > self._left:
            self._notes.fail("TOO_MANY_NAMES", f"{where}: the file names more than {MAX_NAMES} nodes")
            return []
        self._left -= len(names)
        return names

    def of(self, text: str | None, where: str) -> list[str]:
        """Names of a list, in order; none, and an error, for what cannot be read."""
        if not text:
            return []
        try:
            names = expand(text, self._left)
        except ValueError as error:
            self._notes.fail("BAD_HOSTLIST", f"{where}: {error}")
            return []
        return self.take(names, where)
