"""What an answer from the record lacks: is a name unknown, did nothing happen then, or is the clone cut off?"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable

import click

from reconciler.cli.show import desired_at
from reconciler.errors import InvalidInput, NotFound
from reconciler.model.units import Instant, JobKey, document_of
from reconciler.render.names import when
from reconciler.runtime.audit.answers import Question
from reconciler.runtime.audit.glance import masks
from reconciler.runtime.audit.index import Index, indexed
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import read_generation


def warn_if_cut(clone: Clone) -> None:
    """Say on standard error that a shallow clone cannot tell how things began."""
    if clone.git.run("rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
        click.echo(
            "warning: this clone is shallow: what stands in its first generation may be older (`git fetch --unshallow`)",
            err=True,
        )


def nothing_found(clone: Clone, question: Question) -> NotFound:
    """Why a history has no line."""
    wrong = unknown_name(clone, question)
    if wrong is not None:
        return wrong
    then = " then" if question.since is not None or question.until is not None else ""
    return NotFound(
        f"nothing in the record answers that{then}", code="NothingFound",
        remedy="Ask for less at once, or widen --since and --until.",
    )  # fmt: skip


def unknown_name(clone: Clone, question: Question) -> NotFound | None:
    """The first name of a question that the whole record never mentions, with those that are near; None when all are known."""
    index = indexed(clone.git, clone.state_tip())
    if question.job:
        jobs = set(_texts(index, "job"))
        known = jobs | {document_of(JobKey(job)) for job in jobs}
        if question.job not in known:
            return _unknown("UnknownJob", "job", question.job, known, "jobs are named queue/name")
    if question.node:
        nodes = {node for column in ("place", "spares") for words in _texts(index, column) for node in masks(words)}
        if question.node not in nodes:
            nodes |= {str(node) for node in clone.generation().observed.nodes}
            if question.node not in nodes:
                return _unknown("UnknownNode", "node", question.node, nodes, "`gangops get nodes` lists them")
    if question.queue:
        queues = set(_texts(index, "queue"))
        if not any(name == question.queue or name.startswith(f"{question.queue}/") for name in queues):
            return _unknown("NoJobsInQueue", "job of queue", question.queue, queues, "`gangops get queues` lists them")
    return None


def unknown_node_at(clone: Clone, index: Index, position: int, node: str, at: Instant) -> NotFound | None:
    """That a node was neither declared nor seen in the generation at a position, the one in force at `at`, with those that
    are near; None when it was."""
    then = read_generation(clone.git, index.ids[position])
    known = {str(name) for name in then.observed.nodes}
    with contextlib.suppress(InvalidInput):  # it was begun on a tree that made no sense, and declared nothing
        known |= {one.name for one in desired_at(clone, then).inventory.nodes}
    if node in known:
        return None
    near = difflib.get_close_matches(node, sorted(known), n=3)
    remedy = (
        f"did you mean {' or '.join(near)}?" if near else f"`gangops history --node {node}` tells whether it ever was"
    )
    return NotFound(f"no node {node} was declared or seen at {when(at)}", code="UnknownNode", remedy=remedy)


def _texts(index: Index, column: str) -> Iterable[str]:
    return (index.texts[number] for number in set(index.events[column]))


def _unknown(code: str, what: str, name: str, known: set[str], otherwise: str) -> NotFound:
    near = sorted(one for one in known if one.endswith(f"/{name}")) or difflib.get_close_matches(
        name, sorted(known), n=1
    )
    remedy = f"did you mean {' or '.join(near)}?" if near else otherwise
    return NotFound(f"no generation ever mentioned a {what} {name}", code=code, remedy=remedy)
