"""How does an array read? A line among other jobs, a page with a table of its tasks; those that are alike share a line.

Text only; values come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.documents.tasklist import print_tasks
from reconciler.model.allocation import JobRecord
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.reasons import sentence
from reconciler.model.units import Instant, JobKey, document_of, index_of
from reconciler.render.names import age, one_line, places
from reconciler.render.table import table

STATES = (
    JobState.RUNNING, JobState.STARTING, JobState.STOPPING, JobState.LOST, JobState.REPAIRING, JobState.PROMISED,
    JobState.PENDING, JobState.HELD, JobState.FINISHED,
)  # fmt: skip
"""In the order people want to see them."""
_OUTCOMES = (None, *Outcome)


def by_array(jobs: Mapping[JobKey, JobRecord]) -> dict[JobKey, list[JobRecord]]:
    """Records by the job their file is of: the tasks of an array together, in the order of their numbers."""
    found: dict[JobKey, list[JobRecord]] = {}
    for key, record in jobs.items():
        found.setdefault(document_of(key), []).append(record)
    for records in found.values():
        records.sort(key=_number)
    return found


def _number(record: JobRecord) -> int:
    index = index_of(record.job)
    return -1 if index is None else index


def tally(records: Iterable[JobRecord]) -> str:
    """`32 Running, 168 Pending`: what has become of them, in the order of states."""
    counts: dict[str, int] = {}
    for record in sorted(records, key=lambda r: (STATES.index(r.state), _OUTCOMES.index(r.outcome))):
        word = str(record.outcome or record.state)
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def leading(records: Sequence[JobRecord]) -> JobRecord:
    """The task that speaks for its array: the first of those that wait, else the first in the order of states."""
    waiting = [r for r in records if r.state in (JobState.PENDING, JobState.HELD)]
    return min(waiting or records, key=lambda r: (STATES.index(r.state), r.submitted, _number(r)))


def array_head(array: JobKey, records: Sequence[JobRecord], desired: Desired) -> str:
    """Two lines: how many tasks of what size there are, and how many may run at once; what has become of them."""
    job = desired.arrays.get(array)
    size = f" of {counted(job.gpus, 'GPU')} each" if job is not None else ""
    limit = job.array.max_parallel if job is not None and job.array is not None else None
    most = f", at most {limit} at once" if limit is not None else ""
    return f"{array}   {counted(len(records), 'task')}{size}{most}\n{tally(records)}"


def task_table(records: Sequence[JobRecord], desired: Desired, now: Instant, width: int | None) -> str:
    """A line a task, with its parameters and why it is where it is; tasks that are alike share one.

    Where tasks have no parameters, those that ended alike are alike, whenever they did.
    """
    return table(TASK_HEADER, task_rows(records, desired, now), width=width, right="SINCE ATTEMPT")


TASK_HEADER = ("TASK", "STATE", "ATTEMPT", "WHERE", "SINCE", "PARAMETERS", "WHY")


def task_rows(records: Sequence[JobRecord], desired: Desired, now: Instant) -> list[list[str]]:
    """The cells of `task_table`, as `TASK_HEADER` has them."""
    groups: dict[tuple[object, ...], list[JobRecord]] = {}
    for record in records:
        # Those that never started differ in nothing that matters yet.
        own = record.job if record.attempt or record.promise is not None else ""
        alike: tuple[object, ...] = (record.state, record.outcome, record.reason.code, record.since, own)
        if record.state is JobState.FINISHED and not _parameters(desired.jobs.get(record.job)):
            alike = (record.outcome, record.reason, record.attempt)
        groups.setdefault(alike, []).append(record)
    return [_row(group, desired, now) for group in groups.values()]


def _row(group: Sequence[JobRecord], desired: Desired, now: Instant) -> list[str]:
    first = group[0]
    placement = first.placement or (first.promise.placement if first.promise else None)
    parameters = _parameters(desired.jobs.get(first.job)) if len(group) == 1 else ""
    return [
        print_tasks(_number(record) for record in group),
        str(first.outcome or first.state),
        str(first.attempt or "-"),
        places(placement, desired.inventory) if placement is not None else "-",
        age(now - max(record.since for record in group)),
        one_line(parameters) or "-",
        "-"
        if first.state is JobState.RUNNING or first.outcome is Outcome.SUCCEEDED
        else one_line(sentence(first.reason)),
    ]


def _parameters(job: Job | None) -> str:
    if job is None or job.task is None:
        return ""
    return " ".join(f"{name}={value}" for name, value in job.task.parameters.items())
