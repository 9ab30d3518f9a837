"""`forge`: what the checks and workflows of a forge call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.errors import ExitStatus, GangOpsError, UsageError

if TYPE_CHECKING:
    from reconciler.render.plan import Plan
    from reconciler.runtime.forge.api import Api

event_option = click.option(
    "--event", "event_file", type=click.Path(path_type=Path), envvar="GITHUB_EVENT_PATH", required=True,
    help="The payload of what happened (default: GITHUB_EVENT_PATH).",
)  # fmt: skip


_WORKFLOWS = "`gangops forge files` writes workflows that call each command with its event"
_ARTEFACT = "it is what `gangops forge preview` wrote; run that job again"


@click.group()
def forge() -> None:
    """Checks of pull requests: the preview, its comment, and the look before the merge."""


@forge.command()
@event_option
@click.option("--into", type=click.Path(path_type=Path), default=Path("gangops-plan"), help="Folder for the artefact.")
@click.pass_obj
def preview(repo: Path, event_file: Path, into: Path) -> int:
    """Plan a pull request in its check: log, annotations, summary, and files for an artefact. Needs no secret."""
    from reconciler.cli.show import this_second
    from reconciler.render.plan.forms import exit_status
    from reconciler.runtime.clone import open_clone
    from reconciler.runtime.forge import job
    from reconciler.runtime.forge.events import FinishedRun, read_event
    from reconciler.runtime.preview import preview as planned

    event = read_event(event_file)
    if isinstance(event, FinishedRun):
        raise UsageError("a finished workflow is no change to plan", code="UnknownEvent", remedy=_WORKFLOWS)
    clone = open_clone(repo)
    base, head = job.sides(clone.git, event)
    found = planned(clone, head, this_second(), base=base)
    job.write_files(found, into)
    job.write_summary(found, _file("GITHUB_STEP_SUMMARY"))
    job.write_outputs(found, _file("GITHUB_OUTPUT"))
    click.echo(job.log(found))
    return exit_status(found)


@forge.command()
@event_option
@click.option("--artifact", type=click.Path(path_type=Path), required=True, help="The plan.json to show.")
def comment(event_file: Path, artifact: Path) -> int:
    """Post or update the one comment of a pull request. The artefact is data: nothing of it is run or trusted."""
    from reconciler.runtime.forge.comment import comment as posted
    from reconciler.runtime.forge.events import MergeGroup, read_event

    event = read_event(event_file)
    if isinstance(event, MergeGroup):
        raise UsageError("a merge group has no comments", code="UnknownEvent", remedy=_WORKFLOWS)
    done = posted(_api(), event, _artifact(artifact), own=_own())
    if done.what == "skipped":
        click.echo(f"::notice title=No comment::{done.why}")
    else:
        click.echo(f"comment {done.what}")
    return ExitStatus.OK


@forge.command()
@event_option
@click.pass_obj
def recheck(repo: Path, event_file: Path) -> int:
    """Decide again before the merge; exit 4 only for what no preview has shown."""
    from reconciler.cli.show import this_second
    from reconciler.runtime.clone import open_clone
    from reconciler.runtime.forge import job
    from reconciler.runtime.forge.comment import Shown, shown_in
    from reconciler.runtime.forge.events import MergeGroup, read_event
    from reconciler.runtime.forge.recheck import material_changes
    from reconciler.runtime.preview import preview as planned

    event = read_event(event_file)
    if not isinstance(event, MergeGroup):
        raise UsageError("only a merge group is checked again", code="UnknownEvent", remedy=_WORKFLOWS)
    clone = open_clone(repo)
    found = planned(clone, event.head, this_second(), base=event.base)
    job.write_summary(found, _file("GITHUB_STEP_SUMMARY"))
    click.echo(job.log(found))
    try:
        shown = shown_in(_api(), event.repository, event.number, found.basis.cluster, own=_own())
    except GangOpsError as err:
        click.echo(f"::warning title=Preview not found::{err.message}")
        shown = Shown()
    changes = material_changes(shown, found)
    for change in changes:
        click.echo(f"::error title=Not as reviewed::{job.command_text(change)}")
    if not changes:
        click.echo("as reviewed" if shown.found else "nobody pays for it, and nothing forbids it")
    return ExitStatus.INVALID if changes else ExitStatus.OK


@forge.command()
@event_option
@click.option("--into", type=click.Path(path_type=Path), required=True, help="Folder for event.json and reviews.json.")
def reviews(event_file: Path, into: Path) -> None:
    """Ask the forge for the pull request of an event, and for its reviews, as `check approval` reads them."""
    import json

    from reconciler.runtime.forge.events import FinishedRun, read_event

    event = read_event(event_file)
    if isinstance(event, FinishedRun):
        raise UsageError("a finished workflow has no reviews", code="UnknownEvent", remedy=_WORKFLOWS)
    api = _api()
    at = f"/repos/{event.repository}/pulls/{event.number}"
    into.mkdir(parents=True, exist_ok=True)
    pull = {"pull_request": api.get(at), "repository": {"full_name": event.repository}}
    (into / "event.json").write_text(json.dumps(pull), encoding="utf-8")
    (into / "reviews.json").write_text(json.dumps(list(api.pages(f"{at}/reviews"))), encoding="utf-8")


@forge.command("files")
@click.option("--into", type=click.Path(path_type=Path), default=Path(), help="The repository to write them into.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a workflow is stale.")
def files_command(into: Path, *, check: bool) -> int:
    """Write the workflows that other repositories call, as this project publishes them."""
    from reconciler.runtime.forge.files import reusable_workflows

    texts = reusable_workflows()
    stale = [path for path, text in texts.items() if not (into / path).exists() or (into / path).read_text() != text]
    for path in stale:
        click.echo(path)
        if not check:
            (into / path).parent.mkdir(parents=True, exist_ok=True)
            (into / path).write_text(texts[path], encoding="utf-8")
    return ExitStatus.ERROR if check and stale else ExitStatus.OK


def _file(name: str) -> Path | None:
    found = os.environ.get(name)
    return Path(found) if found else None


def _own() -> str:
    from reconciler.runtime.forge.comment import OWN

    return os.environ.get("GANGOPS_FORGE_LOGIN") or OWN


def _api() -> Api:
    from reconciler.runtime.forge.api import Api

    token = os.environ.get("GITHUB_TOKEN", "")
    if not token:
        raise UsageError("GITHUB_TOKEN is not set", code="TokenMissing", remedy="Hand the job's token to this step.")
    return Api(base=os.environ.get("GITHUB_API_URL") or "https://api.github.com", token=token)


def _artifact(file: Path) -> Plan:
    from reconciler.render.plan.machine import plan_from_json

    try:
        if file.is_symlink() or not file.is_file():
            raise UsageError(f"{file} is no plain file", code="BadArtifact", remedy=_ARTEFACT)
        with file.open("rb") as source:
            return plan_from_json(source.read((16 << 20) + 1))
    except OSError as err:
        raise UsageError(f"{file} cannot be read: {err.strerror}", code="BadArtifact", remedy=_ARTEFACT) from err
