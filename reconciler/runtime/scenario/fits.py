"""Could this gang sit on these free GPUs? Counting and trying, sharing no code with the planner's search.

Exact for gangs of equal workers, in nested groups or none. Unlike workers are tried one by one, the large ones first,
up to a number of steps; beyond it the answer is no, so that a planner is never blamed on a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

from reconciler.documents.scenario import Role, Rule
from reconciler.runtime.scenario.world import TIERS, World

_STEPS: Final = 20_000
_SUBSETS: Final = 2_000

Free = Mapping[str, int]


def fits(world: World, roles: Sequence[Role], rule: Rule, free: Free, *, inside: str = "cluster") -> bool:
    """Whether all workers fit into free GPUs of one type, in one domain of `inside` and by the hard rules."""
    tier = min(inside, rule.required or "cluster", key=TIERS.index)
    return any(
        _packs(world, roles, rule, {node: free[node] for node in nodes})
        for kinds in _choices(world, roles)
        for nodes in world.by_domain(tier, _of_types(world, free, kinds)).values()
    )


def fits_fewer(world: World, roles: Sequence[Role], rule: Rule, free: Free, *, inside: str, domains: int) -> bool:
    """Whether it fits in one domain of `inside` using fewer than so many domains of its preferred tier.

    False also when there are too many ways to try.
    """
    preferred = rule.preferred or "node"
    tier = min(inside, rule.required or "cluster", key=TIERS.index)
    for kinds in _choices(world, roles):
        for nodes in world.by_domain(tier, _of_types(world, free, kinds)).values():
            parts = list(world.by_domain(preferred, nodes).values())
            for number, chosen in enumerate(combinations(parts, max(0, domains - 1))):
                if number >= _SUBSETS:
                    break
                if _packs(world, roles, rule, {node: free[node] for part in chosen for node in part}):
                    return True
    return False


def _choices(world: World, roles: Sequence[Role]) -> list[frozenset[str]]:
    """One GPU type that all roles may use, in turn; none: each role its own."""
    allowed = [set(role.gpu_types or world.types) for role in roles]
    common = set.intersection(*allowed)
    return [frozenset({kind}) for kind in sorted(common)] or [frozenset(world.types)]


def _of_types(world: World, free: Free, kinds: frozenset[str]) -> list[str]:
    return [node for node, gpus in free.items() if gpus > 0 and world.nodes[node].row.type in kinds]


def _packs(world: World, roles: Sequence[Role], rule: Rule, free: Free) -> bool:
    if len({(role.gpus_each, role.gpu_types) for role in roles}) == 1:
        units, workers = _units(world, roles[0].gpus_each, rule, free)
        return units >= -(-sum(role.workers for role in roles) // workers)
    sizes = sorted(((role.gpus_each, role.gpu_types) for role in roles for _ in range(role.workers)), reverse=True)
    return not rule.groups and _Packing(world, sizes, free).works()


def _units(world: World, each: int, rule: Rule, free: Free) -> tuple[int, int]:
    """How many of the largest groups fit, and the workers in one; a worker is the smallest group."""
    counts = {node: gpus // each for node, gpus in free.items()}
    groups = sorted(rule.groups, key=lambda group: group.size)
    size = 1
    for number, group in enumerate(groups):
        # A group around this one that has to sit in a narrower domain narrows this one too.
        tier = min((outer.one for outer in groups[number:]), key=TIERS.index)
        merged: dict[str, int] = {}
        for node, count in counts.items():
            name = world.domain(tier, node)
            merged[name] = merged.get(name, 0) + count
        firsts = {name: nodes[0] for name, nodes in world.by_domain(tier, counts).items()}
        counts = {firsts[name]: count // (group.size // size) for name, count in merged.items()}
        size = group.size
    return sum(counts.values()), size


class _Packing:
    """Workers of several sizes onto nodes, by trying."""

    def __init__(self, world: World, sizes: Sequence[tuple[int, Iterable[str]]], free: Free) -> None:
        self._world, self._sizes, self._left, self._steps = world, sizes, dict(free), 0

    def works(self, first: int = 0) -> bool:
        """Whether the workers from `first` on fit."""
        if first == len(self._sizes):
            return True
        self._steps += 1
        gpus, kinds = self._sizes[first]
        tried: set[tuple[int, str]] = set()
        for node in sorted(self._left, key=lambda node: (self._left[node], node)):
            kind = self._world.nodes[node].row.type
            alike = (self._left[node], kind)
            if self._left[node] < gpus or alike in tried or (kinds and kind not in kinds):
                continue
            tried.add(alike)
            self._left[node] -= gpus
            if self.works(first + 1):
                return True
            self._left[node] += gpus
            if self._steps > _STEPS:
                return False
        return False
