"""How does the loop wait for an engine? Until there is news, somebody calls, or the time is over: alike for all engines."""

from __future__ import annotations

import threading

from reconciler.model.units import SECOND, Nanoseconds


class Newsworthy:
    """`wait` and `wake` of an engine that sets `_news` when a fact changes."""

    _news: threading.Event

    def wait(self, timeout: Nanoseconds) -> bool:
        """Until a fact changes or `wake` (True), or the time is over (False)."""
        if not self._news.wait(timeout / SECOND):
            return False
        self._news.clear()
        return True

    def wake(self) -> None:
        """End the present `wait`, or the next one if there is none."""
        self._news.set()
