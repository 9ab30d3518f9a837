"""How does a decision become a commit? Tree, grafted desired state, trailers, dates and signature; no work tree.

The commit is a pure function of what is given (with an ed25519 key even its signature): built again it has the
same id. Nothing but object files is written here; making it known to others is left to `publish`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from reconciler.errors import BrokenInvariant, StoreError
from reconciler.store.failpoints import reach
from reconciler.store.history import trailers_of
from reconciler.store.names import checked_object_id, checked_path, is_object_id
from reconciler.store.objects import subtree
from reconciler.store.runner import Git
from reconciler.store.signatures import Signer

DESIRED = "desired"
SCRATCH = "refs/gangops/scratch"
_SECOND = 1_000_000_000
_NO_COMMIT = "0" * 40
_IDENTITY = re.compile(r"[^\x00-\x1f<>]+ <[^\x00-\x20<>]+>")
_KEY = re.compile(r"[A-Z][A-Za-z0-9]*(-[A-Z][A-Za-z0-9]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Subject, body and trailers of a state commit. Each trailer stands exactly once, wherever one looks."""

    subject: str
    body: str
    trailers: Mapping[str, str]

    def __post_init__(self) -> None:
        text = self.text()
        starts = tuple(f"{key.lower()}:" for key in self.trailers)
        body = [line.strip().lower() for line in (self.subject, *self.body.splitlines())]
        if not self.subject or "\n" in self.subject or any(line.startswith(starts) for line in body if starts):
            raise BrokenInvariant("subject or body of the state commit could be read as a trailer")
        if not all(_KEY.fullmatch(key) for key in self.trailers) or trailers_of(text) != tuple(self.trailers.items()):
            raise BrokenInvariant("trailers of the state commit cannot be read back")

    def text(self) -> str:
        """The whole message, ending in a line feed."""
        trailers = "\n".join(f"{key}: {value}" for key, value in self.trailers.items())
        return "\n\n".join(part for part in (self.subject.rstrip(), self.body.strip(), trailers) if part) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """In whose name state commits are made. `identity` reads `Name <address>`."""

    identity: str
    signer: Signer

    def __post_init__(self) -> None:
        if not _IDENTITY.fullmatch(self.identity):
            raise BrokenInvariant(f"not an identity: {self.identity[:80]!r}")


def build(
    git: Git,
    files: Mapping[str, bytes],
    *,
    parent: str | None,
    desired: str | None,
    message: Message,
    at: int,
    writer: Writer,
) -> str:
    """The id of a signed state commit whose tree is exactly `files` and the grafted desired tree.

    `at`: nanoseconds; both dates are its whole second. The first commit of a branch has no parent at all, so that
    the first-parent chain never leaves the record. Raises StoreError(LocalStorageFull), StoreError(SigningFailed).
    """
    return _commit(git, dict(files), True, parent, desired, message, at, writer)


def build_on(
    git: Git,
    changes: Mapping[str, bytes | None],
    *,
    parent: str,
    desired: str,
    message: Message,
    at: int,
    writer: Writer,
) -> str:
    """Like `build`, but the tree is that of `parent` with some files changed; None removes a file."""
    return _commit(git, changes, False, parent, desired, message, at, writer)


def tree_with(git: Git, changes: Mapping[str, bytes | None], commit: str) -> str:
    """The id of the tree of `commit` with some files changed; None removes a file. No ref and no work tree is touched."""
    return _write_tree(git, changes, False, commit, None)


def _commit(
    git: Git,
    changes: Mapping[str, bytes | None],
    anew: bool,
    parent: str | None,
    desired: str | None,
    message: Message,
    at: int,
    writer: Writer,
) -> str:
    reach("before-commit")
    if any(path.split("/")[0] == DESIRED for path in changes):
        raise BrokenInvariant("desired/ is grafted, never written")
    graft = subtree(git, desired, "") if desired is not None else None
    if desired is not None and graft is None:
        raise StoreError(f"desired commit {desired[:12]} is not in the clone", remedy="Fetch, then decide again.")
    tree = _write_tree(git, changes, anew, parent, graft)
    parents = [checked_object_id(oid) for oid in (parent, desired) if oid is not None] if parent is not None else []
    person = f"{writer.identity} {at // _SECOND} +0000"
    head = [f"tree {tree}", *(f"parent {oid}" for oid in parents), f"author {person}", f"committer {person}"]
    unsigned = ("\n".join(head) + "\n\n" + message.text()).encode()
    signature = writer.signer.sign(unsigned).rstrip("\n").replace("\n", "\n ")
    signed = ("\n".join([*head, f"gpgsig {signature}"]) + "\n\n" + message.text()).encode()
    written = git.run("hash-object", "-t", "commit", "-w", "--stdin", stdin=signed)
    reach("after-commit")
    return checked_object_id(written.stdout.decode("ascii").strip())


def _write_tree(
    git: Git, changes: Mapping[str, bytes | None], anew: bool, parent: str | None, graft: str | None
) -> str:
    """The tree with the changes applied. fast-import makes it in one process, whatever the size of the rest."""
    scratch = f"{SCRATCH}/{os.getpid()}"
    lines = [f"commit {scratch}\ncommitter gangops <gangops> 0 +0000\ndata 0\n".encode()]
    lines += [f"from {checked_object_id(parent)}\n".encode()] if parent is not None else []
    lines += [b"deleteall\n"] if anew else []
    for path, content in sorted(changes.items()):
        if content is None:
            lines.append(f"D {checked_path(path)}\n".encode())
        else:
            lines += [f"M 100644 inline {checked_path(path)}\ndata {len(content)}\n".encode(), content, b"\n"]
    lines += [f"M 040000 {graft} {DESIRED}\n".encode()] if graft is not None else []
    # Ask for the root tree, then forget the scratch branch before it was ever written.
    lines += [b'ls ""\n\n', f"reset {scratch}\nfrom {_NO_COMMIT}\n\ndone\n".encode()]
    answer = git.run("fast-import", "--quiet", "--done", "--date-format=raw", stdin=b"".join(lines)).stdout
    tree = answer.decode("ascii").split()[2:3]
    if not tree or not is_object_id(tree[0]):
        raise StoreError("git fast-import did not name the tree it made")
    return tree[0]
