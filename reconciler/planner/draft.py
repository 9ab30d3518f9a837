"""The allocation in the making: records so far, what is free, what each queue has, and the four things one can do.

Start, promise, evict, hold back: each changes the record and, by `charges`, what it counts for. Where a job may go at
all is for `access`. The order in which things are done is `decide`'s; what is worth doing is for its helpers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from reconciler.model.allocation import JobRecord, Placement, Promise, Spare
from reconciler.model.desired import Desired
from reconciler.model.job import Job, OnPreempt
from reconciler.model.lifecycle import Cause, JobState, Phase, check_move
from reconciler.model.observed import Observed
from reconciler.model.queue import PriorityClass
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import GpuSeconds, GpuType, Instant, JobKey, Nanoseconds, QueueName
from reconciler.planner import elastic, placement, ranks, steps
from reconciler.planner.access import Access
from reconciler.planner.capacity import Supply
from reconciler.planner.charges import Charges
from reconciler.planner.ground import Ground
from reconciler.planner.listening import Ports
from reconciler.planner.masks import gang_masks, promised_masks
from reconciler.planner.memo import masks_of
from reconciler.planner.order import SortKey, line_key, starved_before
from reconciler.planner.people import Shares
from reconciler.planner.placement import Spot, Unfit
from reconciler.planner.quota import Breach, Quotas
from reconciler.planner.sight import is_overdue

_NAMED: Final = 5  # gangs named in a reason; the record lists them all
_GIVES_WAY: Final = {
    Cause.PREEMPTED: ReasonCode.PREEMPTED,
    Cause.RECLAIMED: ReasonCode.RECLAIMED,
    Cause.FAIR_SHARE: ReasonCode.FAIR_SHARE,
}


class Draft:
    """One decision while it is being made. `records` is complete at all times."""

    __slots__ = (
        "_linked", "_ports", "_releasing", "_values", "access", "charges", "desired", "ground", "now", "observed", "quotas",
        "records", "shares", "stuck", "supply",
    )  # fmt: skip

    def __init__(
        self, desired: Desired, observed: Observed, ground: Ground, records: dict[JobKey, JobRecord], now: Instant
    ) -> None:
        self.desired, self.observed, self.ground, self.now = desired, observed, ground, now
        self.records = records
        self.shares = Shares(desired, observed, records)
        self.quotas = Quotas(desired.quotas, ground.declared, ground.gpus_by_node)
        self.access = Access(desired, ground, now)
        self._values = {name: known.value for name, known in desired.classes.items()}
        self._ports = Ports(records)
        holding = [r for r in records.values() if r.placement is not None and r.state.holds_gpus]
        promised = [r for r in records.values() if r.promise is not None]
        self.supply = self._supply_of(ground, holding, promised)
        self._linked: Supply | None = None
        self.charges = Charges(desired.jobs, ground, self.supply, self.quotas, holding, promised)
        self.stuck = tuple(r for r in holding if is_overdue(r, observed, now))
        self._releasing: dict[GpuType, list[JobRecord]] = {}
        for record in holding:
            job = self.job(record) if record.state is JobState.STOPPING else None
            keeps = job is not None and steps.goes_on_here(record, job)  # what is left is for its repair
            if (
                record.state is JobState.STOPPING
                and record.job in self.charges.types
                and not keeps
                and record not in self.stuck
            ):
                self._releasing.setdefault(self.charges.types[record.job], []).append(record)

    def _supply_of(self, ground: Ground, holding: list[JobRecord], promised: list[JobRecord]) -> Supply:
        return Supply(
            ground, self.observed, {r.job: r.attempt for r in holding},
            (gang_masks(r) for r in holding), (promised_masks(r) for r in promised),
        )  # fmt: skip

    def with_links(self) -> Supply:
        """What would be free if every NVLink were up; made when first asked for, to explain with."""
        if self._linked is None:
            holding = [r for r in self.records.values() if r.placement is not None and r.state.holds_gpus]
            promised = [r for r in self.records.values() if r.promise is not None]
            self._linked = self._supply_of(self.ground.unbroken or self.ground, holding, promised)
        return self._linked

    # --- what is known ---

    def job(self, record: JobRecord) -> Job | None:
        """Its file's present form, if it describes the same incarnation."""
        job = self.desired.jobs.get(record.job)
        return job if job is not None and job.digest == record.digest else None

    def look(self, record: JobRecord, job: Job, gpu_type: GpuType) -> Spot | Unfit | None:
        """The best spot on what the type offers now; nodes it avoids come back one by one, oldest first, if need be.

        Nodes with soft taints are used when no others do. None: the gang cannot be cut for this type at all.
        """
        asks, shut = self.access.asks(job, gpu_type), self.access.closed_to(job)
        soft = self.access.refused(job, soft_taints=True)
        found: Spot | Unfit | None = None
        for avoided in placement.avoided_nodes(record.avoid, self.ground, self.now) if record.avoid else (0,):
            for refused in dict.fromkeys((shut | soft | avoided, shut | avoided)):
                found = placement.fit(self.supply, gpu_type, job, asks, refused)
                if isinstance(found, Spot):
                    return found
        return found

    def priority(self, job: Job) -> int:
        """The value of its class."""
        return self._values.get(job.priority_class, 0)

    def line(self, record: JobRecord, job: Job) -> SortKey:
        """Where it stands in the line."""
        return line_key(record, job, self.priority(job), starved_before(self.desired.scheduling, self.now))

    def is_queue(self, queue: QueueName) -> bool:
        """False when queues are declared and this is none of them."""
        queues = self.desired.quotas.queues
        return not queues or queue in queues

    def is_fixed(self, job: Job) -> bool:
        """Nobody may ask it to give way; so it may only use what its queue is guaranteed."""
        own = self.class_of(job)
        return job.on_preempt is OnPreempt.NEVER or (own is not None and not own.preemptible)

    def breach(self, job: Job, gpu_type: GpuType, *, promised: bool = False, spot: Spot | None = None) -> Breach | None:
        """The first limit of its queue that the job would pass; `promised`: once all that is stopping is gone."""
        nodes = [self.ground.nodes[index].name for index, _ in spot.rows] if spot is not None else ()
        return self.quotas.breach(
            job.queue, gpu_type, job.gpus, fixed=self.is_fixed(job), promised=promised, nodes=nodes
        )  # fmt: skip

    def class_of(self, job: Job) -> PriorityClass | None:
        return self.desired.classes.get(job.priority_class)

    def releasing(self, gpu_type: GpuType) -> list[JobRecord]:
        """Gangs on their way out: their GPUs will be free, unless promised already."""
        return self._releasing.get(gpu_type, [])

    # --- what is done ---

    def put(self, record: JobRecord) -> None:
        """The record as it is now; a move between states must be one of the lifecycle table's."""
        before = self.records.get(record.job)
        check_move(before.state if before is not None else None, record.state)
        self.set(record)

    def set(self, record: JobRecord) -> None:
        """The record as it is now, however it came there."""
        if self.shares.exist:
            if (before := self.records.get(record.job)) is not None:
                self.shares.add(before, -1)
            self.shares.add(record)
        self.records[record.job] = record

    def drop(self, record: JobRecord) -> None:
        """It is over and gone."""
        self.shares.add(self.records.pop(record.job), -1)

    def start(self, record: JobRecord, job: Job, spot: Spot) -> None:
        """Bind the spot: the gang begins its next attempt with `prepare` on all its nodes."""
        self.start_at(record, job, ranks.placement_of(self.ground, job, spot))

    def start_promised(self, record: JobRecord, job: Job) -> None:
        """Turn a promise whose every GPU is free now into a start."""
        if record.promise is not None:
            place = ranks.refreshed(self.ground, record.promise.placement)
            self.charges.unkeep(record)
            self.start_at(record, elastic.at_size(job, len(place.ranks)), place)

    def restart_at(self, record: JobRecord, job: Job, place: Placement) -> None:
        """A broken gang, which holds what is left of it, goes on at this place."""
        self.charges.let_go(record)
        self.start_at(record, job, place)

    def give_up(self, record: JobRecord, why: Reason) -> None:
        """A broken gang lets go of what is left of it, and waits with its old age."""
        self.charges.let_go(record)
        self.put(replace(steps.released(record), state=JobState.PENDING, whole=None, reason=why))

    def shrink_rest(self, record: JobRecord, rest: Placement) -> JobRecord:
        """A broken gang keeps only this part of what was left of it."""
        self.charges.let_go(record)
        kept = replace(record, placement=rest)
        self.put(kept)
        self.charges.hold(kept)
        return kept

    def respare(self, record: JobRecord, spares: tuple[Spare, ...]) -> JobRecord:
        """The gang holds these spares beside its own GPUs from now on, and no others."""
        self.charges.let_go(record)
        changed = replace(record, spares=spares)
        self.put(changed)
        self.charges.hold(changed)
        return changed

    def let_go(self, record: JobRecord) -> None:
        """All it holds is free now. For what is only thought: nothing was seen released."""
        self.charges.let_go(record)
        kind = self.charges.types.pop(record.job, None)
        leaving = self._releasing.get(kind, []) if kind is not None else []
        leaving[:] = [one for one in leaving if one.job != record.job]

    def pass_to(self, now: Instant) -> None:
        """It is later now. For what is only thought."""
        self.now = now
        self.access.pass_to(now)

    def place_anew(self, places: Mapping[JobKey, Placement]) -> None:
        """Gangs that this decision starts get other places than they had a moment ago."""
        started = {key: self.records[key] for key in places}
        for record in started.values():
            self.charges.let_go(record)
        for key, place in places.items():
            why = (
                ranks.placed_reason(self.ground, job, place) if (job := self.job(started[key])) else started[key].reason
            )
            at = replace(started[key], placement=place, reason=why)
            self._ports.forget()
            self.put(replace(at, ports=()))
            self.put(replace(at, ports=self._ports.free(place, at.attempt, max(0, len(at.ports) - 1))))
            self.charges.hold(self.records[key])

    def displace(
        self, record: JobRecord, cause: Cause, place: Placement, why: Reason, owner: JobKey | None = None
    ) -> None:
        """Tell a running gang to stop and to go on at `place`, perhaps of another size. `owner`: for whom, if anyone."""
        lost = steps.lost_gpu_seconds(record, self.observed, self.now)
        stopped = steps.gentle_stop(record, cause, why, self.desired.scheduling, self.now, GpuSeconds(lost))
        kept = Promise(placement=place, made=self.now, deadline=stopped.deadline or self.now, waiting_for=(record.job,))
        history = (*steps.recent(record.interruptions, self.now), self.now)
        self.charges.stop(record)
        stopped = replace(stopped, preemptor=owner, interruptions=history, promise=kept)
        self.put(stopped)
        self.charges.keep(stopped)
        self._releasing.setdefault(self.charges.types[record.job], []).append(stopped)

    def start_at(self, record: JobRecord, job: Job, place: Placement) -> None:
        started = replace(
            record, state=JobState.STARTING, phase=Phase.PREPARE, attempt=record.attempt + 1, placement=place,
            first_attempt=record.first_attempt or record.attempt + 1,
            promise=None, hold=None, whole=None, spares=(), cause=None, outcome=None, started=None, deadline=None, retry_at=None,
            fence=job.restart.fence,
            grace=grace_of(job), ports=self._ports.free(place, record.attempt + 1, job.run.ports),
            reason=ranks.placed_reason(self.ground, job, place),
        )  # fmt: skip
        self.put(started)
        self.charges.hold(started)
        self._ports.take(place.nodes, started.ports)

    def promise(
        self, record: JobRecord, job: Job, spot: Spot, waiting_for: Iterable[JobKey], victims: tuple[JobKey, ...] = (),
        made: Instant | None = None, unproved: tuple[tuple[str, int], ...] = (),
    ) -> None:  # fmt: skip
        """Fix the spot for the gang; it starts when every GPU of it was seen released.

        `unproved` are numbers to publish when the search for victims could not prove them the mildest.
        """
        self.promise_at(record, ranks.placement_of(self.ground, job, spot), waiting_for, victims, made, unproved)

    def promise_at(
        self, record: JobRecord, place: Placement, waiting_for: Iterable[JobKey], victims: tuple[JobKey, ...] = (),
        made: Instant | None = None, unproved: tuple[tuple[str, int], ...] = (),
    ) -> None:  # fmt: skip
        """The same for a place by rank."""
        waits = tuple(sorted(waiting_for))
        until = max([self.now, *(r.deadline or 0 for r in map(self.records.__getitem__, waits))])
        kept = Promise(
            placement=place, made=made if made is not None else self.now, deadline=Instant(until), waiting_for=waits
        )
        promised = replace(
            record, state=JobState.PROMISED, promise=kept, hold=None, placement=None, victims=victims or record.victims,
            reason=waiting_reason(kept, self.supply, unproved),
        )  # fmt: skip
        self.put(promised)
        self.charges.keep(promised)

    def drop_promise(self, record: JobRecord, why: Reason) -> JobRecord:
        """The promise falls: pending again with its old age. Victims go on stopping."""
        self.charges.unkeep(record)
        pending = replace(record, state=JobState.PENDING, promise=None, victims=(), reason=why)
        self.put(pending)
        return pending

    def forget_promise(self, record: JobRecord) -> None:
        """A gang that was to go on elsewhere stops for good, for now."""
        self.charges.unkeep(record)
        self.put(replace(record, promise=None))

    def evict(self, victim: JobRecord, preemptor: JobKey, cause: Cause = Cause.PREEMPTED) -> None:
        """Tell a gang to give way. It holds its GPUs until they are seen released."""
        lost = steps.lost_gpu_seconds(victim, self.observed, self.now)
        why = reason(_GIVES_WAY[cause], preemptor=preemptor, lost=lost)
        self.charges.stop(victim)
        stopped = steps.gentle_stop(victim, cause, why, self.desired.scheduling, self.now, GpuSeconds(lost))
        history = (*steps.recent(victim.interruptions, self.now), self.now)
        reclaimed = self.now if cause is Cause.RECLAIMED else victim.reclaimed
        stopped = replace(stopped, preemptor=preemptor, interruptions=history, reclaimed=reclaimed)
        self.put(stopped)
        self._releasing.setdefault(self.charges.types[victim.job], []).append(stopped)


def grace_of(job: Job) -> Nanoseconds:
    """How long a stop waits for its checkpoint; 0 when it is stopped and queued again without one."""
    return job.grace if job.on_preempt is not OnPreempt.REQUEUE else Nanoseconds(0)


def waiting_reason(promise: Promise, supply: Supply, unproved: tuple[tuple[str, int], ...] = ()) -> Reason:
    """WaitingForVictims with its numbers as of now."""
    still = supply.overlap(masks_of(promise.placement), supply.held)
    needed = len(promise.placement.ranks)
    first, more = promise.waiting_for[:_NAMED], len(promise.waiting_for) - _NAMED
    named = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    return reason(
        ReasonCode.WAITING_FOR_VICTIMS, victims=named, released=needed - still, needed=needed,
        deadline=promise.deadline, **dict(unproved),
    )  # fmt: skip
