"""What was seen of a gang on one of its nodes, and is it gone from there?

A missing report is never a release: only a receipt, a fenced loss or a node that left the world is. What follows
for the gang is for `steps`.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Fence
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import (
    DEADLINE_PASSED,
    ENDED_BY_NODE,
    AttemptReport,
    AttemptState,
    NodeCondition,
    NodeObservation,
    Observed,
)
from reconciler.model.units import Instant, NodeName
from reconciler.planner.memo import masks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one node of a gang was seen to be: `seen` is None when it is not observed, `left` when it is not even
    declared any more."""

    node: NodeName
    seen: NodeObservation | None
    report: AttemptReport | None
    left: bool

    @property
    def lost(self) -> bool:
        """Silent past `lostAfter`, with ranks that may still be alive."""
        return self.seen is not None and self.seen.condition is NodeCondition.LOST and not self.released

    @property
    def released(self) -> bool:
        """Its receipt says that no process of the attempt is left, or the node left the world."""
        return self.left or (self.report is not None and self.report.state.released)

    @property
    def is_off(self) -> bool:
        """It cannot be used now, whatever became of its ranks: silent past `lostAfter`, or not there any more."""
        return self.seen is None or self.seen.condition is NodeCondition.LOST

    def fenced(self, fence: Fence) -> bool:
        """No rank can be alive on it: released, declared dead, or its lease is over (for an attempt that has one)."""
        if self.released:
            return True
        if self.seen is None or self.seen.condition is not NodeCondition.LOST:
            return False
        return self.seen.confirmed_dead or (fence is Fence.LEASE and self.seen.lease_expired)

    @property
    def failed(self) -> bool:
        """A rank ended by itself with another status than 0."""
        return self.is_in(AttemptState.EXITED) and self.report is not None and bool(self.report.exit_code)

    @property
    def fell(self) -> bool:
        """The node went down beneath the ranks, or cut off for so long that it ended them: no fault of theirs."""
        return self.is_in(AttemptState.GONE) and self.report is not None and self.report.reason in ENDED_BY_NODE

    @property
    def outran(self) -> bool:
        """The node ended the attempt at its time limit, without being told."""
        return self.is_in(AttemptState.GONE) and self.report is not None and self.report.reason == DEADLINE_PASSED

    def is_in(self, *states: AttemptState) -> bool:
        return self.report is not None and self.report.state in states


def all_is_well(record: JobRecord, observed: Observed) -> bool:
    """Every node of a running gang is heard and says Running: by far the commonest case, so it is settled first."""
    if record.placement is None:
        return False
    nodes, job, attempt = observed.nodes, record.job, record.attempt
    for name in masks_of(record.placement):
        seen = nodes.get(name)
        if seen is None or seen.condition is NodeCondition.LOST:
            return False
        for report in seen.attempts:
            if report.job == job and report.attempt == attempt:
                if report.state is not AttemptState.RUNNING:
                    return False
                break
        else:
            return False
    return True


def is_overdue(record: JobRecord, observed: Observed, now: Instant) -> bool:
    """A gang past the deadline of its stop that could not be killed, or is silent and not fenced.

    It is let go of as a whole, so nobody may count on any GPU of it.
    """
    if record.state is not JobState.STOPPING or record.deadline is None or now < record.deadline:
        return False
    seen = (observed.nodes.get(node) for node in (record.placement.nodes if record.placement else ()))
    return any(node is not None and _clings(node, record) for node in seen)


def _clings(node: NodeObservation, record: JobRecord) -> bool:
    said = node.attempt(record.job, record.attempt)
    if said is not None and said.state.released:
        return False
    return node.condition is NodeCondition.LOST or (said is not None and said.state is AttemptState.KILL_FAILED)
