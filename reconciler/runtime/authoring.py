"""Desired state as files people edit: checked, formatted, scaffolded, with its schemas beside it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.documents.cache import ParseCache
from reconciler.documents.desired import SourceFile, source_file, validate_files
from reconciler.documents.edit import format_text
from reconciler.documents.hostlist import expand
from reconciler.documents.loader import load
from reconciler.documents.scaffold import scaffold
from reconciler.documents.schema.files import schema_files
from reconciler.errors import Diagnostic, InvalidInput, NotFound, Place, UsageError, sorted_by_place
from reconciler.model.units import NodeName
from reconciler.render.plan.machine import plan_schema
from reconciler.render.proposal import proposal_schema
from reconciler.render.simulation import simulation_schema
from reconciler.render.statement import statement_schema
from reconciler.runtime.clone import Clone
from reconciler.runtime.notices.content import notification_schema
from reconciler.runtime.policing import policy_problems
from reconciler.runtime.reading import CLUSTER_PATH, POLICY_PATH
from reconciler.store.objects import resolve
from reconciler.store.trees import read_tree

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found in how many files."""

    files: int
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formatted:
    """Paths that changed (or would), and what could not be formatted."""

    changed: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def check_folder(folder: Path) -> Checked:
    """Every problem in the files below a folder that holds `cluster-state/`, or in that folder itself.

    Places are relative to the repository. Raises NotFound (PathNotFound) when there is no desired state.
    """
    base = folder.parent if folder.name == CLUSTER_PATH else folder
    if not (base / CLUSTER_PATH).is_dir():
        raise NotFound(
            f"{folder} has no folder {CLUSTER_PATH}/",
            code="PathNotFound",
            remedy="run this at the top of a cluster repository, or start one with `gangops init`",
        )
    refused: list[Diagnostic] = []
    files = [f for path in _files_below(base, refused) if (f := _source(base, path, refused)) is not None]
    found = sorted_by_place([*refused, *_problems(files)])
    return Checked(files=len(files), diagnostics=found)


def check_revision(clone: Clone, revision: str) -> Checked:
    """Every problem in the desired tree of a revision, read from git objects."""
    contents = read_tree(clone.git, resolve(clone.git, revision), (CLUSTER_PATH, POLICY_PATH), optional=(POLICY_PATH,))
    files = [
        SourceFile(path=entry.path, oid=entry.oid, content=contents.blobs[entry.oid])
        for entry in contents.entries
        if entry.oid in contents.blobs
    ]
    found = sorted_by_place([*contents.diagnostics, *_problems(files)])
    return Checked(files=len(files), diagnostics=found)


def _problems(files: list[SourceFile]) -> list[Diagnostic]:
    """What is wrong with the documents, and what their policies say of them."""
    cache = ParseCache()
    return [*validate_files(files, cache), *policy_problems(files, cache)]


def format_files(base: Path, paths: Iterable[Path], *, write: bool) -> Formatted:
    """Format YAML files in place; those that are not valid YAML are named and left alone."""
    changed: list[str] = []
    problems: list[Diagnostic] = []
    for path in list(paths) or [p for p in _files_below(base, problems) if p.suffix == ".yaml"]:
        source = _source(base, path, problems)
        if source is None:
            continue
        try:
            text = format_text(source.content, source.path)
        except InvalidInput as err:
            problems += err.diagnostics
            continue
        if text != source.content:
            changed.append(source.path)
            if write:
                _replace(path, text)
    return Formatted(changed=tuple(changed), diagnostics=sorted_by_place(problems))


def repository_files(inside: Path) -> tuple[Path, dict[str, bytes]]:
    """The top of the repository around a folder of desired state, and its documents by path from there.

    Raises NotFound (PathNotFound) when the folder is in no cluster repository.
    """
    for base in (inside.resolve(), *inside.resolve().parents):
        if (base / CLUSTER_PATH).is_dir():
            refused: list[Diagnostic] = []
            found = [f for path in _files_below(base, refused) if (f := _source(base, path, refused)) is not None]
            return base, {file.path: file.content for file in found}
    raise NotFound(
        f"{inside} is in no cluster repository",
        code="PathNotFound",
        remedy=f"name the folder {CLUSTER_PATH}/inventory of a clone, or start one with `gangops init`",
    )


def node_set(inside: Path, name: str) -> tuple[NodeName, ...]:
    """Nodes of the NodeSet of this name in the repository around a folder; () when there is none, or no repository."""
    try:
        _, files = repository_files(inside)
    except NotFound:
        return ()
    for path, content in sorted(files.items()):
        for document in load(content, path).documents if name.encode() in content else ():
            if (document.kind, document.name) == ("NodeSet", name):
                spec = document.value.get("spec") if isinstance(document.value, dict) else None
                nodes = spec.get("nodes") if isinstance(spec, dict) else None
                return tuple(NodeName(node) for node in expand(nodes if isinstance(nodes, str) else ""))
    return ()


def write_files(base: Path, changes: Mapping[str, bytes]) -> tuple[str, ...]:
    """Write these files, each whole or not at all; their paths."""
    for path, content in sorted(changes.items()):
        file = base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch()
        _replace(file, content)
    return tuple(sorted(changes))


def scaffold_into(folder: Path) -> tuple[str, ...]:
    """Write a small cluster repository. Raises UsageError (FolderNotEmpty) rather than touch a file that is there."""
    if (folder / "HEAD").is_file() and (folder / "objects").is_dir():
        raise UsageError(
            f"{folder.absolute()} is a bare repository: it has no files of its own", code="NoWorkTree",
            remedy=f"git clone {folder.absolute()} cluster && gangops init cluster",
        )  # fmt: skip
    files = scaffold()
    there = [path for path in files if (folder / path).exists()]
    if there:
        raise UsageError(f"{folder / there[0]} exists", code="FolderNotEmpty", remedy="choose another folder")
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return tuple(str(folder / path) for path in sorted(files))


def write_schemas(into: Path, *, write: bool) -> tuple[str, ...]:
    """The schema files that were stale (and are written, when asked)."""
    stale = []
    for name, content in {
        **schema_files(),
        "plan.schema.json": plan_schema(),
        "proposal.schema.json": proposal_schema(),
        "notification.schema.json": notification_schema(),
        "simulation.schema.json": simulation_schema(),
        **statement_schema(),
    }.items():
        file = into / name
        if not file.exists() or file.read_bytes() != content:
            stale.append(str(file))
            if write:
                into.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
    return tuple(stale)


def _files_below(base: Path, refused: list[Diagnostic]) -> Iterator[Path]:
    """All files under the read paths, sorted; links are named, never followed."""
    for top in (CLUSTER_PATH, POLICY_PATH):
        for folder, folders, names in os.walk(base / top):
            folders.sort()
            for name in sorted(names) + [d for d in folders if Path(folder, d).is_symlink()]:
                path = Path(folder, name)
                if path.is_symlink():
                    shown = str(path.relative_to(base))
                    refused.append(
                        Diagnostic(
                            "SymlinkRefused",
                            "Symbolic links are not followed",
                            f"{shown} is a symbolic link; its target was not opened.",
                            Place(shown),
                            "Replace the link by the file itself.",
                        )
                    )
                else:
                    yield path


def _source(base: Path, path: Path, refused: list[Diagnostic]) -> SourceFile | None:
    shown = str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
    try:
        found = path.stat()
        readable = stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES
        content = path.read_bytes() if readable else b""
    except OSError as err:
        refused.append(
            Diagnostic(
                "FileUnreadable", "File cannot be read", f"{err.strerror}.", Place(shown), "Name a readable file."
            )
        )
        return None
    if not readable:
        told = f"{found.st_size} bytes; at most {_MOST_BYTES} bytes of a plain file are read"
        refused.append(Diagnostic("FileTooLarge", "File cannot be read", told, Place(shown)))
        return None
    return source_file(shown, content)


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_bytes(content)
    fresh.chmod(path.stat().st_mode & 0o777)
    fresh.replace(path)
