"""The inventory as numbers: node 17, level 2, the mask of all its GPUs. Made once for an inventory.

Levels of the Fabric that lie inside a node all mean its NVLink islands. Where several engines start work, each has a
domain of its own just below the cluster, at a level that no Fabric names and that every gang lies inside: so no search
has to know that a gang cannot span engines. What is free, healthy or open is for `capacity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.model.inventory import Inventory, Node
from reconciler.model.observed import Observed
from reconciler.model.units import CLUSTER_LEVEL, NODE_LEVEL, NVLINK_LEVEL, Gpus, GpuType, LevelName, NodeName
from reconciler.topology.capacity import Capacity
from reconciler.topology.drift import effective, split_off
from reconciler.topology.tree import ROOT, Level, Tree, build_tree, node_shape

NOTHING_SEEN: Final = Observed()
_ENGINE_LEVEL: Final = "(engine)"  # no name that a document could use


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The inventory as numbers: node 17 is `nodes[17]`, in the tree's order. `levels` has every level's name.

    `floor` is the outermost level that a gang may span: the cluster, or where there are several engines that of one.
    """

    inventory: Inventory
    tree: Tree
    nodes: tuple[Node, ...]
    whole: tuple[int, ...]  # mask of all GPUs, by node number
    types: tuple[GpuType, ...]
    members: Mapping[GpuType, tuple[int, ...]]
    levels: Mapping[LevelName, Level]
    floor: Level
    tainted: bool
    largest: Mapping[GpuType, tuple[Gpus, ...]]  # GPUs of the largest domain of each level, outermost first
    islands: Mapping[GpuType, frozenset[int]]  # the sizes of NVLink islands inside nodes
    node_sizes: Mapping[GpuType, tuple[int, ...]]  # GPUs of a node, smallest first
    declared: Mapping[GpuType, int]  # GPUs of each type, healthy or not
    gpus_by_node: Mapping[NodeName, int]

    unbroken: Ground | None = None  # the same with every link up, when nodes were seen to have lost some
    torn: Mapping[int, int] = field(default_factory=dict)  # GPUs that lost NVLinks, by node number

    _empty: dict[GpuType, Capacity] = field(default_factory=dict, repr=False, compare=False)

    @property
    def block_level(self) -> Level | None:
        """The level above node at which GPUs share NVLink (NVL72), if there is one."""
        level = self.levels.get(NVLINK_LEVEL)
        return level if level is not None and level <= self.tree.leaf_level else None

    def level_name(self, level: Level) -> LevelName:
        """The Fabric's name of a level of the tree; an engine's part of the cluster goes by the cluster's."""
        if level <= self.floor:
            return CLUSTER_LEVEL
        return next((name for name, number in self.levels.items() if number == level), LevelName("node"))

    def resources_of(self, index: int) -> tuple[int, int]:
        """CPUs and bytes of memory of a node."""
        shape = self.nodes[index].shape
        return shape.cpu_count, shape.memory

    def type_at(self, masks: Mapping[NodeName, int]) -> GpuType | None:
        """The GPU type of a gang's nodes, from the first that is still declared."""
        index_of = self.tree.index_of
        index = next((index_of[node] for node in masks if node in index_of), None)
        return self.nodes[index].shape.gpu_type if index is not None else None

    def parts(self, masks: Mapping[NodeName, int]) -> list[tuple[GpuType, int, list[NodeName]]]:
        """GPUs and nodes of a gang, by type, on nodes that are still declared."""
        if len(self.types) == 1:
            nodes = [node for node in masks if node in self.gpus_by_node]
            return [(self.types[0], sum(masks[node].bit_count() for node in nodes), nodes)]
        found: dict[GpuType, tuple[int, list[NodeName]]] = {}
        for node, mask in masks.items():
            kind = self.type_at({node: mask})
            if kind is not None:
                gpus, nodes = found.get(kind, (0, []))
                found[kind] = (gpus + mask.bit_count(), [*nodes, node])
        return [(kind, gpus, nodes) for kind, (gpus, nodes) in found.items()]

    def engine(self, gpu_type: GpuType) -> Capacity:
        """All declared GPUs of a type, free."""
        return Capacity(self.tree, self.members[gpu_type], block_level=self.block_level)

    def empty(self, gpu_type: GpuType) -> Capacity:
        """The engine of an empty, healthy cluster, shared: whoever searches it leaves it as it was."""
        if gpu_type not in self._empty:
            self._empty[gpu_type] = self.engine(gpu_type)
        return self._empty[gpu_type]


def ground_of(inventory: Inventory, observed: Observed = NOTHING_SEEN) -> Ground:
    """The inventory as numbers, as far as its links were seen to work. Remembered: most rounds have the same one."""
    usable = effective(inventory, observed)
    if not _latest or _latest[0].inventory is not inventory:
        _latest[:] = [_make_ground(inventory)]
    if usable is inventory:
        return _latest[0]
    if _latest[-1].inventory is not usable:
        _latest[1:] = [_with_unbroken(_make_ground(usable), _latest[0])]
    return _latest[1]


def _with_unbroken(ground: Ground, unbroken: Ground) -> Ground:
    """Nodes have the same numbers in both: only what is inside them differs."""
    pairs = enumerate(zip(ground.nodes, unbroken.nodes, strict=True))
    apart = {index: split_off(now.shape, before.shape) for index, (now, before) in pairs if now is not before}
    return replace(ground, unbroken=unbroken, torn={index: mask for index, mask in apart.items() if mask})


_latest: list[Ground] = []  # as `memo` does, for one or two values only: a ground is large


def _make_ground(inventory: Inventory) -> Ground:
    engines = {node.engine for node in inventory.nodes}
    floor = Level(ROOT + 1) if len(engines) > 1 else ROOT
    above = ([_ENGINE_LEVEL] if floor else []) + [str(name) for name in inventory.above_node]
    shapes = {id(n.shape): node_shape(len(n.shape.gpus), n.shape.nvlink, _numa_masks(n)) for n in inventory.nodes}
    rows = [(n.name, (n.engine, *n.path) if floor else n.path, shapes[id(n.shape)]) for n in inventory.nodes]
    tree = build_tree([str(CLUSTER_LEVEL), *above], rows)
    by_name = {node.name: node for node in inventory.nodes}
    nodes = tuple(by_name[NodeName(name)] for name in tree.nodes)
    members: dict[GpuType, list[int]] = {}
    for index, node in enumerate(nodes):
        members.setdefault(node.shape.gpu_type, []).append(index)
    return Ground(
        inventory=inventory, tree=tree, nodes=nodes, whole=tuple(n.shape.all_gpus for n in nodes), types=tuple(sorted(members)),
        members={kind: tuple(members[kind]) for kind in sorted(members)},
        levels=_levels(inventory, tree), floor=floor, tainted=any(node.taints for node in nodes),
        islands={kind: _island_sizes(tree, members[kind]) for kind in sorted(members)},
        node_sizes={kind: tuple(sorted({tree.gpus_of(n) for n in members[kind]} - {0})) for kind in sorted(members)},
        largest={kind: _largest(tree, members[kind]) for kind in sorted(members)},
        declared={kind: sum(len(nodes[n].shape.gpus) for n in members[kind]) for kind in sorted(members)},
        gpus_by_node={node.name: len(node.shape.gpus) for node in nodes},
    )  # fmt: skip


def _largest(tree: Tree, members: list[int]) -> tuple[Gpus, ...]:
    found = []
    for level in range(tree.node_level + 1):
        sums: dict[int, int] = {}
        for node in members:
            domain = tree.domain_of(node, level)
            sums[domain] = sums.get(domain, 0) + tree.gpus_of(node)
        found.append(Gpus(max(sums.values())))
    islands = (island.bit_count() for node in members for island in tree.shapes[tree.shape_of[node]].nvlink)
    return (*found, Gpus(max(islands, default=0)))


def _island_sizes(tree: Tree, members: list[int]) -> frozenset[int]:
    shapes = {tree.shape_of[node] for node in members}
    return frozenset(island.bit_count() for number in shapes for island in tree.shapes[number].nvlink)


def _numa_masks(node: Node) -> list[int]:
    masks: dict[int, int] = {}
    for slot in node.shape.gpus:
        masks[slot.numa] = masks.get(slot.numa, 0) | 1 << slot.index
    return list(masks.values())


def _levels(inventory: Inventory, tree: Tree) -> dict[LevelName, Level]:
    """Every level named by the Fabric; those before `node` all mean the NVLink islands inside it."""
    found: dict[LevelName, Level] = {}
    above = {LevelName(name): level for level, name in enumerate(tree.levels)}
    inside = tree.island_level
    for level in inventory.levels:
        if level.name == NODE_LEVEL:
            inside = tree.node_level
        found[level.name] = above.get(level.name, inside)
    return found
