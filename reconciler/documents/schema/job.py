"""Job: one gang, or an array of them. Only `queue`, `gpus` and `run` are needed; the rest has sensible defaults."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from reconciler.documents.schema.base import (
    NOTHING,
    AbsolutePath,
    Document,
    Duration,
    GpuTypeName,
    JobName,
    LabelKey,
    LevelName,
    Line,
    Listed,
    Name,
    Positive,
    Share,
    Signal,
    Size,
    Strict,
    Time,
    Times,
    duration_or,
    duration_or_json,
    kind_of,
    refuse,
)
from reconciler.documents.schema.run import Health, Run
from reconciler.documents.tasklist import parse_tasks

DimensionName: TypeAlias = Literal["tensor", "context", "expert", "pipeline", "data"]
DIMENSIONS: Final[tuple[str, ...]] = get_args(DimensionName)
"""The default order of ranks, fastest-varying first: who talks most sits closest."""
GroupName: TypeAlias = Literal["job", "tensor", "context", "expert", "pipeline", "data"]
Gpus: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]


class Parallelism(Strict):
    """Sizes whose product is `gpus`. A dimension left out has size 1."""

    tensor: Positive = 1
    """Ranks that split each layer; each such group stays inside one NVLink domain unless `topology` says otherwise."""
    pipeline: Positive = 1
    """Stages that follow each other."""
    data: Positive = 1
    """Replicas."""
    expert: Positive = 1
    """Groups of experts."""
    context: Positive = 1
    """Ranks that split each sequence."""


class Elastic(Strict):
    """The gang may run smaller: `dimension` has any size from `min` to `max`."""

    dimension: DimensionName = "data"
    """The dimension that shrinks and grows."""
    min: Positive
    """Its smallest size."""
    max: Positive
    """Its largest size; `parallelism` names one between."""


class Topology(Strict):
    """Which groups stay inside which level. Levels are those of the Fabric."""

    required: dict[GroupName, LevelName] = NOTHING
    """A placement that breaks one of these is refused. `job` is the whole gang."""
    preferred: dict[GroupName, LevelName] = NOTHING
    """Tried first, then wider. Default for several nodes: `job: rack`."""
    rail_aligned: bool = True
    """Local rank r uses rail r on every node."""
    nic_kind: Literal["roce", "infiniband", "ethernet", "efa"] | None = None
    """Only nodes whose NICs speak this. Absent: any."""
    spread: Literal["packed", "even"] = "packed"
    """even: the same number of nodes in each rack and spine group it uses, where that is possible."""
    spares: Annotated[int, Field(ge=0, le=1024)] = 0
    """Nodes' worth of GPUs held beside the gang, to replace a lost one at once: as many as are free when it starts or
    later, charged to its queue. They never make it wait, and who may preempt it takes them first."""


class Communication(Strict):
    """What one step moves across a dimension, for the cost model."""

    collective: Literal["allreduce", "allgather", "reducescatter", "alltoall", "sendrecv", "broadcast"] = "allreduce"
    """The collective that dominates."""
    bytes_per_step: Size
    """What each rank sends in one step."""
    overlap: Share = 0
    """Share of it that hides behind computation."""


class Role(Strict):
    """One kind of member of a gang of unlike members."""

    name: Name
    """Ranks see it as $GANGOPS_ROLE."""
    workers: Positive
    """Members of this kind."""
    gpus_each: Annotated[int, Field(ge=1, le=64)]
    """GPUs of each, all in one node."""


class Resources(Strict):
    """What comes with each GPU."""

    cpus_per_gpu: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPUs. Absent: the fair part of its NUMA node."""
    memory_per_gpu: Size = 0
    """Host memory. Absent: the fair part of its NUMA node."""
    shared_memory: Size = 0
    """Size of /dev/shm. Absent: as the runtime has it."""
    local_disk: Size = 0
    """Scratch space that the node must have."""


class Stop(Strict):
    """How a job is asked to save its work."""

    signal: Signal = "SIGUSR1"
    """What it gets. Then SIGTERM, then it is killed."""
    to: Literal["leader", "all"] = "leader"
    """Rank 0, or every rank."""
    grace: Duration = 300 * 10**9
    """How long it may take."""


class Checkpoint(Strict):
    """How work survives a stop."""

    dir: AbsolutePath
    """Where checkpoints are; ranks see it as $GANGOPS_CHECKPOINT_DIR."""
    every: Duration = 1800 * 10**9
    """How often it saves, to price an interruption before the first save was seen."""
    on_preempt: Stop = Stop.model_construct()
    """How it is asked to save."""
    complete_marker: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$", max_length=255)] = "LATEST"
    """File below `dir`, written last: its mtime is the last checkpoint."""
    resume: Literal["automatic"] = "automatic"
    """Ranks of a later attempt see $GANGOPS_RESUME=1: the only way there is."""


class Preemption(Strict):
    """How it may be displaced. A class fixes the strongest protection; a job may say less."""

    policy: Literal["checkpoint", "requeue", "never"] | None = None
    """Absent: checkpoint when there is one, else requeue. never: only within the queue's guarantee."""
    min_runtime: Duration | None = None
    """No victim before it ran this long."""
    max_per_day: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Interruptions at most in 24 hours."""


class Restart(Strict):
    """How a broken gang comes back."""

    on_failure: Times = 3
    """New attempts after a rank failed."""
    backoff: Duration = 60 * 10**9
    """Wait before the first of them; it doubles each time. Its GPUs are kept for it while that is up to 2m."""
    on_node_loss: Times = -1
    """New attempts after a node was lost."""
    exclude_failed_nodes: Literal[True] = True
    """The node it failed on is avoided for a while: always so, and said for readers."""
    fence: Literal["confirm", "lease"] = "confirm"
    """When ranks on a silent node count as gone: confirmed by someone, or at the end of their lease."""
    lease: Duration = 30 * 10**9
    """With `fence: lease`: ranks that were not heard of for this long end themselves."""


def _parameter(written: Any) -> str:
    if type(written) not in (str, int) and not isinstance(written, Decimal):
        refuse("WrongType", f"Expected text or a number, found {kind_of(written)}.")
    if len(str(written)) > 1024:
        refuse("OutOfRange", "A parameter has at most 1024 characters.")
    return str(written)


Parameter: TypeAlias = Annotated[str, PlainValidator(_parameter), WithJsonSchema({"type": ["string", "number"]})]
ParameterName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,62}$")]


def _tasks(written: Any) -> tuple[int, ...]:
    if type(written) is int:
        written = str(written)
    if type(written) is not str:
        refuse("WrongType", f"Expected a list of tasks in quotes, found {kind_of(written)}.")
    try:
        return parse_tasks(written)
    except ValueError as err:
        refuse("BadTaskList", f"{str(err)[:1].upper()}{str(err)[1:]}.")


TaskList: TypeAlias = Annotated[
    tuple[int, ...],
    PlainValidator(_tasks),
    WithJsonSchema(
        {
            "type": ["string", "integer"],
            "pattern": r"^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$",
            "minimum": 0,
            "examples": ["3,7-9"],
        }
    ),
]


class Array(Strict):
    """Many tasks of one shape. Exactly one of `count`, `values` and `matrix`.

    Each task is a gang of its own, `name.INDEX`, with a checkpoint folder of its own, `checkpoint.dir/INDEX`.
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["count"]}, {"required": ["values"]}, {"required": ["matrix"]}]}
    )

    count: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """That many tasks; each sees its number, from 0, as $GANGOPS_TASK_INDEX."""
    values: Annotated[Listed[dict[ParameterName, Parameter]], Field(min_length=1, max_length=10_000)] | None = None
    """One task an entry; its parameters are seen as $GANGOPS_PARAM_NAME."""
    matrix: (
        Annotated[
            dict[ParameterName, Annotated[Listed[Parameter], Field(min_length=1)]], Field(min_length=1, max_length=8)
        ]
        | None
    ) = None
    """One task for each combination; the last parameter varies fastest."""
    max_parallel: Positive | None = None
    """Tasks at once at most."""
    on_task_failure: Literal["continue", "stop"] = "continue"
    """stop: a task that failed for good cancels those not started."""
    rerun: Annotated[Listed[TaskList], Field(max_length=1000)] = ()
    """Tasks that run once more after they finished, such as "3,7-9"; each entry is one more time."""
    cancelled: TaskList = ()
    """Tasks that nobody wants any more, such as "3,7-9": stopped through their checkpoints, or never started."""


class Dependency(Strict):
    """Another job that comes first."""

    job: JobName
    """`queue/name`, or `name` in the same queue."""
    condition: Literal["Started", "Succeeded", "Failed", "Finished"] = "Succeeded"
    """What it must have done; Finished is either way."""


class JobSpec(Strict):
    """What runs, on how much, and how it behaves."""

    queue: Name
    """The queue that is charged; also the folder of the file."""
    priority_class: Name | None = None
    """Absent: the default class."""
    nice: Annotated[int, Field(ge=-100, le=100)] = 0
    """Order inside a class: lower goes first."""
    owner: Line = ""
    """E-mail address of who cares, and may look into it. Absent: the author of the commit."""
    gpus: Gpus
    """All GPUs of the gang: it gets all of them or none."""
    gpu_type: GpuTypeName | None = None
    """Only this type. Absent: any one type."""
    any_of: Annotated[Listed[GpuTypeName], Field(min_length=1, max_length=16)] | None = None
    """One of these types, the first that fits."""
    mixed_gpu_types: bool = False
    """May one gang use several of its types at once? Tried when no single one has room."""
    parallelism: Parallelism | None = None
    """Absent: the largest tensor group that fits one NVLink domain, times data."""
    rank_order: Annotated[Listed[DimensionName], Field(max_length=5)] = ()
    """Fastest-varying first. Absent: tensor, context, expert, pipeline, data."""
    roles: Annotated[Listed[Role], Field(min_length=1, max_length=16)] | None = None
    """For gangs of unlike members; their GPUs add up to `gpus`."""
    elastic: Elastic | None = None
    """May it run smaller?"""
    topology: Topology = Topology.model_construct()
    """Which groups stay together."""
    communication: dict[DimensionName, Communication] = NOTHING
    """For the cost model. Absent: only latencies count."""
    resources: Resources = Resources.model_construct()
    """What comes with each GPU."""
    time_limit: Annotated[
        int | None, PlainValidator(duration_or("unlimited")), WithJsonSchema(duration_or_json("unlimited"))
    ] = None
    """Each attempt ends after this. Absent: the cluster's default. A short one starts sooner."""
    start_before: Time | None = None
    """The preview warns when the forecast is later."""
    checkpoint: Checkpoint | None = None
    """How work survives a stop."""
    preemption: Preemption = Preemption.model_construct()
    """How it may be displaced."""
    restart: Restart = Restart.model_construct()
    """How it comes back after a failure."""
    health: Health = Health.model_construct()
    """When it counts as sick."""
    after: Annotated[Listed[Dependency], Field(max_length=256)] = ()
    """Jobs that come first."""
    suspend: bool = False
    """True: it does not start, and stops through its checkpoint when it runs."""
    rerun: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """A larger number runs a finished job once more."""
    array: Array | None = None
    """Many tasks of this shape."""
    node_labels: dict[LabelKey, Line] = NOTHING
    """Only nodes with all of these labels."""
    tolerations: Listed[Annotated[str, Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*(=.*)?$", max_length=256)]] = ()
    """Taints it does not mind: `key` or `key=value`."""
    run: Run
    """What each process is."""


class Job(Document):
    """One gang, or an array of them. Only `queue`, `gpus` and `run` are needed."""

    kind: Literal["Job"]
    """The kind of document."""
    spec: JobSpec
    """What runs, on how much, and how it behaves."""
