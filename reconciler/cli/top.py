"""`top`: the newest generation on a terminal, as it changes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from reconciler.cli.root import fetch_option
from reconciler.errors import UsageError


@click.command()
@click.option("--every", type=click.FloatRange(1, 3600), default=5, show_default=True, help="Seconds between looks.")
@fetch_option
@click.pass_obj
def top(repo: Path, every: float, *, fetch: bool) -> None:
    """Jobs, nodes and queues live. Arrows move, Enter shows a job, 1-3 change the table, q ends."""
    try:
        from reconciler.cli.top_screen import Top
    except ModuleNotFoundError as err:
        if not (err.name or "").startswith("textual"):
            raise
        raise UsageError(
            "`gangops top` needs textual, which is not installed",
            code="ExtraMissing",
            remedy='pip install "gangops[tui]"; or `gangops status`, which needs nothing',
        ) from err
    if not sys.stdout.isatty():
        raise UsageError(
            "`gangops top` draws on a terminal, and standard output is none", code="NoTerminal", remedy="gangops status"
        )
    from reconciler.cli.show import now
    from reconciler.runtime.clone import open_clone
    from reconciler.runtime.looking import Looking

    Top(Looking(open_clone(repo), fetch=fetch, now=now), every).run()
