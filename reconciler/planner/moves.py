"""Can a few small gangs step aside onto GPUs that are free now, so that this one fits and nobody has to leave?

Rule book §6d: at most `maxMovesPerStart` gangs of at most one node each, none into what another leaves. The mildest
set by `victimOrder`: a moved gang loses what its ranks did since the checkpoint. Who may be asked: gangs of the same
queue and no higher priority, and everyone else's when the job stays within what its queue is guaranteed; never one
that a protection keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import GpuType, JobKey
from reconciler.planner import elastic, steps
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks
from reconciler.planner.memo import masks_of
from reconciler.planner.mildest import mildest_first
from reconciler.planner.moment import unsure
from reconciler.planner.placement import Spot
from reconciler.planner.protection import Shields
from reconciler.planner.ranks import placement_of
from reconciler.planner.victims import Candidate
from reconciler.topology.tree import NodeIndex

SETS: Final = 20_000  # sets looked at, for one job
TRIALS: Final = 400  # sets tried out, for one job


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Who steps aside, and whereto; and the spot the gang then gets."""

    spots: Mapping[JobKey, Spot]
    spot: Spot

    @property
    def jobs(self) -> tuple[JobKey, ...]:
        """The moved gangs, in code point order."""
        return tuple(sorted(self.spots))


class Movable:
    """Small running gangs that nothing protects, by the node they are on, for one decision: made once, asked by all."""

    __slots__ = ("_by_type", "_draft", "_shields")

    def __init__(self, draft: Draft) -> None:
        self._draft, self._shields = draft, Shields(draft)
        self._by_type: dict[GpuType, dict[NodeIndex, list[Candidate]]] | None = None

    def on_nodes(self, gpu_type: GpuType) -> Mapping[NodeIndex, Sequence[Candidate]]:
        """Gangs of at most one node and of one type, by node number."""
        if self._by_type is None:
            self._by_type = {}
            index_of, draft = self._draft.ground.tree.index_of, self._draft
            for record in draft.records.values():
                found = movable(draft, self._shields, record)
                if found is not None:
                    node = index_of[next(iter(gang_masks(record)))]
                    self._by_type.setdefault(draft.charges.types[record.job], {}).setdefault(node, []).append(found)
        return self._by_type.get(gpu_type, {})

    def forget(self, gone: Iterable[JobKey]) -> None:
        """These were told to stop: they are not asked again."""
        left = set(gone)
        for rows in (self._by_type or {}).values():
            for node, members in rows.items():
                if any(one.record.job in left for one in members):
                    rows[node] = [one for one in members if one.record.job not in left]


def movable(draft: Draft, shields: Shields, record: JobRecord) -> Candidate | None:
    """The gang as one that may be moved: running on one node, with nothing to protect it; else None."""
    if record.state is not JobState.RUNNING or record.placement is None or record.spares:
        return None
    if len(masks_of(record.placement)) != 1:
        return None
    job = draft.job(record)
    if (
        job is None
        or record.job not in draft.charges.types
        or not draft.is_queue(record.queue)
        or shields.of(record, job).by
    ):
        return None
    return Candidate(
        record=record, priority=draft.priority(job), lost=steps.lost_gpu_seconds(record, draft.observed, draft.now),
        gpus=record.gpus_held, leaf=draft.quotas.branches.leaf(record.queue),
    )  # fmt: skip


def find_moves(
    draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, known: Movable, cuts: MutableMapping[str, int]
) -> Moves | None:
    """The mildest set of gangs whose moving starts this one, or None when none is found within the steps.

    `cuts`: where it is told that the steps ran out before all sets were seen.
    """
    rules, engine = draft.desired.scheduling, draft.supply.engines[gpu_type]
    if rules.move_to_start == "never" or engine.free_gpus() < job.gpus or draft.breach(job, gpu_type):
        return None
    bundles = list(_bundles(draft, job, gpu_type, known))
    if len(bundles) ** rules.max_moves_per_start > TRIALS:  # perhaps not all are tried, and prices say which
        unsure(draft.now)
    trials = 0
    for seen, chosen in enumerate(mildest_first(bundles, rules.victim_order, rules.max_moves_per_start, SETS), 1):
        if seen == SETS:
            cuts["movesTried"] = seen
        if len({one.record.job for one in chosen}) < len(chosen):
            continue
        trials += 1
        found = _tried(draft, record, job, gpu_type, chosen)
        if found is not None:
            return found
        if trials >= TRIALS:
            cuts["movesTried"] = trials
            return None
    return None


def move(draft: Draft, record: JobRecord, spot: Spot, owner: JobKey | None) -> None:
    """Tell the gang to save its work, stop, and go on at the spot."""
    job = draft.job(record)
    if job is None:
        return
    place = placement_of(draft.ground, elastic.at_size(job, record.gpus_held), spot)
    lost = steps.lost_gpu_seconds(record, draft.observed, draft.now)
    purpose = f" to make room for {owner}" if owner is not None else " to free a whole domain"
    why = reason(ReasonCode.MOVED, target=", ".join(place.nodes), purpose=purpose, lost=lost)
    draft.displace(record, Cause.MOVED, place, why, owner)


def _bundles(draft: Draft, job: Job, gpu_type: GpuType, known: Movable) -> Iterator[tuple[Candidate, ...]]:
    """Gangs of one node that together, and none of them in vain, make room for one member more there."""
    engine, most = draft.supply.engines[gpu_type], draft.desired.scheduling.max_moves_per_start
    unit = min((role.unit for ask in draft.access.asks(job, gpu_type) for role in ask.roles), default=1)
    allowed = _Allowed(draft, job, gpu_type)
    for node, members in known.on_nodes(gpu_type).items():
        free = 0 if node in engine.excluded else engine.free_mask(node).bit_count()
        missing = unit - free % unit
        if sum(one.gpus for one in members) < missing:
            continue
        able = [one for one in members if allowed.may_ask(one)]
        for count in range(1, most + 1):
            for chosen in combinations(able, count):
                gpus = sum(one.gpus for one in chosen)
                if gpus >= missing and all((free + gpus) // unit > (free + gpus - one.gpus) // unit for one in chosen):
                    yield chosen


class _Allowed:
    """Whom one job may ask to move."""

    __slots__ = ("_draft", "_job", "_kind", "_known", "_priority")

    def __init__(self, draft: Draft, job: Job, gpu_type: GpuType) -> None:
        self._draft, self._job, self._kind = draft, job, gpu_type
        self._priority = draft.priority(job)
        self._known: dict[int, bool] = {}

    def may_ask(self, candidate: Candidate) -> bool:
        """Same queue and not above the job's priority, or the job stays within its guarantee below the common queue."""
        if candidate.record.queue == self._job.queue and candidate.priority <= self._priority:
            return True
        if candidate.leaf not in self._known:
            self._known[candidate.leaf] = self._is_within(candidate.leaf)
        return self._known[candidate.leaf]

    def _is_within(self, leaf: int) -> bool:
        quotas = self._draft.quotas
        own, other = quotas.branches.path(quotas.branches.leaf(self._job.queue)), quotas.branches.path(leaf)
        below = [number for number in own if number not in other]
        return bool(below) and quotas.within(below[-1], self._kind, self._job.gpus)


def _tried(draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, chosen: Sequence[Candidate]) -> Moves | None:
    """Everyone's new place, the gang's first or the movers' first; None when they do not all find one."""
    largest = sorted(chosen, key=lambda one: (-one.gpus, one.record.job))
    with draft.charges.without([one.record for one in chosen], gpu_type):
        return _gang_first(draft, record, job, gpu_type, largest) or _movers_first(
            draft, record, job, gpu_type, largest
        )


def _gang_first(
    draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, movers: Sequence[Candidate]
) -> Moves | None:
    with ExitStack() as bound:
        spot = _bound(draft, record, job, gpu_type, bound)
        if spot is None:
            return None
        bound.enter_context(_not_free_yet(draft, gpu_type, movers))
        spots = _places(draft, gpu_type, movers)
        return Moves(spots=spots, spot=spot) if spots is not None else None


def _movers_first(
    draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, movers: Sequence[Candidate]
) -> Moves | None:
    with ExitStack() as bound:
        with _not_free_yet(draft, gpu_type, movers):
            spots = _places(draft, gpu_type, movers)
        if spots is None:
            return None
        for spot in spots.values():
            bound.enter_context(taken(draft, spot, None))
        found = _bound(draft, record, job, gpu_type, bound)
        return Moves(spots=spots, spot=found) if found is not None else None


def _places(draft: Draft, gpu_type: GpuType, movers: Sequence[Candidate]) -> dict[JobKey, Spot] | None:
    """A spot for each beside those of the others."""
    spots: dict[JobKey, Spot] = {}
    with ExitStack() as here:
        for candidate in movers:
            job = draft.job(candidate.record)
            sized = elastic.at_size(job, candidate.gpus) if job is not None else None
            spot = _bound(draft, candidate.record, sized, gpu_type, here) if sized is not None else None
            if spot is None:
                return None
            spots[candidate.record.job] = spot
    return spots


def _bound(draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, bound: ExitStack) -> Spot | None:
    spot = draft.look(record, job, gpu_type)
    if not isinstance(spot, Spot):
        return None
    bound.enter_context(taken(draft, spot, job))
    return spot


@contextmanager
def taken(draft: Draft, spot: Spot, job: Job | None) -> Iterator[None]:
    """A trial in which a spot is taken, with the CPUs and memory beside it."""
    engine, nodes = draft.supply.engines[spot.gpu_type], draft.ground.nodes
    cpus, memory = (job.cpus_per_gpu, job.memory_per_gpu) if job is not None else (0, 0)
    with engine.trial():
        for node, mask in spot.rows:
            engine.take(node, mask)
            draft.supply.charge({nodes[node].name: mask}, cpus, memory)
        try:
            yield
        finally:
            for node, mask in spot.rows:
                draft.supply.charge({nodes[node].name: mask}, -cpus, -memory)


@contextmanager
def _not_free_yet(draft: Draft, gpu_type: GpuType, movers: Sequence[Candidate]) -> Iterator[None]:
    """A trial in which what the movers still hold, and nobody took, is on offer to none of them."""
    engine, index_of = draft.supply.engines[gpu_type], draft.ground.tree.index_of
    with engine.trial():
        for candidate in movers:
            for name, mask in gang_masks(candidate.record).items():
                free = mask & engine.free_mask(index_of[name])
                if free:
                    engine.take(index_of[name], free)
        yield
