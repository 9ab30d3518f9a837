"""Other schedulers' files on this machine, and what the repository beside them knows: its GPU types, its rules.

The readers and writers themselves are pure and live in `imports`; here files are opened, never run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from reconciler.documents.desired import source_file, validate_files
from reconciler.documents.layout import ROOT, path_of
from reconciler.documents.loader import load
from reconciler.errors import Diagnostic, NotFound
from reconciler.imports.layout import job_files
from reconciler.imports.mapping import Mapped, read_map
from reconciler.imports.notes import Imported
from reconciler.model.units import job_key

_MOST_BYTES: Final = (1 << 20) + 1  # one more than is read: too large is then told from cut
_SCHEMA: Final = "yaml-language-server: $schema=../../../schemas/job.schema.json"


def read_bytes(file: Path) -> bytes:
    """The content of a file, or of standard input for `-`; a byte more than the limit at most.

    Raises: NotFound(FileNotReadable).
    """
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(_MOST_BYTES)
        with file.open("rb") as stream:
            return stream.read(_MOST_BYTES)
    except OSError as err:
        raise NotFound(f"{file}: {err.strerror}", code="FileNotReadable", remedy="Name a readable file.") from err


def mapped_for(repo: Path, map_file: Path | None) -> Mapped:
    """The map file, with the GPU types of the repository when there is one. Raises: InvalidInput, NotFound."""
    known = known_types(repo)
    if map_file is None:
        return Mapped(known_types=known)
    return read_map(read_bytes(map_file), str(map_file), known)


def known_types(repo: Path) -> tuple[str, ...]:
    """GPU types of the node profiles in a repository's files, sorted; none where there is no repository."""
    found = set()
    for path in sorted((repo / ROOT / "inventory").glob("*.yaml")):
        for document in load(read_bytes(path), str(path)).documents:
            spec: Any = document.value.get("spec") if isinstance(document.value, dict) else None
            gpu_type = spec.get("gpuType") if document.kind == "NodeProfile" and isinstance(spec, dict) else None
            found |= {gpu_type} if isinstance(gpu_type, str) else set()
    return tuple(sorted(found))


def text_of(imported: Imported, file: str) -> bytes:
    """The Jobs as a file to put under cluster-state/jobs, with what did not come along as comments on top."""
    told = [f"line {note.place.line}, {note.place.path}: {note.detail}" for note in imported.notes]
    head = [_SCHEMA, f"Imported from {Path(file).name}."]
    head += ["To look at:", *(f"- {one}" for one in told)] if told else []
    return job_files(imported.jobs, [*head, *imported.hints])


def problems_in(repo: Path, jobs: Iterable[dict[str, Any]]) -> tuple[Diagnostic, ...]:
    """What the cluster of this repository has against these Jobs; nothing where there is no repository."""
    base = repo / ROOT
    if not base.is_dir():
        return ()
    files = {}
    for path in sorted(base.rglob("*.yaml")):
        if path.is_file() and not path.is_symlink():
            shown = path.relative_to(repo).as_posix()
            files[shown] = source_file(shown, read_bytes(path))
    ours = {}
    for job in jobs:
        shown = path_of(job_key(job["spec"]["queue"], job["metadata"]["name"]))
        ours[shown] = source_file(shown, job_files([job], []))
    found = validate_files([*(files | ours).values()])
    return tuple(problem for problem in found if problem.place.file in ours)
