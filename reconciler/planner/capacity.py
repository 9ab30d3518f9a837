"""Which GPUs may be given out? Declared, seen healthy, open for new work, and bound to nobody.

`Supply` is one decision's view: an engine for each GPU type, what every node may still offer, and for each node that
offers less than declared the reason (outage). It knows masks, no jobs: who gets what is for `placement`,
`preemption` and `decide`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.model.allocation import Allocation
from reconciler.model.inventory import Node
from reconciler.model.observed import GpuReport, NodeCondition, NodeObservation, Observed
from reconciler.model.units import Gpus, GpuType, JobKey, NodeName
from reconciler.planner.ground import Ground
from reconciler.planner.memo import Memo
from reconciler.topology.capacity import Capacity

Masks = Mapping[NodeName, int]
"""GPU bit masks by node."""


class OutageCode(StrEnum):
    """Why a node offers less than it was declared with. The first that applies is named."""

    DEAD = "Dead"
    NOT_OBSERVED = "NotObserved"
    LOST = "Lost"
    UNREACHABLE = "Unreachable"
    CORDONED = "Cordoned"
    UNHEALTHY = "Unhealthy"
    TYPE_DIFFERS = "TypeDiffers"
    STRAY_ATTEMPT = "StrayAttempt"
    GPU_FAILED = "GpuFailed"
    GPU_MISSING = "GpuMissing"
    FOREIGN_PROCESS = "ForeignProcess"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """GPUs that a node was declared with and does not offer: how many, and in a word more (an owner, a hook's reason).

    How a machine differs in detail from what was declared of it is `topology.drift`.
    """

    node: NodeName
    code: OutageCode
    gpus: Gpus
    detail: str = ""


class Supply:
    """What is free in one decision. `usable`, `held` and `promised` are GPU masks by node number.

    No GPU can be bound twice: the engines raise BrokenInvariant. A GPU that is held while its node is down or
    cordoned stays bound and is not offered when it is released.
    """

    __slots__ = (
        "claimed", "cpus", "outages", "engines", "ground", "held", "memory", "promised", "reduced", "usable",
    )  # fmt: skip

    def __init__(self, ground: Ground, observed: Observed, live: Mapping[JobKey, int], held: Iterable[Masks],
                 promised: Iterable[Masks]) -> None:  # fmt: skip
        """`live`: the attempt of each job that holds GPUs; `held`, `promised`: masks to begin with."""
        self.ground = ground
        size = len(ground.nodes)
        self.usable, self.held, self.promised, self.claimed = [0] * size, [0] * size, [0] * size, [0] * size
        self.cpus, self.memory = [0] * size, [0] * size
        self.reduced: list[int] = []
        self.engines = {kind: ground.engine(kind) for kind in ground.types}
        self.outages = tuple(self._observe(observed, live))
        self._begin(held, promised)

    def _begin(self, held: Iterable[Masks], promised: Iterable[Masks]) -> None:
        index_of = self.ground.tree.index_of
        for target, masks in ((self.held, held), (self.promised, promised)):
            for gang in masks:
                for node, mask in gang.items():
                    if node in index_of:
                        target[index_of[node]] |= mask
        self._bind_all()

    def with_held(self, held: Iterable[Masks]) -> Supply:
        """A supply of its own of the same nodes, seen as they were, in which these masks are held and nothing else is."""
        other = object.__new__(Supply)
        size = len(self.ground.nodes)
        other.ground, other.outages = self.ground, self.outages
        other.usable, other.reduced = list(self.usable), list(self.reduced)
        other.held, other.promised, other.claimed = [0] * size, [0] * size, [0] * size
        other.cpus, other.memory = [0] * size, [0] * size
        other.engines = {kind: self.ground.engine(kind) for kind in self.ground.types}
        other._begin(held, ())
        return other

    def _observe(self, observed: Observed, live: Mapping[JobKey, int]) -> Iterator[Outage]:
        for index, node in enumerate(self.ground.nodes):
            seen = observed.nodes.get(node.name)
            code, detail = _closed_because(node, seen, live)
            whole = node.shape.all_gpus
            if code is not None or seen is None:
                self.reduced.append(index)
                yield Outage(node=node.name, code=code or OutageCode.NOT_OBSERVED, gpus=Gpus(whole.bit_count()),
                            detail=detail)  # fmt: skip
                continue
            health = _health_of(seen.gpus)
            usable = self.usable[index] = whole & health.good & ~node.failed
            if usable != whole:
                self.reduced.append(index)
                yield from _gpu_outages(node, usable, health)

    def _bind_all(self) -> None:
        """Take from the engines all that is not on offer, once a node."""
        tree, usable, held, promised = self.ground.tree, self.usable, self.held, self.promised
        for kind, engine in self.engines.items():
            full: dict[int, int] = {}  # slots of wholly bound nodes by leaf: one change each
            for index in self.ground.members[kind]:
                whole = self.ground.whole[index]
                taken = whole & (~usable[index] | held[index] | promised[index])
                if taken == whole and whole:
                    full[tree.leaf_of[index]] = full.get(tree.leaf_of[index], 0) | 1 << tree.slot_of[index]
                elif taken:
                    engine.take(index, taken)
            for leaf, slots in full.items():
                engine.take_whole(leaf, slots)

    def engine_without(self, gpu_type: GpuType, bound: Mapping[int, int]) -> Capacity:
        """An engine of its own with what would be on offer if only these GPUs, by node number, were held."""
        engine = self.ground.engine(gpu_type)
        for index in self.ground.members[gpu_type]:
            taken = self.ground.whole[index] & (~self.usable[index] | bound.get(index, 0) | self.promised[index])
            if taken:
                engine.take(index, taken)
        return engine

    def resources_left(self, index: int) -> tuple[int, int]:
        """CPUs and bytes of memory of a node beside those of gangs that hold GPUs there or were promised some."""
        cpus, memory = self.ground.resources_of(index)
        return cpus - self.cpus[index], memory - self.memory[index]

    def charge(self, masks: Masks, cpus_per_gpu: int, memory_per_gpu: int) -> None:
        """Count a gang's CPUs and memory as used; negative numbers count them back."""
        if not cpus_per_gpu and not memory_per_gpu:
            return
        for node, mask in masks.items():
            index = self.ground.tree.index_of.get(node)
            if index is not None:
                self.cpus[index] += mask.bit_count() * cpus_per_gpu
                self.memory[index] += mask.bit_count() * memory_per_gpu

    def overlap(self, masks: Masks, bound: list[int]) -> int:
        """GPUs of a gang's masks that are also in `held` or in `promised`."""
        index_of = self.ground.tree.index_of
        return sum((mask & bound[index_of[node]]).bit_count() for node, mask in masks.items() if node in index_of)

    def unclaimed(self, masks: Masks) -> int:
        """GPUs of a leaving gang that will be free for anyone: usable, and promised to nobody."""
        index_of, usable, promised = self.ground.tree.index_of, self.usable, self.promised
        places = ((index_of[node], mask) for node, mask in masks.items() if node in index_of)
        return sum((mask & usable[index] & ~promised[index]).bit_count() for index, mask in places)

    def hold(self, masks: Masks) -> None:
        """Bind free GPUs, or GPUs promised to the same gang, to it."""
        self._bind(masks, self.held)

    def unhold(self, masks: Masks) -> None:
        """GPUs that a gang has let go of: free for all, unless promised or claimed."""
        for node, mask in masks.items():
            index = self.ground.tree.index_of.get(node)
            if index is not None:
                self.held[index] &= ~mask
                free = mask & self.usable[index] & ~self.promised[index] & ~self.claimed[index]
                if free:
                    self.engines[self.ground.nodes[index].shape.gpu_type].give(index, free)

    def keep(self, masks: Masks) -> None:
        """Promise GPUs; those still held by others are bound already and stay so."""
        self._bind(masks, self.promised)

    def _bind(self, masks: Masks, target: list[int]) -> None:
        for node, mask in masks.items():
            index = self.ground.tree.index_of[node]
            free = mask & self.usable[index] & ~self.held[index] & ~self.promised[index] & ~self.claimed[index]
            if free:
                self.engines[self.ground.nodes[index].shape.gpu_type].take(index, free)
            target[index] |= mask

    def claim(self, masks: Mapping[int, int]) -> None:
        """Offer these GPUs (by node number, claimed by nobody yet) to nobody: someone who waits has claimed them."""
        for index, mask in masks.items():
            free = mask & self.usable[index] & ~self.held[index] & ~self.promised[index]
            if free:
                self.engines[self.ground.nodes[index].shape.gpu_type].take(index, free)
            self.claimed[index] |= mask

    def unclaim(self, masks: Mapping[int, int]) -> None:
        """Take a claim back."""
        for index, mask in masks.items():
            self.claimed[index] &= ~mask
            free = mask & self.usable[index] & ~self.held[index] & ~self.promised[index]
            if free:
                self.engines[self.ground.nodes[index].shape.gpu_type].give(index, free)

    def unkeep(self, masks: Masks) -> None:
        """Take a promise back."""
        for node, mask in masks.items():
            index = self.ground.tree.index_of.get(node)
            if index is not None:
                self.promised[index] &= ~mask
                free = mask & self.usable[index] & ~self.held[index] & ~self.claimed[index]
                if free:
                    self.engines[self.ground.nodes[index].shape.gpu_type].give(index, free)

    def give(self, gpu_type: GpuType, masks: Masks) -> None:
        """Offer the GPUs of a gang inside a trial, as if it were gone: those usable, promised to nobody and claimed by nobody."""
        engine, nodes = self.engines[gpu_type], self.ground.nodes
        for node, mask in masks.items():
            index = self.ground.tree.index_of.get(node)
            if index is not None:
                free = mask & self.usable[index] & ~self.promised[index] & ~self.claimed[index]
                if free and nodes[index].shape.gpu_type == gpu_type:
                    engine.give(index, free)

    @contextmanager
    def everything_open(self, gpu_type: GpuType) -> Iterator[None]:
        """A trial in which every declared GPU that nobody holds or was promised is on offer, whatever its node's state."""
        engine = self.engines[gpu_type]
        with engine.trial():
            for index in self.reduced:
                if self.ground.nodes[index].shape.gpu_type != gpu_type:
                    continue
                whole = self.ground.whole[index]
                shut = whole & ~self.usable[index] & ~self.held[index] & ~self.promised[index]
                if shut:
                    engine.give(index, shut)
            yield

    def shut(self, gpu_type: GpuType) -> int:
        """GPUs that nobody holds or was promised, and that the state of their nodes keeps from being on offer."""
        return sum(
            (self.ground.whole[n] & ~self.usable[n] & ~self.held[n] & ~self.promised[n]).bit_count()
            for n in self.reduced if self.ground.nodes[n].shape.gpu_type == gpu_type
        )  # fmt: skip

    @contextmanager
    def promises_open(self, gpu_type: GpuType, idle: Iterable[tuple[int, int]]) -> Iterator[None]:
        """A trial in which these GPUs, which promises leave idle (`left_idle`), are on offer."""
        engine = self.engines[gpu_type]
        with engine.trial():
            for index, free in idle:
                engine.give(index, free)
            yield

    def left_idle(self, gpu_type: GpuType, promises: Iterable[Masks]) -> Iterator[tuple[int, int]]:
        """GPUs of these promises that nobody holds any more, as (node number, mask)."""
        for masks in promises:
            for node, mask in masks.items():
                index = self.ground.tree.index_of.get(node)
                free = mask & self.usable[index] & ~self.held[index] if index is not None else 0
                if free and index is not None and self.ground.nodes[index].shape.gpu_type == gpu_type:
                    yield index, free


def outages_of(ground: Ground, observed: Observed, allocated: Allocation) -> tuple[Outage, ...]:
    """Every outage, by node; for people, not for decisions."""
    live = {r.job: r.attempt for r in allocated.jobs.values() if r.state.holds_gpus}
    return Supply(ground, observed, live, (), ()).outages


def _closed_because(
    node: Node, seen: NodeObservation | None, live: Mapping[JobKey, int]
) -> tuple[OutageCode | None, str]:
    """The first reason why a node takes no new work at all, None when it does."""
    if node.dead:
        return OutageCode.DEAD, ""
    if seen is None:
        return OutageCode.NOT_OBSERVED, ""
    if seen.condition is NodeCondition.LOST:
        return OutageCode.LOST, ""
    if seen.condition is NodeCondition.UNREACHABLE:
        return OutageCode.UNREACHABLE, ""
    if node.cordoned:
        return OutageCode.CORDONED, node.cordoned
    if seen.unhealthy:
        return OutageCode.UNHEALTHY, seen.unhealthy
    if seen.gpu_type and not node.shape.goes_by(seen.gpu_type):
        return OutageCode.TYPE_DIFFERS, seen.gpu_type
    for report in seen.attempts:
        # Processes of an attempt that nobody holds any more: their GPUs are not free, whatever the record says.
        if not report.state.released and live.get(report.job) != report.attempt:
            return OutageCode.STRAY_ATTEMPT, f"{report.job} attempt {report.attempt}"
    return None, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Health:
    """Masks of GPUs as a node reports them; `owner` names a process that is not ours, `fault` what the first is ill with."""

    present: int
    good: int
    foreign: int
    owner: str
    fault: str


def _read_health(gpus: tuple[GpuReport, ...]) -> _Health:
    foreign = [gpu for gpu in gpus if gpu.foreign]
    return _Health(
        present=sum(1 << gpu.index for gpu in gpus),
        good=sum(1 << gpu.index for gpu in gpus if gpu.is_usable),
        foreign=sum(1 << gpu.index for gpu in foreign),
        owner=foreign[0].foreign if foreign else "",
        fault=next((f"GPU {gpu.index}: {gpu.fault}" for gpu in gpus if gpu.fault), ""),
    )


_health_of: Final = Memo(_read_health)


def _gpu_outages(node: Node, usable: int, health: _Health) -> Iterator[Outage]:
    """One row for each kind of GPU that is not usable on a node that is."""
    whole, foreign, owner = node.shape.all_gpus, health.foreign & ~node.failed, health.owner
    missing = whole & ~health.present & ~node.failed
    broken = whole & ~usable & ~missing & ~foreign
    for code, mask, detail in (
        (OutageCode.GPU_FAILED, broken, health.fault),
        (OutageCode.GPU_MISSING, missing, ""),
        (OutageCode.FOREIGN_PROCESS, foreign & whole, owner),
    ):
        if mask:
            yield Outage(node=node.name, code=code, gpus=Gpus(mask.bit_count()), detail=detail)
