"""What jobs came to and what policies found in them, kept over the end of a process, so that the next one reads what changed.

A cache beside that of parsed documents: it may be lost or damaged at any time. Everything in it stands under all that it
was made from, the code included; it is read only from a folder that nobody else can write.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from functools import cache
from pathlib import Path

import reconciler
from reconciler import __version__
from reconciler.documents.cache import ParseCache
from reconciler.documents.kept import again, kept
from reconciler.documents.loader import bulk
from reconciler.policy.verdicts import Memory
from reconciler.store.whole import write_whole

_HEADER = f"gangops verdict cache 2 {__version__} {sys.hexversion:x}\n".encode()
_DIGEST_SIZE = 32
_MADE_BY = ("documents", "model", "policy", "topology", "planner")
"""Packages whose code what is kept depends on."""


def recall_verdicts(file: Path, parsed: ParseCache, memory: Memory) -> None:
    """Take over what an earlier process kept; nothing when there is nothing, or not by this code."""
    try:
        seen = (file.stat(), file.parent.stat())
        if any(one.st_uid != os.getuid() or one.st_mode & 0o022 for one in seen):
            return
        content = file.read_bytes()
    except OSError:
        return
    head = _HEADER + _code()
    body = content[len(head) + _DIGEST_SIZE :]
    if not content.startswith(head) or content[len(head) :][:_DIGEST_SIZE] != hashlib.sha256(body).digest():
        return
    with bulk():
        found = again(body)
    if isinstance(found, tuple) and len(found) == 3:
        parsed.recall(*found[0])
        memory.stood_on, memory.recalled = found[1], found[2]


def keep_verdicts(file: Path, parsed: ParseCache, memory: Memory, stood_on: object) -> None:
    """Best effort. `stood_on`: the policies and queues whose findings are kept."""
    body = kept((parsed.known(), stood_on, memory.known(stood_on)))
    with contextlib.suppress(OSError):
        write_whole(file, _HEADER + _code() + hashlib.sha256(body).digest() + body)


@cache
def _code() -> bytes:
    """Changes with every file of the code: a rule that was corrected must not be overruled by what it found before."""
    found = hashlib.sha256()
    root = Path(reconciler.__file__).parent
    for package in _MADE_BY:
        for folder, folders, names in os.walk(root / package):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    seen = Path(folder, name).stat()
                    found.update(f"{folder}/{name} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    return found.digest()
