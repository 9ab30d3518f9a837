"""Who may sign a generation? The signers named in the desired state its *parent* holds, so that keys rotate.

A commit cannot vouch for itself: a key added by the commit it signs counts from the next one on. Until the record
names signers of its own, those the auditor brings along (`--signers`) count. The principal is the committer's address.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from reconciler.documents.loader import STATE_LIMITS, load
from reconciler.errors import StoreError
from reconciler.runtime.audit.findings import Judged, Verdict
from reconciler.store.history import parse_commit
from reconciler.store.objects import blobs, file_at, raw_commits
from reconciler.store.runner import Git
from reconciler.store.signatures import signed_by
from reconciler.store.trees import tree_entries

_CLUSTER = "desired/cluster-state/cluster.yaml"
_TRUST = "desired/cluster-state/trust"
_LISTS = ("trust/allowed_signers", "trust/state.allowed_signers")
_REVOKED = re.compile(
    r"trust/(?:state\.)?revoked(?:_signers|_keys)?|trust/revocations/[^/]+|trust/(?:state\.)?revocations"
)
_ADDRESS = re.compile(r".*<([^<>]+)>")


@dataclass(frozen=True, slots=True)
class Trust:
    """Allowed signers and revoked keys as bytes; `named` when the record itself names them."""

    allowed: bytes
    revoked: bytes
    named: bool


class Signers:
    """Looks signers up by generation and checks signatures with them. A context manager: it keeps files for ssh-keygen."""

    def __init__(self, git: Git, pinned: bytes = b"") -> None:
        """`pinned` is the auditor's own allowed_signers: for the first commit, and while the record names none."""
        self._git = git
        self._pinned = Trust(pinned, b"", named=False)
        self._folder = tempfile.TemporaryDirectory(prefix="gangops-signers-")
        self._lists: dict[str, tuple[str, str]] = {}
        self._by_lists: dict[tuple[str, str], Trust] = {}
        self._files: dict[bytes, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()

    def of_first(self) -> Trust:
        """Who may sign a commit without a parent."""
        return self._pinned

    def look_ahead(self, parents: Iterable[str]) -> None:
        """Learn for many commits at once which lists they hold, so that `of_child` need not ask for each."""
        asked = list(dict.fromkeys(parents))
        names = [f"{parent}:{path}" for parent in asked for path in (_TRUST, _CLUSTER)]
        if not names:
            return
        told = self._git.run(
            "cat-file", "--batch-check", "--buffer", stdin="".join(f"{n}\n" for n in names).encode()
        ).stdout
        rows = [line.split(" ") for line in told.decode("utf-8", "replace").splitlines()]
        ids = [row[0] if len(row) == 3 else "" for row in rows]
        self._lists = {parent: (ids[2 * i], ids[2 * i + 1]) for i, parent in enumerate(asked)}

    def of_child(self, parent: str) -> Trust:
        """Who may sign the commit after this one."""
        if parent not in self._lists:
            self.look_ahead((parent,))
        key = self._lists[parent]
        if not key[0]:
            return self._pinned
        found = self._by_lists.get(key)
        if found is None:
            found = self._by_lists[key] = self._read(parent)
        return found

    def check(self, raw: bytes, committer: str, trust: Trust) -> tuple[str, str]:
        """Principal and key fingerprint of a good signature.

        Raises StoreError: SignatureMissing, SignatureInvalid, SignerUnknown, SignerExpired, SignerRevoked, or
        WrongPrincipal when the key belongs to somebody else than the committer.
        """
        match = _ADDRESS.fullmatch(committer)
        good = signed_by(
            raw,
            match[1] if match else committer,
            self._file(trust.allowed),
            self._file(trust.revoked) if trust.revoked else None,
        )
        return good.principal, good.fingerprint

    def _read(self, commit: str) -> Trust:
        entries = {e.path.removeprefix("desired/cluster-state/"): e for e in tree_entries(self._git, commit, _TRUST)}
        said = self._said(commit)
        lists = [path for path in ((said,) if said else ()) + _LISTS if path in entries]
        revoked = sorted(path for path in entries if _REVOKED.fullmatch(path))
        contents = blobs(self._git, [entries[path].oid for path in (*lists[:1], *revoked)])
        if not lists:
            return self._pinned
        return Trust(
            contents[entries[lists[0]].oid], b"\n".join(contents[entries[path].oid] for path in revoked), named=True
        )

    def _said(self, commit: str) -> str:
        """`spec.trust.stateSigners` of the cluster's configuration, "" where it is not said."""
        content = file_at(self._git, commit, _CLUSTER)
        documents = load(content, _CLUSTER, STATE_LIMITS).documents if content is not None else ()
        at: object = documents[0].value if documents else None
        for key in ("spec", "trust", "stateSigners"):
            at = at.get(key) if isinstance(at, dict) else None
        return at if isinstance(at, str) else ""

    def _file(self, content: bytes) -> Path:
        found = self._files.get(content)
        if found is None:
            found = self._files[content] = Path(self._folder.name, f"list-{len(self._files)}")
            found.write_bytes(content)
        return found


def missing(trust: Trust) -> StoreError | None:
    """Why nothing can be judged with this list, or None."""
    if trust.allowed.strip():
        return None
    return StoreError(
        "the record names no signers here and none were given",
        code="NoSigners",
        remedy="name them with --signers FILE (ssh allowed_signers), got from the cluster's operators by another way",
    )


def revoked_since(git: Git, verdict: Verdict, tip: str) -> list[str]:
    """Which keys that signed generations are revoked in what the newest one answers to: their thief may have used them."""
    newest: dict[str, Judged] = {}
    count: dict[str, int] = {}
    for one in verdict.judged:
        if one.fingerprint:
            newest[one.fingerprint] = one
            count[one.fingerprint] = count.get(one.fingerprint, 0) + 1
    notices = []
    with Signers(git) as signers:
        trust = signers.of_child(tip)
        for fingerprint, one in newest.items() if trust.revoked else ():
            raw = raw_commits(git, (one.commit,))[one.commit]
            try:
                signers.check(raw, parse_commit(one.commit, raw).committer, trust)
            except StoreError as err:
                if err.code == "SignerRevoked":
                    notices.append(
                        f"{count[fingerprint]} generations up to #{one.generation} are signed by {fingerprint}, which is "
                        "revoked by now: compare them with a copy from before (--contains)"
                    )
    return notices
