"""How does one job start, first way that works: on free GPUs, on GPUs being released, by asking others to leave?

One sweep over the candidates, in the order given; nobody is looked at twice. A way that does less harm wins outright.
Free GPUs only become fewer during a sweep, so a shape that failed once is not searched again: ten thousand alike
jobs cost one search. Why a job that waits does wait is for `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.units import GpuType
from reconciler.planner import explain
from reconciler.planner.draft import Draft
from reconciler.planner.placement import Shape, Spot, shape_of
from reconciler.planner.preemption import Standing, find_victims, may_preempt
from reconciler.planner.promise import waiting_for, waits_for_preemptor
from reconciler.topology.tree import NodeMask

MAX_PREEMPTORS: Final = 32  # jobs a round for which victims are searched and found

Candidates = Iterable[tuple[JobRecord, Job]]
_Demand = tuple[Shape, GpuType, NodeMask]


class Sweep:
    """One pass over the candidates, and what it has learnt on the way."""

    __slots__ = ("_draft", "_hopeless", "_never", "_no_free", "_no_releasing", "_preemptors", "standing")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._never = explain.Never(draft)
        self._hopeless: set[explain.Likes] = set()  # tried in every way since anything was released
        self._no_free: set[_Demand] = set()
        self._no_releasing: set[_Demand] = set()
        self._preemptors = 0
        self.standing = Standing(draft)

    def run(self, candidates: Candidates) -> list[tuple[JobRecord, Job, explain.Likes]]:
        """Start or promise whoever can be; the others are returned, in order, with what makes them alike."""
        waiting = []
        for record, job in candidates:
            alike = explain.likes(self._draft, job)
            after = waits_for_preemptor(self._draft, record) if record.preemptor is not None else None
            if after is not None:
                explain.settle_waiting(self._draft, record, after)
            elif alike in self._hopeless and not record.avoid:
                waiting.append((record, job, alike))
            elif (never := self._never.why(job)) is not None:
                explain.settle_waiting(self._draft, record, never)
            elif not self._start(record, job):
                waiting.append((record, job, alike))
                if not record.avoid:
                    self._hopeless.add(alike)
        return waiting

    def _start(self, record: JobRecord, job: Job) -> bool:
        types = self._draft.types_for(job)
        return (
            any(self._on_free(record, job, kind) for kind in types)
            or any(self._on_releasing(record, job, kind) for kind in types)
            or any(self._by_preemption(record, job, kind) for kind in types)
        )

    def _key(self, record: JobRecord, job: Job, kind: GpuType) -> _Demand | None:
        """What failed for this fails for all its likes. A job that avoids nodes has no likes."""
        return None if record.avoid else (shape_of(job), kind, self._draft.drained(job))

    def _on_free(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """Free GPUs: nothing and nobody is disturbed."""
        draft, key = self._draft, self._key(record, job, kind)
        if key in self._no_free or draft.quotas.breach(job.queue, kind, job.gpus):
            return False
        spot = draft.look(record, job, kind)
        if isinstance(spot, Spot):
            draft.start(record, job, spot)
            return True
        if key is not None:
            self._no_free.add(key)
        return False

    def _on_releasing(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """Free GPUs and those already being released and promised to nobody: a promise without victims."""
        draft, key = self._draft, self._key(record, job, kind)
        leaving = draft.releasing(kind)
        if not leaving or key in self._no_releasing or draft.quotas.breach(job.queue, kind, job.gpus):
            return False
        with draft.without(leaving, kind):
            spot = draft.look(record, job, kind)
        if isinstance(spot, Spot):
            draft.promise(record, job, spot, waiting_for(draft, spot))
            return True
        if key is not None:
            self._no_releasing.add(key)
        return False

    def _by_preemption(self, record: JobRecord, job: Job, kind: GpuType) -> bool:
        """The mildest set of lower gangs of its queue gives way."""
        draft = self._draft
        if self._preemptors >= MAX_PREEMPTORS or not may_preempt(draft, job):
            return False
        able, _ = self.standing.below(job.queue, draft.priority(job), kind)
        found = find_victims(draft, record, job, kind, able) if able else None
        if found is None:
            return False
        self._preemptors += 1
        for victim in found.jobs:
            draft.evict(draft.records[victim], record.job)
        self.standing.forget()
        self._no_releasing.clear()  # what the victims free beyond the need belongs to nobody
        self._hopeless.clear()
        waits = {*waiting_for(draft, found.spot), *found.jobs}
        gap = () if found.proved else (("lost", int(found.lost)), ("lostAtLeast", int(found.bound)))
        draft.promise(record, job, found.spot, waits, victims=found.jobs, unproved=gap)
        return True
