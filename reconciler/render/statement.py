"""A decision as an in-toto statement: values that say what was decided from what, their JSON, and its schema.

The statement is for tools that know nothing of GangOps: its subjects are the state commit and the orders it changed, by
digest; its predicate names every input by digest. Where the values come from and who signs them is for the runtime.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from reconciler.documents.values import Codec
from reconciler.model.units import Instant
from reconciler.render.plan.machine import schema_of

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:gangops:decision:v1"
PAYLOAD = "application/vnd.in-toto+json"
_codec = Codec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Digests of one thing: ids of git, and SHA-256 of a file's bytes. What does not apply is left out."""

    git_commit: str = ""
    git_tree: str = ""
    git_blob: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A thing by name and digest."""

    name: str
    digest: Digests


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDecided:
    """What the decision came to for one job whose record it changed; without a state, the record was dropped."""

    job: str
    state: str = ""
    attempt: int = 0
    gpus: int = 0
    nodes: tuple[str, ...] = ()
    reason: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPredicate:
    """One decision. `inputsDigest` is the SHA-256 that the commit's trailer names; `inputs` are what it binds, by digest:
    the desired tree, the generation before, and the observation."""

    cluster_id: str
    epoch: int
    generation: int
    decision_id: str
    decided_at: Instant
    decision_version: int
    package_version: str
    trigger: str
    inputs_digest: str
    inputs: tuple[Resource, ...]
    said: str
    jobs: tuple[JobDecided, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Subjects and predicate of one decision."""

    subject: tuple[Resource, ...]
    predicate: DecisionPredicate


def statement_bytes(statement: Statement) -> bytes:
    """The statement as JSON on one line: the same bytes for the same decision."""
    tree = {
        "_type": STATEMENT,
        "subject": [_codec.tree_of(one) for one in statement.subject],
        "predicateType": PREDICATE,
        "predicate": _codec.tree_of(statement.predicate),
    }
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()


def to_sign(payload: bytes) -> bytes:
    """What a signature of a statement covers: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def envelope_bytes(payload: bytes, key_id: str, signature: str) -> bytes:
    """The DSSE envelope on one line; `signature` is ssh-keygen's armoured text over `to_sign(payload)`."""
    tree = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [{"keyid": key_id, "sig": base64.b64encode(signature.encode("ascii")).decode("ascii")}],
    }
    return json.dumps(tree, separators=(",", ":")).encode()


def statement_schema() -> Mapping[str, bytes]:
    """`schemas/decision-predicate.schema.json`: the predicate of an exported decision."""
    told = f"The predicate {PREDICATE} of `gangops audit export`. A field with its default is left out."
    return {"decision-predicate.schema.json": schema_of(DecisionPredicate, "DecisionPredicate", told)}
