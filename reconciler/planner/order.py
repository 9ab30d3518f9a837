"""Who comes first? One line of candidates, the same for the same inputs on every machine.

Rule book §5, `priorityThenAge`: priority of the class, starved, nice, age, name, over all queues. Age is the
decision that first saw the incarnation, never a commit's date. `order: fairShare` shares this line; what it adds
is a choice between queues, which needs their decayed usage, and it belongs here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause
from reconciler.model.queue import PriorityClass, Scheduling
from reconciler.model.units import ClassName, Instant

SortKey = tuple[int, int, int, int, int, str]


def pass_order(
    candidates: Iterable[tuple[JobRecord, Job]],
    classes: Mapping[ClassName, PriorityClass],
    scheduling: Scheduling,
    now: Instant,
) -> list[tuple[JobRecord, Job]]:
    """The candidates, first come first. An unknown class is worth 0. A gang broken by a node's loss leads its equals: its work was under way."""
    values = {name: known.value for name, known in classes.items()}
    starved = Instant(now - scheduling.hold_for_starved_after)
    return sorted(candidates, key=lambda one: line_key(one[0], one[1], values.get(one[1].priority_class, 0), starved))


def line_key(record: JobRecord, job: Job, priority: int, starved: Instant) -> SortKey:
    """Where a job stands in the line; `starved` is the instant before which who was submitted is."""
    return (
        -priority,
        0 if record.cause is Cause.NODE_LOST else 1,
        0 if record.submitted <= starved else 1,
        job.nice,
        record.submitted,
        record.job,
    )
