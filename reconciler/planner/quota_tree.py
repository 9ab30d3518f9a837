"""The queues as numbers: who lies beneath whom, and what each is guaranteed, may hold, keeps and lends of one GPU type.

Rule book §3. Queues become numbers so that a charge costs one step a level. A queue that has queues inside gets an
implicit leaf for the jobs that name it, guaranteed what the others are not; jobs of a queue that is gone are charged
to `orphaned` beneath the root; without any queue there is one, guaranteed everything. What is used is for `quota`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.model.queue import Queue, QuotaTree
from reconciler.model.units import GpuType, QueueName

TOP: Final = 0
"""The number of the root."""

ORPHANED: Final = QueueName("orphaned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Numbers of one GPU type by queue, in GPUs. `ceiling` None: no limit; `declared`: somebody wrote the guarantee."""

    guaranteed: tuple[int, ...]
    declared: tuple[bool, ...]
    ceiling: tuple[int | None, ...]
    pot: tuple[int, ...]
    local: tuple[int, ...]
    total: int
    withholds: bool  # some queue keeps a part of its guarantee to itself
    limits: bool  # some queue has a ceiling


class Branches:
    """The tree of queues, parents before children; `parents[0]` is -1.

    `names` tell a reader which queue is meant: an implicit leaf bears the name of its queue. `labels` are unique.
    """

    __slots__ = (
        "_declared",
        "_orphaned",
        "_paths",
        "_shares",
        "children",
        "labels",
        "leaves",
        "names",
        "parents",
        "rows",
        "weights",
    )

    def __init__(self, tree: QuotaTree, declared: Mapping[GpuType, int]) -> None:
        self._declared = declared
        self.names: list[QueueName] = []
        self.labels: list[QueueName] = []
        self.parents: list[int] = []
        self.children: list[list[int]] = []
        self.rows: list[Queue | None] = []
        self.weights: list[int] = []
        self.leaves: dict[QueueName, int] = {}
        self._shares: dict[GpuType, Shares] = {}
        self._build(tree)
        self._paths = [self._path(number) for number in range(len(self.names))]

    def _build(self, tree: QuotaTree) -> None:
        below: dict[QueueName | None, list[Queue]] = {}
        for name in sorted(tree.queues):
            row = tree.queues[name]
            below.setdefault(row.parent if row.parent in tree.queues else None, []).append(row)
        tops = below.get(None, [])
        only = tops[0] if len(tops) == 1 else None
        self._add(only.name if only is not None else QueueName(""), only, -1)
        ahead = [(TOP, below.get(only.name, []) if only is not None else tops)]
        while ahead:
            parent, rows = ahead.pop(0)
            ahead += [(self._add(row.name, row, parent), below.get(row.name, [])) for row in rows]
            if rows or parent == TOP:  # jobs may name a queue that has others inside
                self.leaves[self.names[parent]] = self._add(self.names[parent], None, parent, implicit=True)
        self._orphaned = self._add(ORPHANED, None, TOP) if tree.queues else self.leaves[QueueName("")]

    def _add(self, name: QueueName, row: Queue | None, parent: int, *, implicit: bool = False) -> int:
        number = len(self.names)
        self.names.append(name)
        self.labels.append(QueueName(f"{name}/") if implicit else name)
        self.parents.append(parent)
        self.children.append([])
        self.rows.append(row)
        self.weights.append(row.weight if row is not None else 1)
        if row is not None:
            self.leaves[name] = number
        if parent >= 0:
            self.children[parent].append(number)
        return number

    def _path(self, number: int) -> tuple[int, ...]:
        found = []
        while number >= 0:
            found.append(number)
            number = self.parents[number]
        return tuple(found)

    def leaf(self, queue: QueueName) -> int:
        """The leaf to which jobs of a queue are charged."""
        return self.leaves.get(queue, self._orphaned)

    def path(self, number: int) -> tuple[int, ...]:
        """From a queue up to the root."""
        return self._paths[number]

    def shares(self, kind: GpuType) -> Shares:
        """The numbers of one GPU type; worked out once."""
        found = self._shares.get(kind)
        if found is None:
            found = self._shares[kind] = self._work_out(kind)
        return found

    def _work_out(self, kind: GpuType) -> Shares:
        size, total = len(self.names), self._declared.get(kind, 0)
        guaranteed, declared, ceiling = [0] * size, [False] * size, list[int | None]([None] * size)
        for number in reversed(range(size)):
            row = self.rows[number]
            if row is not None and kind in row.guaranteed:
                guaranteed[number], declared[number] = row.guaranteed[kind], True
            elif number == TOP:
                guaranteed[number] = total
            else:
                guaranteed[number] = sum(guaranteed[child] for child in self.children[number])
            ceiling[number] = row.ceiling.get(kind) if row is not None else None
        for number in range(size):
            if self.labels[number] != self.names[number]:  # an implicit leaf has what its siblings are not guaranteed
                parent = self.parents[number]
                others = sum(guaranteed[child] for child in self.children[parent] if child != number)
                guaranteed[number] = max(0, guaranteed[parent] - others)
        pot, local = [0] * size, [0] * size
        for number in reversed(range(size)):
            pot[number] = guaranteed[number]
            if self.children[number]:
                pot[number] += sum(pot[c] - local[c] - guaranteed[c] for c in self.children[number])
            row = self.rows[number]
            if number != TOP and row is not None and row.lend is not None and kind in row.lend:
                local[number] = max(0, pot[number] - row.lend[kind])
        return Shares(
            guaranteed=tuple(guaranteed), declared=tuple(declared), ceiling=tuple(ceiling), pot=tuple(pot),
            local=tuple(local), total=total, withholds=any(local),
            limits=any(limit is not None for limit in ceiling),
        )  # fmt: skip

    def is_in_nodes(self, number: int) -> bool:
        """Its guarantee is in whole nodes."""
        row = self.rows[number]
        return row is not None and row.guaranteed_shape == "node"
