"""Everything people asked for at one commit, valid and with defaults: one argument of `decide`.

`frozen` names jobs whose document is invalid now and which stand here in their last valid form;
`blocked` says why admissions are frozen, when a file that defines the cluster is invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconciler.model.inventory import Inventory
from reconciler.model.job import Job
from reconciler.model.queue import PriorityClass, QuotaTree, Scheduling
from reconciler.model.request import Request
from reconciler.model.units import (
    MINUTE,
    SECOND,
    ClassName,
    CommitId,
    Instant,
    JobKey,
    Nanoseconds,
    NodeName,
    QueueName,
    document_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A maintenance window of one node, or a reservation: then jobs of `members` may use it.

    `drain` is checkpoint, wait or kill. `by` and `message` are whose request made it and why, "" where a file did.
    """

    name: str
    node: NodeName
    begins: Instant
    ends: Instant
    drain: str
    members: tuple[QueueName, ...] = ()
    by: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRules:
    """How silence is judged (`ClusterConfig.spec.agents`). `mass_loss_ppm`: more of the nodes than this share,
    in millionths, silent at once is our own link, not theirs."""

    report_interval: Nanoseconds = Nanoseconds(5 * SECOND)
    unreachable_after: Nanoseconds = Nanoseconds(30 * SECOND)
    lost_after: Nanoseconds = Nanoseconds(5 * MINUTE)
    lease_margin: Nanoseconds = Nanoseconds(2 * SECOND)
    mass_loss_ppm: int = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRules:
    """How the Slurm engine submits (`ClusterConfig.spec.slurm`). `partition` and `account` "" are Slurm's defaults.

    `pin_gpus`: ask for the decided GPUs one by one, on nodes whose GRES have a type of its own for each slot.
    `folder` lies on the file system that nodes and reconciler share: logs and receipts.
    """

    pin_gpus: bool = True
    partition: str = ""
    account: str = ""
    folder: str = "/var/spool/gangops"
    poll_interval: Nanoseconds = Nanoseconds(2 * SECOND)
    timeout: Nanoseconds = Nanoseconds(10 * SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryRules:
    """How the record is kept (`ClusterConfig.spec.repository`). Shares are in millionths."""

    desired_branch: str = "main"
    state_branch: str = "allocations"
    poll_interval: Nanoseconds = Nanoseconds(2 * SECOND)
    cycle_interval: Nanoseconds = Nanoseconds(5 * SECOND)
    observed_coalesce: Nanoseconds = Nanoseconds(5 * MINUTE)
    mass_removal_ppm: int = 300_000
    rewrites_need_acknowledgement: bool = False
    require_signed_desired: bool = False
    authority_enforced: bool = True
    victims_must_match_preview: bool = False
    publish_interval: Nanoseconds = Nanoseconds(12 * SECOND)
    state_url: str = ""
    state_mirror: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyHold:
    """A policy keeps a job from starting: one that denies it, or, with `approvers`, one that waits for their word.

    `rule` is the reason code of the rule that failed, `message` what its author reads: one line.
    """

    policy: str
    rule: str
    message: str
    approvers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """`jobs` are the gangs, by key in code point order; of an array each task. `arrays` are the arrays themselves.

    `invalid` are the jobs that have no valid form at all. `policy` has those that policies hold back; one that runs
    already goes on. `asked` has those that a request in force is about: cancelled and suspended ones stop, of a frozen
    queue none starts. These, and `frozen`, name documents, of a task its array; `asked` also tasks meant alone. `accounts` has the unix users of
    people, by user. `keys` are the public keys of each User, `addresses` say whose an e-mail address is, `admins` are
    the Users among a queue's admins and those of the queues around it.
    """

    commit: CommitId
    cluster: str
    scheduling: Scheduling
    agents: AgentRules
    repository: RepositoryRules
    inventory: Inventory
    quotas: QuotaTree
    classes: Mapping[ClassName, PriorityClass]
    jobs: Mapping[JobKey, Job]
    windows: tuple[Window, ...] = ()
    frozen: frozenset[JobKey] = field(default_factory=frozenset)
    invalid: Mapping[JobKey, str] = field(default_factory=dict)
    blocked: str = ""
    policy: Mapping[JobKey, PolicyHold] = field(default_factory=dict)
    arrays: Mapping[JobKey, Job] = field(default_factory=dict)
    slurm: SlurmRules = SlurmRules()
    accounts: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[JobKey, Request] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    admins: Mapping[QueueName, tuple[str, ...]] = field(default_factory=dict)

    def job_of(self, document: JobKey) -> Job | None:
        """What a job's document says, of an array or not."""
        return self.jobs.get(document) or self.arrays.get(document)

    def limit_of(self, job: Job) -> Nanoseconds | None:
        """How long an attempt of it may run: its own time limit or the cluster's; None: it never ends by itself."""
        return job.time_limit if job.time_limit is not None else self.scheduling.default_time_limit

    def request_about(self, key: JobKey) -> Request | None:
        """The request in force about a job: about a task itself, else about its array."""
        return (self.asked.get(key) or self.asked.get(document_of(key))) if self.asked else None
