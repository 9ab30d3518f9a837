"""How many wholly free nodes and free GPUs does each domain have, and which domains are the tightest?

    whole[level][domain], free[level][domain]     wholly free nodes and free GPUs
    by_whole[level][f]     bit set of domains with f wholly free nodes; filled[level]: bit set of f in use
    tight[level][f << KEY | p]     the same, divided by p = free GPUs beyond f smallest nodes; rests[level][f]: p in use

`tight` in ascending order is the order "tightest first, then lowest number" of the placement rule; the cluster itself
is in no bucket. Cost of a change: O(levels). Which nodes and GPUs these are is for `capacity`, workers smaller than
nodes for `units`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.topology.tree import ROOT, DomainIndex, Tree

KEY: Final = 32  # bits for the free GPUs in a key of `tight`


class Counts:
    """What is free by domain, kept up to date while nodes come and go. `smallest`: GPUs of the pool's smallest node."""

    __slots__ = ("_parents", "_smallest", "by_whole", "filled", "free", "rests", "tight", "whole")

    def __init__(self, tree: Tree, whole: Sequence[int], free: Sequence[int], smallest: int) -> None:
        """`whole` and `free` are those of each leaf: all else is counted upwards from there, once."""
        self._parents, self._smallest = tree.parents, smallest
        self.whole = [[0] * len(domains) for domains in tree.domains]
        self.free = [[0] * len(domains) for domains in tree.domains]
        self.whole[-1], self.free[-1] = list(whole), list(free)
        for level in range(tree.leaf_level, 0, -1):
            for domain, parent in enumerate(tree.parents[level]):
                self.whole[level - 1][parent] += self.whole[level][domain]
                self.free[level - 1][parent] += self.free[level][domain]
        self.by_whole = [[0] * (max(counts, default=0) + 1) for counts in self.whole]
        self.rests = [[0] * len(buckets) for buckets in self.by_whole]
        self.filled = [0] * len(tree.levels)
        self.tight: list[dict[int, int]] = [{} for _ in tree.levels]
        for level in range(1, len(tree.levels)):
            for domain, count in enumerate(self.whole[level]):
                rest, bit = self.free[level][domain] - count * smallest, 1 << domain
                self.by_whole[level][count] |= bit
                self.filled[level] |= 1 << count
                self.rests[level][count] |= 1 << rest
                key = count << KEY | rest
                self.tight[level][key] = self.tight[level].get(key, 0) | bit

    def shift(self, leaf: DomainIndex, nodes: int, gpus: int) -> None:
        """`nodes` more wholly free nodes and `gpus` more free GPUs in a leaf and in all domains around it."""
        parents, smallest, domain = self._parents, self._smallest, leaf
        for level in range(len(parents) - 1, 0, -1):
            whole, free, tight, rests = self.whole[level], self.free[level], self.tight[level], self.rests[level]
            f0, u0, bit = whole[domain], free[domain], 1 << domain
            f1, u1 = f0 + nodes, u0 + gpus
            whole[domain], free[domain] = f1, u1
            p0, p1 = u0 - f0 * smallest, u1 - f1 * smallest
            key = f0 << KEY | p0
            left = tight[key] ^ bit
            if left:
                tight[key] = left
            else:
                del tight[key]
                rests[f0] ^= 1 << p0
            key = f1 << KEY | p1
            beside = tight.get(key)
            if beside is None:
                tight[key] = bit
                rests[f1] |= 1 << p1
            else:
                tight[key] = beside | bit
            if nodes:
                by_whole = self.by_whole[level]
                by_whole[f0] ^= bit
                if not by_whole[f0]:
                    self.filled[level] ^= 1 << f0
                by_whole[f1] |= bit
                self.filled[level] |= 1 << f1
            domain = parents[level][domain]
        self.whole[ROOT][0] += nodes
        self.free[ROOT][0] += gpus

    def snapshot(self) -> tuple[object, ...]:
        """All of it as plain values, in an order that does not depend on how it came about."""
        return (
            tuple(map(tuple, self.whole)), tuple(map(tuple, self.free)),
            tuple(map(tuple, self.by_whole)), tuple(self.filled), tuple(map(tuple, self.rests)),
            tuple(tuple(sorted(level.items())) for level in self.tight),
        )  # fmt: skip
