"""What would the planner be given, if this scenario were a cluster? The four arguments of `decide`.

Rule book §13: how keys of the format become configuration, and what a scenario leaves open is set so that no rule it
does not mention takes part (no cooldown, no daily limit, no defragmentation, no growth of what runs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.documents.scenario import JobRow, QueueRow, Role, Running
from reconciler.model.allocation import Allocation
from reconciler.model.desired import AgentRules, Desired, RepositoryRules, Window
from reconciler.model.inventory import GpuSlot, Inventory, Level, Node, NodeShape, NumaNode
from reconciler.model.job import Dimension, Elastic, Fence, Job, Launch, Locality, OnPreempt, Restart, Run
from reconciler.model.job import Role as JobRole
from reconciler.model.observed import Observed
from reconciler.model.queue import PriorityClass, Queue, QuotaTree, Scheduling
from reconciler.model.units import (
    CLUSTER_LEVEL,
    DAY,
    HOUR,
    NODE_LEVEL,
    NVLINK_LEVEL,
    BitsPerSecond,
    Bytes,
    ClassName,
    Digest,
    DomainName,
    Gpus,
    GpuType,
    Instant,
    LevelName,
    Nanoseconds,
    NodeName,
    QueueName,
)
from reconciler.runtime.scenario.past import COMMIT, key_of, observed_in, previous_of
from reconciler.runtime.scenario.world import World, gpus_of, resized, roles_of

LEVELS: Final = {"node": NODE_LEVEL, "rack": LevelName("rack"), "spine": LevelName("spineGroup")}
"""The tiers of the format as levels of the Fabric made here."""

_NEVER: Final = Nanoseconds(36_500 * DAY)
_MANY: Final = 1_000_000
_PASS: Final = {True: "always", False: "never", "other_gpu_types_only": "otherGpuTypes"}
_SAME: Final = {"never": "never", "lower_priority": "lowerPriority"}
_OTHER: Final = {"never": "never", "reclaim": "reclaim", "fair_share": "fairShare"}
_VICTIMS: Final = {
    "lowest_priority": "lowestPriority",
    "least_lost_work": "leastLostWork",
    "fewest_jobs": "fewestJobs",
}
_ORDER: Final = {"priority_then_age": "priorityThenAge", "decayed_usage_then_age": "fairShare"}
_LINKS: Final = ((700, 450), (1200, 64), (3000, 50), (5000, 50), (8000, 50))  # ns and GB/s, from the inside out


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The arguments of `decide`."""

    desired: Desired
    observed: Observed
    previous: Allocation
    now: Instant


def inputs_of(world: World) -> Inputs:
    """The scenario as a cluster that has just reached `now`."""
    desired = _desired(world)
    previous = previous_of(world, desired)
    observed = observed_in(world, desired, previous)
    return Inputs(desired=desired, observed=observed, previous=previous, now=Instant(world.scenario.now))


# --- what is desired ---


def _desired(world: World) -> Desired:
    rows = world.scenario.rows
    classes = {_class_name(row): _class(row) for row in rows}
    jobs = {key_of(row): _job(world, row) for row in rows}
    windows = [
        Window(
            name=f"maintenance-{name}", node=NodeName(name), begins=Instant(outage.from_), ends=Instant(outage.to),
            drain="wait",
        )
        for name, spot in world.nodes.items()
        for outage in spot.row.maintenance
    ]  # fmt: skip
    return Desired(
        commit=COMMIT, cluster="scenario", scheduling=_scheduling(world), agents=AgentRules(),
        repository=RepositoryRules(), inventory=_inventory(world), quotas=_quotas(world),
        classes=dict(sorted(classes.items())), jobs=dict(sorted(jobs.items())), windows=tuple(windows),
    )  # fmt: skip


def _scheduling(world: World) -> Scheduling:
    policy = world.scenario.policy
    least, starved = policy.min_runtime or 0, policy.hold_for_starved_after
    return Scheduling(
        order=_ORDER[policy.order],
        preempt_same_queue=_SAME[policy.preempt_same_queue],
        preempt_other_queues=_OTHER[policy.preempt_other_queues],
        victim_order=tuple(_VICTIMS[name] for name in policy.victim_order),
        jobs_may_pass=_PASS[policy.lower_jobs_may_pass],
        min_runtime=Nanoseconds(least),
        max_min_runtime=Nanoseconds(max(least, HOUR)),
        cooldown=Nanoseconds(0),
        max_per_day=_MANY,
        half_life=Nanoseconds(policy.usage_half_life or 7 * DAY),
        charge_ahead=Nanoseconds(0),
        backfill=policy.backfill,
        hold_for_starved_after=_NEVER if starved is None else Nanoseconds(starved),
        hold_max_share_ppm=1_000_000,
        move_to_start=policy.move_running_jobs,
        reclaim_straddlers=False,
        defragment_action="never",
    )


def _inventory(world: World) -> Inventory:
    """Levels node, rack, spineGroup, cluster, and the NVLink domain inside or outside the node."""
    is_block = world.scenario.cluster.nvlink_domain == "rack"
    inner = (NODE_LEVEL, NVLINK_LEVEL) if is_block else (NVLINK_LEVEL, NODE_LEVEL)
    names = (*inner, LEVELS["rack"], LEVELS["spine"], CLUSTER_LEVEL)
    levels = tuple(
        Level(name=name, latency=Nanoseconds(latency), bandwidth=BitsPerSecond(speed * 8 * 10**9))
        for name, (latency, speed) in zip(names, _LINKS, strict=True)
    )
    nodes, shapes = [], dict[tuple[int, str], NodeShape]()
    for name, spot in world.nodes.items():
        kind = (spot.row.gpus, spot.row.type)
        path = (spot.spine, spot.rack, spot.rack) if is_block else (spot.spine, spot.rack)
        nodes.append(
            Node(
                name=NodeName(name), shape=shapes.setdefault(kind, _shape(*kind)), labels={},
                path=tuple(DomainName(domain) for domain in path),
                cordoned="cordoned in the scenario" if spot.row.state == "cordoned" else "",
            )
        )  # fmt: skip
    return Inventory(levels=levels, nodes=tuple(sorted(nodes, key=lambda node: node.name)))


def _shape(gpus: int, gpu_type: str) -> NodeShape:
    """One NVLink island, one NUMA node, a NIC and a rail for each GPU."""
    return NodeShape(
        profile=f"{gpu_type}-x{gpus}", gpu_type=GpuType(gpu_type), gpu_memory=Bytes(80 << 30), nvlink=((1 << gpus) - 1,),
        gpus=tuple(GpuSlot(index=index, numa=0, nic=f"nic{index}", rail=index) for index in range(gpus)),
        numa=(NumaNode(id=0, cpus="0-127", cpu_count=128, memory=Bytes(1 << 40)),),
    )  # fmt: skip


def _quotas(world: World) -> QuotaTree:
    """The queues below one root that has all there is; a number holds for each GPU type of the cluster."""
    if not world.scenario.queues:
        return QuotaTree(queues={QueueName(row.name): _queue(world, row, None) for row in world.queues.values()})
    root = QueueName("root" if "root" not in world.queues else "root-of-all")
    queues = {root: Queue(name=root, parent=None, guaranteed=_capacity(world), ceiling={})}
    queues |= {QueueName(row.name): _queue(world, row, root) for row in world.queues.values()}
    return QuotaTree(queues=dict(sorted(queues.items())))


def _queue(world: World, row: QueueRow, parent: QueueName | None) -> Queue:
    most = _capacity(world)
    guaranteed = {kind: Gpus(min(row.guaranteed, most[kind])) for kind in most}
    ceiling = {} if row.borrow_limit is None else {kind: Gpus(guaranteed[kind] + row.borrow_limit) for kind in most}
    lend = None if row.lend_limit is None else {kind: Gpus(row.lend_limit) for kind in most}
    return Queue(
        name=QueueName(row.name), parent=parent, guaranteed=guaranteed, ceiling=ceiling, lend=lend, weight=row.weight,
        guaranteed_shape=row.guaranteed_shape,
    )  # fmt: skip


def _capacity(world: World) -> dict[GpuType, Gpus]:
    found: dict[GpuType, Gpus] = {}
    for spot in world.nodes.values():
        kind = GpuType(spot.row.type)
        found[kind] = Gpus(found.get(kind, 0) + spot.row.gpus)
    return dict(sorted(found.items()))


def _class_name(row: JobRow) -> ClassName:
    return ClassName(f"p{row.priority}{'' if row.preemptible else '-fixed'}")


def _class(row: JobRow) -> PriorityClass:
    return PriorityClass(name=_class_name(row), value=row.priority, preempts_lower=True, preemptible=row.preemptible)


# --- jobs ---


def _job(world: World, row: JobRow) -> Job:
    """One role becomes dimensions (a worker, then each size of group, then the rest); several stay roles."""
    roles = roles_of(row)
    if isinstance(row, Running) and not row.missing_workers:
        roles = resized(row, sum(row.placement.values()))  # a sound elastic gang is not asked to grow
    kinds = [kind for role in roles for kind in role.gpu_types] or world.types
    mixed = len(world.types) > 1 and not row.rule.same_gpu_type and not any(role.gpu_types for role in roles)
    dimensions, required = _cut(row, roles)
    if row.rule.required is not None:
        required = (Locality(group="job", level=LEVELS[row.rule.required]), *required)
    preferred = row.rule.preferred
    return Job(
        queue=QueueName(row.queue), name=row.job, digest=Digest(f"scenario/{row.job}"), gpus=Gpus(gpus_of(roles)),
        gpu_types=tuple(GpuType(kind) for kind in dict.fromkeys(kinds)), dimensions=dimensions, required=required,
        preferred=(Locality(group="job", level=LEVELS[preferred]),) if preferred is not None else (),
        priority_class=_class_name(row), run=Run(runtime="process", launch=Launch.PER_GPU, command=("true",)),
        restart=Restart(on_failure=0, backoff=Nanoseconds(0), on_node_loss=-1, fence=Fence.CONFIRM, lease=Nanoseconds(0)),
        on_preempt=OnPreempt.REQUEUE, roles=() if dimensions else tuple(_role(role) for role in roles),
        time_limit=None if row.time_limit is None else Nanoseconds(row.time_limit),
        elastic=_elastic(row, roles), mixed_types=mixed,
    )  # fmt: skip


def _cut(row: JobRow, roles: Sequence[Role]) -> tuple[tuple[Dimension, ...], tuple[Locality, ...]]:
    """Dimensions, fastest first, and where they have to stay together. Groups need workers of one size."""
    each = roles[0].gpus_each
    if len(roles) > 1 and not row.rule.groups:
        return (), ()
    workers = sum(role.workers for role in roles)
    found, rules, size = [Dimension(name="tensor", size=each)], [Locality(group="tensor", level=NODE_LEVEL)], 1
    for number, group in enumerate(sorted(row.rule.groups, key=lambda group: group.size)):
        name = "pipeline" if number == 0 else f"pipeline{number + 1}"
        found.append(Dimension(name=name, size=group.size // size))
        rules.append(Locality(group=name, level=LEVELS[group.one]))
        size = group.size
    found.append(Dimension(name="data", size=workers // size))
    return tuple(found), tuple(rules)


def _role(role: Role) -> JobRole:
    return JobRole(
        name=role.role, workers=role.workers, gpus_each=Gpus(role.gpus_each),
        gpu_types=tuple(GpuType(kind) for kind in role.gpu_types),
    )  # fmt: skip


def _elastic(row: JobRow, roles: Sequence[Role]) -> Elastic | None:
    """Its size in the dimension that may vary: whole groups when there are any."""
    role = next((role for role in roles if role.min_workers is not None), None)
    if role is None or role.min_workers is None:
        return None
    if len(roles) > 1:
        return Elastic(dimension=role.role, least=role.min_workers, most=role.workers)
    unit = max([1, *(group.size for group in row.rule.groups)])
    return Elastic(dimension="data", least=role.min_workers // unit, most=role.workers // unit)
