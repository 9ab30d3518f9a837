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
from reconciler.model.lifecycle import JobState
from reconciler.model.units import JobKey, QueueName
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
    """The cluster, its queues and jobs, in a page; with JOB only that one."""
    _, generation, desired = newest(repo, fetch=fetch)
    jobs = generation.allocation.jobs
    if job is not None:
        jobs = {JobKey(job): _record(generation, job)}
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
            click.echo(
                f"! node {name} is {word}{': ' + (seen.unhealthy or cordoned) if seen.unhealthy or cordoned else ''}"
            )
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
    """Everything known about JOB (queue/name)."""
    _, generation, desired = newest(repo, fetch=fetch)
    record = _record(generation, job)
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
    record, at = _record(generation, name), now()
    told = explained(desired, generation.observed, generation.allocation, record.job, at)
    page = explanation_page(
        record, desired.jobs.get(record.job), told.blockers, generation.summary.generation, at, width(),
        offers=told.offers, expected=told.expected,
    )  # fmt: skip
    if record.state is JobState.RUNNING:
        moves = [(one, hop) for one in _proposed(generation, desired) for hop in one.hops if hop.job == record.job]
        page += "".join(f"\nDefragment proposes to move it for {one.nodes}: {hop_line(hop)}" for one, hop in moves)
    content: dict[str, object] = {"record": tree_of(record), **told.content()}
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
    """Wait until JOB runs or is done. Exit 3 when it takes longer than --timeout, 1 when it failed."""
    end = time.monotonic() + timeout
    clone = opened(repo, fetch=True)
    while True:
        record = clone.generation().allocation.jobs.get(JobKey(job))
        if record is not None and what == "running" and record.state is JobState.RUNNING:
            break
        if record is not None and record.state is JobState.FINISHED:
            break
        if time.monotonic() >= end:
            at = record.state if record else "unknown"
            raise NotFound(f"{job} is {at} after {timeout} s", code="TimedOut", remedy=f"gangops explain job {job}")
        time.sleep(1)
        clone.refresh()
    click.echo(f"{job} {record.outcome or record.state}")
    if record.outcome is not None and record.outcome != "Succeeded":
        raise click.exceptions.Exit(1)


def _record(generation: Generation, job: str) -> JobRecord:
    found = generation.allocation.jobs.get(JobKey(job))
    if found is None:
        keys = list(generation.allocation.jobs)
        near = [key for key in keys if key.endswith(f"/{job}")] or difflib.get_close_matches(job, keys, n=1)
        remedy = f"did you mean {near[0]}?" if near else "jobs are named queue/name; `gangops get jobs` lists them"
        raise NotFound(f"generation {generation.summary.generation} has no job {job}", code="UnknownJob", remedy=remedy)
    return found


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
