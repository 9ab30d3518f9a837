"""What `decide` returns: the whole next allocation, and what changed on the way there.

`changes` is derived by comparing with the previous allocation, so that the commit message, the preview and
the audit speak of the same list.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reconciler.model.allocation import Allocation
from reconciler.model.units import JobKey

DECISION_VERSION = 1
"""Raised by any change that can move one byte of an existing decision; recorded in every generation."""


class Action(StrEnum):
    """What happened to one job between two generations, in the order a reader wants them."""

    PREEMPT = "preempt"
    PLACE = "place"
    PROMISE = "promise"
    REPLACE = "replace"
    STOP = "stop"
    START = "start"
    RUNNING = "running"
    LOST = "lost"
    RELEASE = "release"
    FINISH = "finish"
    WAIT = "wait"
    HOLD = "hold"
    DROP = "drop"
    PHASE = "phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One job's step from the previous generation to this one."""

    action: Action
    job: JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`changed` is False when nothing that deserves a commit differs from the previous allocation."""

    allocation: Allocation
    changes: tuple[Change, ...]

    @property
    def changed(self) -> bool:
        return bool(self.changes)
