"""The desired tree of a commit as one value, through git objects and the parse cache; never from a checkout."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from reconciler.documents.cache import ParseCache, restored
from reconciler.documents.check import Item
from reconciler.documents.desired import LoadedDesired, SourceFile, load_desired
from reconciler.documents.layout import key_of
from reconciler.documents.lint import Documents
from reconciler.errors import Diagnostic, sorted_by_place
from reconciler.model.desired import Desired
from reconciler.model.units import CommitId, JobKey
from reconciler.policy.rules import lint_policies
from reconciler.policy.verdicts import Memory, Verdicts
from reconciler.runtime.generation import Generation
from reconciler.store.objects import file_at, subtree
from reconciler.store.runner import Git
from reconciler.store.trees import TreeContents, TreeEntry, read_tree

CLUSTER_PATH = "cluster-state"
POLICY_PATH = "policies"
NOTHING: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDesired:
    """`desired` is None when no valid form of the cluster's own files exists. `read`: paths and blob ids.

    `verdicts`: what the tree's policies say; None when it has none. `documents` are the cluster's own, `items` its jobs'.
    """

    desired: Desired | None
    diagnostics: tuple[Diagnostic, ...]
    frozen: Mapping[str, bytes]
    read: tuple[tuple[str, str], ...]
    verdicts: Verdicts | None = None
    documents: Documents | None = None
    items: Mapping[JobKey, Item] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """No file is invalid, so that no older form of any was looked at."""
        return self.desired is not None and not any(d.is_error for d in self.diagnostics)


class DesiredReader:
    """Reads desired trees from one clone; the last result and all parsed documents are kept."""

    def __init__(self, git: Git, cache: Path | None = None) -> None:
        """`cache`: a file that keeps what was parsed over a restart. It may be lost or damaged at any time."""
        self._git = git
        self._file = cache
        self._cache = ParseCache()
        self._memory = Memory()
        if cache is not None:
            with contextlib.suppress(OSError):
                self._cache = restored(cache.read_bytes())
        self._last: tuple[str, Mapping[str, bytes], ReadDesired] | None = None
        self._recorded: tuple[tuple[str | None, str, Mapping[str, bytes]], ReadDesired] | None = None

    def read(self, commit: str, previous: Generation | None) -> ReadDesired:
        """The tree of a commit; a file that is invalid there stands in its last valid form, if there is one.

        Raises StoreError (PathNotFound) when `cluster-state/` is missing: not found never reads as empty.
        """
        frozen = previous.frozen if previous else NOTHING
        if self._last is not None and self._last[0] == commit:
            _, then, found = self._last
            # What we froze ourselves is what the last generation holds now: the answer is the same.
            if found.sound or frozen in (then, found.frozen):
                return found
        last_valid = _DesiredThen(self._git, previous.commit) if previous else NOTHING
        found = self._load(commit, "", CommitId(commit), frozen, last_valid)
        self._last = (commit, frozen, found)
        self._save()
        return found

    def recorded(self, state_commit: str, desired_commit: str, frozen: Mapping[str, bytes]) -> ReadDesired:
        """What a state commit says was desired: its `desired/` tree and its frozen documents."""
        tree = subtree(self._git, state_commit, "desired")
        if self._recorded is not None:
            known, found = self._recorded
            if known == (tree, desired_commit, frozen):
                return found
        found = self._load(state_commit, "desired/", CommitId(desired_commit), frozen, NOTHING)
        self._recorded = (tree, desired_commit, frozen), found
        return found

    def _save(self) -> None:
        """Best effort: without the file the next start reads everything anew."""
        if self._file is None:
            return
        fresh = self._file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            fresh.write_bytes(self._cache.dump())
            fresh.replace(self._file)

    def _load(
        self, commit: str, prefix: str, named: CommitId, frozen: Mapping[str, bytes], last_valid: Mapping[str, bytes]
    ) -> ReadDesired:
        contents = _read(self._git, commit, prefix)
        refused = {d.place.file.removeprefix(prefix): d for d in contents.diagnostics if d.is_error}
        files = [_source(entry, prefix, contents.blobs, refused) for entry in contents.entries]
        loaded = load_desired(files, named, frozen=frozen, last_valid=last_valid, cache=self._cache)
        verdicts = _verdicts(loaded, self._memory)
        policies = loaded.cluster.documents.of("Policy") if loaded.cluster is not None else ()
        told = [d for d in loaded.diagnostics if d.place.file not in refused]
        told += lint_policies(policies)
        return ReadDesired(
            desired=_with_codes(loaded.desired, refused),
            diagnostics=sorted_by_place([*told, *contents.diagnostics]),
            frozen=loaded.frozen,
            read=tuple((entry.path.removeprefix(prefix), entry.oid) for entry in contents.entries),
            verdicts=verdicts,
            documents=loaded.cluster.documents if loaded.cluster is not None else None,
            items=loaded.items,
        )


def _read(git: Git, commit: str, prefix: str) -> TreeContents:
    paths = (f"{prefix}{CLUSTER_PATH}", f"{prefix}{POLICY_PATH}")
    return read_tree(git, commit, paths, optional=(paths[1],))


def _with_codes(desired: Desired | None, refused: Mapping[str, Diagnostic]) -> Desired | None:
    """Files that were refused unread are invalid for that reason, not for being empty."""
    codes = {key_of(path): found.code for path, found in refused.items()}
    if desired is None or not codes:
        return desired
    return replace(desired, invalid={key: codes.get(key, code) for key, code in desired.invalid.items()})


def _verdicts(loaded: LoadedDesired, memory: Memory) -> Verdicts | None:
    """The policies over what was loaded; None when there are none, or nothing to judge."""
    if loaded.desired is None or loaded.cluster is None or not loaded.cluster.documents.of("Policy"):
        return None
    return Verdicts(loaded.cluster, loaded.items, loaded.desired.jobs, memory)


def _source(entry: TreeEntry, prefix: str, blobs: Mapping[str, bytes], refused: Mapping[str, Diagnostic]) -> SourceFile:
    """A file as read. One that was refused is there, and empty: invalid, but not gone."""
    path = entry.path.removeprefix(prefix)
    if path in refused:
        return SourceFile(path, f"refused:{entry.oid}", b"")
    return SourceFile(path, entry.oid, blobs[entry.oid])


class _DesiredThen(Mapping[str, bytes]):
    """The files of the desired tree a state commit answered, each looked up when it is asked for."""

    def __init__(self, git: Git, state_commit: str) -> None:
        self._git = git
        self._commit = state_commit
        self._paths: tuple[str, ...] | None = None

    def __getitem__(self, path: str) -> bytes:
        found = file_at(self._git, self._commit, f"desired/{path}")
        if found is None:
            raise KeyError(path)
        return found

    def __iter__(self) -> Iterator[str]:
        if self._paths is None:
            contents = _read(self._git, self._commit, "desired/")
            refused = {d.place.file for d in contents.diagnostics if d.is_error}
            self._paths = tuple(e.path.removeprefix("desired/") for e in contents.entries if e.path not in refused)
        return iter(self._paths)

    def __len__(self) -> int:
        return sum(1 for _ in self)
