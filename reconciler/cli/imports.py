"""`import` and `export`: what other systems' files say as documents of ours, and our jobs as files of theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reconciler.errors import ExitStatus, InvalidInput, NotFound
from reconciler.model.counting import counted

if TYPE_CHECKING:
    from reconciler.errors import Diagnostic
    from reconciler.imports.export import Exported
    from reconciler.imports.notes import Imported


@click.group(name="import")
def import_group() -> None:
    """Turn files of other systems into documents; what is not carried over is said."""


@import_group.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--name", default="imported", help="The name of the Fabric.")
def topology(files: tuple[Path, ...], name: str) -> int:
    """Make a Fabric of FILES: Slurm's topology.conf or topology.yaml (also as topograph writes them), ibnetdiscover,
    and the LLDP neighbours of each node (NODE.json, from lldpctl -f json).

    The document goes to stdout, with the reason for each level; what does not add up to stderr, by name.
    """
    from reconciler.discovery.parsed import MAX_BYTES, Status
    from reconciler.discovery.reading import read
    from reconciler.documents.check import check_file
    from reconciler.documents.edit import new_document
    from reconciler.imports.topology import fabric_of

    sources = {}
    for file in files:
        try:
            with file.open("rb") as stream:
                parsed = read(stream.read(MAX_BYTES + 1))
        except OSError as err:
            raise NotFound(f"{file}: {err.strerror}", code="FileNotReadable", remedy="name a readable file") from err
        for remark in (*parsed.errors, *parsed.warnings):
            click.echo(f"{file}: {remark}", err=True)
        if parsed.status is not Status.ERROR or parsed.content:
            sources[str(file)] = parsed.tree()
    imported = fabric_of(sources, name)
    for finding in imported.findings:
        click.echo(f"{finding}\n", err=True)
    if imported.document is None:
        click.echo("nothing was said about switches: there is no Fabric to write", err=True)
        return ExitStatus.INVALID
    text = new_document(imported.document, imported.comments)
    checked = check_file(text, "imported")
    if any(problem.is_error for problem in checked.diagnostics):
        raise InvalidInput(checked.diagnostics)
    click.echo(text.decode(), nl=False)
    return ExitStatus.OK


@import_group.command(name="slurm-cluster")
@click.argument("sources", nargs=-1, type=click.Path(path_type=Path))
@click.option("--live", "is_live", is_flag=True, help="Ask the cluster itself, by commands that only look.")
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder to write below.")
@click.option("--name", default="slurm", help="The name of the cluster.")
@click.option("--gpu-type", default="gpu", help="What to call GPUs that Slurm has no type for.")
@click.option("--mail-domain", default="", help="Write User documents with addresses at this domain.")
@click.option("--folder", default="", help="Logs and receipts of jobs, on the file system all nodes share.")
def slurm_cluster(
    sources: tuple[Path, ...], into: Path, name: str, gpu_type: str, mail_domain: str, folder: str, *, is_live: bool
) -> int:
    """Make a cluster repository of a Slurm cluster: Fabric, nodes, queues, classes, people and past use.

    SOURCES are files, or folders of files, with what these print: scontrol show node --json (22.05: sinfo --json),
    scontrol show topology (or topology.conf), scontrol show partition -o, sacctmgr -P show associations,
    sacctmgr -P show qos, sshare -a -P. With --live they are asked now.
    """
    from reconciler.engines.slurm.commands import Reader
    from reconciler.errors import UsageError
    from reconciler.runtime.slurm.bring import USAGE_FILE, Wishes, brought, write
    from reconciler.runtime.slurm.sources import captured, live

    if bool(sources) is is_live:
        raise UsageError("give either files or --live", code="Usage", remedy="gangops import slurm-cluster --help")
    said = live(Reader()) if is_live else captured(sources)
    found = brought(said, Wishes(cluster=name, gpu_type=gpu_type, mail_domain=mail_domain, folder=folder))
    for note in found.notes:
        click.echo(f"{note}\n", err=True)
    for path in write(found, into):
        click.echo(path)
    click.echo(
        f"\n{counted(found.nodes, 'node')}, {counted(found.gpus, 'GPU')}. Next: read the notes, `gangops validate`, commit.",
        err=True,
    )
    if USAGE_FILE in found.files:
        click.echo(
            f"Begin the record with what was used: `gangops init --state --usage {into / USAGE_FILE}`.", err=True
        )
    return ExitStatus.INVALID if any(note.is_error for note in found.notes) else ExitStatus.OK


_MAP_HELP = """\b
A map file, all of it optional:
  queues:          {team-a: nlp}             account, partition, Kueue queue
  priorityClasses: {high: production}        qos, Kueue or Volcano class
  gpuTypes:        {h100: H100-SXM5-80GB}    type, partition, selector value
  levels:          {switches: rack, cloud.provider.com/topology-rack: rack}
  nodeLabels:      {volta: {gpu: v100}, "disk=ssd": {disk: ssd}}
  mounts:          {datasets: /fs/datasets}  claim or volume
  jobs:            {"1234": nlp/tokenize}    job id in a dependency
  gpusPerNode:     8
  checkpointDir:   /fs/ckpt/{queue}/{name}
  workingDir:      /fs/home/team-a
"""

file_argument = click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
map_option = click.option(
    "--map",
    "map_file",
    type=click.Path(path_type=Path),
    help="YAML that says what queues, classes, GPU types, levels and folders are called here.",
)
queue_option = click.option("--queue", help="The queue to charge, whatever the file says.")
strict_option = click.option("--strict", is_flag=True, help="Refuse what does not come along whole; exit 4.")


@import_group.command(epilog=_MAP_HELP)
@file_argument
@queue_option
@map_option
@strict_option
@click.option("--repair", is_flag=True, help="Undo what a web page or an editor did to the script: // SBATCH and such.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json", "neutral"]), default="yaml")
@click.pass_obj
def sbatch(
    repo: Path, file: Path, queue: str | None, map_file: Path | None, output: str, *, strict: bool, repair: bool
) -> int:
    """Make a Job of the sbatch script FILE (- for standard input).

    The Job goes to stdout; what did not come along goes to stderr, each with its line. `-o neutral` shows what the
    script asks for, as Slurm reads it. A script that sbatch would refuse is refused, and printed as it should be.
    """
    from reconciler.imports.sbatch.jobs import job_from_script
    from reconciler.imports.sbatch.parse import parse_sbatch
    from reconciler.runtime.translating import mapped_for, read_bytes

    script = parse_sbatch(read_bytes(file))
    if repair and script.corrected is not None:
        script = parse_sbatch(script.corrected.encode())
    if output == "neutral":
        click.echo(json.dumps(script.neutral(file.name), indent=1, ensure_ascii=False))
        return ExitStatus.INVALID if script.problems else ExitStatus.OK
    imported = job_from_script(script, str(file), queue, mapped_for(repo, map_file))
    return _print_import(imported, repo, file, output, strict=strict)


@import_group.command(epilog=_MAP_HELP)
@file_argument
@queue_option
@map_option
@strict_option
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml")
@click.pass_obj
def kubernetes(repo: Path, file: Path, queue: str | None, map_file: Path | None, output: str, *, strict: bool) -> int:
    """Make Jobs of the workloads in the manifest FILE: PyTorchJob, JobSet, Job, Volcano's Job; with Kueue's labels.

    The Jobs go to stdout; what did not come along goes to stderr, each with its line.
    """
    from reconciler.imports.kubernetes.jobs import jobs_from_manifest
    from reconciler.runtime.translating import mapped_for, read_bytes

    imported = jobs_from_manifest(read_bytes(file), str(file), queue, mapped_for(repo, map_file))
    return _print_import(imported, repo, file, output, strict=strict)


def _print_import(imported: Imported, repo: Path, file: Path, output: str, *, strict: bool) -> int:
    from reconciler.runtime.translating import problems_in, text_of

    imported = imported.strict() if strict else imported
    here = problems_in(repo, imported.jobs)
    if strict and any(problem.is_error for problem in here):
        imported = replace(imported, jobs=(), errors=here)
    if output == "json":
        click.echo(json.dumps(_import_tree(imported), indent=1, ensure_ascii=False))
    elif imported.errors:
        click.echo(imported.corrected or "", nl=False)
    else:
        click.echo(text_of(imported, str(file)).decode(), nl=False)
    for diagnostic in dict.fromkeys((*imported.errors, *imported.notes, *here)):
        click.echo(f"{diagnostic}\n", err=True)
    return ExitStatus.INVALID if imported.errors else ExitStatus.OK


def _import_tree(imported: Imported) -> dict[str, Any]:
    return {
        "formatVersion": "1.0",
        "kind": "Import",
        "jobs": list(imported.jobs),
        "notes": [_row(note) for note in imported.notes],
        "errors": [_row(error) for error in imported.errors],
        "corrected": imported.corrected,
    }


def _row(diagnostic: Diagnostic) -> dict[str, object]:
    place = diagnostic.place
    return {
        "code": diagnostic.code,
        "severity": str(diagnostic.severity),
        "summary": diagnostic.summary,
        "detail": diagnostic.detail,
        "remedy": diagnostic.remedy,
        "file": place.file,
        "line": place.line,
        "path": place.path,
    }


# --- export ---------------------------------------------------------------------------------------------------------


@click.group(name="export")
def export_group() -> None:
    """Write a Job for another scheduler; what it cannot say is told."""


@export_group.command(name="sbatch")
@file_argument
@map_option
@strict_option
def export_sbatch(file: Path, map_file: Path | None, *, strict: bool) -> int:
    """Write the Job in FILE as an sbatch script."""
    from reconciler.imports.sbatch.write import script_of

    return _print_export(script_of, file, map_file, strict=strict)


@export_group.command(name="jobset")
@file_argument
@map_option
@strict_option
def export_jobset(file: Path, map_file: Path | None, *, strict: bool) -> int:
    """Write the Job in FILE as a JobSet of Kubernetes, with Kueue's labels."""
    from reconciler.imports.kubernetes.write import jobset_of

    return _print_export(jobset_of, file, map_file, strict=strict)


def _print_export(write: Callable[..., Exported], file: Path, map_file: Path | None, *, strict: bool) -> int:
    from reconciler.imports.export import read_job
    from reconciler.runtime.translating import mapped_for, read_bytes

    exported = write(read_job(read_bytes(file), str(file)), mapped_for(Path(), map_file))
    refused = bool(exported.errors or (strict and exported.notes))
    if not refused:
        click.echo(exported.text, nl=False)
    for diagnostic in (*exported.errors, *exported.notes):
        click.echo(f"{diagnostic}\n", err=True)
    return ExitStatus.INVALID if refused else ExitStatus.OK
