"""Which cluster is meant by a revision of a clone, or by a folder of files? Read, never checked out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from reconciler.documents.desired import load_desired, source_file
from reconciler.errors import Diagnostic, InvalidInput, NotFound
from reconciler.model.units import CommitId
from reconciler.runtime.authoring import repository_files
from reconciler.runtime.clone import Clone
from reconciler.runtime.reading import CLUSTER_PATH, DesiredReader
from reconciler.runtime.simulation.setting import Setting, setting_of
from reconciler.store.objects import resolve


def folder_meant(at: str) -> Path | None:
    """The folder of a repository's files that these words name; None: they are a revision.

    Raises NotFound (PathNotFound) for a folder that has no desired state.
    """
    folder = Path(at)
    if not at or not folder.is_dir():
        return None
    if folder.resolve().name == CLUSTER_PATH or (folder / CLUSTER_PATH).is_dir():
        return folder
    raise NotFound(
        f"{at} has no folder {CLUSTER_PATH}/", code="PathNotFound",
        remedy="name the top of a cluster repository's files; a branch of the same name is refs/heads/NAME",
    )  # fmt: skip


def setting_in(folder: Path, name: str) -> Setting:
    """The cluster of the files below a folder. Raises InvalidInput when they do not say what it is."""
    base, files = repository_files(folder / CLUSTER_PATH if (folder / CLUSTER_PATH).is_dir() else folder)
    loaded = load_desired([source_file(path, content) for path, content in sorted(files.items())], CommitId(""))
    if loaded.desired is None or loaded.cluster is None:
        raise _wrong_at(f"{base}/", loaded.diagnostics)
    return setting_of(name, loaded.desired, loaded.cluster.around)


def setting_at(clone: Clone, reader: DesiredReader, revision: str) -> Setting:
    """The cluster at a revision, "" or the desired branch: the newest desired commit, whatever a branch of that name
    here is at, for it moves with a pull alone and is not there at all in the clone of `use`.

    Raises InvalidInput when its files do not say what it is; NotFound (UnknownRevision, DesiredMissing); StoreError.
    """
    name = revision or clone.desired
    commit = clone.desired_tip() if name == clone.desired else resolve(clone.git, name)
    read = reader.read(commit, None)
    if read.desired is None or read.around is None:
        raise _wrong_at(f"{name}:", read.diagnostics)
    return replace(setting_of(name, read.desired, read.around), commit=commit)


def _wrong_at(where: str, diagnostics: Iterable[Diagnostic]) -> InvalidInput:
    """The errors, each with which cluster its file is of: of several a path alone does not say it."""
    errors = (one for one in diagnostics if one.is_error)
    return InvalidInput(replace(one, place=replace(one.place, file=f"{where}{one.place.file}")) for one in errors)
