"""Two hundred tasks are one line of a plan: rows of tasks put together by array.

The row stands where its first task would; what becomes of each of the others is in its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from reconciler.documents.tasklist import print_tasks
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.units import JobKey, document_of, index_of
from reconciler.render.plan.edits import edits_of
from reconciler.render.plan.model import COUNTED, Row, Slip, Step, Tasks

_WAITS = frozenset({Step.WAIT, Step.HOLD, Step.DELAY, Step.CHANGE})


def folded(rows: Iterable[Row], before: Desired, after: Desired) -> tuple[Row, ...]:
    """The same rows in their order, those of the tasks of one array as one."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        key = JobKey(row.job)
        groups.setdefault(document_of(key) if index_of(key) is not None else row.job, []).append(row)
    return tuple(
        group[0] if index_of(JobKey(group[0].job)) is None else _together(JobKey(array), group, before, after)
        for array, group in groups.items()
    )


def _together(array: JobKey, rows: Sequence[Row], before: Desired, after: Desired) -> Row:
    first = rows[0]
    one, other = before.arrays.get(array), after.arrays.get(array)
    groups = _groups(rows)
    waits = next((row for row in rows if row.step in _WAITS), None)
    return replace(
        first,
        job=array,
        gpus=sum(row.gpus for row in rows),
        reason=(waits or first).reason,
        why=(waits or first).why,
        where=_told(groups),
        was="",
        nodes=0,
        racks=0,
        within="",
        comm_ns=0,
        comm_bound_ns=0,
        lost_gpu_seconds=sum(row.lost_gpu_seconds for row in rows),
        checkpoint=min((row.checkpoint for row in rows if row.checkpoint is not None), default=None),
        victims=tuple(dict.fromkeys(victim for row in rows for victim in row.victims)),
        starts=None,
        likely=None,
        would_start=None,
        edits=edits_of(one, other) if one is not None and other is not None else (),
        ranks=(),
        tasks=groups,
    )


def _groups(rows: Iterable[Row]) -> tuple[Tasks, ...]:
    alike: dict[tuple[Step, str, int], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.step, row.reason, row.gpus), []).append(row)
    return tuple(
        Tasks(
            step=step, tasks=print_tasks(index_of(JobKey(row.job)) or 0 for row in group), count=len(group), gpus=gpus,
            reason=reason, why=group[0].why,
        )
        for (step, reason, gpus), group in alike.items()
    )  # fmt: skip


def _told(groups: Sequence[Tasks]) -> str:
    """`200 tasks x 1 GPU: 128 placed, 72 waiting`."""
    counts: dict[Step, int] = {}
    for group in groups:
        counts[group.step] = counts.get(group.step, 0) + group.count
    total, sizes = sum(counts.values()), {group.gpus for group in groups}
    size = f" x {counted(min(sizes), 'GPU')}" if len(sizes) == 1 else ""
    steps = ", ".join(f"{number:,} {COUNTED[step][number > 1]}" for step, number in counts.items())
    return f"{counted(total, 'task')}{size}: {steps}"


def folded_slips(slips: Iterable[Slip], later: Callable[[Slip], int]) -> tuple[Slip, ...]:
    """Of each array only the task whose start moves most: one line speaks for them."""
    worst: dict[str, Slip] = {}
    for slip in slips:
        array = document_of(JobKey(slip.job))
        if array not in worst or later(slip) > later(worst[array]):
            worst[array] = slip
    return tuple(worst.values())
