"""What changed along a chain of commits? Streams of ids and changed paths, too long to hold or to wait for.

What `runner` does for short answers this does for long ones: the first line is there while git still walks. What the
files at those paths say is left to the audit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from reconciler.errors import StoreError
from reconciler.store.branches import before_branch, named_before
from reconciler.store.failures import failure_of, redact
from reconciler.store.history import commit_meta
from reconciler.store.names import checked_object_id
from reconciler.store.objects import find_commit, resolve
from reconciler.store.runner import NETWORK_SECONDS, Git, git_program

ABSENT = "0" * 40
_EXPECTED = frozenset({"100644", "000000"})
_GRAPH_SECONDS = 12 * NETWORK_SECONDS
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)")
_SHORT = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


@dataclass(frozen=True, slots=True)
class Link:
    """One commit of a first-parent chain; `parent` is "" where the chain begins in this clone."""

    id: str
    parent: str
    merged: str = ""
    """The second parent: in the state branch the desired commit."""
    carried: bool = False
    """The first commit of a branch that goes on from `parent`, the last one of the branch before."""


def first_parents(git: Git, tip: str, *, after: str = "") -> list[Link]:
    """A first-parent chain, oldest first; only what is newer than `after` when that is given."""
    narrowed = [f"^{checked_object_id(after)}"] if after else []
    told = git.run(
        "rev-list", "--first-parent", "--parents", checked_object_id(tip), *narrowed, seconds=NETWORK_SECONDS
    )
    rows = [line.split() for line in told.stdout.decode("ascii").splitlines()]
    rows.reverse()
    return [Link(row[0], row[1] if len(row) > 1 else "", row[2] if len(row) > 2 else "") for row in rows]


def record_chain(git: Git, tip: str, *, after: str = "") -> list[Link]:
    """The chain of a record over all of its branches that are in this clone, oldest first.

    Only what is newer than `after` when that is given.
    """
    links = first_parents(git, tip, after=after)
    while links and not links[0].parent:
        first = commit_meta(git, links[0].id)
        named = named_before(first)
        if not named or find_commit(git, named) is None:
            break
        links[0] = Link(first.id, named, dict(first.trailers).get("Desired-Commit", ""), carried=True)
        if named == after:
            break
        links = [*first_parents(git, named, after=after), *links]
    return links


def commits_touching(git: Git, tip: str, path: str, *, since: int | None = None) -> Iterator[str]:
    """Ids of the commits of a first-parent chain that changed a path, newest first, as git finds them.

    In a record that goes on in several branches, those of all of them; the first commit of a later branch brings every
    path along, whether it changed or not. `since` is in whole seconds. A commit-graph with changed-path filters (`gangops gc`) makes this several times
    faster; nothing else is needed.
    """
    narrowed = [f"--since={since}"] if since is not None else []
    at = resolve(git, tip)
    while at:
        for line in streamed(git, "rev-list", "--first-parent", *narrowed, at, "--", path):
            yield line.decode("ascii")
        at = before_branch(git, at)


def changed_paths(git: Git, links: Iterable[Link], paths: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """For each link, in order: its commit, and the blobs that differ from its first parent by path (ABSENT: removed).

    Without `paths` everything is looked at. What is no plain file stands as `MODE ID` instead of an id. Links that
    change nothing are left out.
    """
    asked = "".join(f"{link.id} {link.parent}".rstrip() + "\n" for link in links).encode("ascii")
    if not asked:
        return
    commit, found = "", {}
    for line in streamed(
        git, "diff-tree", "--stdin", "--root", "-r", "--no-renames", "--raw", "--no-abbrev", "--", *paths, stdin=asked
    ):
        if line.startswith(b":"):
            facts, _, path = line.partition(b"\t")
            _, mode, _, oid, _ = facts.decode("ascii").split(" ")
            found[unquoted(path).decode("utf-8", "backslashreplace")] = oid if mode in _EXPECTED else f"{mode} {oid}"
            continue
        if found:
            yield commit, found
        commit, found = line.decode("ascii"), {}
    if found:
        yield commit, found


def unquoted(path: bytes) -> bytes:
    """A path as git prints it in a line, without the quotes and escapes it has where it is not plain ASCII."""
    return _ESCAPED.sub(_byte_meant, path[1:-1]) if path.startswith(b'"') else path


def _byte_meant(escaped: re.Match[bytes]) -> bytes:
    said = escaped[1]
    return bytes([int(said, 8)]) if len(said) == 3 else _SHORT.get(said, said)


def objects_named(git: Git, names: Iterable[str]) -> list[bytes | None]:
    """The blobs that names such as `COMMIT:PATH` stand for, in order; None where there is none."""
    wanted = list(names)
    if not wanted:
        return []
    if any("\n" in name for name in wanted):
        raise StoreError("a path with a line feed cannot be asked for")
    asked = "".join(f"{name}\n" for name in wanted).encode("utf-8", "surrogateescape")
    stream = git.run("cat-file", "--batch", "--buffer", stdin=asked).stdout
    found: list[bytes | None] = []
    start = 0
    for _ in wanted:
        end = stream.find(b"\n", start)
        row = stream[start:end].rsplit(b" ", 2)
        if len(row) != 3 or not row[2].isdigit():  # "NAME missing"
            found.append(None)
            start = end + 1
            continue
        start = end + 1 + int(row[2])
        found.append(stream[end + 1 : start] if row[1] == b"blob" else None)
        start += 1
    return found


def write_commit_graph(git: Git) -> None:
    """A commit-graph of everything reachable with changed-path filters: one path's history no longer reads trees.

    Raises StoreError, also where the clone is read-only.
    """
    git.run("commit-graph", "write", "--reachable", "--changed-paths", "--no-progress", seconds=_GRAPH_SECONDS)


def pack(git: Git) -> None:
    """Everything in one pack, with what is unreachable for over two weeks dropped."""
    git.run("gc", "--quiet", "--prune=2.weeks.ago", seconds=_GRAPH_SECONDS)


@lru_cache(maxsize=64)
def _top(git: Git) -> Path:
    """The top of a person's clone: paths after `--` are read from where git stands, and ours begin at the top."""
    return git.folder / git.run("rev-parse", "--show-cdup").stdout.decode("utf-8", "surrogateescape").strip()


def streamed(git: Git, *arguments: str, stdin: bytes = b"") -> Iterator[bytes]:
    """The lines a git command prints, while it runs; it is ended when nobody wants more of them.

    Raises the error of `failures.failure_of` at the end when it did not succeed.
    """
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as complaints:
        asked.write(stdin)
        asked.seek(0)
        where = ("--git-dir", str(git.folder)) if git.bare else ("-C", str(_top(git)))
        child = subprocess.Popen(
            [git_program(), *where, *arguments], env=dict(git.environment()), stdin=asked, stdout=subprocess.PIPE,
            stderr=complaints, start_new_session=True, bufsize=1 << 20,
        )  # fmt: skip
        assert child.stdout is not None
        _widen(child.stdout)
        try:
            for line in child.stdout:
                yield line.rstrip(b"\n")
            if child.wait() != 0:
                complaints.seek(0)
                raise failure_of(redact(complaints.read().decode("utf-8", "replace"), ()))
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            child.stdout.close()


def _widen(pipe: IO[bytes]) -> None:
    """Room for a megabyte where the system has it to give: git walks on while what it found is looked into."""
    if resize := getattr(fcntl, "F_SETPIPE_SZ", None):  # Linux alone
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, resize, 1 << 20)
