"""What a verb wants changed: files by path, a title, and the words for when there is nothing to do. A value, no more."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_ODD = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`files`: new content by path from the top of the repository, None removes it; empty: `unchanged` says why.

    `name` is what the branch is named after, `remarks` are told beside the diff. `job` is the job to follow until it
    runs, for changes that start one.
    """

    verb: str
    name: str
    title: str
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    body: str = ""
    remarks: tuple[str, ...] = ()
    unchanged: str = ""
    job: str = ""

    @property
    def message(self) -> str:
        """Of the commit: what changes for whom, and why if that was said."""
        return f"{self.title}\n\n{self.body.strip()}\n" if self.body.strip() else f"{self.title}\n"

    def branch(self, base: str) -> str:
        """`gangops/suspend-llama7b-sft-1a2b3c4`: the same for the same change of the same commit, and for no other."""
        digest = hashlib.sha256(base.encode())
        for path, content in sorted(self.files.items()):
            digest.update(f"\n{path} {'-' if content is None else hashlib.sha256(content).hexdigest()}".encode())
        name = _ODD.sub("-", self.name.lower()).strip("-")[:40].strip("-") or "change"
        return f"gangops/{self.verb}-{name}-{digest.hexdigest()[:7]}"


def unchanged(verb: str, name: str, why: str) -> Change:
    """Nothing to do, and why."""
    return Change(verb=verb, name=name, title="", unchanged=why)
