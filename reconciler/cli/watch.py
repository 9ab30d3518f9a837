"""`wait`, and `status --watch`: look again and again, and say what is new.

A look is a fetch; what is shown is always what a commit says. Off a terminal every change is a line of its own, so
that a log of it reads like the record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from reconciler.cli import completing
from reconciler.cli.show import job_named, opened, records_of
from reconciler.cli.times import Span
from reconciler.documents.layout import path_of
from reconciler.documents.tasklist import print_tasks
from reconciler.errors import GangOpsError, NotFound, Unreachable
from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.reasons import sentence
from reconciler.model.units import JobKey, document_of, index_of
from reconciler.render.arrays import tally
from reconciler.render.names import one_line, when
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import Generation, read_generation
from reconciler.store.history import file_at, is_ancestor
from reconciler.store.walk import first_parents

_LOOK_SECONDS = 1.0
_MOST_STEPS = 200
pause: Callable[[float], None] = time.sleep
clock: Callable[[], float] = time.monotonic
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""Cursor home, screen empty, nothing left above."""

Jobs = Mapping[JobKey, JobRecord]


@dataclass
class Look:
    """A clone that is looked at again and again. `away`: why what is shown may be old, "" when it is not."""

    clone: Clone
    away: str = ""

    def generations(self, wait: Callable[[], None], *, every: bool) -> Iterator[Generation]:
        """The newest generation, and each newer one when it is there; `every`: those between two looks as well."""
        git, known = self.clone.git, ""
        while True:
            tip = self.clone.state_tip()
            if tip != known:
                missed = (
                    first_parents(git, tip, after=known)[-_MOST_STEPS:-1] if every and self._follows(known, tip) else []
                )
                yield from (read_generation(git, link.id) for link in missed)
                known = tip
                yield read_generation(git, tip)
            wait()
            self.away = self.clone.refresh()

    def _follows(self, known: str, tip: str) -> bool:
        return bool(known) and is_ancestor(self.clone.git, known, tip)


def change_lines(before: Jobs, generation: Generation, job: str) -> Iterator[str]:
    """A line for each job whose record says something new; only this one (and its tasks), when one is named.

    Tasks of an array of which the same is to be said share a line.
    """
    at, number = when(generation.summary.decided_at), f"#{generation.summary.generation}"
    jobs, alike = generation.allocation.jobs, dict[tuple[JobKey, str], list[JobKey]]()
    for key in sorted({*before, *jobs}):
        was, now = before.get(key), jobs.get(key)
        told = told_of(now) if now is not None else "gone: its record was dropped"
        if (not job or job in (key, document_of(key))) and (was is None or now is None or told_of(was) != told):
            alike.setdefault((document_of(key), told), []).append(key)
    for (document, told), keys in alike.items():
        tasks = [index for key in keys if (index := index_of(key)) is not None]
        yield f"{at}  {number:<7} {f'{document}.{print_tasks(tasks)}' if tasks else document}  {told}"


def told_of(record: JobRecord) -> str:
    """A record in a line: state, phase and why."""
    phase = f" ({record.phase})" if record.phase is not None and record.state is not JobState.RUNNING else ""
    return f"{record.outcome or record.state}{phase}: {one_line(sentence(record.reason))}"


def watch(clone: Clone, job: str, page: Callable[[Generation], str]) -> None:
    """Show the page anew at each state commit; off a terminal the page once, then a line for each change."""
    drawing, look = sys.stdout.isatty(), Look(clone)
    jobs: Jobs = {}
    first = True
    for generation in look.generations(lambda: pause(_LOOK_SECONDS), every=not drawing):
        if drawing:
            click.echo(f"{CLEAR}{page(generation)}\n\n{look.away or 'Ctrl-C ends; drawn anew at each decision.'}")
        elif first:
            click.echo(page(generation))
        else:
            for line in change_lines(jobs, generation, job):
                click.echo(line)
        sys.stdout.flush()
        jobs, first = generation.allocation.jobs, False


# --- wait ---


@click.command()
@click.argument("job", shell_complete=completing.jobs)
@click.option("--for", "what", type=click.Choice(["running", "done"]), default="done", help="What to wait for.")
@click.option("--timeout", type=Span(), default="1h", help="Seconds, or such as 30m (default 1h).")
@click.pass_obj
def wait(repo: Path, job: str, what: str, timeout: float) -> None:
    """Wait until JOB (its name alone will do), or every task of an array, runs or is done; stderr says what it does meanwhile.

    Exit 0 when it runs, or ended well; 1 when it (or a task) ended otherwise or was forgotten; 3 when that takes longer than --timeout, or there is
    no such job; 7 when the time was over and nobody could be asked.
    """
    end = clock() + timeout
    look = Look(opened(repo, fetch=True))
    job = job_named(look.clone.generation(), job)
    known: Jobs = {}

    def until_then() -> None:
        left = end - clock()
        if left <= 0:
            raise _over(job, known, timeout, look.away)
        pause(min(_LOOK_SECONDS, left))

    for generation in look.generations(until_then, every=True):
        for line in change_lines(known, generation, job):
            click.echo(line, err=True)
        jobs = generation.allocation.jobs
        found = {key: record for key, record in jobs.items() if job in (key, document_of(key))}
        if not found:
            _check_wanted(look.clone, generation, job, gone=bool(known))
        known = found
        if found and all(_is_there(record, what) for record in found.values()):
            break
    records = list(known.values())
    click.echo(f"{job} {tally(records) if len(records) > 1 else records[0].outcome or records[0].state}")
    if any(record.outcome not in (None, Outcome.SUCCEEDED) for record in known.values()):
        raise click.exceptions.Exit(1)


def _check_wanted(clone: Clone, generation: Generation, job: str, *, gone: bool) -> None:
    """A job that is merged is worth waiting for; any other name is a mistake. Raises GangOpsError (JobGone),
    NotFound (UnknownJob)."""
    if gone:
        raise GangOpsError(f"the record of {job} was dropped", code="JobGone", remedy=f"gangops history {job}")
    key = document_of(JobKey(job))
    if "/" not in key or file_at(clone.git, clone.desired_tip(), path_of(key)) is None:
        records_of(generation, job)


def _is_there(record: JobRecord, what: str) -> bool:
    return record.state is JobState.FINISHED or (what == "running" and record.state is JobState.RUNNING)


def _over(job: str, known: Jobs, timeout: float, away: str) -> NotFound | Unreachable:
    if away:
        return Unreachable(f"nobody could be asked: {away}", remedy="gangops doctor")
    records = list(known.values())
    at = tally(records) if len(records) > 1 else str(records[0].state) if records else "unknown"
    return NotFound(f"{job} is {at} after {timeout:g} s", code="TimedOut", remedy=f"gangops explain job {job}")
