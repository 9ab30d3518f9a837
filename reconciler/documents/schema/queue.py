"""Queue: a share of the cluster and who may use it. PriorityClass: what is urgent, and how it is protected."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from reconciler.documents.schema.base import (
    GPU_TYPE_PATTERN,
    NOTHING,
    AbsolutePath,
    Account,
    Count,
    Document,
    Duration,
    GpuTypeName,
    Line,
    Listed,
    Name,
    Positive,
    Share,
    Strict,
    kind_of,
    refuse,
)

GpuCounts: TypeAlias = dict[GpuTypeName, Count]


def _lend(written: Any) -> bool | dict[str, int]:
    if type(written) is bool:
        return written
    if type(written) is not dict:
        refuse("WrongType", f"Expected true, false or GPUs by type, found {kind_of(written)}.")
    for gpu_type, count in written.items():
        if type(count) is not int or not 0 <= count <= 1_000_000:
            refuse("OutOfRange", f"Expected a number of GPUs of {gpu_type!r}, from 0 to 1000000.")
    return dict(written)


Lend: TypeAlias = Annotated[
    bool | dict[str, int],
    PlainValidator(_lend),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {
                    "type": "object",
                    "propertyNames": {"pattern": GPU_TYPE_PATTERN},
                    "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
                },
            ]
        }
    ),
]


class Members(Strict):
    """People, by forge team and by e-mail address."""

    github: Listed[Line] = ()
    """Users and teams as CODEOWNERS writes them: "@acme/nlp"."""
    users: Listed[Line] = ()
    """E-mail addresses."""


class RunAs(Strict):
    """The account that a queue's ranks run under."""

    user: Account
    """On every node, with uid 1000 or more. Never root. `self` only serves simulated clusters."""
    group: Account | None = None
    """Absent: the user's own."""


class PerUser(Strict):
    """What one person may hold at once, counted by who brought the jobs."""

    gpus: Positive | None = None
    """GPUs at most."""
    jobs: Positive | None = None
    """Jobs at most that hold GPUs or are promised some."""


class QueueLimits(Strict):
    """What one job, and one person, may ask for."""

    time_limit: Duration | None = None
    """The longest time limit of a job."""
    gpus_per_job: Positive | None = None
    """GPUs of one job at most."""
    pending_jobs: Count | None = None
    """Jobs waiting at once at most."""
    max_priority_class: Name | None = None
    """The highest class its jobs may name."""
    per_user: PerUser = PerUser.model_construct()
    """What one person may hold in it and in the queues inside it."""


class QueueSpec(Strict):
    """A place in the tree of quotas."""

    parent: Name | None = None
    """The queue around it; absent only at the root."""
    guaranteed: GpuCounts | None = None
    """GPUs by type that are its own: others borrow them only until it asks. Absent: what its children are guaranteed."""
    guaranteed_shape: Literal["gpu", "node"] = "gpu"
    """node: the guarantee is in whole nodes."""
    ceiling: GpuCounts = NOTHING
    """GPUs by type that it may hold at most, borrowed ones included. A type left out has no ceiling of its own."""
    lend: Lend = True
    """Whether others may use what it leaves idle: true, false, or at most so many GPUs by type."""
    weight: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Its share, against its siblings', of what nobody's guarantee uses."""
    members: Members = Members.model_construct()
    """Who may put jobs here."""
    admins: Members = Members.model_construct()
    """Who approves changes here; CODEOWNERS is written from it."""
    run_as: RunAs | Literal["submitter"] | None = None
    """The account of its ranks; submitter: that of who brought the job, by `unixUser` of their User. Absent: the parent's."""
    limits: QueueLimits = QueueLimits.model_construct()
    """What its jobs may ask for."""
    mount_roots: Listed[AbsolutePath] = ()
    """Folders below which its jobs may mount. Absent: the parent's."""
    secret_roots: Listed[AbsolutePath] = ()
    """Folders of the nodes below which its jobs' secretFiles lie. Absent: the parent's."""


class Queue(Document):
    """A share of the cluster and who may use it. Queues form a tree by `spec.parent`."""

    kind: Literal["Queue"]
    """The kind of document."""
    spec: QueueSpec
    """Its place, its numbers and its people."""


class PriorityClassSpec(Strict):
    """What a priority is worth."""

    value: Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
    """Higher goes first, inside a queue."""
    default: bool = False
    """True for the one class of jobs that name none."""
    preempts: Literal["lower", "never"] = "lower"
    """lower: its jobs may displace jobs of strictly lower value in their queue."""
    preemptible: bool = True
    """False: its jobs are never displaced, and may only use what their queue is guaranteed."""
    min_runtime: Duration | None = None
    """Its jobs are no victims before they ran this long. Absent: as the cluster says."""
    max_per_day: Count | None = None
    """Its jobs are interrupted at most so often in 24 hours. Absent: as the cluster says."""
    grace: Duration | None = None
    """The longest time its jobs get to stop."""
    max_gpus_per_user: Positive | None = None
    """GPUs at most that one person may hold in this class."""
    counts_towards_fair_share: Share = 1_000_000
    """What its use counts for, between 0 and 1."""
    description: Line = ""
    """For people who choose."""


class PriorityClass(Document):
    """What is urgent, and how it is protected."""

    kind: Literal["PriorityClass"]
    """The kind of document."""
    spec: PriorityClassSpec
    """Its worth and its protection."""
