"""What would the nodes report, if each did at once, or so many seconds later, what it is told? In virtual time.

They obey perfectly: what is to be prepared is, what runs ends by itself when its work is done, what is stopped is gone.
Work that a stop throws away is theirs to know as well: an attempt keeps what it did up to its last checkpoint.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from reconciler.model.allocation import JobRecord, Placement
from reconciler.model.lifecycle import Cause, Phase
from reconciler.model.observed import AttemptReport, AttemptState, JobObservation, NodeObservation, Observed, Provenance
from reconciler.model.units import Instant, JobKey, Nanoseconds, NodeName

_STOPS = (Phase.CHECKPOINT, Phase.STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a start and a stop take, and how often work is saved; None: never, a stop loses all of it."""

    start: Nanoseconds = Nanoseconds(0)
    stop: Nanoseconds = Nanoseconds(0)
    checkpoint: Nanoseconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """One attempt from its place to its release. `cause` None: it ended by itself.

    Of `ran`, the time between start and end of its ranks, `kept` was of use and the rest is to be done again.
    """

    job: JobKey
    placement: Placement
    placed: Instant
    released: Instant
    ran: Nanoseconds
    kept: Nanoseconds
    cause: Cause | None

    @property
    def gpus(self) -> int:
        return len(self.placement.ranks)


class _Due(NamedTuple):
    """What one attempt says at an instant, if it comes to that. Of one instant, first told first done."""

    at: Instant
    told: int
    job: JobKey
    attempt: int
    state: AttemptState


_BEFORE: Final = {
    AttemptState.PREPARED: AttemptState.PREPARING,
    AttemptState.EXITED: AttemptState.RUNNING,
    AttemptState.GONE: AttemptState.STOPPING,
}


@dataclass(slots=True)
class _Attempt:
    """One attempt at work on its nodes."""

    number: int
    placement: Placement
    nodes: tuple[NodeName, ...]
    placed: Instant
    state: AttemptState = AttemptState.PREPARING
    began: Instant | None = None
    ended: Instant | None = None
    kept: Nanoseconds = Nanoseconds(0)
    cause: Cause | None = None


class Agents:
    """All nodes of a cluster, and the work that is left of each job that was given to them."""

    def __init__(self, nodes: Mapping[NodeName, NodeObservation], pace: Pace) -> None:
        self._seen = dict(sorted(nodes.items()))
        self._pace = pace
        self._left: dict[JobKey, Nanoseconds] = {}
        self._attempts: dict[JobKey, _Attempt] = {}
        self._due: list[_Due] = []
        self._told = 0
        self._observed = Observed(nodes=dict(self._seen))
        self._moved = False

    def bring(self, job: JobKey, work: Nanoseconds, brought: Provenance | None) -> None:
        """A job there is from now on, how long its ranks run, and who brought it where that is known."""
        self._left[job] = work
        if brought is not None:
            self._observed = replace(self._observed, provenance={**self._observed.provenance, job: brought})

    def forget(self, job: JobKey) -> None:
        """The job is over, or was never to be."""
        self._left.pop(job, None)
        if job in self._observed.provenance:
            kept = {key: one for key, one in self._observed.provenance.items() if key != job}
            self._observed = replace(self._observed, provenance=kept)

    def observed(self, now: Instant) -> Observed:
        """All that is seen now; the same object as long as nothing else is."""
        if self._moved:
            self._observed = replace(self._observed, nodes=dict(self._seen))
            self._moved = False
        if self._pace.checkpoint is None:
            return self._observed
        saved = {
            key: at for key, one in sorted(self._attempts.items()) if (at := self._saved(key, one, now)) is not None
        }
        return replace(self._observed, jobs=saved)

    @property
    def next_at(self) -> Instant | None:
        """When something happens on some node; None: nothing will."""
        while self._due and not self._comes_true(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0].at if self._due else None

    def catch_up(self, now: Instant) -> None:
        """Let all happen that is due by now."""
        while (at := self.next_at) is not None and at <= now:
            due = heapq.heappop(self._due)
            self._becomes(due.job, self._attempts[due.job], due.state, at)

    def obey(self, job: JobKey, record: JobRecord | None, now: Instant) -> Spell | None:
        """Act on what was decided about a job; the spell that ended, when one did."""
        attempt = self._attempts.get(job)
        over = None
        if attempt is not None and (record is None or record.placement is None or record.attempt != attempt.number):
            over = self._let_go(job, attempt, now)
            attempt = None
        if record is None or record.placement is None:
            return over
        if attempt is None:
            attempt = _Attempt(
                number=record.attempt, placement=record.placement, nodes=record.placement.nodes, placed=now
            )
            self._attempts[job] = attempt
            self._then(now + self._pace.start, job, attempt, AttemptState.PREPARED)
        elif record.phase is Phase.RUN and attempt.state is AttemptState.PREPARED:
            self._becomes(job, attempt, AttemptState.RUNNING, now)
            self._then(now + self._left[job], job, attempt, AttemptState.EXITED)
        elif record.phase in _STOPS and not attempt.state.released and attempt.state is not AttemptState.STOPPING:
            self._stop(job, attempt, record.cause, now)
        return over

    # --- one attempt ---

    def _comes_true(self, due: _Due) -> bool:
        """An attempt that is being stopped, or is gone, does not get ready or end by itself any more."""
        attempt = self._attempts.get(due.job)
        return attempt is not None and attempt.number == due.attempt and _BEFORE[due.state] is attempt.state

    def _stop(self, job: JobKey, attempt: _Attempt, cause: Cause | None, now: Instant) -> None:
        attempt.cause = cause
        if attempt.began is not None:
            ran = Nanoseconds(now - attempt.began)
            every = self._pace.checkpoint
            attempt.kept = Nanoseconds(ran - ran % every if every else 0) if cause is not Cause.TIME_LIMIT else ran
            attempt.ended = now
            self._left[job] = Nanoseconds(self._left[job] - attempt.kept)
        self._becomes(job, attempt, AttemptState.STOPPING, now)
        self._then(now + self._pace.stop, job, attempt, AttemptState.GONE)

    def _becomes(self, job: JobKey, attempt: _Attempt, state: AttemptState, at: Instant) -> None:
        attempt.state = state
        if state is AttemptState.RUNNING:
            attempt.began = at
        elif state is AttemptState.EXITED and attempt.began is not None:
            attempt.ended, attempt.kept = at, Nanoseconds(at - attempt.began)
        code = 0 if state is AttemptState.EXITED else None
        self._report(job, attempt, AttemptReport(job=job, attempt=attempt.number, state=state, at=at, exit_code=code))

    def _let_go(self, job: JobKey, attempt: _Attempt, now: Instant) -> Spell:
        self._report(job, attempt, None)
        del self._attempts[job]
        ran = attempt.ended - attempt.began if attempt.ended is not None and attempt.began is not None else 0
        return Spell(
            job=job, placement=attempt.placement, placed=attempt.placed, released=now, ran=Nanoseconds(ran),
            kept=attempt.kept, cause=attempt.cause,
        )  # fmt: skip

    def _report(self, job: JobKey, attempt: _Attempt, report: AttemptReport | None) -> None:
        """What its nodes say of it from now on; None: they speak of it no more."""
        for node in attempt.nodes:
            seen = self._seen[node]
            others = tuple(one for one in seen.attempts if one.job != job)
            self._seen[node] = replace(seen, attempts=(*others, report) if report is not None else others)
        self._moved = True

    def _saved(self, job: JobKey, attempt: _Attempt, now: Instant) -> JobObservation | None:
        every = self._pace.checkpoint
        if every is None or attempt.began is None or attempt.state is not AttemptState.RUNNING:
            return None
        saved = Instant(now - (now - attempt.began) % every)
        found = saved if saved > attempt.began else None
        return JobObservation(job=job, attempt=attempt.number, checkpoint=found) if found is not None else None

    def _then(self, at: int, job: JobKey, attempt: _Attempt, state: AttemptState) -> None:
        self._told += 1
        heapq.heappush(self._due, _Due(Instant(at), self._told, job, attempt.number, state))
