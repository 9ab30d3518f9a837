"""What has become of one job so far: its attempts one by one, and every step, read from the record by its path.

Git is walked along the job's own files, so this costs what the job has been through and not what the cluster has.
What its program measured is never committed; the reconciler's page knows some of it, and the caller brings it along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from reconciler.documents.layout import path_of
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
from reconciler.model.units import GpuSeconds, Instant, JobKey, document_of
from reconciler.render.life import Attempt, Step
from reconciler.runtime.audit.history import action_of
from reconciler.runtime.audit.origins import NOBODY, Origin, last_touch
from reconciler.store.history import CommitMeta, parse_commit
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import commits_touching, objects_named

STEPS = 500
"""Newest generations of a job that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The job in one generation that changed its record; `record` None: it was dropped. `origin` brought the change of its
    file that this generation answers to, if it answers to one."""

    generation: int
    at: Instant
    commit: str
    record: JobRecord | None
    progress: JobObservation | None = None
    origin: Origin = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Attempts and steps, oldest first. `whole` False: older steps were not looked at. `last` is the commit of the newest
    generation that had a record of it, "" where none did."""

    attempts: tuple[Attempt, ...]
    steps: tuple[Step, ...]
    whole: bool = True
    last: str = ""


def life_of(git: Git, tip: str, key: JobKey, *, most: int = STEPS) -> Life:
    """A job's life as the record at `tip` tells it. Raises StoreError."""
    commits = list(islice(commits_touching(git, tip, job_path(key)), most + 1))
    summary = read_summary({SUMMARY: objects_named(git, [f"{tip}:{SUMMARY}"])[0] or b""})
    pages = list(_pages(git, list(reversed(commits[:most])), key, summary))
    last = next((page.commit for page in reversed(pages) if page.record is not None), "")
    return Life(attempts=attempts_in(pages), steps=steps_in(pages), whole=len(commits) <= most, last=last)


def _pages(git: Git, commits: Sequence[str], key: JobKey, summary: Summary) -> Iterable[Page]:
    """Oldest first; of an array only what changed this one task. Any `summary` will do, for a record has nothing of it."""
    raws = raw_commits(git, commits)
    heads = {commit: parse_commit(commit, raw) for commit, raw in raws.items()}
    before_it = {c: meta.parents[0] if meta.parents else "" for c, meta in heads.items()}
    earlier = {c: parse_commit(c, raw) for c, raw in raw_commits(git, sorted(set(before_it.values()) - {""})).items()}
    path, seen = job_path(key), f"{OBSERVED_JOBS}{key}.yaml"
    contents = objects_named(git, [f"{commit}:{name}" for commit in commits for name in (path, seen)])
    before: JobRecord | None = None
    origins: dict[str, Origin] = {"": NOBODY}

    def origin(meta: CommitMeta | None) -> Origin:
        desired = _said(meta, "Desired-Commit")
        if desired not in origins:
            origins[desired] = last_touch(git, desired, path_of(document_of(key)))
        return origins[desired]

    for number, commit in enumerate(commits):
        content, progress = contents[2 * number], contents[2 * number + 1]
        record = read_allocation({path: content}, summary).jobs.get(key) if content is not None else None
        if record == before:
            continue
        before, meta = record, heads[commit]
        told, by = _said(meta, "Generation"), origin(meta)
        yield Page(
            generation=int(told) if told.isdecimal() else -1, at=Instant(meta.committed_at), commit=commit, record=record,
            progress=read_observed({seen: progress}).jobs.get(key) if progress is not None else None,
            origin=by if by != origin(earlier.get(before_it[commit])) else NOBODY,
        )  # fmt: skip


def _said(meta: CommitMeta | None, trailer: str) -> str:
    return dict(meta.trailers).get(trailer, "") if meta is not None else ""


def attempts_in(pages: Iterable[Page]) -> tuple[Attempt, ...]:
    """The attempts that a job's pages, oldest first, tell of."""
    found: dict[int, Attempt] = {}
    paid, at_begin = GpuSeconds(0), dict[int, GpuSeconds]()
    for page in pages:
        record = page.record
        open_ = [one for one in found.values() if one.ended is None]
        if record is None:  # gone with its file, once its GPUs were free
            found.update({one.number: replace(one, ended=page.at) for one in open_})
            continue
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
                person=page.origin.person, request=page.origin.request,
            )
        )  # fmt: skip
        before = record
    return tuple(found)


def _action(before: JobRecord | None, record: JobRecord | None) -> str:
    was, phase_was = (str(before.state), str(before.phase or "")) if before is not None else ("", "")
    if record is None:
        return action_of(was, phase_was, "", "", "")
    return action_of(was, phase_was, str(record.state), str(record.phase or ""), str(record.cause or ""))
