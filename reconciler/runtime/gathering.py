"""Which decisions may wait for the next, so that many people who submit at once are few commits?

What stops, ends, moves or loses something is never kept waiting. What only places, starts or explains is committed at
once while that is seldom: four commits come free, then one each `repository.publishInterval`. What waits is decided
anew with each round and goes out with the first commit that is made, whatever that one is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from reconciler.model.decision import Action, Change
from reconciler.model.units import Nanoseconds

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
        free = FREE - 1 if actions & _ORDERS else FREE - 2
        return Nanoseconds(max(0, self._paid_until - free * interval - now))

    def committed(self, changes: Iterable[Change], interval: Nanoseconds, now: int) -> None:
        """Count a commit. One that could not wait is not held against those that can."""
        if {change.action for change in changes} <= _ORDERS | _RECORDS:
            self._paid_until = max(self._paid_until, now) + interval
