"""What somebody asked for at once, signed and for a while: it may stop, hold or close something, never start or raise.

A request lies over what is desired until it is over; the lasting change goes through a pull request like any other.
Who may ask for what is judged once, when it comes, by `runtime.requests`; decisions read the verdict from the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.model.units import DAY, CommitId, Instant, JobKey, Nanoseconds, NodeName, QueueName, task_key

_SHOWN: Final = 3
"""Nodes that are named one by one."""
LONGEST: Final = DAY
"""A request ends by itself within a day of when it was first seen."""


class Ask(StrEnum):
    """All that can be asked for. Every one of them only reduces: a cluster with it in force starts less than without."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    CORDON = "cordon"
    DRAIN = "drain"
    FREEZE = "freeze"

    @property
    def done(self) -> str:
        """What is then the case, in a sentence about a job."""
        return _DONE[self]


_DONE = {Ask.CANCEL: "cancelled", Ask.SUSPEND: "suspended", Ask.CORDON: "cordoned", Ask.DRAIN: "drained", Ask.FREEZE: "frozen"}  # fmt: skip


class Standing(StrEnum):
    """Where a request is. Landed: what is desired says the same by now, so that the files alone count again."""

    IN_FORCE = "InForce"
    LANDED = "Landed"
    EXPIRED = "Expired"
    REFUSED = "Refused"


class Refusal(StrEnum):
    """Why a request was not let in. Closed."""

    NOT_A_REQUEST = "NotARequest"  # no commit of one readable file, or of another shape
    NOT_SIGNED = "NotSigned"
    FORGED = "Forged"  # signed, by no key that a User has, or by a revoked one, or changed afterwards
    OTHER_CLUSTER = "OtherCluster"
    NOT_REDUCING = "NotReducing"
    EXPIRED = "Expired"
    TOO_LONG = "TooLong"
    UNKNOWN_TARGET = "UnknownTarget"
    NO_AUTHORITY = "NoAuthority"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as judged. `job`, `nodes` or `queue` is what it is about ("" and (): a freeze of all of the cluster).

    `tasks` says which of an array are meant, as `3,7-9`; "": all of them.

    `by` names the User whose key signed it, "" for nobody's. `content` is its one file, `signed` the commit object
    around it: with them the signature can be checked again from the record alone. `ended` is when it was refused, or
    was over.
    """

    id: str
    commit: CommitId
    ask: Ask | None
    standing: Standing
    seen: Instant
    job: JobKey = JobKey("")
    tasks: str = ""
    nodes: tuple[NodeName, ...] = ()
    queue: QueueName = QueueName("")
    reason: str = ""
    expires: Instant = Instant(0)
    by: str = ""
    email: str = ""
    refusal: Refusal | None = None
    told: str = ""
    ended: Instant = Instant(0)
    content: str = ""
    signed: str = ""

    def in_force(self, now: Instant) -> bool:
        """It was let in, and is not over."""
        return self.standing is Standing.IN_FORCE and now < self.expires

    @property
    def keys(self) -> tuple[JobKey, ...]:
        """The job it is about, or those tasks of it that are meant; () when it is about no job."""
        if self.tasks:
            return keys_of_tasks(self.job, self.tasks)
        return (self.job,) if self.job else ()

    @property
    def target(self) -> str:
        """What it is about, as people say it."""
        if self.job:
            return f"{self.job}.{self.tasks}" if self.tasks else self.job
        more = f" and {len(self.nodes) - _SHOWN} more" if len(self.nodes) > _SHOWN else ""
        return ", ".join(self.nodes[:_SHOWN]) + more or (f"queue {self.queue}" if self.queue else "the cluster")

    @property
    def asked(self) -> str:
        """`cancel nlp/a`."""
        return f"{self.ask or 'a request'} {self.target}" if self.ask is not None else "something else"


def keys_of_tasks(array: JobKey, tasks: str) -> tuple[JobKey, ...]:
    """The tasks of an array that a list such as `3,7-9` names, whether or not the array has them."""
    spans = (part.partition("-") for part in tasks.split(","))
    return tuple(task_key(array, index) for low, _, high in spans for index in range(int(low), int(high or low) + 1))


def granted_for(seen: Instant, expires: Instant, slack: Nanoseconds) -> bool:
    """Whether a request may last so long; `slack` for clocks that differ."""
    return expires <= seen + LONGEST + slack
