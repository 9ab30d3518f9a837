"""What somebody with write access could do to a record: commits made anew with one thing changed, and all on top of it.

Everything that an insider with the signing key could put right again is put right, so that a test finds what is left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reconciler.store.history import CommitMeta
from reconciler.store.signatures import Signer
from tests.runtime.lab import Lab
from tests.store.world import STATE, git

Files = dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Change:
    """How one commit is made anew; what is not given stays as it was."""

    files: Callable[[Files], None] | None = None
    message: Callable[[str], str] | None = None
    date: int | None = None
    second_parent: str = ""
    signer: Signer | None = None
    signed: bool = True
    payload: Callable[[bytes], bytes] | None = None
    """What is signed."""
    raw: Callable[[bytes], bytes] | None = None
    """What is signed already."""
    tree: Callable[[str], str] | None = None
    committer: str = ""


@dataclass
class Rewriter:
    """Makes commits of a lab's record anew, signed by the record's own key unless told otherwise."""

    lab: Lab
    made: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.lab.remote.path

    def chain(self) -> list[CommitMeta]:
        """Oldest first."""
        return list(reversed(self.lab.log()))

    def rewrite(self, position: int, change: Change, *, order: list[int] | None = None) -> None:
        """The branch from `position` on made anew; `order` are the positions to take after it instead of all."""
        chain = self.chain()
        parent = chain[position - 1].id if position else ""
        for at in order if order is not None else range(position, len(chain)):
            parent = self.commit(chain[at], parent, change if at == position else Change())
        git(self.folder, "update-ref", STATE, parent)

    def onto(self, foreign: str, position: int) -> None:
        """Our commits from `position` on, on top of another branch."""
        parent = foreign
        for meta in self.chain()[position:]:
            parent = self.commit(meta, parent, Change())
        git(self.folder, "update-ref", STATE, parent)

    def commit(self, meta: CommitMeta, parent: str, change: Change) -> str:
        """One commit with another parent and a change."""
        tree = self._tree(meta, change.files) if change.files else meta.tree
        tree = change.tree(tree) if change.tree else tree
        message = change.message(meta.message) if change.message else meta.message
        seconds = change.date if change.date is not None else meta.committed_at // 10**9
        second = change.second_parent or (meta.parents[1] if len(meta.parents) > 1 else "")
        person = f"{change.committer or meta.committer} {seconds} +0000"
        head = [
            f"tree {tree}",
            *(f"parent {oid}" for oid in (parent, second) if oid),
            f"author {person}",
            f"committer {person}",
        ]
        payload = ("\n".join(head) + "\n\n" + message).encode()
        payload = change.payload(payload) if change.payload else payload
        if change.signed:
            signature = (change.signer or self.lab.writer.signer).sign(payload).rstrip("\n").replace("\n", "\n ")
            before, gap, words = payload.partition(b"\n\n")
            payload = before + f"\ngpgsig {signature}".encode() + gap + words
        payload = change.raw(payload) if change.raw else payload
        made = git(self.folder, "hash-object", "-t", "commit", "-w", "--literally", "--stdin", stdin=payload)
        return made.decode().strip()

    def _tree(self, meta: CommitMeta, edit: Callable[[Files], None]) -> str:
        files = self.files(meta.id)
        edit(files)
        stream = [b"commit refs/heads/planted\ncommitter T <t@t> 1000 +0000\ndata 0\ndeleteall\n"]
        for path, content in files.items():
            stream.append(f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n")
        git(self.folder, "fast-import", "--quiet", "--force", "--date-format=raw", stdin=b"".join(stream))
        tree = git(self.folder, "rev-parse", "refs/heads/planted^{tree}").decode().strip()
        git(self.folder, "update-ref", "-d", "refs/heads/planted")
        return tree

    def files(self, commit: str) -> Files:
        listed = git(self.folder, "ls-tree", "-r", "-z", "--name-only", commit).decode().split("\0")[:-1]
        return {path: git(self.folder, "show", f"{commit}:{path}") for path in listed}


def replacing(path: str, old: bytes, new: bytes) -> Callable[[Files], None]:
    """An edit of one file."""

    def edit(files: Files) -> None:
        changed = files[path].replace(old, new)
        assert changed != files[path], files[path].decode()
        files[path] = changed

    return edit


def adding(more: Mapping[str, bytes]) -> Callable[[Files], None]:
    """More files in the tree."""
    return lambda files: files.update(more)


def in_message(pattern: str, new: str) -> Callable[[str], str]:
    """An edit of the message."""

    def edit(message: str) -> str:
        changed = re.sub(pattern, new, message, flags=re.MULTILINE)
        assert changed != message, message
        return changed

    return edit
