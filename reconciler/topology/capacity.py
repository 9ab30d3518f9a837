"""Which GPUs are free, kept as integers used as bit sets, so that looking for a place touches almost nothing.

One engine serves one pool of nodes of one GPU type. It answers how much is free where, takes and gives GPUs, and
undoes: inside `with capacity.trial():` everything done is undone on exit. What to take is the business of `find`,
and who may have it, and why a node is excluded, that of the planner.

    parts[k][leaf]    bit set of slots: partly used nodes with exactly k free GPUs
    wholes[k][leaf]   bit set of slots: wholly free nodes of k GPUs
    has_part[k], has_whole[k]     bit sets of the leaves where those are not empty
    counts            what that makes for every domain, and which are tightest: see there

A node excluded (cordoned, refused by a request) is in none of these; its free GPUs wait in `excluded`. Cost of a
change: O(levels).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from reconciler.errors import BrokenInvariant
from reconciler.topology.counts import Counts
from reconciler.topology.tree import ROOT, DomainIndex, GpuMask, Level, NodeIndex, NodeMask, NodeShape, Tree
from reconciler.topology.units import UnitIndex, units_on

_TAKE, _GIVE, _TAKE_WHOLE, _GIVE_WHOLE, _EXCLUDE, _INCLUDE = range(6)


class Capacity:
    """Free GPUs of one pool. No GPU can be taken twice, and a trial leaves no trace.

    members: the nodes of this pool (default: all). Every GPU is free to begin with.
    block_level: the level whose domains are one NVLink domain (NVL72); None when NVLink ends at the node.
    """

    __slots__ = (
        "_blocks", "_depth", "_full", "_indexes", "_journal", "_shape", "_slots", "_size", "_withheld", "block_level",
        "chosen", "counts", "excluded", "gpus", "has_islands", "has_part", "has_whole", "idle_unbroken", "is_uniform",
        "largest_node", "node_sizes", "partly", "parts", "tree", "visits", "wholes",
    )  # fmt: skip

    def __init__(
        self, tree: Tree, members: Iterable[NodeIndex] | None = None, *, block_level: Level | None = None
    ) -> None:
        inside = range(len(tree.nodes)) if members is None else sorted(set(members))
        nodes = [node for node in inside if tree.gpus_of(node)]
        self.tree = tree
        self.block_level = block_level
        self._full = [0] * len(tree.nodes)
        for node in nodes:
            self._full[node] = tree.shapes[tree.shape_of[node]].all_gpus
        shapes = [tree.shapes[s] for s in sorted({tree.shape_of[node] for node in nodes})]
        self.node_sizes = tuple(sorted({shape.gpus for shape in shapes}))
        self.largest_node = max(self.node_sizes, default=0)
        self.has_islands = any(len(shape.nvlink) > 1 for shape in shapes)
        self.is_uniform = len({(shape.gpus, shape.nvlink) for shape in shapes}) == 1
        self._shape = shapes[0] if shapes else NodeShape(gpus=0, nvlink=(), numa=())  # what uniform nodes have alike
        self.gpus = sum(tree.gpus_of(node) for node in nodes)
        self.visits = 0
        self.chosen: dict[tuple[int, GpuMask, int, int], GpuMask] = {}  # memo of `gpus.choose`
        self._indexes: dict[tuple[int, int], UnitIndex] = {}
        self._journal: list[tuple[int, int, int]] = []
        self._depth = 0
        self._build(nodes)

    def _build(self, nodes: list[NodeIndex]) -> None:
        """All nodes free."""
        tree = self.tree
        leaves = len(tree.domains[-1])
        self.partly: dict[NodeIndex, GpuMask] = {}
        self.excluded: dict[NodeIndex, GpuMask] = {}
        self._withheld = [0] * leaves  # slots of excluded nodes
        self.parts = [[0] * leaves for _ in range(self.largest_node)]
        self.has_part = [0] * self.largest_node
        self.wholes = {size: [0] * leaves for size in self.node_sizes}
        self.has_whole = dict.fromkeys(self.node_sizes, 0)
        whole, free = [0] * leaves, [0] * leaves
        for node in nodes:
            leaf, size = tree.leaf_of[node], self._full[node].bit_count()
            self.wholes[size][leaf] |= 1 << tree.slot_of[node]
            self.has_whole[size] |= 1 << leaf
            whole[leaf] += 1
            free[leaf] += size
        self._slots = [sum(row[leaf] for row in self.wholes.values()) for leaf in range(leaves)]  # of the pool's nodes
        self.counts = Counts(tree, whole, free, min(self.node_sizes, default=0))
        self.idle_unbroken = self.gpus  # free GPUs in NVLink domains that are wholly free
        self._size: list[int] = []
        self._blocks: list[DomainIndex] = []
        if self.block_level is not None:
            self._size = list(self.counts.free[self.block_level])
            self._blocks = [tree.enclosing(tree.leaf_level, leaf, self.block_level) for leaf in range(leaves)]

    # --- what is free ---

    def free_gpus(self, level: Level = ROOT, domain: DomainIndex = 0) -> int:
        """Free GPUs in a domain, on nodes that are not excluded."""
        return self.counts.free[level][domain]

    def whole_nodes(self, level: Level = ROOT, domain: DomainIndex = 0) -> int:
        """Nodes of a domain all of whose GPUs are free."""
        return self.counts.whole[level][domain]

    def free_mask(self, node: NodeIndex) -> GpuMask:
        """Free GPUs of a node, also of an excluded one."""
        if node in self.excluded:
            return self.excluded[node]
        if node in self.partly:
            return self.partly[node]
        full = self._full[node]
        leaf, slot = self.tree.leaf_of[node], self.tree.slot_of[node]
        return full if full and self.wholes[full.bit_count()][leaf] >> slot & 1 else 0

    def size_of(self, node: NodeIndex) -> int:
        """GPUs of a node that belong to this pool: all or none."""
        return self._full[node].bit_count()

    def units(self, unit: int, share: int = 1) -> UnitIndex:
        """The index of workers of `unit` GPUs; made on first use (O(nodes)), kept up to date from then on."""
        if not self.has_islands:
            share = 1  # NVLink joins each whole node: pieces cannot fail where the unit fits
        index = self._indexes.get((unit, share))
        if index is None:
            index = self._indexes[unit, share] = UnitIndex(self.tree, unit, share)
            tree = self.tree
            for leaf in range(len(tree.domains[-1])):
                first, end = tree.span(tree.leaf_level, leaf, tree.node_level)
                change = sum(
                    units_on(tree.shapes[tree.shape_of[node]], self.free_mask(node), unit, share)
                    for node in range(first, end)
                    if node not in self.excluded
                )
                if change:
                    index.shift(leaf, change)
        return index

    def counts_whole(self, unit: int, share: int = 1) -> bool:
        """True when workers of `unit` GPUs are whole nodes, whose numbers need no index: nodes that are all alike, and
        whose NVLink islands are made of whole pieces."""
        if unit != self.largest_node or not self.is_uniform:
            return False
        return share == 1 or all(island.bit_count() % share == 0 for island in self._shape.nvlink)

    def largest_domain(self, level: Level, unit: int = 1, share: int = 1) -> tuple[DomainIndex, int]:
        """The domain of a level that holds most workers of `unit` GPUs, lowest number first, and how many."""
        if self.counts_whole(unit, share):
            counts = self.counts
            total, most = counts.whole[ROOT][0], counts.filled[level].bit_length() - 1
            domains = counts.by_whole[level][most]
        else:
            index = self.units(unit, share)
            total, most = index.count[ROOT][0], index.filled[level].bit_length() - 1
            domains = index.buckets[level][most]
        return (0, total) if level == ROOT else ((domains & -domains).bit_length() - 1, most)

    # --- changes ---

    def take(self, node: NodeIndex, mask: GpuMask) -> None:
        """Bind GPUs of a node. Raises: BrokenInvariant, when one of them is not free."""
        self._take(node, mask)
        if self._depth:
            self._journal.append((_TAKE, node, mask))

    def give(self, node: NodeIndex, mask: GpuMask) -> None:
        """Free GPUs of a node. Raises: BrokenInvariant, when one of them is free already or does not exist."""
        self._give(node, mask)
        if self._depth:
            self._journal.append((_GIVE, node, mask))

    def take_whole(self, leaf: DomainIndex, slots: int) -> None:
        """Bind all GPUs of several wholly free nodes of a leaf at once."""
        self._take_whole(leaf, slots)
        if self._depth:
            self._journal.append((_TAKE_WHOLE, leaf, slots))

    def give_whole(self, leaf: DomainIndex, slots: int) -> None:
        """Free all GPUs of several wholly used nodes of a leaf at once."""
        self._give_whole(leaf, slots)
        if self._depth:
            self._journal.append((_GIVE_WHOLE, leaf, slots))

    def exclude(self, node: NodeIndex) -> None:
        """Offer no GPU of this node from now on. Its GPUs may still be given and taken."""
        if node not in self.excluded:
            self._exclude(self.tree.leaf_of[node], 1 << self.tree.slot_of[node])

    def include(self, node: NodeIndex) -> None:
        """Offer the node again, with the GPUs that are free on it by now."""
        if node in self.excluded:
            self._include(self.tree.leaf_of[node], 1 << self.tree.slot_of[node])

    def exclude_all(self, nodes: NodeMask) -> None:
        """Exclude every node in the mask; those already excluded stay so. One bucket change a leaf."""
        first_node = self.tree.first_child[-1]
        while nodes:
            leaf = self.tree.leaf_of[(nodes & -nodes).bit_length() - 1]
            first, end = first_node[leaf], first_node[leaf + 1]
            slots = nodes >> first & ((1 << (end - first)) - 1)
            nodes ^= slots << first
            if slots & ~self._withheld[leaf]:
                self._exclude(leaf, slots & ~self._withheld[leaf])

    @contextmanager
    def refusing(self, nodes: NodeMask) -> Iterator[None]:
        """Inside the block the nodes of the mask are excluded; everything done inside is undone on exit.

        For requests that a node cannot serve for reasons not known here (CPU, memory, labels, holds).
        """
        with self.trial():
            self.exclude_all(nodes)
            yield

    def trial(self) -> Trial:
        """`with capacity.trial():` undoes on exit whatever was changed inside, unless committed. Trials nest."""
        return Trial(self)

    def begin(self) -> int:
        """Start to record changes; the mark to hand to `end`. What `trial` does: prefer that."""
        self._depth += 1
        return len(self._journal)

    def end(self, mark: int, *, keep: bool) -> None:
        """Stop recording what began at `mark`, the innermost one; without `keep` undo it."""
        self._depth -= 1
        if not keep:
            self._undo_to(mark)
        elif not self._depth:
            self._journal.clear()

    def _undo_to(self, mark: int) -> None:
        journal, depth = self._journal, self._depth
        self._depth = 0  # undoing is not recorded
        while len(journal) > mark:
            kind, a, b = journal.pop()
            if kind == _TAKE_WHOLE:
                self._give_whole(a, b)
            elif kind == _TAKE:
                self._give(a, b)
            elif kind == _GIVE:
                self._take(a, b)
            elif kind == _EXCLUDE:
                self._include(a, b)
            elif kind == _INCLUDE:
                self._exclude(a, b)
            else:
                self._take_whole(a, b)
        self._depth = depth

    # --- the same, not journalled ---

    def _take(self, node: NodeIndex, mask: GpuMask) -> None:
        free = self.free_mask(node)
        if mask & ~free or not mask:
            raise BrokenInvariant(f"GPUs {mask:#x} of node {self.tree.nodes[node]} are not all free: {free:#x}")
        if node in self.excluded:
            self.excluded[node] = free ^ mask
        else:
            self._move(node, free, free ^ mask)

    def _give(self, node: NodeIndex, mask: GpuMask) -> None:
        free = self.free_mask(node)
        if mask & (free | ~self._full[node]) or not mask:
            raise BrokenInvariant(f"GPUs {mask:#x} of node {self.tree.nodes[node]} are not all in use: {free:#x} free")
        if node in self.excluded:
            self.excluded[node] = free | mask
        else:
            self._move(node, free, free | mask)

    def _take_whole(self, leaf: DomainIndex, slots: int) -> None:
        if not self.is_uniform or slots & self._withheld[leaf]:
            for node in self._nodes_at(leaf, slots):
                self._take(node, self._full[node])
            return
        row = self.wholes[self.largest_node]
        if slots & ~row[leaf] or not slots:
            raise BrokenInvariant(f"slots {slots:#x} of leaf {leaf} are not all wholly free: {row[leaf]:#x}")
        self._set_whole(leaf, slots, -1)

    def _give_whole(self, leaf: DomainIndex, slots: int) -> None:
        if not self.is_uniform or slots & self._withheld[leaf]:
            for node in self._nodes_at(leaf, slots):
                self._give(node, self._full[node])
            return
        row = self.wholes[self.largest_node]
        other = row[leaf] | ~self._slots[leaf]
        for part in self.parts:
            other |= part[leaf]
        if slots & other or not slots:
            raise BrokenInvariant(f"slots {slots:#x} of leaf {leaf} are not all wholly used")
        self._set_whole(leaf, slots, 1)

    def _nodes_at(self, leaf: DomainIndex, slots: int) -> Iterator[NodeIndex]:
        first = self.tree.first_child[-1][leaf] - 1
        while slots:
            low = slots & -slots
            slots ^= low
            yield first + low.bit_length()

    def _exclude(self, leaf: DomainIndex, slots: int) -> None:
        empty = self.wholes[self.largest_node][leaf] & slots if self.is_uniform else 0
        if empty:
            self._set_whole(leaf, empty, -1)
            for node in self._nodes_at(leaf, empty):
                self.excluded[node] = self._full[node]
        for node in self._nodes_at(leaf, slots ^ empty):
            free = self.free_mask(node)
            if free:
                self._move(node, free, 0)
            self.excluded[node] = free
        self._withheld[leaf] |= slots
        if self._depth:
            self._journal.append((_EXCLUDE, leaf, slots))

    def _include(self, leaf: DomainIndex, slots: int) -> None:
        empty, first = 0, self.tree.first_child[-1][leaf]
        for node in self._nodes_at(leaf, slots):
            free = self.excluded.pop(node)
            if free and free == self._full[node] and self.is_uniform:
                empty |= 1 << (node - first)
            elif free:
                self._move(node, 0, free)
        if empty:
            self._set_whole(leaf, empty, 1)
        self._withheld[leaf] ^= slots
        if self._depth:
            self._journal.append((_INCLUDE, leaf, slots))

    def _set_whole(self, leaf: DomainIndex, slots: int, sign: int) -> None:
        """Nodes of a uniform pool become (sign 1) or stop being (-1) wholly free; the caller knows they may."""
        row, size = self.wholes[self.largest_node], self.largest_node
        row[leaf] ^= slots
        bit = 1 << leaf
        self.has_whole[size] = self.has_whole[size] | bit if row[leaf] else self.has_whole[size] & ~bit
        self._shift_whole(leaf, sign * slots.bit_count())

    def _move(self, node: NodeIndex, old: GpuMask, new: GpuMask) -> None:
        """A node goes from `old` to `new` free GPUs: fix its bit, the counts around it and the indexes."""
        tree, full = self.tree, self._full[node]
        leaf, bit = tree.leaf_of[node], 1 << tree.slot_of[node]
        if old == full:
            row = self.wholes[full.bit_count()]
            row[leaf] ^= bit
            if not row[leaf]:
                self.has_whole[full.bit_count()] ^= 1 << leaf
        elif old:
            del self.partly[node]
            count = old.bit_count()
            row = self.parts[count]
            row[leaf] ^= bit
            if not row[leaf]:
                self.has_part[count] ^= 1 << leaf
        if new == full:
            self.wholes[full.bit_count()][leaf] |= bit
            self.has_whole[full.bit_count()] |= 1 << leaf
        elif new:
            self.partly[node] = new
            count = new.bit_count()
            self.parts[count][leaf] |= bit
            self.has_part[count] |= 1 << leaf
        gpus = new.bit_count() - old.bit_count()
        if self.block_level is None:
            self._count_islands(tree.shapes[tree.shape_of[node]], old, new)
        else:
            self._count_block(self.block_level, leaf, gpus)
        self.counts.shift(leaf, (new == full) - (old == full), gpus)
        if self._indexes:
            shape = tree.shapes[tree.shape_of[node]]
            for index in self._indexes.values():
                change = units_on(shape, new, index.unit, index.share) - units_on(shape, old, index.unit, index.share)
                if change:
                    index.shift(leaf, change)

    def _count_islands(self, shape: NodeShape, old: GpuMask, new: GpuMask) -> None:
        for island in shape.nvlink:
            was, now = old & island == island, new & island == island
            if was != now:
                self.idle_unbroken += island.bit_count() * (now - was)

    def _count_block(self, level: Level, leaf: DomainIndex, gpus: int) -> None:
        """To be told before the counts are."""
        block = self._blocks[leaf]
        had, size = self.counts.free[level][block], self._size[block]
        self.idle_unbroken += size * ((had + gpus == size) - (had == size))

    def _shift_whole(self, leaf: DomainIndex, change: int) -> None:
        """`change` nodes of a uniform pool become wholly free (or, negative, wholly used)."""
        size = self.largest_node
        if self.block_level is None:
            self.idle_unbroken += change * size
        else:
            self._count_block(self.block_level, leaf, change * size)
        self.counts.shift(leaf, change, change * size)
        if self._indexes:
            shape = self._shape
            for index in self._indexes.values():
                units = units_on(shape, shape.all_gpus, index.unit, index.share)
                if units:
                    index.shift(leaf, change * units)

    def snapshot(self) -> tuple[object, ...]:
        """The whole state as plain values, in an order that does not depend on how it came about."""
        return (
            tuple(sorted(self.partly.items())), tuple(sorted(self.excluded.items())), self.idle_unbroken,
            tuple(map(tuple, self.parts)), tuple(self.has_part),
            tuple((size, tuple(row)) for size, row in self.wholes.items()), tuple(self.has_whole.items()),
            self.counts.snapshot(), tuple(self._journal), self._depth,
            tuple((key, tuple(tuple(sorted(b.items())) for b in i.buckets)) for key, i in sorted(self._indexes.items())),
        )  # fmt: skip


class Trial:
    """A block whose changes are undone at its end, unless `commit()` was called and no exception came through."""

    __slots__ = ("_capacity", "_kept", "_mark")

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._kept = False
        self._mark = 0

    def __enter__(self) -> Self:
        self._mark = self._capacity.begin()
        return self

    def commit(self) -> None:
        """Keep the changes when the block ends; an outer trial may still undo them."""
        self._kept = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._capacity.end(self._mark, keep=self._kept and kind is None)
