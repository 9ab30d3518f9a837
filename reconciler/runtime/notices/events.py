"""What is worth telling people of one decision? A pure function of two consecutive generations of the record.

Nothing is remembered and no clock is read, so the same commit always gives the same notices with the same ids: who
is told again after a crash can tell that it is the same. How a notice is delivered is left to the others here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from reconciler.documents.tasklist import print_tasks
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.observed import Observed, Person
from reconciler.model.reasons import sentence
from reconciler.model.units import MINUTE, CommitId, Instant, JobKey, Nanoseconds, NodeName, document_of, index_of
from reconciler.planner.forecast import Forecast, forecast
from reconciler.render.names import gpu_hours, one_line, places, when
from reconciler.topology.drift import Drift, drift_of

LEAST_SLIP = Nanoseconds(15 * MINUTE)
"""A start that is put off by less than this, or by less than a tenth of the wait, is no news."""
_FORECAST_JOBS, _FORECAST_INSTANTS = 20, 200
_MOST_WORK = 200_000
"""Waiting jobs times nodes above which only jobs with `startBefore` are forecast: nobody waits for a notice."""
_WAITS = (JobState.PENDING, JobState.PROMISED, JobState.HELD)
_FAILURES = frozenset({Cause.RANK_FAILED, Cause.START_FAILED, Cause.NODE_LOST})
_GAVE_WAY = frozenset({
    Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE, Cause.MOVED, Cause.RESIZED, Cause.MAINTENANCE, Cause.NODE_REMOVED,
})  # fmt: skip

Detail = str | int | None | tuple[str, ...]


class NoticeKind(StrEnum):
    """What people can be told. One Failed for each attempt that ended badly, one Finished for each incarnation."""

    STARTED = "Started"
    PREEMPTED = "Preempted"
    RESUMED = "Resumed"
    FAILED = "Failed"
    FINISHED = "Finished"
    FORECAST_SLIPPED = "ForecastSlipped"
    NODE_DRIFTED = "NodeDrifted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One generation as committed, with the desired state it answered."""

    commit: CommitId
    allocation: Allocation
    observed: Observed
    desired: Desired
    _forecasts: dict[tuple[JobKey, ...], Mapping[JobKey, Forecast]] = field(default_factory=dict, compare=False)

    def forecasts(self, wanted: tuple[JobKey, ...] = ()) -> Mapping[JobKey, Forecast]:
        """Starts as they could be told at this decision; worked out once."""
        if wanted not in self._forecasts:
            self._forecasts[wanted] = forecast(
                self.desired, self.observed, self.allocation, self.allocation.decided_at, wanted,
                jobs=_FORECAST_JOBS, instants=_FORECAST_INSTANTS,
            )  # fmt: skip
        return self._forecasts[wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to tell. `job` or `node` is what it is about; `told` is a sentence, `details` its numbers.

    `id` is the same whenever and by whomever this notice is derived. `requests` are the pull requests it belongs to:
    that of the job, and that of the job it gave way to. `tasks`: `job` is an array, and it is about these of its tasks.
    """

    id: str
    kind: NoticeKind
    at: Instant
    cluster: str
    generation: int
    commit: CommitId
    told: str
    job: JobKey | None = None
    node: NodeName | None = None
    queue: str = ""
    attempt: int = 0
    tasks: str = ""
    author: Person = field(default_factory=Person)
    requests: tuple[str, ...] = ()
    details: tuple[tuple[str, Detail], ...] = ()

    def detail(self, name: str) -> Detail:
        """One of the numbers; None when it is not told."""
        return dict(self.details).get(name)


def notices_between(before: Moment, after: Moment) -> tuple[Notice, ...]:
    """Everything to tell of the decision that led from one generation to the next: jobs by name, those whose record went
    with their file, then nodes.

    What happened to several tasks of an array at once is one notice, with what the first of them has to tell.
    """
    return (*_folded([*_of_jobs(before, after), *_slips(before, after)], after), *_of_nodes(before, after))


def _folded(notices: list[Notice], after: Moment) -> Iterator[Notice]:
    groups: dict[tuple[NoticeKind, JobKey | None], list[Notice]] = {}
    for notice in notices:
        groups.setdefault((notice.kind, document_of(notice.job) if notice.job is not None else None), []).append(notice)
    for (kind, array), alike in groups.items():
        first = alike[0]
        if len(alike) == 1 or array is None:
            yield from alike
            continue
        tasks = [index for one in alike if one.job is not None and (index := index_of(one.job)) is not None]
        yield replace(
            first, id=_id(after, kind, array), job=array, tasks=print_tasks(tasks), told=f"{len(alike)} tasks: {first.told}"
        )  # fmt: skip


# --- jobs ---


def _of_jobs(before: Moment, after: Moment) -> Iterator[Notice]:
    known = before.allocation.jobs
    for key, record in after.allocation.jobs.items():
        was = known.get(key)
        if was is record or was == record:
            continue
        if _began(was, record):
            yield _started(record, after)
        if was is None:
            continue
        if _was_cut_short(was, record):
            yield _failed(was, record, after) if _cause(record) in _FAILURES else _preempted(was, record, after)
        if record.state is JobState.FINISHED and was.state is not JobState.FINISHED:
            yield _finished(was, record, after)
    # The record of a job goes with its file once its GPUs are back, and who brought it is forgotten with it.
    then = replace(after, observed=before.observed)
    for key in sorted(known.keys() - after.allocation.jobs.keys()):
        was = known[key]
        if was.attempt and was.state is not JobState.FINISHED:
            yield _finished(was, replace(was, outcome=Outcome.CANCELLED, since=after.allocation.decided_at), then)


def _began(was: JobRecord | None, record: JobRecord) -> bool:
    """A silent node that comes back with its ranks alive is no start."""
    return record.state is JobState.RUNNING and (was is None or was.started != record.started)


def _was_cut_short(was: JobRecord, record: JobRecord) -> bool:
    if record.state is JobState.REPAIRING:
        return was.state is JobState.LOST
    stopping = record.state is JobState.STOPPING and was.state is not JobState.STOPPING
    return stopping and _cause(record) in _FAILURES | _GAVE_WAY


def _cause(record: JobRecord) -> Cause | None:
    return Cause.NODE_LOST if record.state is JobState.REPAIRING else record.cause


def _started(record: JobRecord, after: Moment) -> Notice:
    assert record.placement is not None
    where = places(record.placement, after.desired.inventory)
    waited = (record.started or record.since) - record.submitted
    details: tuple[tuple[str, Detail], ...] = (
        ("gpus", record.gpus_held), ("where", where), ("level", str(record.placement.level)),
        ("commNanoseconds", record.placement.comm_time or None), ("waitedSeconds", waited // 10**9),
    )  # fmt: skip
    verb = "goes on" if record.resumes else "runs"
    kind = NoticeKind.RESUMED if record.resumes else NoticeKind.STARTED
    return _about(record, kind, after, f"{verb} on {counted(record.gpus_held, 'GPU')}: {where}", details)


def _preempted(was: JobRecord, record: JobRecord, after: Moment) -> Notice:
    expected = after.forecasts((record.job,)).get(record.job)
    lost = max(0, record.lost_work - was.lost_work)
    until = f"; goes on at about {when(expected.at)}" if expected is not None else ""
    price = f"; {gpu_hours(lost)} of work lost" if lost else ""
    details: tuple[tuple[str, Detail], ...] = (
        ("cause", str(record.cause)), ("by", record.preemptor), ("lostGpuSeconds", lost),
        ("graceSeconds", record.grace // 10**9),
        ("resumesAt", None if expected is None else int(expected.at)),
        ("resumesLikely", None if expected is None or expected.p90 is None else int(expected.p90)),
    )  # fmt: skip
    why = one_line(sentence(record.reason).partition(";")[0])
    return _about(record, NoticeKind.PREEMPTED, after, f"{why}{price}{until}", details, also=record.preemptor)


def _failed(was: JobRecord, record: JobRecord, after: Moment) -> Notice:
    why, cause = record.reason, _cause(record)
    node = why.number("node") or why.number("nodes")
    placement = was.placement
    ranks = [place.rank for place in placement.ranks if place.node == node] if placement is not None else []
    details: tuple[tuple[str, Detail], ...] = (
        ("cause", str(cause)), ("node", None if node is None else str(node)),
        ("exitCode", _whole(why.number("exitCode"))), ("ranks", tuple(map(str, ranks))),
        ("lostGpuSeconds", max(0, record.lost_work - was.lost_work)), ("failures", record.failures),
    )  # fmt: skip
    return _about(record, NoticeKind.FAILED, after, one_line(sentence(why)), details)


def _finished(was: JobRecord, record: JobRecord, after: Moment) -> Notice:
    ran = record.since - was.started if was.started is not None else 0
    details: tuple[tuple[str, Detail], ...] = (
        ("outcome", str(record.outcome)), ("attempts", record.attempt), ("ranSeconds", max(0, ran) // 10**9),
        ("lostGpuSeconds", record.lost_work), ("exitCode", _whole(record.reason.number("exitCode"))),
    )  # fmt: skip
    told = f"{record.outcome}: {one_line(sentence(record.reason))}"
    return _about(record, NoticeKind.FINISHED, after, told, details)


def _whole(number: int | str | None) -> int | None:
    return number if isinstance(number, int) else None


# --- forecasts ---


def _slips(before: Moment, after: Moment) -> Iterator[Notice]:
    """Waiting jobs whose start is put off, or is no longer to be before what their file says."""
    held, holds = before.allocation.jobs, after.allocation.jobs
    waiting = [key for key, one in holds.items() if key in held and one.state in _WAITS and held[key].state in _WAITS]
    due = tuple(key for key in waiting if _start_before(key, after) is not None)
    if due:
        yield from _compared(due, before.forecasts(due), after.forecasts(due), after)
    if len(waiting) > len(due) and len(waiting) * len(after.desired.inventory.nodes) <= _MOST_WORK:
        rest = (key for key in waiting if key not in due)
        yield from _compared(rest, before.forecasts(), after.forecasts(), after)


def _start_before(key: JobKey, moment: Moment) -> Instant | None:
    job = moment.desired.jobs.get(key)
    return job.start_before if job is not None else None


def _compared(
    keys: Iterable[JobKey], earlier: Mapping[JobKey, Forecast], later: Mapping[JobKey, Forecast], after: Moment
) -> Iterator[Notice]:
    for key in keys:
        notice = _slip(after.allocation.jobs[key], earlier.get(key), later.get(key), after)
        if notice is not None:
            yield notice


def _slip(record: JobRecord, was: Forecast | None, now: Forecast | None, after: Moment) -> Notice | None:
    if was is None or (now is not None and now.at <= was.at):
        return None
    before = _start_before(record.job, after)
    missed = before is not None and was.at <= before and (now is None or now.at > before)
    if not missed and (now is None or now.at - was.at < max(LEAST_SLIP, (was.at - after.allocation.decided_at) // 10)):
        return None
    told = f"is now to start at {when(now.at)}" if now is not None else "has no start that can be told any more"
    due = f"; it was to start before {when(before)}" if missed and before is not None else ""
    details: tuple[tuple[str, Detail], ...] = (
        ("from", int(was.at)), ("to", None if now is None else int(now.at)),
        ("startBefore", None if before is None else int(before)), ("reason", str(record.reason.code)),
    )  # fmt: skip
    return _about(record, NoticeKind.FORECAST_SLIPPED, after, f"{told}, not at {when(was.at)}{due}", details)


# --- nodes ---


def _of_nodes(before: Moment, after: Moment) -> Iterator[Notice]:
    """Each difference between declared and seen that was not there before; one notice a node."""
    if before.observed.nodes == after.observed.nodes and before.desired.inventory == after.desired.inventory:
        return
    known = set(drift_of(before.desired.inventory, before.observed))
    found: dict[NodeName, list[Drift]] = {}
    for drift in drift_of(after.desired.inventory, after.observed):
        if drift not in known:
            found.setdefault(drift.node, []).append(drift)
    for node, drifts in found.items():
        told = "; ".join(one_line(drift.sentence) for drift in drifts)
        holders = tuple(sorted(after.allocation.holders().get(node, {})))
        details: tuple[tuple[str, Detail], ...] = (
            ("codes", tuple(str(drift.code) for drift in drifts)),
            ("effects", tuple(str(drift.effect) for drift in drifts)),
            ("heldBy", holders),
        )  # fmt: skip
        yield _notice(NoticeKind.NODE_DRIFTED, after, str(node), told, node=node, details=details)


# --- notices ---


def _about(
    record: JobRecord, kind: NoticeKind, after: Moment, told: str, details: tuple[tuple[str, Detail], ...],
    *, also: JobKey | None = None,
) -> Notice:  # fmt: skip
    brought = after.observed.provenance
    of_job = brought.get(document_of(record.job))
    both = [brought.get(document_of(key)) for key in (record.job, also) if key is not None]
    requests = [one.pull_request for one in both if one is not None]
    return _notice(
        kind, after, f"{record.job} {record.attempt}", told, job=record.job, details=details, queue=record.queue,
        attempt=record.attempt, author=of_job.author if of_job is not None else Person(),
        requests=tuple(dict.fromkeys(filter(None, requests))),
    )  # fmt: skip


def _notice(
    kind: NoticeKind, after: Moment, subject: str, told: str, *, details: tuple[tuple[str, Detail], ...],
    job: JobKey | None = None, node: NodeName | None = None, queue: str = "", attempt: int = 0,
    author: Person | None = None, requests: tuple[str, ...] = (),
) -> Notice:  # fmt: skip
    allocation = after.allocation
    return Notice(
        id=_id(after, kind, subject), kind=kind, at=allocation.decided_at,
        cluster=allocation.cluster_id, generation=allocation.generation, commit=after.commit, told=told, job=job,
        node=node, queue=queue, attempt=attempt, author=author or Person(), requests=requests, details=details,
    )  # fmt: skip


def _id(after: Moment, kind: NoticeKind, subject: str) -> str:
    name = f"{after.allocation.cluster_id}\n{after.commit}\n{kind}\n{subject}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]
