"""Which files were read before? Well-formed content by blob id, so that a warm load reads only what changed.

Only files without any complaint are kept; a wrong one is read again, to complain again. `dump` and `restored` give
the cache a form for a disk; where that is, and when it is written, is for the runtime.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from reconciler import __version__
from reconciler.documents.check import CheckedFile, Item, Later
from reconciler.documents.loader import bulk
from reconciler.documents.surroundings import Surroundings
from reconciler.errors import Diagnostic
from reconciler.model.job import Job

_HEADER: Final = f"gangops parse cache 2 {__version__} {sys.hexversion:x} {marshal.version}\n".encode()
_DIGEST_SIZE: Final = 32


class Verdict(NamedTuple):
    """What one job file came to in certain surroundings. `job` is None when it has an error that forbids one.

    `gangs` are what is placed: the job itself, or the tasks of its array.
    """

    job: Job | None
    diagnostics: tuple[Diagnostic, ...]
    gangs: tuple[Job, ...] = ()


@dataclass(slots=True)
class ParseCache:
    """Of files by blob id; of jobs by (path, blob id) in the surroundings they were last judged in.

    Bounded by `limit` entries of each; the oldest go first. Not safe for several threads at once.
    """

    limit: int = 60_000
    fresh: int = 0
    """Files and verdicts that no dump has yet."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """Of the files that were without complaints, by blob id: they need not be read again."""
    _read: dict[str, tuple[tuple[str, str, int, Any], ...]] = field(default_factory=dict)
    _trees: dict[str, tuple[tuple[str, int, Any], ...]] = field(default_factory=dict)
    _files: dict[tuple[str, str], CheckedFile] = field(default_factory=dict)
    _verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _around: Surroundings | None = None
    _cluster: tuple[tuple[tuple[str, str], ...], Any] | None = None
    placed: set[tuple[str, str]] = field(default_factory=set)
    """(path, blob id) of known files that are in the right place."""

    def items(self, oid: str, path: str, content: bytes) -> tuple[Item, ...] | None:
        """The documents of this blob as if just read from `path`, or None when it is not known."""
        known = self._read.get(oid)
        if known is None:
            trees = self._trees.get(oid)
            if trees is None:
                return None
            known = tuple((kind, tree["metadata"]["name"], index, Later(kind, tree)) for kind, index, tree in trees)
            self._read[oid] = known
        return tuple(Item(kind, name, index, read, path, content) for kind, name, index, read in known)

    def file(self, path: str, oid: str) -> CheckedFile | None:
        """What `keep_file` was given for this file, if it was."""
        return self._files.get((path, oid))

    def keep_file(self, path: str, oid: str, checked: CheckedFile) -> CheckedFile:
        """The file, remembered as it is for as long as this process lasts when nothing is wrong with it."""
        if not checked.diagnostics:
            _make_room(self._files, self.limit)
            self._files[path, oid] = checked
        return checked

    def keep(self, oid: str, items: Sequence[Item], trees: Sequence[tuple[str, int, Any]], content: bytes) -> None:
        """Remember a file without complaints: its models, the trees they came from, and what it says."""
        for entries in (self._read, self._trees, self.contents):
            _make_room(entries, self.limit)
        self.contents[oid] = content
        self._read[oid] = tuple((item.kind, item.name, item.index, item.read) for item in items)
        self._trees[oid] = tuple(trees)
        self.fresh += 1

    def trees(self) -> dict[str, tuple[tuple[str, int, Any], ...]]:
        """The trees of all files: for `take` of another cache."""
        return self._trees

    def take(self, trees: dict[str, tuple[tuple[str, int, Any], ...]], contents: Mapping[str, bytes]) -> None:
        """Remember files without complaints that another cache has read, of all these contents."""
        self._trees.update(trees)
        self.contents.update((oid, contents[oid]) for oid in trees)
        self.fresh += len(trees)

    def knows(self, oid: str) -> bool:
        """Whether this blob need not be read."""
        return oid in self._read or oid in self._trees

    def verdict(self, path: str, oid: str, around: Surroundings) -> Verdict | None:
        """What this job came to, if nothing around it changed since."""
        if around is not self._around:
            if around != self._around:
                self._verdicts.clear()
            self._around = around
        return self._verdicts.get((path, oid))

    def keep_verdict(self, path: str, oid: str, verdict: Verdict) -> None:
        """Remember what a job came to in the surroundings last asked about."""
        _make_room(self._verdicts, self.limit)
        self._verdicts[path, oid] = verdict
        self.fresh += 1

    def cluster(self, files: tuple[tuple[str, str], ...]) -> Any | None:
        """What the cluster's own documents came to, when these are the files (path, blob id) last asked about."""
        return self._cluster[1] if self._cluster is not None and self._cluster[0] == files else None

    def keep_cluster(self, files: tuple[tuple[str, str], ...], cluster: Any) -> None:
        """Remember what the cluster's own documents come to."""
        self._cluster = files, cluster

    def known(self) -> tuple[Any, ...]:
        """What jobs came to, in which surroundings, which files are in the right place, and the cluster: for `recall`."""
        return self._around, self._verdicts, self.placed, self._cluster

    def recall(self, around: Any, verdicts: Any, placed: Any, cluster: Any) -> None:
        """Take over what `known` gave."""
        self._around, self._verdicts, self.placed, self._cluster = around, verdicts, placed, cluster

    def dump(self) -> bytes:
        """The files, not the jobs, as bytes for `restored`."""
        body = marshal.dumps((self._trees, self.contents))
        self.fresh = 0
        return _HEADER + sha256(body).digest() + body


def restored(content: bytes, limit: int = 60_000) -> ParseCache:
    """The cache that `dump` wrote; an empty one when the bytes are damaged or of another version.

    The content comes from our own state folder: the digest guards against accidents, not against an author.
    """
    cache = ParseCache(limit=limit)
    body = content[len(_HEADER) + _DIGEST_SIZE :]
    if content.startswith(_HEADER) and content[len(_HEADER) :][:_DIGEST_SIZE] == sha256(body).digest():
        with bulk():
            cache._trees, cache.contents = marshal.loads(body)  # noqa: S302, SLF001  # digest checked above; our own class
    return cache


def _make_room(entries: dict[Any, Any], limit: int) -> None:
    while len(entries) >= limit:
        del entries[next(iter(entries))]
