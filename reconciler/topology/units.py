"""How many workers of one size each domain could hold, kept up to date while GPUs come and go.

Whole nodes of a uniform pool need no such index: `capacity` counts them anyway. One is made the first time a gang of
smaller workers, or of workers on unlike nodes, is looked for.
"""

from __future__ import annotations

from reconciler.topology.tree import ROOT, DomainIndex, GpuMask, Level, NodeShape, Tree


def units_on(shape: NodeShape, free: GpuMask, unit: int, share: int = 1) -> int:
    """Workers of `unit` GPUs that fit on a node with these free GPUs, in pieces of `share` GPUs that share NVLink."""
    if share == 1:
        return free.bit_count() // unit
    return sum((free & island).bit_count() // share for island in shape.nvlink) // (unit // share)


class UnitIndex:
    """How many workers of `unit` GPUs each domain could hold, and the domains by that number.

    `share` > 1: a unit is made of pieces of `share` GPUs, each inside one NVLink island.
    """

    __slots__ = ("buckets", "count", "filled", "parents", "share", "unit")

    def __init__(self, tree: Tree, unit: int, share: int) -> None:
        self.unit, self.share, self.parents = unit, share, tree.parents
        self.count = [[0] * len(domains) for domains in tree.domains]
        self.buckets: list[dict[int, int]] = [{0: (1 << len(domains)) - 1} for domains in tree.domains]
        self.filled = [1 for _ in tree.domains]

    def shift(self, leaf: DomainIndex, change: int) -> None:
        """`change` more units in a leaf and in all domains around it."""
        domain = leaf
        for level in range(len(self.count) - 1, 0, -1):
            counts = self.count[level]
            before = counts[domain]
            after = counts[domain] = before + change
            buckets, bit = self.buckets[level], 1 << domain
            left = buckets[before] ^ bit
            if left:
                buckets[before] = left
            else:
                del buckets[before]
                self.filled[level] ^= 1 << before
            beside = buckets.get(after)
            if beside is None:
                buckets[after] = bit
                self.filled[level] |= 1 << after
            else:
                buckets[after] = beside | bit
            domain = self.parents[level][domain]
        self.count[ROOT][0] += change

    def holding(self, level: Level, units: int) -> int:
        """Bit set of the domains of a level that can hold `units`."""
        if level == ROOT:
            return 1 if self.count[ROOT][0] >= units else 0
        found, buckets, filled = 0, self.buckets[level], self.filled[level] >> units << units
        while filled:
            low = filled & -filled
            found |= buckets[low.bit_length() - 1]
            filled ^= low
        return found
