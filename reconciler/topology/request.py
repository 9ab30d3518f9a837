"""What is asked of the placement search, and what it answers: a gang of equal workers, and GPUs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reconciler.topology.capacity import Capacity
from reconciler.topology.tree import ROOT, DomainIndex, GpuMask, Level, NodeIndex, Tree, bits_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A gang of equal workers, in the engine's terms; made by `request`, used for any number of searches.

    units x unit GPUs, each unit on one node, in pieces of `share` GPUs that share NVLink.
    """

    units: int
    unit: int
    share: int
    required: Level
    start: Level  # where to begin: the preferred level
    count_level: Level  # the level of which as few domains as possible are used
    groups: tuple[tuple[Level, int], ...]  # (level, units), outermost first, each a multiple of the next
    soft_group: int  # units that rather stay together, 0: none

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.units * self.unit


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs for a gang: whole nodes as (leaf, slots), other nodes as (node, GPUs). Nothing is bound yet."""

    whole: tuple[tuple[DomainIndex, int], ...]
    parts: tuple[tuple[NodeIndex, GpuMask], ...]

    def nodes(self, capacity: Capacity) -> tuple[tuple[NodeIndex, GpuMask], ...]:
        """(node, GPUs) in the order of ranks: by node, so consecutive ranks share every domain they can."""
        first, tree = capacity.tree.first_child[-1], capacity.tree
        rows = [
            (first[leaf] + slot, tree.shapes[tree.shape_of[first[leaf] + slot]].all_gpus)
            for leaf, slots in self.whole
            for slot in bits_of(slots)
        ]
        rows += self.parts
        return tuple(sorted(rows))

    def bind(self, capacity: Capacity) -> None:
        """Take these GPUs. Raises: BrokenInvariant, when they are not all free."""
        for leaf, slots in self.whole:
            capacity.take_whole(leaf, slots)
        for node, mask in self.parts:
            capacity.take(node, mask)

    def release(self, capacity: Capacity) -> None:
        """Give these GPUs back."""
        for leaf, slots in self.whole:
            capacity.give_whole(leaf, slots)
        for node, mask in self.parts:
            capacity.give(node, mask)


def request(
    tree: Tree,
    *,
    workers: int,
    gpus_each: int,
    required: Level = ROOT,
    preferred: Level | None = None,
    groups: Sequence[tuple[int, Level]] = (),
    soft_group: int = 0,
) -> Request:
    """A gang of `workers` with `gpus_each` GPUs. Sizes of `groups` and `soft_group` are GPUs of consecutive ranks.

    preferred None: as narrow as possible, counting leaf domains. A group that lies inside a node merges workers.
    Raises: ValueError, when a size does not divide the next larger one, or nothing is asked for.
    """
    total = workers * gpus_each
    if workers < 1 or gpus_each < 1:
        raise ValueError(f"{workers} workers of {gpus_each} GPUs ask for nothing")
    rows = [(size, level) for size, level in (*groups, (total, required)) if level >= tree.node_level]
    unit = max([gpus_each, *(size for size, _ in rows)])
    share = max([1, *(size for size, level in rows if level == tree.island_level)])
    required = max([required, *(level for size, level in groups if size == total)])
    outer: list[tuple[Level, int]] = []
    for size, level in sorted(groups, key=lambda row: (-row[0], row[1])):
        if required < level < tree.node_level and (not outer or outer[-1][0] < level):
            outer.append((level, size // unit))
    chain = [total, *sorted({size for size, _ in groups} | {unit}, reverse=True)]
    if any(big % small for big, small in pairwise(chain)) or unit % gpus_each or unit % share:
        raise ValueError(f"group sizes {chain} and workers of {gpus_each} GPUs do not divide one another")
    start = tree.island_level if preferred is None else max(preferred, required)
    return Request(
        units=total // unit,
        unit=unit,
        share=share,
        required=required,
        start=start,
        count_level=tree.leaf_level if preferred is None else min(max(preferred, ROOT), tree.leaf_level),
        groups=tuple(group for group in outer if group[1] > 1),  # a unit is on one node anyway
        soft_group=soft_group // unit,
    )
