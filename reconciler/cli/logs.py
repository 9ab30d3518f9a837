"""`logs`: what the ranks of a job printed, merged by time, and on as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from reconciler.agent.loglines import Printed
from reconciler.cli import completing
from reconciler.cli.door import door_of, door_options, refusals_explained
from reconciler.cli.show import named_in, opened
from reconciler.errors import GangOpsError, UsageError
from reconciler.model.lifecycle import JobState
from reconciler.model.units import JobKey
from reconciler.runtime.logs import Labels, followed_lines, has_several, log_lines

_ASK_EVERY = 5.0
"""Seconds between two looks at the state branch while lines are followed."""


@click.command()
@click.argument("job", shell_complete=completing.jobs)
@click.option("--rank", type=click.IntRange(min=0), default=None, help="Only this rank.")
@click.option("--all", "every", is_flag=True, help="All ranks, merged by time: the default.")
@click.option("--attempt", type=click.IntRange(min=1), default=None, help="Another attempt than the latest.")
@click.option("-f", "--follow", "following", is_flag=True, help="Go on as lines are written, until JOB is over.")
@click.option("-t", "--timestamps", is_flag=True, help="When each line was written, in UTC.")
@click.option("--dir", "folder", envvar="GANGOPS_LOGS", type=click.Path(path_type=Path), help="The shared log folder.")
@door_options
@click.pass_obj
def logs(
    repo: Path, job: str, rank: int | None, attempt: int | None, folder: Path | None, server: str | None,
    authority: Path | None, key: Path | None, node: str, *, every: bool, following: bool, timestamps: bool,
) -> None:  # fmt: skip
    """What the ranks of JOB (queue/name, or the name alone) printed, by time; each line with its rank when there are several.

    Read from the log folder where that is mounted, else through an agent of the job, for who holds it.

    --follow goes on with the next attempt after a preemption or a failure, and ends when the job is over. With
    --attempt it stays with that one.
    """
    if every and rank is not None:
        raise UsageError("--rank and --all exclude each other", code="BadOptions", remedy="leave one of them out")
    job = named_in(repo, job)
    over = _is_over(repo, job, attempt) if following else _never
    if folder is not None and (folder.is_dir() or not server):
        several = rank is None and has_several(folder, job, attempt)
        if following:
            lines = followed_lines(folder, job, attempt, rank, over=over)
        else:
            lines = log_lines(folder, job, attempt, rank)
    elif server:
        from reconciler.runtime.remote_logs import Wanted, remote_lines

        wanted = Wanted(job=job, attempt=attempt, rank=rank, following=following, over=over, node=node)
        lines, several = remote_lines(door_of(server, authority, key, repo), wanted), rank is None
    else:
        raise UsageError(
            "no log folder",
            code="LogsMissing",
            remedy="Name it with --dir or GANGOPS_LOGS; or ask an agent, with --server and --ca.",
        )
    shown, labels = attempt, Labels(several=several, timestamps=timestamps)
    with refusals_explained(repo, job):
        for line in lines:
            shown = _announce(line, shown)
            click.echo(labels.text(line))


def _never() -> bool:
    return False


def _announce(line: Printed, shown: int | None) -> int:
    """Say on stderr where another attempt begins; the attempt of the line."""
    if shown is not None and line.attempt != shown:
        click.echo(f"attempt {line.attempt} goes on here", err=True)
    return line.attempt


def _is_over(repo: Path, job: str, attempt: int | None) -> Callable[[], bool]:
    """Asks the state branch now and then whether more can come; without one, following ends only when interrupted."""
    asked, answer = float("-inf"), False
    try:
        clone = opened(repo, fetch=True)
        clone.generation()
    except GangOpsError:
        return _never

    def ask() -> bool:
        nonlocal asked, answer
        if not answer and time.monotonic() - asked >= _ASK_EVERY:
            clone.refresh()
            record = clone.generation().allocation.jobs.get(JobKey(job))
            past = record is not None and attempt is not None and record.attempt > attempt
            answer = past or (record is not None and record.state is JobState.FINISHED)
            asked = time.monotonic()
        return answer

    return ask
