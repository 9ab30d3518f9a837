"""One live page from one commit: run as a process of its own, so that drawing never takes a turn from the loop.

`python -m reconciler.runtime.live_render CLONE COMMIT [job|node NAME]` prints the page; exit 3 when there is no such job
or node. What is asked for, and when, is for `live`.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from pathlib import Path

from reconciler.errors import ExitStatus, GangOpsError, StoreError
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.units import DAY, Instant, JobKey, NodeName
from reconciler.render.detail import Detail, Fact, Held, Step, detail_page
from reconciler.render.history import by_whom
from reconciler.render.names import gpus_of, one_line, when
from reconciler.render.page import html_page
from reconciler.runtime.audit.history import Entry, Question, answers, explained
from reconciler.runtime.audit.index import Index, indexed
from reconciler.runtime.audit.picture import picture
from reconciler.runtime.generation import Generation, read_generation
from reconciler.runtime.reading import DesiredReader
from reconciler.store.runner import Git

_STEPS = 100
_SHOWN = 7 * DAY
_SEAL = "A live page proves nothing: `gangops audit verify` does."
_MOODS = {JobState.RUNNING: "good", JobState.LOST: "bad", JobState.REPAIRING: "warn", JobState.STOPPING: "warn"}


def rendered(folder: Path, commit: str, kind: str, name: str, now: Instant) -> str | None:
    """The page of the cluster (`kind` ""), of a job or of a node, as of a state commit; None when there is none.

    Raises StoreError.
    """
    git = Git(folder=folder, bare=True, protocols=frozenset())
    current = read_generation(git, commit)
    read = DesiredReader(git).recorded(commit, current.summary.desired_commit, current.frozen)
    if read.desired is None:
        raise StoreError("the desired state of this generation cannot be read", code="BadRecord")
    index = indexed(git, commit)
    if kind == "job":
        return _job(git, index, current, read.desired, JobKey(name))
    if kind == "node":
        return _node(git, index, current, read.desired, NodeName(name))
    first, last = index.commits["at"][0], index.commits["at"][-1]
    end = Instant(max(now, last))
    page = picture(
        git, index, current, read.desired, since=Instant(max(first, end - _SHOWN)), until=end, made=now, seal=_SEAL, sealed=None,
    )  # fmt: skip
    return html_page(page, live=True)


def _job(git: Git, index: Index, current: Generation, desired: Desired, job: JobKey) -> str | None:
    found = list(islice(answers(index, Question(job=job)), _STEPS + 1))
    record = current.allocation.jobs.get(job)
    if record is None and not found:
        return None
    facts: tuple[Fact, ...] = ()
    held: tuple[Held, ...] = ()
    if record is None:
        word, mood, why = "gone", "", "its file is gone and its record was dropped"
    else:
        asked = desired.jobs.get(job)
        word, mood = str(record.state), _MOODS.get(record.state, "")
        why = _why(git, current, job)
        facts = (
            Fact(name="Since", told=when(record.since)), Fact(name="Queue", told=record.queue),
            Fact(name="Attempt", told=str(record.attempt)), Fact(name="GPUs held", told=f"{record.gpus_held} / {asked.gpus}" if asked is not None else str(record.gpus_held)),
            Fact(name="Asked by", told=by_whom(found[0].person, found[0].request) if found else "-"),
        )  # fmt: skip
        masks = record.placement.masks if record.placement is not None and record.gpus_held else {}
        held = tuple(Held(node=node, gpus=gpus_of(mask), job=job) for node, mask in masks.items())
    return detail_page(
        _detail("Job", job, current, word, mood, why, facts, held, _steps(git, found), len(found) > _STEPS)
    )


def _why(git: Git, current: Generation, job: JobKey) -> str:
    entry = Entry(generation=0, at=Instant(0), commit=current.commit, job=job, action="", state="", gpus=0)
    return one_line(explained(git, [entry])[0].why)


def _node(git: Git, index: Index, current: Generation, desired: Desired, name: NodeName) -> str | None:
    node = next((one for one in desired.inventory.nodes if one.name == name), None)
    seen = current.observed.nodes.get(name)
    if node is None and seen is None:
        return None
    holders = current.allocation.holders().get(name, {})
    taken = 0
    held = []
    for job, mask in sorted(holders.items(), key=lambda pair: pair[1] & -pair[1]):
        held.append(Held(node=name, gpus=gpus_of(mask), job=job))
        taken |= mask
    idle = (node.shape.all_gpus if node is not None else 0) & ~taken
    if idle:
        held.append(Held(node=name, gpus=gpus_of(idle), job=""))
    word = str(seen.condition) if seen is not None else "never seen"
    trouble = (node.cordoned if node is not None else "it left the inventory") or (
        seen.unhealthy if seen is not None else ""
    )
    mood = "good" if word == "Ready" and not trouble else "warn" if word == "Ready" else "bad"
    facts = [Fact(name="Since", told=when(seen.condition_since))] if seen is not None else []
    if node is not None:
        facts += [
            Fact(name="Rack", told=node.rack), Fact(name="GPU type", told=node.shape.gpu_type),
            Fact(name="GPUs held", told=f"{taken.bit_count()} / {len(node.shape.gpus)}"),
        ]  # fmt: skip
    found = list(islice(answers(index, Question(node=name)), _STEPS + 1))
    return detail_page(
        _detail(
            "Node",
            name,
            current,
            word,
            mood,
            one_line(trouble),
            tuple(facts),
            tuple(held),
            _steps(git, found),
            len(found) > _STEPS,
        )
    )


def _steps(git: Git, found: list[Entry]) -> tuple[Step, ...]:
    return tuple(
        Step(
            generation=e.generation, at=e.at, commit=e.commit, action=e.action, gpus=e.gpus, job=e.job,
            by=by_whom(e.person, e.request), told=one_line(e.why),
        )
        for e in explained(git, found[:_STEPS])
    )  # fmt: skip


def _detail(
    kind: str, name: str, current: Generation, word: str, mood: str, why: str, facts: tuple[Fact, ...],
    held: tuple[Held, ...], steps: tuple[Step, ...], more: bool,
) -> Detail:  # fmt: skip
    return Detail(
        kind=kind, name=name, cluster=current.summary.cluster_id, generation=current.summary.generation,
        commit=current.commit, word=word, mood=mood, why=why, facts=facts, held=held, steps=steps, more_steps=more,
    )  # fmt: skip


def main(folder: str, commit: str, kind: str = "", name: str = "") -> int:
    """Print the page on standard output."""
    os.nice(10)
    try:
        page = rendered(Path(folder), commit, kind, name, Instant(time.time_ns()))
    except GangOpsError as err:
        sys.stderr.write(f"{err.code}: {err.message}\n")
        return ExitStatus.ERROR
    if page is None:
        return ExitStatus.NOT_FOUND
    sys.stdout.buffer.write(page.encode())
    return ExitStatus.OK


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
