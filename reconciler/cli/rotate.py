"""`rotate`: the record goes on in the branch of another year."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from reconciler.cli.operate import settings_option
from reconciler.runtime.settings import read_settings


@click.command()
@settings_option
@click.option("--year", type=int, default=None, help="The year of the new branch (default: this one).")
def rotate(settings_file: Path, year: int | None) -> None:
    """Close the state branch and go on in one named after the year; once a year is plenty.

    The new branch holds everything that is needed to run: the old one may be moved to an archive. A reconciler that
    runs goes on by itself.
    """
    from reconciler.runtime.rotate import rotate as go_on

    done = go_on(read_settings(settings_file), year or dt.datetime.now(dt.UTC).year)
    click.echo(
        f"{done.old} is closed at {done.closing[:12]}; the record goes on in {done.new}, generation {done.generation}"
    )
