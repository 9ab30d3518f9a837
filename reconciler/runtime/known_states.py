"""The last generation a person's verbs read, kept in a folder of their own, so that the next verb need not read it anew.

A cache in the sense that it may be lost, damaged or of another version at any time, and then is nothing. It is read
only from a folder that nobody else can write: unlike a document, it is trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from reconciler import __version__
from reconciler.documents.kept import again, kept
from reconciler.documents.loader import bulk
from reconciler.documents.record import JOBS, TOMBSTONES, read_allocation
from reconciler.model.units import NodeName
from reconciler.runtime.beside import both
from reconciler.runtime.generation import Generation, generation_of, state_files
from reconciler.store.runner import Git
from reconciler.wire import NodeOrders

_HEADER = f"gangops state cache 3 {__version__} {sys.hexversion:x}\n".encode()
_DIGEST_SIZE = 32
_MANY = 1_000
"""Records of jobs from which on two processes read a state."""


def known_generation(git: Git, commit: str, file: Path | None) -> Generation:
    """The generation a state commit holds. Raises StoreError (PathNotFound, BadRecord)."""
    code = _code_digest()
    if file is not None and (found := _kept(file, commit, code)) is not None:
        return found
    generation = _read(git, commit)
    if file is not None:
        _keep(file, generation, code)
    return generation


def _read(git: Git, commit: str) -> Generation:
    """The generation from its files; of a large one, records of jobs in a copy of this process, and the rest here."""
    files = state_files(git, commit)
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
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], Generation):
        return None
    return replace(found[0], orders=_Orders(found[1]))


class _Orders(Mapping[NodeName, NodeOrders]):
    """The orders of all nodes, made when somebody looks at one: few do."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._orders: Mapping[NodeName, NodeOrders] | None = None

    def _all(self) -> Mapping[NodeName, NodeOrders]:
        if self._orders is None:
            self._orders = cast("Mapping[NodeName, NodeOrders]", again(self._content))
        return self._orders

    def __getitem__(self, node: NodeName) -> NodeOrders:
        return self._all()[node]

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == other

    def __hash__(self) -> int:
        raise TypeError("orders are compared, never hashed")


def _keep(file: Path, generation: Generation, code: bytes) -> None:
    """Best effort."""
    parts = (replace(generation, orders={}), kept(dict(generation.orders)))
    body = generation.commit.encode() + kept(parts)
    fresh = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        fresh.write_bytes(_HEADER + code + hashlib.sha256(body).digest() + body)
        fresh.replace(file)


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
