"""What a placement costs to communicate across, and the least any placement of these sizes could cost.

T_comm = max over communicating pairs of latency + bytes / bandwidth, in whole nanoseconds. Pairs are the neighbours
in the ring of each parallelism group (all-reduce and its relatives); what a pair costs depends on the narrowest level
that holds both. A maximum saturates early, so the number of groups that cross each level comes along as a second key.
Defaults for links, and the bytes that a dimension moves in a step, are handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reconciler.topology.tree import Level, NodeIndex, Tree

NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way between two GPUs whose narrowest common level is this one; one direction."""

    latency: int  # ns
    bandwidth: int  # bit/s
    oversubscription: int = 1000  # per mille: 2000 leaves half the bandwidth

    def __post_init__(self) -> None:
        if self.latency < 0 or self.bandwidth <= 0 or self.oversubscription <= 0:
            raise ValueError(f"a link needs a bandwidth and no negative numbers: {self}")

    def time(self, size: int) -> int:
        """Nanoseconds for one message of `size` bytes, rounded up."""
        return self.latency + -(-size * 8 * NS_PER_SECOND * self.oversubscription // (self.bandwidth * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One kind of parallelism: ranks in a group, and bytes each of them hands to its neighbour in one step."""

    size: int
    message: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommCost:
    """T_comm and what sets it. `crossings[level]` = groups that no single domain of that level holds."""

    time: int  # ns
    level: Level  # of the slowest pair; island_level when nothing communicates
    dimension: int  # index of the slowest dimension, -1: none
    crossings: tuple[int, ...]


def comm_time(
    tree: Tree, ranks: Sequence[tuple[NodeIndex, int]], dimensions: Sequence[Dimension], links: Sequence[Link]
) -> CommCost:
    """Cost of a placement: `ranks[r]` = (node, GPU of that node).

    Dimensions are listed fastest-varying first: members of a group of dimension i are the product of the sizes before
    i apart. links[level] for every level up to `island_level`. A gang of one rank costs 0. O(ranks x levels).
    Raises: ValueError, when the sizes do not multiply to the number of ranks or a level has no link.
    """
    _check(tree, len(ranks), dimensions, links)
    places = domains_of_ranks(tree, ranks)
    worst, level, slowest = 0, tree.island_level, -1
    crossings = [0] * len(places)
    stride = 1
    for number, dimension in enumerate(dimensions):
        times = [link.time(dimension.message) for link in links]
        wider_is_slower = all(outer >= inner for outer, inner in pairwise(times))
        span = stride * dimension.size
        for first in range(0, len(ranks) if dimension.size > 1 else 0, span):
            for base in range(first, first + stride):
                group = slice(base, base + span, stride)
                common = _common_level(places, group, dimension.size, crossings)
                met = [common] if wider_is_slower else _ring_levels(places, group, common)
                for at in met:
                    if times[at] > worst:
                        worst, level, slowest = times[at], at, number
        stride = span
    return CommCost(time=worst, level=level, dimension=slowest, crossings=tuple(crossings))


def domains_of_ranks(tree: Tree, ranks: Sequence[tuple[NodeIndex, int]]) -> list[list[int]]:
    """[level][rank] = the domain the rank is in, levels 0 to `island_level`."""
    leaves = [tree.leaf_of[node] for node, _ in ranks]
    outer = [leaves]
    for level in range(tree.leaf_level, 0, -1):
        outer.append([tree.parents[level][domain] for domain in outer[-1]])
    islands = [node << 8 | _island(tree, node, gpu) for node, gpu in ranks]
    return [*reversed(outer), [node for node, _ in ranks], islands]


def _island(tree: Tree, node: NodeIndex, gpu: int) -> int:
    islands = tree.shapes[tree.shape_of[node]].nvlink
    return 0 if len(islands) == 1 else next(i for i, mask in enumerate(islands) if mask >> gpu & 1)


def _common_level(places: list[list[int]], group: slice, size: int, crossings: list[int]) -> Level:
    """Narrowest level with one domain for the whole group; adds it to `crossings` of each level it does not fit in."""
    for level in range(len(places) - 1, 0, -1):
        members = places[level][group]
        if members.count(members[0]) == size:
            return level
        crossings[level] += 1
    return 0


def _ring_levels(places: list[list[int]], group: slice, common: Level) -> list[Level]:
    """The levels at which neighbours of one ring meet.

    Needed when a narrow level is slower than one around it, such as PCIe inside the node on a fast network; else the
    common level of the group, which some pair of neighbours always has, is the slowest.
    """
    rows = [row[group] for row in places]
    met = {common}
    for rank in range(len(rows[0])):
        level = len(rows) - 1
        while rows[level][rank] != rows[level][rank - 1]:
            level -= 1
        met.add(level)
    return sorted(met)


def lower_bound(dimensions: Sequence[Dimension], capacities: Sequence[int], links: Sequence[Link]) -> int:
    """No placement costs less than this, in ns. `capacities[level]` = GPUs of the largest domain of a level.

    If the groups of several dimensions each lie inside domains of a level, one domain holds the product of their
    sizes. So a bound T is possible when, each dimension spread as widely as T allows, no level is overfilled.
    """
    groups = [dimension for dimension in dimensions if dimension.size > 1]
    times = [[link.time(group.message) for link in links] for group in groups]
    for bound in sorted({time for row in times for time in row}):
        levels = [next((level for level, time in enumerate(row) if time <= bound), None) for row in times]
        if None not in levels and _none_overfilled(groups, levels, capacities):
            return bound
    return max((max(row) for row in times), default=0)


def _none_overfilled(groups: Sequence[Dimension], levels: Sequence[Level | None], capacities: Sequence[int]) -> bool:
    for level, capacity in enumerate(capacities):
        together = 1
        for group, at in zip(groups, levels, strict=True):
            together *= group.size if at is not None and at >= level else 1
        if together > capacity and together > 1:
            return False
    return True


def _check(tree: Tree, ranks: int, dimensions: Sequence[Dimension], links: Sequence[Link]) -> None:
    product = 1
    for dimension in dimensions:
        product *= dimension.size
    if product != ranks:
        raise ValueError(f"sizes of the dimensions multiply to {product}, the gang has {ranks} ranks")
    if len(links) != tree.island_level + 1:
        raise ValueError(f"{len(links)} links for {tree.island_level + 1} levels")
