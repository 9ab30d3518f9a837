"""`shadow`: a Slurm cluster as GangOps would run it, by commands that only look."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from reconciler.cli.show import width
from reconciler.errors import ExitStatus


@click.command()
@click.argument("sources", nargs=-1, type=click.Path(path_type=Path))
@click.option("--gpu-type", default="gpu", help="What to call GPUs that Slurm has no type for.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def shadow(sources: tuple[Path, ...], gpu_type: str, output: str) -> int:
    """What GangOps would do with a Slurm cluster now: Phi, who waits and why, what would start where.

    Without SOURCES the cluster that Slurm's commands here belong to is looked at, and nothing of it is changed. SOURCES
    are files or folders with captured output, as for `import slurm-cluster`, and `squeue --json`. No git is needed.
    """
    from reconciler.engines.slurm.commands import Reader
    from reconciler.errors import UsageError
    from reconciler.model.units import SECOND, Instant
    from reconciler.render.shadow import shadow_text, shadow_tree
    from reconciler.runtime.slurm.bring import Wishes
    from reconciler.runtime.slurm.shadow import shadow as shadow_of
    from reconciler.runtime.slurm.sources import captured, live

    said = captured(sources) if sources else live(Reader())
    if not said.has_jobs:
        raise UsageError(
            "no jobs were given", code="NoJobs", remedy="Add the output of `squeue --json -t all` to the sources."
        )
    now = time.time_ns() if said.is_live or not said.at else said.at * SECOND
    found = shadow_of(said, Wishes(gpu_type=gpu_type), Instant(now))
    if output == "json":
        click.echo(json.dumps(shadow_tree(found), indent=1))
    else:
        click.echo(shadow_text(found, width()))
    return ExitStatus.OK
