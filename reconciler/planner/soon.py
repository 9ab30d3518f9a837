"""Would time limits start the gang as soon as its victims could be gone? Then nobody is evicted for it.

Rule book §6: wait instead, when a start on free GPUs is certain, by time limits, within the longest grace of the
victims. How victims are found is for `preemption`.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import GpuType, Instant, JobKey
from reconciler.planner.draft import Draft
from reconciler.planner.placement import Spot
from reconciler.planner.profile import end_of


def starts_soon(
    draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, victims: Iterable[JobKey]
) -> Instant | None:
    """When the gang starts for certain without victims, if that is within their longest grace; else None."""
    grace = max(draft.records[key].grace for key in victims)
    until = Instant(draft.now + grace)
    ending = (
        [(end_of(draft, r), r.job, r) for r in draft.records.values() if _ends(draft, r, gpu_type)] if grace else []
    )
    ending = sorted(row for row in ending if row[0] <= until)
    if not ending or not _fits_without(draft, record, job, gpu_type, [row[2] for row in ending]):
        return None
    low, high = 0, len(ending)  # the first `high` are enough, the first `low` are not
    while high - low > 1:
        middle = (low + high) // 2
        if _fits_without(draft, record, job, gpu_type, [row[2] for row in ending[:middle]]):
            high = middle
        else:
            low = middle
    return ending[high - 1][0]


def _ends(draft: Draft, record: JobRecord, gpu_type: GpuType) -> bool:
    return record.state is JobState.RUNNING and draft.charges.types.get(record.job) == gpu_type


def _fits_without(draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, gone: list[JobRecord]) -> bool:
    with draft.charges.without([*draft.releasing(gpu_type), *gone], gpu_type):
        spot = draft.look(record, job, gpu_type)
        return isinstance(spot, Spot) and draft.breach(job, gpu_type, promised=True, spot=spot) is None
