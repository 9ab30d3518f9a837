"""Who stands where in the queues: which running gangs anyone may ask to give way, and what only a protection keeps?

Rule book §6, seen from the victims' side: made once a decision and shared by every blocked job. What one job may take
from them is for `rights`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import GpuType, Instant, JobKey, QueueName
from reconciler.planner import steps
from reconciler.planner.draft import Draft
from reconciler.planner.effort import Effort
from reconciler.planner.masks import gang_masks
from reconciler.planner.placement import Shape, Spot, fit_on, shape_of
from reconciler.planner.protection import Shield, Shields
from reconciler.planner.victims import Candidate
from reconciler.topology.capacity import Capacity
from reconciler.topology.tree import NodeMask

GUARANTEE: Final = Shield(by="guarantee")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shielded:
    """A running gang that only a protection keeps, and until when (None: not by the clock)."""

    record: JobRecord
    gpus: int
    by: str
    until: Instant | None = None


class _Row(NamedTuple):
    """A running gang as everyone sees it. `shield` holds against priority and fair share, `bare` against an owner."""

    candidate: Candidate
    shield: Shield
    bare: Shield


class Sides(NamedTuple):
    """Two leaves: how high above the first their common queue lies, the queue below that towards the first, and those
    from the second up to its own such queue."""

    height: int
    own: int
    side: tuple[int, ...]


class Guards(NamedTuple):
    """What guarantees keep from the jobs of one leaf: the leaves that may give up nothing, and the GPUs they use."""

    leaves: tuple[int, ...]
    gpus: int


class Standing:
    """Who stands where in each queue, for one decision: made once, asked by every blocked job."""

    __slots__ = (
        "_cuts",
        "_deserted",
        "_draft",
        "_fits_deserted",
        "_guarded",
        "_guards",
        "_known",
        "_leaves",
        "_near",
        "_reach",
        "_rows",
        "_sides",
        "_sizes",
        "_told",
        "_under",
        "_version",
        "effort",
    )

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._rows: dict[tuple[int, GpuType], list[_Row]] | None = None
        self._known: dict[tuple[object, ...], tuple[tuple[Candidate, ...], tuple[Shielded, ...]]] = {}
        self._guarded: dict[tuple[int, GpuType], list[Shielded]] = {}
        self._leaves: dict[GpuType, list[int]] = {}
        self._near: dict[tuple[int, GpuType], list[tuple[Sides, int]]] = {}
        self._sizes: dict[int, tuple[tuple[Candidate, ...], tuple[int, int]]] = {}
        self._under: dict[GpuType, dict[int, list[int]]] = {}
        self._cuts: dict[tuple[int, int], tuple[int, ...]] = {}
        self._sides: dict[tuple[int, int], Sides] = {}
        self._version = draft.quotas.ahead.version  # of the use for which the next two hold
        self._reach: dict[GpuType, list[int]] = {}
        self._guards: dict[tuple[int, GpuType], Guards] = {}
        self._deserted: dict[GpuType, Capacity] = {}
        self._fits_deserted: dict[tuple[Shape, GpuType, NodeMask], bool] = {}
        self._told = 0  # how often somebody was said to be gone
        self.effort = Effort()

    def below(
        self, queue: QueueName, priority: int, gpu_type: GpuType
    ) -> tuple[tuple[Candidate, ...], tuple[Shielded, ...]]:
        """Running gangs of a queue and type of strictly lower priority: those that may be taken, and those shielded."""
        key = (queue, priority, gpu_type)
        if key not in self._known:
            leaf = self._draft.quotas.branches.leaf(queue)
            rows = [row for row in self._of(leaf, gpu_type) if row.candidate.priority < priority]
            self._known[key] = _sorted_out((row, row.shield) for row in rows)
        return self._known[key]

    def could_ever_help(self, job: Job, gpu_type: GpuType) -> bool:
        """False for certain when the job would not fit even if everyone were gone whom anyone may ask. Shared by all who
        ask for the same: GPUs only become fewer while a decision is made, so what was true once stays true."""
        draft = self._draft
        refused = draft.access.closed_to(job)
        key = (shape_of(job), gpu_type, refused)
        found = self._fits_deserted.get(key)
        if found is None:
            if gpu_type not in self._deserted:
                self._deserted[gpu_type] = self._desert(gpu_type)
            engine, asks = self._deserted[gpu_type], draft.access.asks(job, gpu_type)
            spot = fit_on(engine, gpu_type, job, asks, refused, draft.ground.resources_of)
            found = self._fits_deserted[key] = isinstance(spot, Spot) or (spot is not None and not spot.proved)
        return found

    def _desert(self, gpu_type: GpuType) -> Capacity:
        """The GPUs of a type that are usable, promised to nobody and held by nobody who has to stay."""
        draft, stay = self._draft, dict[int, int]()
        asked = {row.candidate.record.job for rows in self._all().values() for row in rows if not row.bare.by}
        for record in draft.records.values():
            if record.state.holds_gpus and record.state is not JobState.STOPPING and record.job not in asked:
                for node, mask in gang_masks(record).items():
                    index = draft.ground.tree.index_of.get(node)
                    if index is not None:
                        stay[index] = stay.get(index, 0) | mask
        return draft.supply.engine_without(gpu_type, stay)

    def others(
        self, leaf: int, gpu_type: GpuType, *, reclaim: bool
    ) -> tuple[tuple[Candidate, ...], tuple[Shielded, ...]]:
        """Running gangs of one leaf: those an owner (`reclaim`) or a poorer queue may take, and those shielded."""
        key = (leaf, gpu_type, reclaim)
        if key not in self._known:
            rows = self._of(leaf, gpu_type)
            self._known[key] = _sorted_out((row, row.bare if reclaim else row.shield) for row in rows)
        return self._known[key]

    def sizes(self, gangs: tuple[Candidate, ...]) -> tuple[int, int]:
        """GPUs of these gangs, which were answered here before, and of the largest of them."""
        found = self._sizes.get(id(gangs))
        if found is None or found[0] is not gangs:
            gpus = [one.gpus for one in gangs]
            found = self._sizes[id(gangs)] = gangs, (sum(gpus), max(gpus, default=0))
        return found[1]

    def guarded(self, leaf: int, gpu_type: GpuType) -> list[Shielded]:
        """All of a leaf's gangs, which its guarantee keeps."""
        key = (leaf, gpu_type)
        if key not in self._guarded:
            self._guarded[key] = [_shielded(row, GUARANTEE) for row in self._of(leaf, gpu_type)]
        return self._guarded[key]

    def guards(self, own: int, gpu_type: GpuType) -> Guards:
        """The leaves from which nobody in the leaf `own` may take anything, for their guarantees."""
        self._keep_up()
        found = self._guards.get((own, gpu_type))
        if found is None:
            reach, under = self.reach(gpu_type), self._draft.quotas.ahead.all_under(gpu_type)
            near = self.near(own, gpu_type)
            leaves = tuple(sorted([leaf for (_, _, side), leaf in near if reach[leaf] < len(side)]))
            gpus = sum([under[leaf] for leaf in leaves])
            found = self._guards[own, gpu_type] = Guards(leaves, gpus)
        return found

    def reach(self, gpu_type: GpuType) -> list[int]:
        """For each queue how many there are, from it upwards without a gap, that have more than they are guaranteed.

        From a leaf something may be taken when that is all of its side (`sides`).
        """
        self._keep_up()
        found = self._reach.get(gpu_type)
        if found is None:
            found = self._reach[gpu_type] = self._reaches(gpu_type)
        return found

    def _reaches(self, gpu_type: GpuType) -> list[int]:
        quotas, found = self._draft.quotas, list[int]()
        for number, parent in enumerate(quotas.branches.parents):  # parents come before their children
            more = found[parent] if parent >= 0 else 0
            found.append(1 + more if quotas.is_above(number, gpu_type) else 0)
        return found

    @property
    def edition(self) -> tuple[int, int]:
        """What was worked out from this class holds for as long as this stays the same."""
        return self._draft.quotas.ahead.version, self._told

    def _keep_up(self) -> None:
        """Forget what was worked out for another use than the present one."""
        version = self._draft.quotas.ahead.version
        if version != self._version:
            self._version = version
            self._reach.clear()
            self._guards.clear()

    def leaves(self, gpu_type: GpuType) -> list[int]:
        """Leaves with running gangs of a type, in order."""
        if gpu_type not in self._leaves:
            self._leaves[gpu_type] = sorted(leaf for leaf, kind in self._all() if kind == gpu_type)
        return self._leaves[gpu_type]

    def near(self, own: int, gpu_type: GpuType) -> list[tuple[Sides, int]]:
        """The other leaves with running gangs of a type, and how they lie to one: nearest common queue first."""
        found = self._near.get((own, gpu_type))
        if found is None:
            branches, found = self._draft.quotas.branches, []
            seen, below = {own}, own
            for height, number in enumerate(branches.path(own)):
                depth = len(branches.path(number))
                for leaf in self._leaves_under(number, gpu_type):
                    if leaf not in seen:
                        found.append((Sides(height, below, self._side(leaf, depth)), leaf))
                        seen.add(leaf)
                below = number
            self._near[own, gpu_type] = found
        return found

    def _leaves_under(self, number: int, gpu_type: GpuType) -> Sequence[int]:
        """Leaves with running gangs of a type in a queue, in order."""
        if gpu_type not in self._under:
            under = self._under[gpu_type] = dict[int, list[int]]()
            for leaf in self.leaves(gpu_type):
                for above in self._draft.quotas.branches.path(leaf):
                    under.setdefault(above, []).append(leaf)
        return self._under[gpu_type].get(number, ())

    def _side(self, leaf: int, depth: int) -> tuple[int, ...]:
        """The queues from a leaf up to below one at this depth; one object for all who ask."""
        found = self._cuts.get((leaf, depth))
        if found is None:
            found = self._cuts[leaf, depth] = self._draft.quotas.branches.path(leaf)[:-depth]
        return found

    def sides(self, own: int, other: int) -> Sides:
        """How two leaves lie to each other; worked out once."""
        found = self._sides.get((own, other))
        if found is None:
            branches = self._draft.quotas.branches
            mine = branches.path(own)
            if other in mine:
                height = mine.index(other)
                found = Sides(height, mine[max(0, height - 1)], ())
            else:
                height, below, side = self.sides(own, branches.parents[other])
                found = Sides(height, below, (other, *side))
            self._sides[own, other] = found
        return found

    def forget(self, gone: Iterable[JobKey] = ()) -> None:
        """These were evicted: they are no candidates any more. Nobody named: look at everyone again."""
        left = set(gone)
        self._known.clear()
        self._guarded.clear()
        self._guards.clear()
        self._told += 1
        if not left or self._rows is None:
            self._rows = None
            self._leaves.clear()
            self._near.clear()
            self._under.clear()
            self._deserted.clear()
            self._fits_deserted.clear()
            return
        homes = {self._draft.quotas.branches.leaf(self._draft.records[job].queue) for job in left}
        for leaf, kind in self._rows:
            if leaf in homes:
                rows = self._rows[leaf, kind]
                self._rows[leaf, kind] = [row for row in rows if row.candidate.record.job not in left]

    def _of(self, leaf: int, gpu_type: GpuType) -> list[_Row]:
        return self._all().get((leaf, gpu_type), [])

    def _all(self) -> dict[tuple[int, GpuType], list[_Row]]:
        if self._rows is None:
            self._rows, draft, shields = {}, self._draft, Shields(self._draft)
            for record in draft.records.values():
                if record.state is not JobState.RUNNING:
                    continue
                job, kind = draft.job(record), draft.charges.types.get(record.job)
                if job is not None and kind is not None:
                    leaf = draft.quotas.branches.leaf(record.queue)
                    self._rows.setdefault((leaf, kind), []).append(_row(draft, shields, record, job, leaf))
        return self._rows


def _row(draft: Draft, shields: Shields, record: JobRecord, job: Job, leaf: int) -> _Row:
    lost = steps.lost_gpu_seconds(record, draft.observed, draft.now)
    shield = shields.of(record, job)
    bare = shields.of(record, job, reclaim=True) if shield.by in ("cooldown", "maxPerDay") else shield
    index_of = draft.ground.tree.index_of
    places = tuple([(index_of[node], mask) for node, mask in gang_masks(record).items() if node in index_of])
    made = Candidate(record, draft.priority(job), lost, record.gpus_bound, leaf, places)
    return _Row(made, shield, bare)


def _sorted_out(rows: Iterable[tuple[_Row, Shield]]) -> tuple[tuple[Candidate, ...], tuple[Shielded, ...]]:
    able, shielded = [], []
    for row, shield in rows:
        if shield.by:
            shielded.append(_shielded(row, shield))
        else:
            able.append(row.candidate)
    return tuple(able), tuple(shielded)


def _shielded(row: _Row, shield: Shield) -> Shielded:
    return Shielded(record=row.candidate.record, gpus=row.candidate.gpus, by=shield.by, until=shield.until)
