"""Which nodes are open to a job, and how could its gang be cut for them, whatever is free there?

Labels, tolerations, links that broke and windows shut nodes; types and sizes of nodes say how to cut. Thousands of
jobs ask in one decision and few of them differ, so equal questions share an answer. Where there is room is for
`placement`, what a queue may have for `quota`.
"""

from __future__ import annotations

from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.units import NVLINK_LEVEL, GpuType, Instant, Nanoseconds, QueueName
from reconciler.planner import placement, windows
from reconciler.planner.ground import Ground
from reconciler.planner.placement import Ask, Shape
from reconciler.topology.tree import NodeMask


class Access:
    """What the files and the inventory open to each job at one instant; no answer depends on who holds what."""

    __slots__ = ("_asks", "_desired", "_drained", "_ground", "_kinds", "_now", "_refused")

    def __init__(self, desired: Desired, ground: Ground, now: Instant) -> None:
        self._desired, self._ground, self._now = desired, ground, now
        self._kinds: dict[tuple[GpuType, ...], tuple[GpuType, ...]] = {}
        self._asks: dict[tuple[Shape, GpuType], tuple[Ask, ...]] = {}
        self._refused: dict[tuple[object, ...], NodeMask] = {}
        self._drained: dict[tuple[Nanoseconds | None, QueueName], NodeMask] = {}

    def types_for(self, job: Job) -> tuple[GpuType, ...]:
        """Declared types it may use, in the order it wrote."""
        found = self._kinds.get(job.gpu_types)
        if found is None:
            found = self._kinds[job.gpu_types] = placement.types_of(job, self._ground)
        return found

    def asks(self, job: Job, gpu_type: GpuType) -> tuple[Ask, ...]:
        """Ways to cut the gang for a type; equal shapes share them."""
        key = (placement.shape_of(job), gpu_type)
        found = self._asks.get(key)
        if found is None:
            found = self._asks[key] = placement.asks_of(job, self._ground, self._ground.node_sizes[gpu_type])
        return found

    def refused(self, job: Job, *, soft_taints: bool = False) -> NodeMask:
        """Nodes its labels and tolerations exclude; equal rules share the answer."""
        if not job.node_labels and not self._ground.tainted:
            return 0
        key = (tuple(sorted(job.node_labels.items())), job.tolerations, soft_taints)
        if key not in self._refused:
            self._refused[key] = placement.refused_nodes(job, self._ground, soft_taints=soft_taints)
        return self._refused[key]

    def unlinked(self, job: Job) -> NodeMask:
        """Nodes with a GPU that lost NVLinks, for a job whose groups need an NVLink domain of several nodes.

        Inside a node its islands tell; in a domain above nodes every GPU of a node counts.
        """
        if not self._ground.torn or self._ground.block_level is None:
            return 0
        if all(place.level != NVLINK_LEVEL for place in job.required):
            return 0
        return sum(1 << index for index in self._ground.torn)

    def drained(self, job: Job) -> NodeMask:
        """Nodes on which a window begins before the job would have ended."""
        if not self._desired.windows:
            return 0
        limit = self._desired.limit_of(job)
        key = (limit, job.queue)
        if key not in self._drained:
            length = limit if limit is not None else self._desired.scheduling.unlimited_counts_as
            end = Instant(self._now + length)
            self._drained[key], _ = windows.closed_between(self._desired, self._ground, job, self._now, end)
        return self._drained[key]

    def closed_to(self, job: Job) -> NodeMask:
        """Nodes that are shut to it for any of these reasons."""
        return self.refused(job) | self.drained(job) | self.unlinked(job)

    def pass_to(self, now: Instant) -> None:
        """It is later now: windows have come nearer."""
        self._now = now
        self._drained.clear()
