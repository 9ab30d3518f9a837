"""Which few moves would make a whole NVLink domain free, when what is idle lies in pieces?

Rule book §10: only when Phi is over the threshold and one domain's worth of GPUs is idle. Domains whose every gang
may be moved, cheapest first in lost GPU-seconds; the gangs go into partly used domains, onto GPUs that are free now
and that no promise, hold or reservation has; every plan frees a whole domain and lowers Phi. `propose` shows the plan
and does nothing; `move` does it, within `maxMovesPerHour`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from reconciler.model.decision import Relocation, Tidying
from reconciler.model.job import Job
from reconciler.model.units import HOUR, GpuSeconds, GpuType, Instant, JobKey
from reconciler.planner import elastic
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks
from reconciler.planner.moment import unsure
from reconciler.planner.moves import Movable, move, taken
from reconciler.planner.placement import Spot
from reconciler.planner.victims import Candidate
from reconciler.topology.capacity import Capacity
from reconciler.topology.fragmentation import phi
from reconciler.topology.tree import NodeIndex

DOMAINS: Final = 64  # domains looked at, for one GPU type
MILLION: Final = 1_000_000

_Domain = tuple[NodeIndex, NodeIndex]
"""Its first node, and the one after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A domain that could be emptied, and who would have to leave it."""

    nodes: _Domain
    gangs: tuple[Candidate, ...]
    lost: int


def defragment(draft: Draft, moved: Iterable[Instant]) -> tuple[tuple[Tidying, ...], tuple[Instant, ...]]:
    """At most one plan for each GPU type; and the instants of moves within the last hour, those done now among them."""
    rules = draft.desired.scheduling
    recent = tuple(at for at in moved if at > draft.now - HOUR)
    if rules.defragment_action == "never" or draft.desired.blocked:
        return (), recent
    plans: list[Tidying] = []
    known = Movable(draft)
    for kind in draft.ground.types:
        engine = draft.supply.engines[kind]
        stranded, idle = phi(engine)
        if stranded * MILLION <= idle * rules.defragment_threshold_ppm:
            continue
        left = rules.defragment_moves_per_hour - (len(recent) if rules.defragment_action == "move" else 0)
        found = _plan(draft, kind, known, left)
        if found is None:
            continue
        plan, spots = found
        plans.append(plan)
        if rules.defragment_action == "move":
            for key, spot in spots.items():
                move(draft, draft.records[key], spot, None)
            recent = (*recent, *(draft.now for _ in spots))
            known.forget(spots)
    return tuple(plans), recent


def _plan(draft: Draft, kind: GpuType, known: Movable, most: int) -> tuple[Tidying, dict[JobKey, Spot]] | None:
    """The cheapest domain that can be emptied by at most so many moves."""
    engine = draft.supply.engines[kind]
    targets = _targets(draft, kind, known.on_nodes(kind), most)
    if len(targets) > DOMAINS:  # not all are looked at, and prices say which
        unsure(draft.now)
    for target in targets[:DOMAINS]:
        first, end = target.nodes
        size = sum(engine.size_of(node) for node in range(first, end))
        if engine.free_gpus() < size:
            continue
        before = phi(engine)
        done = _emptied(draft, kind, engine, target)
        if done is None:
            continue
        spots, after = done
        if after[0] * max(1, before[1]) >= before[0] * max(1, after[1]):
            continue
        return _told(draft, target, size, spots, before, after), spots
    return None


def _targets(draft: Draft, kind: GpuType, movable: Mapping[NodeIndex, Sequence[Candidate]], most: int) -> list[_Target]:
    """Domains whose every GPU is free or held by gangs that may move, cheapest first."""
    engine = draft.supply.engines[kind]
    held: dict[_Domain, list[Candidate]] = {}
    for node, members in movable.items():
        held.setdefault(_domain_of(draft, engine, node), []).extend(members)
    found = []
    for nodes, gangs in held.items():
        if 0 < len(gangs) <= most and all(
            _is_clear(draft, engine, node, movable.get(node, ())) for node in range(*nodes)
        ):
            found.append(_Target(nodes=nodes, gangs=tuple(gangs), lost=sum(one.lost for one in gangs)))
    return sorted(found, key=lambda target: (target.lost, len(target.gangs), target.nodes))


def _domain_of(draft: Draft, engine: Capacity, node: NodeIndex) -> _Domain:
    """The NVLink domain around a node: its block, or the node itself."""
    tree = draft.ground.tree
    if engine.block_level is None:
        return node, node + 1
    return tree.span(engine.block_level, tree.domain_of(node, engine.block_level), tree.node_level)


def _is_clear(draft: Draft, engine: Capacity, node: NodeIndex, gangs: Sequence[Candidate]) -> bool:
    """Without these gangs all of the node is free, and nobody has been promised it or gathers it."""
    whole, freed = draft.ground.whole[node], 0
    for one in gangs:
        for mask in gang_masks(one.record).values():
            freed |= mask
    if not engine.size_of(node):
        return True
    return (
        node not in engine.excluded
        and (engine.free_mask(node) | freed) == whole
        and not draft.supply.promised[node] & whole
    )


def _emptied(
    draft: Draft, kind: GpuType, engine: Capacity, target: _Target
) -> tuple[dict[JobKey, Spot], tuple[int, int]] | None:
    """A place for each of its gangs in domains that are used already, and Phi once they are there."""
    refused = _whole_and(draft, engine, target)
    spots: dict[JobKey, Spot] = {}
    with draft.charges.without([one.record for one in target.gangs], kind), ExitStack() as bound:
        for one in sorted(target.gangs, key=lambda one: (-one.gpus, one.record.job)):
            job: Job | None = draft.job(one.record)
            sized = elastic.at_size(job, one.gpus) if job is not None else None
            if sized is None:
                return None
            with engine.refusing(refused):
                spot = draft.look(one.record, sized, kind)
            if not isinstance(spot, Spot):
                return None
            bound.enter_context(taken(draft, spot, sized))
            spots[one.record.job] = spot
        return spots, phi(engine)


def _whole_and(draft: Draft, engine: Capacity, target: _Target) -> int:
    """Nodes that nobody may move to: those to be emptied, and those of domains that are wholly free."""
    first, end = target.nodes
    mask = ((1 << end) - 1) ^ ((1 << first) - 1)
    done: set[_Domain] = set()
    for node in draft.ground.members[draft.ground.nodes[first].shape.gpu_type]:
        domain = _domain_of(draft, engine, node)
        if domain not in done:
            done.add(domain)
            if all(engine.free_mask(one) == draft.ground.whole[one] for one in range(*domain)):
                mask |= ((1 << domain[1]) - 1) ^ ((1 << domain[0]) - 1)
    return mask


def _told(
    draft: Draft, target: _Target, size: int, spots: dict[JobKey, Spot], before: tuple[int, int], after: tuple[int, int]
) -> Tidying:
    """The plan as people see it: what it frees, each move with its price."""
    nodes = tuple(draft.ground.nodes[node].name for node in range(*target.nodes))
    lost = {one.record.job: one.lost for one in target.gangs}
    moves = tuple(
        Relocation(
            job=key, source=next(iter(gang_masks(draft.records[key]))), lost=GpuSeconds(lost[key]),
            target=tuple(dict.fromkeys(draft.ground.nodes[node].name for node, _ in spots[key].rows)),
        )
        for key in sorted(spots)
    )  # fmt: skip
    return Tidying(
        nodes=nodes, gpus=size, moves=moves, phi_before_ppm=before[0] * MILLION // max(1, before[1]),
        phi_after_ppm=after[0] * MILLION // max(1, after[1]),
    )  # fmt: skip
