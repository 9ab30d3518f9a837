"""`inventory`: what nodes report against what is declared of them, and how to write it down."""

from __future__ import annotations

from pathlib import Path

import click

from reconciler.cli.root import fetch_option
from reconciler.cli.show import newest, print_json, width
from reconciler.errors import NotFound
from reconciler.model.units import NodeName
from reconciler.render.table import table
from reconciler.runtime.authoring import repository_files, write_files
from reconciler.runtime.inventory import adopt as adopt_node
from reconciler.topology.drift import Drift, drift_of


@click.group()
def inventory() -> None:
    """Compare the declared inventory with what nodes report."""


@inventory.command()
@click.argument("node", required=False)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@fetch_option
@click.pass_obj
def diff(repo: Path, node: str | None, output: str, *, fetch: bool) -> None:
    """Every difference, and what planning does about it; with NODE only that one's."""
    _, generation, desired = newest(repo, fetch=fetch)
    if node is not None:
        _check_known(node, {n.name for n in desired.inventory.nodes})
    found = [d for d in drift_of(desired.inventory, generation.observed) if node in {None, d.node}]
    if output == "json":
        print_json("Drift", {"drift": [_row(drift) for drift in found]})
        return
    if found:
        rows = [(d.node, d.code, d.effect, d.sentence) for d in found]
        click.echo(table(("NODE", "DRIFT", "EFFECT", "WHAT"), rows, width=width()))
    unseen = [
        n.name for n in desired.inventory.nodes if n.name not in generation.observed.nodes and node in {None, n.name}
    ]
    if unseen:
        click.echo(f"never reported: {', '.join(unseen)}", err=True)
    grave = sum(d.is_grave for d in found)
    click.echo(f"{len(found)} differences, {grave} take something away from jobs", err=True)


def _row(drift: Drift) -> dict[str, object]:
    return {
        "node": drift.node,
        "code": drift.code,
        "severity": "error" if drift.is_grave else "warning",
        "effect": drift.effect,
        "what": drift.sentence,
        "numbers": dict(drift.numbers),
    }


@inventory.command()
@click.argument("node")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@fetch_option
@click.pass_obj
def adopt(repo: Path, node: str, *, dry_run: bool, fetch: bool) -> None:
    """Write what NODE lacks into its NodeSet, as overrides; the files of this clone are edited, comments stay."""
    _, generation, desired = newest(repo, fetch=fetch)
    declared = {n.name: n for n in desired.inventory.nodes}
    _check_known(node, set(declared))
    name = NodeName(node)
    if name not in generation.observed.nodes:
        raise NotFound(f"{node} has never reported", code="NotObserved", remedy="is its agent running?")
    base, files = repository_files(repo)
    done = adopt_node(files, declared[name], generation.observed.nodes[name])
    for drift in done.adopted:
        click.echo(f"{'would write' if dry_run else 'written'}: {drift.sentence}", err=True)
    for drift in done.left:
        click.echo(f"left: {drift.sentence} ({drift.effect}); edit its profile, or repair the node", err=True)
    if not (done.adopted or done.left):
        click.echo(f"nothing to change: {node} is as declared", err=True)
    for path in sorted(done.changes) if dry_run else write_files(base, done.changes):
        click.echo(path)


def _check_known(node: str, known: set[NodeName]) -> None:
    if node not in known:
        raise NotFound(f"the inventory has no node {node}", code="UnknownNode", remedy="gangops get nodes -o name")
