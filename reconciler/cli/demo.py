"""`demo`: a whole GPU cluster on this machine."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

import click

from reconciler.errors import UsageError

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.option("--keep", is_flag=True, help="Leave it running after the last act, until Ctrl-C.")
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="An empty folder for all files (default: a new one)."
)
def demo(folder: Path | None, *, keep: bool) -> None:
    """A whole cluster on this machine: git remote, reconciler, 16 agents with simulated GPUs, real processes."""
    from reconciler.runtime.demo.acts import play
    from reconciler.runtime.demo.stage import Stage

    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", code="FolderNotEmpty", remedy="name a new folder, or none")
    place = folder.resolve() if folder else Path(tempfile.mkdtemp(prefix="gangops-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    for ending in _ENDINGS:  # a closed terminal too, unless it was started with nohup
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, _end)
    click.echo(f"GangOps demo. Everything lies in {place}")
    with Stage(place) as stage:
        play(stage, click.echo)
        _where_to_look(place)
        if keep:
            click.echo(f"\nRunning on: {stage.count_processes()} processes. Ctrl-C ends them all.")
            while True:
                time.sleep(1)


def _end(*_: object) -> None:
    """Once: a second Ctrl-C, however soon, must not come between the first and the end of all processes."""
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def _where_to_look(place: Path) -> None:
    here = f"gangops -C {place / 'clone'}"
    lines = [
        ("the cluster now", f"{here} status"),
        ("one job's life", f"{here} history vision/explore"),
        ("why it waited", f"{here} explain job vision/explore"),
        ("every decision again", f"{here} replay --all"),
        ("the proof", f"{here} audit verify"),
        ("the story", f"git -C {place / 'clone'} log --first-parent --stat origin/allocations"),
        ("clean up", f"rm -r {place}"),
    ]
    click.echo("\nLook around (in a checkout, begin with `./dev run`):")
    for label, command in lines:
        click.echo(f"  {label:<21} {command}")
