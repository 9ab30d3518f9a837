"""`inspect`: what a captured output says about a machine or a fabric."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from reconciler.discovery.parsed import MAX_BYTES, Kind, Status
from reconciler.discovery.reading import read
from reconciler.documents.loader import Tree
from reconciler.errors import ExitStatus, NotFound
from reconciler.render.hardware import summary

_WIDTH = 80
_SBATCH: Final = "sbatch"
_SCRIPT: Final = re.compile(rb"\A(?:\xef\xbb\xbf)?#!|^(?:#|// ?)SBATCH\b", re.MULTILINE)
"""What only a script begins with, or a line that only one has, also as web pages damage it."""


@click.command()
@click.argument("file", metavar="FILE|-")
@click.option(
    "--kind",
    type=click.Choice([*(kind.value for kind in Kind), _SBATCH]),
    metavar="KIND",
    help=f"What FILE is; by default its content tells. Known: {', '.join([*(kind.value for kind in Kind), _SBATCH])}.",
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
    ibnetdiscover, Slurm's topology.conf, topology.yaml, gres.conf and node lines, host lists, and sbatch scripts. Exit
    status 4: the text cannot be trusted.
    """
    content = _content(file)
    tree = _tree(content, kind)
    if output == "json":
        name = "-" if file == "-" else Path(file).name
        click.echo(json.dumps({"file": name, **tree}, indent=1, ensure_ascii=False))
    else:
        width = shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH
        click.echo(summary(tree, width=width))
    return ExitStatus.INVALID if tree["status"] == Status.ERROR else ExitStatus.OK


def _tree(content: bytes, kind: str | None) -> dict[str, Tree]:
    """The neutral format of what the bytes say. A job script is for the importers to read, the rest for discovery."""
    if kind == _SBATCH or (kind is None and _SCRIPT.search(content)):
        from reconciler.imports.sbatch.parse import parse_sbatch

        script = parse_sbatch(content).neutral("")
        del script["file"]  # which the caller knows
        return {**script, "warnings": [], "errors": script["errors"]}
    return read(content, Kind(kind) if kind else None).tree()


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
