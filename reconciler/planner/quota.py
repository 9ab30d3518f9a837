"""How much may a queue have? Ceilings up the tree, against what its jobs hold and what was promised to them.

Arithmetic per GPU type. A job counts at its queue and at every queue above; a number absent from `ceiling` means no
limit. Rule book §3; guarantees, borrowing and lending take part here once reclaim between queues does.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.model.queue import QuotaTree
from reconciler.model.units import GpuType, QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A ceiling that a start would pass: the outermost numbers a person needs to see."""

    queue: QueueName
    would_be: int
    ceiling: int


class Quotas:
    """The use of every queue in one decision, in GPUs. Being over a ceiling is inherited, never made worse."""

    __slots__ = ("_paths", "_tree", "held", "promised")

    def __init__(self, tree: QuotaTree) -> None:
        self._tree = tree
        self._paths: dict[QueueName, tuple[QueueName, ...]] = {}
        self.held: dict[tuple[QueueName, GpuType], int] = {}
        self.promised: dict[tuple[QueueName, GpuType], int] = {}

    def path(self, queue: QueueName) -> tuple[QueueName, ...]:
        """From the queue up to its root."""
        found = self._paths.get(queue)
        if found is None:
            found = self._paths[queue] = self._tree.path(queue)
        return found

    def knows(self, queue: QueueName) -> bool:
        """False when queues are declared and this is none of them."""
        return not self._tree.queues or queue in self._tree.queues

    def hold(self, queue: QueueName, gpu_type: GpuType, gpus: int) -> None:
        """Charge GPUs held (or, negative, released) to the queue and all above it."""
        for name in self.path(queue):
            self.held[name, gpu_type] = self.held.get((name, gpu_type), 0) + gpus

    def keep(self, queue: QueueName, gpu_type: GpuType, gpus: int) -> None:
        """Charge GPUs promised (or, negative, no longer so) to the queue and all above it."""
        for name in self.path(queue):
            self.promised[name, gpu_type] = self.promised.get((name, gpu_type), 0) + gpus

    def use(self, queue: QueueName, gpu_type: GpuType) -> int:
        """GPUs held and promised in the queue and below it."""
        return self.held.get((queue, gpu_type), 0) + self.promised.get((queue, gpu_type), 0)

    def _ceilings(self, queue: QueueName, gpu_type: GpuType) -> list[tuple[QueueName, int]]:
        queues = self._tree.queues
        path = (name for name in self.path(queue) if name in queues)
        return [(name, queues[name].ceiling[gpu_type]) for name in path if gpu_type in queues[name].ceiling]

    def most(self, queue: QueueName, gpu_type: GpuType) -> int | None:
        """GPUs it can never pass, whatever others do; None when nothing limits it."""
        return min((ceiling for _, ceiling in self._ceilings(queue, gpu_type)), default=None)

    def breach(self, queue: QueueName, gpu_type: GpuType, need: int, freed: int = 0) -> Breach | None:
        """The first ceiling on the way up that `need` more GPUs would pass, once `freed` of the queue's own are gone."""
        for name, ceiling in self._ceilings(queue, gpu_type):
            would_be = self.use(name, gpu_type) - freed + need
            if would_be > ceiling:
                return Breach(queue=name, would_be=would_be, ceiling=ceiling)
        return None

    def deficit(self, queue: QueueName, gpu_type: GpuType, need: int) -> int:
        """GPUs its queue would have to give up first, so that no ceiling is passed."""
        over = (self.use(name, gpu_type) + need - ceiling for name, ceiling in self._ceilings(queue, gpu_type))
        return max(0, max(over, default=0))
