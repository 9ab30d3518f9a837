"""Do the promises still hold, and has one come true?

A promise is made once and its target does not move while everything on it can still be released. It comes true when
every GPU of the target was seen released, even while admissions are frozen, and falls when the target cannot be
completed without new victims. Rule book §8. A victim does not start again before its preemptor has, or before the
promise fell.
"""

from __future__ import annotations

from reconciler.model.allocation import JobRecord, Promise
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import JobKey
from reconciler.planner.draft import Draft
from reconciler.planner.memo import masks_of
from reconciler.planner.placement import Spot
from reconciler.planner.ranks import obeys


def keep_promises(draft: Draft) -> None:
    """Every promise in the order it was made: started, kept as it is, made good elsewhere, or dropped."""
    promised = [(r.promise.made, r.job) for r in draft.records.values() if r.promise is not None]
    for _, key in sorted(promised):
        record = draft.records[key]
        job = draft.job(record)
        if record.promise is None or job is None:
            continue
        if not _target_is_sound(draft, job, record.promise):
            _elsewhere(draft, record, job, record.promise)
        elif _all_released(draft, record.promise):
            draft.start_promised(record, job)


def waits_for_preemptor(draft: Draft, record: JobRecord) -> Reason | None:
    """AfterPreemptor while the gang that evicted it is still promised its place."""
    if record.preemptor is None:
        return None
    preemptor = draft.records.get(record.preemptor)
    if preemptor is None or preemptor.state is not JobState.PROMISED:
        return None
    return reason(ReasonCode.AFTER_PREEMPTOR, preemptor=record.preemptor)


def waiting_for(draft: Draft, spot: Spot) -> tuple[JobKey, ...]:
    """Gangs on their way out that still hold GPUs of a spot, in code point order."""
    wanted: dict[str, int] = {}
    for index, mask in spot.rows:
        name = draft.ground.nodes[index].name
        wanted[name] = wanted.get(name, 0) | mask
    return tuple(
        sorted(
            r.job
            for r in draft.releasing(spot.gpu_type)
            if any(mask & wanted.get(node, 0) for node, mask in draft.masks(r).items())
        )
    )


def _target_is_sound(draft: Draft, job: Job, promise: Promise) -> bool:
    """Every node of the target is open, healthy and still right for the job as its file stands now, and no gang on its
    GPUs is overdue with its leaving."""
    index_of, usable, target = draft.ground.tree.index_of, draft.supply.usable, masks_of(promise.placement)
    shut = draft.refused(job) | draft.drained(job)
    for node, mask in target.items():
        index = index_of.get(node)
        if index is None or shut >> index & 1 or mask & ~usable[index]:
            return False
    if any(mask & target.get(node, 0) for gang in draft.stuck for node, mask in draft.masks(gang).items()):
        return False
    return obeys(draft.ground, job, promise.placement)


def _all_released(draft: Draft, promise: Promise) -> bool:
    """No GPU of the target is held, and no victim still counts at the queue's ceiling."""
    index_of, held = draft.ground.tree.index_of, draft.supply.held
    if any(held[index_of[node]] & mask for node, mask in promise.placement.masks.items()):
        return False
    records = (draft.records.get(key) for key in promise.waiting_for)
    return not any(r is not None and r.state is JobState.STOPPING for r in records)


def _elsewhere(draft: Draft, record: JobRecord, job: Job, promise: Promise) -> None:
    """The target lost a part: free and releasing GPUs may complete it, new victims may not. Else pending again."""
    blocked = draft.desired.blocked
    why = reason(ReasonCode.ADMISSIONS_FROZEN, file=blocked) if blocked else reason(ReasonCode.CAPACITY)
    pending = draft.drop_promise(record, why)
    for gpu_type in draft.types_for(job) if not blocked else ():
        if draft.quotas.breach(job.queue, gpu_type, job.gpus):
            continue
        spot = draft.look(pending, job, gpu_type)
        if isinstance(spot, Spot):
            draft.start(pending, job, spot)
            return
        with draft.without(draft.releasing(gpu_type), gpu_type):
            spot = draft.look(pending, job, gpu_type)
        if isinstance(spot, Spot):
            draft.promise(pending, job, spot, waiting_for(draft, spot), victims=record.victims, made=promise.made)
            return
