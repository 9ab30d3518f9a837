"""Which files were read before? Well-formed content by blob id, so that a warm load reads only what changed.

Only files without any complaint are kept; a wrong one is read again, to complain again. `dump` and `restored` give
the cache a form for a disk; where that is, and when it is written, is for the runtime.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from reconciler import __version__
from reconciler.documents.check import Item
from reconciler.documents.loader import bulk
from reconciler.documents.schema import KINDS
from reconciler.documents.surroundings import Surroundings
from reconciler.errors import Diagnostic
from reconciler.model.job import Job

_HEADER: Final = f"gangops parse cache 1 {__version__} {sys.hexversion:x} {marshal.version}\n".encode()
_DIGEST_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one job file came to in certain surroundings. `job` is None when it has an error that forbids one."""

    job: Job | None
    diagnostics: tuple[Diagnostic, ...]


@dataclass(slots=True)
class ParseCache:
    """Of files by blob id; of jobs by (path, blob id) in the surroundings they were last judged in.

    Bounded by `limit` entries of each; the oldest go first. Not safe for several threads at once.
    """

    limit: int = 60_000
    _models: dict[str, tuple[tuple[str, str, int, Any], ...]] = field(default_factory=dict)
    _trees: dict[str, tuple[tuple[str, int, Any], ...]] = field(default_factory=dict)
    _verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _around: Surroundings | None = None

    def items(self, oid: str, path: str, content: bytes) -> tuple[Item, ...] | None:
        """The documents of this blob as if just read from `path`, or None when it is not known."""
        models = self._models.get(oid)
        if models is None:
            trees = self._trees.get(oid)
            if trees is None:
                return None
            models = tuple(_validated(kind, index, tree) for kind, index, tree in trees)
            self._models[oid] = models
        return tuple(Item(kind, name, index, model, path, content) for kind, name, index, model in models)

    def keep(self, oid: str, items: Sequence[Item], trees: Sequence[tuple[str, int, Any]]) -> None:
        """Remember a file without complaints: its models, and the trees they came from."""
        _make_room(self._models, self.limit)
        _make_room(self._trees, self.limit)
        self._models[oid] = tuple((item.kind, item.name, item.index, item.model) for item in items)
        self._trees[oid] = tuple(trees)

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

    def dump(self) -> bytes:
        """The files, not the jobs, as bytes for `restored`."""
        body = marshal.dumps(self._trees)
        return _HEADER + sha256(body).digest() + body


def restored(content: bytes, limit: int = 60_000) -> ParseCache:
    """The cache that `dump` wrote; an empty one when the bytes are damaged or of another version.

    The content comes from our own state folder: the digest guards against accidents, not against an author.
    """
    cache = ParseCache(limit=limit)
    body = content[len(_HEADER) + _DIGEST_SIZE :]
    if content.startswith(_HEADER) and content[len(_HEADER) :][:_DIGEST_SIZE] == sha256(body).digest():
        with bulk():
            cache._trees = marshal.loads(body)  # noqa: S302, SLF001  # digest checked above; our own class
    return cache


def _validated(kind: str, index: int, tree: Any) -> tuple[str, str, int, Any]:
    model = KINDS[kind].model_validate(tree)
    return kind, model.metadata.name, index, model


def _make_room(entries: dict[Any, Any], limit: int) -> None:
    while len(entries) >= limit:
        del entries[next(iter(entries))]
