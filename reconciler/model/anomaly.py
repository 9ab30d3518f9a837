"""What can be wrong with a running cluster, in a closed list, and what is looked at beside the record to find out.

Each code has one cause and one command that mends it, so that `doctor`, the metrics and the page for operators say
the same. Finding them is left to `runtime.anomalies`; what is live here is never committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.model.units import MINUTE, SECOND, Bytes, Instant, JobKey, Nanoseconds, NodeName


class AnomalyCode(StrEnum):
    """What is wrong. The order is the order of telling: the reconciler, then nodes, then gangs, then the cluster."""

    RECONCILER_SILENT = "ReconcilerSilent"
    RECONCILER_STALLED = "ReconcilerStalled"
    STARTS_BLOCKED = "StartsBlocked"
    WRITERS_FIGHT = "WritersFight"
    AUTHORITY_EXPIRES = "AuthorityExpires"
    SIGNER_EXPIRES = "SignerExpires"
    NODE_LOST = "NodeLost"
    NODE_UNHEALTHY = "NodeUnhealthy"
    NODE_REFUSES = "NodeRefuses"
    NODE_FAILS_GANGS = "NodeFailsGangs"
    CLOCK_SKEWED = "ClockSkewed"
    DISK_FULL = "DiskFull"
    CERTIFICATE_EXPIRES = "CertificateExpires"
    GPU_FOREIGN = "GpuForeign"
    GANG_NOT_STARTING = "GangNotStarting"
    GANG_NOT_STOPPING = "GangNotStopping"
    BINDING_DIFFERS = "BindingDiffers"
    RING_LEAVES_NVLINK = "RingLeavesNvlink"
    RING_OVER_SOCKETS = "RingOverSockets"
    FRAGMENTED = "Fragmented"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """Why a code happens, and what mends it: templates over the subject of the anomaly, `{on}`."""

    cause: str
    mend: str


MEANINGS: Final[Mapping[AnomalyCode, Meaning]] = {
    AnomalyCode.RECONCILER_SILENT: Meaning(
        cause="the reconciler is down, or its status address is another one",
        mend="systemctl restart gangops-reconciler",
    ),
    AnomalyCode.RECONCILER_STALLED: Meaning(
        cause="it cannot decide or publish; nothing new starts, and what runs goes on",
        mend="journalctl -u gangops-reconciler -n 50",
    ),
    AnomalyCode.STARTS_BLOCKED: Meaning(
        cause="a merged file that defines the cluster is invalid or not approved; until it is, it counts as it was and no job starts",
        mend="gangops validate --rev origin/main    # not approved: gangops status says who may",
    ),
    AnomalyCode.WRITERS_FIGHT: Meaning(
        cause="two reconcilers are active on one state branch; no decision of a loser is acted on, but both slow down",
        mend="systemctl stop gangops-reconciler    # on the one that is to stand by",
    ),
    AnomalyCode.AUTHORITY_EXPIRES: Meaning(
        cause="a certificate that every node trusts is about to end; after that no agent can call in",
        mend="systemctl restart gangops-reconciler    # a new server certificate; a CA: see Rotate keys",
    ),
    AnomalyCode.SIGNER_EXPIRES: Meaning(
        cause="the key that signs decisions has a last day in allowed_signers; after it agents refuse every order",
        mend="ssh-keygen -q -t ed25519 -N '' -f next.key    # then: see Rotate keys",
    ),
    AnomalyCode.NODE_LOST: Meaning(
        cause="its agent does not call in: the node, its network or the agent is down",
        mend="ssh {on} systemctl restart gangops-agent    # dead for good: gangops drain {on} --reason dead",
    ),
    AnomalyCode.NODE_UNHEALTHY: Meaning(
        cause="a hook of the site failed there; it takes no new work until the hook succeeds",
        mend="ssh {on} journalctl -u gangops-agent -n 50",
    ),
    AnomalyCode.NODE_REFUSES: Meaning(
        cause="its agent does not accept our orders, so nothing new starts or ends there",
        mend="ssh {on} journalctl -u gangops-agent -n 50",
    ),
    AnomalyCode.NODE_FAILS_GANGS: Meaning(
        cause="several gangs failed to start or were lost there: the node is at fault, not the jobs",
        mend="gangops drain {on} --reason 'fails gangs'",
    ),
    AnomalyCode.CLOCK_SKEWED: Meaning(
        cause="its clock differs from the reconciler's: time limits, markers and certificates are judged wrongly",
        mend="ssh {on} chronyc makestep",
    ),
    AnomalyCode.DISK_FULL: Meaning(
        cause="what is written there (journal, exit statuses, logs, the clone) will be lost or refused",
        mend="ssh {on} df -h",
    ),
    AnomalyCode.CERTIFICATE_EXPIRES: Meaning(
        cause="the agent should have renewed it by itself long ago, and could not",
        mend="gangops ca token ca {on}    # then on the node: agent enroll --token TOKEN",
    ),
    AnomalyCode.GPU_FOREIGN: Meaning(
        cause="a process that nobody placed uses it; such a GPU is given to nobody",
        mend="ssh {on} nvidia-smi --query-compute-apps=pid,name --format=csv",
    ),
    AnomalyCode.GANG_NOT_STARTING: Meaning(
        cause="not all of its nodes are ready to start it; it is tried elsewhere when gangStartTimeout is over",
        mend="gangops explain job {on}",
    ),
    AnomalyCode.GANG_NOT_STOPPING: Meaning(
        cause="processes of it outlived their kill, mostly in a driver or a hung file system; its GPUs stay taken",
        mend="gangops describe {on} --topology    # then reboot the node that still has ranks",
    ),
    AnomalyCode.BINDING_DIFFERS: Meaning(
        cause="the job or its launcher bound itself anew (numactl, taskset, OMP_PROC_BIND, MPI), away from its GPU",
        mend="gangops describe {on} --topology    # then take the binding out of its command",
    ),
    AnomalyCode.RING_LEAVES_NVLINK: Meaning(
        cause="NCCL found no NVLink between neighbours of a ring: links down, P2P off, or GPUs of two islands",
        mend="ssh {on} nvidia-smi nvlink --status",
    ),
    AnomalyCode.RING_OVER_SOCKETS: Meaning(
        cause="NCCL found no RDMA device it may use, and goes over TCP",
        mend="ssh {on} ibv_devinfo    # and look for NCCL_IB_DISABLE, NCCL_IB_HCA in the job",
    ),
    AnomalyCode.FRAGMENTED: Meaning(
        cause="idle GPUs lie in broken domains: a gang that needs a whole one has to wait for it",
        mend="gangops plan    # shows the moves that make a domain free",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One thing that is wrong: on which job, node or part, and what was seen, with numbers. `grave`: work suffers or
    will soon; else it is worth a look."""

    code: AnomalyCode
    on: str
    evidence: str
    grave: bool = True

    @property
    def cause(self) -> str:
        """Why this happens."""
        return MEANINGS[self.code].cause

    @property
    def mend(self) -> str:
        """The command that mends it, or finds the culprit."""
        return MEANINGS[self.code].mend.format(on=self.on)


# --- what is looked at beside the record ---

SKEW_TOLD: Final = Nanoseconds(2 * SECOND)
"""A report takes some time to arrive: less than this says nothing about a clock."""
SKEW_GRAVE: Final = Nanoseconds(1 * MINUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system by a path on it: what is left of how much, in bytes."""

    path: str
    free: Bytes
    size: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Misbound:
    """A process that is not bound as was ordered. `what` is cpus or memory; both sides as lists of numbers."""

    job: JobKey
    rank: int
    pid: int
    what: str
    ordered: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVitals:
    """What a node says of itself with each report and no decision reads.

    `skew` is its clock less ours when the report came, in signed ns, `certificate_ends` the last instant of its certificate.
    """

    node: NodeName
    skew: int = 0
    disks: tuple[Disk, ...] = ()
    certificate_ends: Instant | None = None
    misbound: tuple[Misbound, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Something that ends: a certificate or a key, by what an operator calls it. `spare`: this long before, it is due."""

    name: str
    ends: Instant
    spare: Nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """One commit of the state branch: by whom, and when."""

    writer: str
    at: Instant
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Two neighbours in a ring: a GPU of one node, and the next one's node. `via` as NCCL or nvidia-smi call the way."""

    node: str
    gpu: str
    peer_node: str
    peer: str
    via: str

    @property
    def is_inside(self) -> bool:
        """Both are on one node."""
        return self.node == self.peer_node
