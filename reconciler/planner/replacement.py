"""Which GPUs can take the place of a gang's lost ones, while every other rank keeps its seat?

Each lost node's ranks go together onto one other node, as near as possible to where they were: the same leaf first,
then outward. What the job requires to stay together does: a rank whose group has members left has to be where they
are. A bounded search; when it finds nothing the gang is placed otherwise. What is free, and who may have it, is for
the caller: the search takes from what the type's engine offers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import Placement, RankPlace
from reconciler.model.job import Job
from reconciler.model.units import GpuType
from reconciler.planner.draft import Draft
from reconciler.planner.ground import Ground
from reconciler.planner.ranks import Seat, gpus_in_order, groups_of, obeys, placement_at, seats_of
from reconciler.topology.gpus import tightest_gpus
from reconciler.topology.tree import ROOT, NodeIndex, NodeMask

STEPS: Final = 2_000  # nodes tried, for one gang


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Ranks that lost their node together, and the node near which they shall be."""

    ranks: tuple[int, ...]
    near: NodeIndex


def lost_parts(draft: Draft, rest: Sequence[RankPlace], whole: Placement | None, gpus: int) -> list[Part] | None:
    """What is missing from a gang of so many GPUs, node by node; None when nothing says where it was."""
    kept = {place.rank for place in rest}
    index_of = draft.ground.tree.index_of
    parts: dict[str, list[int]] = {}
    near: dict[str, NodeIndex] = {}
    for place in whole.ranks if whole is not None else ():
        if place.rank not in kept:
            parts.setdefault(place.node, []).append(place.rank)
            near[place.node] = index_of.get(place.node, -1)
    if whole is None:
        for number, ranks in enumerate(_runs([rank for rank in range(gpus) if rank not in kept], rest)):
            parts[str(number)], near[str(number)] = ranks, -1
    found = []
    for name, ranks in parts.items():
        where = near[name] if near[name] >= 0 else _neighbour(draft, ranks[0], rest)
        if where < 0:
            return None
        found.append(Part(ranks=tuple(ranks), near=where))
    return sorted(found, key=lambda part: (-len(part.ranks), part.ranks))


def _runs(missing: Sequence[int], rest: Sequence[RankPlace]) -> Iterator[list[int]]:
    """Missing ranks cut into nodes as large as those that are left."""
    counts: dict[str, int] = {}
    for place in rest:
        counts[place.node] = counts.get(place.node, 0) + 1
    size = max(counts.values(), default=1)
    for first in range(0, len(missing), size):
        yield list(missing[first : first + size])


def _neighbour(draft: Draft, rank: int, rest: Sequence[RankPlace]) -> NodeIndex:
    """The node of the rank that is left and has the nearest number."""
    index_of = draft.ground.tree.index_of
    places = [place for place in rest if place.node in index_of]
    if not places:
        return -1
    return index_of[min(places, key=lambda place: (abs(place.rank - rank), place.rank)).node]


def completed(
    draft: Draft, job: Job, gpu_type: GpuType, rest: Sequence[RankPlace], parts: Sequence[Part], refused: NodeMask
) -> Placement | None:
    """The gang with every part on a node of its own choice and the rest where it is; None when the search finds none.

    The engine has to offer what the parts may take, and nothing of what the rest holds.
    """
    search = _Search(draft, job, gpu_type, rest, refused)
    with draft.supply.engines[gpu_type].trial():
        return search.place(parts, 0)


class _Search:
    """Part after part, nearest node first; back when a later part finds no node."""

    __slots__ = ("_draft", "_gpu_type", "_job", "_refused", "_rest", "_seats", "_steps")

    def __init__(self, draft: Draft, job: Job, gpu_type: GpuType, rest: Sequence[RankPlace], refused: NodeMask) -> None:
        self._draft, self._job, self._gpu_type, self._refused = draft, job, gpu_type, refused
        self._seats: dict[int, Seat] = seats_of(draft.ground, rest)
        self._rest = frozenset(self._seats)
        self._steps = 0

    def place(self, parts: Sequence[Part], at: int) -> Placement | None:
        if at == len(parts):
            return self._judged()
        engine = self._draft.supply.engines[self._gpu_type]
        for node, mask in self._choices(parts[at]):
            self._steps += 1
            if self._steps > STEPS:
                return None
            order = gpus_in_order(self._draft.ground.nodes[node].shape, mask)
            self._seats |= {rank: (node, gpu) for rank, gpu in zip(parts[at].ranks, order, strict=True)}
            with engine.trial():
                engine.take(node, mask)
                found = self.place(parts, at + 1)
            if found is not None:
                return found
        for rank in parts[at].ranks:
            self._seats.pop(rank, None)
        return None

    def _judged(self) -> Placement | None:
        """The gang as it would be, when what has to stay together does."""
        if len(self._seats) != self._job.gpus or sorted(self._seats) != list(range(self._job.gpus)):
            return None
        place = placement_at(self._draft.ground, self._job, [self._seats[rank] for rank in range(self._job.gpus)])
        return place if obeys(self._draft.ground, self._job, place) else None

    def _choices(self, part: Part) -> Iterator[tuple[NodeIndex, int]]:
        """Nodes that could take the part, nearest first, then the fullest, and the GPUs it would get there."""
        draft, count = self._draft, len(part.ranks)
        engine, tree = draft.supply.engines[self._gpu_type], draft.ground.tree
        low, high = self._allowed(part.ranks)
        seen_low = seen_high = 0
        for level in range(tree.leaf_level, ROOT - 1, -1):
            first, end = tree.span(level, tree.domain_of(part.near, level), tree.node_level)
            rows = []
            for node in (*range(max(first, low), min(end, high)),):
                if seen_low <= node < seen_high or self._refused >> node & 1 or node in engine.excluded:
                    continue
                free = engine.free_mask(node)
                if free.bit_count() >= count and self._has_resources(node, count):
                    rows.append((free.bit_count(), node, free))
            for _, node, free in sorted(rows):
                yield (
                    node,
                    tightest_gpus(
                        tree.shapes[tree.shape_of[node]], free, count, nvlink_share(draft.ground, self._job, count)
                    ),
                )
            seen_low, seen_high = first, end

    def _has_resources(self, node: NodeIndex, count: int) -> bool:
        job = self._job
        if not job.cpus_per_gpu and not job.memory_per_gpu:
            return True
        cpus, memory = self._draft.supply.resources_left(node)
        return count * job.cpus_per_gpu <= cpus and count * job.memory_per_gpu <= memory

    def _allowed(self, ranks: Sequence[int]) -> tuple[int, int]:
        """The stretch of nodes in which the members that are left of these ranks' groups want them."""
        ground, wanted = self._draft.ground, frozenset(ranks)
        low, high = 0, len(ground.nodes)
        if self._rest:  # on the engine of those that are left
            seat = self._seats[min(self._rest)][0]
            low, high = ground.tree.span(
                ground.floor, ground.tree.domain_of(seat, ground.floor), ground.tree.node_level
            )
        for rule in self._job.required:
            level = ground.levels.get(rule.level)
            if level is None or level > ground.tree.leaf_level:
                continue
            for group in groups_of(self._job, rule.group):
                if wanted.isdisjoint(group):
                    continue
                member = next((rank for rank in group if rank in self._rest), None)
                if member is not None:
                    domain = ground.tree.domain_of(self._seats[member][0], level)
                    first, end = ground.tree.span(level, domain, ground.tree.node_level)
                    low, high = max(low, first), min(high, end)
        return low, high


def nvlink_share(ground: Ground, job: Job, count: int) -> int:
    """Of so many GPUs on one node those that have to share NVLink: the innermost groups', where they lie inside nodes."""
    size = 1
    for rule in job.required:
        if ground.levels.get(rule.level) == ground.tree.island_level:
            size = max([size, *(len(group) for group in groups_of(job, rule.group)[:1])])
    return size if count % size == 0 else 1


def usable_part(draft: Draft, places: Sequence[RankPlace], shut: NodeMask) -> tuple[RankPlace, ...]:
    """The ranks whose GPUs could be used again: on an open node, healthy."""
    index_of, usable = draft.ground.tree.index_of, draft.supply.usable
    return tuple(
        place
        for place in places
        if (index := index_of.get(place.node)) is not None and not shut >> index & 1 and usable[index] >> place.gpu & 1
    )


def masks_by_node(draft: Draft, places: Sequence[RankPlace]) -> dict[NodeIndex, int]:
    """GPU masks of some ranks by node number."""
    found: dict[NodeIndex, int] = {}
    for node, gpu in seats_of(draft.ground, places).values():
        found[node] = found.get(node, 0) | 1 << gpu
    return found
