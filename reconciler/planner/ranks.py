"""Which rank sits on which GPU, and what does the gang's place cost to talk across?

Positions run over the nodes in the tree's order, so neighbours share every domain they can; inside a node they run
island by island, so tensor groups share NVLink. On a whole node local rank r takes rail r wherever that tears no
island apart. Positions become ranks through the layout of the dimensions. Finding the GPUs is for `placement`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from reconciler.model.allocation import Placement, RankPlace
from reconciler.model.inventory import GpuSlot, NodeShape
from reconciler.model.inventory import Level as FabricLevel
from reconciler.model.job import Dimension, Job, Spread
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import CLUSTER_LEVEL, NODE_LEVEL, LevelName, Nanoseconds, NodeName
from reconciler.planner.ground import Ground
from reconciler.planner.placement import Spot
from reconciler.topology import cost
from reconciler.topology.even import unevenness
from reconciler.topology.tree import ROOT, Level

Seat = tuple[int, int]
"""(node number, GPU index)."""


def placement_of(ground: Ground, job: Job, spot: Spot) -> Placement:
    """The spot as a placement: a GPU, NUMA node, NIC and rail for each rank, its level, domain and T_comm in ns."""
    positions = [(node, gpu) for node, mask in spot.rows for gpu in gpus_in_order(ground.nodes[node].shape, mask)]
    return placement_at(ground, job, _by_rank(positions, job.dimensions, spot.layout))


def placement_at(ground: Ground, job: Job, seats: Sequence[Seat]) -> Placement:
    """A placement with these seats, by rank."""
    places = list(seats)
    level, domain = _around(ground, places)
    return Placement(
        ranks=_rank_places(ground, places), level=level, domain=domain,
        comm_time=_comm_time(ground, job, places), comm_bound=_comm_bound(ground, job, places),
    )  # fmt: skip


def seats_of(ground: Ground, places: Iterable[RankPlace]) -> dict[int, Seat]:
    """The seat of each rank whose node is still declared, by rank."""
    index_of = ground.tree.index_of
    return {place.rank: (index_of[place.node], place.gpu) for place in places if place.node in index_of}


def gpus_in_order(shape: NodeShape, mask: int) -> list[int]:
    """GPU indexes of a node as positions take them: by island (fullest part first), then rail, NUMA node, index."""
    slots = {slot.index: slot for slot in shape.gpus}
    islands = [island & mask for island in shape.nvlink or (mask,) if island & mask]
    if mask == shape.all_gpus:
        ordered = sorted(slots.values(), key=_along_rails)
        if len(islands) == 1 or _unbroken([slot.index for slot in ordered], islands):
            return [slot.index for slot in ordered]
    islands.sort(key=lambda island: (-island.bit_count(), island & -island))
    return [
        slot.index
        for island in islands
        for slot in sorted((slots[i] for i in range(mask.bit_length()) if island >> i & 1), key=_along_rails)
    ]


def _along_rails(slot: GpuSlot) -> tuple[int, int, int]:
    return slot.rail, slot.numa, slot.index


def _unbroken(order: Sequence[int], islands: Sequence[int]) -> bool:
    """True when each island's GPUs follow one another."""
    owner = [next(n for n, island in enumerate(islands) if island >> gpu & 1) for gpu in order]
    return sum(a != b for a, b in pairwise(owner)) == len(islands) - 1


def _by_rank(
    positions: list[tuple[int, int]], dimensions: tuple[Dimension, ...], layout: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Reorder from the layout of positions to that of ranks, dimension 0 varying fastest."""
    if not dimensions or layout in ((), tuple(range(len(dimensions)))):
        return positions
    strides, stride = {}, 1  # of each dimension, in positions
    for number in layout:
        strides[number] = stride
        stride *= dimensions[number].size
    found = []
    for rank in range(len(positions)):
        rest, at = rank, 0
        for number, dimension in enumerate(dimensions):
            rest, coordinate = divmod(rest, dimension.size)
            at += coordinate * strides[number]
        found.append(positions[at])
    return found


def _rank_places(ground: Ground, places: list[tuple[int, int]]) -> tuple[RankPlace, ...]:
    seen: dict[int, int] = {}
    found = []
    for rank, (index, gpu) in enumerate(places):
        node = ground.nodes[index]
        local = seen[index] = seen.get(index, -1) + 1
        slot = next(slot for slot in node.shape.gpus if slot.index == gpu)
        found.append(
            RankPlace(
                rank=rank, node=node.name, local_rank=local, gpu=gpu, numa=slot.numa, nic=slot.nic, rail=slot.rail
            )
        )
    return tuple(found)


def _around(ground: Ground, places: Sequence[Seat]) -> tuple[LevelName, str]:
    """The narrowest level whose one domain holds the gang, and that domain's name."""
    first, last = min(node for node, _ in places), max(node for node, _ in places)
    tree = ground.tree
    if first != last:
        level = tree.common_level(first, last)
        level = ROOT if level <= ground.floor else level  # an engine's part of the cluster has no name of its own
        return ground.level_name(level), tree.domain_name(level, tree.domain_of(first, level))
    mask = 0
    for _, gpu in places:
        mask |= 1 << gpu
    node = ground.nodes[first]
    innermost = ground.inventory.levels[0].name
    if innermost != NODE_LEVEL and any(mask & ~island == 0 for island in node.shape.nvlink):
        return innermost, node.name
    return NODE_LEVEL, node.name


def refreshed(ground: Ground, place: Placement) -> Placement:
    """A place made for a gang earlier, with the NIC and rail that each of its GPUs has now."""
    slots = {node: {slot.index: slot for slot in _shape_of(ground, node).gpus} for node in place.nodes}
    found = []
    for rank in place.ranks:
        slot = slots[rank.node][rank.gpu]
        found.append(replace(rank, numa=slot.numa, nic=slot.nic, rail=slot.rail))
    return place if tuple(found) == place.ranks else replace(place, ranks=tuple(found))


def _shape_of(ground: Ground, node: NodeName) -> NodeShape:
    return ground.nodes[ground.tree.index_of[node]].shape


def obeys(ground: Ground, job: Job, place: Placement) -> bool:
    """Each group that the job requires to stay together does, in this place made for it earlier, on one engine."""
    if len({_domain_of(ground, ground.floor, rank) for rank in place.ranks}) > 1:
        return False
    for rule in job.required:
        level = ground.levels.get(rule.level)
        if level is None:
            return False
        domains = [_domain_of(ground, level, rank) for rank in place.ranks]
        if any(len({domains[number] for number in group}) > 1 for group in groups_of(job, rule.group)):
            return False
    return True


def groups_of(job: Job, name: str) -> list[range]:
    """Ranks that differ in this dimension alone; all ranks for `job`."""
    if name == "job":
        return [range(job.gpus)]
    stride = 1
    for dimension in job.dimensions:
        if dimension.name == name:
            span = stride * dimension.size
            firsts = (base + offset for base in range(0, job.gpus, span) for offset in range(stride))
            return [range(first, first + span, stride) for first in firsts]
        stride *= dimension.size
    return []


def _domain_of(ground: Ground, level: Level, rank: RankPlace) -> tuple[int, ...]:
    index = ground.tree.index_of.get(rank.node, -1)
    if index < 0 or level < ground.tree.island_level:
        return (index if index < 0 else ground.tree.domain_of(index, level),)
    islands = ground.nodes[index].shape.nvlink
    return index, next((number for number, mask in enumerate(islands) if mask >> rank.gpu & 1), -1)


def placed_reason(ground: Ground, job: Job, place: Placement) -> Reason:
    """Placed, with its level; where uplinks are shared unevenly, or pairs talk across the outermost domains, by how much.

    `unevenness`: nodes that the fullest rack has more than the emptiest; `crossPairs`: neighbours in the order of
    nodes (the ring counted round) that lie in different domains of the outermost level. Both make it likelier that
    hashing puts several flows on one link.
    """
    more: dict[str, int] = {}
    tree = ground.tree
    if job.spread is Spread.EVEN or (place.level == CLUSTER_LEVEL and tree.leaf_level > ROOT):
        nodes = [tree.index_of[name] for name in place.nodes]
        counts: dict[int, int] = {}
        for node in nodes:
            counts[tree.leaf_of[node]] = counts.get(tree.leaf_of[node], 0) + 1
        outer = [tree.domain_of(node, min(ground.floor + 1, tree.leaf_level)) for node in nodes]
        crossed = sum(a != b for a, b in zip(outer, [*outer[1:], outer[0]], strict=True)) if len(outer) > 1 else 0
        more = {"racks": len(counts), "unevenness": unevenness(list(counts.values())), "crossPairs": crossed}
    return reason(ReasonCode.PLACED, gpus=len(place.ranks), level=place.level, **more)


# --- cost ---


def links_of(ground: Ground) -> list[cost.Link]:
    """The link model of each level of the tree, outermost first; inside a node the innermost level's is the island's."""
    by_level: dict[Level, FabricLevel] = {}
    for level in reversed(ground.inventory.levels):
        by_level[ground.levels[level.name]] = level
    by_level[ground.floor] = by_level[ROOT]
    node = by_level[ground.tree.node_level]
    island = by_level.get(ground.tree.island_level, node)
    rows = [*(by_level[level] for level in range(ROOT, ground.tree.leaf_level + 1)), node, island]
    return [
        cost.Link(latency=row.latency, bandwidth=row.bandwidth, oversubscription=row.oversubscription) for row in rows
    ]


def _dimensions(job: Job) -> list[cost.Dimension]:
    return [cost.Dimension(size=d.size, message=d.bytes_per_step) for d in job.dimensions]


def _measured(job: Job) -> bool:
    """A cost exists when the dimensions describe all ranks, and some group of more than one moves something."""
    product = 1
    for dimension in job.dimensions:
        product *= dimension.size
    return product == job.gpus and any(d.size > 1 for d in job.dimensions)


def _comm_time(ground: Ground, job: Job, places: list[tuple[int, int]]) -> Nanoseconds:
    if not _measured(job):
        return Nanoseconds(0)
    return Nanoseconds(cost.comm_time(ground.tree, places, _dimensions(job), links_of(ground)).time)


def _comm_bound(ground: Ground, job: Job, places: Sequence[Seat]) -> Nanoseconds:
    """The least of any placement on the declared GPUs of its types, all free."""
    if not _measured(job):
        return Nanoseconds(0)
    kinds = sorted({ground.nodes[node].shape.gpu_type for node, _ in places})
    largest = [sum(sizes) for sizes in zip(*(ground.largest[kind] for kind in kinds), strict=True)]
    return Nanoseconds(cost.lower_bound(_dimensions(job), largest, links_of(ground)))
