"""Do the promises still hold, and has one come true?

A promise is made once and its target does not move while everything on it can still be released. It comes true when
every GPU of the target was seen released, even while admissions are frozen. When the target loses a part the good
part stays and the rest is made up without new victims, or the promise falls. Rule book §8. A victim does not start again before its preemptor has, or before the
promise fell.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.model.allocation import JobRecord, Placement, Promise
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import GpuType, JobKey, NodeName
from reconciler.planner import elastic
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks
from reconciler.planner.memo import masks_of
from reconciler.planner.placement import Spot, avoided_nodes
from reconciler.planner.ranks import obeys
from reconciler.planner.replacement import completed, lost_parts, masks_by_node, usable_part


def keep_promises(draft: Draft) -> None:
    """Every promise in the order it was made: started, kept as it is, mended, or dropped."""
    promised = [(r.promise.made, r.job) for r in draft.records.values() if r.promise is not None]
    for _, key in sorted(promised):
        record = draft.records[key]
        job = draft.job(record)
        if record.promise is None or job is None:
            continue
        sized = elastic.at_size(job, len(record.promise.placement.ranks))
        if not _target_is_sound(draft, sized, record.promise):
            _mend_or_drop(draft, record, sized, record.promise)
        elif record.state is JobState.PROMISED and _all_released(draft, record.promise):
            draft.start_promised(record, sized)


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
    wanted: dict[NodeName, int] = {}
    for index, mask in spot.rows:
        name = draft.ground.nodes[index].name
        wanted[name] = wanted.get(name, 0) | mask
    return leaving_from(draft, wanted)


def leaving_from(draft: Draft, wanted: Mapping[NodeName, int]) -> tuple[JobKey, ...]:
    """Gangs on their way out that still hold some of these GPUs, in code point order."""
    return tuple(
        sorted(
            r.job
            for kind in draft.ground.types
            for r in draft.releasing(kind)
            if any(mask & wanted.get(node, 0) for node, mask in gang_masks(r).items())
        )
    )


def _target_is_sound(draft: Draft, job: Job, promise: Promise) -> bool:
    """Every node of the target is open, healthy and still right for the job as its file stands now, and no gang on its
    GPUs is overdue with its leaving."""
    index_of, usable, target = draft.ground.tree.index_of, draft.supply.usable, masks_of(promise.placement)
    shut = draft.access.closed_to(job)
    for node, mask in target.items():
        index = index_of.get(node)
        if index is None or shut >> index & 1 or mask & ~usable[index]:
            return False
    if any(mask & target.get(node, 0) for gang in draft.stuck for node, mask in gang_masks(gang).items()):
        return False
    return obeys(draft.ground, job, promise.placement)


def _all_released(draft: Draft, promise: Promise) -> bool:
    """No GPU of the target is held, and no victim still counts at the queue's ceiling."""
    index_of, held = draft.ground.tree.index_of, draft.supply.held
    if any(held[index_of[node]] & mask for node, mask in promise.placement.masks.items()):
        return False
    records = (draft.records.get(key) for key in promise.waiting_for)
    return not any(r is not None and r.state is JobState.STOPPING for r in records)


def _mend_or_drop(draft: Draft, record: JobRecord, job: Job, promise: Promise) -> None:
    """The target lost a part: free and releasing GPUs may complete it, new victims may not. Else pending again.

    A gang that was to go on elsewhere and still stops only loses its promise.
    """
    if record.state is JobState.STOPPING:
        draft.forget_promise(record)
        return
    blocked = draft.desired.blocked
    why = reason(ReasonCode.ADMISSIONS_FROZEN, file=blocked) if blocked else reason(ReasonCode.CAPACITY)
    pending = draft.drop_promise(record, why)
    kind = draft.ground.type_at(masks_of(promise.placement))
    if blocked or kind is None or draft.breach(job, kind, promised=True) is not None:
        return
    place = _mended(draft, pending, job, kind, promise.placement)
    if place is None:
        return
    waits = leaving_from(draft, masks_of(place))
    if waits or draft.breach(job, kind) is not None:
        draft.promise_at(pending, place, waits, victims=record.victims, made=promise.made)
    else:
        draft.start_at(pending, job, place)


def _mended(draft: Draft, record: JobRecord, job: Job, kind: GpuType, target: Placement) -> Placement | None:
    """The good part where it is, and what is missing on free GPUs, or else on GPUs that are being released too."""
    shut = draft.access.refused(job) | draft.access.drained(job)
    late = [gang_masks(gang) for gang in draft.stuck]
    rest = tuple(
        place
        for place in usable_part(draft, target.ranks, shut)
        if not any(masks.get(place.node, 0) >> place.gpu & 1 for masks in late)
    )
    parts = lost_parts(draft, rest, target, job.gpus) if rest else None
    if not parts:
        return None
    engine = draft.supply.engines[kind]
    for leaving in ([], draft.releasing(kind)):
        for avoided in avoided_nodes(record.avoid, draft.ground, draft.now):
            with draft.charges.without(leaving, kind):
                for node, mask in masks_by_node(draft, rest).items():
                    free = mask & engine.free_mask(node)
                    if free:
                        engine.take(node, free)
                place = completed(draft, job, kind, rest, parts, shut | avoided)
            if place is not None:
                return place
    return None
