"""`status`, `get`, `describe`, `explain`, `logs`, `wait`: what runs now, read from the state branch."""

from __future__ import annotations

import difflib
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import click

from reconciler.cli import completing
from reconciler.cli.root import fetch_option, output_option
from reconciler.cli.show import newest, now, opened, print_json, width
from reconciler.documents.canonical import to_yaml
from reconciler.documents.values import tree_of
from reconciler.documents.withheld import withheld_of
from reconciler.errors import NotFound, UsageError
from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import JobKey, QueueName, document_of
from reconciler.render.arrays import array_head, by_array, counted, leading, task_table
from reconciler.render.explain import explanation_page, node_page, queue_page, reason_code
from reconciler.render.plan.model import Tidy
from reconciler.render.tidying import hop_line, proposed, tidying_line
from reconciler.render.view import condition, headline, job_page, job_table, node_table, queue_table, topology_table
from reconciler.runtime.explained import explained, node_explained, proposals, queue_explained
from reconciler.runtime.generation import Generation
from reconciler.runtime.logs import follow, log_files, read_logs
from reconciler.topology.drift import drift_of


@click.command()
@click.argument("job", required=False, shell_complete=completing.jobs)
@output_option
@fetch_option
@click.pass_obj
def status(repo: Path, job: str | None, output: str, *, fetch: bool) -> None:
    """The cluster, its queues and jobs, in a page; with JOB only that one, of an array with its tasks."""
    _, generation, desired = newest(repo, fetch=fetch)
    jobs = generation.allocation.jobs
    if job is not None:
        jobs = {record.job: record for record in _records(generation, job)}
    if output in {"json", "yaml"}:
        _print_tree(
            output,
            "Status",
            {"summary": tree_of(generation.summary), "jobs": [tree_of(record) for record in jobs.values()]},
        )
        return
    if output == "name":
        click.echo("\n".join(jobs))
        return
    click.echo(headline(generation.summary, generation.allocation.metrics, now()))
    if job is not None and job not in jobs:
        click.echo("\n" + _array_page(list(jobs.values()), desired))
        return
    if job is None:
        click.echo("\n" + queue_table(desired, jobs, width()))
    click.echo("\n" + job_table(desired, jobs, now(), width(), wide=output == "wide"))
    if job is None and (line := tidying_line(_proposed(generation, desired))):
        click.echo(f"\n{line}: see gangops plan")
    for change in withheld_of(generation.frozen) if job is None else ():
        click.echo(f"! {change.path} is not acted on: {change.brought}; {change.remedy}")
    for name, seen in sorted(generation.observed.nodes.items()):
        cordoned = next((n.cordoned for n in desired.inventory.nodes if n.name == name), "")
        word = condition(cordoned, seen)
        if word != "Ready":
            why = seen.unhealthy or cordoned or seen.refused
            click.echo(f"! node {name} is {word}{': ' + why if why else ''}")
    for drift in drift_of(desired.inventory, generation.observed):
        if drift.is_grave:
            click.echo(f"! node {drift.node}: {drift.sentence} ({drift.effect})")


@click.command()
@click.argument("kind", type=click.Choice(["jobs", "nodes", "queues"]))
@output_option
@fetch_option
@click.pass_obj
def get(repo: Path, kind: str, output: str, *, fetch: bool) -> None:
    """List jobs, nodes or queues."""
    _, generation, desired = newest(repo, fetch=fetch)
    allocation, observed = generation.allocation, generation.observed
    names: dict[str, list[str]] = {
        "jobs": list(allocation.jobs),
        "nodes": [node.name for node in desired.inventory.nodes],
        "queues": list(desired.quotas.queues),
    }
    if output == "name":
        click.echo("\n".join(names[kind]))
    elif output in {"json", "yaml"}:
        trees = {
            "jobs": [tree_of(record) for record in allocation.jobs.values()],
            "nodes": [tree_of(seen) for _, seen in sorted(observed.nodes.items())],
            "queues": [tree_of(queue) for queue in desired.quotas.queues.values()],
        }
        _print_tree(output, kind.title(), {kind: trees[kind]})
    elif kind == "jobs":
        click.echo(job_table(desired, allocation.jobs, now(), width(), wide=output == "wide"))
    elif kind == "nodes":
        click.echo(node_table(desired, observed, allocation.holders(), width()))
    else:
        click.echo(queue_table(desired, allocation.jobs, width()))


@click.command()
@click.argument("job", shell_complete=completing.jobs)
@click.option("--topology", is_flag=True, help="A line a rank: GPU, NUMA, NIC and rail, ordered against seen.")
@click.option("--live", "url", envvar="GANGOPS_STATUS", default="", help="Address of the reconciler's status page.")
@output_option
@fetch_option
@click.pass_obj
def describe(repo: Path, job: str, url: str, output: str, *, topology: bool, fetch: bool) -> None:
    """Everything known about JOB (queue/name); of an array, its tasks (queue/name.7 is one of them)."""
    _, generation, desired = newest(repo, fetch=fetch)
    records = _records(generation, job)
    if job not in {record.job for record in records}:
        if output in {"json", "yaml"}:
            _print_tree(output, "Array", {"array": job, "tasks": [tree_of(record) for record in records]})
        else:
            click.echo(_array_page(records, desired))
        return
    (record,) = records
    if output in {"json", "yaml"}:
        _print_tree(output, "Job", {"record": tree_of(record)})
        return
    click.echo(job_page(record, desired.jobs.get(record.job), desired, now(), _live(url, job)))
    if topology:
        if record.placement is None:
            raise NotFound(f"{job} has no place now", code="NotPlaced", remedy=f"gangops explain job {job}")
        click.echo("\n" + topology_table(record.placement, generation.observed, width()))


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
            _print_tree(output, "ReasonCode", {"code": str(code), "means": means})
        else:
            click.echo(f"{code}\n  {means}")
        return
    _, generation, desired = newest(repo, fetch=fetch)
    page, kind, content = _EXPLAINED[what](generation, desired, name)
    if output in {"json", "yaml"}:
        _print_tree(output, kind, content)
    else:
        click.echo(page)


def _proposed(generation: Generation, desired: Desired) -> tuple[Tidy, ...]:
    return proposed(proposals(desired, generation.observed, generation.allocation, now()))


def _explain_job(generation: Generation, desired: Desired, name: str) -> tuple[str, str, dict[str, object]]:
    records, at = _records(generation, name), now()
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
        page = f"{name}: {counted(records)}. The first of them:\n\n{page}"
    return page, "Explanation", content


def _explain_node(generation: Generation, desired: Desired, name: str) -> tuple[str, str, dict[str, object]]:
    node = next((n for n in desired.inventory.nodes if n.name == name), None)
    if node is None:
        raise NotFound(f"the inventory has no node {name}", code="UnknownNode", remedy="gangops get nodes")
    told = node_explained(desired, generation.observed, generation.allocation, node, now())
    page = node_page(node, told.seen, told.outages, told.holders, told.bookings, told.windows, now())
    return page, "NodeExplanation", told.content()


def _explain_queue(generation: Generation, desired: Desired, name: str) -> tuple[str, str, dict[str, object]]:
    queue = desired.quotas.queues.get(QueueName(name))
    if queue is None:
        raise NotFound(f"there is no queue {name}", code="UnknownQueue", remedy="gangops get queues")
    told = queue_explained(desired, generation.observed, generation.allocation, queue, now())
    return queue_page(queue, told.used, told.rooms, told.waiting), "QueueExplanation", told.content()


_EXPLAINED = {"job": _explain_job, "node": _explain_node, "queue": _explain_queue}


@click.command()
@click.argument("job", shell_complete=completing.jobs)
@click.option("--rank", type=int, default=None, help="Only this rank.")
@click.option("--attempt", type=int, default=None, help="Another attempt than the latest.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on as lines are written.")
@click.option("--dir", "folder", envvar="GANGOPS_LOGS", type=click.Path(path_type=Path), help="The shared log folder.")
def logs(job: str, rank: int | None, attempt: int | None, folder: Path | None, *, following: bool) -> None:
    """What the ranks of JOB printed, each line with its rank."""
    if folder is None:
        raise UsageError("no log folder", code="LogsMissing", remedy="name it with --dir or GANGOPS_LOGS")
    files = log_files(folder, job, attempt, rank)
    for line in follow(files) if following else read_logs(files):
        click.echo(line)


@click.command()
@click.argument("job", shell_complete=completing.jobs)
@click.option("--for", "what", type=click.Choice(["running", "done"]), default="done")
@click.option("--timeout", type=int, default=3600, help="Seconds.")
@click.pass_obj
def wait(repo: Path, job: str, what: str, timeout: int) -> None:
    """Wait until JOB, or every task of an array, runs or is done. Exit 3 when that takes longer than --timeout, 1 when
    one failed."""
    end = time.monotonic() + timeout
    clone = opened(repo, fetch=True)
    while True:
        jobs = clone.generation().allocation.jobs
        records = [record for key, record in jobs.items() if job in (key, document_of(key))]
        over = [record for record in records if record.state is JobState.FINISHED]
        begun = [record for record in records if record.state is JobState.RUNNING] if what == "running" else []
        if records and len(over) + len(begun) == len(records):
            break
        if time.monotonic() >= end:
            at = counted(records) if len(records) > 1 else records[0].state if records else "unknown"
            raise NotFound(f"{job} is {at} after {timeout} s", code="TimedOut", remedy=f"gangops explain job {job}")
        time.sleep(1)
        clone.refresh()
    click.echo(f"{job} {counted(records) if len(records) > 1 else records[0].outcome or records[0].state}")
    if any(record.outcome not in (None, Outcome.SUCCEEDED) for record in records):
        raise click.exceptions.Exit(1)


def _records(generation: Generation, job: str) -> list[JobRecord]:
    """The record of a job, or those of all tasks of an array. Raises NotFound."""
    jobs = generation.allocation.jobs
    if (found := jobs.get(JobKey(job))) is not None:
        return [found]
    tasks = [record for key, record in jobs.items() if document_of(key) == job]
    if tasks:
        return by_array({record.job: record for record in tasks})[JobKey(job)]
    keys = sorted({*map(document_of, jobs), *jobs})
    near = [key for key in keys if key.endswith(f"/{job}")] or difflib.get_close_matches(job, keys, n=1)
    remedy = f"did you mean {near[0]}?" if near else "jobs are named queue/name; `gangops get jobs` lists them"
    raise NotFound(f"generation {generation.summary.generation} has no job {job}", code="UnknownJob", remedy=remedy)


def _array_page(records: list[JobRecord], desired: Desired) -> str:
    array = document_of(records[0].job)
    return f"{array_head(array, records, desired)}\n\n{task_table(records, desired, now(), width())}"


def _counts(records: list[JobRecord]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in records:
        word = str(record.outcome or record.state)
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items()))


def _live(url: str, job: str) -> list[str]:
    """What the reconciler sees of the job beside the record; nothing when its page is not reachable."""
    if not url:
        return []
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/live", timeout=5) as answer:  # noqa: S310  a local setting
            found = json.load(answer).get("jobs", {}).get(job)
    except (OSError, ValueError, urllib.error.URLError) as err:
        return [f"not reachable: {err}"]
    if not isinstance(found, dict):
        return []
    progress = found.get("progress") or {}
    told = [f"{key} {value}" for key, value in sorted(progress.items())]
    return [", ".join(told)] if told else []


def _print_tree(output: str, kind: str, content: dict[str, object]) -> None:
    if output == "json":
        print_json(kind, content)
    else:
        click.echo(to_yaml({"formatVersion": "1.0", "kind": kind, **content}).decode(), nl=False)  # type: ignore[dict-item]  # trees by construction
