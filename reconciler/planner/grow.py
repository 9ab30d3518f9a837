"""Which elastic gangs become larger, now that everyone who waited was looked at?

Rule book §2.8: in pass order, those that no protection keeps from being disturbed (so that the last resize lies back
`minRuntime` and `cooldown`), into free GPUs that nobody else could use: none while a job waits for such GPUs, and
none that a promise, reservation or hold has. A gang keeps its seats and gets whole groups beside them; it saves its
work, stops, and goes on larger.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from reconciler.model.allocation import JobRecord, Placement
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import GpuType
from reconciler.planner import elastic, steps
from reconciler.planner.draft import Draft
from reconciler.planner.protection import Shields
from reconciler.planner.replacement import completed, lost_parts, usable_part

TRIES: Final = 64  # sizes tried, in one decision


def grow(draft: Draft) -> None:
    """Let elastic gangs grow where that takes nothing from anyone."""
    candidates = [] if draft.desired.blocked else _below_full_size(draft)
    if not candidates:
        return
    wanted = waited_for(draft)
    tries = 0
    for record, job in sorted(candidates, key=lambda one: draft.line(*one)):
        kind = draft.charges.types[record.job]
        for larger in elastic.sizes_of(job):
            if kind in wanted or larger.gpus <= record.gpus_held or tries >= TRIES:
                break
            if draft.shares.why(job, larger.gpus - record.gpus_held, jobs=0) is not None:
                continue
            tries += 1
            place = _larger_place(draft, record, job, larger, kind)
            if place is not None:
                lost = steps.lost_gpu_seconds(record, draft.observed, draft.now)
                why = reason(ReasonCode.RESIZED, gpus=larger.gpus, held=record.gpus_held, purpose="", lost=lost)
                draft.displace(record, Cause.RESIZED, place, why)
                break


def _below_full_size(draft: Draft) -> list[tuple[JobRecord, Job]]:
    shields = Shields(draft)
    found = []
    for record in draft.records.values():
        job = draft.job(record) if record.state is JobState.RUNNING else None
        if job is None or job.elastic is None or record.job not in draft.charges.types or not draft.is_queue(job.queue):
            continue
        if draft.desired.request_about(record.job) is not None:
            continue
        if record.gpus_held < elastic.sizes_of(job)[0].gpus and not shields.of(record, job).by:
            found.append((record, job))
    return found


def waited_for(draft: Draft) -> set[GpuType]:
    """Types for which some candidate waits: what is free of them may be what it needs next."""
    found: set[GpuType] = set()
    for record in draft.records.values():
        job = draft.job(record) if record.state in (JobState.PENDING, JobState.REPAIRING) else None
        if job is not None:
            found.update(draft.access.types_for(job))
    return found


def _larger_place(draft: Draft, record: JobRecord, job: Job, larger: Job, kind: GpuType) -> Placement | None:
    """Its own seats, under the numbers its ranks get, and free GPUs beside them."""
    more = larger.gpus - record.gpus_held
    if record.placement is None or draft.supply.engines[kind].free_gpus() < more:
        return None
    if draft.quotas.breach(job.queue, kind, more, fixed=draft.is_fixed(job)) is not None:
        return None
    had = elastic.steps_of(elastic.at_size(job, record.gpus_held))
    kept = [rank for rank, group in enumerate(elastic.coordinates(larger)) if group < had]
    if len(kept) != record.gpus_held:
        return None
    rest = [replace(place, rank=rank) for place, rank in zip(record.placement.ranks, kept, strict=True)]
    parts = lost_parts(draft, rest, None, larger.gpus)
    shut = draft.access.refused(larger) | draft.access.drained(larger)
    if len(usable_part(draft, rest, shut)) < len(rest):
        return None  # it could not start again where it is
    return completed(draft, larger, kind, rest, parts, shut) if parts else None
