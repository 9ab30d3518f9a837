"""Before the merge the decision is made again. Has it changed in a way that those who reviewed it would mind?

That the base moved, or the state, is no reason by itself: the queue would never end. A job that pays and that nobody
saw pay is one; so is more lost work than was shown and some, and anything newly forbidden.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.render.names import gpu_hours
from reconciler.render.plan import Plan
from reconciler.render.plan.words import several
from reconciler.runtime.forge.comment import Shown

TOLERANCE = 3600
"""GPU-seconds more than were shown: one GPU-hour, or a tenth of what was shown."""


def material_changes(shown: Shown, plan: Plan) -> tuple[str, ...]:
    """What those who reviewed have not seen, a sentence each; nothing when the merge may go on."""
    return tuple(_changes(shown, plan))


def _changes(shown: Shown, plan: Plan) -> Iterator[str]:
    unseen = tuple(sorted(row.job for row in plan.victims if row.job not in shown.victims))
    if unseen:
        yield f"{several(unseen)} would pay for it, which no preview has shown"
    most = shown.lost_gpu_seconds + max(TOLERANCE, shown.lost_gpu_seconds // 10)
    if plan.lost_gpu_seconds > most:
        yield f"{gpu_hours(plan.lost_gpu_seconds)} of work would be lost; {gpu_hours(shown.lost_gpu_seconds)} were shown"
    for found in plan.errors:
        if f"{found.code} {found.file}" not in shown.errors:
            yield f"{found.code} in {found.file}: {found.detail}"
    for gone in plan.removals:
        yield f"{gone.gone} of {gone.of} {gone.what} would go at once; at most {gone.limit} % may"
