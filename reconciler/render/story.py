"""A decision told in a commit message: a subject with the counts, and a line for each job that changed.

`git log --first-parent allocations` is read by people who have never seen the tool; it should read like a story.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reconciler.documents.tasklist import print_tasks
from reconciler.model.allocation import Allocation, JobRecord, Metrics
from reconciler.model.counting import counted
from reconciler.model.decision import Action, Change, Decision
from reconciler.model.inventory import Inventory
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import sentence
from reconciler.model.request import Request, Standing
from reconciler.model.units import JobKey, document_of, index_of, task_key
from reconciler.render.names import one_line, places
from reconciler.render.taken import taken_subject

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


def subject(decision: Decision, trigger: str, taken: Sequence[str] = ()) -> str:
    """One line: what was decided, biggest consequence first; else what was `taken` in; else that an observation was."""
    if not decision.changes and taken:
        return _cut(taken_subject(taken))
    if not decision.changes:
        return "Record what was observed" if trigger in {"", "observed"} else f"Record what was observed ({trigger})"
    jobs: dict[Action, list[str]] = {}
    for change in ordered(decision.changes):
        jobs.setdefault(change.action, []).append(change.job)
    told = "; ".join(_said(action, found) for action, found in jobs.items())
    begins_with_job = "/" in told.partition(" ")[0]
    return _cut(told if begins_with_job else told[0].upper() + told[1:])


def _cut(told: str) -> str:
    return told if len(told) <= _MOST_SUBJECT else f"{told[: _MOST_SUBJECT - 1]}…"


def _said(action: Action, jobs: list[str]) -> str:
    """What happened to one job, to several, or to several tasks of one array."""
    told = _TOLD[action][len(jobs) > 1]
    arrays = {document_of(JobKey(job)) if index_of(JobKey(job)) is not None else "" for job in jobs}
    if len(jobs) > 1 and len(arrays) == 1 and (array := arrays.pop()):
        told = told.replace("jobs", f"tasks of {array}")
    return told.format(job=jobs[0], count=len(jobs))


def request_line(request: Request) -> str:
    """What came of a request, in one line: `Request cancel-a-1f2e3d4 of kim is in force: cancel nlp/a, "loss is NaN"`."""
    who = f" of {request.by}" if request.by else ""
    asked = f"{request.asked}, {one_line(request.reason)}" if request.reason else request.asked
    if request.refusal is not None:
        return f"Request {request.id}{who} is refused ({request.refusal.value}: {one_line(request.told)}): {asked}"
    return f"Request {request.id}{who} {_STANDS[request.standing]}: {asked}"


_STANDS = {
    Standing.IN_FORCE: "is in force", Standing.LANDED: "is what the files say by now", Standing.EXPIRED: "is over",
    Standing.REFUSED: "is refused",
}  # fmt: skip


def body(decision: Decision, before: Allocation, inventory: Inventory) -> str:
    """A line a job: action, job, GPUs and place, and why; of tasks that share a line those of the first. Long lists say how many lines were left out."""
    told = _by_line(decision.changes)
    width = max((len(name) for _, name, _ in told[:_MOST_LINES]), default=0)
    lines = []
    for action, name, first in told[:_MOST_LINES]:
        record = decision.allocation.jobs.get(first) or before.jobs.get(first)
        what = _told(record, inventory) if record else ""
        each = "each " if name != first else ""
        lines.append(f"{action:<8} {name:<{width}}  {each}{what}".rstrip())
    if len(told) > _MOST_LINES:
        lines.append(f"and {len(told) - _MOST_LINES} more")
    return "\n".join([*lines, "", use(decision.allocation.metrics)])


def _by_line(changes: Iterable[Change]) -> list[tuple[Action, str, JobKey]]:
    """(action, name, the first job meant) of each line: tasks of one array to which the same happens share one."""
    found: dict[tuple[Action, str], list[JobKey]] = {}
    for change in ordered(changes):
        found.setdefault((change.action, document_of(change.job)), []).append(change.job)
    lines = []
    for (action, document), jobs in found.items():
        tasks = [index for job in jobs if (index := index_of(job)) is not None]
        first = jobs[0] if not tasks else task_key(JobKey(document), min(tasks))
        lines.append((action, f"{document}.{print_tasks(tasks)}" if tasks else str(first), first))
    return lines


def ordered(changes: Iterable[Change]) -> list[Change]:
    """Changes as a reader wants them: by action, then by job."""
    return sorted(changes, key=lambda change: (_RANK[change.action], change.job))


def use(metrics: Metrics) -> str:
    """`16 of 32 GPUs held, 8 promised, 8 idle (4 of them stranded)`: what is nothing is left out."""
    promised = f", {metrics.promised} promised" if metrics.promised else ""
    stranded = f" ({metrics.stranded} of them stranded)" if metrics.stranded else ""
    return f"{metrics.held} of {counted(metrics.capacity, 'GPU')} held{promised}, {metrics.idle} idle{stranded}"


def _told(record: JobRecord, inventory: Inventory) -> str:
    why = one_line(sentence(record.reason))
    placement = record.placement or (record.promise.placement if record.promise else None)
    state = str(record.outcome or record.state)
    if placement is None:
        return f"{state}: {why}"
    phase = f" ({record.phase})" if record.state in {JobState.STARTING, JobState.STOPPING} else ""
    count = len(placement.ranks)
    return f"{state}{phase} on {counted(count, 'GPU')}, {places(placement, inventory)}: {why}"
