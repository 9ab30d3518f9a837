"""`describe`: everything known about one job, with its whole story, or about one node."""

from __future__ import annotations

import difflib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from reconciler.cli import completing
from reconciler.cli.root import fetch_option, output_option
from reconciler.cli.show import array_page, desired_at, job_named, newest, now, print_tree, records_of, width
from reconciler.documents.values import tree_of
from reconciler.errors import NotFound
from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import JobKey, document_of, index_of
from reconciler.render.explain import node_page
from reconciler.render.life import Pace, attempts_table, story_lines
from reconciler.render.node import drift_lines, gpu_table, nic_table, node_lines, receipt_table
from reconciler.render.reach import reach_lines, reaches
from reconciler.render.view import job_page, topology_table
from reconciler.runtime.clone import Clone
from reconciler.runtime.explained import node_explained
from reconciler.runtime.generation import Generation, read_generation
from reconciler.runtime.lives import Life, life_of
from reconciler.runtime.paces import pace_from, pace_tree
from reconciler.topology.drift import drift_of


@click.command()
@click.argument("name", metavar="JOB|ARRAY|NODE", shell_complete=completing.jobs_and_nodes)
@click.option("--topology", is_flag=True, help="A line a rank: GPU, NUMA, NIC and rail, ordered against seen.")
@click.option("--live", "url", envvar="GANGOPS_STATUS", default="", help="Address of the reconciler's status page.")
@output_option
@fetch_option
@click.pass_obj
def describe(repo: Path, name: str, url: str, output: str, *, topology: bool, fetch: bool) -> None:
    """Everything known about JOB (queue/name, or the name alone), ARRAY, one task (queue/name.7), or NODE.

    Of a job: where it is and what it asked for, each of its attempts with its price, and every decision about it. With
    --live also the step time and MFU that its program reports, beside T_comm as foretold. A job whose file was removed
    is described as it was last. Of a node: its GPUs and who has them, its NICs, its drift and what it last said.
    """
    clone, generation, desired = newest(repo, fetch=fetch)
    node = next((n for n in desired.inventory.nodes if n.name == name), None) if "/" not in name else None
    if node is not None:
        _describe_node(node, generation, desired, output)
        return
    full = _full(name, generation, desired)
    try:
        records = records_of(generation, full)
    except NotFound:
        if not _describe_gone(clone, generation, full, output):
            raise
        return
    record = records[0]
    if index_of(record.job) is not None and not name.endswith(record.job.rpartition("/")[2]):
        _describe_array(records, desired, output)
        return
    _describe_job(clone, record, generation, desired, _seen(url, record.job), output)
    if topology and output not in {"json", "yaml", "name"}:
        if record.placement is None:
            raise NotFound(f"{name} has no place now", code="NotPlaced", remedy=f"gangops explain job {name}")
        click.echo("\n" + topology_table(record.placement, generation.observed, width()))


def _full(name: str, generation: Generation, desired: Desired) -> str:
    """The job that is meant, as `job_named` has it. Raises NotFound (UnknownName), UsageError (AmbiguousJob)."""
    key = job_named(generation, name)
    if "/" in key:
        return key
    known = [*generation.allocation.jobs, *(node.name for node in desired.inventory.nodes)]
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {near[0]}?" if near else "`gangops get jobs` and `gangops get nodes` list them"
    raise NotFound(f"{name} is neither a job nor a node", code="UnknownName", remedy=remedy)


# --- an array ---


def _describe_array(records: list[JobRecord], desired: Desired, output: str) -> None:
    array = document_of(records[0].job)
    if output == "name":
        click.echo("\n".join(record.job for record in records))
    elif output in {"json", "yaml"}:
        print_tree(output, "Array", {"array": array, "tasks": [tree_of(record) for record in records]})
    else:
        click.echo(array_page(records, desired))


# --- a job ---


def _describe_gone(clone: Clone, newest: Generation, name: str, output: str) -> bool:
    """A job that the record remembers and no longer has, as of the last generation that had it; False when none did."""
    key = JobKey(name)
    life = life_of(clone.git, newest.commit, key)
    if not life.last:
        return False
    then, dropped = read_generation(clone.git, life.last), life.steps[-1]
    record = then.allocation.jobs[key]
    if record.state is not JobState.FINISHED:
        record = replace(
            record, state=JobState.FINISHED, outcome=Outcome.CANCELLED, since=dropped.at, phase=None, placement=None,
            promise=None,
        )  # fmt: skip
    if output not in {"json", "yaml", "name"}:
        click.echo(f"Its file was removed, and its record went with it in generation {dropped.generation}.\n")
    _describe_job(clone, record, then, desired_at(clone, then), Seen(), output, life)
    return True


def _describe_job(
    clone: Clone, record: JobRecord, generation: Generation, desired: Desired, seen: Seen, output: str,
    life: Life | None = None,
) -> None:  # fmt: skip
    if output == "name":
        click.echo(record.job)
        return
    life = life or life_of(clone.git, generation.commit, record.job)
    if output in {"json", "yaml"}:
        print_tree(output, "Job", _job_content(record, generation, life, seen))
        return
    checkpoint = generation.observed.jobs.get(record.job)
    brought = generation.observed.provenance.get(document_of(record.job))
    click.echo(job_page(record, desired.jobs.get(record.job), desired, now(), seen.lines, checkpoint, brought, width()))
    if ways := reach_lines(record, generation.observed):
        click.echo("\n".join(["\nReach", *(f"  {line}" for line in ways)]))
    if life.attempts:
        click.echo("\nAttempts")
        click.echo(attempts_table(life.attempts, seen.paces, desired.inventory, now(), width()))
    click.echo("\nStory")
    click.echo(story_lines(life.steps, whole=life.whole, width=width()))


def _job_content(record: JobRecord, generation: Generation, life: Life, seen: Seen) -> dict[str, object]:
    observed = generation.observed
    content: dict[str, object] = {
        "record": tree_of(record),
        "attempts": [tree_of(one) for one in life.attempts],
        "story": [tree_of(step) for step in life.steps],
    }
    if (progress := observed.jobs.get(record.job)) is not None:
        content["progress"] = tree_of(progress)
    if (brought := observed.provenance.get(document_of(record.job))) is not None:
        content["provenance"] = tree_of(brought)
    if ways := reaches(record, observed):
        content["reach"] = [tree_of(way) for way in ways]
    if seen.paces:
        content["paces"] = [pace_tree(pace) for pace in seen.paces.values()]
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the reconciler sees of a job beside the record: lines to show, and the pace of its attempts."""

    lines: tuple[str, ...] = ()
    paces: Mapping[int, Pace] = field(default_factory=dict)


def _seen(url: str, job: JobKey) -> Seen:
    """Asked of the reconciler's page; nothing where no address is given, and why where nobody answers."""
    if not url:
        return Seen()
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/live", timeout=5) as answer:  # noqa: S310  a local setting
            found = json.load(answer).get("jobs", {}).get(job)
    except (OSError, ValueError, AttributeError, urllib.error.URLError) as err:
        return Seen(lines=(f"not reachable: {err}",))
    if not isinstance(found, dict):
        return Seen()
    progress = found.get("progress") or {}
    told = ", ".join(f"{key} {value}" for key, value in sorted(progress.items())) if isinstance(progress, dict) else ""
    rows = found.get("paces")
    paces = [pace for row in (rows if isinstance(rows, list) else ()) if (pace := pace_from(row)) is not None]
    return Seen(lines=(told,) if told else (), paces={pace.attempt: pace for pace in paces})


# --- a node ---


def _describe_node(node: Node, generation: Generation, desired: Desired, output: str) -> None:
    if output == "name":
        click.echo(node.name)
        return
    at, observed, jobs = now(), generation.observed, generation.allocation.jobs
    told = node_explained(desired, observed, generation.allocation, node, at)
    drifts = [drift for drift in drift_of(desired.inventory, observed) if drift.node == node.name]
    if output in {"json", "yaml"}:
        content = {"node": node.name, **told.content(), "drift": [tree_of(drift) for drift in drifts]}
        if told.seen is not None:
            content["observed"] = tree_of(told.seen)
        print_tree(output, "Node", content)
        return
    click.echo(node_page(node, told.seen, told.outages, told.holders, told.bookings, told.windows, at, width()))
    click.echo("\n".join([*node_lines(node, told.seen, at), *drift_lines(drifts)]))
    click.echo("\n" + gpu_table(node, told.seen, [jobs[key] for key in sorted(told.holders)], width()))
    if told.seen is not None and told.seen.nics:
        click.echo("\n" + nic_table(told.seen, width()))
    if told.seen is not None and told.seen.attempts:
        click.echo("\n" + receipt_table(told.seen, at, width()))
    click.echo(f"\nWho had it before: gangops history --node {node.name}")
