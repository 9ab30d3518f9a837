"""Which domains have room for a gang, groups included, and in what order they are offered: tightest first.

Groups of consecutive ranks nest, and each lies in one domain of its level. So a domain holds as many as its children
together, rounded down at each level that has a group: a closed form, exact for workers that are all alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from reconciler.topology.capacity import Capacity
from reconciler.topology.counts import KEY
from reconciler.topology.request import Request
from reconciler.topology.tree import ROOT, DomainIndex, Level, bits_of

FEW = 8  # so many candidates are compared one by one; more are looked up in the order of tightness


def tightest(capacity: Capacity, level: Level, domains: int) -> DomainIndex:
    """The tightest of a non-empty bit set of domains, lowest number first."""
    if level == ROOT:
        capacity.visits += 1
        return ROOT
    if domains & (domains - 1) == 0:
        capacity.visits += 1
        return domains.bit_length() - 1
    count = domains.bit_count()
    if count <= FEW:
        capacity.visits += count
        whole, free = capacity.counts.whole[level], capacity.counts.free[level]
        return min((whole[d], free[d], d) for d in bits_of(domains))[2]
    counts = capacity.counts
    tight, by_whole, filled = counts.tight[level], counts.by_whole[level], counts.filled[level]
    while True:  # the same order as below, without a generator: this is the hot path
        low = filled & -filled
        filled ^= low
        whole_nodes = low.bit_length() - 1
        capacity.visits += 1
        if by_whole[whole_nodes] & domains:
            break
    rests = counts.rests[level][whole_nodes]
    while True:
        low = rests & -rests
        rests ^= low
        capacity.visits += 1
        here = tight[whole_nodes << KEY | low.bit_length() - 1] & domains
        if here:
            return (here & -here).bit_length() - 1


def tightest_first(capacity: Capacity, level: Level, domains: int) -> Iterator[DomainIndex]:
    """The domains of a bit set, tightest first, then lowest number."""
    if level == ROOT:
        capacity.visits += 1
        yield ROOT
        return
    counts = capacity.counts
    tight, all_rests, by_whole = counts.tight[level], counts.rests[level], counts.by_whole[level]
    filled = counts.filled[level]
    while filled and domains:
        low = filled & -filled
        filled ^= low
        count = low.bit_length() - 1
        capacity.visits += 1
        if not by_whole[count] & domains:
            continue
        rests = all_rests[count]
        while rests:
            low = rests & -rests
            rests ^= low
            capacity.visits += 1
            here = tight[count << KEY | low.bit_length() - 1] & domains
            domains ^= here
            while here:  # one at a time: most callers stop soon
                low = here & -here
                here ^= low
                yield low.bit_length() - 1


def domains_holding(capacity: Capacity, asked: Request, level: Level) -> int:
    """Bit set of the domains of a level with room for all workers, groups not considered."""
    capacity.visits += 1
    if not capacity.counts_whole(asked.unit, asked.share):
        return capacity.units(asked.unit, asked.share).holding(level, asked.units)
    if level == ROOT:
        return 1 if capacity.counts.whole[ROOT][0] >= asked.units else 0
    holding, by_whole = 0, capacity.counts.by_whole[level]
    for beyond in bits_of(capacity.counts.filled[level] >> asked.units):
        holding |= by_whole[asked.units + beyond]
    return holding


def groups_fit(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex) -> bool:
    """True when a domain holds the whole gang, its groups each in a domain of their level."""
    return groups_that_fit(capacity, asked, level, domain) * group_at(asked, level)[1] >= asked.units


def group_at(asked: Request, level: Level) -> tuple[Level, int]:
    """The outermost group that must lie wholly inside a domain of this level or of a narrower one, and its units."""
    for group in asked.groups:
        if group[0] >= level:
            return group
    return level, 1


def groups_that_fit(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex) -> int:
    """How many of the outermost groups of this level or narrower a domain can hold. Units, when there are none."""
    deeper = [group for group in asked.groups if group[0] >= level]
    return _fitting(capacity, asked, level, domain, deeper)


def _fitting(
    capacity: Capacity, asked: Request, level: Level, domain: DomainIndex, groups: list[tuple[Level, int]]
) -> int:
    """Groups of groups: of the first kind as many as the sum of the next kind below allows, rounded down by domain."""
    if not groups:
        capacity.visits += 1
        return units_in(capacity, asked, level, domain)
    at, size = groups[0]
    within = groups[1:]
    smaller = within[0][1] if within else 1
    if at == level:
        return _fitting(capacity, asked, level, domain, within) // (size // smaller)
    first, end = capacity.tree.span(level, domain, at)
    if within:
        return sum(_fitting(capacity, asked, at, inside, groups) for inside in range(first, end))
    filled, buckets = buckets_of(capacity, asked, at)
    span, fits = (1 << end) - (1 << first), 0
    filled = filled >> size << size
    while filled:
        low = filled & -filled
        filled ^= low
        capacity.visits += 1
        units = low.bit_length() - 1
        fits += units // size * (buckets[units] & span).bit_count()
    return fits


def units_in(capacity: Capacity, asked: Request, level: Level, domain: DomainIndex) -> int:
    """Workers that a domain holds, groups not considered."""
    if capacity.counts_whole(asked.unit, asked.share):
        return capacity.counts.whole[level][domain]
    return capacity.units(asked.unit, asked.share).count[level][domain]


def buckets_of(capacity: Capacity, asked: Request, level: Level) -> tuple[int, Mapping[int, int] | list[int]]:
    """Domains of a level by the units they hold: bit set of the numbers in use, and the domains of each."""
    if capacity.counts_whole(asked.unit, asked.share):
        return capacity.counts.filled[level], capacity.counts.by_whole[level]
    index = capacity.units(asked.unit, asked.share)
    return index.filled[level], index.buckets[level]
