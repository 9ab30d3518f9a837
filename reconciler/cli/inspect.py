"""`inspect`: what a captured output says about a machine or a fabric."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import click

from reconciler.discovery.parsed import MAX_BYTES, Kind, Status
from reconciler.discovery.reading import read
from reconciler.errors import ExitStatus, NotFound
from reconciler.render.hardware import summary

_WIDTH = 80


@click.command()
@click.argument("file", metavar="FILE|-")
@click.option(
    "--kind", type=click.Choice([kind.value for kind in Kind]), help="What FILE is; by default its content tells."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    help="How to print; JSON is the versioned neutral format, the table is not an API.",
)
def inspect(file: str, kind: str | None, output: str) -> int:
    """Read what a tool printed, or a configuration file, and say what it means.

    Takes nvidia-smi topo -m, numactl --hardware, NCCL topology XML, rocm-smi --showtopo, lldpctl -f json,
    ibnetdiscover, Slurm's topology.conf, topology.yaml, gres.conf and node lines, and host lists. Exit status 4: the
    text cannot be trusted.
    """
    parsed = read(_content(file), Kind(kind) if kind else None)
    name = "-" if file == "-" else Path(file).name
    if output == "json":
        click.echo(json.dumps({"file": name, **parsed.tree()}, indent=1, ensure_ascii=False))
    else:
        width = shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH
        click.echo(summary(parsed.tree(), width=width))
    return ExitStatus.INVALID if parsed.status is Status.ERROR else ExitStatus.OK


def _content(file: str) -> bytes:
    """Bytes of the file or of stdin, at most one more than are accepted."""
    if file == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(file).open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"{file}: {error.strerror}", code="FileNotReadable", remedy="Give a file, or - for stdin."
        ) from error
