"""Which nodes are gathered for a job that has waited too long?

A hold is for a starved job that could not start and that no reservation serves, because nobody knows when its nodes
come back. Its target is chosen once, kept in the job's record, and chosen anew only when it can no longer hold the
job. Free GPUs of the target are for it alone; a job that is over before the target can be complete may use them,
when that instant is known. The oldest hold of a GPU type always stands; more only within `holdMaxShare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from reconciler.model.allocation import Hold, JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import GpuType, Instant, JobKey
from reconciler.planner import ranks
from reconciler.planner.backfill import Bookings
from reconciler.planner.draft import Draft
from reconciler.planner.memo import masks_of
from reconciler.planner.placement import Spot
from reconciler.planner.profile import NEVER, NOW
from reconciler.planner.reservation import spot_of
from reconciler.planner.rights import Rights
from reconciler.topology.tree import GpuMask, NodeIndex

MOST: Final = 8  # holds of one GPU type
TRIED: Final = 32  # jobs a round for which a hold because of young victims is looked for
_WHOLE: Final = 1_000_000


class Holds:
    """The holds of one decision: which of those known stand, and who gets a new one."""

    __slots__ = ("_bookings", "_counts", "_draft", "_gpus", "_standing", "_tried", "_young")

    def __init__(self, draft: Draft, bookings: Bookings) -> None:
        self._draft, self._bookings = draft, bookings
        self._gpus: dict[GpuType, int] = {}
        self._counts: dict[GpuType, int] = {}
        self._standing: set[JobKey] = set()
        self._young: bool | None = None
        self._tried = 0
        known = [(r.hold.since, r.job) for r in draft.records.values() if r.hold is not None]
        for _, key in sorted(known):
            record = draft.records[key]
            kind = draft.ground.type_at(masks_of(record.hold.placement)) if record.hold is not None else None
            if record.hold is not None and kind is not None and self._room(kind, len(record.hold.placement.ranks)):
                self._count(kind, len(record.hold.placement.ranks))
                self._standing.add(key)

    def _room(self, kind: GpuType, gpus: int) -> bool:
        """The first of a type always; more while all of them together stay within their share."""
        if not self._counts.get(kind):
            return True
        share = self._draft.desired.scheduling.hold_max_share_ppm * self._draft.ground.declared[kind]
        return self._counts[kind] < MOST and (self._gpus[kind] + gpus) * _WHOLE <= share

    def _count(self, kind: GpuType, gpus: int) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._gpus[kind] = self._gpus.get(kind, 0) + gpus

    def _uncount(self, job: JobKey, hold: Hold) -> None:
        kind = self._draft.ground.type_at(masks_of(hold.placement))
        self._standing.discard(job)
        if kind is not None:
            self._counts[kind] -= 1
            self._gpus[kind] -= len(hold.placement.ranks)

    def is_due(self, record: JobRecord) -> bool:
        """It has waited long enough to be held for, or is held for already."""
        return record.submitted <= self._draft.now - self._draft.desired.scheduling.hold_for_starved_after

    def gather(self, record: JobRecord, job: Job) -> JobRecord:
        """The job with its hold, kept or chosen anew, claimed from now on; without one when there is no room."""
        kept = record.hold if record.job in self._standing else None
        if kept is not None and not self._is_sound(record, job):
            self._uncount(record.job, kept)
            kept = None
        if kept is None:
            chosen = self._choose(record, job)
            if chosen is None:
                return self.drop(record)
            record = replace(record, hold=chosen)
            self._draft.put(record)
            kept = chosen
        draft, masks = self._draft, self._indexed(kept)
        kind = draft.ground.type_at(masks_of(kept.placement))
        if kind is not None:
            self._bookings.hold(record, job, kind, masks, self._complete_at(kind, masks))
        return record

    def gather_protected(self, record: JobRecord, job: Job, rights: Rights) -> JobRecord | None:
        """The job with a hold at once, when only protections that end soon are in its way: fresh borrowers, each young,
        would keep it out for ever. None when that is not so."""
        draft = self._draft
        if self._young is None:
            self._young = _somebody_is_young(draft)
        if not self._young or self._tried >= TRIED:
            return None
        latest = draft.now + draft.desired.scheduling.max_min_runtime
        for kind in draft.access.types_for(job):
            if not self._room(kind, job.gpus):
                continue
            claim = rights.claim(job, kind)
            soon = [one.record for one in claim.kept if one.until is not None and one.until <= latest]
            if not soon:
                continue
            self._tried += 1
            able = [one.record for one in claim.greedy(claim.able)]
            with draft.charges.without([*draft.releasing(kind), *able, *soon], kind):
                spot = draft.look(record, job, kind) if draft.breach(job, kind, promised=True) is None else None
            if isinstance(spot, Spot):
                self._count(kind, job.gpus)
                self._standing.add(record.job)
                held = replace(
                    record, hold=Hold(placement=ranks.placement_of(draft.ground, job, spot), since=draft.now)
                )
                draft.put(held)
                return self.gather(held, job)
        return None

    def drop(self, record: JobRecord) -> JobRecord:
        """The job without a hold."""
        if record.hold is None:
            return record
        without = replace(record, hold=None)
        self._draft.put(without)
        return without

    def _indexed(self, hold: Hold) -> Mapping[NodeIndex, GpuMask]:
        index_of = self._draft.ground.tree.index_of
        return {index_of[node]: mask for node, mask in masks_of(hold.placement).items()}

    def _is_sound(self, record: JobRecord, job: Job) -> bool:
        """The target can still hold the job: open, healthy, right for it, and promised to nobody."""
        draft, hold = self._draft, record.hold
        if hold is None or not ranks.obeys(draft.ground, job, hold.placement):
            return False
        if len(hold.placement.ranks) != job.gpus:
            return False
        shut = draft.access.refused(job) | draft.access.drained(job)
        supply, index_of = draft.supply, draft.ground.tree.index_of
        for node, mask in masks_of(hold.placement).items():
            index = index_of.get(node)
            if index is None or shut >> index & 1 or mask & ~supply.usable[index] or mask & supply.promised[index]:
                return False
            if mask & supply.claimed[index]:
                return False
        return True

    def _choose(self, record: JobRecord, job: Job) -> Hold | None:
        """The target with fewest missing GPUs over all types it may use."""
        draft, best, best_kind = self._draft, None, None
        for kind in draft.access.types_for(job):
            if not self._room(kind, job.gpus):
                continue
            found = self._bookings.planner.target(record, job, kind)
            if found is not None and (best is None or (found.missing, found.at) < (best.missing, best.at)):
                best, best_kind = found, kind
        if best is None or best_kind is None:
            return None
        place = ranks.placement_of(draft.ground, job, spot_of(best, best_kind))
        self._count(best_kind, job.gpus)
        self._standing.add(record.job)
        return Hold(placement=place, since=draft.now)

    def _complete_at(self, kind: GpuType, masks: Mapping[NodeIndex, GpuMask]) -> Instant:
        """The first instant at which every GPU of the target is free; 0, so nobody's, when one of them is not known."""
        profile, last = self._bookings.planner.profile(kind), NOW
        for node, mask in masks.items():
            known = 0
            for since, gpus in profile.rows(node):
                if gpus & mask and since < NEVER:
                    known |= gpus & mask
                    last = max(last, since)
            if known != mask:
                return NOW
        return last


def _somebody_is_young(draft: Draft) -> bool:
    """A running gang may be protected by the clock: it began or was disturbed not long ago."""
    rules = draft.desired.scheduling
    longest = max([rules.min_runtime, *(known.min_runtime or 0 for known in draft.desired.classes.values())])
    since = draft.now - min(longest, rules.max_min_runtime)
    running = (record for record in draft.records.values() if record.state is JobState.RUNNING)
    return any(r.interruptions or (longest and (r.started is None or r.started > since)) for r in running)
