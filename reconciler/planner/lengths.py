"""How long do attempts of a queue really run, as a part of their time limit?

State carries a small histogram for each queue: how many attempts ended in each sixteenth of their limit. It is counted
on when an incarnation ends by itself or at its limit, advanced only by a committed decision, and halved when it has
grown, so that what a team does now outweighs what it did last year. It serves the forecast alone: no decision reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from reconciler.model.allocation import JobRecord, RunLengths
from reconciler.model.decision import Change
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import Instant, JobKey, Nanoseconds, QueueName

PARTS: Final = 16  # of a time limit
FULL: Final = 128  # ends of one queue, at which its counts are halved
LEAST: Final = 10  # ends below which nine in ten says nothing

_ENDS: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})

Records = Mapping[JobKey, JobRecord]


def lengths_after(
    known: tuple[RunLengths, ...], changes: Iterable[Change], before: Records, after: Records, desired: Desired,
    now: Instant,
) -> tuple[RunLengths, ...]:  # fmt: skip
    """The histograms to commit, by queue; those of queues that are gone are dropped."""
    counts = {row.queue: list(row.sixteenths) for row in known}
    for key in sorted(change.job for change in changes):
        part = _part_run(before.get(key), after.get(key), desired, now)
        if part is None:
            continue
        row = counts.setdefault(before[key].queue, [0] * PARTS)
        if sum(row) >= FULL:
            row[:] = [count // 2 for count in row]
        row[part] += 1
    queues = desired.quotas.queues
    return tuple(
        RunLengths(queue=queue, sixteenths=tuple(row))
        for queue, row in sorted(counts.items())
        if not queues or queue in queues
    )


def _part_run(before: JobRecord | None, after: JobRecord | None, desired: Desired, now: Instant) -> int | None:
    """The sixteenth of its limit in which an incarnation ended now; None when it did not, or has no limit."""
    if before is None or after is None or before.digest != after.digest or not before.state.holds_gpus:
        return None
    if after.state is not JobState.FINISHED or after.outcome not in _ENDS:
        return None
    job = desired.jobs.get(before.job)
    limit = desired.limit_of(job) if job is not None and job.digest == before.digest else None
    if not limit:
        return None
    if after.outcome is Outcome.TIMED_OUT:
        return PARTS - 1
    ended = before.since if before.state is JobState.STOPPING else now
    began = before.started if before.started is not None else ended
    return max(0, min(PARTS - 1, (ended - began) * PARTS // limit))


class Lengths:
    """The histograms, asked for one attempt after the other."""

    __slots__ = ("_rows",)

    def __init__(self, known: Iterable[RunLengths]) -> None:
        self._rows: dict[QueueName, tuple[int, ...]] = {
            row.queue: row.sixteenths for row in known if sum(row.sixteenths) >= LEAST
        }

    def __bool__(self) -> bool:
        """Some queue has seen enough ends to say anything."""
        return bool(self._rows)

    def nine_in_ten(self, queue: QueueName, limit: Nanoseconds, run: Nanoseconds) -> Nanoseconds:
        """Within which time nine in ten of a queue's attempts ended that ran at least as long as `run`; the limit when
        too few are known, or none ran so long."""
        row, first = self._rows.get(queue, ()), min(PARTS - 1, run * PARTS // limit)
        total, seen = sum(row[first:]), 0
        for part in range(first, len(row)):
            seen += row[part]
            if total and seen * 10 >= total * 9:
                return Nanoseconds(limit * (part + 1) // PARTS)
        return limit
