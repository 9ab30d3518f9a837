"""Who may be asked to give way to this job, and which of them together?

Rule book §6, the table of who may take from whom. Inside one queue a strictly lower priority gives way. From another
queue only what is above its guarantee may be taken back, at every level from below the common queue down to the
victim: by an owner that stays within its guarantee (reclaim), or, with `fairShare`, by one that does not end up with
more than the victim's side. One gang that straddles a guarantee may go when nothing else serves its owner. Every rule
here that limits a set limits all larger ones too. Which lawful set is the mildest is for `preemption`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import ClassName, GpuType, Instant, JobKey, NodeName, QueueName
from reconciler.planner import steps
from reconciler.planner.draft import Draft
from reconciler.planner.effort import Effort
from reconciler.planner.placement import Shape, Spot, fit_on, shape_of
from reconciler.planner.protection import Shield, Shields
from reconciler.planner.victims import Candidate
from reconciler.topology.capacity import Capacity
from reconciler.topology.tree import NodeMask

_STRADDLING: Final = 256  # gangs taken together among which one that straddles is still looked for

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
        "_claims",
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
        self._claims: dict[tuple[QueueName, ClassName, int, GpuType], Claim] = {}
        self._deserted: dict[GpuType, Capacity] = {}
        self._fits_deserted: dict[tuple[Shape, GpuType, NodeMask], bool] = {}
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

    def claim(self, job: Job, gpu_type: GpuType) -> Claim:
        """Everyone who might give way to this job, and the rules for taking several of them. Jobs of one queue, class
        and size share one claim for as long as nobody's use changes."""
        self._keep_up()
        key = (job.queue, job.priority_class, job.gpus, gpu_type)
        found = self._claims.get(key)
        if found is None:
            found = self._claims[key] = Claim(self._draft, self, job, gpu_type)
        return found

    def could_ever_help(self, job: Job, gpu_type: GpuType) -> bool:
        """False for certain when the job would not fit even if everyone were gone whom anyone may ask. Shared by all who
        ask for the same: GPUs only become fewer while a decision is made, so what was true once stays true."""
        draft = self._draft
        refused = draft.refused(job) | draft.drained(job) | draft.unlinked(job)
        key = (shape_of(job), gpu_type, refused)
        found = self._fits_deserted.get(key)
        if found is None:
            if gpu_type not in self._deserted:
                self._deserted[gpu_type] = self._desert(gpu_type)
            engine, asks = self._deserted[gpu_type], draft.asks(job, gpu_type)
            spot = fit_on(engine, gpu_type, job, asks, refused, draft.ground.resources_of)
            found = self._fits_deserted[key] = isinstance(spot, Spot) or (spot is not None and not spot.proved)
        return found

    def _desert(self, gpu_type: GpuType) -> Capacity:
        """The GPUs of a type that are usable, promised to nobody and held by nobody who has to stay."""
        draft, stay = self._draft, dict[int, int]()
        asked = {row.candidate.record.job for rows in self._all().values() for row in rows if not row.bare.by}
        for record in draft.records.values():
            if record.state.holds_gpus and record.state is not JobState.STOPPING and record.job not in asked:
                for node, mask in draft.masks(record).items():
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

    def _keep_up(self) -> None:
        """Forget what was worked out for another use than the present one."""
        version = self._draft.quotas.ahead.version
        if version != self._version:
            self._version = version
            self._reach.clear()
            self._guards.clear()
            self._claims.clear()

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
        self._claims.clear()
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
                job, kind = draft.job(record), draft.types.get(record.job)
                if job is not None and kind is not None:
                    leaf = draft.quotas.branches.leaf(record.queue)
                    self._rows.setdefault((leaf, kind), []).append(_row(draft, shields, record, job, leaf))
        return self._rows


def _row(draft: Draft, shields: Shields, record: JobRecord, job: Job, leaf: int) -> _Row:
    lost = steps.lost_gpu_seconds(record, draft.observed, draft.now)
    shield = shields.of(record, job)
    bare = shields.of(record, job, reclaim=True) if shield.by in ("cooldown", "maxPerDay") else shield
    index_of = draft.ground.tree.index_of
    places = tuple([(index_of[node], mask) for node, mask in draft.masks(record).items() if node in index_of])
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


def may_preempt(draft: Draft, job: Job) -> bool:
    """The rules and its class let it take from lower priorities of its queue."""
    own = draft.class_of(job)
    return draft.desired.scheduling.preempt_same_queue == "lowerPriority" and own is not None and own.preempts_lower


class Claim:
    """One job's rights over the running gangs of one GPU type.

    `able` are those who may be taken alone or with others, `shielded` those whom only a protection keeps. `caps` is
    what each queue on the victims' side can give up, in GPUs. With `straddles` one gang more may go on each side.
    """

    __slots__ = (
        "_by_leaf",
        "_draft",
        "_job",
        "_keepers",
        "_most",
        "_path",
        "_protected",
        "_sides",
        "_standing",
        "able",
        "caps",
        "effort",
        "gpu_type",
        "straddles",
        "unfair",
    )

    def __init__(self, draft: Draft, standing: Standing, job: Job, gpu_type: GpuType) -> None:
        self._draft, self._standing, self._job, self.gpu_type = draft, standing, job, gpu_type
        self._path = draft.quotas.branches.path(draft.quotas.branches.leaf(job.queue))
        self._keepers: list[Sequence[Shielded]] = []
        self._sides: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._most: int | None = None
        self._protected: int | None = None
        self.effort = standing.effort
        self.caps: dict[int, int] = {}
        self.straddles = False
        self.unfair: list[Candidate] = []
        self._by_leaf: dict[int, tuple[int, int]] = {}
        able: list[Candidate] = []
        if may_preempt(draft, job):
            some, kept = standing.below(job.queue, draft.priority(job), gpu_type)
            self._add(self._path[0], able, some)
            self._keepers.append(kept)
        if draft.desired.scheduling.preempt_other_queues != "never":
            self._take_from_others(able)
        self.able = tuple(able)

    @property
    def kept(self) -> tuple[Shielded, ...]:
        """Those whom only a protection of their own keeps."""
        return tuple(one for kept in self._keepers for one in kept)

    @property
    def shielded(self) -> Iterator[Shielded]:
        """Those whom only a protection keeps; after them the gangs of queues that have no more than their guarantee."""
        for kept in self._keepers:
            yield from kept
        for leaf in self._guards().leaves:
            yield from self._standing.guarded(leaf, self.gpu_type)

    def protected(self) -> int:
        """GPUs of those whom only a protection keeps."""
        if self._protected is None:
            self._protected = sum(one.gpus for kept in self._keepers for one in kept) + self._guards().gpus
        return self._protected

    def _guards(self) -> Guards:
        if self._draft.desired.scheduling.preempt_other_queues == "never":
            return Guards((), 0)
        return self._standing.guards(self._path[0], self.gpu_type)

    def _take_from_others(self, able: list[Candidate]) -> None:
        """Level by level, nearest common queue first: who is nearer may make room in the guarantee of who is farther."""
        by_share = self._draft.desired.scheduling.preempt_other_queues == "fairShare"
        quotas, own_leaf = self._draft.quotas, self._path[0]
        if (
            not by_share
            and not able
            and not any(quotas.within(n, self.gpu_type, self._job.gpus) for n in self._path[:-1])
        ):
            return
        reach, overs = self._standing.reach(self.gpu_type), dict[int, tuple[int, int]]()
        for (_, own, side), leaf in self._standing.near(own_leaf, self.gpu_type):
            self._sides[leaf] = own, side
            if own not in overs:
                over = quotas.ahead.under(own, self.gpu_type) + self._job.gpus - self._guaranteed(own)
                nearer = [row for leaf, row in self._by_leaf.items() if own in quotas.branches.path(leaf)]
                # Who is nearer goes for his GPUs, not for room alone: together they free no more than is needed, and
                # less than the largest of them on top.
                largest = max((most for _, most in nearer), default=0)
                inside = min(sum(gpus for gpus, _ in nearer), self._job.gpus + largest)
                overs[own] = (over - inside, inside)
            over, inside = max(0, overs[own][0]), overs[own][1]
            if (over and not by_share) or reach[leaf] < len(side):
                continue
            is_owner = not over and (not by_share or not inside)
            some, kept = self._standing.others(leaf, self.gpu_type, reclaim=is_owner)
            for number in side:
                self.caps[number] = quotas.spare(number, self.gpu_type)
            if over:
                weights = quotas.branches.weights
                self.caps[side[-1]] -= -(-over * weights[side[-1]] // weights[own])
                self.unfair += some
            self._add(leaf, able, some)
            self._keepers.append(kept)

    def _add(self, leaf: int, able: list[Candidate], more: tuple[Candidate, ...]) -> None:
        """These of one leaf may be taken too."""
        if more:
            able += more
            self._by_leaf[leaf] = self._standing.sizes(more)

    def _side(self, leaf: int) -> tuple[int, tuple[int, ...]]:
        """The queue below the common one towards the job, and those from the victim's leaf up to its own such queue."""
        found = self._sides.get(leaf)
        if found is None:
            _, own, side = self._standing.sides(self._path[0], leaf)
            found = self._sides[leaf] = own, side
        return found

    def _guaranteed(self, number: int) -> int:
        return self._draft.quotas.branches.shares(self.gpu_type).guaranteed[number]

    def could_ever_help(self, job: Job) -> bool:
        """False for certain when the job would not fit even if everyone were gone whom anyone may ask."""
        return self._standing.could_ever_help(job, self.gpu_type)

    def most(self) -> int:
        """GPUs that may be taken at the very most, as far as each queue below the common one can give them up."""
        if self._most is None:
            left, found = dict(self.caps), 0
            for leaf, (gpus, _) in self._by_leaf.items():
                side = () if leaf == self._path[0] else self._side(leaf)[1]
                part = max(0, min([gpus, *(left[number] for number in side)]))
                for number in side:
                    left[number] -= part
                found += part
            self._most = found
        return self._most

    def sides(self, candidate: Candidate) -> tuple[int, int]:
        """The two queues below the common one: the job's and the victim's."""
        own, side = self._side(candidate.leaf)
        return own, side[-1]

    def height(self, candidate: Candidate) -> int:
        """How many levels above the job's queue the one lies that has both; 0: the same queue."""
        return self._standing.sides(self._path[0], candidate.leaf).height

    def side_of(self, candidate: Candidate) -> tuple[int, ...]:
        """Queues that a victim makes smaller and the job does not make larger; empty for one of the job's own queue."""
        return () if candidate.leaf == self._path[0] else self._side(candidate.leaf)[1]

    def may_go(self, chosen: Sequence[Candidate]) -> bool:
        """False when no set that contains these is lawful: some queue would fall below its guarantee."""
        freed: dict[int, int] = {}
        for candidate in chosen:
            for number in self.side_of(candidate):
                freed[number] = freed.get(number, 0) + candidate.gpus
        short = [number for number, gpus in freed.items() if gpus > self.caps[number]]
        if not short:
            return True
        if not self.straddles:
            return False
        tops: dict[int, list[Candidate]] = {}
        for candidate in chosen:
            side = self.side_of(candidate)
            if side:
                tops.setdefault(side[-1], []).append(candidate)
        return all(self._one_straddles(tops[top], freed) for top in {self._top(number) for number in short})

    def _top(self, number: int) -> int:
        parents = self._draft.quotas.branches.parents
        while parents[number] not in self._path:
            number = parents[number]
        return number

    def _one_straddles(self, members: Sequence[Candidate], freed: dict[int, int]) -> bool:
        """Without one of them the rest is within what may be taken, and what that one takes was partly borrowed."""
        touched = {number for member in members for number in self.side_of(member)}
        for last in members:
            side = self.side_of(last)
            rest = {number: freed[number] - (last.gpus if number in side else 0) for number in touched}
            if all(gpus <= self.caps[number] - (number in side) for number, gpus in rest.items()):
                return True
        return False

    def greedy(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """As many of them, first come first, as may go together."""
        taken: list[Candidate] = []
        freed: dict[int, int] = {}
        for candidate in candidates:
            side = self.side_of(candidate)
            fits = all(freed.get(number, 0) + candidate.gpus <= self.caps[number] for number in side)
            if fits or (self.straddles and len(taken) < _STRADDLING and self.may_go([*taken, candidate])):
                taken.append(candidate)
                for number in side:
                    freed[number] = freed.get(number, 0) + candidate.gpus
        return taken

    def causes(self, chosen: Sequence[Candidate], nodes: Iterable[NodeName]) -> dict[JobKey, Cause] | None:
        """By what right each goes, when all of them have gone and the job is on these nodes; None: not lawful together.

        To be asked in a trial in which they are gone.
        """
        if not self.may_go(chosen):
            return None
        quotas, where, found = self._draft.quotas, list(nodes), {}
        for candidate in chosen:
            if candidate.leaf == self._path[0]:
                found[candidate.record.job] = Cause.PREEMPTED
                continue
            own, side = self._side(candidate.leaf)
            if quotas.within(own, self.gpu_type, self._job.gpus, where):
                found[candidate.record.job] = Cause.RECLAIMED
            elif self._is_fair(own, side[-1]):
                found[candidate.record.job] = Cause.FAIR_SHARE
            else:
                return None
        return found

    def _is_fair(self, own: int, other: int) -> bool:
        """What the job's side has above its guarantee afterwards, by weight, is no more than what the other has."""
        if self._draft.desired.scheduling.preempt_other_queues != "fairShare":
            return False
        quotas, weights = self._draft.quotas, self._draft.quotas.branches.weights
        mine = max(0, quotas.ahead.under(own, self.gpu_type) + self._job.gpus - self._guaranteed(own))
        return mine * weights[other] <= max(0, quotas.spare(other, self.gpu_type)) * weights[own]

    @contextmanager
    def straddling(self) -> Iterator[bool]:
        """Inside the block one gang of each side may straddle its queue's guarantee, where the rules allow it; False:
        they do not."""
        self.straddles = self._draft.desired.scheduling.reclaim_straddlers and bool(self.caps)
        try:
            yield self.straddles
        finally:
            self.straddles = False


def borrows_again(draft: Draft, record: JobRecord, job: Job) -> Reason | None:
    """AfterReclaim: what gave borrowed GPUs back does not borrow again for a cooldown, else it would be taken once more."""
    if record.reclaimed is None:
        return None
    until = Instant(record.reclaimed + draft.desired.scheduling.cooldown)
    if draft.now >= until or any(not draft.quotas.borrows(job.queue, kind, job.gpus) for kind in draft.types_for(job)):
        return None
    return reason(ReasonCode.AFTER_RECLAIM, until=until)
