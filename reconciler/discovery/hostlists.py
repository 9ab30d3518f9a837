"""Which names does a Slurm hostlist stand for, just as `scontrol show hostnames` prints them?

The lists of our own documents are stricter (`documents.hostlist`): a name that comes twice, a range beside a digit
and two brackets in a row are refused there, and read here, because other people's files have them. The number of
names is counted before any is made.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

from reconciler.discovery.parsed import MAX_NAMES, Kind, Notes, Parsed, failure, shortened
from reconciler.documents.loader import Tree

_LONGEST: Final = 253
_MOST_ITEMS: Final = 10_000  # lists in one text
_RANGE: Final = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_BRACKET: Final = rf"\[{_RANGE}(?:,{_RANGE}){{0,9999}}\]"
_ITEM: Final = re.compile(rf"((?:[A-Za-z0-9._/-]|{_BRACKET}){{1,{_LONGEST}}})(?:[,\s]+|\Z)")
_PIECE: Final = re.compile(rf"({_BRACKET})")


def parse(text: str) -> Parsed:
    """One list a line (`#` starts a comment), each with its names in Slurm's order, repeats kept."""
    notes = Notes()
    items: list[Tree] = []
    left = MAX_NAMES
    for number, line in enumerate(text.split("\n"), 1):
        expression = line.partition("#")[0].strip()
        if not expression:
            continue
        if len(items) == _MOST_ITEMS:
            return failure(Kind.HOSTLIST, "TOO_MANY_LISTS", f"more than {_MOST_ITEMS} lists")
        try:
            names = expand(expression, left)
        except ValueError as error:
            notes.fail("BAD_HOSTLIST", f"line {number}: {error}")
            continue
        left -= len(names)
        items.append({"expr": expression, "hosts": [*names]})
    if not items and not notes.errors:
        notes.fail("EMPTY", "no host list in the text")
    return notes.parsed(Kind.HOSTLIST, {} if notes.errors else {"items": items})


def expand(text: str, limit: int) -> list[str]:
    """All names in the order that Slurm gives them, repeats kept; also device files such as /dev/nvidia[0-7].

    Raises: ValueError for wrong syntax, or more than `limit` names (found without expanding).
    """
    names: list[str] = []
    position, text = 0, text.strip(", \t")
    while position < len(text):
        item = _ITEM.match(text, position)
        if not item:
            raise ValueError(f"{shortened(text[position:], 60)} does not start with a name such as gpu-[001-008,010]")
        pieces = [_ends(piece) for piece in _PIECE.split(item[1]) if piece]
        count = 1
        for ends in pieces:
            count *= sum(last - first + 1 for first, last, _ in ends) if isinstance(ends, list) else 1
            if count > limit - len(names):
                raise ValueError(f"{shortened(text, 60)} names more than {limit} nodes")
        if sum(len(piece) if isinstance(piece, str) else _widest(piece) for piece in pieces) > _LONGEST:
            raise ValueError(f"{shortened(text, 60)} makes names of more than {_LONGEST} characters")
        choices = [_numbers(ends) if isinstance(ends, list) else [ends] for ends in pieces]
        names += map("".join, itertools.product(*choices))
        position = item.end()
    return names


def _ends(piece: str) -> str | list[tuple[int, int, int]]:
    """Plain text as it is; of a bracket the first number, the last, and the digits of each range."""
    if not piece.startswith("["):
        return piece
    found = []
    for part in piece[1:-1].split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise ValueError(f"range {part} must rise")
        found.append((int(low), int(high or low), len(low)))
    return found


def _widest(ranges: list[tuple[int, int, int]]) -> int:
    return max(max(width, len(str(last))) for _, last, width in ranges)


def _numbers(ranges: list[tuple[int, int, int]]) -> list[str]:
    """Padding is that of the first number, and grows: [098-101] is 098, 099, 100, 101."""
    return [str(number).zfill(width) for first, last, width in ranges for number in range(first, last + 1)]
