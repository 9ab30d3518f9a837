"""How does everything stand in one generation? The page's jobs, nodes and remarks: what holds now, without a past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from reconciler.documents.withheld import withheld_of
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NodeObservation, Observed
from reconciler.model.units import Instant, JobKey
from reconciler.render.arrays import by_array, leading, task_rows
from reconciler.render.moods import mood_of
from reconciler.render.names import gpus_of, one_line, when
from reconciler.render.node import troubles
from reconciler.render.page_values import JobShown, NodeShown
from reconciler.render.story import request_line
from reconciler.render.view import invalid_line, job_rows
from reconciler.runtime.generation import Generation

_MOST_JOBS: Final = 150
_MOST_TASK_ROWS: Final = 100


def jobs_shown(
    desired: Desired, jobs: Mapping[JobKey, JobRecord], now: Instant
) -> tuple[tuple[JobShown, ...], int]:  # fmt: skip
    """Jobs that are not finished as `status` has them, an array as one; and how many were left out."""
    grouped = by_array(jobs)
    going = {
        key: record for records in grouped.values() if any(one.state is not JobState.FINISHED for one in records)
        for key, record in ((one.job, one) for one in records)
    }  # fmt: skip
    _, rows = job_rows(desired, going, now, wide=False)
    shown = []
    for name, state, gpus, priority, where, since, why in rows[:_MOST_JOBS]:
        records = grouped[JobKey(name)] if JobKey(name) in grouped else [jobs[JobKey(name)]]
        tasks = task_rows(records, desired, now) if len(records) > 1 else []
        shown.append(
            JobShown(
                name=name, state=state, mood=mood_of(leading(records).state), gpus=_plain(gpus), priority=_plain(priority),
                where=_plain(where), since=since, why=_plain(why), tasks=tuple(map(tuple, tasks[:_MOST_TASK_ROWS])),
            )
        )  # fmt: skip
    return tuple(shown), max(0, len(rows) - _MOST_JOBS)


def _plain(cell: str) -> str:
    return "" if cell == "-" else cell


def nodes_shown(desired: Desired, allocation: Allocation, observed: Observed) -> Iterator[NodeShown]:
    """By spine group, rack and name."""
    holders = allocation.holders()
    spares: dict[str, int] = {}
    for record in allocation.jobs.values():
        for one in record.spares if record.state.holds_gpus else ():
            spares[one.node] = spares.get(one.node, 0) | one.mask
    for node in sorted(desired.inventory.nodes, key=lambda one: (one.path, one.name)):
        held, seen = holders.get(node.name, {}), observed.nodes.get(node.name)
        kept, wrong = spares.get(node.name, 0), troubles(node, seen)
        yield NodeShown(
            name=node.name,
            rack=node.rack,
            group=node.path[0] if len(node.path) > 1 else "",
            gpus=len(node.shape.gpus),
            cells=tuple(_cells(allocation, node, seen, held)),
            note="; ".join(one.told for one in wrong),
            spares=frozenset(place for place, slot in enumerate(node.shape.gpus) if kept >> slot.index & 1),
            held_by=tuple(
                (job, gpus_of(mask)) for job, mask in sorted(held.items(), key=lambda one: one[1] & -one[1])
            ),
        )  # fmt: skip


def _cells(
    allocation: Allocation, node: Node, seen: NodeObservation | None, held: Mapping[JobKey, int]
) -> Iterator[str]:  # fmt: skip
    """A word a GPU: its holder's queue, "" idle, `!` out of work."""
    broken = node.failed
    for gpu in seen.gpus if seen is not None else ():
        broken |= 0 if gpu.is_usable else 1 << gpu.index
    off = any(one.word != "Refusing" for one in troubles(node, seen))
    for slot in node.shape.gpus:
        owner = next((job for job, mask in held.items() if mask >> slot.index & 1), None)
        queue = allocation.jobs[owner].queue if owner is not None else ""
        yield "!" if broken >> slot.index & 1 or (off and owner is None) else queue


def remarks(current: Generation, desired: Desired, now: Instant) -> Iterator[str]:
    """What holds for the time being and should be known: files that are invalid, changes not acted on, requests in force."""
    if line := invalid_line(current.frozen, desired.blocked, current.summary.desired_commit):
        yield line
    for change in withheld_of(current.frozen):
        yield f"{change.path} is not acted on: {change.brought}"
    for request in current.observed.requests.values():
        if request.in_force(now):
            yield f"{one_line(request_line(request))}, until {when(request.expires)}"
