"""What did the planner decide, in the words of the format? A plan by job names, node names and counts.

Everything that judges an answer reads this value and the scenario, nothing of the planner: a plan written by hand is
judged just the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from reconciler.model.allocation import Allocation, JobRecord, Placement
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import JobKey
from reconciler.runtime.scenario.past import key_of
from reconciler.runtime.scenario.world import Seats, World, seats_by_node, workers_of

CLASSES: Final[Mapping[str, str]] = {
    "NeverFits": "never_fits", "NeverFitsQuota": "quota",
    "QuotaCeiling": "quota", "QuotaExhausted": "quota", "LendLimit": "quota", "NonPreemptibleOverGuarantee": "quota",
    "FairShareReached": "fair_share", "WaitingForVictims": "stopping",
    "HeldFor": "held_for", "AfterPreemptor": "held_for", "BlockedByEarlier": "held_for",
    "NodeState": "node_state", "Maintenance": "node_state", "NodeLost": "node_state", "RepairWait": "node_state",
    "NoSpare": "node_state", "GpuTypeMissing": "gpu_type", "GpuTypeSplit": "gpu_type", "Capacity": "capacity",
    "NoDomainFits": "fragmented", "GroupsDoNotFit": "fragmented", "NodeResources": "fragmented",
    "SearchLimit": "fragmented", "Protected": "protected", "ProtectedUntil": "protected",
    "WouldDelay": "would_delay", "StartsSoon": "would_delay",
}  # fmt: skip
"""The format's class of each reason; others have none."""

EARLIEST: Final = "earliestStart"
"""The number of a waiting job's reason that says when it can start at the earliest, in nanoseconds."""

_EVICTED: Final = frozenset({Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A job that gets a place now, or as soon as others have left it."""

    outcome: str
    seats: Seats


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    """A running job moved, or made smaller: where it goes on, and for whom ("" for nobody)."""

    seats: Seats
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job without a place: `wait` or `impossible`, the class of the reason, and what it still holds."""

    outcome: str
    reason_class: str
    text: str
    holds: int = 0
    earliest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision. Each job of the scenario is in exactly one of these; `evicted` names for whom."""

    started: Mapping[str, Started] = field(default_factory=dict)
    evicted: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, Displaced] = field(default_factory=dict)
    shrunk: Mapping[str, Displaced] = field(default_factory=dict)
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    kept: Mapping[str, Seats] = field(default_factory=dict)

    def outcome(self, job: str) -> str:
        """What becomes of a job, in the format's words; for running jobs also evict, move and shrink."""
        if job in self.started:
            return self.started[job].outcome
        if job in self.waiting:
            return self.waiting[job].outcome
        for word, jobs in (("evict", self.evicted), ("move", self.moved), ("shrink", self.shrunk), ("keep", self.kept)):
            if job in jobs:
                return word
        return "gone"

    def seats(self, job: str) -> Seats | None:
        """Where the job is once the plan has been carried out; None when it is nowhere."""
        if job in self.started:
            return self.started[job].seats
        displaced = self.moved.get(job) or self.shrunk.get(job)
        return displaced.seats if displaced is not None else self.kept.get(job)

    def displaced_for(self, job: str) -> dict[str, str]:
        """Who makes room for this job, and how: evict, move or shrink."""
        found = {victim: "evict" for victim, owner in self.evicted.items() if owner == job}
        found |= {name: "move" for name, one in self.moved.items() if one.owner == job}
        return found | {name: "shrink" for name, one in self.shrunk.items() if one.owner == job}


def plan_of(world: World, before: Allocation, after: Allocation, why: Callable[[JobRecord], str]) -> Plan:
    """The step from one allocation to the next, as a plan. `why` explains one job that waits."""
    reader = _Reader(world, before, after, why)
    for row in world.scenario.rows:
        reader.read(row.job, key_of(row))
    return Plan(
        started=reader.started, evicted=reader.evicted, moved=reader.moved, shrunk=reader.shrunk,
        waiting=reader.waiting, kept=reader.kept,
    )  # fmt: skip


class _Reader:
    """Sorts each record into the part of the plan that it belongs to."""

    def __init__(self, world: World, before: Allocation, after: Allocation, why: Callable[[JobRecord], str]) -> None:
        self._world, self._before, self._after, self._why = world, before, after, why
        self._names = {key_of(row): row.job for row in world.scenario.rows}
        self.started: dict[str, Started] = {}
        self.evicted: dict[str, str] = {}
        self.moved: dict[str, Displaced] = {}
        self.shrunk: dict[str, Displaced] = {}
        self.waiting: dict[str, Waiting] = {}
        self.kept: dict[str, Seats] = {}

    def read(self, name: str, key: JobKey) -> None:
        """Put one job where it belongs."""
        record, past = self._after.jobs.get(key), self._before.jobs[key]
        if record is None:
            return
        if past.state is JobState.RUNNING:
            self._read_running(name, record)
        elif past.state is JobState.STOPPING and record.state is JobState.STOPPING:
            self.kept[name] = _seats(record.placement)
        elif record.state is JobState.STARTING:
            self.started[name] = Started(outcome=self._way_of(name, past, record), seats=_seats(record.placement))
        elif record.promise is not None and record.promise != past.promise:
            self.started[name] = Started(outcome=self._harm_of(record), seats=_seats(record.promise.placement))
        else:
            self.waiting[name] = _waiting(record, self._why(record))

    def _read_running(self, name: str, record: JobRecord) -> None:
        owner = self._names.get(record.preemptor, "") if record.preemptor is not None else ""
        place = _seats(record.promise.placement) if record.promise is not None else ()
        if record.state is not JobState.STOPPING:
            self.kept[name] = _seats(record.placement)
        elif record.cause is Cause.MOVED and place:
            self.moved[name] = Displaced(seats=place, owner=owner)
        elif record.cause is Cause.RESIZED and place:
            self.shrunk[name] = Displaced(seats=place, owner=owner)
        elif record.cause in _EVICTED:
            self.evicted[name] = owner
        else:
            self.waiting[name] = _waiting(record, self._why(record))

    def _way_of(self, name: str, past: JobRecord, record: JobRecord) -> str:
        """A start; a repair, when it was broken and every worker that was left is where it was."""
        if not self._world.is_broken(name):
            return "start"
        had, has = seats_by_node(_seats(past.placement)), seats_by_node(_seats(record.placement))
        return "repair" if had and all(has.get(node, 0) >= gpus for node, gpus in had.items()) else "restart"

    def _harm_of(self, record: JobRecord) -> str:
        """The worst that others suffer for a promise; GPUs that were being released anyway count as evictions."""
        causes = {
            other.cause
            for key, other in self._after.jobs.items()
            if other.preemptor == record.job and other.state is JobState.STOPPING
            and self._before.jobs[key].state is not JobState.STOPPING
        }  # fmt: skip
        if not causes or causes & _EVICTED:
            return "start_after_evictions"
        return "start_after_moves" if Cause.MOVED in causes else "start_after_shrink"


def _seats(place: Placement | None) -> Seats:
    return tuple(rank.node for rank in place.ranks) if place is not None else ()


def _waiting(record: JobRecord, text: str) -> Waiting:
    earliest = record.reason.number(EARLIEST)
    return Waiting(
        outcome="impossible" if record.reason.code is ReasonCode.NEVER_FITS else "wait",
        reason_class=CLASSES.get(record.reason.code, ""), text=text, holds=record.gpus_held,
        earliest=earliest if isinstance(earliest, int) else None,
    )  # fmt: skip


def given_up(world: World, plan: Plan) -> dict[str, int]:
    """Workers that each shrunk job gives up."""
    found = {}
    for name, shrunk in plan.shrunk.items():
        row = world.running[name]
        had = len(workers_of(row, tuple(node for node, gpus in row.placement.items() for _ in range(gpus))))
        found[name] = had - len(workers_of(row, shrunk.seats))
    return found
