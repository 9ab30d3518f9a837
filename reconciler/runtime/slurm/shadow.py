"""`gangops shadow`: what would GangOps do with this Slurm cluster now? Nothing is written, started or stopped.

Slurm's nodes become an inventory and its accounts queues, as an import would make them; its jobs become ours, running
ones where they run. Then the planner decides once, as it would decide anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from reconciler.documents.desired import load_desired, source_file
from reconciler.documents.hostlist import fold
from reconciler.engines.slurm.facts import foreign_gpus, speaks, unhealthy_of
from reconciler.engines.slurm.gres import asked_of, types_in
from reconciler.engines.slurm.seen import SlurmJob
from reconciler.errors import InvalidInput
from reconciler.imports.slurm.tables import name_of
from reconciler.model.allocation import Allocation, JobRecord, Metrics, Placement, RankPlace, empty_allocation
from reconciler.model.counting import counted
from reconciler.model.decision import Action, Decision
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.job import Dimension, Fence, Job, Launch, Locality, OnPreempt, Restart, Run
from reconciler.model.lifecycle import JobState, Phase
from reconciler.model.observed import (
    AttemptReport,
    AttemptState,
    GpuReport,
    NodeCondition,
    NodeObservation,
    Observed,
)
from reconciler.model.reasons import ReasonCode, reason, sentence
from reconciler.model.units import (
    CLUSTER_LEVEL,
    MINUTE,
    NODE_LEVEL,
    SECOND,
    CommitId,
    Digest,
    Gpus,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    Nanoseconds,
    NodeName,
    QueueName,
)
from reconciler.planner.decide import decide
from reconciler.render.shadow import Numbers, Shadow, Waiter
from reconciler.runtime.slurm.bring import Wishes, brought
from reconciler.runtime.slurm.sources import Captured

_PARTITION: Final = "slurm/partition-"
_HELD: Final = frozenset({"JobHeldUser", "JobHeldAdmin", "Dependency", "DependencyNeverSatisfied", "BeginTime"})
_RESTART: Final = Restart(
    on_failure=0, backoff=Nanoseconds(0), on_node_loss=-1, fence=Fence.CONFIRM, lease=Nanoseconds(0)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One job of Slurm's and the one of ours that stands for it; `held` are the GPUs it has, by node."""

    slurm: SlurmJob
    job: Job
    held: Mapping[NodeName, int]


def shadow(said: Captured, wishes: Wishes, now: Instant) -> Shadow:
    """One decision over what Slurm says. Raises: UsageError (NoGpuNodes), InvalidInput."""
    # 1. The cluster as an import would write it.
    desired = _cluster(said, wishes)
    # 2. Its jobs: those with GPUs as ours, those without as somebody who is in the way.
    cases, left_out = _cases(said, desired)
    busy = {case.job.key: case for case in cases if case.held}
    waiting = [case for case in cases if not case.held]
    desired = replace(desired, jobs={case.job.key: case.job for case in sorted(cases, key=lambda case: case.job.key)})
    observed = _observed(said, desired, cases, now)
    before = replace(
        empty_allocation("shadow", 1, now, desired.commit),
        jobs={case.job.key: _record(case, desired, now) for case in sorted(cases, key=lambda case: case.job.key)},
    )
    # 3. What is now, and what would be: the first is a decision in which nobody is a candidate.
    idle = decide(replace(desired, blocked="only looking"), observed, before, now)
    found = decide(desired, observed, before, now)
    nodes = said.nodes.values()
    return Shadow(
        nodes=sum(bool(node.gpus.count) for node in nodes),
        off=sum(
            bool(node.gpus.count) and (not speaks(node) or bool(unhealthy_of(node, desired.slurm))) for node in nodes
        ),
        running=len(busy),
        now=_numbers(idle.allocation.metrics),
        after=_numbers(found.allocation.metrics),
        waiting=tuple(_waiter(case, found.allocation, now) for case in waiting),
        stopped=_stopped(found, {case.job.key: case for case in cases}),
        tidying=tuple(
            f"{counted(len(plan.moves), 'move frees', 'moves free')} {fold(plan.nodes)}: Phi {plan.phi_before_ppm / 1e6:.2f} to "
            f"{plan.phi_after_ppm / 1e6:.2f}"
            for plan in found.tidying
        ),
        left_out=tuple(left_out),
    )


# --- the cluster ---


def _cluster(said: Captured, wishes: Wishes) -> Desired:
    files = brought(said, wishes).files
    sources = [
        source_file(path, content) for path, content in sorted(files.items()) if path.startswith("cluster-state/")
    ]
    loaded = load_desired(sources, CommitId("0" * 40))
    if loaded.desired is None:
        raise InvalidInput(loaded.diagnostics)
    inventory = loaded.desired.inventory
    nodes = tuple(
        replace(node, labels={**node.labels, **{f"{_PARTITION}{p}": "yes" for p in said.nodes[node.name].partitions}})
        for node in inventory.nodes
    )
    # Any partition may be meant, so none is left out by the engine's own.
    rules = replace(loaded.desired.slurm, partition="")
    return replace(loaded.desired, inventory=replace(inventory, nodes=nodes), slurm=rules)


def _observed(said: Captured, desired: Desired, cases: Sequence[_Case], now: Instant) -> Observed:
    others = [job for job in said.jobs if job.holds and not job.gpus and not job.counts]
    receipts: dict[NodeName, list[AttemptReport]] = {}
    for case in cases:
        for name in case.held:
            receipts.setdefault(name, []).append(
                AttemptReport(job=case.job.key, attempt=1, state=AttemptState.RUNNING, at=now)
            )
    nodes = {}
    for node in desired.inventory.nodes:
        seen = said.nodes[node.name]
        ours = 0
        for case in cases:
            ours |= case.held.get(node.name, 0)
        foreign = foreign_gpus(seen, others, ours)
        nodes[node.name] = NodeObservation(
            node=node.name,
            boot_id="slurm",
            address=seen.address,
            condition=NodeCondition.READY if speaks(seen) else NodeCondition.UNREACHABLE,
            condition_since=now,
            gpus=tuple(
                GpuReport(index=i, uuid=f"{node.name}/{i}", foreign=foreign.get(i, "")) for i in range(seen.gpus.count)
            ),
            attempts=tuple(sorted(receipts.get(node.name, ()), key=lambda receipt: receipt.job)),
            unhealthy=unhealthy_of(seen, desired.slurm),
        )
    return Observed(nodes=nodes)


# --- the jobs ---


def _cases(said: Captured, desired: Desired) -> tuple[list[_Case], list[str]]:
    nodes = {node.name: node for node in desired.inventory.nodes}
    taken: dict[NodeName, int] = {}
    cases, without, strange = [], 0, []
    for job in said.jobs:
        if job.over:
            continue
        held = _held(job, nodes, taken) if job.holds else {}
        gpus = sum(mask.bit_count() for mask in held.values()) if job.holds else _asked(job)
        if not gpus:
            without += 1
            continue
        made = _job(job, gpus, held, desired)
        if made is None:
            strange.append(
                f"job {job.id} ({job.name}): {counted(gpus, 'GPU does', 'GPUs do')} not divide over {counted(job.node_count, 'node')}"
            )
            continue
        cases.append(_Case(slurm=job, job=made, held=held))
    left_out = [f"{counted(without, 'job')} without GPUs: what runs is counted as being in the way"] if without else []
    return cases, left_out + strange


def _held(job: SlurmJob, nodes: Mapping[NodeName, Node], taken: dict[NodeName, int]) -> dict[NodeName, int]:
    """The GPUs it has by node. An index that was not told, or that two jobs share, is the lowest that is left."""
    found: dict[NodeName, int] = {}
    for name in job.nodes:
        node = nodes.get(name)
        if node is None:
            continue
        told = job.gpus.get(name, 0) & node.shape.all_gpus
        mask = told & ~taken.get(name, 0)
        missing = told.bit_count() + job.counts.get(name, 0) - mask.bit_count()
        for index in range(len(node.shape.gpus)):
            if missing and not (taken.get(name, 0) | mask) >> index & 1:
                mask, missing = mask | 1 << index, missing - 1
        if mask:
            found[name] = mask
            taken[name] = taken.get(name, 0) | mask
    return found


def _asked(job: SlurmJob) -> int:
    return asked_of(job.per_job) or asked_of(job.per_node) * max(1, job.node_count)


def _job(job: SlurmJob, gpus: int, held: Mapping[NodeName, int], desired: Desired) -> Job | None:
    spread = len(held) if held else max(1, job.node_count)
    each, rest = divmod(gpus, spread)
    if rest and not held:
        return None
    dimensions: tuple[Dimension, ...] = (Dimension(name="tensor", size=each), Dimension(name="data", size=spread))
    required: tuple[Locality, ...] = (Locality(group="tensor", level=NODE_LEVEL),)
    if rest:  # it runs already, unevenly: where it may go never matters
        dimensions, required = (Dimension(name="data", size=gpus),), ()
    queue = name_of(job.account)
    queues = {str(name) for name in desired.quotas.queues}
    default = next((name for name, made in desired.classes.items() if made.default), next(iter(desired.classes)))
    chosen = next((name for name in desired.classes if name == name_of(job.qos)), default)
    known = {node.shape.gpu_type for node in desired.inventory.nodes}
    kinds = tuple(kind for kind in types_in(job.per_job or job.per_node) if GpuType(kind) in known)
    above = {str(level) for level in desired.inventory.above_node}
    return Job(
        queue=QueueName(queue if queue in queues else next(iter(sorted(queues - {"root"})), "root")),
        name=f"j{job.id}",
        digest=Digest(f"slurm/{job.id}"),
        gpus=Gpus(gpus),
        gpu_types=tuple(GpuType(kind) for kind in kinds) or tuple(sorted(known)),
        dimensions=dimensions,
        required=required,
        preferred=(Locality(group="job", level=LevelName("rack")),) if "rack" in above else (),
        priority_class=chosen,
        run=Run(runtime="process", launch=Launch.PER_GPU, command=("true",)),
        restart=_RESTART,
        on_preempt=OnPreempt.REQUEUE if job.partition != "" else OnPreempt.NEVER,
        time_limit=None if job.limit is None else Nanoseconds(job.limit * MINUTE),
        node_labels={f"{_PARTITION}{job.partition}": "yes"} if job.partition and "," not in job.partition else {},
        suspend=not job.holds and job.reason in _HELD,
        owner=job.user,
    )


def _record(case: _Case, desired: Desired, now: Instant) -> JobRecord:
    submitted = Instant(min(now, case.slurm.submitted * SECOND) or now)
    base = JobRecord(
        job=case.job.key,
        queue=case.job.queue,
        digest=case.job.digest,
        state=JobState.PENDING,
        since=submitted,
        submitted=submitted,
        reason=reason(ReasonCode.CAPACITY, need=case.job.gpus, free=0, evictable=0, releasing=0),
    )
    if not case.held:
        return base
    started = Instant(min(now, case.slurm.started * SECOND) or now)
    return replace(
        base,
        state=JobState.RUNNING,
        phase=Phase.RUN,
        attempt=1,
        first_attempt=1,
        since=started,
        started=started,
        placement=_placement(case.held, desired),
        reason=reason(ReasonCode.RUNNING, ranks=case.job.gpus),
    )


def _placement(held: Mapping[NodeName, int], desired: Desired) -> Placement:
    shapes = {node.name: node.shape for node in desired.inventory.nodes}
    ranks: list[RankPlace] = []
    for node, mask in sorted(held.items()):
        slots = [slot for slot in shapes[node].gpus if mask >> slot.index & 1]
        ranks += [
            RankPlace(
                rank=len(ranks) + i, node=node, local_rank=i, gpu=slot.index, numa=slot.numa, nic=slot.nic, rail=slot.rail
            )
            for i, slot in enumerate(slots)
        ]  # fmt: skip
    level = NODE_LEVEL if len(held) == 1 else CLUSTER_LEVEL
    domain = next(iter(held)) if len(held) == 1 else str(CLUSTER_LEVEL)
    return Placement(
        ranks=tuple(ranks), level=level, domain=domain, comm_time=Nanoseconds(0), comm_bound=Nanoseconds(0)
    )


# --- what comes of it ---


def _waiter(case: _Case, after: Allocation, now: Instant) -> Waiter:
    record = after.jobs.get(case.job.key)
    place = None
    if record is not None:
        place = record.placement if record.state.holds_gpus else record.promise.placement if record.promise else None
    job = case.slurm
    found = Waiter(
        id=job.id,
        name=job.name,
        user=job.user,
        queue=str(case.job.queue),
        gpus=case.job.gpus,
        waited=max(0, now // SECOND - job.submitted) if job.submitted else 0,
        slurm=job.reason,
        why=sentence(record.reason) if record is not None else "",
    )
    if record is None or place is None:
        return found
    first = record.promise.waiting_for if record.promise is not None else record.victims
    victims = tuple(victim.rpartition("/j")[2] for victim in first)
    return replace(found, nodes=fold(place.nodes), where=f"{place.level} {place.domain}", victims=victims)


def _stopped(found: Decision, cases: Mapping[JobKey, _Case]) -> tuple[str, ...]:
    told = []
    for change in found.changes:
        case = cases.get(change.job)
        if case is not None and change.action in (Action.PREEMPT, Action.MOVE, Action.RESIZE):
            job = case.slurm
            told.append(f"job {job.id} ({job.name}) of {job.user}, {counted(case.job.gpus, 'GPU')}: {change.action}")
    return tuple(told)


def _numbers(metrics: Metrics) -> Numbers:
    return Numbers(
        capacity=metrics.capacity,
        held=metrics.held,
        idle=metrics.idle,
        stranded=metrics.stranded,
        phi_ppm=metrics.phi_ppm,
    )
