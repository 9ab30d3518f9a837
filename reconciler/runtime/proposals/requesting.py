"""From a verb with `--now` to a signed request at the remote, and what the reconciler made of it.

The commit has one file and no parent, is signed with the person's SSH key whatever `commit.gpgSign` says, and ends by
itself. Whether somebody may ask is decided where it is acted on; here only what could never be let in is refused.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from reconciler.documents.record import REQUESTS, SUMMARY, read_observed, read_summary
from reconciler.documents.request_file import LONGEST_REASON, REQUEST_FILE, Wish, wish_bytes
from reconciler.documents.tasklist import parse_tasks, print_tasks
from reconciler.errors import NotFound, UsageError
from reconciler.model.request import LONGEST, Ask, Request
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName, QueueName
from reconciler.runtime.clone import Clone
from reconciler.runtime.proposals.desk import Desk
from reconciler.store.history import file_at
from reconciler.store.person import as_person, commit_alone, push_branch, signing_key

_ODD = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What is wanted at once: of a job, of nodes, or of a queue ("" and a freeze: the whole cluster), for a while.

    `tasks` are those of the array `job` that are meant, "" for all. `key` is a private or public key file; None: the
    one of the person's git settings.
    """

    ask: Ask
    span: Nanoseconds
    reason: str = ""
    key: Path | None = None
    job: str = ""
    tasks: str = ""
    nodes: tuple[str, ...] = ()
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that can be pushed: `name` is its branch below `request/`."""

    name: str
    wish: Wish
    content: bytes

    @property
    def branch(self) -> str:
        """Its branch at the remote."""
        return f"request/{self.name}"

    @property
    def title(self) -> str:
        """`cancel nlp/a`."""
        wish = self.wish
        job = f"{wish.job}.{wish.tasks}" if wish.tasks else wish.job
        about = job or ", ".join(wish.nodes) or (f"queue {wish.queue}" if wish.queue else "the cluster")
        return f"{wish.ask} {about}"


def prepare(desk: Desk, asking: Asking, now: Instant) -> Prepared:
    """The request somebody wants to make now, ending on a whole second.

    Raises: UsageError (TooLong, ReasonTooLong, and what names people type bring); NotFound (UnknownJob, UnknownNode,
    UnknownQueue, StateMissing).
    """
    if not 0 < asking.span <= LONGEST:
        raise UsageError("a request lasts up to 24h", code="TooLong", remedy="the lasting change goes by pull request")
    reason = " ".join(asking.reason.split())
    if len(reason) > LONGEST_REASON:
        raise UsageError(
            f"a reason has at most {LONGEST_REASON} characters; this has {len(reason)}", code="ReasonTooLong",
            remedy="name the ticket that has the rest: --reason 'XID 79, DC-881'",
        )  # fmt: skip
    wish = Wish(
        ask=asking.ask.value,
        cluster=_cluster(desk.clone),
        expires=Instant((now + asking.span) // SECOND * SECOND),
        job=desk.key_named(asking.job) if asking.job else JobKey(""),
        tasks=print_tasks(parse_tasks(asking.tasks)) if asking.tasks else "",
        nodes=tuple(NodeName(node) for node in desk.nodes(asking.nodes)) if asking.nodes else (),
        queue=QueueName(desk.document("Queue", asking.queue).name) if asking.queue else QueueName(""),
        reason=reason,
    )
    digest = hashlib.sha256(wish_bytes("", wish)).hexdigest()[:7]
    about = wish.job.partition("/")[2] or "-".join(wish.nodes[:2]) or wish.queue or "cluster"
    name = f"{asking.ask}-{_ODD.sub('-', about.lower()).strip('-')[:40].strip('-')}-{digest}"
    return Prepared(name=name, wish=wish, content=wish_bytes(name, wish))


def push_request(clone: Clone, prepared: Prepared, key: Path | None) -> str:
    """The signed commit of a request, pushed as its branch.

    Raises: UsageError (NoSigningKey, NoIdentity); StoreError (SigningFailed, NoPushRights, PushRejected); Unreachable.
    """
    git = as_person(clone.git)
    signs = signing_key(git, key)
    reason = prepared.wish.reason
    message = f"{prepared.title[0].upper()}{prepared.title[1:]}\n" + (f"\n{reason}\n" if reason else "")
    commit = commit_alone(git, REQUEST_FILE, prepared.content, message, signs)
    push_branch(git, commit, prepared.branch)
    return commit


def check_key(clone: Clone, key: Path | None) -> None:
    """Nothing when there is a key to sign with. Raises UsageError (NoSigningKey)."""
    signing_key(as_person(clone.git), key)


def answer_to(clone: Clone, name: str) -> Request | None:
    """What the newest generation here says of a request; None as long as it says nothing."""
    path = f"{REQUESTS}{name}.yaml"
    content = file_at(clone.git, clone.state_tip(), path)
    return read_observed({path: content}).requests[name] if content is not None else None


def _cluster(clone: Clone) -> str:
    content = file_at(clone.git, clone.state_tip(), SUMMARY)
    if content is None:
        raise NotFound("the record has no summary", code="StateMissing", remedy="gangops audit verify")
    return read_summary({SUMMARY: content}).cluster_id
