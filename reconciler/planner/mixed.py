"""Where does a gang go that may use several GPU types at once, when no single one has room for it?

Only a job that says so is ever mixed: on free GPUs, on GPUs being released, or on those of lower priorities of its own
queue. Guarantees are by type, and what such a gang would take of each is only known with its place; so it reclaims
nothing from other queues. The types' engines are looked at as one, made afresh for each question; it costs a pass over
the nodes, and such jobs are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.units import GpuType
from reconciler.planner import placement
from reconciler.planner.draft import Draft
from reconciler.planner.placement import Ask, Spot
from reconciler.planner.rights import Claim
from reconciler.planner.victims import Candidate
from reconciler.topology.capacity import Capacity
from reconciler.topology.tree import bits_of


def mixed_spot(draft: Draft, record: JobRecord, job: Job, *, promised: bool = False) -> Spot | None:
    """The best spot over all its types together, within the quota of each; None when it asks for no such thing.

    `promised`: it starts only once all that is stopping is gone.
    """
    kinds = draft.access.types_for(job)
    if not job.mixed_types or len(kinds) < 2:
        return None
    if sum(draft.supply.engines[kind].free_gpus() for kind in kinds) < job.gpus:
        return None
    engine, asks = _together(draft, kinds), _asks(draft, job, kinds)
    shut = draft.access.refused(job) | draft.access.drained(job)
    for avoided in placement.avoided_nodes(record.avoid, draft.ground, draft.now):
        spot = placement.fit_on(engine, kinds[0], job, asks, shut | avoided, draft.supply.resources_left)
        if isinstance(spot, Spot):
            return spot if _within_quotas(draft, job, spot, promised) else None
    return None


def mixed_after(
    draft: Draft, record: JobRecord, job: Job, gone: Sequence[Candidate] = ()
) -> Spot | None:  # fmt: skip
    """The best spot once all that is being released, and these gangs, are gone."""
    with ExitStack() as trial:
        for kind in draft.access.types_for(job):
            trial.enter_context(draft.charges.without(draft.releasing(kind), kind))
        for one in gone:
            trial.enter_context(draft.charges.without([one.record], draft.charges.types[one.record.job]))
        return mixed_spot(draft, record, job, promised=True)


def mixed_victims(
    draft: Draft, record: JobRecord, job: Job, claims: Iterable[Claim]
) -> tuple[Spot, tuple[Candidate, ...]] | None:
    """Gangs of its own queue whose leaving starts it on several types, and where: the cheapest that are enough in a row,
    less those who can be spared, the dearest first. None: not even all of them are enough."""
    able = {one.record.job: one for claim in claims for one in claim.able if claim.height(one) == 0}
    ranked = sorted(able.values(), key=lambda c: (c.priority, c.lost, -(c.record.started or 0), c.record.job))
    if not ranked or mixed_after(draft, record, job, ranked) is None:
        return None
    low, high = 0, len(ranked)  # `high` is enough, `low` is not
    while high - low > 1:
        middle = (low + high) // 2
        enough = mixed_after(draft, record, job, ranked[:middle]) is not None
        low, high = (low, middle) if enough else (middle, high)
    chosen = ranked[:high]
    for one in reversed(ranked[:high]):
        fewer = [c for c in chosen if c is not one]
        if fewer and mixed_after(draft, record, job, fewer) is not None:
            chosen = fewer
    spot = mixed_after(draft, record, job, chosen)
    return (spot, tuple(chosen)) if spot is not None else None


def could_fit(draft: Draft, job: Job) -> bool:
    """An empty, healthy cluster would hold it on several types."""
    kinds = draft.access.types_for(job)
    if not job.mixed_types or len(kinds) < 2:
        return False
    engine = Capacity(draft.ground.tree, _members(draft, kinds), block_level=draft.ground.block_level)
    asks, left = _asks(draft, job, kinds), draft.ground.resources_of
    return isinstance(placement.fit_on(engine, kinds[0], job, asks, draft.access.refused(job), left), Spot)


def _members(draft: Draft, kinds: Iterable[GpuType]) -> list[int]:
    return sorted(node for kind in kinds for node in draft.ground.members[kind])


def _asks(draft: Draft, job: Job, kinds: Iterable[GpuType]) -> tuple[Ask, ...]:
    sizes = sorted({size for kind in kinds for size in draft.ground.node_sizes[kind]})
    return placement.asks_of(job, draft.ground, tuple(sizes))


def _together(draft: Draft, kinds: Iterable[GpuType]) -> Capacity:
    """What the types' engines offer now, as one."""
    ground = draft.ground
    engine = Capacity(ground.tree, _members(draft, kinds), block_level=ground.block_level)
    for kind in kinds:
        own = draft.supply.engines[kind]
        for node in ground.members[kind]:
            free = 0 if node in own.excluded else own.free_mask(node)
            taken = ground.whole[node] & ~free
            if taken:
                engine.take(node, taken)
    return engine


def _within_quotas(draft: Draft, job: Job, spot: Spot, promised: bool) -> bool:
    """No limit of its queue is passed, type by type."""
    counts: dict[GpuType, int] = {}
    for node, mask in spot.rows:
        kind = draft.ground.nodes[node].shape.gpu_type
        counts[kind] = counts.get(kind, 0) + len(bits_of(mask))
    fixed = draft.is_fixed(job)
    return all(
        draft.quotas.breach(job.queue, kind, gpus, fixed=fixed, promised=promised) is None
        for kind, gpus in counts.items()
    )
