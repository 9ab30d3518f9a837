"""What a job asks for, with every default filled in.

`digest` tells incarnations apart: it covers the run-defining fields listed in `documents.convert`,
so that a change of priority, limits or labels keeps a running job and a change of what runs replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from reconciler.model.units import (
    Bytes,
    ClassName,
    Digest,
    Gpus,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    Nanoseconds,
    QueueName,
    job_key,
)


class OnPreempt(StrEnum):
    """What becomes of a victim: stopped through a checkpoint, stopped and queued again, or never a victim."""

    CHECKPOINT = "checkpoint"
    REQUEUE = "requeue"
    NEVER = "never"


class Spread(StrEnum):
    """On as few racks as possible, or the same number of nodes in each rack and spine group it uses."""

    PACKED = "packed"
    EVEN = "even"


class Fence(StrEnum):
    """When a lost node's ranks count as gone: confirmed by someone, or by the end of their lease."""

    CONFIRM = "confirm"
    LEASE = "lease"


class Launch(StrEnum):
    """One process for each GPU, or one for each node (torchrun)."""

    PER_GPU = "perGpu"
    PER_NODE = "perNode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of parallelism: its size, and what a step moves across it for the cost model."""

    name: str
    size: int
    bytes_per_step: Bytes = Bytes(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """A level for a group: `group` is a dimension's name, or `job` for the whole gang."""

    group: str
    level: LevelName


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of member of an unlike gang: `workers` members of `gpus_each` GPUs, each inside one node.

    `gpu_types` empty: those of the job.
    """

    name: str
    workers: int
    gpus_each: Gpus
    gpu_types: tuple[GpuType, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How work survives a stop. `marker` is the file whose mtime is the last checkpoint, beneath `directory`.

    `signal_to` is "leader" (rank 0) or "all".
    """

    directory: str
    every: Nanoseconds
    signal: str
    signal_to: str
    grace: Nanoseconds
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the node (`source`) as the job sees it (`target`)."""

    source: str
    target: str
    read_only: bool


SUBMITTER: Final = "@submitter"
"""In place of an account: that of who brought the job. No account is spelled so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What each launched process is. Exactly one of `command`, `script`, `session` is set.

    `idle_timeout`: a session that nobody used for so long ends.
    """

    runtime: str
    launch: Launch
    command: tuple[str, ...] = ()
    script: str = ""
    session: bool = False
    idle_timeout: Nanoseconds | None = None
    image: str = ""
    working_dir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    secret_files: tuple[str, ...] = ()
    ports: int = 0
    user: str = "self"
    group: str = ""
    heartbeat_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """How a broken gang comes back: `on_failure` attempts after a rank failed (-1 unlimited), with back-off."""

    on_failure: int
    backoff: Nanoseconds
    on_node_loss: int
    fence: Fence
    lease: Nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Another job, and what must have become of it: Started, Succeeded, Failed or Finished."""

    job: JobKey
    condition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """The gang may run smaller or larger: its dimension has any size from `least` to `most`.

    In a gang of unlike roles `dimension` is the name of the role whose workers vary.
    """

    dimension: str
    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """Tasks of one shape, each with its parameters by name. `max_parallel` None: all at once."""

    tasks: tuple[Mapping[str, str], ...]
    max_parallel: int | None
    stop_on_failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What makes a gang the task number `index`, from 0, of an array.

    At most `max_parallel` of the array's `size` tasks hold GPUs at once, None: all may. `stop_on_failure`: once a task
    failed for good, those that never started are not started. `cancelled`: people do not want this one any more.
    """

    array: JobKey
    index: int
    size: int
    parameters: Mapping[str, str] = field(default_factory=dict)
    max_parallel: int | None = None
    stop_on_failure: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job as desired. `gpus` is the whole gang; `dimensions` run fastest-varying first and multiply to it.

    `time_limit` None means it never ends by itself. `min_runtime` and `max_per_day` None mean: as the class says.
    `mixed_types` lets one gang use GPUs of several of its types at once; else it has one of them. With `array` it is
    what the document of an array says, and runs nothing itself: each of its tasks is a gang with a `task`.
    """

    queue: QueueName
    name: str
    digest: Digest
    gpus: Gpus
    gpu_types: tuple[GpuType, ...]
    dimensions: tuple[Dimension, ...]
    required: tuple[Locality, ...]
    preferred: tuple[Locality, ...]
    priority_class: ClassName
    run: Run
    restart: Restart
    on_preempt: OnPreempt
    roles: tuple[Role, ...] = ()
    rail_aligned: bool = True
    cpus_per_gpu: int = 0
    memory_per_gpu: Bytes = Bytes(0)
    nice: int = 0
    time_limit: Nanoseconds | None = None
    start_timeout: Nanoseconds | None = None
    checkpoint: Checkpoint | None = None
    min_runtime: Nanoseconds | None = None
    max_per_day: int | None = None
    after: tuple[Dependency, ...] = ()
    suspend: bool = False
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    start_before: Instant | None = None
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    elastic: Elastic | None = None
    array: Array | None = None
    task: Task | None = None
    spares: int = 0
    rerun: int = 0
    stall_timeout: Nanoseconds | None = None
    mixed_types: bool = False
    spread: Spread = Spread.PACKED

    @property
    def key(self) -> JobKey:
        return job_key(self.queue, self.name)

    @property
    def grace(self) -> Nanoseconds:
        """How long a stop may take before it is forced."""
        return self.checkpoint.grace if self.checkpoint else Nanoseconds(0)

    @property
    def group_gpus(self) -> int:
        """GPUs that one step of its elastic dimension is worth: what a resize adds or takes away whole."""
        if self.elastic is None:
            return self.gpus
        return next((gpus // size for _, size, gpus in self._varying() if size), 0)

    def resized(self, gpus: int) -> Job | None:
        """The same job with so many GPUs in its elastic dimension; itself at its own size; None when it may not."""
        if gpus == self.gpus:
            return self
        if self.elastic is None:
            return None
        for number, size, held in self._varying():
            each, rest = held // size, self.gpus - held
            steps, odd = divmod(gpus - rest, each)
            if odd or not self.elastic.least <= steps <= self.elastic.most:
                return None
            if self.roles:
                made = replace(self.roles[number], workers=steps)
                return replace(self, gpus=Gpus(gpus), roles=(*self.roles[:number], made, *self.roles[number + 1 :]))
            turned = replace(self.dimensions[number], size=steps)
            dimensions = (*self.dimensions[:number], turned, *self.dimensions[number + 1 :])
            return replace(self, gpus=Gpus(gpus), dimensions=dimensions)
        return None

    def _varying(self) -> Iterator[tuple[int, int, int]]:
        """(index, size, GPUs that vary with it) of the elastic role or dimension; nothing when it names neither."""
        name = self.elastic.dimension if self.elastic is not None else ""
        for number, role in enumerate(self.roles):
            if role.name == name:
                yield number, role.workers, role.workers * role.gpus_each
        for number, dimension in enumerate(self.dimensions if not self.roles else ()):
            if dimension.name == name:
                yield number, dimension.size, self.gpus
