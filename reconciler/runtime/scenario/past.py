"""What was decided and seen before a scenario's moment? The previous allocation, and the observation that goes with it.

`down` is dead and fenced: a gang with a node down has already been stopped and waits for repair with what is left of
it. A promise stands as an earlier decision made it; who it waits for is stopping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Final

from reconciler.documents.scenario import JobRow, Pending, PromiseRow, QueueRow, Running
from reconciler.model.allocation import Allocation, JobRecord, Placement, Promise, RankPlace, Usage
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.observed import (
    AttemptReport,
    AttemptState,
    GpuReport,
    JobObservation,
    NodeCondition,
    NodeObservation,
    Observed,
)
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import (
    DAY,
    CommitId,
    Digest,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    NodeName,
    QueueName,
    job_key,
)
from reconciler.runtime.scenario.world import Seats, World, seats_of

COMMIT: Final = CommitId("0" * 40)
"""The desired commit of every scenario."""

_MILLI_PER_HOUR: Final = 3_600_000  # milli-GPU-seconds of a GPU-hour
_ATTEMPT: Final = 1
_UNJUDGED: Final = reason(ReasonCode.ADMISSIONS_FROZEN, file="the scenario")
"""Why pending jobs waited before: a code of no new decision, as a reason that stays keeps its old numbers."""


def key_of(row: JobRow) -> JobKey:
    """The identity of a job of the scenario."""
    return job_key(row.queue, row.job)


def previous_of(world: World, desired: Desired) -> Allocation:
    """The allocation that the scenario says was committed before, dated now."""
    records = sorted(_records(world, desired), key=lambda record: record.job)
    return Allocation(
        generation=1, epoch=1, cluster_id="scenario", decided_at=Instant(world.scenario.now), desired_commit=COMMIT,
        jobs={record.job: record for record in records}, usage=_usage(world), usage_as_of=Instant(world.scenario.now),
    )  # fmt: skip


def _records(world: World, desired: Desired) -> Iterator[JobRecord]:
    floor = _Floor(world, desired)
    promises = {promise.job: promise for promise in world.scenario.promises}
    for row in world.scenario.running:
        yield _running(world, row, floor)
    for pending in world.scenario.pending:
        if pending.job in promises:
            yield _promised(world, pending, promises[pending.job], floor)
        else:
            yield _record(pending, pending.submitted, JobState.PENDING, _UNJUDGED)


class _Floor:
    """Which GPU of each node is whose: the lowest that is free, for the jobs in the order written."""

    def __init__(self, world: World, desired: Desired) -> None:
        self._world = world
        self._nodes: Mapping[str, Node] = {node.name: node for node in desired.inventory.nodes}
        self._owner: dict[str, dict[int, str]] = {node: {} for node in self._nodes}

    def seat(self, job: str, seats: Seats, over: Iterable[str] = ()) -> Placement:
        """GPUs for these ranks: free ones, and those of the jobs in `over`."""
        given_way, ranks, local = set(over), [], dict[str, int]()
        for number, name in enumerate(seats):
            owner = self._owner[name]
            free = (slot for slot in self._nodes[name].shape.gpus if owner.get(slot.index, "") in {"", *given_way})
            slot = next(free)
            owner[slot.index] = job
            ranks.append(
                RankPlace(rank=number, node=NodeName(name), local_rank=local.get(name, 0), gpu=slot.index,
                          numa=slot.numa, nic=slot.nic, rail=slot.rail)
            )  # fmt: skip
            local[name] = local.get(name, 0) + 1
        return placement_of(self._world, ranks)


_NAMES: Final = {"node": "node", "rack": "rack", "spine": "spineGroup", "cluster": "cluster"}


def placement_of(world: World, ranks: Iterable[RankPlace]) -> Placement:
    """The ranks as a placement, at the narrowest tier that holds them all."""
    kept = tuple(ranks)
    for tier, level in _NAMES.items():
        domains = {world.domain(tier, rank.node) for rank in kept}
        if len(domains) == 1:
            return Placement(ranks=kept, level=LevelName(level), domain=domains.pop())
    return Placement(ranks=kept, level=LevelName("cluster"), domain="cluster")


def _running(world: World, row: Running, floor: _Floor) -> JobRecord:
    place = floor.seat(row.job, seats_of(row))
    began = Instant(row.started)
    why = reason(ReasonCode.RUNNING, ranks=len(place.ranks))
    record = replace(
        _record(row, row.started, JobState.RUNNING, why), phase=Phase.RUN, placement=place, started=began,
        attempt=_ATTEMPT,
    )  # fmt: skip
    if row.stopping_until is not None:
        return _stopping(world, row, record)
    return _broken(world, record) if world.is_broken(row.job) else record


def _stopping(world: World, row: Running, record: JobRecord) -> JobRecord:
    """On its way out for the job that was promised its place, if one was; for nobody we know otherwise."""
    promise = next((promise for promise in world.scenario.promises if row.job in promise.waiting_for), None)
    owner = world.pending[promise.job] if promise is not None else None
    other = owner is not None and owner.queue != row.queue
    ordered = Instant(promise.made if promise is not None else row.started)
    why = reason(ReasonCode.PREEMPTED, preemptor=key_of(owner) if owner is not None else "", lost=0)
    return replace(
        record, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.RECLAIMED if other else Cause.PREEMPTED, reason=why,
        since=ordered, deadline=Instant(row.stopping_until or row.started),
        preemptor=key_of(owner) if owner is not None else None, interruptions=(ordered,),
    )  # fmt: skip


def _broken(world: World, record: JobRecord) -> JobRecord:
    """Stopped everywhere; what is left of it keeps its ranks, and the missing numbers are to be filled."""
    ranks = record.placement.ranks if record.placement is not None else ()
    kept = [rank for rank in ranks if world.nodes[rank.node].row.state != "down"]
    lost = sorted({rank.node for rank in ranks} - {rank.node for rank in kept})
    now, why = Instant(world.scenario.now), reason(ReasonCode.NODE_LOST, nodes=", ".join(lost) or "a node")
    after = replace(record, cause=Cause.NODE_LOST, reason=why, since=now, node_losses=1)
    if not kept:
        return replace(after, state=JobState.PENDING, phase=None, placement=None, started=None)
    return replace(after, state=JobState.REPAIRING, phase=Phase.STOP, placement=placement_of(world, kept))


def _promised(world: World, row: Pending, promise: PromiseRow, floor: _Floor) -> JobRecord:
    seats = tuple(node for node, gpus in promise.nodes.items() for _ in range(gpus))
    place = floor.seat(row.job, seats, over=promise.waiting_for)
    waits = tuple(sorted(key_of(world.jobs[job]) for job in promise.waiting_for))
    ends = [world.running[job].stopping_until or promise.made for job in promise.waiting_for]
    kept = Promise(
        placement=place, made=Instant(promise.made), deadline=Instant(max([promise.made, *ends])), waiting_for=waits
    )
    rows = [world.running[job].placement for job in promise.waiting_for]
    still = sum(min(gpus, sum(row.get(node, 0) for row in rows)) for node, gpus in promise.nodes.items())
    why = reason(
        ReasonCode.WAITING_FOR_VICTIMS, victims=", ".join(waits), released=len(seats) - still, needed=len(seats),
        deadline=kept.deadline,
    )  # fmt: skip
    record = _record(row, row.submitted, JobState.PROMISED, why)
    return replace(record, since=Instant(promise.made), promise=kept, victims=waits)


def _record(row: JobRow, submitted: int, state: JobState, why: Reason) -> JobRecord:
    return JobRecord(
        job=key_of(row), queue=QueueName(row.queue), digest=Digest(f"scenario/{row.job}"), state=state,
        since=Instant(submitted), submitted=Instant(submitted), reason=why,
    )  # fmt: skip


def _usage(world: World) -> tuple[Usage, ...]:
    """Past use, decayed to now; of the GPU type the cluster has most of, as the format names none."""
    kinds = [spot.row.type for spot in world.nodes.values() for _ in range(spot.row.gpus)]
    kind = GpuType(max(world.types, key=kinds.count))
    rows = ((queue.name, _decayed(world, queue)) for queue in world.scenario.queues if queue.usage)
    return tuple(Usage(queue=QueueName(name), gpu_type=kind, acc=acc) for name, acc in sorted(rows))


def _decayed(world: World, queue: QueueRow) -> int:
    """Milli-GPU-seconds, halved for each half-life passed; the same digits on every machine."""
    exact, half = Context(prec=60), Decimal(world.scenario.policy.usage_half_life or 7 * DAY)
    total = Decimal(0)
    for use in queue.usage:
        halvings = exact.divide(Decimal(max(0, world.scenario.now - use.at)), half)
        left = exact.divide(use.gpu_hours, exact.power(Decimal(2), halvings))
        total = exact.add(total, exact.multiply(left, Decimal(_MILLI_PER_HOUR)))
    return int(total.to_integral_value(rounding=ROUND_FLOOR))


# --- what is seen ---

_SAID: Final = {
    JobState.RUNNING: AttemptState.RUNNING,
    JobState.STOPPING: AttemptState.STOPPING,
    JobState.REPAIRING: AttemptState.GONE,
}


def observed_in(world: World, desired: Desired, previous: Allocation) -> Observed:
    """Every node healthy and saying what its jobs do, but for those that are down; and the last checkpoints."""
    now = Instant(world.scenario.now)
    reports: dict[str, list[AttemptReport]] = {}
    for record in previous.jobs.values():
        for node in record.placement.nodes if record.placement is not None else ():
            report = AttemptReport(job=record.job, attempt=record.attempt, state=_SAID[record.state], at=now)
            reports.setdefault(node, []).append(report)
    nodes = {
        node.name: _seen(node, tuple(reports.get(node.name, ())), now, world.nodes[node.name].row.state == "down")
        for node in desired.inventory.nodes
    }
    saves = {
        key_of(row): JobObservation(job=key_of(row), attempt=_ATTEMPT, checkpoint=Instant(row.last_checkpoint))
        for row in world.scenario.running
        if row.last_checkpoint is not None
    }
    return Observed(nodes=nodes, jobs=dict(sorted(saves.items())))


def _seen(node: Node, reports: tuple[AttemptReport, ...], now: Instant, is_down: bool) -> NodeObservation:
    return NodeObservation(
        node=node.name, boot_id="boot", address="127.0.0.1", condition=NodeCondition.LOST if is_down else NodeCondition.READY,
        condition_since=now, gpu_type=node.shape.gpu_type, attempts=reports, lease_expired=is_down, confirmed_dead=is_down,
        gpus=tuple(GpuReport(index=slot.index, uuid=f"GPU-{node.name}-{slot.index}") for slot in node.shape.gpus),
    )  # fmt: skip
