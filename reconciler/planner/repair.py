"""How does a gang that lost nodes come back? Before any new work, on free GPUs.

Runs once the loss is fenced and the rest of the gang was seen released: the whole gang is placed anew, its own
healthy GPUs being free by then. It takes nothing from anyone: what does not fit free GPUs waits first in its queue
at equal priority, with its old age and ordinary rights (`order`, `admit`). Spares, keeping the unbroken groups where
they are, and waiting with a part in hand come before this step.
"""

from __future__ import annotations

from reconciler.model.lifecycle import Cause, JobState
from reconciler.planner.draft import Draft
from reconciler.planner.order import pass_order
from reconciler.planner.placement import Spot


def repair_broken(draft: Draft) -> None:
    """Start every broken gang that fits free GPUs, first in line first."""
    broken = []
    for record in draft.records.values():
        if record.state is JobState.PENDING and record.cause is Cause.NODE_LOST:
            job = draft.job(record)
            if job is not None:
                broken.append((record, job))
    for record, job in pass_order(broken, draft.desired.classes, draft.desired.scheduling, draft.now):
        for gpu_type in draft.types_for(job):
            if draft.quotas.breach(job.queue, gpu_type, job.gpus):
                continue
            spot = draft.look(record, job, gpu_type)
            if isinstance(spot, Spot):
                draft.start(record, job, spot)
                break
