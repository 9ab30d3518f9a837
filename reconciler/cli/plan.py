"""`plan`: what would be decided, before it is merged."""

from __future__ import annotations

from pathlib import Path

import click

from reconciler.cli.root import fetch_option, output_option
from reconciler.cli.show import now, opened, width
from reconciler.documents.quantities import parse_instant
from reconciler.errors import ExitStatus, UsageError
from reconciler.model.units import Instant
from reconciler.render.plan import plan_json, plan_text
from reconciler.runtime.preview import preview


@click.command()
@click.option("--base", default=None, help="Show only what differs from the decision for this revision.")
@click.option(
    "--head", default="HEAD", help="The revision to plan (default HEAD: what is committed, not the work tree)."
)
@click.option("--at", "instant", default=None, help="Decide as of this time (RFC 3339) instead of now.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 when there are changes.")
@output_option
@fetch_option
@click.pass_obj
def plan(
    repo: Path, base: str | None, head: str, instant: str | None, output: str, *, detailed_exitcode: bool, fetch: bool
) -> int:
    """What would be decided for a revision: who starts, who stops, who waits, and why. Changes nothing."""
    import json

    try:
        at = Instant(parse_instant(instant)) if instant else now()
    except ValueError as err:
        raise UsageError(f"--at: {err}") from err
    found = preview(opened(repo, fetch=fetch), head, at, base=base)
    if output in {"json", "yaml"}:
        click.echo(json.dumps(plan_json(found), indent=1, ensure_ascii=False))
    else:
        click.echo(plan_text(found, width()))
    return ExitStatus.CHANGES if detailed_exitcode and found.changes else ExitStatus.OK
