"""The last generation a person's verbs read, kept in a folder of their own, so that the next verb need not read it anew.

A cache in the sense that it may be lost, damaged or of another version at any time, and then is nothing. It is read
only from a folder that nobody else can write: unlike a document, it is trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from reconciler import __version__
from reconciler.documents.kept import again, kept
from reconciler.documents.loader import bulk
from reconciler.documents.record import JOBS, TOMBSTONES, read_allocation
from reconciler.runtime.beside import both
from reconciler.runtime.generation import Generation, generation_of, orders_in, state_files
from reconciler.store.runner import Git
from reconciler.store.whole import write_whole

_K = TypeVar("_K")
_V = TypeVar("_V")

_HEADER = f"gangops state cache 5 {__version__} {sys.hexversion:x}\n".encode()
_DIGEST_SIZE = 32
_MANY = 1_000
"""Records of jobs from which on two processes read a state."""


def known_generation(git: Git, commit: str, file: Path | None) -> Generation:
    """The generation a state commit holds; the orders of its nodes are read when somebody looks at them: few do.

    Raises StoreError (PathNotFound, BadRecord); for the orders, when they are looked at.
    """
    code = _code_digest()
    generation = _kept(file, commit, code) if file is not None else None
    if generation is None:
        generation = _read(git, commit)
        if file is not None:
            _keep(file, generation, code)
    node_files = _Later(lambda: state_files(git, commit, of_nodes=True))
    return replace(generation, node_files=node_files, orders=_Later(lambda: orders_in(node_files)))


def _read(git: Git, commit: str) -> Generation:
    """The generation without orders; of a large one, records of jobs are read in a copy of this process."""
    files = state_files(git, commit, of_nodes=False)
    jobs = {path: content for path, content in files.items() if path.startswith((JOBS, TOMBSTONES))}
    if len(jobs) < _MANY:
        return generation_of(commit, files)
    rest = {path: content for path, content in files.items() if path not in jobs}
    with bulk():
        allocation, generation = both(lambda: read_allocation(files), lambda: generation_of(commit, rest))
    return replace(generation, allocation=allocation)


def _kept(file: Path, commit: str, code: bytes) -> Generation | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    start = len(_HEADER) + len(code)
    body = content[start + _DIGEST_SIZE :]
    if not content.startswith(_HEADER + code) or content[start:][:_DIGEST_SIZE] != hashlib.sha256(body).digest():
        return None
    if not body.startswith(commit.encode()):
        return None
    with bulk():
        found = again(body[len(commit) :])
    return found if isinstance(found, Generation) else None


class _Later(Mapping[_K, _V]):
    """A mapping that is read when somebody looks at it."""

    def __init__(self, read: Callable[[], Mapping[_K, _V]]) -> None:
        self._read = read

    @cached_property
    def _all(self) -> Mapping[_K, _V]:
        return self._read()

    def __getitem__(self, key: _K) -> _V:
        return self._all[key]

    def __iter__(self) -> Iterator[_K]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __eq__(self, other: object) -> bool:
        return self._all == (other._all if isinstance(other, _Later) else other)

    def __hash__(self) -> int:
        raise TypeError("it is compared, never hashed")


def _keep(file: Path, generation: Generation, code: bytes) -> None:
    """Best effort. The generation has no orders."""
    body = generation.commit.encode() + kept(generation)
    with contextlib.suppress(OSError):
        write_whole(file, _HEADER + code + hashlib.sha256(body).digest() + body)


def _code_digest() -> bytes:
    """Changes with the shape of what is kept: a field more or less makes another record."""
    names = [*Generation.__dataclass_fields__]
    for part in (Generation.__annotations__, *_shapes()):
        names += [f"{key}:{value}" for key, value in sorted(part.items())]
    return hashlib.sha256("\n".join(names).encode()).digest()


def _shapes() -> Iterator[dict[str, object]]:
    from reconciler.model import allocation, job, observed, reasons

    for module in (allocation, job, observed, reasons):
        for kind in vars(module).values():
            if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
                yield kind.__annotations__
