"""The last generation a person's verbs read, kept in a folder of their own, so that the next verb need not read it anew.

A cache in the sense that it may be lost, damaged or of another version at any time, and then is nothing. It is read
only from a folder that nobody else can write: unlike a document, it is trusted.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

from reconciler import __version__
from reconciler.runtime.generation import Generation, read_generation
from reconciler.store.runner import Git

_HEADER = f"gangops state cache 1 {__version__} {sys.hexversion:x}\n".encode()
_DIGEST_SIZE = 32


def known_generation(git: Git, commit: str, file: Path | None) -> Generation:
    """The generation a state commit holds. Raises StoreError (PathNotFound, BadRecord)."""
    code = _code_digest()
    if file is not None and (found := _kept(file, commit, code)) is not None:
        return found
    generation = read_generation(git, commit)
    if file is not None:
        _keep(file, generation, code)
    return generation


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
    with _no_collection():
        found = pickle.loads(body[len(commit) :])  # noqa: S301  our own, from a folder nobody else can write
    return found if isinstance(found, Generation) else None


def _keep(file: Path, generation: Generation, code: bytes) -> None:
    """Best effort."""
    body = generation.commit.encode() + pickle.dumps(generation, protocol=5)
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


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing that is being made here is garbage, and looking for it costs more than the reading."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
