"""Which nodes does `gpu-[001-008,010],x1` name, and how are many names written short?

Slurm hostlist syntax, read by ClusterShell behind a guard: the number of names is computed from the
text before anything is expanded. Groups (`@rack`), wildcards, set operators and steps are refused:
a list must mean the same on every machine. Whether the nodes exist is for the lint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ClusterShell.NodeSet import (  # type: ignore[import-untyped, unused-ignore]  # ships no types
    RESOLVER_NOGROUP,
    NodeSet,
    NodeSetException,
)
from ClusterShell.RangeSet import AUTOSTEP_DISABLED  # type: ignore[import-untyped, unused-ignore]  # ships no types

_LIMIT: Final = 20_000
_LONGEST_TEXT: Final = 1 << 20
_LONGEST_NAME: Final = 253  # of a DNS name

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_RANGE: Final = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_GROUP: Final = re.compile(rf"\[({_RANGE}(?:,{_RANGE})*)\]")
# Two brackets in a row would leave it open where one number ends and the next begins.
_ITEM: Final = re.compile(
    rf"((?:[A-Za-z0-9._-]|\[{_RANGE}(?:,{_RANGE})*\](?!\[)){{1,{_LONGEST_NAME}}})(?:,(?=.)|\Z)", re.DOTALL
)
_TOUCHING: Final = re.compile(r"(?<=[0-9])\[([^\]]*)\]|\[([^\]]*)\](?=[0-9])")
_NUMBER: Final = re.compile(r"((?<![0-9])[0-9]{1,9}(?![0-9]))")  # what `_RANGE` can hold


def expand(text: str, limit: int = _LIMIT) -> tuple[str, ...]:
    """All names in the list, sorted with numbers in numeric order; padding zeros are kept.

    Raises: ValueError for wrong syntax, more than `limit` names (found without expanding), or a name
    that comes twice.
    """
    names: list[str] = []
    items, expected = _items(text, limit)
    for item in items:
        # One by one: ClusterShell merges a list of many numbered parts in quadratic time.
        names += _expand_item(item) if "[" in item else [item]
    for name in names:
        _refuse_odd_name(name)
    unique = sorted(set(names), key=_numeric_order)
    if len(unique) != expected:
        raise ValueError(f"node list {_shown(text)} names a node twice: {expected} names, {len(unique)} different")
    return tuple(unique)


def fold(names: Iterable[str], limit: int = _LIMIT) -> str:
    """The names as one short hostlist, the same for the same set in any order; "" for none.

    Folds the last number first, then those before it where all else is equal; linear in the names
    (ClusterShell's own folding needs 17 s for 3,000 scattered names of three numbers).
    Raises: ValueError for a name that is no host name, or more than `limit` names.
    """
    unique = sorted(set(names), key=_numeric_order)
    if len(unique) > limit:
        raise ValueError(f"{len(unique)} node names; at most {limit} are folded")
    for name in unique:
        _refuse_odd_name(name)
    rows = [tuple(_NUMBER.split(name)) for name in unique]  # text, number, text, ..., text
    for axis in range(max(map(len, rows), default=0) - 2, 0, -2):
        groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for row in rows:
            # Rows too short for this axis stay alone: their numbers slot is empty.
            groups.setdefault((row[:axis], row[axis + 1 :]), []).extend(row[axis : axis + 1])
        rows = [(*head, *([_ranges(numbers)] if numbers else []), *tail) for (head, tail), numbers in groups.items()]
    return ",".join("".join(row) for row in rows)


def _ranges(numbers: list[str]) -> str:
    """`[001-008,010]` of numbers in order; a single one as it is."""
    runs: list[tuple[str, str]] = []
    for number in numbers:
        first, last = runs[-1] if runs else ("", "")
        padded = len(first) > 1 and first.startswith("0")
        follows = first and int(number) == int(last) + 1 and number == str(int(number)).zfill(len(first))
        if follows and (not padded or len(number) == len(first)):
            runs[-1] = (first, number)
        else:
            runs.append((number, number))
    if len(numbers) == 1:
        return numbers[0]
    return f"[{','.join(low if low == high else f'{low}-{high}' for low, high in runs)}]"


def _expand_item(item: str) -> list[str]:
    beside_digits = [part.split("-") for group in _TOUCHING.findall(item) for part in "".join(group).split(",")]
    if any(len(ends[0]) != len(ends[-1]) for ends in beside_digits):
        # Slurm reads n1[8-11] as n18, n19, n110, n111; ClusterShell takes n100 to n1011 from it.
        raise ValueError(f"node list {_shown(item)}: a range beside a digit needs ends of the same length")
    try:
        return [str(name) for name in NodeSet(item, resolver=RESOLVER_NOGROUP, autostep=AUTOSTEP_DISABLED)]
    except NodeSetException as error:
        raise ValueError(f"node list {_shown(item)}: {error}") from error


def _items(text: str, limit: int) -> tuple[list[str], int]:
    """The parts between the outer commas, and how many names they expand to.

    Raises: ValueError for wrong syntax and for more than `limit` names.
    """
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"node list of {len(text)} characters is too long")
    items: list[str] = []
    total = position = 0
    while position < len(text) or not items:
        item = _ITEM.match(text, position)
        if not item:
            raise ValueError(
                f"node list {_shown(text)}: {_shown(text[position:])} does not start with a name such as gpu-[001-008,010]"
            )
        count = 1
        for group in _GROUP.findall(item[0]):
            count *= sum(_range_size(part, text) for part in group.split(","))
            if total + count > limit:
                break
        total += count
        if total > limit:
            raise ValueError(f"node list {_shown(text)} names more than {limit} nodes")
        items.append(item[1])
        position = item.end()
    return items, total


def _range_size(part: str, text: str) -> int:
    low, dash, high = part.partition("-")
    if not dash:
        return 1
    padded = any(len(end) > 1 and end.startswith("0") for end in (low, high))
    if int(high) < int(low) or (padded and len(low) != len(high)):
        raise ValueError(f"node list {_shown(text)}: range {part} must rise, with the same number of digits if padded")
    return int(high) - int(low) + 1


def _refuse_odd_name(name: str) -> None:
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise ValueError(f"{_shown(name)} is not a node name: letters, digits, '-', '.' and '_' inside")


def _numeric_order(name: str) -> tuple[list[tuple[str, int]], str]:
    """Sort key: text and number pieces in turn, ending with the name itself (n1 and n01 differ)."""
    return [(word, int(digits or "0")) for word, digits in re.findall(r"([^0-9]*)([0-9]*)", name)], name


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else f"{text[:60]}...")
