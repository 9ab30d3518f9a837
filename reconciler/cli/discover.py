"""`discover`: what this machine is made of, as documents ready to commit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from reconciler.cli.show import print_json
from reconciler.discovery.live.capture import capture
from reconciler.discovery.live.describe import Description, describe
from reconciler.discovery.live.machine import Machine, look
from reconciler.discovery.live.source import Source
from reconciler.documents.check import check_file
from reconciler.documents.edit import new_document
from reconciler.errors import InvalidInput, NotFound
from reconciler.model.counting import counted
from reconciler.runtime.authoring import repository_files, write_files
from reconciler.runtime.inventory import racks_with_switches, with_node


@click.command()
@click.option(
    "--root", type=click.Path(path_type=Path), default=None, help="Replay a capture: a folder with sys/ and outputs/."
)
@click.option(
    "--capture",
    "target",
    type=click.Path(path_type=Path),
    default=None,
    help="Write what was looked at here, to replay elsewhere with --root.",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=None,
    help="Edit this cluster-state/inventory instead of printing.",
)
@click.option("--profile", default="", help="A name for the profile (default: from its GPUs).")
@click.option("--rack", default="", help="The rack it stands in (default: by the switches it hears).")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", help="Documents, or the facts.")
def discover(root: Path | None, target: Path | None, into: Path | None, profile: str, rack: str, output: str) -> None:
    """Describe this machine as a NodeProfile and a NodeSet; what could not be seen is said.

    Reads the kernel, NVML, and where that is missing the vendors' tools. Nothing is changed, on the machine or in
    files, unless --into names an inventory.
    """
    if root is not None and not root.is_dir():
        raise NotFound(f"{root} is no folder", code="PathNotFound", remedy="name a folder with sys/ and outputs/")
    source = Source(root=root or Path("/"), captured=root is not None)
    if target is not None:
        click.echo(f"{counted(capture(source, target), 'file')} in {target}", err=True)
        return
    machine = look(source)
    if output == "json":
        print_json("Machine", {"machine": dataclasses.asdict(machine)})
        return
    base, files = repository_files(into) if into is not None else (Path(), {})
    described = describe(machine, profile=profile, rack=rack, racks=racks_with_switches(files))
    if into is None:
        _print(machine, described)
        return
    changes = with_node(files, described)
    for path in write_files(base, changes):
        click.echo(path)
    for remark in described.remarks:
        click.echo(f"note: {remark}", err=True)
    if not changes:
        click.echo("the inventory has this machine already", err=True)


def _print(machine: Machine, described: Description) -> None:
    """The documents, with what was found and what was not as comments above them."""
    comments = [*summary(machine), *(f"! {remark}" for remark in described.remarks)]
    if described.profile is None or described.node_set is None:
        click.echo("\n".join(f"# {line}" for line in comments))
        return
    text = new_document(described.profile, comments) + b"---\n" + new_document(described.node_set)
    checked = check_file(text, "discovered")
    if any(problem.is_error for problem in checked.diagnostics):
        raise InvalidInput(checked.diagnostics)
    click.echo(text.decode(), nl=False)


def summary(machine: Machine) -> list[str]:
    """What was found, a line a thing."""
    parts = ((machine.gpus, "GPU"), (machine.nics, "NIC"), (machine.numa, "NUMA node"))
    lines = [f"{machine.host}: {', '.join(counted(len(found), noun) for found, noun in parts)}"]
    lines += [f"NUMA node {n.id}: CPUs {n.cpus or 'none'}, {n.memory >> 20} MiB" for n in machine.numa]
    lines += [
        f"{n.name}: {n.kind}, {'up' if n.up else 'down'}"
        + (f", {n.speed // 10**9} Gb/s" if n.speed and n.up else "")
        + (f", NUMA node {n.numa}" if n.numa >= 0 else "")
        + (f", at switch {n.switch}" if n.switch else "")
        for n in machine.nics
    ]
    if machine.driver:
        lines.append(f"driver {machine.driver}")
    return lines
