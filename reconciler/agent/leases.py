"""Until when may what runs here go on while nobody answers? Each answer of a reconciler renews the leases.

A lease is a file in the attempt's folder, which its shims read: they end their ranks when it is over, agent or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from reconciler.agent import proc
from reconciler.agent.attempts import Stage
from reconciler.agent.journal import Key
from reconciler.agent.roster import Roster
from reconciler.wire import AttemptOrder

_SECOND = 1_000_000_000


class Leases:
    """When the lease of each attempt that has one ends, in boottime ns. `renewed` is called when that may have moved."""

    def __init__(self, roster: Roster, renewed: Callable[[], None]) -> None:
        self._roster, self._renewed = roster, renewed
        self._ends: dict[Key, int] = {}

    def renew(self, sent: int, seconds: int) -> None:
        """A reconciler answered a report sent at boottime `sent`: leases run from then, so that theirs end later.

        An answer to an older report may come after that to a newer one; it shortens nothing.
        """
        with self._roster.lock:
            for key, order in self._roster.orders.items():
                if order.fence == "lease":
                    end = sent + min(seconds, order.leaseSeconds or seconds) * _SECOND
                    self._ends[key] = max(end, self._ends.get(key, 0))
                    with contextlib.suppress(OSError):  # a lease that cannot be written ends, which is safe
                        if self._roster.is_live(key):
                            self._roster.folder_of(key).extend_lease(self._ends[key])
        self._renewed()

    def shortest(self) -> int:
        """The shortest lease, in seconds, that something here runs under, or soon will; 0 when nothing does."""
        with self._roster.lock:
            over = (Stage.ENDED, Stage.REFUSED)
            orders = [order for key, order in self._roster.orders.items() if self._roster.stage_of(key) not in over]
            leased = [order.leaseSeconds for order in orders if order.fence == "lease"]
        return min(leased, default=0)

    def is_over(self, key: Key, order: AttemptOrder) -> bool:
        """Nobody has answered within the lease that it is to run under; False when it needs none."""
        return order.fence == "lease" and self._ends.get(key, 0) <= proc.boottime()

    def write(self, key: Key, order: AttemptOrder) -> None:
        """Let the shims of an attempt find the lease it has, if it needs one. Raises OSError."""
        if order.fence == "lease":
            self._roster.folder_of(key).extend_lease(self._ends[key])

    def forget(self, key: Key) -> None:
        """Nothing of the attempt runs any more."""
        self._ends.pop(key, None)
