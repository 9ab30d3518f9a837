"""Who had which GPU, when, and which decision gave it? By path from git alone, or from the index for the rest.

One job's history is a walk along one path, which needs nothing but the clone. Questions by node, GPU, queue, person,
pull request or time are asked of the index. How the answers look is left to `render`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from reconciler.documents.layout import path_of
from reconciler.documents.record import job_path
from reconciler.documents.tasklist import print_tasks
from reconciler.model.lifecycle import JobState
from reconciler.model.units import SECOND, Instant, JobKey, document_of, index_of, task_key
from reconciler.runtime.audit.glance import JobGlance, RecordTexts, job_glance, masks, record_texts
from reconciler.runtime.audit.index import EVICTED, HOLDING, Index, gpus_in
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Who held GPUs of one node at an instant, and `given`: the decision that gave them. `state` is SPARE of GPUs that are
    kept beside the gang for its repair."""

    node: str
    mask: int
    job: str
    queue: str
    attempt: int
    state: str
    given: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a history is narrowed to; all that is given must hold. `gpu` is an index on `node`, -1 for any."""

    job: str = ""
    node: str = ""
    gpu: int = -1
    queue: str = ""
    person: str = ""
    request: str = ""
    since: Instant | None = None
    until: Instant | None = None


ALL = Question()
SPARE = "Spare"


# --- by path ---


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


# --- from the index ---


def answers(index: Index, question: Question) -> Iterator[Entry]:
    """The changes a question is about, newest first. Of a node or GPU: all that gave it, took it, or changed its holder."""
    chosen = list(_chosen(index, question))
    previous = _previous_of(index, chosen)
    entries = (entry_of(index, event, previous.get(event)) for event in reversed(chosen))
    if not question.job or index_of(JobKey(question.job)) is not None:
        yield from entries
        return
    for _, together in groupby(entries, key=lambda entry: entry.commit):
        yield from folded(sorted(together, key=lambda entry: index_of(JobKey(entry.job)) or 0))


def _chosen(index: Index, question: Question) -> Iterator[int]:
    """Events that match, oldest first."""
    columns = index.events
    begin = 0 if question.since is None else index.first_event(index.position_at(Instant(question.since - 1)) + 1)
    end = len(columns["commit"]) if question.until is None else index.first_event(index.position_at(question.until) + 1)
    wanted = {
        name: _numbers(index, text) for name, text in (("job", question.job), ("request", question.request)) if text
    }
    if question.job:
        wanted["job"] |= {n for n, text in enumerate(index.texts) if is_task_of(text, question.job)}
    if question.queue:
        wanted["queue"] = {n for n, text in enumerate(index.texts) if _is_within(text, question.queue)}
    if question.person:
        wanted["person"] = {n for n, text in enumerate(index.texts) if _is_person(text, question.person)}
    events: Iterable[int] = range(begin, end)
    for name, numbers in wanted.items():
        column = columns[name]
        events = [event for event in events if column[event] in numbers]
    if not question.node:
        yield from events
        return
    places = {n for n, words in enumerate(index.texts) if _covers(words, question.node, question.gpu)}
    holds: dict[int, bool] = {}
    jobs, column, beside = columns["job"], columns["place"], columns["spares"]
    within = events if isinstance(events, range) else set(events)
    for event in range(end):
        there = column[event] in places or beside[event] in places
        if (there or holds.get(jobs[event])) and event in within:
            yield event
        holds[jobs[event]] = there


def is_task_of(job: str, array: str) -> bool:
    """Whether this is a task of that array."""
    return index_of(JobKey(job)) is not None and document_of(JobKey(job)) == array


def _numbers(index: Index, text: str) -> set[int]:
    return {n for n, found in enumerate(index.texts) if found == text}


def _is_person(address: str, wanted: str) -> bool:
    return "@" in address and (address == wanted or address.partition("@")[0] == wanted)


def _covers(words: str, node: str, gpu: int) -> bool:
    start = f" {words}".find(f" {node}:")
    if start < 0:
        return False
    mask = int(words[start + len(node) + 1 :].split(" ", 1)[0], 16) if gpu >= 0 else 0
    return gpu < 0 or bool(mask >> gpu & 1)


def _previous_of(index: Index, events: list[int]) -> dict[int, int]:
    """The event before each of these, of the same job."""
    wanted, jobs = set(events), index.events["job"]
    last: dict[int, int] = {}
    found: dict[int, int] = {}
    for event in range(max(events, default=-1) + 1):
        if event in wanted and jobs[event] in last:
            found[event] = last[jobs[event]]
        last[jobs[event]] = event
    return found


def entry_of(index: Index, event: int, before: int | None) -> Entry:
    """An event of the index as an entry; `before` is the event before it of the same job."""
    position, text = index.events["commit"][event], index.text
    place, held = text("place", event), text("place", before) if before is not None else ""
    return Entry(
        generation=index.commits["generation"][position],
        at=Instant(index.commits["at"][position]),
        commit=index.ids[position],
        job=text("job", event),
        action=action_of(
            text("state", before) if before is not None else "", text("phase", before) if before is not None else "",
            text("state", event), text("phase", event), text("cause", event),
        ),
        state=text("state", event),
        gpus=gpus_in(place or held),
        place=place,
        queue=text("queue", event) or (text("queue", before) if before is not None else ""),
        attempt=index.events["attempt"][event if text("state", event) or before is None else before],
        code=text("code", event),
        cause=text("cause", event),
        preemptor=text("preemptor", event),
        desired=index.texts[index.commits["desired"][position]],
        asked=text("asked", event),
        person=text("person", event),
        request=text("request", event),
    )  # fmt: skip


def explained(git: Git, entries: list[Entry]) -> list[Entry]:
    """The same entries with `why` in words, and who asked for it at once, read from their commits in one go."""
    contents = objects_named(git, (f"{e.commit}:{job_path(JobKey(e.job))}" for e in entries))
    found = []
    for entry, content in zip(entries, contents, strict=True):
        text = record_texts(content or b"").get(_first_task(entry.job))
        found.append(_in_words(entry, job_glance(text[0]) if text is not None else None))
    return found


def _in_words(entry: Entry, told: JobGlance | None) -> Entry:
    if told is None:
        return replace(entry, why=DROPPED)
    return replace(entry, why=told.why, person=told.by or entry.person, request="" if told.by else entry.request)


def _first_task(job: str) -> int | None:
    """The task of `nlp/sweep.7`, the first of `nlp/sweep.7-9`; None for a job that is no task."""
    tasks = job.partition(".")[2]
    return int(re.split("[-,]", tasks, maxsplit=1)[0]) if tasks else None


def holders_at(index: Index, at: Instant, asked: Question = ALL) -> list[Holding]:
    """Who held which GPUs at an instant, by node, and the decision that gave them; [] before the record begins.

    Of `asked` all but its times count.
    """
    position = index.position_at(at)
    standing = {job: e for job, e in index.standing(position).items() if index.text("state", e) in HOLDING}
    held = {
        (job, name, column): mask
        for job, event in standing.items()
        if _is_asked_for(index, event, asked)
        for column in ("place", "spares")
        for name, mask in masks(index.text(column, event)).items()
        if (not asked.node or name == asked.node) and (asked.gpu < 0 or mask >> asked.gpu & 1)
    }
    past = _events_of(index, {job for job, _, _ in held}, index.first_event(position + 1))
    found = []
    for (job, name, column), mask in held.items():
        event = standing[job]
        given, before = _giving(index, past[job], name, mask)
        found.append(
            Holding(
                node=name, mask=mask, job=index.texts[job], queue=index.text("queue", event),
                attempt=index.events["attempt"][event], given=entry_of(index, given, before),
                state=SPARE if column == "spares" else index.text("state", event),
            )
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.node, one.mask & -one.mask, one.job))


def _is_asked_for(index: Index, event: int, asked: Question) -> bool:
    job = index.text("job", event)
    return (
        (not asked.job or job == asked.job or is_task_of(job, asked.job))
        and (not asked.queue or _is_within(index.text("queue", event), asked.queue))
        and (not asked.person or _is_person(index.text("person", event), asked.person))
        and (not asked.request or index.text("request", event) == asked.request)
    )


def _is_within(queue: str, outer: str) -> bool:
    return queue == outer or queue.startswith(f"{outer}/")


def _events_of(index: Index, jobs: set[int], end: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {job: [] for job in jobs}
    for event, job in enumerate(index.events["job"][:end]):
        if job in found:
            found[job].append(event)
    return found


def _giving(index: Index, events: list[int], node: str, mask: int) -> tuple[int, int | None]:
    """The event that gave these GPUs to the attempt that has them, and the one before it."""
    attempt = index.events["attempt"][events[-1]]
    given = len(events) - 1
    while given > 0:
        before = events[given - 1]
        if index.events["attempt"][before] != attempt or index.holds(before).get(node, 0) & mask != mask:
            break
        given -= 1
    return events[given], events[given - 1] if given else None


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
