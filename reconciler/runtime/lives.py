"""What has become of one job so far: its attempts one by one, and every step, read from the record by its path.

Git is walked along the job's own files, so this costs what the job has been through and not what the cluster has.
What its program measured is never committed; the reconciler's page knows some of it, and the caller brings it along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from reconciler.documents.record import (
    OBSERVED_JOBS,
    SUMMARY,
    Summary,
    job_path,
    read_allocation,
    read_observed,
    read_summary,
)
from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import JobObservation
from reconciler.model.reasons import sentence
from reconciler.model.units import GpuSeconds, Instant, JobKey
from reconciler.render.life import Attempt, Step
from reconciler.runtime.audit.history import action_of
from reconciler.store.history import parse_commit
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import commits_touching, objects_named

STEPS = 500
"""Newest generations of a job that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The job in one generation that changed its record; `record` None: it was dropped."""

    generation: int
    at: Instant
    commit: str
    record: JobRecord | None
    progress: JobObservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Attempts and steps, oldest first. `whole` False: older steps were not looked at."""

    attempts: tuple[Attempt, ...]
    steps: tuple[Step, ...]
    whole: bool = True


def life_of(git: Git, tip: str, key: JobKey, *, most: int = STEPS) -> Life:
    """A job's life as the record at `tip` tells it. Raises StoreError."""
    commits = list(islice(commits_touching(git, tip, job_path(key)), most + 1))
    summary = read_summary({SUMMARY: objects_named(git, [f"{tip}:{SUMMARY}"])[0] or b""})
    pages = list(_pages(git, list(reversed(commits[:most])), key, summary))
    return Life(attempts=attempts_in(pages), steps=steps_in(pages), whole=len(commits) <= most)


def _pages(git: Git, commits: Sequence[str], key: JobKey, summary: Summary) -> Iterable[Page]:
    """Oldest first; of an array only what changed this one task. Any `summary` will do, for a record has nothing of it."""
    raws = raw_commits(git, commits)
    path, seen = job_path(key), f"{OBSERVED_JOBS}{key}.yaml"
    contents = objects_named(git, [f"{commit}:{name}" for commit in commits for name in (path, seen)])
    before: JobRecord | None = None
    for number, commit in enumerate(commits):
        content, progress = contents[2 * number], contents[2 * number + 1]
        record = read_allocation({path: content}, summary).jobs.get(key) if content is not None else None
        if record == before:
            continue
        before, meta = record, parse_commit(commit, raws[commit])
        told = dict(meta.trailers).get("Generation", "")
        yield Page(
            generation=int(told) if told.isdecimal() else -1, at=Instant(meta.committed_at), commit=commit, record=record,
            progress=read_observed({seen: progress}).jobs.get(key) if progress is not None else None,
        )  # fmt: skip


def attempts_in(pages: Iterable[Page]) -> tuple[Attempt, ...]:
    """The attempts that a job's pages, oldest first, tell of."""
    found: dict[int, Attempt] = {}
    paid, at_begin = GpuSeconds(0), dict[int, GpuSeconds]()
    for page in pages:
        record = page.record
        if record is None:
            continue
        open_ = [one for one in found.values() if one.ended is None]
        for one in open_:
            if record.attempt != one.number or not _works(record):
                found[one.number] = _ended(one, record, page, GpuSeconds(record.lost_work - at_begin[one.number]))
        if _works(record) and record.attempt and record.placement is not None:
            at_begin.setdefault(record.attempt, paid)
            found[record.attempt] = _held(found.get(record.attempt), record, page, at_begin[record.attempt])
        seen = page.progress
        if seen is not None and seen.attempt in found:
            found[seen.attempt] = replace(found[seen.attempt], checkpoint=seen.checkpoint)
        paid = record.lost_work
    return tuple(found[number] for number in sorted(found))


def _works(record: JobRecord) -> bool:
    """Something of an attempt may be left: a gang that is being repaired keeps GPUs, and nothing runs on them."""
    return record.state.holds_gpus and record.state is not JobState.REPAIRING


def _held(known: Attempt | None, record: JobRecord, page: Page, paid: GpuSeconds) -> Attempt:
    assert record.placement is not None
    stopping = record.state is JobState.STOPPING and record.cause is not None
    one = known or Attempt(number=record.attempt, began=page.at, placement=record.placement, how="", why="")
    return replace(
        one,
        # What is left of a gang that lost nodes says less than the place it had.
        placement=record.placement if len(record.placement.ranks) >= len(one.placement.ranks) else one.placement,
        how=str(record.cause) if stopping else str(record.state),
        why=sentence(record.reason),
        started=record.started if record.started is not None else one.started,
        preemptor=record.preemptor if stopping else one.preemptor,
        lost=GpuSeconds(max(0, record.lost_work - paid)),
    )


def _ended(one: Attempt, record: JobRecord, page: Page, lost: GpuSeconds) -> Attempt:
    """Its end as the last page with it said, unless it ended by itself: then the outcome says it."""
    by_itself = record.outcome is not None and record.attempt == one.number and one.how in _WORKED
    how = str(record.outcome) if by_itself else str(Cause.NODE_LOST) if one.how == JobState.LOST else one.how
    why = sentence(record.reason) if by_itself else one.why
    return replace(one, ended=page.at, lost=max(one.lost, lost), how=how, why=why)  # fmt: skip


_WORKED = frozenset({str(JobState.STARTING), str(JobState.RUNNING)})


def steps_in(pages: Iterable[Page]) -> tuple[Step, ...]:
    """A step for each page, oldest first."""
    found, before = [], None
    for page in pages:
        record = page.record
        found.append(
            Step(
                generation=page.generation, at=page.at, commit=page.commit, action=_action(before, record),
                state=str(record.outcome or record.state) if record is not None else "",
                why=sentence(record.reason) if record is not None else "its file is gone and its record was dropped",
            )
        )  # fmt: skip
        before = record
    return tuple(found)


def _action(before: JobRecord | None, record: JobRecord | None) -> str:
    was, phase_was = (str(before.state), str(before.phase or "")) if before is not None else ("", "")
    if record is None:
        return action_of(was, phase_was, "", "", "")
    return action_of(was, phase_was, str(record.state), str(record.phase or ""), str(record.cause or ""))
