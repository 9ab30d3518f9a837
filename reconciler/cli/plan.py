"""`plan`: what would be decided, before it is merged."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli.root import fetch_option
from reconciler.cli.show import cache_file, opened, this_second, width
from reconciler.cli.times import moment
from reconciler.errors import ExitStatus, UsageError
from reconciler.model.units import Instant

if TYPE_CHECKING:
    from reconciler.runtime.clone import Clone
    from reconciler.runtime.preview import Asked
    from reconciler.runtime.reading import DesiredReader

_DIGEST = re.compile(r"(?:sha256:)?[0-9a-fA-F]{1,64}[….]*")


@click.command()
@click.option("--base", default="", help="Show only what differs from the decision for this revision.")
@click.option(
    "--head", default="HEAD", help="The revision to plan (default HEAD: what is committed, not the files on disk)."
)
@click.option("--state", default="", help="The state commit to decide on (default: the newest one here).")
@click.option("--at", "instant", default=None, help="Decide as of this time (RFC 3339) instead of now.")
@click.option("--check", "digest", default=None, metavar="DIGEST",
              help="Only say whether a plan with this digest is still true; exit 6 when it is not.")  # fmt: skip
@click.option("--detailed-exitcode", is_flag=True, help="Exit 2 when there are changes.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml", "markdown", "html", "trailers"]), default="table",
              help="How to print; JSON is described by schemas/plan.schema.json, the table is not an API; trailers are "
              "for the merge commit, which then tells what was shown.")  # fmt: skip
@fetch_option
@click.pass_obj
def plan(
    repo: Path, base: str, head: str, state: str, instant: str | None, digest: str | None, output: str, *,
    detailed_exitcode: bool, fetch: bool,
) -> int:  # fmt: skip
    """What would be decided for a revision: who starts, who stops, who waits, why, and what it costs whom.

    Changes nothing, asks no agent, and runs nothing of the revision. Exit 4 when the revision has errors its base
    has not, 8 when it removes more of what runs than may go at once.
    """
    from reconciler.documents.loader import bulk
    from reconciler.runtime.preview import Asked
    from reconciler.runtime.reading import DesiredReader

    at = moment(instant) if instant else this_second()
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise UsageError(
            f"{digest!r} is no digest of a plan", code="BadDigest", remedy="gangops plan prints it, in its last line"
        )
    clone = opened(repo, fetch=fetch)
    partial = clone.partial
    if partial:
        click.echo("note: this clone has no contents of files; what is missing is fetched, all at once", err=True)
    with bulk():  # looking for garbage costs a third of a plan's time
        try:
            reader = DesiredReader(clone.git, cache_file("documents.cache"), partial=partial)
            return _plan(
                reader, clone, Asked(head=head, base=base, state=state), at, digest, output, detailed=detailed_exitcode
            )
        finally:
            gc.freeze()  # nor is it worth a last look through all that was read, when the process ends anyway


def _plan(
    reader: DesiredReader, clone: Clone, asked: Asked, at: Instant, digest: str | None, output: str, *, detailed: bool
) -> int:  # fmt: skip
    from reconciler.render.plan.forms import exit_status, printed
    from reconciler.runtime.preview import Preview, stale

    preview = Preview(clone, reader, asked, states=cache_file("state.cache"))
    if digest is not None:
        if stale(digest, [preview.digest]):
            click.echo(f"stale: the plan is now sha256:{preview.digest}")
            return ExitStatus.LOST_RACE
        click.echo(f"still true: sha256:{preview.digest}")
        return ExitStatus.OK
    found = preview.plan(at)
    click.echo(printed(found, output, width()))
    reader.save()
    status = exit_status(found)
    return ExitStatus.CHANGES if status is ExitStatus.OK and detailed and found.changes else status
