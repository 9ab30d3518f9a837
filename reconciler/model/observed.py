"""What nodes and jobs were seen to be: facts with instants, never ages, heartbeats or utilisation.

A report is a hint until the shell has turned it into one of these values and committed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from reconciler.model.request import Request
from reconciler.model.units import BitsPerSecond, Bytes, CommitId, Digest, GpuSeconds, Instant, JobKey, NodeName
from reconciler.model.xids import FATAL_XIDS, NOTHING_LEFT


class NodeCondition(StrEnum):
    """Ready takes work; Unreachable takes no new work; Lost is silent past `lostAfter`."""

    READY = "Ready"
    UNREACHABLE = "Unreachable"
    LOST = "Lost"


class AttemptState(StrEnum):
    """What one node says of one attempt of a job.

    Exited: every local process ended by itself. Gone: stopped by order, or never started, and no
    process is left. In both the GPUs were seen free. Refused: the node will not prepare it.
    """

    PREPARING = "Preparing"
    PREPARED = "Prepared"
    RUNNING = "Running"
    STOPPING = "Stopping"
    EXITED = "Exited"
    GONE = "Gone"
    REFUSED = "Refused"
    KILL_FAILED = "KillFailed"

    @property
    def released(self) -> bool:
        """No process of the attempt is left on the node."""
        return self in (AttemptState.EXITED, AttemptState.GONE, AttemptState.REFUSED)


ENDED_BY_NODE: Final = frozenset({"LeaseExpired", "NodeShutdown", "Rebooted"})
"""Reasons of a `Gone` that nobody ordered: the node itself ended the ranks, or they ended with it."""
DEADLINE_PASSED: Final = "DeadlinePassed"
"""The reason of a `Gone` when a node ended an attempt at its time limit, alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """A node's receipt for one attempt. `exit_code` is the first failing rank's, else 0; None while it runs."""

    job: JobKey
    attempt: int
    state: AttemptState
    at: Instant
    generation: int = 0
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One GPU as seen: healthy, and `foreign` names a process that is not ours, if one uses it.

    `nvlinks` counts the links that are up; `pcie_width` is what was trained, `pcie_most` what card and slot could
    do, both in lanes; `pcie_speed` and `pcie_fastest` the same in MT/s of a lane. `xids` are the faults its driver
    logged since the node started, `recovery` what the driver says must be done about it; `throttled` is why its
    hardware has slowed it down for a while; `rows_pending`: memory rows wait for a reset to be replaced. What a node
    did not say is -1 (links, NUMA node), 0, "" or absent, and is never drift.
    """

    index: int
    uuid: str
    healthy: bool = True
    foreign: str = ""
    reason: str = ""
    memory: Bytes = Bytes(0)
    nvlinks: int = -1
    pcie_width: int = 0
    pcie_most: int = 0
    numa: int = -1
    pcie_speed: int = 0
    pcie_fastest: int = 0
    xids: tuple[int, ...] = ()
    recovery: str = ""
    throttled: str = ""
    rows_pending: bool = False

    @property
    def fatal_xids(self) -> tuple[int, ...]:
        """Faults that keep it from being given out; none once its driver says that nothing is left to do."""
        return () if self.recovery == NOTHING_LEFT else tuple(xid for xid in self.xids if xid in FATAL_XIDS)

    @property
    def fault(self) -> str:
        """Why it must not be given out, in a few words; "" when it may be, as far as its own health goes."""
        if not self.healthy:
            return self.reason or "not healthy"
        if self.recovery not in ("", NOTHING_LEFT):
            return f"its driver asks for: {self.recovery}"
        return next((f"XID {xid}: {FATAL_XIDS[xid]}" for xid in self.fatal_xids), "")

    @property
    def is_usable(self) -> bool:
        """It is well, and nobody but us uses it."""
        if self.foreign or not self.healthy:
            return False
        return not (self.xids or self.recovery) or not self.fault  # most have neither, and this is asked often


@dataclass(frozen=True, slots=True, kw_only=True)
class NicReport:
    """One network port as seen. `speed` 0, `numa` -1, widths 0 and `switch` "" mean that the node did not say.

    Lanes and their speed are told as for GPUs. `switch` is the top-of-rack switch that announces itself at the other end of the cable.
    """

    name: str
    up: bool
    speed: BitsPerSecond = BitsPerSecond(0)
    pcie_width: int = 0
    pcie_most: int = 0
    numa: int = -1
    switch: str = ""
    pcie_speed: int = 0
    pcie_fastest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaReport:
    """One NUMA node as seen: its CPUs in Linux list syntax."""

    id: int
    cpus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObservation:
    """One node. `condition_since` is when the condition began; `address` is where its ranks can be met.

    `lease_expired`: lease and margin are over since its last answer. `confirmed_dead`: a person or a fence
    command says no process of it is left. Both only mean something while it is Lost.
    `unhealthy` is why it takes nothing new (what its health hook said, or a process that cannot be killed), "" when
    healthy. `clique` names the multi-node NVLink domain its GPUs joined. No `nics`, no `numa`: the node did not say,
    which is not the same as having none.
    `refused` is why it does not accept our orders, as `Code: sentence`, until it accepts one again.
    """

    node: NodeName
    boot_id: str
    address: str
    condition: NodeCondition
    condition_since: Instant
    gpu_type: str = ""
    gpus: tuple[GpuReport, ...] = ()
    attempts: tuple[AttemptReport, ...] = ()
    unhealthy: str = ""
    lease_expired: bool = False
    confirmed_dead: bool = False
    driver: str = ""
    clique: str = ""
    nics: tuple[NicReport, ...] = ()
    numa: tuple[NumaReport, ...] = ()
    refused: str = ""

    def attempt(self, job: JobKey, attempt: int) -> AttemptReport | None:
        """The receipt for exactly this attempt, if the node has given one."""
        return next((a for a in self.attempts if a.job == job and a.attempt == attempt), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObservation:
    """Progress that decisions read: the last checkpoint of the running attempt; since when nobody uses a session."""

    job: JobKey
    attempt: int
    checkpoint: Instant | None = None
    idle_since: Instant | None = None


class Proof(StrEnum):
    """What stands behind a statement about people: a signature that verifies, the word of the forge's merge commit,
    or nothing but the names in a commit."""

    SIGNATURE = "signature"
    FORGE = "forge"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody as policies see them: the name of their User document ("" for a stranger), how git and the forge call
    them, and the teams the tree says they are in."""

    user: str = ""
    email: str = ""
    login: str = ""
    teams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The preview a merge was made on: its digest, the state it stood on, who would pay, and how much work they lose."""

    digest: str
    generation: int
    state: CommitId
    victims: tuple[JobKey, ...] = ()
    lost: GpuSeconds = GpuSeconds(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who brought a job's file into the desired tree, as of the commit that last changed it.

    `file` is the blob id this speaks of: a later edit does not ride on an earlier approval. `approvers` are people
    other than the author. `proven` says what stands behind author, approvers and `preview`. `submitter` brought what
    runs, and stays when others edit what does not change that; `vouched` says what stands behind that name alone: a
    merge says nothing of who wrote what it merged.
    """

    job: JobKey
    digest: Digest
    file: str
    commit: CommitId
    author: Person
    pull_request: str = ""
    approvers: tuple[Person, ...] = ()
    proven: Proof = Proof.NONE
    preview: Shown | None = None
    submitter: Person | None = None
    vouched: Proof = Proof.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything seen, by name. A node that was never observed is absent and has no capacity."""

    nodes: Mapping[NodeName, NodeObservation] = field(default_factory=dict)
    jobs: Mapping[JobKey, JobObservation] = field(default_factory=dict)
    provenance: Mapping[JobKey, Provenance] = field(default_factory=dict)
    requests: Mapping[str, Request] = field(default_factory=dict)
