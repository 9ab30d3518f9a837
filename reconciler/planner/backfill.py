"""Which free GPUs are spoken for, and for whom do they count as free all the same?

Bookings are what a waiting job has on GPUs without running: a reservation (conservative, easy) or a hold. A candidate
later in the pass may use claimed GPUs only if it is over before the booking begins; and a booking that does not run is
never stronger than the same job running, so it stops nobody who could evict its owner. Bookings are made when the pass
has come to their owner and found no way for it: what comes earlier in the pass, and repair, never meets them. The
promise made by a booking covers quota too: no queue on its way up may be filled past the point where it would fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.units import GpuType, Instant, JobKey, Nanoseconds, QueueName
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks, promised_masks
from reconciler.planner.placement import shape_of
from reconciler.planner.profile import NEVER, end_of, end_of_promised
from reconciler.planner.reservation import Planner, Reservation
from reconciler.planner.rights import may_preempt
from reconciler.topology.tree import GpuMask, NodeIndex

PER_QUEUE: Final = 8  # reservations of one queue, so that a long line of one team does not use them all up

Openness = tuple[int, ...]
"""The bookings that do not bind a candidate, by number: jobs that are open to the same see the same GPUs."""

_Rank = tuple[int | None, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """GPUs spoken for. Whoever is gone by `until` may use them. `is_hold`: gathered for a starved job."""

    owner: JobKey
    queue: QueueName
    gpu_type: GpuType
    masks: Mapping[NodeIndex, GpuMask]  # those that no earlier booking has
    gpus: int
    until: Instant
    is_hold: bool
    since: Instant
    idle: int  # GPUs of it that were free when it was made


@dataclass(slots=True)
class _Bound:
    """No more than `most` GPUs may be ahead in a queue, or the owner's start would have to move."""

    booking: int
    number: int
    gpu_type: GpuType
    most: int


class Bookings:
    """All bookings of one decision, in the order in which they were made."""

    __slots__ = (
        "_added", "_bounds", "_by_queue", "_counts", "_draft", "_grace", "_idle", "_idle_gpus", "_nowhere", "_open", "_outranked", "_owners", "_ranks", "_spoken",
        "made", "planner", "reservations",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.planner = Planner(draft)
        self.made: list[Booking] = []
        self.reservations: dict[JobKey, Reservation] = {}
        self._counts: dict[tuple[GpuType, QueueName | None], int] = {}
        self._bounds: list[_Bound] = []
        self._nowhere: set[tuple[object, ...]] = set()  # nobody knows when these could start
        self._owners: dict[JobKey, int] = {}
        self._by_queue: dict[QueueName, list[int]] = {}
        self._open: dict[tuple[Nanoseconds | None, Nanoseconds], tuple[int, Openness]] = {}
        self._idle: dict[Openness, Openness] = {}
        self._spoken: dict[GpuType, dict[int, int]] = {}
        self._idle_gpus: dict[GpuType, int] = {}
        self._grace: Nanoseconds | None = None
        self._added: dict[tuple[Openness, QueueName, _Rank], tuple[tuple[int, int], Openness]] = {}
        self._ranks: dict[tuple[object, ...], tuple[int, _Rank]] = {}  # with the version of the use they are for
        self._outranked: dict[tuple[QueueName, _Rank], tuple[tuple[int, int], frozenset[int]]] = {}

    # --- making them ---

    def reserve(self, record: JobRecord, job: Job) -> Reservation | None:
        """Reserve the earliest start for a job that found no way, within the limits of the mode; None: it gets none."""
        draft, rules = self._draft, self._draft.desired.scheduling
        if rules.backfill == "none":
            return None
        best: Reservation | None = None
        for kind in draft.access.types_for(job):
            if self._is_full(kind, job.queue):
                continue
            key = (shape_of(job), kind, job.queue, draft.desired.limit_of(job), draft.is_fixed(job))
            if key in self._nowhere and not record.avoid:
                continue
            found = self.planner.earliest(record, job, kind, self._spoken_for(kind))
            if found is None:
                self._nowhere.add(key)
            elif best is None or found.starts < best.starts:
                best = found
        if best is None:
            return None
        self.reservations[record.job] = best
        for name in (None, job.queue):
            self._counts[best.gpu_type, name] = self._counts.get((best.gpu_type, name), 0) + 1
        branches, spoken_for = draft.quotas.branches, self._spoken_for(best.gpu_type)
        for queue in branches.path(branches.leaf(job.queue)):
            spoken_for[queue] = spoken_for.get(queue, 0) + job.gpus
        number = self._add(record, job, best.gpu_type, best.masks, best.starts, is_hold=False, since=record.submitted)
        self.planner.profile(best.gpu_type).occupy(best.masks, best.ends)
        self._bind_quota(number, job, best)
        return best

    def hold(
        self, record: JobRecord, job: Job, gpu_type: GpuType, masks: Mapping[NodeIndex, GpuMask], until: Instant
    ) -> None:
        """Gather these GPUs for a starved job, and the quota on its way up. `until` 0: nobody may use them meanwhile."""
        since = record.hold.since if record.hold is not None else self._draft.now
        number = self._add(record, job, gpu_type, masks, until, is_hold=True, since=since)
        for queue, limit in self.planner.quota.limits(job, gpu_type):
            self._bounds.append(_Bound(booking=number, number=queue, gpu_type=gpu_type, most=limit - job.gpus))
        if self.planner.knows(gpu_type):
            self.planner.profile(gpu_type).occupy(masks, None)

    def _is_full(self, kind: GpuType, queue: QueueName) -> bool:
        rules = self._draft.desired.scheduling
        most = 1 if rules.backfill == "easy" else rules.reservations
        return self._counts.get((kind, None), 0) >= most or self._counts.get((kind, queue), 0) >= PER_QUEUE

    def _spoken_for(self, kind: GpuType) -> dict[int, int]:
        """Quota that reservations made earlier will use, by queue."""
        return self._spoken.setdefault(kind, {})

    def _bind_quota(self, number: int, job: Job, made: Reservation) -> None:
        spoken_for = self._spoken_for(made.gpu_type)
        for queue, limit in self.planner.quota.limits(job, made.gpu_type):
            back = self.planner.quota.returned(queue, made.gpu_type, made.starts)
            most = limit - spoken_for.get(queue, 0) + back
            self._bounds.append(_Bound(booking=number, number=queue, gpu_type=made.gpu_type, most=most))

    def _add(
        self, record: JobRecord, job: Job, gpu_type: GpuType, masks: Mapping[NodeIndex, GpuMask], until: Instant,
        *, is_hold: bool, since: Instant,
    ) -> int:  # fmt: skip
        supply = self._draft.supply
        fresh = {node: left for node, mask in masks.items() if (left := mask & ~supply.claimed[node])}
        gpus = sum(mask.bit_count() for mask in masks.values())
        idle = sum(
            (mask & supply.usable[n] & ~supply.held[n] & ~supply.promised[n]).bit_count() for n, mask in fresh.items()
        )
        self.made.append(
            Booking(owner=record.job, queue=job.queue, gpu_type=gpu_type, masks=fresh, gpus=gpus, until=until,
                    is_hold=is_hold, since=since, idle=idle)
        )  # fmt: skip
        supply.claim(fresh)
        self._owners[record.job] = len(self.made) - 1
        self._by_queue.setdefault(job.queue, []).append(len(self.made) - 1)
        self._idle_gpus[gpu_type] = self._idle_gpus.get(gpu_type, 0) + idle
        return len(self.made) - 1

    # --- whom they bind ---

    def openness(self, record: JobRecord, job: Job, slack: Nanoseconds = Nanoseconds(0)) -> Openness:
        """The bookings that leave their GPUs to this candidate; `slack`: how much later than now it may start."""
        if not self.made:
            return ()
        found = self._left_in_time(self._draft.desired.limit_of(job), slack)
        return self._with(found, record, job)

    def for_taking(self, record: JobRecord, job: Job) -> Openness:
        """The bookings that bind it neither when it takes from others: whom it outranks, its own, and idle GPUs of those
        that it leaves in time even if it starts when others have left."""
        if not self.made:
            return ()
        found = self._left_in_time(self._draft.desired.limit_of(job), self.slack())
        return self._with(self.idle(found), record, job)

    def _left_in_time(self, limit: Nanoseconds | None, slack: Nanoseconds) -> Openness:
        """Those that begin when a job with such a limit is over; worked out once a limit, and on as bookings are made."""
        seen, found = self._open.get((limit, slack), (0, ()))
        if seen < len(self.made):
            end = self._draft.now + limit + slack if limit is not None else NEVER
            found = (*found, *(number for number in range(seen, len(self.made)) if end <= self.made[number].until))
            self._open[limit, slack] = len(self.made), found
        return found

    def _with(self, found: Openness, record: JobRecord, job: Job) -> Openness:
        """These, the candidate's own, and those of owners that it could evict; worked out once for equals."""
        own, rank = self._owners.get(record.job), self._rank(job)
        as_of, key = (len(self.made), self._draft.quotas.ahead.version), (found, job.queue, rank)
        known = self._added.get(key)
        if known is None or known[0] != as_of:
            more = self._below(job, rank)
            known = self._added[key] = as_of, tuple(sorted(more.union(found))) if more else found
        return known[1] if own is None or own in known[1] else tuple(sorted({*known[1], own}))

    def _below(self, job: Job, rank: _Rank) -> frozenset[int]:
        """Bookings whose owners it could evict; worked out once for equals, as long as nobody's use changes."""
        as_of, key = (len(self.made), self._draft.quotas.ahead.version), (job.queue, rank)
        known = self._outranked.get(key)
        if known is None or known[0] != as_of:
            near = self._by_queue.get(job.queue, []) if rank[0] is not None else []
            others = range(len(self.made)) if rank[1] else near
            below = frozenset(number for number in others if self._outranks(job, rank, self.made[number]))
            known = self._outranked[key] = as_of, below
        return known[1]

    def idle(self, open_to: Openness) -> Openness:
        """Those of these bookings that have GPUs which are free now."""
        known = self._idle.get(open_to)
        if known is None:
            known = self._idle[open_to] = tuple(number for number in open_to if self.made[number].idle)
        return known

    def idle_gpus(self, kinds: Iterable[GpuType]) -> int:
        """Free GPUs of these types that are booked."""
        return sum(self._idle_gpus.get(kind, 0) for kind in kinds)

    def _rank(self, job: Job) -> _Rank:
        """What it may evict by priority in its own queue (None: nobody), and whether it may take from other queues."""
        version, key = self._draft.quotas.ahead.version, (job.queue, job.priority_class, job.gpus, job.gpu_types)
        known = self._ranks.get(key)
        if known is None or known[0] != version:
            known = self._ranks[key] = version, self._rank_now(job)
        return known[1]

    def _rank_now(self, job: Job) -> _Rank:
        draft = self._draft
        own = draft.priority(job) if may_preempt(draft, job) else None
        if draft.desired.scheduling.preempt_other_queues == "never":
            return own, False
        return own, any(not draft.quotas.borrows(job.queue, kind, job.gpus) for kind in draft.access.types_for(job))

    def _outranks(self, job: Job, rank: _Rank, booking: Booking) -> bool:
        """It could evict the owner, if that ran."""
        priority, reclaims = rank
        if (job.queue == booking.queue and priority is None) or (job.queue != booking.queue and not reclaims):
            return False
        draft, owner = self._draft, self._draft.desired.jobs.get(booking.owner)
        if owner is None or draft.is_fixed(owner):
            return False
        if owner.queue == job.queue:
            return priority is not None and priority > draft.priority(owner)
        return draft.quotas.borrows(owner.queue, booking.gpu_type, booking.gpus)

    def slack(self) -> Nanoseconds:
        """The longest that a start may be put off by someone's leaving."""
        if self._grace is None:
            most = max((r.grace for r in self._draft.records.values() if r.state.holds_gpus), default=0)
            self._grace = Nanoseconds(most + self._draft.desired.scheduling.kill_after)
        return self._grace

    @contextmanager
    def lifted(self, open_to: Openness) -> Iterator[None]:
        """Inside the block these bookings are as if they were not; what is given away inside stays so."""
        supply = self._draft.supply
        if not open_to:
            yield
            return
        for number in open_to:
            supply.unclaim(self.made[number].masks)
        try:
            yield
        finally:
            for number in open_to:
                supply.claim(self.made[number].masks)

    def on(self, kinds: Iterable[GpuType]) -> Openness:
        """Every booking on GPUs of these types."""
        wanted = set(kinds)
        return tuple(number for number, booking in enumerate(self.made) if booking.gpu_type in wanted)

    def met(self, wanted: Mapping[NodeIndex, GpuMask], open_to: Openness) -> tuple[Booking, int] | None:
        """The first booking that a place would run into, and on how many GPUs."""
        for number, booking in enumerate(self.made):
            shared = sum((mask & wanted.get(node, 0)).bit_count() for node, mask in booking.masks.items())
            if shared and number not in open_to:
                return booking, shared
        return None

    def mine(self, job: JobKey) -> Booking | None:
        """What is booked for a job itself."""
        number = self._owners.get(job)
        return self.made[number] if number is not None and number < len(self.made) else None

    def delayed(self, job: Job, kind: GpuType, open_to: Openness) -> Booking | None:
        """The reservation whose quota the job would use up, None when it disturbs none."""
        if not self._bounds:
            return None
        quotas = self._draft.quotas
        path = quotas.branches.path(quotas.branches.leaf(job.queue))
        for bound in self._bounds:
            binds = bound.gpu_type == kind and bound.number in path and bound.booking not in open_to
            if binds and quotas.ahead.under(bound.number, kind) + job.gpus > bound.most:
                return self.made[bound.booking]
        return None

    def placed(self, record: JobRecord) -> None:
        """A candidate was started or promised GPUs: tell the profile, and the quotas kept for later."""
        draft = self._draft
        masks = promised_masks(record) if record.promise is not None else gang_masks(record)
        kind = draft.ground.type_at(masks)
        if kind is None:
            return
        until = end_of(draft, record) if record.promise is None else end_of_promised(draft, record)
        index_of = draft.ground.tree.index_of
        if self.planner.knows(kind):
            self.planner.profile(kind).occupy({index_of[node]: mask for node, mask in masks.items()}, until)
        gpus = sum(mask.bit_count() for mask in masks.values())
        self.planner.quota.occupy(kind, record.queue, gpus, until)
        path = draft.quotas.branches.path(draft.quotas.branches.leaf(record.queue)) if self._bounds else ()
        for bound in self._bounds:
            if bound.gpu_type == kind and bound.number in path and until <= self.made[bound.booking].until:
                bound.most += gpus

    def lift_all(self) -> None:
        """The pass is over: what is idle is idle."""
        for booking in self.made:
            self._draft.supply.unclaim(booking.masks)
        self.made, self._bounds = [], []
