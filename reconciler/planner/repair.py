"""How does a gang that lost nodes come back? Before any new work, and without taking anything from anyone.

Runs once the loss is fenced and every rank was seen released; what is left of the gang is kept for it meanwhile
(Repairing). In this order, rule book §9: the lost ranks on other nodes, nearest first, while all others keep their
seats; the whole gang anew on free capacity, its own GPUs being free; an elastic gang without its broken groups; the
rest is kept for `repairWait`, when there is a checkpoint to come back to; then the gang waits with its old age, first
in its queue at equal priority, with ordinary rights (`order`, `admit`). A second loss starts over from the first.
What was promised to others is theirs. Reservations and holds do not count here: they are booked after it.
"""

from __future__ import annotations

from dataclasses import replace

from reconciler.model.allocation import JobRecord, Placement
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import GpuType, Instant, Nanoseconds
from reconciler.planner import elastic
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks
from reconciler.planner.order import Candidate
from reconciler.planner.placement import Spot, avoided_nodes
from reconciler.planner.ranks import obeys, placement_at, placement_of
from reconciler.planner.replacement import completed, lost_parts, usable_part


def repair_broken(draft: Draft) -> None:
    """Every broken gang comes back, waits for a replacement or is pending again; first in line first."""
    broken: list[Candidate] = []
    for record in draft.records.values():
        waits = record.state is JobState.PENDING and record.cause is Cause.NODE_LOST and not draft.desired.blocked
        if waits or record.state is JobState.REPAIRING:
            job = draft.job(record)
            if job is not None:
                broken.append((record, job))
    for record, job in sorted(broken, key=lambda one: draft.line(*one)):
        if record.state is JobState.REPAIRING and record.placement is not None:
            _Repair(draft, record, job, record.placement).run()
        else:
            _anew(draft, record, job)


def _anew(draft: Draft, record: JobRecord, job: Job) -> None:
    """Nothing is left of it: the whole gang on free capacity."""
    for sized in elastic.sizes_of(job):
        if draft.shares.why(sized, sized.gpus) is not None:
            continue
        for gpu_type in draft.access.types_for(sized):
            if draft.breach(sized, gpu_type):
                continue
            spot = draft.look(record, sized, gpu_type)
            if isinstance(spot, Spot):
                draft.start(record, sized, spot)
                return


class _Repair:
    """One broken gang that still holds a part of itself."""

    __slots__ = ("_draft", "_file", "_job", "_kind", "_record", "_rest", "_shut")

    def __init__(self, draft: Draft, record: JobRecord, job: Job, rest: Placement) -> None:
        size = len(record.whole.ranks) if record.whole is not None else job.gpus
        self._draft, self._record, self._file = draft, record, job
        self._job = elastic.at_size(job, size)
        self._kind: GpuType | None = draft.ground.type_at(gang_masks(record))
        self._shut = draft.access.refused(job) | draft.access.drained(job)
        index_of, promised = draft.ground.tree.index_of, draft.supply.promised
        usable = usable_part(draft, rest.ranks, self._shut)
        self._rest = tuple(place for place in usable if not promised[index_of[place.node]] >> place.gpu & 1)

    def run(self) -> None:
        """The first way that works."""
        draft, record = self._draft, self._record
        if record.placement is not None and len(self._rest) < len(record.placement.ranks):  # lost more meanwhile
            if not self._rest or self._kind is None:
                self._give_up()
                return
            self._record = draft.shrink_rest(record, replace(record.placement, ranks=self._rest))
        if record.retry_at is not None and record.retry_at > draft.now:
            return
        if not draft.is_queue(self._file.queue):
            self._give_up()
            return
        place = self._with_replacements() or self._whole_anew()
        if place is not None:
            draft.restart_at(self._record, self._job, place)
        elif not self._smaller() and not self._waits():
            self._give_up()

    def _with_replacements(self) -> Placement | None:
        """All others keep their seats: lost ranks go on its own spares, else on any free GPUs. Nodes it avoids come back
        one by one, oldest first, if need be."""
        record, kind, draft = self._record, self._kind, self._draft
        parts = lost_parts(draft, self._rest, record.whole, self._job.gpus)
        if parts is None or kind is None or self._outgrows_quota(self._job.gpus - record.gpus_bound):
            return None
        index_of = draft.ground.tree.index_of
        spare = sum(1 << index_of[one.node] for one in record.spares)
        with draft.charges.without_parts([(record, {one.node: one.mask for one in record.spares})], kind):
            for others in (~spare, 0) if spare else (0,):
                for avoided in avoided_nodes(record.avoid, draft.ground, draft.now):
                    place = completed(draft, self._job, kind, self._rest, parts, self._shut | avoided | others)
                    if place is not None:
                        return place
        return None

    def _outgrows_quota(self, more: int) -> bool:
        """It was charged for all of itself before; others may have had that since."""
        draft, kind = self._draft, self._kind
        if kind is None or more <= 0:
            return False
        if draft.shares.why(self._job, more, jobs=0) is not None:
            return True
        return draft.quotas.breach(self._job.queue, kind, more, fixed=draft.is_fixed(self._job)) is not None

    def _whole_anew(self) -> Placement | None:
        """The whole gang on free capacity, its own healthy GPUs among it."""
        draft, kind = self._draft, self._kind
        if draft.shares.why(self._job, self._job.gpus - len(self._rest), jobs=0) is not None:
            return None
        for gpu_type in draft.access.types_for(self._job):
            more = self._job.gpus - (len(self._rest) if gpu_type == kind else 0)
            if draft.quotas.breach(self._job.queue, gpu_type, more, fixed=draft.is_fixed(self._job)):
                continue
            with draft.charges.without([self._record] if gpu_type == kind else [], gpu_type):
                spot = draft.look(self._record, self._job, gpu_type)
            if isinstance(spot, Spot):
                return placement_of(draft.ground, self._job, spot)
        return None

    def _smaller(self) -> bool:
        """An elastic gang without its broken groups, where the others are."""
        present = {place.rank: place for place in self._rest}
        groups = elastic.coordinates(self._job)
        gone = {group for rank, group in enumerate(groups) if rank not in present}
        left = elastic.without_groups(self._job, gone) if elastic.FIXED not in gone else None
        if left is None:
            return False
        smaller, kept = left
        index_of = self._draft.ground.tree.index_of
        seats = [(index_of[present[rank].node], present[rank].gpu) for rank in kept]
        place = placement_at(self._draft.ground, smaller, seats)
        if not obeys(self._draft.ground, smaller, place):
            return False
        self._draft.restart_at(self._record, smaller, place)
        return True

    def _waits(self) -> bool:
        """The rest is kept for a while, when there is a checkpoint for which it is worth it."""
        draft, record = self._draft, self._record
        wait = draft.desired.scheduling.repair_wait if self._file.checkpoint is not None else Nanoseconds(0)
        until = Instant(record.since + wait)
        if draft.now >= until:
            return False
        missing = self._job.gpus - len(self._rest)
        why = reason(ReasonCode.REPAIR_WAIT, missing=missing, need=self._job.gpus, until=until)
        draft.put(replace(draft.records[record.job], reason=why))
        return True

    def _give_up(self) -> None:
        """What is left of it is free for all; it waits with its old age."""
        record = self._record
        missing = self._job.gpus - len(self._rest)
        why = reason(ReasonCode.REPAIR_WAIT, missing=missing, need=self._job.gpus, until=self._draft.now)
        self._draft.give_up(record, why)
