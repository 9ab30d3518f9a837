"""What happened to one job, and why? Walked along its path, which needs nothing but the clone.

Every other question is asked of the index, in `answers`. How entries look is left to `render`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from reconciler.documents.layout import path_of
from reconciler.documents.record import job_path
from reconciler.documents.tasklist import print_tasks
from reconciler.model.lifecycle import JobState
from reconciler.model.units import SECOND, Instant, JobKey, document_of, index_of, task_key
from reconciler.runtime.audit.glance import JobGlance, RecordTexts, job_glance, record_texts
from reconciler.runtime.audit.index import EVICTED, gpus_in
from reconciler.runtime.audit.origins import Origin, last_touch
from reconciler.store.branches import named_before
from reconciler.store.history import CommitMeta, parse_commit
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import commits_touching, objects_named

DROPPED = "its file is gone and its record was dropped"
"""Why of an entry whose generation has no record of the job."""
_FIRST_BATCH, _MOST_BATCH = 2, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change of one job's record. `place` is as in `glance`; `gpus` counts what is held or was just given up.

    `asked` is the desired commit that last touched the job's file then, by `person`, pull request `request`; where a
    request holds the job, `person` is who made it. It is "" where only the path was walked, and `why` is "" where only the index was asked.
    """

    generation: int
    at: Instant
    commit: str
    job: str
    action: str
    state: str
    gpus: int
    place: str = ""
    queue: str = ""
    attempt: int = 0
    code: str = ""
    cause: str = ""
    preemptor: str = ""
    why: str = ""
    desired: str = ""
    asked: str = ""
    person: str = ""
    request: str = ""


def by_path(git: Git, tip: str, job: str, *, since: Instant | None = None) -> Iterator[Entry]:
    """One job's history, newest first, each entry as soon as git has found it. Raises NotFound, StoreError.

    Of an array what happened to several tasks in one generation is one entry, its job such as `nlp/sweep.0-63`.
    """
    path = job_path(JobKey(job))
    later: _Found | None = None
    for found in _read_in_batches(
        git, commits_touching(git, tip, path, since=since // SECOND if since else None), path
    ):
        if _only_brought_along(git, found.meta, path):
            continue
        if later is not None:
            yield from _walked(job, later, found.records)
        later = found
    if later is not None:
        yield from _walked(job, later, _before(git, later.meta, path) if since else {})


def _only_brought_along(git: Git, meta: CommitMeta, path: str) -> bool:
    """Whether the first commit of a later branch holds the file as the branch before left it."""
    before = named_before(meta)
    if not before:
        return False
    then, now = objects_named(git, (f"{before}:{path}", f"{meta.id}:{path}"))
    return then == now


def asked_by(git: Git, entries: Iterable[Entry], job: str) -> Iterator[Entry]:
    """The same entries with who asked for the job then: the last commit of the desired branch that touched its file."""
    known: dict[str, Origin] = {}
    for entry in entries:
        origin = known.get(entry.desired)
        if origin is None:
            origin = known[entry.desired] = last_touch(git, entry.desired, path_of(document_of(JobKey(job))))
        if entry.person:
            yield replace(entry, asked=origin.commit)  # it was asked for at once, by no pull request
        else:
            yield replace(entry, asked=origin.commit, person=origin.person, request=origin.request)


@dataclass(frozen=True, slots=True)
class _Found:
    meta: CommitMeta
    records: RecordTexts


def _read_in_batches(git: Git, commits: Iterable[str], path: str) -> Iterator[_Found]:
    """Small batches first, so that the first line is there at once; then large ones, which cost less each."""
    size, batch = _FIRST_BATCH, list[str]()
    for commit in commits:
        batch.append(commit)
        if len(batch) == size:
            yield from _read(git, batch, path)
            size, batch = min(_MOST_BATCH, size * 4), []
    yield from _read(git, batch, path)


def _read(git: Git, commits: list[str], path: str) -> Iterator[_Found]:
    raw = raw_commits(git, commits)
    contents = objects_named(git, (f"{commit}:{path}" for commit in commits))
    for commit, content in zip(commits, contents, strict=True):
        yield _Found(parse_commit(commit, raw[commit]), record_texts(content or b""))


def _before(git: Git, meta: CommitMeta, path: str) -> RecordTexts:
    content = objects_named(git, (f"{meta.parents[0]}:{path}",))[0] if meta.parents else None
    return record_texts(content or b"")


def _walked(job: str, found: _Found, before: RecordTexts) -> list[Entry]:
    """What a commit did to the job; to each of its tasks, those that share what happened folded."""
    asked, key = index_of(JobKey(job)), JobKey(job)
    tasks = {*found.records, *before} if asked is None else {asked}
    changed = [index for index in tasks if found.records.get(index) != before.get(index)]
    entries = [
        _entry(
            key if index is None or asked is not None else task_key(key, index),
            found.meta,
            *_glances(index, found.records, before),
        )
        for index in sorted(changed, key=lambda index: -1 if index is None else index)
    ]
    return folded(entries)


def _glances(index: int | None, now: RecordTexts, before: RecordTexts) -> tuple[JobGlance | None, JobGlance | None]:
    texts = (now.get(index), before.get(index))
    one, other = (job_glance(text[0]) if text is not None else None for text in texts)
    return one, other


def _entry(job: str, meta: CommitMeta, after: JobGlance | None, before: JobGlance | None) -> Entry:
    told = dict(meta.trailers)
    shown = after or before
    number = told.get("Generation", "")
    return Entry(
        generation=int(number) if number.isdecimal() else -1,
        at=Instant(meta.committed_at),
        commit=meta.id,
        job=job,
        action=action_of(
            before.state if before else "",
            before.phase if before else "",
            after.state if after else "",
            after.phase if after else "",
            after.cause if after else "",
        ),
        state=after.state if after else "",
        gpus=gpus_in(after.place if after and after.place else before.place if before else ""),
        place=after.place if after else "",
        queue=shown.queue if shown else "",
        attempt=shown.attempt if shown else 0,
        code=after.code if after else "",
        cause=after.cause if after else "",
        preemptor=after.preemptor if after else "",
        why=after.why if after else DROPPED,
        person=after.by if after else "",
        desired=meta.parents[1] if len(meta.parents) > 1 else told.get("Desired-Commit", ""),
    )


def folded(entries: Iterable[Entry]) -> list[Entry]:
    """Entries of one generation; tasks of one array to which the same happened are one, with the GPUs of all."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        alike = (document_of(JobKey(entry.job)), entry.commit, entry.action, entry.state, entry.code, entry.cause,
                 str(entry.attempt))  # fmt: skip
        is_task = index_of(JobKey(entry.job)) is not None
        groups.setdefault(alike if is_task else (entry.job, entry.commit), []).append(entry)
    return [_together(group) for group in groups.values()]


def _together(entries: list[Entry]) -> Entry:
    first = entries[0]
    if len(entries) == 1:
        return first
    tasks = sorted(index for entry in entries if (index := index_of(JobKey(entry.job))) is not None)
    job = f"{document_of(JobKey(first.job))}.{print_tasks(tasks)}"
    return replace(first, job=job, gpus=sum(entry.gpus for entry in entries), place="")


# --- what happened ---


def action_of(was: str, phase_was: str, state: str, phase: str, cause: str) -> str:
    """One word for a step of a job's record; first match wins."""
    if not state:
        return "drop"
    if state == JobState.STOPPING and was != JobState.STOPPING:
        return "preempt" if cause in EVICTED else "stop"
    if state == JobState.STARTING:
        return (
            "start"
            if was == JobState.STARTING and phase_was != phase
            else "place"
            if was != JobState.STARTING
            else "change"
        )
    if state == was:
        return "change"
    if was == JobState.STOPPING and state in {JobState.PENDING, JobState.HELD}:
        return "release"
    return _WORDS[state]


_WORDS = {
    "Held": "hold", "Pending": "wait", "Promised": "promise", "Running": "running", "Lost": "lost",
    "Repairing": "repair", "Finished": "finish", "Stopping": "stop",
}  # fmt: skip
