"""The desired tree of a commit as one value, through git objects and the parse cache; never from a checkout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from reconciler.documents.cache import ParseCache, restored
from reconciler.documents.check import Item
from reconciler.documents.desired import LoadedDesired, SourceFile, load_desired, source_file
from reconciler.documents.judged import read_files
from reconciler.documents.layout import is_document, is_job, key_of
from reconciler.documents.lint import Documents
from reconciler.documents.loader import bulk
from reconciler.documents.surroundings import Surroundings
from reconciler.documents.withheld import WITHHELD, Withheld, blocks, withheld_bytes, withheld_of
from reconciler.errors import Diagnostic, sorted_by_place
from reconciler.model.desired import Desired
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import CommitId, JobKey
from reconciler.policy.merged import still_lacks
from reconciler.policy.rules import lint_policies
from reconciler.policy.verdicts import Memory, Verdicts
from reconciler.runtime.beside import both
from reconciler.runtime.generation import Generation
from reconciler.runtime.kept_verdicts import keep_verdicts, recall_verdicts
from reconciler.store.objects import file_at, subtree
from reconciler.store.runner import Git
from reconciler.store.trees import TreeContents, TreeEntry, is_partial, read_tree
from reconciler.store.whole import write_whole

_VERDICTS = "verdicts.cache"
_MANY = 400
"""Unknown files from which on they are parsed in two processes."""
_WORTH = 20
"""Files are kept anew when more than one of so many is new."""
CLUSTER_PATH = "cluster-state"
POLICY_PATH = "policies"
NOTHING: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadDesired:
    """`desired` is None when no valid form of the cluster's own files exists. `read`: paths and blob ids.

    `verdicts`: what the tree's policies say; None when it has none. `documents` are the cluster's own, `items` its jobs'.
    `withheld` are changes that nobody with authority stands behind: their files count as they were before.
    """

    desired: Desired | None
    diagnostics: tuple[Diagnostic, ...]
    frozen: Mapping[str, bytes]
    read: tuple[tuple[str, str], ...]
    verdicts: Verdicts | None = None
    documents: Documents | None = None
    items: Mapping[JobKey, Item] = field(default_factory=dict)
    around: Surroundings | None = None
    withheld: tuple[Withheld, ...] = ()

    @property
    def sound(self) -> bool:
        """No file is invalid or withheld, so that no older form of any was looked at."""
        return self.desired is not None and not self.withheld and not any(d.is_error for d in self.diagnostics)


class DesiredReader:
    """Reads desired trees from one clone; the last result and all parsed documents are kept."""

    def __init__(self, git: Git, cache: Path | None = None, *, partial: bool | None = None) -> None:
        """`cache`: a file that keeps what was parsed over a restart. It may be lost or damaged at any time.

        `partial`: whether the clone lacks contents of files; None: it is asked once.
        """
        self._git = git
        self._file = cache
        self._cache = ParseCache()
        self._memory = Memory()
        self._partial = partial
        self._others: Mapping[str, bytes] = NOTHING  # contents of the tree read last that the cache does not keep
        if cache is not None:
            with contextlib.suppress(OSError):
                self._cache = restored(cache.read_bytes())
            recall_verdicts(cache.with_name(_VERDICTS), self._cache, self._memory)
        self._last: tuple[tuple[str, tuple[Withheld, ...] | None], Mapping[str, bytes], ReadDesired] | None = None
        self._recorded: tuple[tuple[str | None, str, Mapping[str, bytes]], ReadDesired] | None = None

    def read(
        self, commit: str, previous: Generation | None, withheld: tuple[Withheld, ...] | None = None
    ) -> ReadDesired:
        """The tree of a commit; a file that is invalid there stands in its last valid form, if there is one.

        `withheld` are changes not to be acted on; None: those withheld before and unchanged since.
        Raises StoreError (PathNotFound) when `cluster-state/` is missing: not found never reads as empty.
        """
        frozen = previous.frozen if previous else NOTHING
        asked = (commit, withheld)
        if self._last is not None and self._last[0] == asked:
            _, then, found = self._last
            # What we froze ourselves is what the last generation holds now: the answer is the same.
            if (found.sound and WITHHELD not in frozen) or frozen in (then, found.frozen):
                return found
        last_valid = _DesiredThen(self._git, previous) if previous else NOTHING
        found = self._load(commit, "", CommitId(commit), frozen, last_valid, withheld)
        self._last = (asked, frozen, found)
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

    def _read_ahead(self, files: list[SourceFile]) -> None:
        """Parse many unknown files in two processes; what is wrong in them is found again, where it is told."""
        unknown = [file for file in files if is_document(file.path) and not self._cache.knows(file.oid)]
        if len(unknown) < _MANY:
            return
        middle = len(unknown) // 2

        def there() -> dict[str, Any]:
            aside = ParseCache()
            read_files(unknown[middle:], aside)
            return aside.trees()

        with bulk():
            taken, _ = both(there, lambda: read_files(unknown[:middle], self._cache))
        self._cache.take(taken, {file.oid: file.content for file in unknown})

    def _contents(self, commit: str, prefix: str) -> TreeContents:
        """The tree with all its contents; git is asked for those alone that no tree before had."""
        if self._partial is None:
            self._partial = is_partial(self._git)
        known = {**self._others, **self._cache.contents}
        found = _read(self._git, commit, prefix, known, partial=self._partial)
        whole = {entry.oid: known[entry.oid] for entry in found.entries if entry.oid in known} | {**found.blobs}
        self._others = {oid: content for oid, content in whole.items() if oid not in self._cache.contents}
        return replace(found, blobs=whole)

    def save(self) -> None:
        """Keep what was read for the next process, when enough of it is new. Best effort: without it that reads more."""
        fresh = self._cache.fresh
        if self._file is None or not fresh or fresh * _WORTH < len(self._cache.placed):
            return
        with contextlib.suppress(OSError):
            write_whole(self._file, self._cache.dump())
        verdicts = self._last[2].verdicts if self._last is not None else None
        stood_on = verdicts.stood_on if verdicts is not None else None
        keep_verdicts(self._file.with_name(_VERDICTS), self._cache, self._memory, stood_on)

    def _load(
        self, commit: str, prefix: str, named: CommitId, frozen: Mapping[str, bytes], last_valid: Mapping[str, bytes],
        withheld: tuple[Withheld, ...] | None = None,
    ) -> ReadDesired:  # fmt: skip
        contents = self._contents(commit, prefix)
        refused = {d.place.file.removeprefix(prefix): d for d in contents.diagnostics if d.is_error}
        files = [_source(entry, prefix, contents.blobs, refused) for entry in contents.entries]
        read = tuple((entry.path.removeprefix(prefix), entry.oid) for entry in contents.entries)
        known = withheld_of(frozen)
        if withheld is None:
            withheld = _unchanged(known, read)
        older = _authorised(withheld, known, frozen, last_valid)
        files = _replaced(files, withheld, older)
        self._read_ahead(files)
        loaded = load_desired(files, named, frozen=frozen, last_valid=last_valid, cache=self._cache)
        verdicts = _verdicts(loaded, self._memory)
        policies = loaded.cluster.documents.of("Policy") if loaded.cluster is not None else ()
        told = [d for d in loaded.diagnostics if d.place.file not in refused]
        told += lint_policies(policies)
        told += [one.diagnostic for one in withheld]
        return ReadDesired(
            desired=_holding(_with_codes(loaded.desired, refused), withheld, older),
            diagnostics=sorted_by_place([*told, *contents.diagnostics]),
            frozen=_kept(loaded.frozen, withheld, older),
            read=read,
            verdicts=verdicts,
            documents=loaded.cluster.documents if loaded.cluster is not None else None,
            items=loaded.items,
            around=loaded.cluster.around if loaded.cluster is not None else None,
            withheld=withheld,
        )


def _read(
    git: Git, commit: str, prefix: str, known: Mapping[str, bytes] = NOTHING, *, partial: bool | None = None
) -> TreeContents:
    paths = (f"{prefix}{CLUSTER_PATH}", f"{prefix}{POLICY_PATH}")
    return read_tree(git, commit, paths, optional=(paths[1],), known=known, partial=partial)


# --- changes that wait for somebody with authority ---


def _unchanged(known: tuple[Withheld, ...], read: tuple[tuple[str, str], ...]) -> tuple[Withheld, ...]:
    """Those withheld before whose file is the same still, and whose recorded people lack what it takes."""
    now = dict(read) if known else {}
    return tuple(one for one in known if now.get(one.path, "") == one.blob and still_lacks(one))


def _authorised(
    withheld: tuple[Withheld, ...], known: tuple[Withheld, ...], frozen: Mapping[str, bytes],
    last_valid: Mapping[str, bytes],
) -> dict[str, bytes]:  # fmt: skip
    """The last authorised content of each withheld file, by path; a file that is new has none."""
    before = {one.path for one in known}
    found: dict[str, bytes] = {}
    for one in withheld:
        content = frozen.get(one.path) if one.path in frozen or one.path in before else last_valid.get(one.path)
        if content is not None:
            found[one.path] = content
    return found


def _replaced(
    files: list[SourceFile], withheld: tuple[Withheld, ...], older: Mapping[str, bytes]
) -> list[SourceFile]:  # fmt: skip
    """The files as they count. A new job stays, to be held; a new file of the cluster is left out."""
    if not withheld:
        return files
    gone = {one.path for one in withheld if one.path in older or not is_job(one.path)}
    back = [source_file(path, content) for path, content in older.items() if is_document(path)]
    return [*(file for file in files if file.path not in gone), *back]


def _holding(desired: Desired | None, withheld: tuple[Withheld, ...], older: Mapping[str, bytes]) -> Desired | None:
    """New jobs are held; while a file of the cluster is withheld, nothing is admitted."""
    if desired is None or not withheld:
        return desired
    there = {*desired.jobs, *desired.arrays}
    held = {key: one.hold for one in withheld if one.path not in older and (key := key_of(one.path)) in there}
    kept = {key for path in older if (key := key_of(path)) in there}
    return replace(
        desired,
        frozen=desired.frozen | kept,
        policy=held,
        blocked=desired.blocked or blocks(withheld),
    )


def _kept(
    frozen: Mapping[str, bytes], withheld: tuple[Withheld, ...], older: Mapping[str, bytes]
) -> Mapping[str, bytes]:  # fmt: skip
    if not withheld:
        return frozen
    return dict(sorted({**frozen, **older, WITHHELD: withheld_bytes(withheld)}.items()))


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
    return Verdicts(loaded.cluster, loaded.items, loaded.desired.job_of, memory)


def _source(entry: TreeEntry, prefix: str, blobs: Mapping[str, bytes], refused: Mapping[str, Diagnostic]) -> SourceFile:
    """A file as read. One that was refused is there, and empty: invalid, but not gone."""
    path = entry.path.removeprefix(prefix)
    if path in refused:
        return SourceFile(path, f"refused:{entry.oid}", b"")
    return SourceFile(path, entry.oid, blobs[entry.oid])


class _DesiredThen(Mapping[str, bytes]):
    """The files of the desired tree a state commit answered, each looked up when it is asked for.

    A job that had no valid form then has none in it: by itself its file may look sound.
    """

    def __init__(self, git: Git, previous: Generation) -> None:
        self._git = git
        self._commit = previous.commit
        self._jobs = previous.allocation.jobs
        self._paths: tuple[str, ...] | None = None

    def __getitem__(self, path: str) -> bytes:
        key = key_of(path)
        known = self._jobs.get(key) if key is not None else None
        if known is not None and known.reason.code is ReasonCode.INVALID:
            raise KeyError(path)
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
