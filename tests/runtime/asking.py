"""Requests as a verb would push them, and as somebody would who may not: commits made by plain git plumbing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reconciler.documents.request_file import Wish, wish_bytes
from reconciler.model.units import HOUR, Instant, JobKey
from reconciler.store.signatures import Signer, make_key
from tests.runtime.lab import CLUSTER, Lab
from tests.runtime.test_policies import user
from tests.store.world import git

QUEUES = """\
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {admins: {github: ["@acme/platform"]}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: nlp}
spec: {parent: root, members: {github: ["@acme/nlp"]}, admins: {users: [lea@acme.org]}}
"""
TREE = "cluster-state/queues/tree.yaml"
TEAMS = {"kim": ("@acme/nlp",), "lea": (), "pat": ("@acme/platform",), "eve": ()}


class People:
    """Kim is a member of nlp, lea its admin, pat a platform owner, eve nothing; each with a key of their own."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.keys = {name: make_key(lab.folder / "keys" / name, name) for name in TEAMS}

    @property
    def files(self) -> dict[str, str]:
        """Their User documents, and the queues they belong to."""
        users = {
            f"cluster-state/users/{name}.yaml": user(name, *teams, key=self.keys[name].public_key())
            for name, teams in TEAMS.items()
        }
        return {TREE: QUEUES, **users}

    def wish(self, ask: str = "cancel", job: str = "nlp/a", *, hours: int = 2, **more: object) -> Wish:
        """What is asked for; of no job when `nodes` or `queue` is given."""
        about = {} if ask in ("cordon", "drain", "freeze") else {"job": JobKey(job)}
        expires = Instant(self.lab.clock.now() + hours * HOUR)
        fields = {"ask": ask, "cluster": CLUSTER, "expires": expires, "reason": "loss is NaN", **about, **more}
        return Wish(**fields)  # type: ignore[arg-type]  # by name, as a test says it

    def push(self, name: str, wish: Wish, by: str = "kim", *, key: Signer | None = None) -> str:
        """A signed request on its ref; the commit."""
        return self.plant(name, {"request.yaml": wish_bytes(name, wish)}, key or self.keys[by])

    def plant(
        self, name: str, files: Mapping[str, bytes], key: Signer | None, *, parent: str = "", of: str = ""
    ) -> str:
        """Any commit on the ref of a request. `of`: a commit whose signature it steals."""
        folder = self.lab.remote.path
        rows = []
        for path, content in sorted(files.items()):
            oid = git(folder, "hash-object", "-w", "--stdin", stdin=content).decode().strip()
            rows.append(f"100644 blob {oid}\t{path}\n")
        tree = git(folder, "mktree", stdin="".join(rows).encode()).decode().strip()
        person = "somebody <somebody@acme.org> 1767225600 +0000"
        head = [f"tree {tree}", *([f"parent {parent}"] if parent else []), f"author {person}", f"committer {person}"]
        body = "\n".join(head) + "\n\nAsk\n"
        if of:
            stolen = git(folder, "cat-file", "commit", of).decode()
            signature = stolen[stolen.index("gpgsig ") + 7 : stolen.index("\n\n")]
            body = "\n".join([*head, f"gpgsig {signature}"]) + "\n\nAsk\n"
        elif key is not None:
            signature = key.sign(body.encode()).rstrip("\n").replace("\n", "\n ")
            body = "\n".join([*head, f"gpgsig {signature}"]) + "\n\nAsk\n"
        made = git(folder, "hash-object", "-t", "commit", "-w", "--stdin", stdin=body.encode()).decode().strip()
        git(folder, "update-ref", f"refs/heads/request/{name}", made)
        return made

    def refs(self) -> list[str]:
        """Requests that are still at the remote."""
        told = git(self.lab.remote.path, "for-each-ref", "--format=%(refname:lstrip=3)", "refs/heads/request/")
        return told.decode().split()


def stranger(folder: Path) -> Signer:
    """A key that nobody's User document has."""
    return make_key(folder / "keys" / "stranger", "kim")
