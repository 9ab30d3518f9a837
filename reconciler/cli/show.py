"""What every verb that shows something shares: the width, the clone, JSON and YAML on stdout."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from reconciler.documents.values import tree_of
from reconciler.model.desired import Desired
from reconciler.model.units import Instant
from reconciler.runtime.clone import Clone, open_clone
from reconciler.runtime.generation import Generation
from reconciler.runtime.reading import DesiredReader

FORMAT = "1.0"


def width() -> int | None:
    """Columns of the terminal; None off a terminal, where nothing is cut."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else None


def now() -> Instant:
    """Wall time: the only clock a verb reads."""
    return Instant(time.time_ns())


def opened(folder: Path, *, fetch: bool) -> Clone:
    """The clone a verb was pointed at, its branches fetched when asked; says on stderr when that failed."""
    clone = open_clone(folder)
    if fetch:
        warning = clone.refresh()
        if warning:
            click.echo(f"warning: {warning}", err=True)
    return clone


def newest(folder: Path, *, fetch: bool) -> tuple[Clone, Generation, Desired]:
    """The clone, its newest generation, and the desired state that generation answered."""
    clone = opened(folder, fetch=fetch)
    generation = clone.generation()
    read = DesiredReader(clone.git).recorded(generation.commit, generation.summary.desired_commit, generation.frozen)
    assert read.desired is not None  # a generation above 0 was decided on one; generation 0 on the scaffold
    return clone, generation, read.desired


def print_json(kind: str, content: Mapping[str, object]) -> None:
    """A versioned object: `formatVersion` first; a reader of 1.x ignores keys it does not know."""
    click.echo(json.dumps({"formatVersion": FORMAT, "kind": kind, **content}, indent=1, ensure_ascii=False))


def values(rows: Mapping[str, object]) -> list[object]:
    """Model values as plain trees, in order."""
    return [tree_of(value) for value in rows.values()]
