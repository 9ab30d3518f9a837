"""The pages of one job, one array and one node, as of a state commit: what `describe` and `history` say, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.observed import NodeCondition, NodeObservation
from reconciler.model.units import Instant, JobKey, NodeName, document_of
from reconciler.render.arrays import TASK_HEADER, array_head, by_array, leading, task_rows
from reconciler.render.detail import (
    Cell,
    Detail,
    Fact,
    Listing,
    Step,
    cells,
    detail_page,
    headings,
    job_cell,
    node_cell,
)
from reconciler.render.history import by_whom
from reconciler.render.life import attempts_rows
from reconciler.render.moods import mood_of
from reconciler.render.names import gpus_of, one_line
from reconciler.render.node import GPU_HEADER, condition, gpu_rows, node_facts, troubles
from reconciler.render.view import job_facts
from reconciler.runtime.audit.answers import Question, answers, explained
from reconciler.runtime.audit.history import Entry
from reconciler.runtime.audit.index import Index
from reconciler.runtime.generation import Generation
from reconciler.runtime.lives import life_of
from reconciler.store.runner import Git
from reconciler.topology.drift import drift_of

_STEPS: Final = 100
_TOLD_ABOVE: Final = 3
"""The first facts of a job say its name, state and reason, which head its page."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Where pages are drawn from: the record, and one generation of it with what it answered."""

    git: Git
    index: Index
    current: Generation
    desired: Desired
    now: Instant


def job_detail(shown: Shown, job: JobKey) -> str | None:
    """The page of a job or an array; None where the record never heard of it. Raises StoreError."""
    found = list(islice(answers(shown.index, Question(job=job)), _STEPS + 1))
    jobs = shown.current.allocation.jobs
    record = jobs.get(job)
    tasks = by_array({key: one for key, one in jobs.items() if document_of(key) == job and key != job}).get(job, [])
    if record is None and tasks:
        return _array(shown, job, tasks, found)
    if record is not None:
        return _job(shown, record, found)
    if not found:
        return None
    return _page(shown, "Job", job, ("Gone", "", "its file is gone and its record was dropped"), (), (), found)


def _job(shown: Shown, record: JobRecord, found: list[Entry]) -> str:
    current, desired = shown.current, shown.desired
    facts = job_facts(
        record, desired.jobs.get(record.job), desired, shown.now, (), current.observed.jobs.get(record.job),
        current.observed.provenance.get(document_of(record.job)),
    )  # fmt: skip
    header, rows = attempts_rows(
        life_of(shown.git, current.commit, record.job).attempts, {}, desired.inventory, shown.now
    )
    tables = [
        _listing("held", "Where it is", ("Node", "GPUs", "For"), _places(record), empty="It holds no GPU now."),
        _listing(
            "attempts", "Attempts", headings(header), cells(rows), "Ran T_comm Step MFU Lost", "It never started."
        ),
    ]
    told = [(label, text) for label, text in facts[_TOLD_ABOVE:] if label not in {"where", "spares"}]
    stands = (str(record.outcome or record.state), mood_of(record.state), facts[2][1])
    return _page(shown, "Job", record.job, stands, told, tables, found)


def _places(record: JobRecord) -> tuple[tuple[Cell, ...], ...]:
    if record.placement is None or not record.state.holds_gpus:
        return ()
    rows = [(node, mask, "its ranks") for node, mask in record.placement.masks.items()]
    rows += [(spare.node, spare.mask, "its repair") for spare in record.spares]
    return tuple((node_cell(node), Cell(gpus_of(mask)), Cell(use)) for node, mask, use in rows)


def _array(shown: Shown, array: JobKey, tasks: list[JobRecord], found: list[Entry]) -> str:
    size, _, standing = array_head(array, tasks, shown.desired).partition("\n")
    rows = cells(task_rows(tasks, shown.desired, shown.now))
    linked = tuple((_task_cell(array, row[0].told), *row[1:]) for row in rows)
    tables = [_listing("tasks", "Tasks", headings(TASK_HEADER), linked, "Attempt Since")]
    facts = [("tasks", size.removeprefix(array).strip())]
    return _page(shown, "Array", array, (standing, mood_of(leading(tasks).state), ""), facts, tables, found)


def _task_cell(array: JobKey, tasks: str) -> Cell:
    """Of a single task a link to its page."""
    return Cell(tasks, job_cell(f"{array}.{tasks}").link) if tasks.isdecimal() else Cell(tasks)


def node_detail(shown: Shown, name: NodeName) -> str | None:
    """The page of a node; None where neither the inventory nor an agent ever named it. Raises StoreError."""
    node = next((one for one in shown.desired.inventory.nodes if one.name == name), None)
    seen = shown.current.observed.nodes.get(name)
    if node is None and seen is None:
        return None
    found = list(islice(answers(shown.index, Question(node=name)), _STEPS + 1))
    if node is None:
        return _page(shown, "Node", name, ("Gone", "bad", "it left the inventory"), (), (), found)
    facts = [("place", "/".join(node.path)), *node_facts(node, seen, shown.now)]
    facts += [
        ("drift", f"{one_line(one.sentence)} ({one.effect})")
        for one in drift_of(shown.desired.inventory, shown.current.observed) if one.node == name
    ]  # fmt: skip
    tables = [_listing("gpus", "Its GPUs", headings(GPU_HEADER), _gpus(shown, node, seen), "GPU NUMA Rail Rank")]
    return _page(shown, "Node", name, _node_stands(node, seen), facts, tables, found)


def _node_stands(node: Node, seen: NodeObservation | None) -> tuple[str, str, str]:
    wrong = troubles(node, seen)
    is_away = seen is None or seen.condition is not NodeCondition.READY
    mood = "bad" if is_away or node.dead else "warn" if wrong else "good"
    return condition(node, seen), mood, "; ".join(f"{one.told}; {one.means}" for one in wrong)


def _gpus(shown: Shown, node: Node, seen: NodeObservation | None) -> tuple[tuple[Cell, ...], ...]:
    at = GPU_HEADER.index("HELD BY")
    rows = cells(gpu_rows(node, seen, list(shown.current.allocation.jobs.values())))
    return tuple((*row[:at], job_cell(row[at].told) if row[at].told else Cell("idle"), *row[at + 1 :]) for row in rows)


def _listing(
    anchor: str, title: str, header: tuple[str, ...], rows: tuple[tuple[Cell, ...], ...], right: str = "", empty: str = "None."
) -> Listing:  # fmt: skip
    return Listing(id=anchor, title=title, header=header, rows=rows, right=frozenset(right.split()), empty=empty)


def _page(
    shown: Shown, kind: str, name: str, stands: tuple[str, str, str], facts: Sequence[tuple[str, str]],
    tables: Sequence[Listing], found: list[Entry],
) -> str:  # fmt: skip
    word, mood, why = stands
    summary = shown.current.summary
    return detail_page(
        Detail(
            kind=kind, name=name, cluster=summary.cluster_id, generation=summary.generation, commit=shown.current.commit,
            word=word, mood=mood, why=why, facts=tuple(Fact(name=label, told=text) for label, text in facts),
            tables=tuple(tables), steps=tuple(_steps(shown.git, found)), more_steps=len(found) > _STEPS,
        )
    )  # fmt: skip


def _steps(git: Git, found: list[Entry]) -> list[Step]:
    return [
        Step(
            generation=one.generation, at=one.at, commit=one.commit, action=one.action, gpus=one.gpus, job=one.job,
            by=by_whom(one.person, one.request), told=one_line(one.why),
        )
        for one in explained(git, found[:_STEPS])
    ]  # fmt: skip
