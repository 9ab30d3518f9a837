"""Which files of finished jobs may go? Those that ended for good long ago, that nobody waits for.

What they were stays in the record: a tombstone keeps them from ever running again, should the files come back by a
revert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reconciler.documents.layout import path_of
from reconciler.errors import NotFound
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import DAY, Instant, JobKey, Nanoseconds, document_of
from reconciler.render.names import span, when
from reconciler.runtime.proposals.change import Change, unchanged
from reconciler.runtime.proposals.desk import Desk
from reconciler.runtime.reading import DesiredReader

FINAL = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
LONG_AGO = Nanoseconds(14 * DAY)
_LISTED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A job that ended for good, and when."""

    job: JobKey
    outcome: Outcome
    ended: Instant


def tidy(desk: Desk, reader: DesiredReader, now: Instant, older: Nanoseconds = LONG_AGO, queue: str = "") -> Change:
    """Remove the files of jobs that ended more than `older` ago, all or those of one queue.

    Raises: NotFound (StateMissing, UnknownQueue).
    """
    generation = desk.generation
    if generation is None:
        raise NotFound(
            "there is no record, so nobody knows what ended", code="StateMissing", remedy="gangops init --state"
        )
    if queue:
        desk.document("Queue", queue)
    read = reader.read(desk.base, generation)
    found = leftovers(read.desired, generation.allocation, Instant(now - older)) if read.desired is not None else ()
    found = tuple(one for one in found if one.job in desk.jobs and one.job.startswith(f"{queue}/" if queue else ""))
    if not found:
        of = f" of queue {queue}" if queue else ""
        return unchanged("tidy", "jobs", f"no file{of} is of a job that ended more than {span(older)} ago")
    count = f"{counted(len(found), 'finished job')}"
    lines = [f"{one.job} {one.outcome} {when(one.ended)}" for one in found]
    more = [f"... and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return Change(
        verb="tidy", name=queue or "jobs", title=f"Remove the files of {count}",
        files={path_of(one.job): None for one in found}, body="\n".join([*lines[:_LISTED], *more]),
        remarks=("Tombstones in the record keep these from running again, whatever is reverted.",),
    )  # fmt: skip


def leftovers(desired: Desired, allocation: Allocation, before: Instant) -> tuple[Leftover, ...]:
    """Jobs whose file says no more than what ended before that instant, by key; none that another waits for.

    An array has ended with its last task; it ended as the first did that did not succeed.
    """
    awaited = {
        one.job for key, job in desired.jobs.items() if not _ended(allocation.jobs.get(key)) for one in job.after
    }  # fmt: skip
    gangs: dict[JobKey, list[Job]] = {}
    for key, job in desired.jobs.items():
        gangs.setdefault(document_of(key), []).append(job)
    found = (_leftover(key, gangs[key], allocation) for key in sorted(gangs) if key not in awaited)
    return tuple(one for one in found if one is not None and one.ended <= before)


def _leftover(document: JobKey, gangs: Sequence[Job], allocation: Allocation) -> Leftover | None:
    """How the job, or the array with all these tasks, ended; None when it did not, or its file alone knows."""
    outcomes, ended = list[Outcome](), list[Instant]()
    for job in gangs:
        record = allocation.jobs.get(job.key)
        if record is None or record.outcome is None or record.digest != job.digest:
            return None
        if job.task is not None and job.task.cancelled and record.outcome is Outcome.CANCELLED and not record.attempt:
            continue  # it never ran, and would not
        if not _ended(record) or not _is_buried(allocation, record):
            return None
        outcomes.append(record.outcome)
        ended.append(record.since)
    if not outcomes:
        return None
    worst = next((outcome for outcome in outcomes if outcome is not Outcome.SUCCEEDED), Outcome.SUCCEEDED)
    return Leftover(job=document, outcome=worst, ended=max(ended))


def _ended(record: JobRecord | None) -> bool:
    return record is not None and record.state is JobState.FINISHED and record.outcome in FINAL


def _is_buried(allocation: Allocation, record: JobRecord) -> bool:
    """A tombstone keeps it: without one its file is all that says that it ran."""
    return any(stone.digest == record.digest for stone in allocation.tombstones.get(record.job, ()))
