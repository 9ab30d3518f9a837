"""The life of a job: its states, what each holds, and every move between them, in one table.

Code asks `check_move` before it changes a state; `.github/LIFECYCLE.md` is generated from the same rows.
Everything that decides *when* a move happens lives in `planner.steps` and `planner.classify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reconciler.errors import BrokenInvariant


class JobState(StrEnum):
    """Invalid is no state but an overlay: the last valid form goes on, frozen."""

    HELD = "Held"
    PENDING = "Pending"
    PROMISED = "Promised"
    STARTING = "Starting"
    RUNNING = "Running"
    LOST = "Lost"
    REPAIRING = "Repairing"
    STOPPING = "Stopping"
    FINISHED = "Finished"

    @property
    def holds_gpus(self) -> bool:
        """Its GPUs belong to it, and are charged to its queue."""
        return self in _HOLDING


_HOLDING = frozenset(
    {JobState.STARTING, JobState.RUNNING, JobState.LOST, JobState.REPAIRING, JobState.STOPPING},
)


class Phase(StrEnum):
    """What a gang's nodes are ordered to do; the only order there is.

    Checkpoint: signal, wait for the marker or the grace, then stop. Stop: SIGTERM, then kill.
    """

    PREPARE = "prepare"
    RUN = "run"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


class Cause(StrEnum):
    """Why a gang is stopping. A stronger cause arriving meanwhile only changes where it ends."""

    PREEMPTED = "Preempted"
    RECLAIMED = "Reclaimed"
    FAIR_SHARE = "FairShare"
    MOVED = "Moved"
    RESIZED = "Resized"
    MAINTENANCE = "Maintenance"
    NODE_REMOVED = "NodeRemoved"
    NODE_LOST = "NodeLost"
    START_FAILED = "StartFailed"
    RANK_FAILED = "RankFailed"
    TIME_LIMIT = "TimeLimit"
    IDLE = "Idle"
    SUSPENDED = "Suspended"
    CHANGED = "Changed"
    CANCELLED = "Cancelled"

    @property
    def strength(self) -> int:
        """Cancelled > Changed > Suspended > TimeLimit, Idle > the rest (rule book §1)."""
        return _STRENGTH.get(self, 0)


_STRENGTH = {Cause.CANCELLED: 4, Cause.CHANGED: 3, Cause.SUSPENDED: 2, Cause.TIME_LIMIT: 1, Cause.IDLE: 1}


class Outcome(StrEnum):
    """How an incarnation ended. Succeeded, Failed, TimedOut and Replaced never run again; a Cancelled one
    may, when its file comes back."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    REPLACED = "Replaced"


@dataclass(frozen=True, slots=True)
class Move:
    """One allowed change of state: from, to, when it happens, and who makes it happen."""

    source: JobState | None
    target: JobState
    when: str
    by: str


MOVES: tuple[Move, ...] = (
    Move(None, JobState.PENDING, "first seen; its age begins", "desired"),
    Move(None, JobState.HELD, "first seen, and not a candidate yet", "desired"),
    Move(JobState.HELD, JobState.PENDING, "resumed, dependency met, back-off over", "desired, decide"),
    Move(JobState.PENDING, JobState.HELD, "suspended, waits for a dependency, never fits", "desired, decide"),
    Move(JobState.PENDING, JobState.STARTING, "fits free capacity", "decide"),
    Move(JobState.PENDING, JobState.PROMISED, "fits with GPUs being released, or with victims", "decide"),
    Move(JobState.PROMISED, JobState.STARTING, "every GPU of its target was seen released", "observation"),
    Move(JobState.PROMISED, JobState.PENDING, "its promise was dropped", "decide"),
    Move(JobState.PROMISED, JobState.HELD, "suspended or replaced while it waited", "desired"),
    Move(JobState.STARTING, JobState.RUNNING, "all ranks were seen started", "observation"),
    Move(JobState.STARTING, JobState.STOPPING, "a node refused, or the start took too long", "observation"),
    Move(JobState.STARTING, JobState.LOST, "a node is silent past lostAfter", "observation"),
    Move(JobState.STARTING, JobState.FINISHED, "all ranks ended before they were seen running", "observation"),
    Move(
        JobState.RUNNING,
        JobState.STOPPING,
        "preempted, changed, cancelled, over its limit, or a rank failed",
        "decide, desired",
    ),
    Move(JobState.RUNNING, JobState.FINISHED, "all ranks exited with 0", "observation"),
    Move(JobState.RUNNING, JobState.LOST, "a node is silent past lostAfter", "observation"),
    Move(JobState.LOST, JobState.RUNNING, "the node is back with all ranks alive", "observation"),
    Move(JobState.LOST, JobState.STARTING, "the node is back and its ranks are still starting", "observation"),
    Move(JobState.LOST, JobState.REPAIRING, "the loss is fenced: no rank is left on it", "observation"),
    Move(
        JobState.LOST, JobState.STOPPING, "the loss is fenced, or the job is no longer wanted", "observation, desired"
    ),
    Move(
        JobState.REPAIRING,
        JobState.STARTING,
        "spare or free nodes complete it again, or its back-off is over",
        "decide",
    ),
    Move(JobState.REPAIRING, JobState.PENDING, "repairWait is over: the rest is released", "decide"),
    Move(JobState.REPAIRING, JobState.STOPPING, "no longer wanted", "desired"),
    Move(JobState.STOPPING, JobState.PENDING, "all its GPUs were seen released; it goes on later", "observation"),
    Move(JobState.STOPPING, JobState.HELD, "released; suspended or backing off", "observation"),
    Move(JobState.STOPPING, JobState.STARTING, "released; goes on in its own promise", "observation"),
    Move(JobState.STOPPING, JobState.PROMISED, "released; waits for the rest of its own promise", "observation"),
    Move(
        JobState.STOPPING,
        JobState.REPAIRING,
        "released; lost nodes are to be replaced, or a short back-off runs; the rest is kept",
        "observation",
    ),
    Move(JobState.STOPPING, JobState.FINISHED, "released; cancelled, replaced, failed or timed out", "observation"),
    Move(JobState.HELD, JobState.FINISHED, "cancelled or replaced before it ran", "desired"),
    Move(JobState.PENDING, JobState.FINISHED, "cancelled or replaced before it ran", "desired"),
    Move(JobState.PROMISED, JobState.FINISHED, "cancelled or replaced before it ran", "desired"),
    Move(JobState.FINISHED, JobState.PENDING, "its file came back, or asks for another run", "desired"),
    Move(JobState.FINISHED, JobState.HELD, "its file came back, and it is not a candidate yet", "desired"),
)

_ALLOWED = frozenset((m.source, m.target) for m in MOVES)


def check_move(source: JobState | None, target: JobState) -> JobState:
    """`target`, when the table allows the move (staying is always allowed). Raises BrokenInvariant otherwise."""
    if source is not target and (source, target) not in _ALLOWED:
        raise BrokenInvariant(f"no move from {source} to {target} in the lifecycle table")
    return target


def lifecycle_page() -> str:
    """The table as Markdown: the text of `.github/LIFECYCLE.md`."""
    rows = [f"| {m.source or 'absent'} | {m.target} | {m.when} | {m.by} |" for m in MOVES]
    head = [
        "# The life of a job",
        "",
        "Generated from `reconciler/model/lifecycle.py`; a test fails when this page is stale.",
        "States that hold GPUs: " + ", ".join(s for s in JobState if s.holds_gpus) + ".",
        "",
        "| from | to | when | by |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"
