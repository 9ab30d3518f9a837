"""What happens when these jobs come to this cluster? The real planner, round by round, in virtual time.

Time jumps from one thing that happens to the next: a job comes, ranks end, a node has done what it was told, or what
was decided could turn out otherwise for the time alone (`Decider.next_turn`). At each instant it is decided until nothing
changes any more; each decision is judged by `verify`, as the loop does it, before anything is made of it. Nothing is
written anywhere, and no clock is read: the same jobs on the same cluster always give the same.

Looks for the time alone are spaced out, further each time that one comes to nothing, to five minutes, and an hour where
no comparison says when: the loop looks every few seconds. GPUs that come free and time limits are looked at at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from reconciler.errors import BrokenInvariant
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.decision import Decision
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.observed import Observed, Person, Proof, Provenance
from reconciler.model.reasons import ReasonCode, sentence
from reconciler.model.tombstones import Tombstones
from reconciler.model.units import HOUR, MINUTE, SECOND, CommitId, Instant, JobKey
from reconciler.planner.people import limits_people
from reconciler.planner.still import Decider
from reconciler.planner.verify import violations
from reconciler.runtime.generation import assumed
from reconciler.runtime.simulation.agents import Agents, Pace
from reconciler.runtime.simulation.setting import BEGIN, Setting, Submission
from reconciler.runtime.simulation.tally import Tally

_NEVER: Final = frozenset({ReasonCode.NEVER_FITS, ReasonCode.NEVER_FITS_QUOTA, ReasonCode.GPU_TYPE_MISSING})
_WAITING: Final = frozenset({JobState.PENDING, JobState.PROMISED, JobState.HELD})
_ROUNDS: Final = 200
"""Decisions at one instant before time goes on by itself."""
_TURN_LOOK: Final = 5 * MINUTE
_UNSURE_LOOK: Final = HOUR
_FAR: Final = Instant(BEGIN << 2)
_IDLE_LOOKS: Final = 500
"""Looks in a row that may come to nothing when no job comes or runs any more: who waits then waits for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far it is. `now` counts from the first submission, in nanoseconds."""

    over: int
    total: int
    now: int
    decisions: int


Watch = Callable[[Reached], bool]
"""Told after each instant; False ends the simulation there."""


class Run:
    """One simulation under way. `never`: jobs that can never run, and why; `tally` has all that is counted."""

    def __init__(self, setting: Setting, jobs: Sequence[Submission], pace: Pace) -> None:
        world = assumed(setting.desired)
        self.setting, self.jobs = setting, jobs
        self._coming = [one for one in jobs if not one.refused]
        self._came = 0
        self._desired: Desired = setting.desired
        self._allocation: Allocation = replace(world.allocation, decided_at=BEGIN)
        self._agents = Agents(world.observed.nodes, pace)
        self._decider = Decider()
        self.never: dict[JobKey, str] = {one.key: one.refused for one in jobs if one.refused}
        self._in_vain = 0
        self._limits_people = limits_people(setting.desired)
        self._metrics = self._stood = self._allocation.metrics
        self._stood_waiting = 0
        self.now = BEGIN
        self.tally = Tally(inventory=setting.desired.inventory)

    def go(self, watch: Watch) -> bool:
        """Let time pass; whether it came to the end by itself."""
        vain: list[int] = []  # time that goes by after the last job, of which nothing may come any more
        while True:
            if self._settle() or not self._is_over:
                for span in vain:
                    self.tally.passed(span, self._stood, self._stood_waiting)
                vain.clear()
            following = self._next() if len(vain) < _IDLE_LOOKS else None
            if not watch(self._reached()):
                return False
            if following is None:
                return True
            self._stood, self._stood_waiting = self._metrics, len(self.waiting)
            if self._is_over:
                vain.append(following - self.now)
            else:
                self.tally.passed(following - self.now, self._stood, self._stood_waiting)
            self.now = following

    # --- one instant ---

    def _settle(self) -> bool:
        """Take in all that happens now, and decide until nothing changes; whether anything did."""
        self._arrive()
        changed = False
        for _ in range(_ROUNDS):
            self._agents.catch_up(self.now)
            decision = self._decide()
            if decision is None:
                break
            self._metrics = decision.allocation.metrics
            if not decision.changed:
                break
            changed = True
            self._act(decision)
        self._in_vain = 0 if changed else self._in_vain + 1
        return changed

    def _arrive(self) -> None:
        fresh: dict[JobKey, Submission] = {}
        while self._came < len(self._coming) and BEGIN + self._coming[self._came].row.submit <= self.now:
            one = self._coming[self._came]
            self._came += 1
            fresh[one.key] = one
            self._agents.bring(one.key, one.row.duration, self._brought(one))
        if fresh:
            wanted = {**self._desired.jobs, **{key: one.job for key, one in fresh.items()}}
            self._desired = replace(self._desired, jobs=dict(sorted(wanted.items())))

    def _brought(self, one: Submission) -> Provenance | None:
        """Only where some limit counts what one person has."""
        if not self._limits_people or not one.row.user:
            return None
        person = Person(user=one.row.user)
        return Provenance(
            job=one.key, digest=one.job.digest, file="", commit=CommitId(""), author=person, submitter=person,
            proven=Proof.SIGNATURE, vouched=Proof.SIGNATURE,
        )  # fmt: skip

    def _decide(self) -> Decision | None:
        """A decision that its judge let pass; None when it did not, which the loop answers by deciding again later."""
        observed: Observed = self._agents.observed(self.now)
        try:
            decision = self._decider.decide(self._desired, observed, self._allocation, self.now)
            wrong = () if self._decider.from_memory else violations(
                self._desired, observed, self._allocation, decision.allocation
            )  # fmt: skip
        except BrokenInvariant:
            self.tally.refused += 1
            return None
        self.tally.decisions += not self._decider.from_memory
        self.tally.refused += bool(wrong)
        return None if wrong else decision

    def _act(self, decision: Decision) -> None:
        """What nodes and people make of a decision. Files of jobs that are over go at once, and with them all memory."""
        gone: list[JobKey] = []
        for key in dict.fromkeys(change.job for change in decision.changes):
            record = decision.allocation.jobs.get(key)
            spell = self._agents.obey(key, record, self.now)
            if spell is not None:
                self.tally.spells.append(spell)
            if record is not None and self._note(record):
                gone.append(key)
        kept = decision.allocation
        if gone:
            left = frozenset(gone)
            for key in gone:
                self._agents.forget(key)
            jobs = {key: record for key, record in kept.jobs.items() if key not in left}
            self._desired = replace(
                self._desired, jobs={key: job for key, job in self._desired.jobs.items() if key not in left}
            )
            kept = replace(kept, jobs=jobs, tombstones=Tombstones())
        self._allocation = kept

    def _note(self, record: JobRecord) -> bool:
        """Count what the record says; whether the job is over."""
        if record.state is JobState.RUNNING:
            self.tally.starts.setdefault(record.job, self.now)
        elif record.state is JobState.FINISHED:
            self.tally.starts.setdefault(record.job, self.now)  # work of no length ends before it was seen to run
            self.tally.ended(record.job, self.now, at_limit=record.outcome is Outcome.TIMED_OUT)
            return True
        elif record.state is JobState.HELD and record.reason.code in _NEVER:
            self.never[record.job] = sentence(record.reason)
            return True
        return False

    # --- what comes next ---

    def _next(self) -> Instant | None:
        """When something happens, or may; None: nothing ever will."""
        times = [self._agents.next_at, self._turn(), self._limit(), self._look()]
        if self._came < len(self._coming):
            times.append(Instant(BEGIN + self._coming[self._came].row.submit))
        known = [at for at in times if at is not None]
        return Instant(max(min(known), self.now + 1)) if known else None

    def _turn(self) -> Instant | None:
        """When the first comparison with the time turns, or a while later: few of them change what is decided."""
        turn = self._decider.next_turn
        soonest = self.now + min(SECOND << min(2 * self._in_vain, 20), _TURN_LOOK)
        return Instant(max(turn, soonest)) if turn < _FAR else None

    def _limit(self) -> Instant | None:
        """When the first attempt is at its time limit."""
        ends = (
            Instant(record.started + limit)
            for key, record in self._allocation.jobs.items()
            if record.started is not None and (limit := self._desired.limit_of(self._desired.jobs[key])) is not None
        )
        return min((end for end in ends if end > self.now), default=None)

    def _look(self) -> Instant | None:
        """The next look at what no comparison tells: searches that ended early, and queues whose order may change."""
        waiting = self.waiting
        if not waiting:
            return None
        if not self._decider.is_sure:
            cycle = self._desired.repository.cycle_interval
            return Instant(self.now + min(cycle << min(4 * self._in_vain, 40), _UNSURE_LOOK))
        several = len({record.queue for record in waiting}) > 1
        if several and self._desired.scheduling.order == "fairShare":
            return Instant(self.now + _TURN_LOOK)
        return None

    @property
    def records(self) -> Mapping[JobKey, JobRecord]:
        """Jobs that are there now, in some state."""
        return self._allocation.jobs

    @property
    def waiting(self) -> list[JobRecord]:
        """Those of them that have no GPUs."""
        return [record for record in self._allocation.jobs.values() if record.state in _WAITING]

    @property
    def _is_over(self) -> bool:
        """No job comes any more, and no node has anything to do."""
        return self._came == len(self._coming) and self._agents.next_at is None

    def _reached(self) -> Reached:
        over = len(self.tally.ends) + len(self.never)
        return Reached(over=over, total=len(self.jobs), now=self.now - BEGIN, decisions=self.tally.decisions)
