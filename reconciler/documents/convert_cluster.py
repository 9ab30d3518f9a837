"""What do the cluster's own documents mean? Inventory, quotas, classes and rules as frozen values, defaults filled in.

Only documents that `lint` found sound are acted on. Others still give something here, as near to what was meant as
can be, so that jobs can be judged against it in the same go. Jobs are for `convert`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from reconciler.documents.check import Item
from reconciler.documents.cpulist import print_cpus
from reconciler.documents.hostlist import expand
from reconciler.documents.surroundings import nic_label
from reconciler.model.desired import AgentRules, RepositoryRules, SlurmRules, Window
from reconciler.model.gpu_models import models_of
from reconciler.model.inventory import AGENTS, GpuSlot, Inventory, Level, Node, NodeShape, NumaNode, Taint
from reconciler.model.job import SUBMITTER
from reconciler.model.queue import PriorityClass, Queue, QuotaTree, Scheduling
from reconciler.model.units import (
    NODE_LEVEL,
    BitsPerSecond,
    Bytes,
    ClassName,
    DomainName,
    Gpus,
    GpuType,
    Instant,
    LevelName,
    Nanoseconds,
    NodeName,
    QueueName,
)

IMPLICIT_CLASS: Final = PriorityClass(
    name=ClassName("default"), value=0, preempts_lower=True, preemptible=True, default=True
)
"""The class of all jobs in a cluster that declares none."""


# --- inventory ------------------------------------------------------------------------------------------------------


def inventory_of(
    fabrics: Iterable[Item], profiles: Iterable[Item], node_sets: Iterable[Item], engine: str = AGENTS
) -> Inventory:
    """All declared nodes sorted by name. Fabrics have the same levels; their racks are unique together.

    `engine` is the cluster's, for node sets that name none.
    """
    cabling = {item.name: item.model.spec for item in fabrics}
    specs = {item.name: item.model.spec for item in profiles}
    shapes = {name: _shape(name, spec) for name, spec in specs.items()}
    networks = {name: {nic_label(nic.kind): "true" for nic in spec.nics} for name, spec in specs.items()}
    levels = next((spec.levels for _, spec in sorted(cabling.items())), ())
    if all(level.name != NODE_LEVEL for level in levels):
        return Inventory(levels=(), nodes=())
    nodes: dict[NodeName, Node] = {}
    for item in node_sets:
        for node in _nodes_of(item.model.spec, shapes, networks, cabling, engine):
            nodes.setdefault(node.name, node)
    return Inventory(
        levels=tuple(
            Level(
                name=LevelName(level.name),
                latency=Nanoseconds(level.latency),
                bandwidth=BitsPerSecond(level.bandwidth),
                oversubscription=level.oversubscription,
            )
            for level in levels
        ),
        nodes=tuple(node for _, node in sorted(nodes.items())),
        switches=dict(sorted(_switches(cabling.values()))),
    )


def _switches(fabrics: Iterable[Any]) -> Iterator[tuple[DomainName, tuple[str, ...]]]:
    """The top-of-rack switches of each rack that names some; hostlists among the names are expanded."""
    from reconciler.documents.hostlist import expand

    for fabric in fabrics:
        for rack in (*fabric.racks, *(rack for group in fabric.spine_groups for rack in group.racks)):
            names: list[str] = []
            for written in rack.tors:
                try:
                    names += expand(written) if "[" in written else (written,)
                except ValueError:  # a name is free text; one that looks like a list and is none stands for itself
                    names.append(written)
            if names:
                yield DomainName(rack.name), tuple(names)


def _shape(name: str, spec: Any) -> NodeShape:
    count = gpu_count(spec)
    numa, nic, rail = [-1] * count, [""] * count, [-1] * count
    near: list[tuple[str, ...]] = [()] * count
    rails = {port.name: port.rail for port in spec.nics}
    for switch in spec.pcie_switches:
        for position, gpu in enumerate(switch.gpus[:count]):
            if gpu < count:
                numa[gpu], near[gpu] = switch.numa, (*switch.nics, *switch.shared_nics)
            if gpu < count and position < len(switch.nics):  # the i-th NIC below a switch serves the i-th GPU
                nic[gpu] = switch.nics[position]
                rail[gpu] = rails.get(nic[gpu], -1)
    links = {gpu: domain.links for domain in spec.nvlink_domains for gpu in domain.gpus}
    islands = _islands(spec, count)
    return NodeShape(
        profile=name,
        gpu_type=GpuType(spec.gpu_type),
        gpu_memory=Bytes(spec.gpu_memory),
        gpus=tuple(
            GpuSlot(index=i, numa=numa[i], nic=nic[i], rail=rail[i], links=links.get(i, 0), near=near[i])
            for i in range(count)
        ),
        nvlink=tuple(sorted(islands, key=lambda mask: mask & -mask)),
        numa=_numa_nodes(spec),
        models=models_of(spec.gpu_type, spec.gpu_models),
        topo_file=spec.nccl_topo_file or "",
    )


def _islands(spec: Any, count: int) -> list[int]:
    """GPU masks that share NVLink, each GPU in exactly one; a GPU in no domain stands alone."""
    left = (1 << count) - 1
    found = []
    for domain in spec.nvlink_domains:
        mask = sum(1 << gpu for gpu in set(domain.gpus)) & left
        left &= ~mask
        found += [mask] if mask else []
    return found + [1 << gpu for gpu in range(count) if left >> gpu & 1]


def gpu_count(spec: Any) -> int:
    """GPUs of a NodeProfile: as it says, or up to the highest index it names."""
    named = [gpu for group in (*spec.nvlink_domains, *spec.pcie_switches) for gpu in group.gpus]
    return int(spec.gpus) if spec.gpus is not None else max(named, default=-1) + 1


def _numa_nodes(spec: Any) -> tuple[NumaNode, ...]:
    reserved = set(spec.reserved.cpus)
    part, rest = divmod(spec.reserved.memory, len(spec.numa))
    found = []
    for position, numa in enumerate(sorted(spec.numa, key=lambda n: n.id)):
        cpus = [cpu for cpu in numa.cpus if cpu not in reserved]
        memory = max(0, numa.memory - part - (rest if position == 0 else 0))
        found.append(NumaNode(id=numa.id, cpus=print_cpus(cpus), cpu_count=len(cpus), memory=Bytes(memory)))
    return tuple(found)


def _nodes_of(
    spec: Any,
    shapes: Mapping[str, NodeShape],
    networks: Mapping[str, Mapping[str, str]],
    cabling: Mapping[str, Any],
    engine: str,
) -> list[Node]:
    if spec.profile not in shapes:
        return []
    path = _path(spec, cabling.get(spec.fabric or "", next(iter(cabling.values()))))
    overrides: dict[str, Any] = {}
    for names, override in spec.overrides.items():
        overrides |= dict.fromkeys(names_of(names, len(spec.nodes)), override)
    base = Node(
        name=NodeName(""),
        shape=shapes[spec.profile],
        path=path,
        labels={**spec.labels, **networks[spec.profile]},
        taints=_taints(spec.taints),
        cordoned=spec.cordoned or "",
        dead=spec.dead,
        engine=spec.engine or engine,
    )
    return [_with_override(replace(base, name=NodeName(name)), overrides.get(name)) for name in spec.nodes]


def names_of(written: str, most: int) -> tuple[str, ...]:
    """The nodes an override names; none, when the list cannot be read or names more than the set can have."""
    if "[" not in written and "," not in written:
        return (written,)
    with suppress(ValueError):  # reported by lint
        return expand(written, most)
    return ()


def _path(spec: Any, fabric: Any) -> tuple[DomainName, ...]:
    """Domains of the node set above its nodes, outermost first."""
    group = next((g.name for g in fabric.spine_groups for rack in g.racks if rack.name == spec.rack), "")
    places = {**spec.domains, "rack": spec.rack, "spineGroup": group}
    names = [level.name for level in fabric.levels]
    return tuple(DomainName(places.get(level, "")) for level in reversed(names[names.index(NODE_LEVEL) + 1 : -1]))


def _taints(taints: Iterable[Any]) -> tuple[Taint, ...]:
    return tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints)


def _with_override(node: Node, said: Any) -> Node:
    if said is None:
        return node
    down = {name for name, nic in said.nics.items() if nic.state == "down"}
    return replace(
        node,
        shape=_without_nics(node.shape, down) if down else node.shape,
        labels={**node.labels, **said.labels},
        taints=node.taints + _taints(said.taints),
        cordoned=said.cordoned or node.cordoned,
        dead=node.dead or said.dead,
        failed=sum(1 << index for index, gpu in said.gpus.items() if gpu.state == "failed"),
    )


def _without_nics(shape: NodeShape, down: set[str]) -> NodeShape:
    return replace(shape, gpus=tuple(slot.without(down) for slot in shape.gpus))


# --- quotas and classes ---------------------------------------------------------------------------------------------


_DEEP: Final = 64  # queues inside each other; lint allows fewer


def quotas_of(queues: Iterable[Item], inventory: Inventory) -> QuotaTree:
    """The queues by name, with guarantees that were left out filled in (rule book §3) and accounts inherited."""
    specs = {item.name: item.model.spec for item in sorted(queues, key=lambda item: item.name)}
    capacity = capacity_of(inventory)
    types = sorted({*capacity, *(kind for spec in specs.values() for kind in spec.guaranteed or ())})
    children: dict[str, list[str]] = {name: [] for name in specs}
    for name, spec in specs.items():
        if spec.parent is not None:
            children.setdefault(spec.parent, []).append(name)
    roots = [name for name, spec in specs.items() if spec.parent is None]

    def guaranteed(name: str, above: frozenset[str] = frozenset()) -> dict[GpuType, Gpus]:
        said = specs[name].guaranteed
        if said is not None:
            return {GpuType(kind): Gpus(count) for kind, count in said.items()}
        if roots == [name]:
            return dict(capacity)
        total: dict[GpuType, Gpus] = {}
        for child in children[name] if len(above) < _DEEP else ():  # a cycle, reported by lint, ends
            for kind, count in guaranteed(child, above | {name}).items():
                total[kind] = Gpus(total.get(kind, 0) + count)
        return total

    found = {}
    for name, spec in specs.items():
        account = _account(name, specs)
        found[QueueName(name)] = Queue(
            name=QueueName(name),
            parent=QueueName(spec.parent) if spec.parent is not None else None,
            guaranteed=guaranteed(name),
            ceiling={GpuType(kind): Gpus(count) for kind, count in spec.ceiling.items()},
            lend=_lend(spec.lend, types),
            weight=spec.weight,
            guaranteed_shape=spec.guaranteed_shape,
            run_as=SUBMITTER if account == "submitter" else account.user if account else "self",
            run_as_group=(account.group or "") if account and account != "submitter" else "",
            per_user_gpus=spec.limits.per_user.gpus,
            per_user_jobs=spec.limits.per_user.jobs,
        )
    return QuotaTree(queues=found)


def capacity_of(inventory: Inventory) -> dict[GpuType, Gpus]:
    """Declared GPUs by type, healthy or not: a dead node must not re-order queues."""
    found: dict[GpuType, Gpus] = {}
    for node in inventory.nodes:
        found[node.shape.gpu_type] = Gpus(found.get(node.shape.gpu_type, 0) + len(node.shape.gpus))
    return dict(sorted(found.items()))


_ALL: Final = Gpus(1_000_000)


def _lend(said: bool | Mapping[str, int], types: Iterable[str]) -> dict[GpuType, Gpus] | None:
    """None lends everything; otherwise a number for every type: those a mapping leaves out are not limited."""
    if said is True:
        return None
    limits = said or {}
    return {GpuType(kind): Gpus(limits.get(kind, _ALL) if said else 0) for kind in sorted({*types, *limits})}


def _account(name: str, specs: Mapping[str, Any]) -> Any:
    at, seen = name, set[str]()
    while at in specs and at not in seen and len(seen) < _DEEP:
        if specs[at].run_as is not None:
            return specs[at].run_as
        seen.add(at)
        at = specs[at].parent
    return None


def classes_of(items: Iterable[Item]) -> dict[ClassName, PriorityClass]:
    """The priority classes by name; one implicit class when there are none."""
    found = {
        ClassName(item.name): PriorityClass(
            name=ClassName(item.name),
            value=item.model.spec.value,
            preempts_lower=item.model.spec.preempts == "lower",
            preemptible=item.model.spec.preemptible,
            default=item.model.spec.default,
            min_runtime=item.model.spec.min_runtime,
            grace=item.model.spec.grace,
            max_per_day=item.model.spec.max_per_day,
            usage_permille=item.model.spec.counts_towards_fair_share // 1000,
            per_user_gpus=item.model.spec.max_gpus_per_user,
        )
        for item in sorted(items, key=lambda item: item.name)
    }
    return found or {IMPLICIT_CLASS.name: IMPLICIT_CLASS}


# --- rules ----------------------------------------------------------------------------------------------------------


def scheduling_of(spec: Any) -> Scheduling:
    """The rules decisions read."""
    said = spec.scheduling
    return Scheduling(
        order=said.order,
        preempt_same_queue=said.preempt_same_queue,
        preempt_other_queues=said.preempt_other_queues,
        victim_order=said.victim_order,
        jobs_may_pass=said.jobs_may_pass,
        min_runtime=said.min_runtime,
        max_min_runtime=said.max_min_runtime,
        cooldown=said.cooldown,
        max_per_day=said.max_per_day,
        gang_start_timeout=spec.agents.gang_start_timeout,
        kill_after=said.kill_after,
        avoid_for=said.avoid_for,
        default_time_limit=said.default_time_limit,
        half_life=said.fair_share.half_life,
        charge_ahead=said.fair_share.charge_ahead,
        backfill=said.backfill.mode,
        reservations=said.backfill.reservations,
        hold_for_starved_after=said.hold_for_starved_after,
        hold_max_share_ppm=said.hold_max_share,
        move_to_start=said.move_to_start,
        max_moves_per_start=said.max_moves_per_start,
        reclaim_straddlers=said.reclaim_straddlers,
        repair_wait=said.repair_wait,
        unlimited_counts_as=said.unlimited_counts_as,
        defragment_action=said.defragment.action,
        defragment_threshold_ppm=said.defragment.threshold,
        defragment_moves_per_hour=said.defragment.max_moves_per_hour,
    )


def agent_rules_of(spec: Any) -> AgentRules:
    """How silence is judged."""
    said = spec.agents
    return AgentRules(
        report_interval=said.report_interval,
        unreachable_after=said.unreachable_after,
        lost_after=said.lost_after,
        lease_margin=said.lease_margin,
        mass_loss_ppm=said.mass_loss.max_share,
    )


def slurm_rules_of(spec: Any) -> SlurmRules:
    """How work is handed to Slurm."""
    said = spec.slurm
    return SlurmRules(
        pin_gpus=said.pin_gpus == "auto",
        partition=said.partition,
        account=said.account,
        folder=said.folder.rstrip("/") or "/",
        poll_interval=said.poll_interval,
        timeout=said.timeout,
    )


def repository_rules_of(spec: Any) -> RepositoryRules:
    """How the record is kept."""
    said = spec.repository
    return RepositoryRules(
        desired_branch=said.desired_branch,
        state_branch=said.state_branch,
        poll_interval=said.poll_interval,
        cycle_interval=spec.scheduling.cycle_interval,
        observed_coalesce=said.observed.coalesce,
        mass_removal_ppm=said.mass_removal.max_share,
        rewrites_need_acknowledgement=said.rewrites_need_acknowledgement,
        require_signed_desired=said.require_signed_desired,
        victims_must_match_preview=said.victims_must_match_preview,
        authority_enforced=said.authority == "enforced",
        publish_interval=said.publish_interval,
        state_url=said.state.url,
        state_mirror=said.state.mirror_to,
    )


def accounts_of(users: Iterable[Item]) -> dict[str, str]:
    """The unix user of each person who has one, by name."""
    return {item.name: item.model.spec.unix_user for item in users if item.model.spec.unix_user is not None}


def windows_of(items: Iterable[Item]) -> tuple[Window, ...]:
    """Maintenance and reservations, one window a node, by beginning."""
    found = [
        Window(
            name=item.name,
            node=NodeName(node),
            begins=Instant(item.model.spec.from_),
            ends=Instant(item.model.spec.to),
            drain=item.model.spec.drain if item.kind == "Maintenance" else "wait",
            members=tuple(QueueName(q) for q in item.model.spec.queues) if item.kind == "Reservation" else (),
        )
        for item in items
        for node in item.model.spec.nodes
    ]
    return tuple(sorted(found, key=lambda window: (window.begins, window.node, window.name)))
