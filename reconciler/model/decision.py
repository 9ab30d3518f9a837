"""What `decide` returns: the whole next allocation, and what changed on the way there.

`changes` is derived by comparing with the previous allocation, so that the commit message, the preview and
the audit speak of the same list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from reconciler.model.allocation import Allocation
from reconciler.model.units import GpuSeconds, JobKey, NodeName

DECISION_VERSION = 1
"""Raised by any change that can move one byte of an existing decision; recorded in every generation."""


class Action(StrEnum):
    """What happened to one job between two generations, in the order a reader wants them."""

    PREEMPT = "preempt"
    MOVE = "move"
    RESIZE = "resize"
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
class Relocation:
    """A gang that moves from one node elsewhere, and the GPU-seconds of work that this throws away."""

    job: JobKey
    source: NodeName
    target: tuple[NodeName, ...]
    lost: GpuSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidying:
    """Moves that together free the NVLink domain on these nodes. Phi in millionths, of one GPU type."""

    nodes: tuple[NodeName, ...]
    gpus: int
    moves: tuple[Relocation, ...]
    phi_before_ppm: int
    phi_after_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`tidying` is what would free whole domains: proposed, or done if the rules say so. `changed` is False when nothing that deserves a commit differs from the previous allocation."""

    allocation: Allocation
    changes: tuple[Change, ...]
    tidying: tuple[Tidying, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A policy does not want this decision: its name, the code of the rule that failed, and what people read.

    `job`: whose start it does not want; None: the one that is found (rule book §2.10).
    """

    policy: str
    rule: str
    message: str
    job: JobKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A job makes others pay otherwise than the preview of its merge had shown. `unseen` are those it did not name.

    `preview` is the preview's digest, "" when none is known; `lost` and `lost_shown` are GPU-seconds of work.
    """

    job: JobKey
    preview: str
    unseen: tuple[JobKey, ...]
    lost: GpuSeconds
    lost_shown: GpuSeconds

    @property
    def told(self) -> str:
        """The difference in a clause."""
        of = f"preview sha256:{self.preview[:12]}" if self.preview else "no preview that is known"
        if not self.unseen:
            return f"{of} showed {self.lost_shown} GPU-seconds of lost work; it would be {self.lost}"
        more = f" and {len(self.unseen) - 5} more" if len(self.unseen) > 5 else ""
        named = ", ".join(self.unseen[:5])
        shown = f"{of} showed" if not self.preview else f"its {of} did not show"
        return f"would make {named}{more} pay, which {shown}"


Judge = Callable[[Decision], tuple[Denial, ...]]
"""Looks at a decision that is not made yet; pure, and nothing is left to chance in what it answers."""
