"""Where can this job go? A job turned into requests to the search, and the nodes it may not use.

A job becomes `Ask`s, best first: whole nodes before parts, and parts before scattered GPUs, each with the same
required levels. A block of ranks stays inside one domain: dimensions are laid out narrowest level first, so that a
group that must share a rack is a run of consecutive positions holding whole tensor groups; `ranks` maps positions
to ranks. The search itself is `topology.find`; who may be in the way is for `preemption`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from reconciler.model.allocation import Avoid
from reconciler.model.inventory import Node
from reconciler.model.job import Job, Locality, Spread
from reconciler.model.units import GpuType, Instant
from reconciler.planner.capacity import Supply
from reconciler.planner.ground import Ground
from reconciler.planner.memo import LIMIT, Memo
from reconciler.topology.capacity import Capacity
from reconciler.topology.even import find_even
from reconciler.topology.find import NoFit, Placement, Request, request
from reconciler.topology.roles import find_roles
from reconciler.topology.tree import ROOT, Level, NodeMask

Rows = tuple[tuple[int, int], ...]
"""(node number, GPU mask) in the order of positions; a node may come twice when two roles share it."""

Left = Callable[[int], tuple[int, int]]
"""CPUs and bytes of memory of a node that are not used yet."""

RETRIES: Final = 64  # nodes found short of CPU or memory one after the other, before the search is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One way to cut a gang: a request for each role, and the order in which dimensions are laid out. `even`: rather
    the same number of nodes in each rack it uses than as few racks as possible."""

    roles: tuple[Request, ...]
    layout: tuple[int, ...]
    even: bool = False

    @property
    def merged(self) -> bool:
        """True when the roles are one kind of rank, cut into whole nodes and a rest: positions go by node."""
        return bool(self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """GPUs found for a gang of one type, nothing bound yet."""

    gpu_type: GpuType
    rows: Rows
    layout: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """Why a gang found no place on one type's engine. `short` names what nodes with free GPUs lack."""

    gpu_type: GpuType
    numbers: NoFit
    ask: Ask
    short: str = ""
    proved: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """All that decides where a job fits. Jobs of equal demands share one object, compared by identity."""

    demands: tuple[object, ...]


def _shape(job: Job) -> Shape:
    demands = (
        job.gpus, job.gpu_types, job.dimensions, job.required, job.preferred, job.roles, job.spread, job.mixed_types,
        job.cpus_per_gpu, job.memory_per_gpu, job.tolerations, tuple(sorted(job.node_labels.items())),
    )  # fmt: skip
    if len(_shapes) >= LIMIT:
        _shapes.clear()
    return _shapes.setdefault(demands, Shape(demands))


_shapes: Final[dict[tuple[object, ...], Shape]] = {}
shape_of: Final = Memo(_shape)


def types_of(job: Job, ground: Ground) -> tuple[GpuType, ...]:
    """Declared GPU types it may use, in the order it wrote; a job that names none may use all."""
    return tuple(kind for kind in job.gpu_types or ground.types if kind in ground.members)


# --- the cuts of a gang ---


def asks_of(job: Job, ground: Ground, node_sizes: tuple[int, ...]) -> tuple[Ask, ...]:
    """Ways to cut the gang for nodes of these sizes (GPUs, smallest first), best first. Empty when it names a level the Fabric does not have, or cannot be cut."""
    if any(place.level not in ground.levels for place in job.required):
        return ()
    if job.roles:
        return _asks_of_roles(job, ground)
    wanted = layout_of(job, ground, preferences=True)
    needed = layout_of(job, ground, preferences=False)
    found = dict.fromkeys(_asks_in_layout(job, ground, node_sizes, wanted))
    if needed != wanted:
        found |= dict.fromkeys(_asks_in_layout(job, ground, node_sizes, needed))
    return tuple(found)


def layout_of(job: Job, ground: Ground, *, preferences: bool) -> tuple[int, ...]:
    """Indexes of the dimensions as positions vary, fastest first: narrowest level first, then as the ranks vary."""
    levels = _levels_of(job.preferred, ground) if preferences else {}
    levels |= _levels_of(job.required, ground)
    numbers = range(len(job.dimensions))
    return tuple(sorted(numbers, key=lambda i: (-levels.get(job.dimensions[i].name, ROOT), i))) or (0,)


def _levels_of(places: tuple[Locality, ...], ground: Ground) -> dict[str, Level]:
    """The narrowest level named for each group."""
    found: dict[str, Level] = {}
    for place in places:
        level = ground.levels.get(place.level)
        if level is not None:
            found[place.group] = max(level, found.get(place.group, ROOT))
    return found


def _required(job: Job, ground: Ground) -> dict[str, Level]:
    """The level each group has to stay inside; the whole gang always inside one engine's nodes."""
    found = _levels_of(job.required, ground)
    return found | {"job": max(found.get("job", ROOT), ground.floor)}


def _blocks(job: Job, layout: tuple[int, ...], levels: Mapping[str, Level]) -> list[tuple[int, Level]]:
    """(GPUs, level) of each dimension that has a level: a run of so many positions lies inside one domain."""
    found, size = [], 1
    for number in layout[: len(job.dimensions)]:
        dimension = job.dimensions[number]
        size *= dimension.size
        if dimension.name in levels and dimension.size > 1:
            found.append((size, levels[dimension.name]))
    return found


def _asks_in_layout(job: Job, ground: Ground, node_sizes: tuple[int, ...], layout: tuple[int, ...]) -> Iterator[Ask]:
    required, preferred = _required(job, ground), _levels_of(job.preferred, ground)
    blocks = _blocks(job, layout, required)
    soft = [size for size, level in _blocks(job, layout, preferred) if level <= ground.tree.leaf_level]
    inside = max([1, *(size for size, level in blocks if level > ground.tree.leaf_level)])

    def cut(workers: int, gpus_each: int, groups: list[tuple[int, Level]], soft_group: int = 0) -> Request:
        return request(
            ground.tree, workers=workers, gpus_each=gpus_each, required=required["job"],
            preferred=preferred.get("job"), groups=groups, soft_group=soft_group,
        )  # fmt: skip

    for sizes in _sizes(job.gpus, node_sizes, inside):
        try:
            if len(sizes) == 1:
                soft_group = next((size for size in reversed(soft) if size % sizes[0] == 0 and job.gpus % size == 0), 0)
                roles: tuple[Request, ...] = (cut(job.gpus // sizes[0], sizes[0], blocks, soft_group),)
            else:  # whole nodes and a rest: blocks must lie inside a node, or the rest would tear one
                within = [(size, level) for size, level in blocks if sizes[0] % size == 0 and sizes[1] % size == 0]
                if len(within) < len(blocks):
                    continue
                whole = job.gpus // sizes[0]
                roles = (cut(whole, sizes[0], within), cut(1, sizes[1], within))
        except ValueError:  # these sizes do not divide one another; the next cut may do
            continue
        yield Ask(roles=roles, layout=layout, even=job.spread is Spread.EVEN)


def _sizes(gpus: int, node_sizes: tuple[int, ...], inside: int) -> Iterator[tuple[int, ...]]:
    """GPUs of a worker for each cut; two numbers are whole nodes and the rest. `inside` is the least a node must hold."""
    for size in reversed(node_sizes):
        if gpus <= size:
            yield (gpus,)
        elif gpus % size == 0:
            yield (size,)
        else:
            yield (size, gpus % size)
    for size in reversed(node_sizes):
        yield (gcd(gpus, size),)
    yield (inside,)


def _asks_of_roles(job: Job, ground: Ground) -> tuple[Ask, ...]:
    """Unlike members: each inside one node, all inside the level required of the job."""
    required = _required(job, ground)["job"]
    preferred = _levels_of(job.preferred, ground).get("job")
    roles = tuple(
        request(ground.tree, workers=role.workers, gpus_each=role.gpus_each, required=required, preferred=preferred)
        for role in job.roles
    )
    return (Ask(roles=roles, layout=()),)


# --- the search ---


def fit(supply: Supply, gpu_type: GpuType, job: Job, asks: tuple[Ask, ...], refused: NodeMask) -> Spot | Unfit | None:
    """The best spot on what the type's engine offers now; None when the gang cannot be cut for this type at all."""
    engine = supply.engines[gpu_type]
    return fit_on(engine, gpu_type, job, asks, refused, supply.resources_left)


def fits_empty(ground: Ground, gpu_type: GpuType, job: Job, refused: NodeMask) -> Spot | Unfit | None:
    """The same on an empty, healthy cluster: Unfit means never."""
    whole = ground.unbroken or ground
    asks = asks_of(job, whole, whole.node_sizes[gpu_type])
    return fit_on(whole.empty(gpu_type), gpu_type, job, asks, refused, whole.resources_of)


def fits_with_links(
    supply: Supply, unbroken: Supply, gpu_type: GpuType, job: Job, refused: NodeMask
) -> Spot | Unfit | None:
    """The same as `fit`, if every link were up: `unbroken` is the supply of the unbroken ground."""
    asks = asks_of(job, unbroken.ground, unbroken.ground.node_sizes[gpu_type])
    return fit_on(unbroken.engines[gpu_type], gpu_type, job, asks, refused, supply.resources_left)


def fit_on(
    engine: Capacity, gpu_type: GpuType, job: Job, asks: tuple[Ask, ...], refused: NodeMask, left: Left
) -> Spot | Unfit | None:
    """The same on any engine; `left`: CPUs and memory that nodes still have."""
    found: Spot | Unfit | None = None
    with _refusing(engine, refused):
        for ask in asks:
            found = _search(engine, gpu_type, job, ask, left)
            if isinstance(found, Spot):
                break
    return found


@contextmanager
def _refusing(engine: Capacity, refused: NodeMask) -> Iterator[None]:
    if not refused:
        yield
        return
    with engine.refusing(refused):
        yield


def _search(engine: Capacity, gpu_type: GpuType, job: Job, ask: Ask, left: Left) -> Spot | Unfit:
    """One cut. Nodes found short of CPU or memory are masked out and the search is repeated."""
    found = _found(engine, ask)
    if isinstance(found, NoFit):
        return Unfit(gpu_type=gpu_type, numbers=found, ask=ask, proved=found.proved)
    rows = _rows(engine, found, ask)
    if not job.cpus_per_gpu and not job.memory_per_gpu:
        return Spot(gpu_type=gpu_type, rows=rows, layout=ask.layout)
    short, name = 0, ""
    for _ in range(RETRIES):
        lacking, lacks = _short_nodes(job, rows, left)
        if not lacking:
            return Spot(gpu_type=gpu_type, rows=rows, layout=ask.layout)
        short, name = short | lacking, name or lacks
        with engine.refusing(short):
            found = _found(engine, ask)
        if isinstance(found, NoFit):
            return Unfit(gpu_type=gpu_type, numbers=found, ask=ask, short=name, proved=found.proved)
        rows = _rows(engine, found, ask)
    numbers = replace(_no_numbers(engine, ask), proved=False)
    return Unfit(gpu_type=gpu_type, numbers=numbers, ask=ask, short=name, proved=False)


def _found(engine: Capacity, ask: Ask) -> tuple[Placement, ...] | NoFit:
    if ask.even and len(ask.roles) == 1:
        even = find_even(engine, ask.roles[0])
        if even is not None:
            return (even,)
    return find_roles(engine, ask.roles)


def _no_numbers(engine: Capacity, ask: Ask) -> NoFit:
    free = engine.free_gpus()
    need = sum(role.gpus for role in ask.roles)
    return NoFit(
        level=ROOT, need=need, free=free, best_domain=0, best_fit=0, best_free=free, groups_fit=0, groups_need=1
    )


def _rows(engine: Capacity, found: tuple[Placement, ...], ask: Ask) -> Rows:
    rows = [row for part in found for row in part.nodes(engine)]
    return tuple(sorted(rows)) if ask.merged and len(found) > 1 else tuple(rows)


def _short_nodes(job: Job, rows: Rows, left: Left) -> tuple[NodeMask, str]:
    """Nodes of a spot that have the GPUs but not the CPUs or memory beside them, and which of the two."""
    wanted: dict[int, int] = {}
    for node, mask in rows:
        wanted[node] = wanted.get(node, 0) + mask.bit_count()
    lacking, name = 0, ""
    for node, gpus in wanted.items():
        cpus, memory = left(node)
        lacks = "CPU" if gpus * job.cpus_per_gpu > cpus else "memory" if gpus * job.memory_per_gpu > memory else ""
        if lacks:
            lacking, name = lacking | 1 << node, name or lacks
    return lacking, name


def refused_nodes(job: Job, ground: Ground, *, soft_taints: bool = False) -> NodeMask:
    """Nodes whose labels do not match or whose taints it does not tolerate; `soft_taints`: PreferNoSchedule too."""
    if not job.node_labels and not ground.tainted:
        return 0
    refused = 0
    for index, node in enumerate(ground.nodes):
        if not _accepts(node, job, soft_taints):
            refused |= 1 << index
    return refused


def _accepts(node: Node, job: Job, soft_taints: bool) -> bool:
    effects = ("NoSchedule", "PreferNoSchedule") if soft_taints else ("NoSchedule",)
    if any(node.labels.get(name) != value for name, value in job.node_labels.items()):
        return False
    return all(
        taint.effect not in effects or taint.key in job.tolerations or f"{taint.key}={taint.value}" in job.tolerations
        for taint in node.taints
    )


def avoided_nodes(avoid: tuple[Avoid, ...], ground: Ground, now: Instant) -> list[NodeMask]:
    """Masks of nodes to keep away from, to be tried in turn: all of them first, then without the oldest entries."""
    index_of = ground.tree.index_of
    bits = [1 << index_of[entry.node] for entry in avoid if entry.until > now and entry.node in index_of]
    masks = [0]
    for bit in reversed(bits):
        masks.append(masks[-1] | bit)
    return masks[::-1]
