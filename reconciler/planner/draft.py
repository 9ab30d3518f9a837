"""The allocation in the making: records so far, what is free, what each queue has, and the four things one can do.

Start, promise, evict, hold back: each changes record, engines and quota together, so that no step of a decision can
forget one of them. The order in which things are done is `decide`'s; what is worth doing is for its helpers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from reconciler.model.allocation import JobRecord, Placement, Promise, Spare
from reconciler.model.desired import Desired
from reconciler.model.job import Job, OnPreempt
from reconciler.model.lifecycle import Cause, JobState, Phase, check_move
from reconciler.model.observed import AttemptState, NodeCondition, NodeObservation, Observed
from reconciler.model.queue import PriorityClass
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import NVLINK_LEVEL, GpuSeconds, GpuType, Instant, JobKey, Nanoseconds, NodeName, QueueName
from reconciler.planner import elastic, placement, ranks, steps, windows
from reconciler.planner.capacity import Supply
from reconciler.planner.ground import Ground
from reconciler.planner.memo import masks_of
from reconciler.planner.order import SortKey, line_key, starved_before
from reconciler.planner.people import Shares
from reconciler.planner.placement import Ask, Shape, Spot, Unfit
from reconciler.planner.quota import Breach, Quotas
from reconciler.topology.tree import NodeMask

FIRST_PORT: Final = 29500
PORTS: Final = 2500
_NAMED: Final = 5  # gangs named in a reason; the record lists them all
_GIVES_WAY: Final = {
    Cause.PREEMPTED: ReasonCode.PREEMPTED,
    Cause.RECLAIMED: ReasonCode.RECLAIMED,
    Cause.FAIR_SHARE: ReasonCode.FAIR_SHARE,
}


class Draft:
    """One decision while it is being made. `records` is complete at all times."""

    __slots__ = (
        "_asks", "_drained", "_kinds", "_linked", "_ports", "_refused", "_releasing", "_values", "desired", "ground", "now", "observed", "quotas", "records",
        "shares", "stuck", "supply", "types",
    )  # fmt: skip

    def __init__(
        self, desired: Desired, observed: Observed, ground: Ground, records: dict[JobKey, JobRecord], now: Instant
    ) -> None:
        self.desired, self.observed, self.ground, self.now = desired, observed, ground, now
        self.records = records
        self.shares = Shares(desired, observed, records)
        self.quotas = Quotas(desired.quotas, ground.declared, ground.gpus_by_node)
        self.types: dict[JobKey, GpuType] = {}
        self._kinds: dict[tuple[GpuType, ...], tuple[GpuType, ...]] = {}
        self._asks: dict[tuple[Shape, GpuType], tuple[Ask, ...]] = {}
        self._refused: dict[tuple[object, ...], NodeMask] = {}
        self._drained: dict[tuple[Nanoseconds | None, QueueName], NodeMask] = {}
        self._values = {name: known.value for name, known in desired.classes.items()}
        self._ports: dict[NodeName, set[int]] | None = None
        holding = [r for r in records.values() if r.placement is not None and r.state.holds_gpus]
        promised = [r for r in records.values() if r.promise is not None]
        self.supply = self._supply_of(ground, holding, promised)
        self._linked: Supply | None = None
        for record in holding:
            self._charge(record, held=True)
        for record in promised:
            self._charge(record, held=False)
        self.stuck = tuple(r for r in holding if self._overdue(r))
        self._releasing: dict[GpuType, list[JobRecord]] = {}
        for record in holding:
            job = self.job(record) if record.state is JobState.STOPPING else None
            keeps = job is not None and steps.goes_on_here(record, job)  # what is left is for its repair
            if (
                record.state is JobState.STOPPING
                and record.job in self.types
                and not keeps
                and record not in self.stuck
            ):
                self._releasing.setdefault(self.types[record.job], []).append(record)

    def _supply_of(self, ground: Ground, holding: list[JobRecord], promised: list[JobRecord]) -> Supply:
        return Supply(
            ground, self.observed, {r.job: r.attempt for r in holding},
            (self.masks(r) for r in holding), (promised_masks(r) for r in promised),
        )  # fmt: skip

    def with_links(self) -> Supply:
        """What would be free if every NVLink were up; made when first asked for, to explain with."""
        if self._linked is None:
            holding = [r for r in self.records.values() if r.placement is not None and r.state.holds_gpus]
            promised = [r for r in self.records.values() if r.promise is not None]
            self._linked = self._supply_of(self.ground.unbroken or self.ground, holding, promised)
        return self._linked

    def _overdue(self, record: JobRecord) -> bool:
        """A gang past the deadline of its stop that could not be killed, or is silent and not fenced.

        It is let go of as a whole, so nobody may count on any GPU of it.
        """
        if record.state is not JobState.STOPPING or record.deadline is None or self.now < record.deadline:
            return False
        seen = (self.observed.nodes.get(node) for node in (record.placement.nodes if record.placement else ()))
        return any(node is not None and _clings(node, record) for node in seen)

    # --- what is known ---

    def masks(self, record: JobRecord) -> Mapping[NodeName, int]:
        """GPU masks by node that the gang holds, spares included; of the place promised to it when it holds none."""
        if record.placement is not None and (record.state.holds_gpus or record.promise is None):
            held = masks_of(record.placement)
            return {**held, **{one.node: one.mask for one in record.spares}} if record.spares else held
        return promised_masks(record)

    def job(self, record: JobRecord) -> Job | None:
        """Its file's present form, if it describes the same incarnation."""
        job = self.desired.jobs.get(record.job)
        return job if job is not None and job.digest == record.digest else None

    def asks(self, job: Job, gpu_type: GpuType) -> tuple[Ask, ...]:
        """Ways to cut the gang for a type; equal shapes share them."""
        key = (placement.shape_of(job), gpu_type)
        found = self._asks.get(key)
        if found is None:
            found = self._asks[key] = placement.asks_of(job, self.ground, self.ground.node_sizes[gpu_type])
        return found

    def refused(self, job: Job, *, soft_taints: bool = False) -> NodeMask:
        """Nodes its labels and tolerations exclude; equal rules share the answer."""
        if not job.node_labels and not self.ground.tainted:
            return 0
        key = (tuple(sorted(job.node_labels.items())), job.tolerations, soft_taints)
        if key not in self._refused:
            self._refused[key] = placement.refused_nodes(job, self.ground, soft_taints=soft_taints)
        return self._refused[key]

    def unlinked(self, job: Job) -> NodeMask:
        """Nodes with a GPU that lost NVLinks, for a job whose groups need an NVLink domain of several nodes.

        Inside a node its islands tell; in a domain above nodes every GPU of a node counts.
        """
        if not self.ground.torn or self.ground.block_level is None:
            return 0
        if all(place.level != NVLINK_LEVEL for place in job.required):
            return 0
        return sum(1 << index for index in self.ground.torn)

    def drained(self, job: Job) -> NodeMask:
        """Nodes on which a window begins before the job would have ended."""
        if not self.desired.windows:
            return 0
        limit = limit_of(job, self.desired)
        key = (limit, job.queue)
        if key not in self._drained:
            length = limit if limit is not None else self.desired.scheduling.unlimited_counts_as
            end = Instant(self.now + length)
            self._drained[key], _ = windows.closed_between(self.desired, self.ground, job, self.now, end)
        return self._drained[key]

    def look(self, record: JobRecord, job: Job, gpu_type: GpuType) -> Spot | Unfit | None:
        """The best spot on what the type offers now; nodes it avoids come back one by one, oldest first, if need be.

        Nodes with soft taints are used when no others do. None: the gang cannot be cut for this type at all.
        """
        asks, shut = self.asks(job, gpu_type), self.refused(job) | self.drained(job) | self.unlinked(job)
        soft = self.refused(job, soft_taints=True)
        found: Spot | Unfit | None = None
        for avoided in placement.avoided_nodes(record.avoid, self.ground, self.now) if record.avoid else (0,):
            for refused in dict.fromkeys((shut | soft | avoided, shut | avoided)):
                found = placement.fit(self.supply, gpu_type, job, asks, refused)
                if isinstance(found, Spot):
                    return found
        return found

    def types_for(self, job: Job) -> tuple[GpuType, ...]:
        """Declared types it may use, in the order it wrote."""
        found = self._kinds.get(job.gpu_types)
        if found is None:
            found = self._kinds[job.gpu_types] = placement.types_of(job, self.ground)
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

    @contextmanager
    def without(self, gangs: Iterable[JobRecord], gpu_type: GpuType) -> Iterator[None]:
        """A trial in which these gangs are gone."""
        gone, version = list(gangs), self.quotas.ahead.version
        with self.supply.engines[gpu_type].trial():
            for record in gone:
                self.supply.give(gpu_type, self.masks(record))
                self._charge_nodes(record, -1)
                self._charge_ahead(record, -1)
            try:
                yield
            finally:
                for record in gone:
                    self._charge_nodes(record, 1)
                    self._charge_ahead(record, 1)
                self.quotas.ahead.undone_to(version)

    @contextmanager
    def without_parts(
        self, parts: Iterable[tuple[JobRecord, Mapping[NodeName, int]]], gpu_type: GpuType
    ) -> Iterator[None]:
        """A trial in which running gangs have given up some of their GPUs."""
        given, version = list(parts), self.quotas.ahead.version
        with self.supply.engines[gpu_type].trial():
            for record, masks in given:
                self.supply.give(gpu_type, masks)
                self._charge_part(record, masks, -1)
            try:
                yield
            finally:
                for record, masks in given:
                    self._charge_part(record, masks, 1)
                self.quotas.ahead.undone_to(version)

    def _charge_part(self, record: JobRecord, masks: Mapping[NodeName, int], sign: int) -> None:
        self._charge_nodes(record, sign, masks)
        for kind, gpus, _ in self.parts(masks):
            self.quotas.leave(record.queue, kind, -sign * gpus)

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
            self._release_promise(record)
            self.start_at(record, elastic.at_size(job, len(place.ranks)), place)

    def restart_at(self, record: JobRecord, job: Job, place: Placement) -> None:
        """A broken gang, which holds what is left of it, goes on at this place."""
        self.start_at(self._let_go(record), job, place)

    def give_up(self, record: JobRecord, why: Reason) -> None:
        """A broken gang lets go of what is left of it, and waits with its old age."""
        self.put(replace(steps.released(self._let_go(record)), state=JobState.PENDING, whole=None, reason=why))

    def shrink_rest(self, record: JobRecord, rest: Placement) -> JobRecord:
        """A broken gang keeps only this part of what was left of it."""
        kept = replace(self._let_go(record), placement=rest)
        self.put(kept)
        self.supply.hold(self.masks(kept))
        self._charge(kept, held=True)
        return kept

    def respare(self, record: JobRecord, spares: tuple[Spare, ...]) -> JobRecord:
        """The gang holds these spares beside its own GPUs from now on, and no others."""
        changed = replace(self._let_go(record), spares=spares)
        self.put(changed)
        self.supply.hold(self.masks(changed))
        self._charge(changed, held=True)
        return changed

    def let_go(self, record: JobRecord) -> None:
        """All it holds is free now. For what is only thought: nothing was seen released."""
        self._let_go(record)
        kind = self.types.pop(record.job, None)
        leaving = self._releasing.get(kind, []) if kind is not None else []
        leaving[:] = [one for one in leaving if one.job != record.job]

    def pass_to(self, now: Instant) -> None:
        """It is later now. For what is only thought."""
        self.now = now
        self._drained.clear()

    def _let_go(self, record: JobRecord) -> JobRecord:
        """What it holds is free at once: it was seen released before."""
        masks = self.masks(record)
        self._charge(record, held=True, sign=-1)
        self.supply.unhold(masks)
        return record

    def place_anew(self, places: Mapping[JobKey, Placement]) -> None:
        """Gangs that this decision starts get other places than they had a moment ago."""
        started = {key: self._let_go(self.records[key]) for key in places}
        for key, place in places.items():
            why = (
                ranks.placed_reason(self.ground, job, place) if (job := self.job(started[key])) else started[key].reason
            )
            at = replace(started[key], placement=place, reason=why)
            self._ports = None
            self.put(replace(at, ports=()))
            self.put(replace(at, ports=self._free_ports(place, at.attempt, max(0, len(at.ports) - 1))))
            self.supply.hold(masks_of(place))
            self._charge(self.records[key], held=True)

    def displace(
        self, record: JobRecord, cause: Cause, place: Placement, why: Reason, owner: JobKey | None = None
    ) -> None:
        """Tell a running gang to stop and to go on at `place`, perhaps of another size. `owner`: for whom, if anyone."""
        lost = steps.lost_gpu_seconds(record, self.observed, self.now)
        stopped = steps.gentle_stop(record, cause, why, self.desired.scheduling, self.now, GpuSeconds(lost))
        kept = Promise(placement=place, made=self.now, deadline=stopped.deadline or self.now, waiting_for=(record.job,))
        history = (*steps.recent(record.interruptions, self.now), self.now)
        self._charge_ahead(record, -1)
        stopped = replace(stopped, preemptor=owner, interruptions=history, promise=kept)
        self.put(stopped)
        self.supply.keep(masks_of(place))
        self._charge(stopped, held=False)
        self._releasing.setdefault(self.types[record.job], []).append(stopped)

    def start_at(self, record: JobRecord, job: Job, place: Placement) -> None:
        masks = masks_of(place)
        started = replace(
            record, state=JobState.STARTING, phase=Phase.PREPARE, attempt=record.attempt + 1, placement=place,
            first_attempt=record.first_attempt or record.attempt + 1,
            promise=None, hold=None, whole=None, spares=(), cause=None, outcome=None, started=None, deadline=None, retry_at=None,
            fence=job.restart.fence,
            grace=grace_of(job), ports=self._free_ports(place, record.attempt + 1, job.run.ports),
            reason=ranks.placed_reason(self.ground, job, place),
        )  # fmt: skip
        self.put(started)
        self.supply.hold(masks)
        self._charge(started, held=True)
        if self._ports is not None:
            for node in masks:
                self._ports.setdefault(node, set()).update(started.ports)

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
        masks = masks_of(place)
        promised = replace(
            record, state=JobState.PROMISED, promise=kept, hold=None, placement=None, victims=victims or record.victims,
            reason=waiting_reason(kept, self.supply, masks, unproved),
        )  # fmt: skip
        self.put(promised)
        self.supply.keep(masks)
        self._charge(promised, held=False)

    def drop_promise(self, record: JobRecord, why: Reason) -> JobRecord:
        """The promise falls: pending again with its old age. Victims go on stopping."""
        self._release_promise(record)
        pending = replace(record, state=JobState.PENDING, promise=None, victims=(), reason=why)
        self.put(pending)
        return pending

    def forget_promise(self, record: JobRecord) -> None:
        """A gang that was to go on elsewhere stops for good, for now."""
        self._release_promise(record)
        self.put(replace(record, promise=None))

    def _release_promise(self, record: JobRecord) -> None:
        self.supply.unkeep(promised_masks(record))
        self._charge(record, held=False, sign=-1)

    def evict(self, victim: JobRecord, preemptor: JobKey, cause: Cause = Cause.PREEMPTED) -> None:
        """Tell a gang to give way. It holds its GPUs until they are seen released."""
        lost = steps.lost_gpu_seconds(victim, self.observed, self.now)
        why = reason(_GIVES_WAY[cause], preemptor=preemptor, lost=lost)
        self._charge_ahead(victim, -1)
        stopped = steps.gentle_stop(victim, cause, why, self.desired.scheduling, self.now, GpuSeconds(lost))
        history = (*steps.recent(victim.interruptions, self.now), self.now)
        reclaimed = self.now if cause is Cause.RECLAIMED else victim.reclaimed
        stopped = replace(stopped, preemptor=preemptor, interruptions=history, reclaimed=reclaimed)
        self.put(stopped)
        self._releasing.setdefault(self.types[victim.job], []).append(stopped)

    # --- bookkeeping ---

    def _charge(self, record: JobRecord, *, held: bool, sign: int = 1) -> None:
        """Count a gang (or its promise) at its queues, and its CPUs and memory at its nodes."""
        masks = self.masks(record) if held else promised_masks(record)
        gpu_type = self.type_at(masks)
        if gpu_type is None:
            return
        if held:
            self.types[record.job] = gpu_type
        goes_on = record.state is not JobState.STOPPING
        for kind, gpus, nodes in self.parts(masks):
            if held:
                self.quotas.hold(record.queue, kind, sign * gpus, nodes, goes_on=goes_on)
            else:
                self.quotas.keep(record.queue, kind, sign * gpus, nodes)
        self._charge_nodes(record, sign, masks if held else beyond(masks, record))

    def _charge_ahead(self, record: JobRecord, sign: int) -> None:
        """A gang that goes on is thought, or begins, to stop (-1), or goes on after all (1)."""
        if record.state is not JobState.STOPPING:
            for kind, gpus, nodes in self.parts(self.masks(record)):
                self.quotas.leave(record.queue, kind, -sign * gpus, nodes)

    def parts(self, masks: Mapping[NodeName, int]) -> list[tuple[GpuType, int, list[NodeName]]]:
        """GPUs and nodes of a gang, by type, on nodes that are still declared."""
        if len(self.ground.types) == 1:
            nodes = [node for node in masks if node in self.ground.gpus_by_node]
            return [(self.ground.types[0], sum(masks[node].bit_count() for node in nodes), nodes)]
        found: dict[GpuType, tuple[int, list[NodeName]]] = {}
        for node, mask in masks.items():
            kind = self.type_at({node: mask})
            if kind is not None:
                gpus, nodes = found.get(kind, (0, []))
                found[kind] = (gpus + mask.bit_count(), [*nodes, node])
        return [(kind, gpus, nodes) for kind, (gpus, nodes) in found.items()]

    def _charge_nodes(self, record: JobRecord, sign: int, masks: Mapping[NodeName, int] | None = None) -> None:
        job = self.desired.jobs.get(record.job)
        if job is not None:
            masks = self.masks(record) if masks is None else masks
            self.supply.charge(masks, sign * job.cpus_per_gpu, sign * job.memory_per_gpu)

    def type_at(self, masks: Mapping[NodeName, int]) -> GpuType | None:
        """The GPU type of a gang's nodes, from the first that is still declared."""
        index_of = self.ground.tree.index_of
        index = next((index_of[node] for node in masks if node in index_of), None)
        return self.ground.nodes[index].shape.gpu_type if index is not None else None

    def _free_ports(self, place: Placement, attempt: int, more: int) -> tuple[int, ...]:
        """Ports nobody else uses on any of the gang's nodes; where the look begins shifts with the attempt."""
        if self._ports is None:
            self._ports = {}
            for record in self.records.values():
                runs_on = record.placement.nodes if record.placement is not None and record.state.holds_gpus else ()
                for node in runs_on if record.ports else ():
                    self._ports.setdefault(node, set()).update(record.ports)
        used: set[int] = set()
        for node in place.nodes:
            used |= self._ports.get(node, set())
        begin = (attempt - 1) * (more + 1)
        found: list[int] = []
        for step in range(PORTS):
            port = FIRST_PORT + (begin + step) % PORTS
            if port not in used:
                found.append(port)
                if len(found) > more:
                    break
        return tuple(found)


def beyond(masks: Mapping[NodeName, int], record: JobRecord) -> Mapping[NodeName, int]:
    """Of these GPUs those that the gang does not hold already: what a promise adds to a gang that still stops."""
    if record.placement is None or not record.state.holds_gpus:
        return masks
    held = {**masks_of(record.placement), **{one.node: one.mask for one in record.spares}}
    rest = {node: mask & ~held.get(node, 0) for node, mask in masks.items()}
    return {node: mask for node, mask in rest.items() if mask}


def promised_masks(record: JobRecord) -> Mapping[NodeName, int]:
    """GPU masks by node of the place promised to the gang; also while it still holds another."""
    return masks_of(record.promise.placement) if record.promise is not None else {}


def _clings(node: NodeObservation, record: JobRecord) -> bool:
    said = node.attempt(record.job, record.attempt)
    if said is not None and said.state.released:
        return False
    return node.condition is NodeCondition.LOST or (said is not None and said.state is AttemptState.KILL_FAILED)


def grace_of(job: Job) -> Nanoseconds:
    """How long a stop waits for its checkpoint; 0 when it is stopped and queued again without one."""
    return job.grace if job.on_preempt is not OnPreempt.REQUEUE else Nanoseconds(0)


def limit_of(job: Job, desired: Desired) -> Nanoseconds | None:
    """Its time limit or the cluster's; None: it never ends by itself."""
    return job.time_limit if job.time_limit is not None else desired.scheduling.default_time_limit


def waiting_reason(
    promise: Promise, supply: Supply, masks: Mapping[NodeName, int], unproved: tuple[tuple[str, int], ...] = ()
) -> Reason:
    """WaitingForVictims with its numbers as of now."""
    still = supply.overlap(masks, supply.held)
    needed = len(promise.placement.ranks)
    first, more = promise.waiting_for[:_NAMED], len(promise.waiting_for) - _NAMED
    named = ", ".join(first) + (f" and {more} more" if more > 0 else "")
    return reason(
        ReasonCode.WAITING_FOR_VICTIMS, victims=named, released=needed - still, needed=needed,
        deadline=promise.deadline, **dict(unproved),
    )  # fmt: skip
