"""What becomes of one job because of a change: its record without the change against its record with it.

First match wins. Without a base the record that holds now stands for "without the change", and then what nodes
reported since moves jobs as well; those steps are told by the decision's own words.
"""

from __future__ import annotations

from reconciler.model.allocation import JobRecord, Placement
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.units import JobKey
from reconciler.planner.changes import changes_between
from reconciler.render.plan.model import Step

_EVICTED = frozenset({Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE})
_WAITS = frozenset({JobState.PENDING, JobState.HELD})
_GETS = frozenset({JobState.STARTING, JobState.PROMISED})
_IDLE = _WAITS | {JobState.FINISHED}


def step_of(key: JobKey, before: JobRecord | None, after: JobRecord | None) -> Step | None:
    """The step of one job; None when nothing that matters to anyone differs."""
    if before is not None and after is not None and _same(before, after):
        return None
    if after is None:
        return Step.DROP if before is not None else None
    if after.state is JobState.STOPPING and (
        before is None or before.state is not JobState.STOPPING or before.cause is not after.cause
    ):
        return _stopping(after)
    if after.outcome is Outcome.CANCELLED and (before is None or before.state is not JobState.FINISHED):
        return Step.CANCEL
    if before is None:
        return Step(_told(key, None, after))
    if before.state in _GETS and after.state in _WAITS:
        return Step.DELAY
    if before.state is JobState.STOPPING and after.state.holds_gpus and after.state is not JobState.STOPPING:
        return Step.KEEP
    if after.state in _WAITS and before.state in _IDLE:
        return _waiting(before, after)
    return _getting(before, after) or Step(_told(key, before, after))


def _getting(before: JobRecord, after: JobRecord) -> Step | None:
    """It gets GPUs that it has not without the change, or others: nothing of it runs, so nothing is replaced or goes on."""
    if after.state not in _GETS:
        return None
    elsewhere = before.state is after.state and before.digest == after.digest and _target(before) != _target(after)
    if before.state not in _IDLE and not elsewhere:
        return None
    return Step.PROMISE if after.state is JobState.PROMISED else Step.PLACE


def _target(record: JobRecord) -> Placement | None:
    return record.promise.placement if record.promise is not None else record.placement


def _same(before: JobRecord, after: JobRecord) -> bool:
    """Nothing a reader cares for differs: numbers of a reason and instants do not count."""
    if before is after:
        return True
    if {before.state, after.state} == {JobState.PENDING} and before.digest == after.digest:
        return True  # only why it waits differs, and what that does to its start is told as a forecast
    return (
        before.state is after.state
        and before.digest == after.digest
        and before.cause is after.cause
        and before.phase is after.phase
        and before.attempt == after.attempt
        and before.outcome is after.outcome
        and before.reason.code is after.reason.code
        and before.placement == after.placement
        and (before.promise and before.promise.placement) == (after.promise and after.promise.placement)
    )


def _stopping(after: JobRecord) -> Step:
    if after.cause in _EVICTED:
        return Step.PREEMPT
    return {Cause.CHANGED: Step.REPLACE, Cause.MOVED: Step.MOVE, Cause.RESIZED: Step.RESIZE}.get(
        after.cause or Cause.CANCELLED, Step.STOP
    )


def _waiting(before: JobRecord, after: JobRecord) -> Step:
    if after.state is JobState.HELD and before.state is not JobState.HELD:
        return Step.HOLD
    if before.digest != after.digest and before.state is not JobState.FINISHED:
        return Step.CHANGE
    return Step.HOLD if after.state is JobState.HELD else Step.WAIT


def _told(key: JobKey, before: JobRecord | None, after: JobRecord) -> str:
    """The word the decision itself has for it."""
    found = changes_between({key: before} if before is not None else {}, {key: after})
    return found[0].action.value if found else Step.PHASE.value
