"""What does a Job document mean? A frozen `Job` with every default filled in, and the digest of what it runs.

Called only with documents that `lint_jobs` found sound. The defaults:

- Ranks: the largest tensor group that divides the gang and fits one NVLink domain (the node, where GPUs have no
  NVLink), times data. A tensor group is required to stay inside that level.
- A gang of several nodes prefers the first level above the node (the rack); the planner widens from there.
- `run.launch` is perNode for torchrun and sessions, else perGpu. `run.runtime` is enroot with an image, else process.
- A job with a checkpoint is displaced through it, one without is queued again.
- Its account is its queue's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from itertools import product
from math import gcd, prod
from posixpath import basename
from typing import Any, Final

from reconciler.documents.check import Item
from reconciler.documents.schema.job import DIMENSIONS
from reconciler.documents.surroundings import Surroundings, nic_label
from reconciler.documents.tasklist import SHARED
from reconciler.model.job import (
    Array,
    Checkpoint,
    Dependency,
    Dimension,
    Elastic,
    Fence,
    Job,
    Launch,
    Locality,
    Mount,
    OnPreempt,
    Restart,
    Role,
    Run,
    Spread,
    Task,
)
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

RUN_DEFINING: Final = (
    "gpus", "gpuTypes", "parallelism", "rankOrder", "roles", "array", "run", "resources", "checkpointDir", "rerun",
)  # fmt: skip
"""A change of any of these makes another incarnation: what runs is stopped and started anew. All else keeps it."""

_MILLION: Final = 1_000_000


def job_of(item: Item, around: Surroundings) -> Job:
    """The job this document asks for, in these surroundings."""
    spec = item.model.spec
    types = gpu_types_of(spec)
    dimensions = dimensions_of(spec, around)
    default_class = around.default_class or ClassName("")
    named = ClassName(spec.priority_class) if spec.priority_class else default_class
    return Job(
        queue=QueueName(spec.queue),
        name=item.name,
        digest=digest_of(spec),
        gpus=Gpus(spec.gpus),
        gpu_types=tuple(GpuType(kind) for kind in types),
        dimensions=dimensions,
        required=_required(spec, dimensions, around),
        preferred=_preferred(spec, around),
        # A class that is gone under a job in its last valid form: the default protects it from having none.
        priority_class=named if named in around.classes else default_class,
        run=_run(spec, around),
        restart=_restart(spec.restart),
        on_preempt=_on_preempt(spec),
        roles=tuple(Role(name=r.name, workers=r.workers, gpus_each=Gpus(r.gpus_each)) for r in spec.roles or ()),
        rail_aligned=spec.topology.rail_aligned,
        cpus_per_gpu=spec.resources.cpus_per_gpu,
        memory_per_gpu=Bytes(spec.resources.memory_per_gpu),
        nice=spec.nice,
        time_limit=_time_limit(spec.time_limit, around),
        start_timeout=spec.health.startup_timeout,
        checkpoint=_checkpoint(spec.checkpoint),
        min_runtime=spec.preemption.min_runtime,
        max_per_day=spec.preemption.max_per_day,
        after=tuple(Dependency(job=dependency_key(d.job, spec.queue), condition=d.condition) for d in spec.after),
        suspend=spec.suspend,
        node_labels=_node_labels(spec),
        tolerations=spec.tolerations,
        start_before=Instant(spec.start_before) if spec.start_before is not None else None,
        owner=spec.owner,
        labels=item.model.metadata.labels,
        elastic=_elastic(spec.elastic),
        array=_array(spec.array),
        spares=spec.topology.spares,
        spread=Spread(spec.topology.spread),
        mixed_types=spec.mixed_gpu_types,
        rerun=spec.rerun,
        stall_timeout=spec.health.stall_timeout,
    )


def gangs_of(job: Job, spec: Any) -> tuple[Job, ...]:
    """What is placed for this document: the job itself, or each task of its array.

    A task is another incarnation when what it runs, its parameters or its count of reruns change; the other tasks go
    on. Its checkpoints are in a folder of its own, `DIR/INDEX`.
    """
    if job.array is None:
        return (job,)
    said, base = spec.array, _digest(spec, without=("array",))
    again = [index for tasks in said.rerun for index in tasks]
    reruns = {index: again.count(index) for index in set(again)}
    cancelled = frozenset(said.cancelled)
    return tuple(
        replace(
            job,
            name=f"{job.name}.{index}",
            array=None,
            task=Task(
                array=job.key,
                index=index,
                size=len(job.array.tasks),
                parameters=parameters,
                max_parallel=job.array.max_parallel,
                stop_on_failure=job.array.stop_on_failure,
                cancelled=index in cancelled,
            ),
            digest=_task_digest(base, parameters, reruns.get(index, 0)),
            rerun=job.rerun + reruns.get(index, 0),
            checkpoint=replace(job.checkpoint, directory=f"{job.checkpoint.directory.rstrip('/')}/{index}")
            if job.checkpoint is not None
            else None,
        )
        for index, parameters in enumerate(job.array.tasks)
    )


def _task_digest(base: Digest, parameters: Mapping[str, str], rerun: int) -> Digest:
    """The front is the same for all tasks of an array, so that a record of thousands of them can share it."""
    canonical = json.dumps([dict(sorted(parameters.items())), rerun], separators=(",", ":"), ensure_ascii=True)
    own = sha256(f"{base}{canonical}".encode("ascii")).hexdigest()
    return Digest(base[:SHARED] + own[SHARED:])


def gpu_types_of(spec: Any) -> tuple[str, ...]:
    """The GPU types a job allows, in the order written; empty means any."""
    return (spec.gpu_type,) if spec.gpu_type is not None else tuple(spec.any_of or ())


def dependency_key(written: str, queue: str) -> JobKey:
    """`queue/name` of a job named in `after`."""
    return JobKey(written) if "/" in written else job_key(queue, written)


# --- shape ----------------------------------------------------------------------------------------------------------


def dimensions_of(spec: Any, around: Surroundings) -> tuple[Dimension, ...]:
    """Dimensions larger than 1 (and the elastic one), fastest-varying first; their product is the gang."""
    sizes = _sizes(spec, around)
    order = (*spec.rank_order, *(name for name in DIMENSIONS if name not in spec.rank_order))
    elastic = spec.elastic.dimension if spec.elastic else ""
    return tuple(
        Dimension(name=name, size=sizes[name], bytes_per_step=_exposed_bytes(spec.communication.get(name)))
        for name in order
        if name in sizes and (sizes[name] > 1 or name == elastic)
    )


def _sizes(spec: Any, around: Surroundings) -> dict[str, int]:
    if spec.parallelism is not None:
        return {name: getattr(spec.parallelism, name) for name in DIMENSIONS}
    if spec.roles is not None:  # unlike members: each is inside one node by itself
        return {"data": spec.gpus}
    _, domain = around.tensor_level(gpu_types_of(spec))
    tensor = spec.gpus if spec.gpus <= domain else gcd(spec.gpus, domain)
    return {"tensor": tensor, "data": spec.gpus // tensor}


def _exposed_bytes(said: Any) -> Bytes:
    """Bytes of a step that computation does not hide."""
    return Bytes(said.bytes_per_step * (_MILLION - said.overlap) // _MILLION) if said is not None else Bytes(0)


def _required(spec: Any, dimensions: tuple[Dimension, ...], around: Surroundings) -> tuple[Locality, ...]:
    said = dict(spec.topology.required)
    has_tensor = any(dimension.name == "tensor" for dimension in dimensions)
    if has_tensor and "tensor" not in said and "tensor" not in spec.topology.preferred:
        said["tensor"] = around.tensor_level(gpu_types_of(spec))[0]
    return _localities(said)


def _preferred(spec: Any, around: Surroundings) -> tuple[Locality, ...]:
    said = dict(spec.topology.preferred)
    level = around.job_level
    nodes = max((around.largest.get((kind, "node"), 0) for kind in gpu_types_of(spec) or around.gpu_types), default=0)
    if level is not None and "job" not in said and (spec.gpus > nodes or spec.roles):
        required = spec.topology.required.get("job")
        if required is None or around.levels.index(required) > around.levels.index(level):
            said["job"] = level
    return _localities(said)


def _node_labels(spec: Any) -> dict[str, str]:
    """The labels its nodes must have: those it names, and the one all nodes with such NICs are given."""
    kind = spec.topology.nic_kind
    return {**spec.node_labels, **({nic_label(kind): "true"} if kind is not None else {})}


def _localities(said: Mapping[str, str]) -> tuple[Locality, ...]:
    return tuple(Locality(group=g, level=LevelName(said[g])) for g in (*DIMENSIONS, "job") if g in said)


def _elastic(said: Any) -> Elastic | None:
    return Elastic(dimension=said.dimension, least=said.min, most=said.max) if said is not None else None


def _array(said: Any) -> Array | None:
    if said is None:
        return None
    return Array(tasks=tasks_of(said), max_parallel=said.max_parallel, stop_on_failure=said.on_task_failure == "stop")


def tasks_of(array: Any) -> tuple[dict[str, str], ...]:
    """The parameters of each task in order; a count gives tasks without any."""
    if array.values is not None:
        return tuple(array.values)
    if array.matrix is not None:
        return tuple(dict(zip(array.matrix, chosen, strict=True)) for chosen in product(*array.matrix.values()))
    return tuple({} for _ in range(array.count))


def task_count(array: Any) -> int:
    """How many tasks there are, without making them."""
    return (
        prod(len(v) for v in array.matrix.values())
        if array.matrix is not None
        else len(array.values or ()) or array.count
    )


# --- behaviour ------------------------------------------------------------------------------------------------------


def launch_of(run: Any) -> Launch:
    """One process for each GPU, or one for each node."""
    if run.launch is not None:
        return Launch(run.launch)
    if run.ranks_per_node is not None:
        return Launch.PER_NODE if run.ranks_per_node == 1 else Launch.PER_GPU
    is_torchrun = run.command is not None and basename(run.command[0]) == "torchrun"
    return Launch.PER_NODE if is_torchrun or run.session else Launch.PER_GPU


def runtime_of(run: Any) -> str:
    """What starts it: the process itself, or a container runtime."""
    return run.runtime or ("enroot" if run.image is not None else "process")


def _run(spec: Any, around: Surroundings) -> Run:
    run = spec.run
    queue = around.queues.get(spec.queue)
    return Run(
        runtime=runtime_of(run),
        launch=launch_of(run),
        command=run.command or (),
        script=run.script or "",
        session=bool(run.session),
        idle_timeout=Nanoseconds(run.session["idleTimeout"]) if isinstance(run.session, dict) else None,
        image=run.image or "",
        working_dir=run.working_dir or "",
        env=run.env,
        mounts=tuple(Mount(source=m.source, target=m.target, read_only=m.read_only) for m in run.mounts),
        secret_files=run.secret_files,
        ports=run.ports,
        user=queue.user if queue else "self",
        group=queue.group if queue else "",
        heartbeat_file=spec.health.heartbeat_file or "",
    )


def _restart(said: Any) -> Restart:
    return _same(
        Restart(
            on_failure=said.on_failure,
            backoff=Nanoseconds(said.backoff),
            on_node_loss=said.on_node_loss,
            fence=Fence(said.fence),
            lease=Nanoseconds(said.lease),
        )
    )


@lru_cache(maxsize=1024)
def _same(restart: Restart) -> Restart:
    """The first of all that are equal: most jobs say the same, and what is kept of them is read the sooner."""
    return restart


def _on_preempt(spec: Any) -> OnPreempt:
    if spec.preemption.policy is not None:
        return OnPreempt(spec.preemption.policy)
    return OnPreempt.CHECKPOINT if spec.checkpoint is not None else OnPreempt.REQUEUE


def _checkpoint(said: Any) -> Checkpoint | None:
    if said is None:
        return None
    return Checkpoint(
        directory=said.dir,
        every=Nanoseconds(said.every),
        signal=said.on_preempt.signal,
        signal_to=said.on_preempt.to,
        grace=Nanoseconds(said.on_preempt.grace),
        marker=said.complete_marker,
    )


def _time_limit(said: int | None, around: Surroundings) -> Nanoseconds | None:
    if said is None:
        return around.default_time_limit
    return Nanoseconds(said) if said >= 0 else None  # -1: unlimited


# --- identity -------------------------------------------------------------------------------------------------------


def digest_of(spec: Any) -> Digest:
    """The digest of what a document runs, all of it: see `_digest`."""
    return _digest(spec)


def _digest(spec: Any, without: tuple[str, ...] = ()) -> Digest:
    """sha256 over canonical JSON of the fields of `RUN_DEFINING` that were said.

    Quantities count by value, not by spelling, and what equals its default counts as unsaid: neither a reformatting
    nor a new field of a later version replaces running jobs. Defaults from the surroundings do not count either.
    """
    run = spec.run.model_dump(exclude_defaults=True, exclude={"launch", "ranks_per_node"})
    if run.get("session"):
        run["session"] = True  # how long it may be idle is a limit, not what runs
    array = (
        spec.array.model_dump(exclude_none=True, exclude={"max_parallel", "on_task_failure", "cancelled", "rerun"})
        if spec.array
        else None
    )
    said: dict[str, Any] = {
        "gpus": spec.gpus,
        "gpuTypes": gpu_types_of(spec),
        "parallelism": spec.parallelism.model_dump(exclude_defaults=True) if spec.parallelism else None,
        "rankOrder": spec.rank_order,
        "roles": [role.model_dump() for role in spec.roles] if spec.roles else None,
        "array": array,
        "run": {**run, "launch": str(launch_of(spec.run))},
        "resources": spec.resources.model_dump(exclude_defaults=True),
        "checkpointDir": spec.checkpoint.dir if spec.checkpoint else None,
        "rerun": spec.rerun,
    }
    told = {name: said[name] for name in RUN_DEFINING if said[name] and name not in without}
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return Digest(sha256(canonical.encode("ascii")).hexdigest())
