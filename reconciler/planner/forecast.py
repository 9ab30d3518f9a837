"""When will each waiting job start, if everyone runs to the limit and nobody new comes?

The planner itself is run forward on a copy: at every end by time limit, end of a stop, back-off or window the pass is
made again. No failures, no submissions, no job that ends early: so a job usually starts sooner than its forecast, and
one that waits for work without a limit has none. A job with a reservation is forecast no later than it. Where a queue
has a history of how long such attempts really ran, a second run lets each end when nine in ten had ended. Nothing here
is read by a decision or committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.observed import Observed
from reconciler.model.units import Instant, JobKey, Nanoseconds
from reconciler.planner import steps
from reconciler.planner.admit import Sweep
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.lengths import Lengths
from reconciler.planner.line import line_of
from reconciler.planner.profile import NEVER, end_of
from reconciler.planner.promise import keep_promises
from reconciler.planner.usage import brought_to
from reconciler.planner.windows import begins_next, open_window

JOBS: Final = 200  # waiting jobs that are forecast, first in line first
STEPS: Final = 5_000  # instants looked at
NODES: Final = 4_000_000  # nodes looked at in all: on a large cluster fewer instants

_OVER: Final = frozenset({Cause.CANCELLED, Cause.CHANGED, Cause.TIME_LIMIT, Cause.IDLE, Cause.SUSPENDED})
"""Stops after which a job does not wait again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When a job is expected to start; `reserved`: by a reservation that holds if limits hold.

    `p90`: when it would if everyone ran no longer than nine in ten of their queue did; None when nothing is known of
    that, or it makes no difference.
    """

    at: Instant
    reserved: bool
    p90: Instant | None = None


def forecast(
    desired: Desired, observed: Observed, allocated: Allocation, now: Instant, wanted: Iterable[JobKey] = (),
    *, jobs: int = JOBS, instants: int = STEPS,
) -> Mapping[JobKey, Forecast]:  # fmt: skip
    """The expected start of waiting jobs, in the order of the pass; a job that is absent is unknown.

    `wanted`: stop once these are known, among them who is stopping and will wait again; empty: the first `jobs` in
    line. Costs one pass an instant.
    """
    now, chosen = Instant(max(now, allocated.decided_at)), tuple(wanted)
    instants = min(instants, NODES // max(1, len(desired.inventory.nodes)))
    found = _played(_Run(desired, observed, allocated, now), chosen, jobs, instants)
    lengths = Lengths(allocated.run_lengths)
    if not lengths or not found:
        return found
    sooner = _played(_Run(desired, observed, allocated, now, lengths), tuple(found), jobs, instants)
    return {key: _with_p90(one, sooner.get(key)) for key, one in found.items()}


def _played(run: _Run, wanted: Iterable[JobKey], jobs: int, instants: int) -> Mapping[JobKey, Forecast]:
    """What a run finds out until all who are wanted have started, or nothing happens any more."""
    run.watch(wanted, jobs)
    for _ in range(instants):
        run.make_pass()
        following = run.next_instant()
        if not run.awaited or following is None:
            break
        run.go_to(following)
    return run.known()


def _with_p90(found: Forecast, sooner: Forecast | None) -> Forecast:
    return found if sooner is None or sooner.at >= found.at else replace(found, p90=sooner.at)


class _Run:
    """A copy of the cluster that only time moves. `lengths`: attempts end when nine in ten had ended."""

    __slots__ = ("_accounts", "_began", "_draft", "_lengths", "_reserved", "_starts", "_windows", "awaited")

    def __init__(
        self, desired: Desired, observed: Observed, allocated: Allocation, now: Instant, lengths: Lengths | None = None
    ) -> None:
        self._lengths, self._began = lengths, now
        records = dict(allocated.jobs)
        self._draft = Draft(desired, observed, ground_of(desired.inventory, observed), records, now)
        half_life = desired.scheduling.half_life
        self._accounts, _ = brought_to(allocated.usage, allocated.usage_as_of, now, half_life)  # as of now, all along
        self._starts: dict[JobKey, Instant] = {}
        self._reserved: dict[JobKey, Instant] = {}
        self._windows = begins_next(desired.windows, now)
        self.awaited: set[JobKey] = set()

    def watch(self, wanted: Iterable[JobKey], jobs: int) -> None:
        """Whose start is asked for."""
        draft, chosen = self._draft, set(wanted)
        stops = {key for key in chosen if (record := draft.records.get(key)) is not None and _waits_again(record)}
        if not chosen:
            line = line_of(draft, self._accounts)
            chosen = {record.job for record, _ in islice(iter(line), jobs)}
            chosen |= {record.job for record in draft.records.values() if record.state is JobState.PROMISED}
        self.awaited = {key for key in chosen if key in draft.records and draft.records[key].state in _WAIT} | stops

    def make_pass(self) -> None:
        """What `decide` would do at this instant; what it starts runs at once."""
        draft = self._draft
        keep_promises(draft)
        sweep = Sweep(draft)
        sweep.run(line_of(draft, self._accounts))
        for key, reservation in sweep.bookings.reservations.items():
            self._reserved.setdefault(key, reservation.starts)
        sweep.bookings.lift_all()
        for key, record in list(draft.records.items()):
            if record.state is JobState.STARTING and record.phase is not Phase.RUN:
                draft.set(replace(record, state=JobState.RUNNING, phase=Phase.RUN, started=draft.now))
                if key in self.awaited:
                    self._starts[key] = draft.now
                    self.awaited.discard(key)

    def next_instant(self) -> Instant | None:
        """When something happens next; None: nothing does."""
        draft, soonest = self._draft, NEVER
        for record in draft.records.values():
            if record.state.holds_gpus:
                soonest = min(soonest, self._end_of(record))
            elif record.retry_at is not None and record.state is JobState.HELD:
                soonest = min(soonest, record.retry_at)
        while self._windows and self._windows[0] <= draft.now:
            self._windows.pop(0)
        if self._windows:
            soonest = min(soonest, self._windows[0])
        return Instant(max(soonest, draft.now + 1)) if soonest < NEVER else None

    def go_to(self, at: Instant) -> None:
        """Time passes: who is at an end lets go, windows open and close."""
        draft = self._draft
        over = [record for record in draft.records.values() if record.state.holds_gpus and self._end_of(record) <= at]
        draft.pass_to(at)
        for record in over:
            self._lets_go(record)
        for record in list(draft.records.values()):
            if record.retry_at is not None and record.retry_at <= at and record.state is JobState.HELD:
                draft.set(replace(record, state=JobState.PENDING, retry_at=None))
            elif record.state is JobState.RUNNING and self._is_drained(record, at):
                self._lets_go(replace(record, cause=Cause.MAINTENANCE, state=JobState.STOPPING))

    def _end_of(self, record: JobRecord) -> Instant:
        """When it ends in this run: at its limit, or sooner as others of its queue did."""
        draft, latest = self._draft, end_of(self._draft, record)
        job = draft.job(record) if self._lengths and record.state in _WORKS and latest < NEVER else None
        limit = draft.desired.limit_of(job) if job is not None else None
        if self._lengths is None or limit is None:
            return latest
        began = record.started if record.started is not None else draft.now
        ran = Nanoseconds(max(0, self._began - began))
        return Instant(min(latest, max(draft.now, began + self._lengths.nine_in_ten(record.queue, limit, ran))))

    def _is_drained(self, record: JobRecord, at: Instant) -> bool:
        desired = self._draft.desired
        return bool(desired.windows) and open_window(record, desired.windows, desired.quotas, at) is not None

    def _lets_go(self, record: JobRecord) -> None:
        """Its GPUs are free; it is over, goes on where it was promised a place, or waits again."""
        draft = self._draft
        draft.let_go(record)
        if record.promise is not None:
            draft.set(replace(record, state=JobState.PROMISED, placement=None, phase=None))
        elif _waits_again(record):
            draft.set(replace(steps.released(record), state=JobState.PENDING))
        else:
            draft.drop(record)

    def known(self) -> Mapping[JobKey, Forecast]:
        """What was found out."""
        found = {}
        for key in sorted({*self._starts, *(self.awaited & self._reserved.keys())}):
            reserved = self._reserved.get(key)
            at = min(self._starts.get(key, NEVER), reserved if reserved is not None else NEVER)
            found[key] = Forecast(at=Instant(at), reserved=reserved is not None)
        return found


def _waits_again(record: JobRecord) -> bool:
    return record.state is JobState.STOPPING and record.cause not in _OVER


_WAIT: Final = (JobState.PENDING, JobState.PROMISED, JobState.HELD)
_WORKS: Final = (JobState.STARTING, JobState.RUNNING)
