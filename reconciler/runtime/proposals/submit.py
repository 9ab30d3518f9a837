"""How does a job get into the desired tree: from a file, from an sbatch script, from answers to a few questions?

The file goes to `jobs/QUEUE/NAME.yaml`, byte for byte as it was written but for the folder it starts in, which is where
the person stood, as people coming from Slurm expect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from reconciler.documents.check import Item, check_file
from reconciler.documents.desired import source_file, validate_files
from reconciler.documents.edit import new_document, set_value
from reconciler.documents.layout import ROOT, path_of
from reconciler.documents.loader import Tree
from reconciler.documents.schema.base import PATH_PATTERN
from reconciler.errors import Diagnostic, InvalidInput, Place, UsageError
from reconciler.imports.mapping import Mapped, read_map
from reconciler.imports.notes import Imported
from reconciler.imports.sbatch.jobs import job_from_script
from reconciler.imports.sbatch.parse import parse_sbatch
from reconciler.model.counting import counted
from reconciler.model.units import JobKey, job_key
from reconciler.runtime.proposals.change import Change, unchanged
from reconciler.runtime.proposals.desk import Desk
from reconciler.runtime.translating import read_bytes, text_of

_SCHEMA: Final = "yaml-language-server: $schema=../../../schemas/job.schema.json"


def submit(desk: Desk, content: bytes, file: str, working_dir: str = "", why: str = "") -> Change:
    """Put the Job in this file where its queue and name belong; `working_dir` is where it starts unless it says so.

    Raises: InvalidInput, with everything that is wrong with the file by itself.
    """
    item = _only_job(content, file)
    key = job_key(item.model.spec.queue, item.name)
    run, remarks = item.model.spec.run, list[str]()
    if working_dir and run.working_dir is None and run.image is None and run.session is None:
        content = set_value(content, ("spec", "run", "workingDir"), working_dir, index=item.index, file=file)
        remarks.append(f"It starts in {working_dir}, where you stand; --no-working-dir leaves that out.")
    before = desk.job_content(key)
    if before == content:
        return unchanged("submit", item.name, f"{key} is on {desk.clone.desired} as it is here")
    title = f"Submit {key}" if before is None else f"Change {key}"
    return Change(
        verb="submit", name=item.name, title=title, files={path_of(key): content}, body=why, remarks=tuple(remarks), job=key,
    )  # fmt: skip


def _only_job(content: bytes, file: str) -> Item:
    checked = check_file(content, file)
    errors = [problem for problem in checked.diagnostics if problem.is_error]
    if errors:
        raise InvalidInput(errors)
    others = [item.kind for item in checked.items if item.kind != "Job"]
    if others or len(checked.items) != 1:
        found = f"it has a {others[0]}" if others else f"it has {counted(len(checked.items), 'job')}"
        raise InvalidInput(
            [Diagnostic("NotOneJob", "A submission is one Job", f"{found}.", Place(file), "Submit one Job a file.")]
        )
    return checked.items[0]


def from_sbatch(desk: Desk, file: Path, queue: str | None, map_file: Path | None, working_dir: str) -> Imported:
    """The Job an sbatch script comes to here. Raises: InvalidInput, NotFound (FileNotReadable)."""
    types = tuple(desk.gpu_types())
    mapped = read_map(read_bytes(map_file), str(map_file), types) if map_file is not None else Mapped(known_types=types)
    if working_dir and not mapped.working_dir:
        mapped = replace(mapped, working_dir=working_dir)
    imported = job_from_script(parse_sbatch(read_bytes(file)), str(file), queue, mapped)
    if imported.errors:
        raise InvalidInput(imported.errors)
    return imported


def imported_text(imported: Imported, file: Path) -> bytes:
    """The file of an imported Job, with what did not come along as comments on top."""
    return text_of(imported, str(file))


def standing_in(folder: Path) -> str:
    """The folder a job starts in when it was submitted there; "" for one inside a cluster repository, or with odd signs."""
    inside = any((parent / ROOT).is_dir() for parent in (folder, *folder.parents))
    return "" if inside or not re.fullmatch(PATH_PATTERN, str(folder)) else str(folder)


# --- new job --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What `new job` asks. "" where nothing was said; `command` empty: a session that holds its GPUs."""

    name: str
    queue: str
    gpus: int
    command: tuple[str, ...] = ()
    gpu_type: str = ""
    time_limit: str = ""
    priority_class: str = ""
    checkpoint_dir: str = ""
    image: str = ""

    @property
    def key(self) -> JobKey:
        return job_key(self.queue, self.name)


def new_job(answers: Answers) -> bytes:
    """The file of such a job, as short as it can be."""
    run: dict[str, Tree] = {"command": list(answers.command)} if answers.command else {"session": True}
    if answers.image:
        run = {"image": answers.image, **run}
    spec: dict[str, Tree] = {"queue": answers.queue}
    said: Mapping[str, Tree] = {
        "priorityClass": answers.priority_class,
        "gpus": answers.gpus,
        "gpuType": answers.gpu_type,
        "timeLimit": answers.time_limit,
        "checkpoint": {"dir": answers.checkpoint_dir} if answers.checkpoint_dir else "",
        "run": run,
    }
    spec |= {field: value for field, value in said.items() if value not in ("", {})}
    tree: dict[str, Tree] = {
        "apiVersion": "gangops/v1", "kind": "Job", "metadata": {"name": answers.name}, "spec": spec,
    }  # fmt: skip
    return new_document(tree, [_SCHEMA])


def problems_of(desk: Desk | None, content: bytes, key: JobKey) -> tuple[Diagnostic, ...]:
    """What is wrong with a new job's file, by itself and, with a desk, in this cluster."""
    path = path_of(key)
    if desk is None:
        return check_file(content, path).diagnostics
    files = {**desk.cluster_files, path: content}
    found = validate_files(source_file(one, text) for one, text in sorted(files.items()))
    return tuple(problem for problem in found if problem.place.file == path)


def place_for(folder: Path, key: JobKey) -> Path:
    """Where a new job's file goes: into its folder of the cluster repository around `folder`, else beside the person."""
    for parent in (folder, *folder.parents):
        if (parent / ROOT).is_dir():
            return parent / path_of(key)
    return folder / f"{key.partition('/')[2]}.yaml"


def check_free(file: Path) -> None:
    """Raises UsageError (FileExists)."""
    if file.exists():
        raise UsageError(f"{file} exists", code="FileExists", remedy="edit it, or name another file with --into")
