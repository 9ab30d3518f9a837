"""What do the files make of every job? One ordered table of buckets, first match, and what each bucket does.

Every job, desired or only remembered, falls into exactly one bucket; the bucket may end it, stop it, hold it or make
it a candidate. Observation has spoken before (`steps.advance`); GPUs are given out after (`decide`). Stops ordered
here are the forced ones: cancelled, changed, suspended, over its limit, drained, its node taken out.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, cast

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import SUBMITTER, Job
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase, check_move
from reconciler.model.observed import Observed, Proof
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.request import Ask
from reconciler.model.tombstones import Tombstone, Tombstones
from reconciler.model.units import Digest, GpuSeconds, Instant, JobKey, QueueName, document_of, seconds
from reconciler.planner import steps
from reconciler.planner.candidacy import FINAL, Case, World, failed_tasks, not_a_candidate
from reconciler.planner.memo import masks_of
from reconciler.planner.requested import why_asked
from reconciler.planner.windows import open_window

_Graves = MutableMapping[JobKey, tuple[Tombstone, ...]]


class Bucket(StrEnum):
    """Where a job stands at the beginning of a decision."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    CHANGED = "changed"
    INVALID = "invalid"
    SUSPENDED = "suspended"
    LOST = "lost"
    STOPPING = "stopping"
    BROKEN = "broken"
    PROMISED = "promised"
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"
    NEW = "new"


def judge_all(
    desired: Desired, observed: Observed, previous: Allocation, now: Instant
) -> tuple[dict[JobKey, JobRecord], Tombstones]:
    """Every job's record after observation and files have spoken, in code point order; and all tombstones.

    A record that nothing speaks about is the previous object itself. A job that is over and has no file is left out.
    """
    scheduling = desired.scheduling
    nodes = frozenset(node.name for node in desired.inventory.nodes)
    advanced = {
        key: steps.advance(record, desired.jobs.get(key), observed, scheduling, now, nodes)
        if record.placement
        else record
        for key, record in previous.jobs.items()
    }
    buried: dict[JobKey, tuple[Tombstone, ...]] = {}  # by this decision; the others are many, and stay as they are
    tombstones = ChainMap(buried, cast("_Graves", previous.tombstones))  # the first alone is ever written to
    for key, record in advanced.items():
        if record.state is JobState.FINISHED and previous.jobs[key].state is not JobState.FINISHED:
            _bury(tombstones, record, observed, now)
    world = World(
        desired=desired, observed=observed, records=advanced, tombstones=tombstones,
        nodes=nodes, now=now, failed=failed_tasks(desired, advanced, tombstones),
    )  # fmt: skip
    records: dict[JobKey, JobRecord] = {}
    for key in sorted({*advanced, *desired.jobs, *desired.invalid}):
        job, known = desired.jobs.get(key), advanced.get(key)
        if known is not None and job is not None and _just_waits(known, job, world):
            records[key] = known
            continue
        case = Case(key=key, job=job, record=known, world=world)
        judged = ACTIONS[bucket_of(case)](case)
        if judged is not None:
            waits = judged.hold is None or judged.state is JobState.PENDING
            records[key] = judged if waits else replace(judged, hold=None)
        _bury_unheld(tombstones, case, judged)
    return records, previous.tombstones.updated(buried)


def _just_waits(record: JobRecord, job: Job, world: World) -> bool:
    """A candidate before and now, with nothing in its file that the table would ask about: most of a long queue."""
    desired = world.desired
    return (
        record.state is JobState.PENDING
        and record.digest == job.digest
        and record.retry_at is None
        and not (job.suspend or job.after or desired.blocked)
        and not (desired.policy and document_of(record.job) in desired.policy)
        and desired.request_about(record.job) is None
        and job.run.user != SUBMITTER
        and (job.task is None or world.ends_unstarted(job, record) is None)
        and (not desired.quotas.queues or job.queue in desired.quotas.queues)
    )


def bucket_of(case: Case) -> Bucket:
    """The first row of the table that matches; a file that says nothing new leaves a job in the bucket of its state."""
    for bucket, matches in RULES:
        if matches(case):
            return bucket
    return BY_STATE[case.state]


def _bury(tombstones: _Graves, record: JobRecord, observed: Observed, now: Instant) -> None:
    """Remember how an incarnation ended. One that never started leaves nothing to remember."""
    if record.outcome is None or not record.attempt:
        return
    stone = Tombstone(job=record.job, digest=record.digest, outcome=record.outcome, at=now, attempts=record.attempt)
    brought = observed.provenance.get(record.job)
    if brought is not None and brought.digest == record.digest and brought.vouched is not Proof.NONE:
        stone = replace(stone, submitter=brought.submitter, vouched=brought.vouched)
    kept = tuple(s for s in tombstones.get(record.job, ()) if s.digest != record.digest)
    tombstones[record.job] = (*kept, stone)


def _bury_unheld(tombstones: _Graves, case: Case, judged: JobRecord | None) -> None:
    """An incarnation that ended without holding anything: cancelled or replaced while it waited."""
    record = case.record
    if record is None or record.state is JobState.FINISHED:
        return
    if judged is None:
        _bury(tombstones, replace(record, outcome=Outcome.CANCELLED), case.world.observed, case.world.now)
    elif judged.digest != record.digest:
        _bury(tombstones, replace(record, outcome=Outcome.REPLACED), case.world.observed, case.world.now)
    elif judged.state is JobState.FINISHED:
        _bury(tombstones, judged, case.world.observed, case.world.now)


# --- the table ---


def _is_finished(case: Case) -> bool:
    record = case.record
    if case.job is not None and (record is None or record.state is JobState.FINISHED):
        if record is not None and record.digest == case.job.digest:
            return record.outcome in FINAL
        stone = case.world.stone(case.key, case.job.digest)
        return stone is not None and stone.outcome in FINAL
    return record is not None and record.state is JobState.FINISHED and case.is_invalid


RULES: Final[tuple[tuple[Bucket, Callable[[Case], bool]], ...]] = (
    (Bucket.FINISHED, _is_finished),  # this incarnation never runs again
    (Bucket.CANCELLED, lambda c: c.job is None and not c.is_invalid),  # its file is gone
    (Bucket.CANCELLED, lambda c: c.asked is Ask.CANCEL),  # somebody asked for it at once
    (Bucket.CANCELLED, lambda c: c.ends_unstarted is not None),  # a task of an array that is not to run any more
    (Bucket.CHANGED, lambda c: c.record is not None and c.job is not None and not c.same),  # runs something else now
    (Bucket.INVALID, lambda c: c.job is None and not (c.state and c.state.holds_gpus)),  # no valid form, nothing held
    (
        Bucket.SUSPENDED,
        lambda c: c.job is not None and (c.job.suspend or c.asked is Ask.SUSPEND),
    ),  # people asked it to wait
    (Bucket.BROKEN, lambda c: c.state is JobState.PENDING and c.lost_its_place),  # repaired before new work
)

BY_STATE: Final[Mapping[JobState | None, Bucket]] = {
    JobState.LOST: Bucket.LOST,  # nothing may be decided with its GPUs
    JobState.STOPPING: Bucket.STOPPING,  # never turns back
    JobState.REPAIRING: Bucket.BROKEN,
    JobState.PROMISED: Bucket.PROMISED,  # its target is fixed
    JobState.STARTING: Bucket.STARTING,
    JobState.RUNNING: Bucket.RUNNING,
    JobState.HELD: Bucket.HELD,
    JobState.PENDING: Bucket.NEW,  # waits
    JobState.FINISHED: Bucket.NEW,  # its file came back
    None: Bucket.NEW,  # seen for the first time
}


# --- what each bucket does ---


def _finished(case: Case) -> JobRecord | None:
    """Stays as it ended. Known from its tombstone alone when its file came back."""
    record, job = case.record, case.job
    if job is None or (record is not None and record.digest == job.digest):
        return record
    stone = case.world.stone(case.key, job.digest)
    if stone is None:
        return record
    code = ReasonCode.SUCCEEDED if stone.outcome is Outcome.SUCCEEDED else ReasonCode.FAILED
    why = reason(code) if stone.outcome is not Outcome.TIMED_OUT else _over_limit(case)
    return replace(
        _fresh(case, job), state=JobState.FINISHED, outcome=stone.outcome, attempt=stone.attempts, reason=why
    )


def _cancelled(case: Case) -> JobRecord | None:
    """Out through the checkpoint path; the record goes with the file, when the GPUs are back.

    While the file is there it stays on record, as cancelled: a task of an array, or what somebody asked for at once.
    """
    request = case.world.desired.request_about(case.key) if case.asked is Ask.CANCEL else None
    why = why_asked(request) if request is not None else case.ends_unstarted
    if _holds(case):
        return _stop(case, Cause.CANCELLED, why or reason(ReasonCode.CANCELLED))
    record, job = case.record, case.job
    if job is None or why is None:
        return None
    if record is None or record.digest != job.digest:
        return replace(_fresh(case, job), state=JobState.FINISHED, outcome=Outcome.CANCELLED, reason=why)
    if record.state is JobState.FINISHED:
        return record
    return replace(
        record, state=check_move(record.state, JobState.FINISHED), outcome=Outcome.CANCELLED, reason=why, promise=None,
        victims=(), retry_at=None, cause=None,
    )  # fmt: skip


def _changed(case: Case) -> JobRecord | None:
    """What runs was changed: the old incarnation stops, then the new one waits with an age of its own."""
    if _holds(case):
        return _stop(case, Cause.CHANGED, reason(ReasonCode.CHANGED))
    if case.state is not None:
        check_move(case.state, JobState.FINISHED)
    return _seen_first(case)


def _invalid(case: Case) -> JobRecord | None:
    why = reason(ReasonCode.INVALID, problem=case.world.desired.invalid.get(document_of(case.key), ""))
    if case.record is None:
        return _blank(case, why)
    return replace(case.record, state=JobState.HELD, promise=None, reason=why)


def _suspended(case: Case) -> JobRecord | None:
    if _holds(case):
        request = case.world.desired.request_about(case.key)
        in_file = request is None or case.job is None or case.job.suspend
        return _stop(
            case, Cause.SUSPENDED, reason(ReasonCode.SUSPENDED) if in_file or request is None else why_asked(request)
        )
    return _as_candidate(case)


def _lost(case: Case) -> JobRecord | None:
    return case.record


def _stopping(case: Case) -> JobRecord | None:
    return case.record


def _promised(case: Case) -> JobRecord | None:
    """Kept while it is a candidate at all; `promise` looks at its target."""
    record = case.record
    if record is None or case.job is None:
        return record
    why = not_a_candidate(case, case.job)
    if why is None or why.code in (ReasonCode.ADMISSIONS_FROZEN, ReasonCode.FROZEN):
        return record
    return replace(record, state=JobState.HELD, promise=None, victims=(), reason=why)


def _at_work(case: Case) -> JobRecord | None:
    """Starting or running: only what forces a stop is looked at."""
    record = case.record
    if record is None or record.placement is None:
        return record
    world = case.world
    masks = masks_of(record.placement)
    if not world.nodes.issuperset(masks):
        missing = [node for node in masks if node not in world.nodes]
        return _stop(case, Cause.NODE_REMOVED, reason(ReasonCode.NODE_REMOVED, nodes=", ".join(missing)))
    if case.job is not None and record.started is not None:
        limit = world.desired.limit_of(case.job)
        if limit is not None and world.now >= record.started + limit - record.grace:
            return _stop(case, Cause.TIME_LIMIT, _over_limit(case))
        if (since := steps.idle_since(record, world.observed)) is not None and case.job.run.idle_timeout is not None:
            spare = case.job.run.idle_timeout
            if world.now >= since + spare:
                idle = reason(ReasonCode.IDLE, idle=seconds(int(world.now) - since), limit=seconds(spare))
                return _stop(case, Cause.IDLE, idle)
    window = (
        open_window(record, world.desired.windows, world.desired.quotas, world.now) if world.desired.windows else None
    )
    if window is not None:
        closed = {one.node for one in world.desired.windows if one.name == window.name}
        drained = sum(mask.bit_count() for node, mask in masks.items() if node in closed)
        asked = {"by": window.by, "message": window.message} if window.by else {}
        why = reason(ReasonCode.MAINTENANCE, excluded=drained, window=window.name, **asked)
        return _stop(case, Cause.MAINTENANCE, why, at_once=window.drain == "kill")
    return record


def _broken(case: Case) -> JobRecord | None:
    """Below strength: `repair` decides. One that holds nothing any more is a candidate like others."""
    return case.record if case.state is JobState.REPAIRING else _waiting(case)


def _waiting(case: Case) -> JobRecord | None:
    """Held, pending or new: a candidate, unless something says not yet."""
    return _as_candidate(case) if case.record is not None and case.state is not JobState.FINISHED else _seen_first(case)


ACTIONS: Final[Mapping[Bucket, Callable[[Case], JobRecord | None]]] = {
    Bucket.FINISHED: _finished,
    Bucket.CANCELLED: _cancelled,
    Bucket.CHANGED: _changed,
    Bucket.INVALID: _invalid,
    Bucket.SUSPENDED: _suspended,
    Bucket.LOST: _lost,
    Bucket.STOPPING: _stopping,
    Bucket.BROKEN: _broken,
    Bucket.PROMISED: _promised,
    Bucket.STARTING: _at_work,
    Bucket.RUNNING: _at_work,
    Bucket.HELD: _waiting,
    Bucket.NEW: _waiting,
}


def _holds(case: Case) -> bool:
    return case.state is not None and case.state.holds_gpus


def _stop(case: Case, cause: Cause, why: Reason, *, at_once: bool = False) -> JobRecord | None:
    """Begin to stop; when it is stopping already a stronger cause only changes where it ends. `at_once`: without the
    checkpoint it may have been promised."""
    record = case.record
    if record is None:
        return None
    if record.state is JobState.STOPPING:
        stronger = record.cause is None or cause.strength > record.cause.strength
        return replace(record, cause=cause, reason=why, promise=None) if stronger else record
    world = case.world
    lost = steps.lost_gpu_seconds(record, world.observed, world.now) if at_once or not record.grace else 0
    if at_once:
        deadline = Instant(world.now + world.desired.scheduling.kill_after)
        return steps.begin_stop(record, cause, why, phase=Phase.STOP, deadline=deadline, lost=GpuSeconds(lost))
    return steps.gentle_stop(record, cause, why, world.desired.scheduling, world.now, GpuSeconds(lost))


def _over_limit(case: Case) -> Reason:
    limit = case.world.desired.limit_of(case.job) if case.job is not None else None
    return reason(ReasonCode.TIME_LIMIT, limit=seconds(limit or 0))


def _as_candidate(case: Case) -> JobRecord | None:
    """Pending, or held with the reason why it is none. A hold that `decide` found itself is looked at anew."""
    record, job = case.record, case.job
    if record is None or job is None:
        return _seen_first(case)
    why = not_a_candidate(case, job)
    if why is None:
        waits = record.state is JobState.PENDING
        return record if waits else replace(record, state=JobState.PENDING, retry_at=None)
    return replace(record, state=JobState.HELD, promise=None, reason=why)


def _seen_first(case: Case) -> JobRecord | None:
    """A new incarnation, or one whose file came back: its age begins now, its attempts go on counting."""
    job = case.job
    if job is None:
        return None
    stone = case.world.stone(case.key, job.digest)
    if stone is not None and stone.outcome in FINAL:
        return _finished(case)
    fresh = _fresh(case, job)
    why = not_a_candidate(case, job)
    return replace(fresh, state=JobState.HELD, reason=why) if why is not None else fresh


def _fresh(case: Case, job: Job) -> JobRecord:
    before = case.record.attempt if case.record is not None else 0
    stone = case.world.stone(case.key, job.digest)
    return JobRecord(
        job=case.key, queue=job.queue, digest=job.digest, state=JobState.PENDING, since=case.world.now,
        submitted=case.world.now, reason=reason(ReasonCode.CAPACITY),
        attempt=max(before, case.world.attempts(case.key)), first_attempt=stone.attempts if stone is not None else 0,
    )  # fmt: skip


def _blank(case: Case, why: Reason) -> JobRecord:
    """A job that never had a valid form: there is nothing to know but its name."""
    queue, _, _ = case.key.rpartition("/")
    return JobRecord(
        job=case.key, queue=QueueName(queue), digest=Digest(""), state=JobState.HELD, since=case.world.now,
        submitted=case.world.now, reason=why, attempt=case.world.attempts(case.key),
    )  # fmt: skip
