"""Two computations at once, where a machine has two processors: one here, the other in a copy of this process.

The copy computes and decides nothing: what it answers is what this process would have computed itself, which it does when
there is no copy, or the copy failed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from reconciler.documents.kept import again, kept

_There = TypeVar("_There")
_Here = TypeVar("_Here")


def both(there: Callable[[], _There], here: Callable[[], _Here], *, worth: bool = True) -> tuple[_There, _Here]:
    """The results of both. What `there` answers has to be small: it is copied. Errors are raised as without a copy."""
    copy = _begin(there) if worth and _able() else None
    if copy is None:
        return there(), here()
    pid, pipe = copy
    try:
        result = here()
        answer = _answer(pipe)
    finally:
        os.close(pipe)
        _, status = os.waitpid(pid, 0)
    if status != 0 or not answer:
        return there(), result
    return cast("_There", again(answer)), result


def _able() -> bool:
    """A copy has one thread: locks that others hold in this moment would stay locked in it for ever."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


def _begin(there: Callable[[], object]) -> tuple[int, int] | None:
    """Start the copy: its process id, and where its answer can be read. None when there is no room for one."""
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            out.write(kept(there()))
        status = 0
    finally:
        os._exit(status)  # nothing of what this process was about to do is done twice


def _answer(pipe: int) -> bytes:
    parts = []
    while part := os.read(pipe, 1 << 20):
        parts.append(part)
    return b"".join(parts)
