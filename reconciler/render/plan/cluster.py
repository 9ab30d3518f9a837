"""The cluster before and after a change: its numbers, the use of every queue, and each rack node by node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from reconciler.documents.hostlist import fold
from reconciler.model.allocation import Allocation, JobRecord, Placement
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.inventory import Inventory, Node
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.units import GpuType, JobKey, NodeName, QueueName
from reconciler.planner.capacity import Supply
from reconciler.planner.ground import ground_of
from reconciler.planner.memo import masks_of
from reconciler.planner.quota_tree import Branches
from reconciler.render.plan.model import Finding, Numbers, QuotaLine, Rack
from reconciler.topology.drift import Drift, Effect, effective, node_drift
from reconciler.topology.fragmentation import stranded_gpus

_MILLION = 1_000_000
_DECLARED_CALM = frozenset({"Cordoned"})
"""Drift that somebody declared is no news."""


class Nodes:
    """The declared nodes of one side by name, and what of them is usable."""

    __slots__ = ("by_name", "inventory", "supply", "usable")

    def __init__(self, inventory: Inventory, observed: Observed, allocation: Allocation) -> None:
        live = {r.job: r.attempt for r in allocation.jobs.values() if r.state.holds_gpus}
        self.inventory = inventory
        self.by_name = {node.name: node for node in inventory.nodes}
        self.supply = Supply(ground_of(inventory), observed, live, (), ())
        ground = self.supply.ground
        self.usable = {node.name: self.supply.usable[index] for index, node in enumerate(ground.nodes)}

    def supply_with(self, placements: Iterable[Placement]) -> Supply:
        """What is free when exactly these hold their GPUs."""
        return self.supply.with_held(masks_of(one) for one in placements)

    def gpu_type(self, placement: Placement) -> GpuType | None:
        """The type of the first of its nodes that is declared."""
        return next((self.by_name[n].shape.gpu_type for n in masks_of(placement) if n in self.by_name), None)

    def racks(self, placement: Placement) -> set[str]:
        return {self.by_name[n].rack for n in masks_of(placement) if n in self.by_name and self.by_name[n].path}


def lasting(record: JobRecord) -> Placement | None:
    """The place a job has once everything that stops has stopped: what it was promised, else what it goes on with."""
    if record.promise is not None:
        return record.promise.placement
    return record.placement if record.state.holds_gpus and record.state is not JobState.STOPPING else None


def numbers_of(allocation: Allocation, nodes: Nodes) -> Numbers:
    """The numbers of a decision once everything that stops has stopped, and how much of its big gangs' GPUs are in gangs that span racks."""
    settled = [placement for record in allocation.jobs.values() if (placement := lasting(record)) is not None]
    supply = nodes.supply_with(settled)
    engines = supply.engines.values()
    idle = sum(engine.free_gpus() for engine in engines)
    stranded = sum(stranded_gpus(engine) for engine in engines)
    spread = across = 0
    for placement in settled:
        if len(masks_of(placement)) > 1:
            spread += len(placement.ranks)
            across += len(placement.ranks) if len(nodes.racks(placement)) > 1 else 0
    return Numbers(
        capacity=sum(mask.bit_count() for mask in supply.usable),
        busy=sum(len(placement.ranks) for placement in settled),
        idle=idle,
        stranded=stranded,
        phi_ppm=stranded * _MILLION // idle if idle else 0,
        cross_rack_ppm=across * _MILLION // spread if spread else 0,
    )


# --- quotas ---


Use = Mapping[tuple[QueueName, GpuType], int]


def quota_lines(
    before: tuple[Desired, Allocation], after: tuple[Desired, Allocation], nodes: tuple[Nodes, Nodes]
) -> Iterator[QuotaLine]:
    """A line for each queue and GPU type that has or uses anything, children beneath their parents."""
    one, other = before[0], after[0]
    shares = (_branches(one, nodes[0]), _branches(other, nodes[1]))
    use = (_use(before[1], one, nodes[0]), _use(after[1], other, nodes[1]))
    for name, depth in tree_order(other):
        for kind in sorted({*nodes[1].supply.ground.types}):
            used, will_use = use[0].get((name, kind), 0), use[1].get((name, kind), 0)
            guaranteed, ceiling = _share(shares[1], other, name, kind)
            if not (guaranteed or used or will_use):
                continue
            was_guaranteed, was_ceiling = _share(shares[0], one, name, kind)
            yield QuotaLine(
                queue=name, depth=depth, gpu_type=kind, guaranteed=guaranteed, ceiling=ceiling, before=used,
                after=will_use,
                guaranteed_before=was_guaranteed if was_guaranteed != guaranteed else None,
                ceiling_before=was_ceiling if was_ceiling != ceiling else None,
                over_ceiling=_over(will_use, was_ceiling, ceiling),
            )  # fmt: skip


def _over(used: int, was: int | None, ceiling: int | None) -> int:
    """GPUs in use above a ceiling that is new or lower than it was; above one of before is no news."""
    if ceiling is None or (was is not None and was <= ceiling):
        return 0
    return max(0, used - ceiling)


def tree_order(desired: Desired) -> Iterator[tuple[QueueName, int]]:
    """Queues and their depth, each below its parent."""
    below: dict[QueueName | None, list[QueueName]] = {}
    queues = desired.quotas.queues
    for name in sorted(queues):
        parent = queues[name].parent
        below.setdefault(parent if parent in queues else None, []).append(name)
    ahead = [(name, 0) for name in reversed(below.get(None, []))]
    while ahead:
        name, depth = ahead.pop()
        yield name, depth
        ahead += [(child, depth + 1) for child in reversed(below.get(name, []))]


def _branches(desired: Desired, nodes: Nodes) -> Branches:
    return Branches(desired.quotas, nodes.supply.ground.declared)


def _share(branches: Branches, desired: Desired, name: QueueName, kind: GpuType) -> tuple[int, int | None]:
    if name not in desired.quotas.queues or name not in branches.names:
        return 0, None
    shares, number = branches.shares(kind), branches.names.index(name)
    return shares.guaranteed[number], shares.ceiling[number]


def _use(allocation: Allocation, desired: Desired, nodes: Nodes) -> Use:
    own: dict[tuple[QueueName, GpuType], int] = {}
    for record in allocation.jobs.values():
        placement = lasting(record)
        kind = nodes.gpu_type(placement) if placement is not None else None
        if placement is not None and kind is not None:
            own[record.queue, kind] = own.get((record.queue, kind), 0) + len(placement.ranks)
    found: dict[tuple[QueueName, GpuType], int] = {}
    for (leaf, kind), gpus in own.items():
        for queue in desired.quotas.path(leaf):
            found[queue, kind] = found.get((queue, kind), 0) + gpus
    return found


# --- racks ---


def rack_lines(before: Allocation, after: Allocation, nodes: Nodes) -> Iterator[Rack]:
    """A rack a line, in the order of groups, racks, nodes; a letter a node."""
    was, will = _lasting_masks(before), _lasting_masks(after)
    ordered = sorted(nodes.inventory.nodes, key=lambda node: (node.path, node.name))
    for path, members in groupby(ordered, key=lambda node: node.path):
        row = list(members)
        yield Rack(
            group="/".join(path[:-1]),
            rack=path[-1] if path else "",
            nodes=fold([node.name for node in row]),
            cells="".join(_cell(node, was, will, nodes.usable[node.name]) for node in row),
        )


def _lasting_masks(allocation: Allocation) -> dict[NodeName, dict[str, int]]:
    found: dict[NodeName, dict[str, int]] = {}
    for record in allocation.jobs.values():
        placement = lasting(record)
        for node, mask in masks_of(placement).items() if placement is not None else ():
            found.setdefault(node, {})[record.job] = mask
    return found


def _cell(node: Node, was: Mapping[NodeName, Mapping[str, int]], will: Mapping[NodeName, Mapping[str, int]],
          usable: int) -> str:  # fmt: skip
    one, other = was.get(node.name, {}), will.get(node.name, {})
    gone = any(mask & ~other.get(job, 0) for job, mask in one.items())
    new = any(mask & ~one.get(job, 0) for job, mask in other.items())
    if gone or new:
        return "R" if gone and new else "P" if gone else "N"
    if node.cordoned:
        return "d"
    if not usable:
        return "x"
    free = (usable & ~_union(other.values())).bit_count()
    return "#" if not free else str(free) if free < 10 else "+"


def _union(masks: Iterable[int]) -> int:
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


# --- drift ---


def drift_lines(nodes: Nodes, known: Nodes | None) -> Iterator[Finding]:
    """Nodes that offer less than they were declared with, but for what somebody declared.

    `known`: the base; what is the same there is not new.
    """
    old = {(d.node, d.code) for d in known.supply.outages} if known is not None else set()
    for drift in nodes.supply.outages:
        if drift.code.value not in _DECLARED_CALM:
            detail = f"{counted(drift.gpus, 'GPU')} not usable"
            yield Finding(
                code=drift.code.value, severity="warning", summary=drift.node,
                detail=f"{detail}: {drift.detail}" if drift.detail else detail,
                new=(drift.node, drift.code) not in old,
            )  # fmt: skip


Placed = Mapping[NodeName, Sequence[JobKey]]
"""Jobs that a change gives a place, by node."""


def hardware_lines(after: Inventory, before: Inventory, observed: Observed, placed: Placed) -> Iterator[Finding]:
    """Hardware that is not as declared, where it matters: it splits an NVLink domain or takes a rail away, or a job of
    the change is placed on it. What takes capacity away is among `drift_lines` already.
    """
    old = set(_matters(before, observed, placed)) if before is not after else set()
    for drift in _matters(after, observed, placed):
        jobs = placed.get(drift.node, ())
        told = f"; {jobs[0]} is placed there" if len(jobs) == 1 else f"; {len(jobs)} jobs are placed there"
        yield Finding(
            code=drift.code.value, severity="warning", summary=drift.node,
            detail=f"{drift.sentence} ({drift.effect})" + (told if jobs else ""), new=drift not in old,
        )  # fmt: skip


def _matters(inventory: Inventory, observed: Observed, placed: Placed) -> Iterator[Drift]:
    for node, usable in zip(inventory.nodes, effective(inventory, observed).nodes, strict=True):
        seen = observed.nodes.get(node.name)
        if seen is None or (usable is node and node.name not in placed):
            continue
        for drift in node_drift(node, seen, inventory.switches.get(node.rack, ()) if node.path else ()):
            if drift.effect is not Effect.CAPACITY_REMOVED and (drift.is_grave or node.name in placed):
                yield drift
