"""Which members hang together, given the pairs that are joined?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def joined(members: Sequence[_T], pairs: Iterable[tuple[_T, _T]]) -> list[list[_T]]:
    """Connected groups of two or more, in the order of `members`; pairs with a stranger are passed over."""
    neighbours: dict[_T, list[_T]] = {member: [] for member in members}
    for one, other in pairs:
        if one in neighbours and other in neighbours:
            neighbours[one].append(other)
            neighbours[other].append(one)
    group_of: dict[_T, int] = {}
    groups: list[list[_T]] = []
    for member in neighbours:
        if member in group_of:
            group_of_member = groups[group_of[member]]
            group_of_member.append(member)
            continue
        waiting = [member]
        group_of[member] = len(groups)
        while waiting:
            for other in neighbours[waiting.pop()]:
                if other not in group_of:
                    group_of[other] = len(groups)
                    waiting.append(other)
        groups.append([member])
    return [group for group in groups if len(group) > 1]
