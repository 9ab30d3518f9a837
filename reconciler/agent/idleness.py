"""Does anybody use a session? Not when nobody is in it and its processes have done next to nothing for a while.

A GPU that works is fed by a process that does, so the CPU time of everything that a session's shims started tells both.
What ends a session is decided elsewhere; here it is only noticed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reconciler.agent import proc
from reconciler.agent.journal import Key

Shims = Mapping[int, Mapping[str, str]]
"""Facts about the shims of one attempt, by rank."""

BUSY_PERCENT = 1
"""Of one CPU; less is a program that waits."""
QUIET_SECONDS = 60
"""How long nothing has to happen before it is told at all; sooner, where a session ends sooner."""
_SECOND = 1_000_000_000
_TICK = _SECOND // os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 5


@dataclass(frozen=True)
class Looked:
    """A session as looked at last: CPU time used until then (ns), when (boottime ns), and since when it is quiet, in
    boottime and on the wall clock as it was then."""

    used: int
    at: int
    quiet_since: int
    quiet_at: int


class Sessions:
    """The sessions that run here. `idle` has the instant (wall clock, ns) since which nobody uses one, by attempt."""

    def __init__(self) -> None:
        self.idle: dict[Key, int] = {}
        self._looked: dict[Key, Looked] = {}

    def look(self, running: Mapping[Key, tuple[int, Shims]]) -> bool:
        """Whether one of them fell idle, or is used again. Each with how many idle seconds end it (0: none do)."""
        now, before = proc.boottime(), self.idle
        self._looked = {
            key: look_again(self._looked.get(key), used_by(facts), attached_to(facts), now, time.time_ns())
            for key, (_, facts) in running.items()
        }
        idle = {key: idle_since(seen, running[key][0], now) for key, seen in self._looked.items()}
        self.idle = {key: since for key, since in idle.items() if since is not None}
        return self.idle != before


def look_again(before: Looked | None, used: int, attached: int, now: int, wall: int) -> Looked:
    """What this look adds to the one before. `used` is CPU time in ns, `attached` how many people are in it."""
    if before is None or attached:
        return Looked(used, now, now, wall)
    if now - before.at < _LOOK_SECONDS * _SECOND and used - before.used <= _busy(_LOOK_SECONDS * _SECOND):
        return before  # clock ticks are coarse: a short look would call one of them much
    # Used less than before: a process has ended, and so something was done.
    busy = used < before.used or used - before.used > _busy(now - before.at)
    return Looked(used, now, now, wall) if busy else replace(before, used=used, at=now)


def _busy(span: int) -> int:
    return span * BUSY_PERCENT // 100 + 2 * _TICK


def idle_since(seen: Looked, idle_seconds: int, now: int) -> int | None:
    """The wall-clock instant (ns) since which nobody uses it; None while that is not sure yet."""
    wait = min(QUIET_SECONDS, idle_seconds // 2) if idle_seconds else QUIET_SECONDS
    return seen.quiet_at if now - seen.quiet_since >= wait * _SECOND else None


def used_by(facts: Shims) -> int:
    """CPU time, in ns, of all that these shims started and that still runs."""
    return sum(proc.cpu_time(pid) for shim in facts.values() for pid in proc.descendants_of(int(shim["shim"])))


def attached_to(facts: Shims) -> int:
    """How many shells are open in them."""
    return sum(int(shim.get("shells", "0")) for shim in facts.values())
