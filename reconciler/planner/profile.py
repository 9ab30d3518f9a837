"""When does each GPU, and each queue's quota, come back? The release profile of one decision.

Known ends are time limits, deadlines of stops and the limits of what was promised or placed in this very pass; what
has no limit, is lost or overdue never comes back. A GPU is free *from an instant on*: what is reserved for someone is
free again when that someone ends, and no earlier, so that nobody made later can move who was made earlier. Where a
gang would start is for `reservation`, who may start meanwhile for `backfill`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import GpuType, Instant, NodeName, QueueName
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks, promised_masks
from reconciler.planner.quota_tree import TOP
from reconciler.topology.tree import GpuMask, Level, NodeIndex, bits_of
from reconciler.topology.units import units_on

NEVER: Final = Instant(1 << 80)
"""Later than any instant."""

NOW: Final = Instant(0)
"""From when a GPU counts that is free already."""

Slot = tuple[Instant, NodeIndex]
"""From this instant on the node has room for one unit more."""


def end_of(draft: Draft, record: JobRecord) -> Instant:
    """When what it holds comes back at the latest: by its time limit, or by the deadline of its stop; NEVER without one."""
    if record.state is JobState.STOPPING:
        known = record.deadline if record.deadline is not None and record not in draft.stuck else None
        return Instant(max(known, draft.now)) if known is not None else NEVER
    backs_off = record.state is JobState.REPAIRING and record.retry_at is not None  # it goes on where it was
    if not backs_off and record.state not in (JobState.STARTING, JobState.RUNNING):
        return NEVER
    job = draft.job(record)
    limit = draft.desired.limit_of(job) if job is not None else None
    if limit is None:
        return NEVER
    began = record.started if record.started is not None else max(draft.now, record.retry_at or 0)
    overrun = draft.now + record.grace
    return Instant(max(began + limit, overrun))


def end_of_promised(draft: Draft, record: JobRecord) -> Instant:
    """When a gang that waits for its promise would be over, had it started at the promise's deadline."""
    job = draft.job(record)
    limit = draft.desired.limit_of(job) if job is not None else None
    if limit is None or record.promise is None:
        return NEVER
    return Instant(max(record.promise.deadline, draft.now) + limit)


Rows = list[tuple[Instant, GpuMask]]
"""From when which GPUs of a node are free."""


class Profile:
    """What comes back when, for one GPU type: by node, and by domain for gangs of one kind of unit."""

    __slots__ = ("_draft", "_indexes", "_rows", "gpu_type")

    def __init__(self, draft: Draft, gpu_type: GpuType) -> None:
        self._draft, self.gpu_type = draft, gpu_type
        self._rows: dict[NodeIndex, list[tuple[Instant, GpuMask]]] = {}
        self._indexes: dict[tuple[int, int], SlotIndex] = {}
        self._add_free()
        promised = draft.supply.promised
        for record in draft.records.values():
            if record.state.holds_gpus and record.placement is not None:
                self._add(gang_masks(record), end_of(draft, record), promised)
            if record.promise is not None:
                self._add(promised_masks(record), end_of_promised(draft, record), None)

    def _add(self, masks: Mapping[NodeName, GpuMask], until: Instant, promised: list[GpuMask] | None) -> None:
        """GPUs of a gang come back, unless they are promised to someone else or spoken for."""
        ground, supply, rows = self._draft.ground, self._draft.supply, self._rows
        one_type = len(ground.types) == 1
        for name, mask in masks.items():
            index = ground.tree.index_of.get(name)
            if index is None or not (one_type or ground.nodes[index].shape.gpu_type == self.gpu_type):
                continue
            back = mask & supply.usable[index] & ~supply.claimed[index]
            back = back & ~promised[index] if promised is not None else back
            if back:
                rows.setdefault(index, []).append((until, back))

    def _add_free(self) -> None:
        engine, first = self._draft.supply.engines[self.gpu_type], self._draft.ground.tree.first_child[-1]
        for node, mask in engine.partly.items():
            self._rows[node] = [(NOW, mask)]
        for size, leaves in engine.wholes.items():
            whole = (1 << size) - 1
            for leaf, slots in enumerate(leaves):
                for slot in bits_of(slots) if slots else ():
                    self._rows[first[leaf] + slot] = [(NOW, whole)]

    def rows(self, node: NodeIndex) -> list[tuple[Instant, GpuMask]]:
        """(from when, GPUs) of a node, in no order; NEVER when nobody knows when. What is spoken for is absent."""
        return self._rows.get(node, [])

    def free_at(self, node: NodeIndex, at: Instant) -> GpuMask:
        """GPUs of a node that are free from `at` on."""
        mask = 0
        for since, gpus in self._rows.get(node, ()):
            if since <= at:
                mask |= gpus
        return mask

    def occupy(self, masks: Mapping[NodeIndex, GpuMask], until: Instant | None) -> None:
        """These GPUs come back at `until` and no earlier; None: they are spoken for, for good."""
        changed = []
        for node, mask in masks.items():
            before = self._rows.get(node, [])
            kept = [(since, left) for since, gpus in before if (left := gpus & ~mask)]
            if until is not None:
                kept.append((until, mask))
            changed.append((node, before, kept))
            self._rows[node] = kept
        for index in self._indexes.values():
            index.replace(changed)

    def slots(self, unit: int, share: int) -> SlotIndex:
        """The index for gangs whose units are so large and in such pieces; made at first use."""
        found = self._indexes.get((unit, share))
        if found is None:
            found = self._indexes[unit, share] = SlotIndex(self._draft, self._rows, unit, share)
        return found


class SlotIndex:
    """For one size of unit: the instants at which a domain gains room for one more, sorted."""

    __slots__ = ("_known", "_shape_of", "_shapes", "_tree", "share", "unit")

    def __init__(
        self, draft: Draft, rows: Mapping[NodeIndex, list[tuple[Instant, GpuMask]]], unit: int, share: int
    ) -> None:
        self._tree = draft.ground.tree
        self._shapes, self._shape_of = self._tree.shapes, self._tree.shape_of
        self.unit, self.share = unit, share
        leaves: dict[int, list[Slot]] = {}
        for node, found in rows.items():
            leaves.setdefault(self._tree.leaf_of[node], []).extend(self._of(node, found))
        for slots in leaves.values():
            slots.sort()
        self._known: dict[tuple[Level, int], list[Slot]] = {
            (self._tree.leaf_level, leaf): leaves[leaf] for leaf in sorted(leaves)
        }

    def _of(self, node: NodeIndex, rows: Rows) -> Iterator[Slot]:
        """One slot for each unit that fits on the node some day."""
        shape, mask, have = self._shapes[self._shape_of[node]], 0, 0
        for since, gpus in sorted(rows) if len(rows) > 1 else rows:
            mask |= gpus
            units = units_on(shape, mask, self.unit, self.share)
            for _ in range(units - have):
                yield since, node
            have = max(have, units)

    def replace(self, changed: Sequence[tuple[NodeIndex, Rows, Rows]]) -> None:
        """The rows of these nodes went from one to the other: put them right in every domain known already."""
        for node, before, after in changed:
            old, new = list(self._of(node, before)), list(self._of(node, after))
            for level in range(self._tree.leaf_level + 1):
                key = (level, self._tree.domain_of(node, level))
                slots = self._known.get(key)
                if slots is None and level == self._tree.leaf_level:
                    slots = self._known[key] = []
                if slots is None:
                    continue
                for slot in old:
                    del slots[bisect_left(slots, slot)]
                for slot in new:
                    insort(slots, slot)

    def domains(self, level: Level, domain: int, inside: Level) -> range:
        """The domains of a narrower level inside one."""
        return range(*self._tree.span(level, domain, inside))

    def inside(self, level: Level, domain: int) -> list[Slot]:
        """All slots of a domain above the nodes, soonest first."""
        found = self._known.get((level, domain))
        if found is None:
            first, end = self._tree.span(level, domain, self._tree.leaf_level)
            gathered: list[Slot] = []
            for leaf in range(first, end):
                gathered += self._known.get((self._tree.leaf_level, leaf), ())
            gathered.sort()
            found = self._known[level, domain] = gathered
        return found


class QuotaReturns:
    """When a queue has come down far enough for so many GPUs more, by the known ends of its jobs."""

    __slots__ = ("_draft", "_known")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._known: dict[GpuType, dict[int, list[tuple[Instant, int]]]] = {}

    def _returns(self, gpu_type: GpuType) -> dict[int, list[tuple[Instant, int]]]:
        """(when, GPUs) for each queue, subtree included, of what counts there and ends by a known instant."""
        found = self._known.get(gpu_type)
        if found is None:
            draft, found = self._draft, dict[int, list[tuple[Instant, int]]]()
            for record in draft.records.values():
                if record.state.holds_gpus and record.state is not JobState.STOPPING:
                    kind, until, gpus = draft.charges.types.get(record.job), end_of(draft, record), record.gpus_bound
                elif record.promise is not None:
                    kind, until = draft.ground.type_at(promised_masks(record)), end_of_promised(draft, record)
                    gpus = len(record.promise.placement.ranks)
                else:
                    continue
                if kind == gpu_type and until < NEVER:
                    self._add(found, record.queue, until, gpus)
            for rows in found.values():
                rows.sort()
            self._known[gpu_type] = found
        return found

    def _add(self, rows: dict[int, list[tuple[Instant, int]]], queue: QueueName, until: Instant, gpus: int) -> None:
        branches = self._draft.quotas.branches
        for number in branches.path(branches.leaf(queue)):
            rows.setdefault(number, []).append((until, gpus))

    def occupy(self, gpu_type: GpuType, queue: QueueName, gpus: int, until: Instant) -> None:
        """So many GPUs more come back to a queue at `until`."""
        if gpu_type in self._known and until < NEVER:
            branches = self._draft.quotas.branches
            for number in branches.path(branches.leaf(queue)):
                insort(self._known[gpu_type].setdefault(number, []), (until, gpus))

    def returned(self, number: int, gpu_type: GpuType, by: Instant) -> int:
        """GPUs that a queue will have given back by an instant."""
        return sum(gpus for until, gpus in self._returns(gpu_type).get(number, ()) if until <= by)

    def limits(self, job: Job, gpu_type: GpuType) -> list[tuple[int, int]]:
        """(queue, GPUs) for each number on its way up that it may not pass."""
        quotas = self._draft.quotas
        shares, found = quotas.branches.shares(gpu_type), []
        for number in quotas.branches.path(quotas.branches.leaf(job.queue)):
            ceiling = shares.ceiling[number]
            if ceiling is not None:
                found.append((number, ceiling))
            if shares.declared[number] and self._draft.is_fixed(job):
                found.append((number, shares.guaranteed[number]))
        return found

    def first_instant(self, job: Job, gpu_type: GpuType, least: Instant, spoken_for: Mapping[int, int]) -> Instant:
        """The first instant, `least` or later, from which the job passes none of these numbers; NEVER: nobody knows.

        `spoken_for`: GPUs by queue that others have reserved before it.
        """
        at = least
        for number, limit in self.limits(job, gpu_type):
            over = self._draft.quotas.ahead.under(number, gpu_type) + spoken_for.get(number, 0) + job.gpus - limit
            for until, gpus in self._returns(gpu_type).get(number, ()) if over > 0 else ():
                over -= gpus
                if over <= 0:
                    at = max(at, until)
                    break
            if over > 0:
                return NEVER
        return self._when_lent(job, gpu_type, at, spoken_for)

    def _when_lent(self, job: Job, gpu_type: GpuType, least: Instant, spoken_for: Mapping[int, int]) -> Instant:
        """The first instant from `least` on at which enough is left that others lend; NEVER: nobody knows."""
        quotas = self._draft.quotas
        if not quotas.branches.shares(gpu_type).withholds:
            return least  # what is left are the GPUs themselves
        leaf = quotas.branches.leaf(job.queue)
        instants = [least, *sorted({until for until, _ in self._returns(gpu_type).get(TOP, ()) if until > least})]

        def is_enough(at: Instant) -> bool:
            def change(number: int) -> int:
                return spoken_for.get(number, 0) - self.returned(number, gpu_type, at)

            return quotas.ahead.left_after(leaf, gpu_type, change) >= job.gpus

        found = bisect_left(instants, True, key=is_enough)  # more is left the later it is
        return instants[found] if found < len(instants) else NEVER
