"""What the judge speaks of: the rules that can be broken, one case (four inputs), and what is looked up in it.

Which rule is broken where is for its siblings to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from reconciler.model.allocation import Allocation, JobRecord, Placement
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.observed import AttemptState, Observed
from reconciler.model.queue import PriorityClass
from reconciler.model.request import Ask
from reconciler.model.units import NODE_LEVEL, GpuType, JobKey, LevelName, Nanoseconds, NodeName, QueueName
from reconciler.topology.drift import effective

if TYPE_CHECKING:
    from reconciler.planner.verify.quotas import Tree

FINAL: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
"""How an incarnation ends for good."""
RUNS: Final = (AttemptState.RUNNING, AttemptState.EXITED)
"""What a node says of an attempt whose ranks were started."""


class Breach(StrEnum):
    """What a decision got wrong. The part before the comment is stable; tests and the record name it."""

    # the allocation as a whole
    WRONG_GENERATION = "WrongGeneration"  # not the successor of the previous one, or time ran backwards
    NO_RECORD = "NoRecord"  # a desired job without a record, hence without a reason
    LEFTOVER_RECORD = "LeftoverRecord"  # a job nobody wants that holds nothing either
    TOMBSTONE_LOST = "TombstoneLost"
    WRONG_USAGE = "WrongUsage"  # the accounts of fair share do not follow
    WRONG_RUN_LENGTHS = "WrongRunLengths"  # how long attempts ran was not counted as they ended
    # the life of one job
    ILLEGAL_MOVE = "IllegalMove"
    WRONG_PHASE = "WrongPhase"
    NOT_PREPARED = "NotPrepared"  # run before all nodes said prepared
    NOT_STARTED = "NotStarted"  # called running before all nodes said so
    WRONG_ATTEMPT = "WrongAttempt"
    WRONG_FENCE = "WrongFence"  # an attempt keeps the fence and the grace that its shims were started with
    STOPPED_WITHOUT_CAUSE = "StoppedWithoutCause"
    WRONG_COUNT = "WrongCount"  # failures and node losses, which use up the restarts, do not follow from what was seen
    BACK_OFF_CUT = "BackOffCut"  # begins again before its back-off is over
    NOT_RELEASED = "NotReleased"  # GPUs taken from an attempt that was not seen gone
    MOVED_WHILE_HOLDING = "MovedWhileHolding"
    # a new place
    NOT_WANTED = "NotWanted"  # suspended, invalid, changed, of no queue, or nobody asked for it
    NO_ACCOUNT = "NoAccount"
    USER_LIMIT = "UserLimit"
    ADMISSIONS_FROZEN = "AdmissionsFrozen"
    FINISHED_RUNS_AGAIN = "FinishedRunsAgain"
    GANG_NOT_WHOLE = "GangNotWhole"
    WRONG_RANKS = "WrongRanks"  # local ranks, or what hangs beside a GPU
    ROLE_SPLIT = "RoleSplit"
    NODE_UNFIT = "NodeUnfit"
    GPU_UNFIT = "GpuUnfit"
    WRONG_SPARES = "WrongSpares"  # more, smaller or elsewhere than asked for, or of a gang that holds nothing
    WRONG_GPU_TYPE = "WrongGpuType"
    ENGINES_SPANNED = "EnginesSpanned"
    MAINTENANCE_AHEAD = "MaintenanceAhead"
    NODE_OVERFULL = "NodeOverfull"  # CPUs or memory
    LEVEL_BROKEN = "LevelBroken"  # a required level, or a level the placement claims to have
    # between jobs
    GPU_TWICE = "GpuTwice"
    PROMISED_GPU = "PromisedGpu"
    PORT_TWICE = "PortTwice"
    HOLD_BROKEN = "HoldBroken"  # GPUs gathered for a starved job given to one that comes after it
    HOLD_UNFOUNDED = "HoldUnfounded"  # held for a job that does not wait, is not starved, or could not use them
    RESERVATION_DELAYED = "ReservationDelayed"  # the head of the line starts later because somebody behind it starts
    CEILING_EXCEEDED = "CeilingExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"  # more than is left of what nobody keeps to itself
    BEYOND_GUARANTEE = "BeyondGuarantee"  # a job that is not preemptible uses more than guarantees
    BORROWS_TOO_SOON = "BorrowsTooSoon"  # what was reclaimed borrows again within its cooldown
    # arrays
    TOO_MANY_TASKS = "TooManyTasks"  # more of one array at once than it says
    TASK_OUT_OF_TURN = "TaskOutOfTurn"  # more than one of an array disturbs others, or is held for, at once
    ENDED_WITHOUT_CAUSE = "EndedWithoutCause"  # a task called cancelled that nobody cancelled
    # victims
    NO_RIGHT_TO_EVICT = "NoRightToEvict"
    VICTIM_PROTECTED = "VictimProtected"
    VICTIM_IN_VAIN = "VictimInVain"
    WRONG_SIZE = "WrongSize"  # of an elastic gang, or of one that moves
    NOT_FREE_YET = "NotFreeYet"  # a gang moves into what another had
    TOO_MANY_MOVES = "TooManyMoves"  # for one start, or within the hour
    VICTIM_FIRST = "VictimFirst"  # a victim starts while its preemptor still waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that one job breaks; `job` is empty when the allocation as a whole does."""

    code: Breach
    job: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.code, self.job, self.detail) if part)


class Case:
    """The four inputs and what is looked up in them more than once."""

    def __init__(self, desired: Desired, observed: Observed, previous: Allocation, following: Allocation) -> None:
        self.desired, self.observed, self.previous, self.next = desired, observed, previous, following
        self.now = following.decided_at
        self.trees: dict[GpuType, Tree] = {}
        self.failed_arrays: dict[JobKey, bool] = {}  # asked of every task, answered once

    @cached_property
    def changed(self) -> list[tuple[JobRecord | None, JobRecord | None]]:
        """Records that differ, as (before, after), in the order of their keys."""
        old, new = self.previous.jobs, self.next.jobs
        if old is new:
            return []
        pairs = ((old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()))
        return [(before, after) for before, after in pairs if before is not after and before != after]

    @cached_property
    def started(self) -> list[tuple[JobRecord | None, JobRecord]]:
        """Changed records that are at a new place or have a new promise."""
        return [(b, a) for b, a in self.changed if a is not None and is_new(b, a)]

    @cached_property
    def returned(self) -> list[JobRecord]:
        """Those of them that waited, and in this incarnation gave borrowed GPUs back within the cooldown."""
        since = self.now - self.desired.scheduling.cooldown
        return [
            after
            for before, after in self.started
            if before is not None and before.reclaimed is not None and before.reclaimed > since
            if before.digest == after.digest
            if not before.state.holds_gpus and before.state is not JobState.PROMISED
        ]

    @cached_property
    def nodes(self) -> dict[NodeName, Node]:
        """The declared nodes by name, with the shapes that their links were seen to leave."""
        return {node.name: node for node in effective(self.desired.inventory, self.observed).nodes}

    @cached_property
    def depths(self) -> dict[LevelName, int]:
        """How far each level lies above the node, 0 the node itself, below 0 inside it."""
        names = [level.name for level in self.desired.inventory.levels]
        return {name: index - names.index(NODE_LEVEL) for index, name in enumerate(names)}

    @cached_property
    def waiting(self) -> tuple[JobRecord, ...]:
        """The jobs that have victims and are still promised what these give up."""
        return tuple(r for r in self.next.jobs.values() if r.victims and r.state is JobState.PROMISED)

    @cached_property
    def shut(self) -> dict[NodeName, list[tuple[int, int, frozenset[QueueName]]]]:
        """Windows by node: when they begin and end, and the queues that they are for (none: maintenance)."""
        found: dict[NodeName, list[tuple[int, int, frozenset[QueueName]]]] = {}
        for window in self.desired.windows:
            found.setdefault(window.node, []).append((window.begins, window.ends, frozenset(window.members)))
        return found

    @cached_property
    def claims(self) -> dict[NodeName, list[tuple[JobRecord, int, int]]]:
        """(job, GPUs held, GPUs promised) on each node where something new is placed or promised."""
        touched = {node for b, a in self.started for place in new_places(b, a) for node in place.nodes}
        touched |= {node for b, a in self.changed if a is not None and a.spares for node in fresh_spares(b, a)}
        found: dict[NodeName, list[tuple[JobRecord, int, int]]] = {node: [] for node in touched}
        for record in self.next.jobs.values() if touched else ():
            held, promised = bound_by(record), record.promise.placement.masks if record.promise else {}
            for node in dict.fromkeys((*held, *promised)):
                if node in touched:
                    found[node].append((record, held.get(node, 0), promised.get(node, 0)))
        return found

    def gpu_type(self, place: Placement | None) -> GpuType:
        """The one type of a gang's GPUs."""
        node = self.nodes.get(place.ranks[0].node) if place and place.ranks else None
        return node.shape.gpu_type if node else GpuType("")

    @cached_property
    def live(self) -> dict[JobKey, int]:
        """The attempt of each job that holds GPUs; every other that a node reports alive is a stray."""
        return {record.job: record.attempt for record in self.next.jobs.values() if record.state.holds_gpus}

    def limit(self, job: Job | None) -> Nanoseconds | None:
        """How long an attempt may run; None without end."""
        own = job.time_limit if job else None
        return own if own is not None else self.desired.scheduling.default_time_limit

    def priority(self, job: Job) -> PriorityClass | None:
        """The class of a job, when there is one of that name."""
        return self.desired.classes.get(job.priority_class)

    def asked_for(self, key: JobKey, *asks: Ask) -> bool:
        """Whether a request in force asks one of these of the job."""
        request = self.desired.request_about(key)
        return request is not None and request.ask in asks

    def reports(self, record: JobRecord, states: Iterable[AttemptState]) -> bool:
        """All nodes of this attempt say that it is in one of these states."""
        wanted = frozenset(states)
        for node in record.placement.nodes if record.placement else ():
            seen = self.observed.nodes.get(node)
            said = seen.attempt(record.job, record.attempt) if seen else None
            if said is None or said.state not in wanted:
                return False
        return record.placement is not None


def held_by(record: JobRecord | None) -> dict[NodeName, int]:
    """GPU masks by node on which a job has ranks."""
    return record.placement.masks if record and record.placement and record.state.holds_gpus else {}


def bound_by(record: JobRecord | None) -> dict[NodeName, int]:
    """GPU masks by node that nobody else can have because of a job: those with ranks, and its spares."""
    if record is None or not record.state.holds_gpus:
        return {}
    held = held_by(record)
    return {**held, **{one.node: one.mask for one in record.spares}} if record.spares else held


def fresh_spares(before: JobRecord | None, after: JobRecord) -> dict[NodeName, int]:
    """Masks by node of the spares that were not spares of the same attempt before."""
    goes_on = before is not None and before.attempt == after.attempt
    known = {*before.spares} if before is not None and goes_on else set()
    return {one.node: one.mask for one in after.spares if one not in known}


def is_new(before: JobRecord | None, after: JobRecord) -> bool:
    """True when this decision gives the job something."""
    return any(True for _ in new_places(before, after))


def new_places(before: JobRecord | None, after: JobRecord) -> Iterator[Placement]:
    """What this decision gives: GPUs to a new attempt, a promise that was not there before."""
    goes_on = before is not None and held_by(before) and before.attempt == after.attempt
    if after.placement and after.state.holds_gpus and not goes_on:
        yield after.placement
    if after.promise and not (before and before.promise and before.promise.placement == after.promise.placement):
        yield after.promise.placement
