"""May one more task of an array be placed, and by which ways? What a pass has to know of arrays, and nothing else.

A task is a gang like any other. Two things set it apart: no more tasks of its array hold GPUs at once than it says, and
of all its tasks that wait only the first may disturb others or book GPUs for later; ten thousand alike would else do
nothing but evict and reserve. Which tasks there are is for `documents`, which of them are candidates for `candidacy`.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import JobKey, document_of


class Arrays:
    """The arrays of one pass: how many tasks of each are at work, and which had their one task that goes further."""

    __slots__ = ("_at_work", "_disturbed", "_led")

    def __init__(self, records: Iterable[JobRecord]) -> None:
        self._at_work: dict[JobKey, int] = {}
        self._led: set[JobKey] = set()
        self._disturbed: dict[JobKey, JobKey] = {}  # by array, the task for which others were told to leave
        for record in records:
            if is_at_work(record) and (array := document_of(record.job)) != record.job:
                self._at_work[array] = self._at_work.get(array, 0) + 1

    def full(self, job: Job) -> Reason | None:
        """MaxParallel, when as many tasks of its array are at work as may be."""
        task = job.task
        if task is None or task.max_parallel is None:
            return None
        running = self._at_work.get(task.array, 0)
        return (
            reason(ReasonCode.MAX_PARALLEL, running=running, array=task.array) if running >= task.max_parallel else None
        )

    def follows(self, job: Job) -> bool:
        """Another task of its array waits before it, or disturbed others in this pass: it takes what is free."""
        return job.task is not None and job.task.array in self._led

    def leads(self, job: Job) -> None:
        """This task is the one of its array that goes further than taking what is free."""
        if job.task is not None:
            self._led.add(job.task.array)

    def disturbed(self, job: Job) -> None:
        """Others were told to leave for this task: that was the turn of its array."""
        if job.task is not None:
            self._led.add(job.task.array)
            self._disturbed[job.task.array] = job.key

    def out_of_turn(self, job: Job) -> Reason | None:
        """BlockedByEarlier, for a task that might do as the one before it did, and has to wait for the next pass."""
        owner = self._disturbed.get(job.task.array) if job.task is not None else None
        return reason(ReasonCode.BLOCKED_BY_EARLIER, owner=owner) if owner is not None else None

    def placed(self, job: Job) -> None:
        """One more is at work."""
        if job.task is not None:
            self._at_work[job.task.array] = self._at_work.get(job.task.array, 0) + 1


def is_at_work(record: JobRecord) -> bool:
    """It holds GPUs, or they are promised to it."""
    return record.state.holds_gpus or record.state is JobState.PROMISED
