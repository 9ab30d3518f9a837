"""A decision told in a commit message: a subject with the counts, and a line for each job that changed.

`git log --first-parent allocations` is read by people who have never seen the tool; it should read like a story.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.model.allocation import Allocation, JobRecord, Metrics
from reconciler.model.decision import Action, Change, Decision
from reconciler.model.inventory import Inventory
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import sentence
from reconciler.render.names import one_line, places

_MOST_LINES = 40
_MOST_SUBJECT = 100
_RANK = {action: rank for rank, action in enumerate(Action)}
# What a subject says of one job, and of several.
_TOLD: dict[Action, tuple[str, str]] = {
    Action.PREEMPT: ("preempt {job}", "preempt {count} jobs"),
    Action.MOVE: ("move {job}", "move {count} jobs"),
    Action.RESIZE: ("resize {job}", "resize {count} jobs"),
    Action.PLACE: ("place {job}", "place {count} jobs"),
    Action.PROMISE: ("promise GPUs to {job}", "promise GPUs to {count} jobs"),
    Action.REPLACE: ("replace {job}", "replace {count} jobs"),
    Action.STOP: ("stop {job}", "stop {count} jobs"),
    Action.START: ("start {job}", "start {count} jobs"),
    Action.RUNNING: ("{job} runs", "{count} jobs run"),
    Action.LOST: ("{job} lost a node", "{count} jobs lost a node"),
    Action.RELEASE: ("{job} released its GPUs", "{count} jobs released their GPUs"),
    Action.FINISH: ("{job} is finished", "{count} jobs are finished"),
    Action.WAIT: ("{job} waits", "{count} jobs wait"),
    Action.HOLD: ("hold {job}", "hold {count} jobs"),
    Action.DROP: ("forget {job}", "forget {count} jobs"),
    Action.PHASE: ("go on with {job}", "go on with {count} jobs"),
}


def subject(decision: Decision, trigger: str) -> str:
    """One line: what was decided, biggest consequence first; or that only an observation was recorded."""
    if not decision.changes:
        return "Record what was observed" if trigger in {"", "observed"} else f"Record what was observed ({trigger})"
    jobs: dict[Action, list[str]] = {}
    for change in ordered(decision.changes):
        jobs.setdefault(change.action, []).append(change.job)
    told = "; ".join(_TOLD[a][len(found) > 1].format(job=found[0], count=len(found)) for a, found in jobs.items())
    if len(told) > _MOST_SUBJECT:
        told = f"{told[: _MOST_SUBJECT - 1]}…"
    begins_with_job = "/" in told.partition(" ")[0]
    return told if begins_with_job else told[0].upper() + told[1:]


def body(decision: Decision, before: Allocation, inventory: Inventory) -> str:
    """A line a job: action, job, GPUs and place, and why. Long lists say how many lines were left out."""
    told = ordered(decision.changes)
    width = max((len(change.job) for change in told[:_MOST_LINES]), default=0)
    lines = []
    for change in told[:_MOST_LINES]:
        record = decision.allocation.jobs.get(change.job) or before.jobs.get(change.job)
        what = _told(record, inventory) if record else ""
        lines.append(f"{change.action:<8} {change.job:<{width}}  {what}".rstrip())
    if len(told) > _MOST_LINES:
        lines.append(f"and {len(told) - _MOST_LINES} more")
    return "\n".join([*lines, "", use(decision.allocation.metrics)])


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Changes as a reader wants them: by action, then by job."""
    return sorted(changes, key=lambda change: (_RANK[change.action], change.job))


def use(metrics: Metrics) -> str:
    """`16 of 32 GPUs held, 8 promised, 8 idle (4 of them stranded)`: what is nothing is left out."""
    promised = f", {metrics.promised} promised" if metrics.promised else ""
    stranded = f" ({metrics.stranded} of them stranded)" if metrics.stranded else ""
    return f"{metrics.held} of {metrics.capacity} GPUs held{promised}, {metrics.idle} idle{stranded}"


def _told(record: JobRecord, inventory: Inventory) -> str:
    why = one_line(sentence(record.reason))
    placement = record.placement or (record.promise.placement if record.promise else None)
    state = str(record.outcome or record.state)
    if placement is None:
        return f"{state}: {why}"
    phase = f" ({record.phase})" if record.state in {JobState.STARTING, JobState.STOPPING} else ""
    count = len(placement.ranks)
    return f"{state}{phase} on {count} GPU{'s' if count > 1 else ''}, {places(placement, inventory)}: {why}"
