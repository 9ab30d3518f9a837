"""What every verb that shows something shares: the width, the clone, JSON and YAML on stdout."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import click

from reconciler.documents.canonical import to_yaml
from reconciler.documents.values import tree_of
from reconciler.errors import InvalidInput, NotFound, StoreError, UsageError
from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.units import SECOND, Instant, JobKey, document_of
from reconciler.planner.requested import as_requested
from reconciler.render.arrays import array_head, by_array, task_table
from reconciler.runtime.clone import Clone, open_clone
from reconciler.runtime.generation import Generation
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.xdg import cache_home

FORMAT = "1.0"


def width() -> int | None:
    """Columns of the terminal; None off a terminal, where nothing is cut."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else None


def now() -> Instant:
    """Wall time: the only clock a verb reads."""
    return Instant(time.time_ns())


def this_second() -> Instant:
    """Wall time to the second, for what is printed to be asked for again."""
    return Instant(now() // SECOND * SECOND)


def cache_file(name: str) -> Path | None:
    """Where something read is kept between two verbs: a folder of the user's own, never one of the repository.

    None when there is no such folder; then everything is read anew.
    """
    folder = cache_home() / "gangops"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    return folder / name if found.st_uid == os.getuid() and not found.st_mode & 0o022 else None


def opened(folder: Path, *, fetch: bool) -> Clone:
    """The clone a verb was pointed at, its branches fetched when asked; says on stderr when that failed."""
    clone = open_clone(folder)
    if fetch:
        refreshed(clone)
    return clone


def refreshed(clone: Clone) -> bool:
    """Fetch its branches; whether that was done. Says on stderr when it failed."""
    warning = clone.refresh()
    if warning:
        click.echo(f"warning: {warning}", err=True)
    return not warning


def newest(folder: Path, *, fetch: bool) -> tuple[Clone, Generation, Desired]:
    """The clone, its newest generation, and the desired state that generation answered."""
    clone = opened(folder, fetch=fetch)
    generation = clone.generation()
    return clone, generation, desired_at(clone, generation)


def desired_at(clone: Clone, generation: Generation, reader: DesiredReader | None = None) -> Desired:
    """The desired state that a generation answered; `reader` keeps what is read for more. Raises InvalidInput."""
    reader = reader or DesiredReader(clone.git)
    read = reader.recorded(generation.commit, generation.summary.desired_commit, generation.frozen)
    if read.desired is None:  # a generation above 0 was decided on one; at 0 the tree may never have been valid
        raise InvalidInput(read.diagnostics)
    return as_requested(read.desired, generation.observed.requests, now())


def print_json(kind: str, content: Mapping[str, object]) -> None:
    """A versioned object: `formatVersion` first; a reader of 1.x ignores keys it does not know."""
    click.echo(json.dumps({"formatVersion": FORMAT, "kind": kind, **content}, indent=1, ensure_ascii=False))


def values(rows: Mapping[str, object]) -> list[object]:
    """Model values as plain trees, in order."""
    return [tree_of(value) for value in rows.values()]


def print_tree(output: str, kind: str, content: dict[str, object]) -> None:
    """A versioned object as JSON or YAML."""
    if output == "json":
        print_json(kind, content)
    else:
        click.echo(to_yaml({"formatVersion": FORMAT, "kind": kind, **content}).decode(), nl=False)  # type: ignore[dict-item]  # trees by construction


def job_named(generation: Generation, name: str) -> str:
    """The job a person means by a name without its queue: the only one that the newest generation has, else the only one
    it remembers; the name itself where there is none. Raises UsageError (AmbiguousJob) naming them all."""
    if "/" in name:
        return name
    for have, known in (("have", list(generation.allocation.jobs)), ("had", list(generation.allocation.tombstones))):
        keys = sorted(key for key in {*known, *map(document_of, known)} if key.partition("/")[2] == name)
        if len(keys) > 1:
            raise UsageError(
                f"{len(keys)} queues {have} a job {name}", code="AmbiguousJob",
                remedy=f"name one: {', '.join(keys)}",
            )  # fmt: skip
        if keys:
            return keys[0]
    return name


def named_in(repo: Path, job: str) -> str:
    """The same for verbs that can do without a clone: a name without its queue is looked up where there is one."""
    if "/" in job:
        return job
    try:
        clone = open_clone(repo)
        found = job_named(clone.generation(), job)
        if "/" not in found:
            clone.refresh()
            found = job_named(clone.generation(), job)
    except (NotFound, StoreError):
        return job
    return found


def records_of(generation: Generation, job: str) -> list[JobRecord]:
    """The record of a job, or those of all tasks of an array. Raises NotFound."""
    jobs = generation.allocation.jobs
    if (found := jobs.get(JobKey(job))) is not None:
        return [found]
    tasks = [record for key, record in jobs.items() if document_of(key) == job]
    if tasks:
        return by_array({record.job: record for record in tasks})[JobKey(job)]
    keys = sorted({*map(document_of, jobs), *jobs})
    near = [key for key in keys if key.endswith(f"/{job}")] or difflib.get_close_matches(job, keys, n=1)
    remedy = (
        f"did you mean {' or '.join(near)}?" if near else "jobs are named queue/name; `gangops get jobs` lists them"
    )
    if job in {*(gone := generation.allocation.tombstones), *map(document_of, gone)}:
        remedy = (
            f"its file was removed: `gangops {'describe' if job in gone else 'history'} {job}` tells what became of it"
        )
    raise NotFound(f"generation {generation.summary.generation} has no job {job}", code="UnknownJob", remedy=remedy)


def array_page(records: list[JobRecord], desired: Desired) -> str:
    """An array: how many tasks, what has become of them, and a line for each that is not like another."""
    array = document_of(records[0].job)
    return f"{array_head(array, records, desired)}\n\n{task_table(records, desired, now(), width())}"
