"""What does a gang count for while it holds GPUs, or was promised some?

Its GPUs are bound at the engines, counted at its queues, and take CPUs and memory of their nodes. Each act here does
all of it, so that no step of a decision can forget a part; a trial does it the other way round and undoes that. What
becomes of the gang's record is for `draft`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import GpuType, JobKey, NodeName
from reconciler.planner.capacity import Supply
from reconciler.planner.ground import Ground
from reconciler.planner.masks import added_masks, gang_masks, promised_masks
from reconciler.planner.quota import Quotas


class Charges:
    """What every gang has on it. `types` has the GPU type of each that holds GPUs on a node that is still declared."""

    __slots__ = ("_ground", "_jobs", "_quotas", "_supply", "types")

    def __init__(
        self, jobs: Mapping[JobKey, Job], ground: Ground, supply: Supply, quotas: Quotas,
        holding: Iterable[JobRecord], promised: Iterable[JobRecord],
    ) -> None:  # fmt: skip
        """`holding` and `promised`: gangs whose GPUs are bound in the supply already."""
        self._jobs, self._ground, self._supply, self._quotas = jobs, ground, supply, quotas
        self.types: dict[JobKey, GpuType] = {}
        for record in holding:
            self._count_held(record)
        for record in promised:
            self._count_promised(record)

    def hold(self, record: JobRecord) -> None:
        """The gang holds its GPUs from now on, spares included. Raises BrokenInvariant, when one is not free for it."""
        self._supply.hold(gang_masks(record))
        self._count_held(record)

    def let_go(self, record: JobRecord) -> None:
        """All the gang holds is free at once: it was seen released before."""
        self._count_held(record, -1)
        self._supply.unhold(gang_masks(record))

    def keep(self, record: JobRecord) -> None:
        """What was promised to the gang is kept for it."""
        self._supply.keep(promised_masks(record))
        self._count_promised(record)

    def unkeep(self, record: JobRecord) -> None:
        """The gang's promise is over; what it holds it holds on."""
        self._supply.unkeep(promised_masks(record))
        self._count_promised(record, -1)

    def stop(self, record: JobRecord) -> None:
        """A gang that went on until now begins to stop: it holds its GPUs, and its queue may count on them."""
        self._count_ahead(record, gang_masks(record), -1)

    @contextmanager
    def without(self, gangs: Iterable[JobRecord], gpu_type: GpuType) -> Iterator[None]:
        """A trial in which these gangs are gone."""
        gone, version = [(record, gang_masks(record)) for record in gangs], self._quotas.ahead.version
        with self._supply.engines[gpu_type].trial():
            for record, masks in gone:
                self._supply.give(gpu_type, masks)
                self._count_at_nodes(record, masks, -1)
                self._count_ahead(record, masks, -1)
            try:
                yield
            finally:
                for record, masks in gone:
                    self._count_at_nodes(record, masks, 1)
                    self._count_ahead(record, masks, 1)
                self._quotas.ahead.undone_to(version)

    @contextmanager
    def without_parts(
        self, parts: Iterable[tuple[JobRecord, Mapping[NodeName, int]]], gpu_type: GpuType
    ) -> Iterator[None]:
        """A trial in which running gangs have given up some of their GPUs."""
        given, version = list(parts), self._quotas.ahead.version
        with self._supply.engines[gpu_type].trial():
            for record, masks in given:
                self._supply.give(gpu_type, masks)
                self._count_part(record, masks, -1)
            try:
                yield
            finally:
                for record, masks in given:
                    self._count_part(record, masks, 1)
                self._quotas.ahead.undone_to(version)

    def _count_held(self, record: JobRecord, sign: int = 1) -> None:
        masks = gang_masks(record)
        gpu_type = self._ground.type_at(masks)
        if gpu_type is None:
            return
        self.types[record.job] = gpu_type
        goes_on = record.state is not JobState.STOPPING
        for kind, gpus, nodes in self._ground.parts(masks):
            self._quotas.hold(record.queue, kind, sign * gpus, nodes, goes_on=goes_on)
        self._count_at_nodes(record, masks, sign)

    def _count_promised(self, record: JobRecord, sign: int = 1) -> None:
        masks = promised_masks(record)
        if self._ground.type_at(masks) is None:
            return
        for kind, gpus, nodes in self._ground.parts(masks):
            self._quotas.keep(record.queue, kind, sign * gpus, nodes)
        self._count_at_nodes(record, added_masks(record), sign)

    def _count_ahead(self, record: JobRecord, masks: Mapping[NodeName, int], sign: int) -> None:
        """A gang that goes on is thought, or begins, to stop (-1), or goes on after all (1)."""
        if record.state is not JobState.STOPPING:
            for kind, gpus, nodes in self._ground.parts(masks):
                self._quotas.leave(record.queue, kind, -sign * gpus, nodes)

    def _count_part(self, record: JobRecord, masks: Mapping[NodeName, int], sign: int) -> None:
        self._count_at_nodes(record, masks, sign)
        for kind, gpus, _ in self._ground.parts(masks):
            self._quotas.leave(record.queue, kind, -sign * gpus)

    def _count_at_nodes(self, record: JobRecord, masks: Mapping[NodeName, int], sign: int) -> None:
        job = self._jobs.get(record.job)
        if job is not None:
            self._supply.charge(masks, sign * job.cpus_per_gpu, sign * job.memory_per_gpu)
