"""The messages between a node agent and the reconciler, and the orders an agent is handed.

One call exists: the agent posts a `Report` and the answer is an `Answer`, held back until there is something to
say (long poll). Orders are the bytes of the node's file in the signed state tree, with the commit and the tree
objects that prove it; the channel carries no other order. Shared with the agent: standard library only,
Python 3.10. Decoding never trusts: a field that is missing or of another type raises `BadMessage`.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

from reconciler.errors import GangOpsError

_Message = TypeVar("_Message")
FORMAT = "1.0"
SYNC_PATH = "/v1/sync"
AUTHORITY_PATH, ENROLL_PATH, RENEW_PATH = "/v1/authority", "/v1/enroll", "/v1/renew"
CHALLENGE_PATH, VISITS_PATH = "/v1/challenge", "/v1/visits"
MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of JSON either side reads before it gives up on a message."""
MAX_MISBOUND = 64
"""Rows of a list in a report's vitals that are read; more would say the same again."""


class BadMessage(GangOpsError):
    """What the other side sent is not one of our messages."""

    code = "BadMessage"


@dataclass(frozen=True)
class RankOrder:
    """One rank on this node. `cpus` in Linux list syntax, "" for no binding; `gpu` is the index, `uuid` may be "".

    `nic` is the rank's own, of its rail; `near` are all that are as near to its GPU and up. With "" and several near
    ones they tie: none of them is meant more than another, and `rail` is -1.
    """

    rank: int
    localRank: int
    gpu: int
    uuid: str
    numa: int
    cpus: str
    nic: str
    rail: int
    near: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RunOrder:
    """What to launch. `command` or `script` or `session`; `user` is "self" or a name on the node.

    `idleSeconds` is after how long without use a session ends, 0 for never: the node tells of disuse well before.
    """

    runtime: str
    launch: str
    command: list[str]
    script: str
    session: bool
    image: str
    workingDir: str
    env: dict[str, str]
    mounts: list[dict[str, Any]]
    secretFiles: list[str]
    user: str
    group: str
    heartbeatFile: str
    idleSeconds: int = 0


@dataclass(frozen=True)
class CheckpointOrder:
    """Where checkpoints are and how one is asked for. `marker` is a path; `to` is leader or all."""

    dir: str
    marker: str
    signal: str
    to: str
    graceSeconds: int


@dataclass(frozen=True)
class AttemptOrder:
    """One attempt of a gang on this node: all that its agent needs. Only `phase`, `deadline` and `holders` ever change.

    `deadline` is an instant in ns at which the agent ends the work alone, None for never. `killSeconds` is the time
    between SIGTERM and the kill. `fence` is confirm or lease. `port` is the rendezvous at the leader's address.
    `topoFile` is the path of a NCCL topology file on this node, "" for none.
    `taskIndex` and `parameters` are those of a task of an array; of any other job None and nothing.
    `holders` are those who may look into the job, as `USER ALGORITHM KEY`.
    """

    job: str
    attempt: int
    phase: str
    digest: str
    worldSize: int
    nodeRank: int
    nodeCount: int
    leaderAddress: str
    port: int
    ports: list[int]
    resume: bool
    deadline: int | None
    killSeconds: int
    fence: str
    leaseSeconds: int
    cpusPerGpu: int
    memoryBytes: int
    run: RunOrder
    checkpoint: CheckpointOrder | None
    ranks: list[RankOrder] = field(default_factory=list)
    topoFile: str = ""
    taskIndex: int | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    holders: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NodeOrders:
    """The content of `allocation/nodes/<rack>/<node>.json`: every attempt this node takes part in."""

    node: str
    attempts: list[AttemptOrder] = field(default_factory=list)
    formatVersion: str = FORMAT


@dataclass(frozen=True)
class Proof:
    """An order and what proves it: the raw signed commit, the raw tree objects from its root to the file, the file.

    `trees[0]` is the commit's tree; each next one is the entry of `path` in the one before.
    """

    commitId: str
    commit: bytes
    trees: list[bytes]
    path: str
    file: bytes


@dataclass(frozen=True)
class AttemptStatus:
    """What the node says of one attempt; `state` is a value of model.observed.AttemptState.

    `checkpoint` is the marker's mtime in ns or None; `progress` the heartbeat file's last line, decoded; `idle` since
    when nobody uses a session here, None while somebody does.
    """

    job: str
    attempt: int
    state: str
    at: int
    generation: int
    commit: str
    exitCode: int | None = None
    reason: str = ""
    checkpoint: int | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    idle: int | None = None


@dataclass(frozen=True)
class Refusal:
    """An order this agent did not accept, and why: its receipt."""

    commitId: str
    code: str
    detail: str
    at: int


@dataclass(frozen=True)
class Report:
    """All that a node says in one sync. `epoch`, `generation`, `commit` are its journal's: the last order accepted.

    `fileDigest` is the sha256 of the orders file it holds, so that an unchanged one is not sent again.
    `sequence` rises by one a report within a `session` (one life of the agent process). `hardware` is empty when
    unchanged since the session's last report that carried it. `waitSeconds` is how long the answer may be held.
    `vitals` is for people alone: clock (ns since 1970, at sending), disks [{path, free, size}] in bytes,
    certificateEnds (s since 1970), misbound [{job, rank, pid, what, ordered, seen}].
    """

    node: str
    bootId: str
    session: str
    sequence: int
    address: str
    epoch: int
    generation: int
    commit: str
    fileDigest: str = ""
    unhealthy: str = ""
    hardware: dict[str, Any] = field(default_factory=dict)
    attempts: list[AttemptStatus] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    waitSeconds: int = 20
    vitals: dict[str, Any] = field(default_factory=dict)
    agentVersion: str = ""
    formatVersion: str = FORMAT


@dataclass(frozen=True)
class Visit:
    """Somebody wants to look into a job: the bytes of their `VisitRequest`, and their signature over them, armoured.

    The node meets them at `VISITS_PATH/id` of the server that says so, over a connection of its own.
    """

    id: str
    request: bytes
    signature: str


@dataclass(frozen=True)
class VisitRequest:
    """What a person signs. `kind` is logs or shell; `challenge`, from the server, makes it good once, and soon.

    `attempt` 0 is the latest, `rank` -1 all of them. `follow` is of logs; `argv` (empty: a login shell), `terminal` (the
    value of TERM, "" without one), `rows` and `columns` are of shells.
    """

    kind: str
    cluster: str
    node: str
    job: str
    challenge: str
    attempt: int = 0
    rank: int = -1
    follow: bool = False
    argv: list[str] = field(default_factory=list)
    terminal: str = ""
    rows: int = 24
    columns: int = 80


VISIT_NAMESPACE = "gangops-visit"
"""What such a signature is for: one made for a commit is none, and the other way round."""


@dataclass(frozen=True)
class Answer:
    """What the reconciler says back: perhaps orders, always a renewed lease. `generation` is the one applied now."""

    generation: int
    leaseSeconds: int = 0
    proof: Proof | None = None
    visits: list[Visit] = field(default_factory=list)
    formatVersion: str = FORMAT


@dataclass(frozen=True)
class Application:
    """A node's wish for a certificate: its signing request in PEM, and the token it was given, "" to renew."""

    request: str
    token: str = ""


@dataclass(frozen=True)
class Identity:
    """A certificate in PEM ("" when only the CA was asked for), and the CA's own."""

    authority: str
    certificate: str = ""


def encode(message: Report | Answer | NodeOrders | Application | Identity | Visit | VisitRequest) -> bytes:
    """The message as JSON; bytes fields become base64 text."""
    return json.dumps(asdict(message), ensure_ascii=True, separators=(",", ":"), default=_text_of_bytes).encode()


def decode_report(content: bytes) -> Report:
    """Raises: BadMessage."""
    tree = _object(content)
    tree["attempts"] = [_build(AttemptStatus, a) for a in _items(tree, "attempts")]
    tree["refusals"] = [_build(Refusal, r) for r in _items(tree, "refusals")]
    return _build(Report, tree)


def decode_answer(content: bytes) -> Answer:
    """Raises: BadMessage."""
    tree = _object(content)
    if tree.get("proof") is not None:
        proof = _mapping(tree["proof"], "proof")
        proof["commit"] = _bytes_of_text(proof.get("commit"))
        proof["file"] = _bytes_of_text(proof.get("file"))
        proof["trees"] = [_bytes_of_text(t) for t in _items(proof, "trees")]
        tree["proof"] = _build(Proof, proof)
    tree["visits"] = [_visit(v) for v in _items(tree, "visits")]
    return _build(Answer, tree)


def decode_visit(content: bytes) -> Visit:
    """Raises: BadMessage."""
    return _visit(_object(content))


def decode_visit_request(content: bytes) -> VisitRequest:
    """Raises: BadMessage."""
    return _build(VisitRequest, _object(content))


def _visit(tree: Any) -> Visit:
    told = _mapping(tree, "a visit")
    return _build(Visit, {**told, "request": _bytes_of_text(told.get("request"))})


def decode_application(content: bytes) -> Application:
    """Raises: BadMessage."""
    return _build(Application, _object(content))


def decode_identity(content: bytes) -> Identity:
    """Raises: BadMessage."""
    return _build(Identity, _object(content))


def decode_orders(content: bytes) -> NodeOrders:
    """Raises: BadMessage."""
    tree = _object(content)
    tree["attempts"] = [attempt_order(a) for a in _items(tree, "attempts")]
    return _build(NodeOrders, tree)


def attempt_order(tree: Any) -> AttemptOrder:
    """One attempt's order from decoded JSON. Raises: BadMessage."""
    told = _mapping(tree, "an attempt")
    told["run"] = _build(RunOrder, told.get("run"))
    if told.get("checkpoint") is not None:
        told["checkpoint"] = _build(CheckpointOrder, told["checkpoint"])
    told["ranks"] = [_build(RankOrder, r) for r in _items(told, "ranks")]
    return _build(AttemptOrder, told)


def _object(content: bytes) -> dict[str, Any]:
    if len(content) > MAX_MESSAGE:
        raise BadMessage(f"message of {len(content)} bytes; at most {MAX_MESSAGE} are read")
    try:
        # Decoded here: json would let half a character pass, which nothing can write down again.
        text = content.decode("utf-8")
        tree = json.loads(text, parse_constant=_no_number)
        if "\\u" in text:
            json.dumps(tree, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as err:
        raise BadMessage("message is not JSON in UTF-8") from err
    return _mapping(tree, "message")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _mapping(tree: Any, what: str) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise BadMessage(f"{what} is not an object")
    return dict(tree)


def _items(tree: dict[str, Any], key: str) -> list[Any]:
    found = tree.get(key, [])
    if not isinstance(found, list):
        raise BadMessage(f"{key} is not a list")
    return found


_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "bytes": (bytes,),
    "int | None": (int, type(None)),
}
_MOST_BITS = 63  # an instant in ns fits for centuries; a larger number cannot be written down as one
_ITEMS = {"list[str]": str, "list[int]": int, "list[bytes]": bytes, "list[dict[str, Any]]": dict}


def _build(kind: type[_Message], tree: Any) -> _Message:
    """A message value from decoded JSON: unknown fields are ignored (a newer minor), types are checked."""
    annotations = _annotations(kind)  # type: ignore[arg-type]  # a class is hashable
    known = {name: value for name, value in _mapping(tree, kind.__name__).items() if name in annotations}
    for name, value in known.items():
        if not _fits(value, annotations[name]):
            raise BadMessage(f"{kind.__name__}.{name} is of the wrong type")
    try:
        return kind(**known)
    except TypeError as err:
        raise BadMessage(f"{kind.__name__}: {err}") from err


@lru_cache(maxsize=64)
def _annotations(kind: Any) -> dict[str, str]:
    return {f.name: str(f.type) for f in fields(kind)}


def _fits(value: Any, annotation: str) -> bool:
    """Whether decoded JSON can stand in a field; true is no number. Fields of our own kinds were built before."""
    if annotation in _PLAIN:
        wanted = _PLAIN[annotation]
        if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _MOST_BITS:
            return False
        return isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool))
    if annotation.startswith("list["):
        item = _ITEMS.get(annotation, object)
        return isinstance(value, list) and all(isinstance(i, item) and not isinstance(i, bool) for i in value)
    if annotation.startswith("dict["):
        texts = annotation == "dict[str, str]"
        return isinstance(value, dict) and not (texts and any(not isinstance(v, str) for v in value.values()))
    return True


def _text_of_bytes(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _bytes_of_text(value: object) -> bytes:
    if not isinstance(value, str):
        raise BadMessage("expected base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as err:
        raise BadMessage("not base64") from err
