"""`init`, `validate`, `fmt`, `schema`: writing desired state."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from reconciler.cli.operate import settings_option
from reconciler.errors import Diagnostic, ExitStatus, InvalidInput, UsageError
from reconciler.model.counting import counted
from reconciler.runtime.authoring import (
    Checked,
    check_folder,
    check_revision,
    format_files,
    scaffold_into,
    write_schemas,
)
from reconciler.runtime.clone import open_clone

_NEXT = """
Next: edit them, `gangops validate`, `git init -b main` unless it is a clone
already, commit, and push branch main to a git remote.
Then, where the reconciler runs: write reconciler.toml, `gangops init --state`,
`gangops reconcile`."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option("--state", "state", is_flag=True, help="Begin the record: make the state branch, once.")
@click.option(
    "--usage", "usage_file", type=click.Path(path_type=Path), help="With --state: what queues used under Slurm."
)
@click.option("--restored", is_flag=True, help="Go on from a backup of the state branch, in a higher epoch.")
@click.option("--epoch", type=int, default=None, help="With --restored: this epoch instead of the next one.")
@click.option("--systemd", is_flag=True, help="Write the units of reconciler and agent instead.")
@click.option("--monitoring", is_flag=True, help="Write alerts for Prometheus and a dashboard for Grafana instead.")
@click.option("--forge", type=click.Choice(["github"]), help="Write workflows and rules for this forge instead.")
@click.option("--package", default="", help="With --forge: what the workflows install (default: this version).")
@click.option("--artifact/--no-artifact", default=True, help="With --forge: keep plans as artefacts, for the comment.")
@settings_option
def init(
    folder: Path, settings_file: Path, usage_file: Path | None, forge: str | None, package: str, epoch: int | None, *,
    state: bool, artifact: bool, restored: bool, systemd: bool, monitoring: bool,
) -> None:  # fmt: skip
    """Start a cluster repository in FOLDER; with --state, begin its record; with --restored, go on from a backup of it;
    with --forge, check its pull requests; with --systemd or --monitoring, write what operators need."""
    if systemd or monitoring:
        _operations_files(folder, systemd=systemd, monitoring=monitoring)
        return
    if forge:
        _forge_files(folder, package, artifact=artifact)
        return
    if state:
        from reconciler.runtime.service import begin_record
        from reconciler.runtime.settings import read_settings

        settings = read_settings(settings_file)
        _, commit = begin_record(settings, usage_file=usage_file)
        click.echo(f"branch {settings.state.branch} begins at {commit[:12]}")
        return
    if restored:
        from reconciler.runtime.restore import restore
        from reconciler.runtime.settings import read_settings

        settings = read_settings(settings_file)
        summary, commit = restore(settings, epoch)
        told = f"generation {summary.generation} in epoch {summary.epoch} ({commit[:12]})"
        click.echo(f"branch {settings.state.branch} goes on with {told}")
        return
    for path in scaffold_into(folder):
        click.echo(path)
    click.echo(_NEXT, err=True)


def _operations_files(folder: Path, *, systemd: bool, monitoring: bool) -> None:
    """These belong to a version of the package: they are written over, as an upgrade has to."""
    from reconciler.runtime.authoring import write_files
    from reconciler.runtime.operations import MONITORING, UNITS, shipped

    names = (UNITS if systemd else ()) + (MONITORING if monitoring else ())
    for path in write_files(folder, shipped(names)):
        click.echo(folder / path)


def _forge_files(folder: Path, package: str, *, artifact: bool) -> None:
    from reconciler.runtime.authoring import write_files
    from reconciler.runtime.forge.files import own_workflows, rulesets

    texts = {**own_workflows(package, artifact=artifact), **rulesets()}
    there = [path for path in texts if (folder / path).exists()]
    if there:
        raise UsageError(
            f"{folder / there[0]} exists", code="FileExists", remedy="move it away to have it written anew"
        )
    for path in write_files(folder, {path: text.encode() for path, text in texts.items()}):
        click.echo(folder / path)
    click.echo(
        "\nNext: `gangops codeowners --into .github/CODEOWNERS`, commit and push; import .github/rulesets/*.json under\n"
        "Settings, Rules, Rulesets; add the reconciler's deploy key with write access, and let GitHub merge by queue.",
        err=True,
    )


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=None, required=False)
@click.option("--rev", default=None, help="Check a revision of the clone instead of files on disk.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def validate(repo: Path, path: Path | None, rev: str | None, output: str) -> int:
    """Report every problem in desired state: where, why, and what to do. Exit 4 when there is an error."""
    if path is not None and rev is not None:
        raise UsageError(
            "there is a path and a --rev: which of the two?",
            remedy=f"gangops validate {path}; or gangops validate --rev {rev}",
        )
    checked = check_revision(open_clone(repo), rev) if rev else check_folder(path or repo)
    if output == "json":
        rows = [_row(d) for d in checked.diagnostics]
        click.echo(json.dumps({"formatVersion": "1.0", "kind": "Diagnostics", "diagnostics": rows}, indent=1))
    else:
        _print_text(checked)
    return ExitStatus.INVALID if any(d.is_error for d in checked.diagnostics) else ExitStatus.OK


def _print_text(checked: Checked) -> None:
    for diagnostic in checked.diagnostics:
        click.echo(f"{diagnostic}\n")
    errors = sum(d.is_error for d in checked.diagnostics)
    warnings = len(checked.diagnostics) - errors
    told = f"{counted(checked.files, 'file')}: "
    told += "no problems" if not checked.diagnostics else f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    click.echo(told, err=errors > 0)


def _row(d: Diagnostic) -> dict[str, object]:
    return {
        "code": d.code,
        "severity": str(d.severity),
        "summary": d.summary,
        "detail": d.detail,
        "remedy": d.remedy,
        "file": d.place.file,
        "line": d.place.line,
        "column": d.place.column,
        "path": d.place.path,
    }


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file would change.")
@click.pass_obj
def fmt(repo: Path, paths: tuple[Path, ...], *, check: bool) -> int:
    """Format documents in place (default: all of cluster-state/ and policies/); comments stay."""
    done = format_files(repo, paths, write=not check)
    for path in done.changed:
        click.echo(path)
    if done.diagnostics:
        raise InvalidInput(done.diagnostics)
    return ExitStatus.ERROR if check and done.changed else ExitStatus.OK


@click.group()
def schema() -> None:
    """JSON schemas of all kinds, for editors and other tools."""


@schema.command("write")
@click.option("--into", type=click.Path(path_type=Path), default=Path("schemas"))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when a file is stale.")
def schema_write(into: Path, *, check: bool) -> int:
    """Write schemas/*.schema.json from the models."""
    stale = write_schemas(into, write=not check)
    for path in stale:
        click.echo(f"{'stale' if check else 'written'}: {path}", file=sys.stderr if check else sys.stdout)
    return ExitStatus.ERROR if check and stale else ExitStatus.OK
