"""`shell`: a terminal inside a running job."""

from __future__ import annotations

from pathlib import Path

import click

from reconciler.cli import completing
from reconciler.cli.door import door_of, door_options, refusals_explained


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job", shell_complete=completing.jobs)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--rank", type=click.IntRange(min=0), default=None, help="Beside this rank (default: the first).")
@door_options
@click.pass_obj
def shell(
    repo: Path, job: str, command: tuple[str, ...], rank: int | None, server: str | None, authority: Path | None,
    key: Path | None, node: str,
) -> int:  # fmt: skip
    """A terminal inside JOB (queue/name, or the name alone), or COMMAND there: gangops shell JOB -- py-spy top --pid 1234.

    It has the user, environment, GPUs and bounds of the rank it is beside. Only who holds the job gets in: its author,
    its owner, admins of its queue, by a signature with a key of their User document. It ends with the attempt, and the
    exit status is the command's.
    """
    from reconciler.cli.show import named_in
    from reconciler.runtime.remote_shell import run_shell

    if job.startswith("-"):  # what follows JOB may be options of COMMAND, what comes first may not
        raise click.NoSuchOption(job)
    job = named_in(repo, job)
    with refusals_explained(repo, job):
        return run_shell(door_of(server, authority, key, repo), job, list(command), rank=rank, node=node)
