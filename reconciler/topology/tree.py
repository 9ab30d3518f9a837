"""What contains what: the levels above a node, their domains, and the GPUs inside a node.

Levels are data, outermost first: level 0 is the root (the whole cluster), `tree.leaf_level` the level nodes
hang on (a rack, or a block of nodes that share NVLink). Two more levels lie inside a node: `tree.node_level`
(the node itself) and `tree.island_level` (GPUs of one node that share NVLink). A larger number is narrower.

Domains of a level are numbered in the sorted order of their paths, nodes in the sorted order of (path, name).
So every domain is one unbroken range of nodes, of leaves and of child domains, consecutive numbers are
neighbours, and the lowest number is the first by name. Which GPUs are free is the business of `capacity`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

# Plain integers, not NewTypes: the search does arithmetic on them in its innermost loops.
Level: TypeAlias = int
DomainIndex: TypeAlias = int
NodeIndex: TypeAlias = int
GpuMask: TypeAlias = int  # bit i = GPU i of the node
NodeMask: TypeAlias = int  # bit i = node i of the tree

ROOT: Level = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """The GPUs of a node and how they group. NVLink masks and NUMA masks each cover every GPU exactly once."""

    gpus: int
    nvlink: tuple[GpuMask, ...]
    numa: tuple[GpuMask, ...]

    def __post_init__(self) -> None:
        for masks in (self.nvlink, self.numa):
            if sum(masks) != self.all_gpus or any(mask <= 0 for mask in masks) or _overlap(masks):
                raise ValueError(f"masks {masks} do not cover {self.gpus} GPUs exactly once")

    @property
    def all_gpus(self) -> GpuMask:
        """The mask of every GPU of the node."""
        return (1 << self.gpus) - 1


def _overlap(masks: tuple[GpuMask, ...]) -> bool:
    return any(a & b for i, a in enumerate(masks) for b in masks[:i])


def node_shape(gpus: int, nvlink: Sequence[GpuMask] = (), numa: Sequence[GpuMask] = ()) -> NodeShape:
    """Shape of a node of `gpus` GPUs; absent masks mean one NVLink domain, one NUMA node.

    Raises: ValueError, when masks overlap or leave a GPU out.
    """
    whole = ((1 << gpus) - 1,) if gpus else ()
    return NodeShape(gpus=gpus, nvlink=tuple(sorted(nvlink)) or whole, numa=tuple(sorted(numa)) or whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The fabric as numbers. Cannot hold a node in two places, or a domain under two parents."""

    levels: tuple[str, ...]  # names, outermost first; levels[0] is the root
    domains: tuple[tuple[tuple[str, ...], ...], ...]  # [level][domain] = path below the root
    parents: tuple[tuple[DomainIndex, ...], ...]  # [level][domain] = domain one level out; [0] is (0,)
    first_child: tuple[tuple[DomainIndex, ...], ...]  # [level][domain]; one entry more than domains; [leaf] = nodes
    nodes: tuple[str, ...]
    leaf_of: tuple[DomainIndex, ...]  # [node]
    slot_of: tuple[int, ...]  # [node] = its place inside its leaf
    shapes: tuple[NodeShape, ...]  # each distinct shape once
    shape_of: tuple[int, ...]  # [node] = index into shapes
    index_of: Mapping[str, NodeIndex] = field(repr=False)

    @property
    def leaf_level(self) -> Level:
        """The level whose domains hold nodes."""
        return len(self.levels) - 1

    @property
    def node_level(self) -> Level:
        """The level at which a domain is one node."""
        return len(self.levels)

    @property
    def island_level(self) -> Level:
        """The level at which a domain is the GPUs of one node that share NVLink."""
        return len(self.levels) + 1

    def level_name(self, level: Level) -> str:
        """Name of a level, for people; the two inside a node are `node` and `nvlink`."""
        return (*self.levels, "node", "nvlink")[level]

    def domain_name(self, level: Level, domain: DomainIndex) -> str:
        """Own name of a domain without its path; the root has the name of its level."""
        path = self.domains[level][domain]
        return path[-1] if path else self.levels[ROOT]

    def gpus_of(self, node: NodeIndex) -> int:
        """GPUs of a node, free or not."""
        return self.shapes[self.shape_of[node]].gpus

    def domain_of(self, node: NodeIndex, level: Level) -> DomainIndex:
        """The domain of `level` that holds the node. From `node_level` inwards that is the node itself."""
        return node if level > self.leaf_level else self.enclosing(self.leaf_level, self.leaf_of[node], level)

    def enclosing(self, level: Level, domain: DomainIndex, outer: Level) -> DomainIndex:
        """The domain of level `outer` (at or outside `level`) around a domain."""
        for inner in range(level, outer, -1):
            domain = self.parents[inner][domain]
        return domain

    def span(self, level: Level, domain: DomainIndex, inner: Level) -> tuple[int, int]:
        """First and one-past-last domain of level `inner` inside a domain; `inner` = node_level gives nodes."""
        low, high = domain, domain + 1
        for between in range(level, inner):
            low, high = self.first_child[between][low], self.first_child[between][high]
        return low, high

    def common_level(self, a: NodeIndex, b: NodeIndex) -> Level:
        """Narrowest level with a domain that holds both nodes; `node_level` when they are the same node."""
        if a == b:
            return self.node_level
        level, x, y = self.leaf_level, self.leaf_of[a], self.leaf_of[b]
        while x != y:
            x, y = self.parents[level][x], self.parents[level][y]
            level -= 1
        return level


def build_tree(levels: Sequence[str], nodes: Iterable[tuple[str, Sequence[str], NodeShape]]) -> Tree:
    """The tree of nodes given as (name, path of domain names below the root, shape), in any order.

    A path has one name for each level but the root. The same name under two parents is two domains. Without nodes
    each level has one empty domain.
    Raises: ValueError, when a node is named twice or a path has the wrong length.
    """
    rows = sorted((tuple(path), name, shape.gpus, shape.nvlink, shape.numa) for name, path, shape in nodes)
    names = tuple(row[1] for row in rows)
    index_of = {name: index for index, name in enumerate(names)}
    if len(index_of) != len(names):
        raise ValueError(f"a node is named twice: {next(n for i, n in enumerate(names) if index_of[n] != i)}")
    for path, name, *_ in rows:
        if len(path) != len(levels) - 1:
            raise ValueError(f"node {name}: path {path} does not name one domain for each of {tuple(levels[1:])}")

    domains = tuple(tuple(sorted({row[0][:level] for row in rows} or {()})) for level in range(len(levels)))
    numbers = tuple({path: index for index, path in enumerate(level)} for level in domains)
    parents = tuple(
        tuple(numbers[max(level - 1, 0)][path[: max(level - 1, 0)]] for path in paths)
        for level, paths in enumerate(domains)
    )
    leaf_of = tuple(numbers[-1][row[0]] for row in rows)
    first_child = tuple(_starts(inner, len(domains[level])) for level, inner in enumerate((*parents[1:], leaf_of)))
    shapes = sorted({row[2:] for row in rows})
    number_of = {shape: index for index, shape in enumerate(shapes)}
    return Tree(
        levels=tuple(levels),
        domains=domains,
        parents=parents,
        first_child=first_child,
        nodes=names,
        leaf_of=leaf_of,
        slot_of=tuple(node - first_child[-1][leaf] for node, leaf in enumerate(leaf_of)),
        shapes=tuple(NodeShape(gpus=gpus, nvlink=nvlink, numa=numa) for gpus, nvlink, numa in shapes),
        shape_of=tuple(number_of[row[2:]] for row in rows),
        index_of=index_of,
    )


def _starts(parents: Sequence[int], count: int) -> tuple[int, ...]:
    """Where the children of each of `count` domains begin, children being sorted by parent."""
    return tuple(bisect_right(parents, domain - 1) for domain in range(count + 1))


def bits_of(mask: int) -> tuple[int, ...]:
    """Positions of the bits that are set, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)


def lowest_bits(mask: int, count: int) -> int:
    """The lowest `count` set bits of `mask`, which has at least that many."""
    surplus = mask.bit_count() - count
    if surplus < 4:
        for _ in range(surplus):
            mask ^= 1 << (mask.bit_length() - 1)
        return mask
    low, high = count, mask.bit_length()
    while low < high:  # shortest prefix that has them all
        middle = (low + high) >> 1
        if (mask & ((1 << middle) - 1)).bit_count() >= count:
            high = middle
        else:
            low = middle + 1
    return mask & ((1 << low) - 1)
