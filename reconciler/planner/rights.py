"""Who may be asked to give way to this job, and which of them together?

Rule book §6, the table of who may take from whom. Inside one queue a strictly lower priority gives way. From another
queue only what is above its guarantee may be taken back, at every level from below the common queue down to the
victim: by an owner that stays within its guarantee (reclaim), or, with `fairShare`, by one that does not end up with
more than the victim's side. One gang that straddles a guarantee may go when nothing else serves its owner. Every rule
here that limits a set limits all larger ones too. Who stands where is for `standing`; which
lawful set is the mildest for `preemption`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import ClassName, GpuType, Instant, JobKey, NodeName, QueueName
from reconciler.planner.draft import Draft
from reconciler.planner.standing import Guards, Shielded, Standing
from reconciler.planner.victims import Candidate

_STRADDLING: Final = 256  # gangs taken together among which one that straddles is still looked for


class Rights:
    """The claims of all blocked jobs, for one decision."""

    __slots__ = ("_claims", "_draft", "_edition", "standing")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.standing = Standing(draft)
        self._edition = self.standing.edition
        self._claims: dict[tuple[QueueName, ClassName, int, GpuType], Claim] = {}

    def claim(self, job: Job, gpu_type: GpuType) -> Claim:
        """Everyone who might give way to this job, and the rules for taking several of them. Jobs of one queue, class
        and size share one claim for as long as nobody's use changes."""
        if self._edition != self.standing.edition:
            self._edition = self.standing.edition
            self._claims.clear()
        key = (job.queue, job.priority_class, job.gpus, gpu_type)
        found = self._claims.get(key)
        if found is None:
            found = self._claims[key] = Claim(self._draft, self.standing, job, gpu_type)
        return found


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


def may_preempt(draft: Draft, job: Job) -> bool:
    """The rules and its class let it take from lower priorities of its queue."""
    own = draft.class_of(job)
    return draft.desired.scheduling.preempt_same_queue == "lowerPriority" and own is not None and own.preempts_lower


def unborrowed_types(draft: Draft, record: JobRecord, job: Job) -> tuple[GpuType, ...]:
    """The types it may take so many GPUs of: all that it may use, but none on credit within a cooldown of a reclaim."""
    kinds = draft.access.types_for(job)
    if _without_credit_until(draft, record) is None:
        return kinds
    return tuple(kind for kind in kinds if not draft.quotas.borrows(job.queue, kind, job.gpus))


def borrows_again(draft: Draft, record: JobRecord, job: Job, *, partly: bool = False) -> Reason | None:
    """AfterReclaim: what gave borrowed GPUs back does not borrow again for a cooldown, else it would be taken once more.

    `partly`: also when that leaves it some of its types.
    """
    until = _without_credit_until(draft, record)
    if until is None:
        return None
    left = unborrowed_types(draft, record, job)
    shut = len(left) < len(draft.access.types_for(job)) if partly else not left
    return reason(ReasonCode.AFTER_RECLAIM, until=until) if shut else None


def _without_credit_until(draft: Draft, record: JobRecord) -> Instant | None:
    """When it may borrow again; None: at once."""
    if record.reclaimed is None:
        return None
    until = Instant(record.reclaimed + draft.desired.scheduling.cooldown)
    return None if draft.now >= until else until
