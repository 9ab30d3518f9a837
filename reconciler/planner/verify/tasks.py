"""Do the tasks of an array keep to what it says: how many at once, and which of them are not to run?

What is true of each task as a gang is for the other rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.request import Ask
from reconciler.model.units import JobKey
from reconciler.planner.verify.case import Breach, Case, Violation


def arrays(case: Case) -> Iterator[Violation]:
    """No array has more at work than it may, unless it had and none was added; one task of it at a time goes further."""
    grown: dict[JobKey, list[JobRecord]] = {}
    reaching: dict[JobKey, list[JobRecord]] = {}
    for before, after in case.changed:
        job = case.desired.jobs.get(after.job) if after is not None else None
        if after is None or job is None or job.task is None:
            continue
        if _at_work(after) and not (before is not None and _at_work(before)):
            grown.setdefault(job.task.array, []).append(after)
            if after.victims:
                reaching.setdefault(job.task.array, []).append(after)
        if after.hold is not None and (before is None or before.hold is None):
            reaching.setdefault(job.task.array, []).append(after)
    counts = _counts(case.next) if grown else {}
    for array, added in grown.items():
        task, running = case.desired.jobs[added[0].job].task, counts[array]
        if task is not None and task.max_parallel is not None and running > task.max_parallel:
            yield Violation(
                code=Breach.TOO_MANY_TASKS,
                job=added[0].job,
                detail=f"{running} of {array}, at most {task.max_parallel}",
            )
    for array, tasks in reaching.items():
        if len(tasks) > 1:
            yield Violation(code=Breach.TASK_OUT_OF_TURN, job=tasks[-1].job, detail=f"{len(tasks)} of {array} at once")


def _at_work(record: JobRecord) -> bool:
    return record.state.holds_gpus or record.promise is not None


def _counts(allocation: Allocation) -> dict[str, int]:
    """How many tasks of each array hold GPUs or were promised them."""
    found: dict[str, int] = {}
    for key, record in allocation.jobs.items():
        array, dot, _ = key.partition(".")
        if dot and _at_work(record):
            found[array] = found.get(array, 0) + 1
    return found


def unwanted_task(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """Nothing is given to a task that was cancelled, nor to one that never started when its array stops."""
    job = case.desired.jobs.get(after.job)
    if job is not None and (before is None or not _at_work(before)) and is_unwanted(case, job, before):
        yield Violation(code=Breach.NOT_WANTED, job=after.job, detail="a task that is not to run")


def ended_task(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """What still has its file is called cancelled only when somebody asked for it; a task also when its file, or the
    failure of another, says so."""
    job = case.desired.jobs.get(after.job)
    if after.outcome is not Outcome.CANCELLED or job is None or after.state is not JobState.FINISHED:
        return
    stopped = before is not None and before.state in (JobState.STOPPING, JobState.FINISHED)
    unwanted = case.asked_for(after.job, Ask.CANCEL) or (job.task is not None and is_unwanted(case, job, before))
    if not stopped and not unwanted:
        yield Violation(code=Breach.ENDED_WITHOUT_CAUSE, job=after.job)


def is_unwanted(case: Case, job: Job, record: JobRecord | None) -> bool:
    """Its array says that it is cancelled, or stops because another task failed before this one ever started."""
    task = job.task
    if task is None:
        return False
    if task.cancelled:
        return True
    began = record is not None and record.digest == job.digest and record.first_attempt > 0
    return task.stop_on_failure and not began and _has_failed(case, task.array, task.size)


def _has_failed(case: Case, array: JobKey, size: int) -> bool:
    """A task of the array, as it is wanted now, failed for good."""
    found = case.failed_arrays.get(array)
    if found is None:
        found = case.failed_arrays[array] = any(_failed(case, JobKey(f"{array}.{index}")) for index in range(size))
    return found


def _failed(case: Case, key: JobKey) -> bool:
    job = case.desired.jobs.get(key)
    outcomes = [(stone.digest, stone.outcome) for stone in case.next.tombstones.get(key, ())]
    record = case.next.jobs.get(key)
    if record is not None and record.state is JobState.FINISHED and record.outcome is not None:
        outcomes.append((record.digest, record.outcome))
    return job is not None and any(
        digest == job.digest and outcome in (Outcome.FAILED, Outcome.TIMED_OUT) for digest, outcome in outcomes
    )
