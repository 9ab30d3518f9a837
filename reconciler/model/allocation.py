"""What is decided: for each job its state and place, for the cluster its numbers. Committed, never guessed.

An `Allocation` is the whole of a generation. Nothing else remembers progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconciler.model.job import Fence
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.reasons import Reason
from reconciler.model.tombstones import Tombstones
from reconciler.model.units import (
    CommitId,
    Digest,
    GpuSeconds,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    Nanoseconds,
    NodeName,
    QueueName,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where one rank sits: node, GPU index, and the NUMA node, NIC and rail that go with that GPU."""

    rank: int
    node: NodeName
    local_rank: int
    gpu: int
    numa: int
    nic: str
    rail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A gang's place, by rank. `level` is the narrowest level that contains it, `domain` its domain there.

    `comm_time` is the cost model's time of one step and `comm_bound` the least any placement could have.
    """

    ranks: tuple[RankPlace, ...]
    level: LevelName
    domain: str
    comm_time: Nanoseconds = Nanoseconds(0)
    comm_bound: Nanoseconds = Nanoseconds(0)

    @property
    def masks(self) -> dict[NodeName, int]:
        """GPU bit mask by node, nodes in rank order."""
        found: dict[NodeName, int] = {}
        for place in self.ranks:
            found[place.node] = found.get(place.node, 0) | 1 << place.gpu
        return found

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        """Nodes in rank order, each once; the first one leads."""
        return tuple(dict.fromkeys(place.node for place in self.ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """GPUs fixed for a job while they are still being released (rule book §8). Made once, never moved."""

    placement: Placement
    made: Instant
    deadline: Instant
    waiting_for: tuple[JobKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """GPUs gathered for a starved job that has no reservation (rule book §7). Chosen once; nothing of it is held yet."""

    placement: Placement
    since: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoid:
    """A node this job is kept away from for a while, after it failed to start or was lost there."""

    node: NodeName
    until: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """GPUs of one node, as a bit mask, that a gang holds for its repair: no rank is on them, and nothing runs there."""

    node: NodeName
    mask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job in one generation. Numbers in `reason` are as of `since`.

    `since` is when state, placement, phase or reason code last changed; `submitted` when this incarnation was first
    seen. `attempt` counts starts, 0 before the first; `first_attempt` is the first of this incarnation, 0 before it.
    `started` is when all ranks of this attempt were seen running, `deadline` when a stopping gang must be gone.
    `lost_work` is the price this job has paid so far, `interruptions` the instants it was a victim or moved,
    `reclaimed` when it last gave borrowed GPUs back. `failed_starts` counts starts that failed in a row, back to 0
    once it runs. `fence` is the one this attempt was started with: its file may say another by now, but the shims on
    a silent node cannot have heard of it. `grace` likewise: how long this attempt may take to save itself, 0 when it
    is stopped without asking. `whole` is, while Repairing, the place it had before nodes of it were lost; `placement`
    is what is left of it, each rank with its old number. `spares` are held beside the placement, as long as it is.
    """

    job: JobKey
    queue: QueueName
    digest: Digest
    state: JobState
    since: Instant
    submitted: Instant
    reason: Reason
    attempt: int = 0
    first_attempt: int = 0
    phase: Phase | None = None
    cause: Cause | None = None
    outcome: Outcome | None = None
    placement: Placement | None = None
    promise: Promise | None = None
    started: Instant | None = None
    deadline: Instant | None = None
    retry_at: Instant | None = None
    ports: tuple[int, ...] = ()
    victims: tuple[JobKey, ...] = ()
    preemptor: JobKey | None = None
    lost_work: GpuSeconds = GpuSeconds(0)
    failures: int = 0
    failed_starts: int = 0
    node_losses: int = 0
    interruptions: tuple[Instant, ...] = ()
    reclaimed: Instant | None = None
    avoid: tuple[Avoid, ...] = ()
    fence: Fence = Fence.CONFIRM
    grace: Nanoseconds = Nanoseconds(0)
    whole: Placement | None = None
    hold: Hold | None = None
    spares: tuple[Spare, ...] = ()

    @property
    def resumes(self) -> bool:
        """This attempt continues an earlier one of the same incarnation."""
        return self.attempt > self.first_attempt > 0

    @property
    def gpus_held(self) -> int:
        """GPUs with a rank of it."""
        return len(self.placement.ranks) if self.placement and self.state.holds_gpus else 0

    @property
    def gpus_bound(self) -> int:
        """GPUs that nobody else can have because of it: those with a rank, and its spares."""
        return self.gpus_held + sum(one.mask.bit_count() for one in self.spares) if self.state.holds_gpus else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The cluster's numbers after a decision. Phi = 1 - phi_whole / idle over NVLink domains (1 - x/0 is 0).

    `stranded` are idle GPUs outside wholly free NVLink domains; `capacity` excludes what is down or cordoned.
    `idle_by_type` is only told where more than one GPU type is declared.
    """

    declared: int = 0
    capacity: int = 0
    held: int = 0
    promised: int = 0
    idle: int = 0
    stranded: int = 0
    phi_whole: int = 0
    jobs: tuple[tuple[str, int], ...] = ()
    idle_by_type: tuple[tuple[str, int], ...] = ()

    @property
    def phi_ppm(self) -> int:
        """Phi in millionths, rounded down."""
        return (self.idle - self.phi_whole) * 1_000_000 // self.idle if self.idle else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one queue used of one GPU type beyond its guarantee, decayed (rule book §4).

    `acc` is in milli-GPU-seconds as of `Allocation.usage_as_of`, `rate` in milli-GPUs since then.
    """

    queue: QueueName
    gpu_type: GpuType
    acc: int
    rate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLengths:
    """How many attempts of a queue ended in the first, second ... sixteenth of their time limit (rule book §11)."""

    queue: QueueName
    sixteenths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The whole of a generation. `jobs` in code point order of their keys, `usage` by queue and type.

    `moved` are the instants of moves within the last hour that were to make room for nobody in particular;
    `run_lengths`, by queue, serve forecasts and no decision.
    """

    generation: int
    epoch: int
    cluster_id: str
    decided_at: Instant
    desired_commit: CommitId
    jobs: Mapping[JobKey, JobRecord] = field(default_factory=dict)
    tombstones: Tombstones = field(default_factory=Tombstones)
    metrics: Metrics = field(default_factory=Metrics)
    usage: tuple[Usage, ...] = ()
    usage_as_of: Instant = Instant(0)
    moved: tuple[Instant, ...] = ()
    run_lengths: tuple[RunLengths, ...] = ()

    def holders(self) -> dict[NodeName, dict[JobKey, int]]:
        """GPU masks by node and job, of every job that holds GPUs."""
        found: dict[NodeName, dict[JobKey, int]] = {}
        for record in self.jobs.values():
            if record.placement is not None and record.state.holds_gpus:
                for node, mask in (*record.placement.masks.items(), *((s.node, s.mask) for s in record.spares)):
                    found.setdefault(node, {})[record.job] = mask
        return found


def empty_allocation(cluster_id: str, epoch: int, at: Instant, desired: CommitId) -> Allocation:
    """Generation 0: nothing is held, nothing is known."""
    return Allocation(generation=0, epoch=epoch, cluster_id=cluster_id, decided_at=at, desired_commit=desired)
