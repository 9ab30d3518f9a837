"""Who had which GPU, when, and which decision gave it? Asked of the index.

Questions by node, GPU, queue, person, pull request or time. How the answers look is left to `render`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from reconciler.documents.record import job_path
from reconciler.model.units import Instant, JobKey, document_of, index_of
from reconciler.runtime.audit.glance import JobGlance, job_glance, masks, record_texts
from reconciler.runtime.audit.history import DROPPED, Entry, action_of, folded
from reconciler.runtime.audit.index import HOLDING, Index, gpus_in
from reconciler.store.runner import Git
from reconciler.store.walk import objects_named


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
