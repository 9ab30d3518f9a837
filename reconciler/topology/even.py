"""Where a gang of whole nodes fits evenly: the same number of nodes in each rack, of racks in each spine group.

Traffic between racks is hashed over the uplinks; a gang with five nodes in one rack and three in another sends more
through some than through others. So the fewest racks are taken that can each give an equal share, and equally many of
them in each domain of every level above. Groups must not be torn: a share is a multiple of those that lie inside it.
The narrowest level comes first, as in `find`; when nothing is even the caller packs.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.topology.capacity import Capacity
from reconciler.topology.request import Placement, Request
from reconciler.topology.rooms import domains_holding, tightest_first
from reconciler.topology.tree import DomainIndex, Level, lowest_bits


def find_even(capacity: Capacity, asked: Request) -> Placement | None:
    """The most even placement by the rule above, or None: not whole nodes, or nothing is even. Binds nothing."""
    if asked.units < 2 or not capacity.counts_whole(asked.unit, asked.share):
        return None
    for level in range(min(asked.start, capacity.tree.leaf_level), asked.required - 1, -1):
        domains = list(tightest_first(capacity, level, domains_holding(capacity, asked, level)))
        for share in _shares(capacity, asked):
            for domain in domains:
                leaves = _spread(capacity, asked, level, domain, share, asked.units // share)
                if leaves is not None:
                    slots = capacity.wholes[asked.unit]
                    return Placement(tuple((leaf, lowest_bits(slots[leaf], share)) for leaf in sorted(leaves)), ())
    return None


def _shares(capacity: Capacity, asked: Request) -> Iterator[int]:
    """Nodes of each leaf, largest first: divisors of the gang that tear no group which lies inside a leaf."""
    inside = max([1, *(size for level, size in asked.groups if level >= capacity.tree.leaf_level)])
    for share in range(asked.units, 0, -1):
        if asked.units % share == 0 and share % inside == 0:
            yield share


def _spread(
    capacity: Capacity, asked: Request, level: Level, domain: DomainIndex, share: int, leaves: int
) -> list[DomainIndex] | None:
    """So many leaves of one domain, each with room for a share, equally many in each child that is used."""
    tree = capacity.tree
    if level == tree.leaf_level:
        capacity.visits += 1
        return [domain] if leaves == 1 and capacity.counts.whole[level][domain] >= share else None
    if share * leaves > capacity.counts.whole[level][domain]:
        return None
    group = max([1, *(size for at, size in asked.groups if at > level)])
    first, end = tree.span(level, domain, level + 1)
    for children in range(1, min(leaves, end - first) + 1):
        if leaves % children or share * leaves // children % group:
            continue
        found = [
            inner
            for child in range(first, end)
            if (inner := _spread(capacity, asked, level + 1, child, share, leaves // children)) is not None
        ]
        if len(found) >= children:
            found.sort(key=lambda inner: (sum(capacity.counts.whole[-1][leaf] for leaf in inner), inner))
            return [leaf for inner in found[:children] for leaf in inner]
    return None


def unevenness(counts: list[int]) -> int:
    """How many nodes the fullest of some domains has more than the emptiest; 0 is even."""
    return max(counts) - min(counts) if counts else 0
