"""The real clock. The only module that reads time for the record."""

from __future__ import annotations

import time

from reconciler.model.units import Instant, Nanoseconds


class SystemClock:
    """Wall time for records, boot time (which counts through suspend) for measuring silence."""

    def now(self) -> Instant:
        return Instant(time.time_ns())

    def monotonic(self) -> Nanoseconds:
        return Nanoseconds(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
