"""`status`, `get`, `explain`: what runs now, read from the state branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from reconciler.cli import completing
from reconciler.cli.root import fetch_option, output_option
from reconciler.cli.show import (
    array_page,
    desired_at,
    job_named,
    newest,
    now,
    opened,
    print_tree,
    records_of,
    refreshed,
    width,
)
from reconciler.cli.watch import watch
from reconciler.documents.values import tree_of
from reconciler.documents.withheld import withheld_of
from reconciler.errors import NotFound, UsageError
from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NodeObservation
from reconciler.model.reasons import blank
from reconciler.model.units import CommitId, JobKey, QueueName
from reconciler.render.arrays import leading, tally
from reconciler.render.explain import explanation_page, node_page, queue_page, reason_code
from reconciler.render.names import one_line, when
from reconciler.render.node import troubles
from reconciler.render.plan.model import Tidy
from reconciler.render.story import request_line
from reconciler.render.table import below, continued
from reconciler.render.tidying import hop_line, proposed, tidying_line
from reconciler.render.view import headline, invalid_line, job_table, node_table, queue_table, request_table
from reconciler.runtime.clone import Clone
from reconciler.runtime.explained import explained, node_explained, proposals, queue_explained
from reconciler.runtime.generation import Generation
from reconciler.runtime.held_back import HeldBack, held_back
from reconciler.runtime.reading import DesiredReader
from reconciler.topology.drift import drift_of


@click.command()
@click.argument("job", required=False, shell_complete=completing.jobs)
@click.option(
    "--watch", "watching", is_flag=True, help="Again at each decision; off a terminal a line for each change."
)
@output_option
@fetch_option
@click.pass_obj
def status(repo: Path, job: str | None, output: str, *, watching: bool, fetch: bool) -> None:
    """The cluster, its queues and jobs, in a page; with JOB only that one, of an array with its tasks."""
    if watching and output not in {"table", "wide"}:
        raise UsageError("--watch shows pages and lines", code="WatchOfData", remedy="leave out -o, or --watch")
    clone = opened(repo, fetch=False)
    fresh = fetch and refreshed(clone)
    generation = clone.generation()
    job = job_named(generation, job) if job is not None else None
    reader = DesiredReader(clone.git)

    def page(generation: Generation) -> str:
        desired = desired_at(clone, generation, reader)
        held = _held_back(clone, reader, generation, fresh=fresh) if job is None else None
        return "\n".join(_status_page(generation, desired, job, output, held))

    if watching:
        watch(clone, job or "", page)
    if output in {"table", "wide"}:
        click.echo(page(generation))
        return
    desired_at(clone, generation, reader)
    jobs = _jobs_shown(generation, job)
    if output == "name":
        click.echo("\n".join(jobs))
        return
    content: dict[str, object] = {
        "summary": tree_of(generation.summary),
        "jobs": [tree_of(record) for record in jobs.values()],
    }
    if (held := _held_back(clone, reader, generation, fresh=fresh)) is not None:
        content["heldBack"] = tree_of(held)
    print_tree(output, "Status", content)


def _held_back(clone: Clone, reader: DesiredReader, generation: Generation, *, fresh: bool) -> HeldBack | None:
    tip = clone.find_desired()
    return held_back(clone.git, reader, generation, CommitId(tip), now(), fresh=fresh) if tip is not None else None


def _jobs_shown(generation: Generation, job: str | None) -> Mapping[JobKey, JobRecord]:
    if job is None:
        return generation.allocation.jobs
    return {record.job: record for record in records_of(generation, job)}


def _status_page(
    generation: Generation, desired: Desired, job: str | None, output: str, held: HeldBack | None
) -> Iterator[str]:  # fmt: skip
    jobs = _jobs_shown(generation, job)
    yield headline(generation.summary, generation.allocation.metrics, now())
    if job is not None and job not in jobs:
        yield "\n" + array_page(list(jobs.values()), desired)
        return
    if job is None:
        yield "\n" + queue_table(desired, jobs, width())
    yield "\n" + job_table(desired, jobs, now(), width(), wide=output == "wide")
    if job is None and (line := tidying_line(_proposed(generation, desired))):
        yield f"\n{line}: see gangops plan"
    if held is not None:
        yield from continued(f"! {held.sentence}", width(), 2)
    for warning in _warnings(generation, desired, of_all=job is None):
        yield from continued(f"! {warning}", width(), 2)


def _warnings(generation: Generation, desired: Desired, *, of_all: bool) -> Iterator[str]:
    """What a person should know beside the tables, a sentence each; `of_all`: of the whole cluster, not of one job."""
    if of_all and (line := invalid_line(generation.frozen, desired.blocked, generation.summary.desired_commit)):
        yield line
    for change in withheld_of(generation.frozen) if of_all else ():
        yield f"{change.path} is not acted on: {change.brought}; {change.remedy}"
    for request in generation.observed.requests.values() if of_all else ():
        if request.in_force(now()):
            yield f"{one_line(request_line(request))}, until {when(request.expires)}"
    declared = {node.name: node for node in desired.inventory.nodes}
    for name, seen in sorted(generation.observed.nodes.items()):
        if wrong := troubles(declared.get(name), seen):
            yield f"node {name} is {'; '.join(one.told for one in wrong)}"
    for drift in drift_of(desired.inventory, generation.observed):
        if drift.is_grave:
            yield f"node {drift.node}: {drift.sentence} ({drift.effect})"


@click.command()
@click.argument("kind", type=click.Choice(["jobs", "nodes", "queues", "requests"]))
@output_option
@fetch_option
@click.pass_obj
def get(repo: Path, kind: str, output: str, *, fetch: bool) -> None:
    """List jobs, nodes, queues or requests."""
    _, generation, desired = newest(repo, fetch=fetch)
    allocation, observed = generation.allocation, generation.observed
    names: dict[str, list[str]] = {
        "jobs": list(allocation.jobs),
        "nodes": [node.name for node in desired.inventory.nodes],
        "queues": list(desired.quotas.queues),
        "requests": list(observed.requests),
    }
    if output == "name":
        click.echo("\n".join(names[kind]))
    elif output in {"json", "yaml"}:
        trees = {
            "jobs": [tree_of(record) for record in allocation.jobs.values()],
            "nodes": [_node_tree(node, observed.nodes.get(node.name)) for node in desired.inventory.nodes],
            "queues": [tree_of(queue) for queue in desired.quotas.queues.values()],
            "requests": [tree_of(request) for request in observed.requests.values()],
        }
        print_tree(output, kind.title(), {kind: trees[kind]})
    elif kind == "jobs":
        click.echo(job_table(desired, allocation.jobs, now(), width(), wide=output == "wide"))
    elif kind == "nodes":
        click.echo(node_table(desired, observed, allocation.holders(), width()))
    elif kind == "requests":
        click.echo(request_table(observed.requests, width()))
    else:
        click.echo(queue_table(desired, allocation.jobs, width()))


def _node_tree(node: Node, seen: NodeObservation | None) -> dict[str, object]:
    """What is declared of it, what keeps it from taking work, and all that was seen of it."""
    states = [one.tree() for one in troubles(node, seen)]
    known = tree_of(seen) if seen is not None else {}
    return {"node": node.name, "place": list(node.path), "states": states, **known}


@click.command()
@click.argument("what", type=click.Choice(["job", "node", "queue", "code"]))
@click.argument("name")
@output_option
@fetch_option
@click.pass_obj
def explain(repo: Path, what: str, name: str, output: str, *, fetch: bool) -> None:
    """Why a job is where it is and what would start it; how a node or a queue stands; what a reason code means.

    All blockers of a job are told, the binding one marked. What it says would start the job has been tried.
    """
    if what == "code":
        code, means = reason_code(name)
        if output in {"json", "yaml"}:
            print_tree(output, "ReasonCode", {"code": str(code), "means": means})
        else:
            click.echo("\n".join([str(code), *below(blank(code), width(), "  ")]))
        return
    _, generation, desired = newest(repo, fetch=fetch)
    page, kind, content = _EXPLAINED[what](generation, desired, name)
    if output in {"json", "yaml"}:
        print_tree(output, kind, content)
    else:
        click.echo(page)


def _proposed(generation: Generation, desired: Desired) -> tuple[Tidy, ...]:
    return proposed(proposals(desired, generation.observed, generation.allocation, now()))


def _explain_job(generation: Generation, desired: Desired, name: str) -> tuple[str, str, dict[str, object]]:
    name = job_named(generation, name)
    records, at = records_of(generation, name), now()
    record = leading(records)
    told = explained(desired, generation.observed, generation.allocation, record.job, at)
    page = explanation_page(
        record, desired.jobs.get(record.job), told.blockers, generation.summary.generation, at, width(),
        offers=told.offers, expected=told.expected,
    )  # fmt: skip
    if record.state is JobState.RUNNING:
        moves = [(one, hop) for one in _proposed(generation, desired) for hop in one.hops if hop.job == record.job]
        page += "".join(f"\nDefragment proposes to move it for {one.nodes}: {hop_line(hop)}" for one, hop in moves)
    content: dict[str, object] = {"record": tree_of(record), **told.content()}
    if name != record.job:
        content["tasks"] = _counts(records)
        page = f"{name}: {tally(records)}. The first of them:\n\n{page}"
    return page, "Explanation", content


def _explain_node(generation: Generation, desired: Desired, name: str) -> tuple[str, str, dict[str, object]]:
    node = next((n for n in desired.inventory.nodes if n.name == name), None)
    if node is None:
        raise NotFound(f"the inventory has no node {name}", code="UnknownNode", remedy="gangops get nodes")
    told = node_explained(desired, generation.observed, generation.allocation, node, now())
    page = node_page(node, told.seen, told.outages, told.holders, told.bookings, told.windows, now(), width())
    return page, "NodeExplanation", told.content()


def _explain_queue(generation: Generation, desired: Desired, name: str) -> tuple[str, str, dict[str, object]]:
    queue = desired.quotas.queues.get(QueueName(name))
    if queue is None:
        raise NotFound(f"there is no queue {name}", code="UnknownQueue", remedy="gangops get queues")
    told = queue_explained(desired, generation.observed, generation.allocation, queue, now())
    return queue_page(queue, told.used, told.rooms, told.waiting, width()), "QueueExplanation", told.content()


_EXPLAINED = {"job": _explain_job, "node": _explain_node, "queue": _explain_queue}


def _counts(records: list[JobRecord]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in records:
        word = str(record.outcome or record.state)
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items()))
