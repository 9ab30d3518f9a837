"""What changed between two generations, job by job, and what of it deserves a commit?

A record keeps its bytes while state, place, phase and reason code stay: numbers in a reason are as of `since`. The
list of changes is what the commit message, the preview and the audit tell, in a reader's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.decision import Action, Change
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import Instant, JobKey

Records = Mapping[JobKey, JobRecord]


def settled(before: JobRecord | None, after: JobRecord, now: Instant) -> JobRecord:
    """The record to commit: `before` itself when nothing but numbers differs, else with the right `since`."""
    if before is None:
        return after if after.since == now else replace(after, since=now)
    if before is after:
        return before
    same_code = before.reason.code is after.reason.code
    stays = (
        same_code
        and before.state is after.state
        and before.phase is after.phase
        and before.attempt == after.attempt
        and before.digest == after.digest
        and (before.placement is after.placement or before.placement == after.placement)
    )
    if not stays:
        return replace(after, since=now)
    kept = replace(after, since=before.since, reason=before.reason)
    return before if kept == before else kept


def changes_between(before: Records, after: Records) -> tuple[Change, ...]:
    """One change for each job whose record differs, sorted by what a reader wants first, then by job."""
    found = [
        Change(action=_action(old, record), job=key)
        for key, record in after.items()
        if (old := before.get(key)) is not record and old != record
    ]
    found += [Change(action=Action.DROP, job=key) for key in before if key not in after]
    return tuple(sorted(found, key=lambda change: (_RANK[change.action], change.job)))


def _action(before: JobRecord | None, after: JobRecord) -> Action:
    """The first row that says it best."""
    old = before.state if before is not None else None
    if after.state is JobState.STOPPING and (
        old is not JobState.STOPPING or before is None or before.cause is not after.cause
    ):
        return _BY_CAUSE.get(after.cause, Action.STOP) if after.cause is not None else Action.STOP
    if after.state is JobState.STARTING and (before is None or before.attempt != after.attempt):
        return Action.PLACE
    if after.state is JobState.STARTING and after.phase is Phase.RUN:
        return Action.START
    if before is not None and before.digest != after.digest:
        return Action.REPLACE
    if before is not None and after.hold is not None and before.hold != after.hold:
        return Action.HOLD
    if after.state is JobState.REPAIRING and after.reason.code is ReasonCode.BACK_OFF:
        return Action.HOLD if old is not after.state else Action.PHASE
    if old is after.state and before is not None and before.reason.code is after.reason.code:
        return Action.PHASE
    if old is JobState.STOPPING and after.state in (JobState.PENDING, JobState.HELD):
        return Action.RELEASE
    return _BY_STATE[after.state]


_BY_CAUSE: Final = {
    Cause.PREEMPTED: Action.PREEMPT,
    Cause.RECLAIMED: Action.PREEMPT,
    Cause.FAIR_SHARE: Action.PREEMPT,
    Cause.CHANGED: Action.REPLACE,
    Cause.MOVED: Action.MOVE,
    Cause.RESIZED: Action.RESIZE,
}

_BY_STATE: Final = {
    JobState.HELD: Action.HOLD,
    JobState.PENDING: Action.WAIT,
    JobState.PROMISED: Action.PROMISE,
    JobState.STARTING: Action.PLACE,
    JobState.RUNNING: Action.RUNNING,
    JobState.LOST: Action.LOST,
    JobState.REPAIRING: Action.LOST,
    JobState.STOPPING: Action.STOP,
    JobState.FINISHED: Action.FINISH,
}

_RANK: Final = {action: rank for rank, action in enumerate(Action)}
