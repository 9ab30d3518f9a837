"""What Slurm says, as values: one node, one job, one partition, the same for every version of Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reconciler.model.units import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlots:
    """The GPUs of a node as Slurm has them. `kind` is their type, "" when it has none or each slot has its own.

    `slots`: every GPU has a type of its own (`gpu:g0:1,gpu:g1:1`), so that one can be asked for by its index; the
    names of these types by index.
    """

    count: int
    kind: str = ""
    slots: tuple[str, ...] = ()

    @property
    def all(self) -> int:
        """Bit mask of every index."""
        return (1 << self.count) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node. `states` are upper-case words, the state and its flags together. Memory in MiB, boot time in seconds.

    `cores_of_gpus` is Slurm's `S:` hint: not the sockets of each GPU, only those that have some.
    """

    name: NodeName
    address: str
    states: frozenset[str]
    reason: str = ""
    boot_time: int = 0
    gpus: GpuSlots = field(default_factory=lambda: GpuSlots(count=0))
    cpus: int = 0
    cpus_used: int = 0
    memory: int = 0
    sockets: int = 1
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job, or one component of a heterogeneous job. Times are seconds since 1970, 0 when unknown.

    `gpus` are masks by node while it holds some, `counts` how many it holds where no index was told. `limit` is
    minutes, None for no limit. `het` is the number of the whole heterogeneous job, 0 for a plain one.
    """

    id: int
    name: str
    state: str
    comment: str = ""
    completing: bool = False
    user: str = ""
    account: str = ""
    partition: str = ""
    reason: str = ""
    nodes: tuple[NodeName, ...] = ()
    gpus: Mapping[NodeName, int] = field(default_factory=dict)
    counts: Mapping[NodeName, int] = field(default_factory=dict)
    exit_code: int | None = None
    signal: int = 0
    started: int = 0
    submitted: int = 0
    ended: int = 0
    limit: int | None = None
    restarts: int = 0
    het: int = 0
    whole_nodes: bool = False
    # What a job that waits has asked for.
    node_count: int = 0
    tasks: int = 0
    per_node: str = ""
    per_job: str = ""
    required: tuple[NodeName, ...] = ()
    dependency: str = ""
    priority: int = 0
    qos: str = ""

    @property
    def waits(self) -> bool:
        """It has not started, and may."""
        return self.state in _WAITING and not self.completing

    @property
    def holds(self) -> bool:
        """It has its nodes: it runs, is suspended in place, or is still being cleared away."""
        return self.completing or self.state in _HOLDING

    @property
    def over(self) -> bool:
        """It ended, and nothing of it is left anywhere."""
        return not self.waits and not self.holds


_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_HOLDING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition: is it the default, is it up, and the most minutes a job may ask for (None: no limit)."""

    name: str
    default: bool = False
    up: bool = True
    max_minutes: int | None = None
    tier: int = 1
    nodes: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One look at the whole of Slurm."""

    nodes: Mapping[NodeName, SlurmNode]
    jobs: tuple[SlurmJob, ...]
