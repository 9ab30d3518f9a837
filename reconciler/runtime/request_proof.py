"""Who signed this request, and is it what the record says it is? From the commit object and its one file alone.

The reconciler asks when a request comes, the auditor again years later: the record keeps both, so nothing else is
needed but the people and keys of the tree that was desired then.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path

from reconciler.documents.layout import ROOT
from reconciler.documents.request_file import REQUEST_FILE, Wish, read_wish
from reconciler.errors import GangOpsError, StoreError
from reconciler.model.observed import Person
from reconciler.model.request import Ask, Refusal, Request
from reconciler.model.units import JobKey, NodeName, QueueName
from reconciler.policy.authority import person_of
from reconciler.runtime.provenance import signers_of
from reconciler.runtime.reading import ReadDesired
from reconciler.store.names import object_id
from reconciler.store.objects import blobs
from reconciler.store.runner import Git
from reconciler.store.signatures import verify

_REVOKED = re.compile(r"(?:state\.)?revoked(?:_signers|_keys)?|(?:state\.)?revocations(?:/[^/]+)?")
MOST_NODES = 4096
_MOST_NAME = 127
_TRUST = f"{ROOT}trust/"
_SIGNERS = f"{_TRUST}allowed_signers"


class Refused(Exception):
    """A request that is not let in: the code, and what is told of it."""

    def __init__(self, refusal: Refusal, told: str) -> None:
        super().__init__(told)
        self.refusal = refusal
        self.told = told


def signer_of_request(git: Git, raw: bytes, read: ReadDesired) -> Person:
    """The user whose key signed this commit object, by the keys and revocations of a desired tree.

    Raises Refused (NotSigned, Forged).
    """
    documents = read.documents
    assert documents is not None
    trust = _trust_files(git, read)
    with tempfile.TemporaryDirectory(prefix="gangops-request-") as folder:
        allowed, revoked = Path(folder, "allowed"), Path(folder, "revoked")
        allowed.write_bytes(signers_of(documents).encode() + trust.get(_SIGNERS, b""))
        gone = [content for path, content in sorted(trust.items()) if _REVOKED.fullmatch(path.removeprefix(_TRUST))]
        revoked.write_bytes(b"\n".join(gone))
        try:
            principal = verify(raw, allowed, revoked if gone else None).principal
        except StoreError as err:
            missing = err.code == "SignatureMissing"
            raise Refused(Refusal.NOT_SIGNED if missing else Refusal.FORGED, err.message) from err
    item = documents.named("User").get(principal)
    if item is None:
        person = person_of(documents, email=principal)
    else:
        spec = item.model.spec
        person = Person(user=item.name, email=spec.emails[0], login=spec.github or "", teams=tuple(spec.teams))
    if not person.user:
        raise Refused(Refusal.FORGED, f"the key of {principal} is no User's")
    return person


def proof_fails(git: Git, request: Request, read: ReadDesired) -> str:
    """Why a recorded request is not the one its signer made; "" when it is."""
    raw, content = request.signed.encode(), request.content.encode()
    if object_id("commit", raw) != request.commit:
        return "its commit is another one"
    if not raw.startswith(f"tree {one_file_tree(content)}\n".encode()):
        return "its file is not the one that was signed"
    try:
        name, wish = read_wish(content)
    except GangOpsError as err:
        return f"its file cannot be read: {err}"
    if name != request.id or replace(request, **said_by(wish)) != request:  # type: ignore[arg-type]  # fields by name
        return "its file asks for something else"
    try:
        person = signer_of_request(git, raw, read)
    except Refused as refused:
        return refused.told
    return "" if person.user == request.by else f"{person.user} signed it, not {request.by}"


def said_by(wish: Wish) -> dict[str, object]:
    """The fields of a request that its own file says; a name that is none of ours is cut."""
    ask = Ask(wish.ask) if wish.ask in list(Ask) else None
    nodes = tuple(NodeName(node[:_MOST_NAME]) for node in wish.nodes[:MOST_NODES])
    job, queue = JobKey(wish.job[:_MOST_NAME]), QueueName(wish.queue[:_MOST_NAME])
    return {
        "ask": ask, "job": job, "tasks": wish.tasks, "nodes": nodes, "queue": queue, "reason": wish.reason,
        "expires": wish.expires,
    }  # fmt: skip


def one_file_tree(content: bytes) -> str:
    """The id of a tree that holds a request's file and nothing else."""
    blob = bytes.fromhex(object_id("blob", content))
    return object_id("tree", f"100644 {REQUEST_FILE}\0".encode() + blob)


def _trust_files(git: Git, read: ReadDesired) -> dict[str, bytes]:
    """Who may sign, and which keys are revoked; a change of them that is withheld does not count."""
    listed = {path: oid for path, oid in read.read if path.startswith(_TRUST)}
    withheld = {one.path for one in read.withheld}
    contents = blobs(git, [oid for path, oid in listed.items() if path not in withheld])
    found = {path: contents[oid] for path, oid in listed.items() if path not in withheld}
    found.update({path: read.frozen[path] for path in withheld if path.startswith(_TRUST) and path in read.frozen})
    return found
