"""How does one job start, first way that works: on free GPUs, on GPUs being released, by asking others to leave?

One sweep over the candidates, in the order given; nobody is looked at twice. A way that does less harm wins outright.
Free GPUs only become fewer during a sweep, so a shape that failed once is not searched again: ten thousand alike
jobs cost one search. Who finds no way books GPUs for later (`backfill`, `hold`), within the limits of the rules, and
binds those behind it. Why a job that waits does wait is for `explain`.
"""

from __future__ import annotations

from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import GpuType, Instant, JobKey
from reconciler.planner import elastic, explain
from reconciler.planner.arrays import Arrays
from reconciler.planner.backfill import Bookings, Openness
from reconciler.planner.blend import with_shrinks
from reconciler.planner.draft import Draft
from reconciler.planner.effort import turn_begins, was_passed_over
from reconciler.planner.hold import Holds
from reconciler.planner.mixed import mixed_after, mixed_spot, mixed_victims
from reconciler.planner.moment import unsure
from reconciler.planner.moves import Movable, find_moves, move
from reconciler.planner.order import Line
from reconciler.planner.placement import Shape, Spot, shape_of
from reconciler.planner.preemption import Nobody, Victims, find_victims, is_hopeless
from reconciler.planner.promise import waiting_for, waits_for_preemptor
from reconciler.planner.rights import Claim, Rights, borrows_again, unborrowed_types
from reconciler.planner.shrink import find_shrinks, shrink
from reconciler.planner.soon import starts_soon
from reconciler.planner.spares import take_spares, yield_spares
from reconciler.topology.tree import NodeMask

MAX_PREEMPTORS: Final = 32  # jobs a round for which victims are searched and found

_ALL_PASS: Final = frozenset({"always"})  # of `jobsMayPass`
_OTHER_TYPES_PASS: Final = frozenset({"otherGpuTypes"})

_Demand = tuple[Shape, GpuType, NodeMask, Openness]


class Sweep:
    """One pass over the candidates, and what it has learnt on the way."""

    __slots__ = (
        "_arrays", "_cut_short", "_cuts", "_draft", "_first_waiting", "_has_elastic", "_has_spares", "_holds", "_hopeless", "_in_turn", "_movable", "_never", "_no_free", "_no_releasing", "_open_to", "_preemptors", "_untried", "_unprotected",
        "bookings", "on_free", "soon", "rights", "started", "unproved",
    )  # fmt: skip

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._arrays = Arrays(draft.records.values())
        self._never = explain.Never(draft)
        self._hopeless: set[tuple[explain.Likes, Openness]] = set()  # tried in every way since anything was released
        self._no_free: set[_Demand] = set()
        self._no_releasing: set[_Demand] = set()
        self._preemptors = 0
        self._open_to: Openness = ()  # bookings that do not bind the candidate at hand
        self._first_waiting: dict[GpuType, JobKey] = {}
        self._unprotected: set[explain.Likes] = set()  # no protection that ends soon would help these
        self.soon: dict[JobKey, Instant] = {}  # who starts without victims, when time limits have freed its GPUs
        self.started: list[JobKey] = []  # in the order of the pass, promised ones too
        self._untried: set[JobKey] = set()  # for whom no victims were looked for: this round's steps were used up
        self._in_turn = True  # the candidate at hand may use the steps that everybody has in turn
        self._cut_short: set[JobKey] = set()  # for whom a search ended before it had found anybody
        self.unproved: set[explain.Likes] = set()  # for whom no victims were found, which is no proof of anything
        self.rights = Rights(draft)
        self.bookings = Bookings(draft)
        self._holds = Holds(draft, self.bookings)
        self._movable = Movable(draft)
        self.on_free: list[JobKey] = []  # who started on free GPUs, in the order of the pass
        self._cuts: dict[str, int] = {}  # milder ways of which not all were tried for the candidate at hand
        self._has_spares = any(record.spares for record in draft.records.values())
        self._has_elastic = any(job.elastic is not None for job in draft.desired.jobs.values())

    def run(self, candidates: Line) -> list[tuple[JobRecord, Job, explain.Likes]]:
        """Start or promise whoever can be; the others are returned, in order, with what makes them alike."""
        waiting = []
        turn = turn_begins(self._draft.now, len(candidates))
        for place, (record, asked) in enumerate(candidates):
            self._in_turn = place >= turn
            job = elastic.smallest(asked)  # more than that displaces nobody, and is no reason to wait
            alike = explain.likes(self._draft, job)
            after = waits_for_preemptor(self._draft, record) if record.preemptor is not None else None
            why = after or self._never.why(job) or self._arrays.full(job)
            why = why or borrows_again(self._draft, record, job) or self._behind(job)
            why = why or self._draft.shares.why(job, job.gpus)
            open_to = self.bookings.openness(record, job)
            if why is not None:
                explain.settle_waiting(self._draft, record, why)
            elif ((alike, open_to) not in self._hopeless or record.avoid) and self._start(record, asked, open_to):
                if asked.spares:
                    take_spares(self._draft, self._draft.records[record.job], asked, self._is_unbooked)
                placed = self._draft.records[record.job]
                self.bookings.placed(placed)
                self.started.append(record.job)
                self._arrays.placed(job)
                candidates.renew([record.queue, *(self._draft.records[key].queue for key in placed.victims)])
            elif (why := borrows_again(self._draft, record, job, partly=True)) is not None:
                explain.settle_waiting(self._draft, record, why)  # what it could book it may not have yet
            elif (why := self._arrays.out_of_turn(job)) is not None:
                explain.settle_waiting(self._draft, self._book(record, job, alike), why)
            elif record.job in self._untried and was_passed_over(record):
                why = reason(ReasonCode.SEARCH_LIMIT, steps=self.rights.standing.effort.spent)
                explain.settle_waiting(self._draft, self._book(record, job, alike), why)
            elif record.job in self.soon:
                why = reason(ReasonCode.STARTS_SOON, at=self.soon[record.job])
                explain.settle_waiting(self._draft, self._book(record, job, alike), why)
            else:
                follows = self._arrays.follows(job)
                waiting.append((self._book(record, job, alike), job, alike))
                is_untried = record.job in self._untried
                if is_untried or record.job in self._cut_short:
                    self.unproved.add(alike)
                if not (record.avoid or is_untried or follows):
                    self._hopeless.add((alike, open_to))
        return waiting

    def _behind(self, job: Job) -> Reason | None:
        """BlockedByEarlier, where the rules let nobody pass one who waits, or nobody who wants the same type."""
        if not self._first_waiting:
            return None
        same_type_only = self._draft.desired.scheduling.jobs_may_pass in _OTHER_TYPES_PASS
        kinds = self._draft.access.types_for(job) if same_type_only else tuple(self._first_waiting)
        owner = next((self._first_waiting[kind] for kind in kinds if kind in self._first_waiting), None)
        return reason(ReasonCode.BLOCKED_BY_EARLIER, owner=owner) if owner is not None else None

    def _book(self, record: JobRecord, job: Job, alike: explain.Likes) -> JobRecord:
        """No way for it: from now on others have to mind it, as far as the rules say."""
        if self._arrays.follows(job):
            return self._holds.drop(record)
        self._arrays.leads(job)
        if self._draft.desired.scheduling.jobs_may_pass not in _ALL_PASS:
            for kind in self._draft.access.types_for(job):
                self._first_waiting.setdefault(kind, record.job)
        job = elastic.smallest(job)
        if record.hold is not None:
            return self._holds.gather(record, job)
        if alike not in self._unprotected:
            held = self._holds.gather_protected(record, job, self.rights)
            if held is not None:
                return held
            self._unprotected.add(alike)
        if self.bookings.reserve(record, job) is None and self._holds.is_due(record):
            return self._holds.gather(record, job)
        return record

    def _start(self, record: JobRecord, asked: Job, open_to: Openness) -> bool:
        job = elastic.smallest(asked)
        self._cuts.clear()
        self._open_to = self.bookings.idle(open_to)
        room = self._draft.shares.room(asked)
        for sized in (size for size in elastic.sizes_of(asked) if size.gpus <= room):
            types = self._unbooked(record, sized, open_to)
            if any(self._on_free(record, sized, kind) for kind in types) or self._on_several(record, sized, types):
                return True
        self._open_to = self.bookings.for_taking(record, job) if open_to else ()
        types = self._unbooked(record, job, self._open_to)
        if any(self._on_releasing(record, job, kind) for kind in types):
            return True
        if self._on_several_releasing(record, job, types):
            return True
        if self._arrays.follows(job):
            return False
        ways = (self._on_spares, self._by_shrinking, self._by_moving, self._by_preemption)
        if any(way(record, job, kind) for way in ways for kind in types):
            return True
        return self._by_preemption_on_several(record, job, types)

    def _is_unbooked(self, job: Job, kind: GpuType) -> bool:
        return self.bookings.delayed(job, kind, ()) is None

    def _unbooked(self, record: JobRecord, job: Job, open_to: Openness) -> list[GpuType]:
        """The types of which it takes nobody's booked quota, and borrows none that it has just given back."""
        types = unborrowed_types(self._draft, record, job)
        return [kind for kind in types if self.bookings.delayed(job, kind, open_to) is None]

    def _key(self, record: JobRecord, job: Job, kind: GpuType) -> _Demand | None:
        """What failed for this fails for all its likes. A job that avoids nodes has no likes."""
        return None if record.avoid else (shape_of(job), kind, self._draft.access.drained(job), self._open_to)

    def _on_free(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """Free GPUs: nothing and nobody is disturbed."""
        draft, key = self._draft, self._key(record, job, kind)
        if key in self._no_free or draft.breach(job, kind):
            return False
        with self.bookings.lifted(self._open_to):
            spot = draft.look(record, job, kind)
            if isinstance(spot, Spot) and not draft.breach(job, kind, spot=spot):
                draft.start(record, job, spot)
                self.on_free.append(record.job)
                return True
        if key is not None:
            self._no_free.add(key)
        return False

    def _on_several(self, record: JobRecord, job: Job, types: list[GpuType]) -> bool:
        """Free GPUs of several types, for a job that says it may be so."""
        if not self._mixes(job, types):
            return False
        with self.bookings.lifted(self._open_to):
            spot = mixed_spot(self._draft, record, job)
            if spot is not None:
                self._draft.start(record, job, spot)
        return spot is not None

    def _mixes(self, job: Job, types: list[GpuType]) -> bool:
        """It may use several types at once, and none of them is kept for others."""
        return job.mixed_types and len(types) >= max(2, len(self._draft.access.types_for(job)))

    def _on_several_releasing(self, record: JobRecord, job: Job, types: list[GpuType]) -> bool:
        """GPUs of several types, some of them being released."""
        draft = self._draft
        if not self._mixes(job, types) or not any(draft.releasing(kind) for kind in types):
            return False
        with self.bookings.lifted(self._open_to):
            spot = mixed_after(draft, record, job)
            if spot is not None:
                draft.promise(record, job, spot, waiting_for(draft, spot))
        return spot is not None

    def _by_preemption_on_several(self, record: JobRecord, job: Job, types: list[GpuType]) -> bool:
        """GPUs of several types, some of them held by lower priorities of its queue."""
        draft = self._draft
        if not self._mixes(job, types) or self._preemptors >= MAX_PREEMPTORS:
            return False
        unsure(draft.now)  # who goes there is tried in the order of what they have lost by now
        with self.bookings.lifted(self._open_to):
            found = mixed_victims(draft, record, job, [self.rights.claim(job, kind) for kind in types])
            if found is None:
                return False
            spot, gangs = found
            victims = tuple(sorted(one.record.job for one in gangs))
            for victim in victims:
                draft.evict(draft.records[victim], record.job)
            self._disturbed(job, victims)
            waits, lost = {*waiting_for(draft, spot), *victims}, sum(one.lost for one in gangs)
            gap = (("lost", int(lost)), ("lostAtLeast", 0)) if len(victims) > 1 else ()
            draft.promise(record, job, spot, waits, victims=victims, unproved=gap)
            return True

    def _on_releasing(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """Free GPUs and those already being released and promised to nobody: a promise without victims."""
        draft, key = self._draft, self._key(record, job, kind)
        leaving = draft.releasing(kind)
        if not leaving or key in self._no_releasing or draft.breach(job, kind, promised=True):
            return False
        with self.bookings.lifted(self._open_to):
            with draft.charges.without(leaving, kind):
                spot = draft.look(record, job, kind)
            if isinstance(spot, Spot) and not draft.breach(job, kind, promised=True, spot=spot):
                draft.promise(record, job, spot, waiting_for(draft, spot))
                return True
        if key is not None:
            self._no_releasing.add(key)
        return False

    def _on_spares(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """GPUs that a gang it could take from holds for its repair."""
        if not self._has_spares:
            return False
        with self.bookings.lifted(self._open_to):
            spot = yield_spares(self._draft, record, job, kind, self.rights.claim(job, kind))
            if spot is not None:
                self.rights.standing.forget()  # others hold less now
                self._draft.start(record, job, spot)
        return spot is not None

    def _by_shrinking(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """Elastic gangs become smaller."""
        draft = self._draft
        if self._preemptors >= MAX_PREEMPTORS or not self._has_elastic:
            return False
        with self.bookings.lifted(self._open_to):
            found = find_shrinks(draft, record, job, kind, self.rights.claim(job, kind), self._cuts)
            if found is None or self._soon(record, job, kind, found.jobs):
                return False
            for gang in found.gangs:
                shrink(draft, gang, record.job)
            self._promise(record, job, found.spot, found.jobs)
            return True

    def _by_moving(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """A few small gangs step aside. Who moves minds all bookings: its end is another."""
        draft = self._draft
        if self._preemptors >= MAX_PREEMPTORS:
            return False
        found = find_moves(draft, record, job, kind, self._movable, self._cuts)
        if found is None or self._soon(record, job, kind, found.jobs):
            return False
        for key, spot in found.spots.items():
            move(draft, draft.records[key], spot, record.job)
        self._promise(record, job, found.spot, found.jobs)
        return True

    def _soon(self, record: JobRecord, job: Job, kind: GpuType, disturbed: tuple[JobKey, ...]) -> bool:
        """Time limits start it just as soon; then nobody is disturbed for it."""
        at = starts_soon(self._draft, record, job, kind, disturbed)
        if at is not None:
            self.soon[record.job] = at
            unsure(self._draft.now)  # those who were to go were chosen by what they have lost by now
        return at is not None

    def _promise(self, record: JobRecord, job: Job, spot: Spot, disturbed: tuple[JobKey, ...]) -> None:
        """The gang waits for what those who were told to step aside still hold of its spot."""
        self._disturbed(job, disturbed)
        waits = {*waiting_for(self._draft, spot), *disturbed}
        self._draft.promise(record, job, spot, waits, unproved=tuple(self._cuts.items()))

    def _disturbed(self, job: Job, gangs: tuple[JobKey, ...]) -> None:
        """These were told to stop for it: what they free beyond the need belongs to nobody, and everything is to be
        tried anew."""
        self._arrays.disturbed(job)
        self._preemptors += 1
        self.rights.standing.forget(gangs)
        self._movable.forget(gangs)
        self._no_releasing.clear()
        self._hopeless.clear()

    def _by_preemption(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """The mildest lawful set of gangs gives way, unless time limits start it just as soon."""
        draft = self._draft
        if self._preemptors >= MAX_PREEMPTORS:
            return False
        claim = self.rights.claim(job, kind)
        if is_hopeless(draft, job, kind, claim):
            return False
        if not self.rights.standing.effort.begin(passed_over=was_passed_over(record), in_turn=self._in_turn):
            self._untried.add(record.job)
            unsure(draft.now)
            return False
        with self.bookings.lifted(self._open_to):
            found = find_victims(draft, record, job, kind, claim)
            if isinstance(found, Nobody):
                if not found.proved:
                    self._cut_short.add(record.job)
                    unsure(draft.now)
                return False
            if self._soon(record, job, kind, found.jobs):
                return False
            self._take_from(record, job, found, claim)
            return True

    def _take_from(self, record: JobRecord, job: Job, found: Victims, claim: Claim) -> None:
        """These go, or become smaller where that is enough, and the gang is promised their place."""
        draft = self._draft
        blend = with_shrinks(draft, record, job, claim.gpu_type, claim, found) if self._has_elastic else None
        found, shrunk = (blend.victims, blend.shrunk) if blend is not None else (found, ())
        for victim in found.jobs:
            draft.evict(draft.records[victim], record.job, found.causes[victim])
        for gang in shrunk:
            shrink(draft, gang, record.job)
        disturbed = (*found.jobs, *(gang.candidate.record.job for gang in shrunk))
        self._disturbed(job, disturbed)
        waits = {*waiting_for(draft, found.spot), *disturbed}
        gap = () if found.proved else (("lost", int(found.lost)), ("lostAtLeast", int(found.bound)))
        draft.promise(record, job, found.spot, waits, victims=found.jobs, unproved=(*gap, *self._cuts.items()))
