"""Is a decision committed now, or does it wait for the next, so that many people who submit at once are few commits?

Requests and withheld changes are recorded at once. What stops, ends, moves or loses something is never kept waiting. What only places, starts or explains is committed at
once while that is seldom: four commits come free, then one each `repository.publishInterval`. What waits is decided
anew with each round and goes out with the first commit that is made, whatever that one is for. Of what was only observed, nodes that came, went or
changed are recorded once a cycle, receipts and checkpoint times once `observed.coalesce`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from reconciler.documents.withheld import WITHHELD
from reconciler.model.decision import Action, Change
from reconciler.model.desired import RepositoryRules
from reconciler.model.observed import NodeObservation, Observed
from reconciler.model.units import Nanoseconds, NodeName
from reconciler.ports import Clock
from reconciler.runtime.generation import Generation, NextGeneration
from reconciler.runtime.requests import news

FREE: Final = 4
"""Commits that need not wait when there was none for a while: one job alone takes three from its place to Running."""
_ORDERS: Final = frozenset({Action.PLACE, Action.START})
_RECORDS: Final = frozenset({Action.PROMISE, Action.RUNNING, Action.WAIT, Action.HOLD})
"""What nobody's work waits for: it leaves the last free commit to somebody's start."""


class Gathering:
    """Spaces out the commits of one reconciler. `interval` 0: nothing ever waits. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self._paid_until = 0
        """When all commits so far would have been due, had they come one an interval."""

    def wait(self, changes: Iterable[Change], interval: Nanoseconds, now: int) -> Nanoseconds:
        """How long a decision with these changes may have to wait still; 0: it is to be committed now."""
        actions = {change.action for change in changes}
        if not actions <= _ORDERS | _RECORDS:
            return Nanoseconds(0)
        # More than is owed after a burst is left from when the interval was longer.
        self._paid_until = min(self._paid_until, now + FREE * interval)
        free = FREE - 1 if actions & _ORDERS else FREE - 2
        return Nanoseconds(max(0, self._paid_until - free * interval - now))

    def committed(self, changes: Iterable[Change], interval: Nanoseconds, now: int) -> None:
        """Count a commit. One that could not wait is not held against those that can."""
        if {change.action for change in changes} <= _ORDERS | _RECORDS:
            self._paid_until = max(self._paid_until, now) + interval


class Due:
    """When the decisions of one loop are due to be committed. Without `gathering` none that changes something waits."""

    def __init__(self, clock: Clock, gathering: Gathering | None) -> None:
        self._clock, self._gathering = clock, gathering
        self.at: Nanoseconds | None = None
        """When the one that waits is due, on the monotonic clock; None: none waits."""

    def is_due(
        self, following: NextGeneration, current: Generation, rules: RepositoryRules, taken: Sequence[str]
    ) -> bool:
        """Whether `following` is to be committed now. `taken`: what is taken in besides what is decided."""
        self.at = None
        inputs = following.inputs
        if inputs.frozen.get(WITHHELD) != current.frozen.get(WITHHELD):
            return True
        if (following.decision.changed or taken) and not self._may_wait(following, rules):
            return True
        if news(current.observed.requests, inputs.observed.requests):
            return True
        if not following.observed_moved:
            return False
        nodes_moved = _apart_from_receipts(inputs.observed) != _apart_from_receipts(current.observed)
        waited = inputs.now - current.allocation.decided_at
        return waited >= (rules.cycle_interval if nodes_moved else rules.observed_coalesce)

    def _may_wait(self, following: NextGeneration, rules: RepositoryRules) -> bool:
        if self._gathering is None:
            return False
        now = self._clock.monotonic()
        wait = self._gathering.wait(following.decision.changes, rules.publish_interval, now)
        self.at = Nanoseconds(now + wait) if wait else None
        return wait > 0

    def committed(self, following: NextGeneration, rules: RepositoryRules, taken: Sequence[str]) -> None:
        """It is on record."""
        self.at = None
        if self._gathering is not None and (following.decision.changed or taken):
            self._gathering.committed(following.decision.changes, rules.publish_interval, self._clock.monotonic())


def _apart_from_receipts(observed: Observed) -> dict[NodeName, NodeObservation]:
    return {name: replace(seen, attempts=()) for name, seen in observed.nodes.items()}
