"""Is something gathered for those alone who have waited too long, and does nobody behind them take it?

A hold binds those who come after its owner in line. What comes before it, or could evict it if it ran, is free to
pass; so is who is gone before the held place could be complete. Only such as are surely behind are judged here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.units import GpuType
from reconciler.planner.verify.case import Breach, Case, Violation, new_places

MOST = 8  # holds of one GPU type


def holds(case: Case) -> Iterator[Violation]:
    """A new hold is for a job that waits, has waited long enough, and could start on exactly these GPUs."""
    counts: Counter[GpuType] = Counter()
    for record in case.next.jobs.values():
        if record.hold is None:
            continue
        if record.state is not JobState.PENDING:
            yield Violation(code=Breach.HOLD_UNFOUNDED, job=record.job, detail=record.state)
        before = case.previous.jobs.get(record.job)
        counts[case.gpu_type(record.hold.placement)] += 1
        if before is not None and before.hold == record.hold:
            continue
        job, rules = case.desired.jobs.get(record.job), case.desired.scheduling
        waited = case.now - record.submitted >= rules.hold_for_starved_after
        if not waited and not _somebody_is_young(case):
            yield Violation(code=Breach.HOLD_UNFOUNDED, job=record.job, detail="not starved")
        size = len({(rank.node, rank.gpu) for rank in record.hold.placement.ranks})
        if job is None or job.resized(size) is None:
            yield Violation(code=Breach.HOLD_UNFOUNDED, job=record.job, detail="not its size")
    for kind, count in counts.items():
        if count > MOST:
            yield Violation(code=Breach.HOLD_UNFOUNDED, detail=f"{count} holds of {kind}")


def broken_holds(case: Case) -> Iterator[Violation]:
    """Nobody who is surely behind the owner gets GPUs that were held before and still are."""
    owners = [record for record in case.next.jobs.values() if record.hold is not None and _stood(case, record)]
    for before, after in case.started if owners else ():
        if before is not None and (before.state is JobState.PROMISED or before.cause is Cause.NODE_LOST):
            continue  # a promise made earlier, or a repair
        for owner in owners:
            if owner.hold is None or owner.job == after.job or not is_behind(case, after, owner):
                continue
            held = owner.hold.placement.masks
            taken = any(
                mask & held.get(node, 0) for place in new_places(before, after) for node, mask in place.masks.items()
            )
            if taken and not _gone_in_time(case, after, owner):
                yield Violation(code=Breach.HOLD_BROKEN, job=after.job, detail=f"held for {owner.job}")


def _somebody_is_young(case: Case) -> bool:
    """A running gang that the clock may protect still: who waits only for that is held for at once."""
    longest = max(case.desired.scheduling.max_min_runtime, case.desired.scheduling.cooldown)
    running = (record for record in case.previous.jobs.values() if record.state is JobState.RUNNING)
    return any(at + longest > case.now for r in running for at in (r.started or case.now, *r.interruptions))


def _stood(case: Case, record: JobRecord) -> bool:
    before = case.previous.jobs.get(record.job)
    return before is not None and before.hold == record.hold


def is_behind(case: Case, record: JobRecord, owner: JobRecord) -> bool:
    """Same queue, no higher priority, and younger: whatever the order, it comes later and may evict nobody there."""
    mine, other = case.desired.jobs.get(record.job), case.desired.jobs.get(owner.job)
    if mine is None or other is None or record.queue != owner.queue:
        return False
    upper, lower = value_of(case, other), value_of(case, mine)
    return lower < upper or (lower == upper and record.submitted > owner.submitted and mine.nice >= other.nice)


def value_of(case: Case, job: Job | None) -> int:
    """The value of its class."""
    known = case.priority(job) if job is not None else None
    return known.value if known is not None else 0


def _gone_in_time(case: Case, record: JobRecord, owner: JobRecord) -> bool:
    """It is over before every GPU held for the owner can be back, and that instant is known."""
    limit = case.limit(case.desired.jobs.get(record.job))
    if limit is None or owner.hold is None:
        return False
    held, last = owner.hold.placement.masks, 0
    for other in case.previous.jobs.values():
        if other.placement is None or not other.state.holds_gpus:
            continue
        if any(mask & held.get(node, 0) for node, mask in other.placement.masks.items()):
            end = _end(case, other)
            if not end:
                return False
            last = max(last, end)
    return case.now + limit <= last


def _end(case: Case, record: JobRecord) -> int:
    """When it is gone by its limit or its stop at the latest; 0 when nobody knows."""
    now = case.next.jobs.get(record.job)
    if now is not None and now.state is JobState.STOPPING:
        return now.deadline or 0
    limit = case.limit(case.desired.jobs.get(record.job))
    if limit is None:
        return 0
    began = record.started if record.started is not None else case.now
    return max(began + limit, case.now + record.grace)
