"""Which gangs give way so that this one can start, if any lawful set helps at all?

The set is minimal by `victimOrder`: by default smallest highest priority among the victims, then least GPU-seconds
lost, then fewest jobs; then GPUs freed. Nobody is a victim in vain: a set counts only when it is lawful (`rights`),
the gang fits, quota included, once the set is gone, and nobody in it can be spared. Exact by branch and bound over
domains in the order of their lower bounds, counted in steps; when the steps run out the best set so far is used and
the bound is published. What becomes of victims is for `draft`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause
from reconciler.model.units import GpuSeconds, GpuType, JobKey
from reconciler.planner.draft import Draft
from reconciler.planner.placement import Spot
from reconciler.planner.rights import Claim
from reconciler.planner.victims import Alone, Bound, Candidate, Cost, Limits, Shared, bits, numbers_of, price, unpacked
from reconciler.topology.tree import ROOT

VISITS: Final = 20_000  # sets looked at, for one job
STEPS: Final = 100_000  # steps, for one job: keeps a wide search as short as a narrow one
_SCOUTING: Final = 10  # part of both that may go by before any set is found: who cannot be helped must not use up all
_TRIAL: Final = 5  # a trial of a whole set counts as so many sets that are only bounded
# What things cost, in steps (`effort`): a search for a place, a gang that leaves and comes back, and one of those
# whose prices are added up to a bound.
_LOOK: Final = 40
_GONE: Final = 8
_BOUNDED: Final = 8  # so many for one step


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The set to evict and the spot the gang then gets. `causes` says by what right each one goes; `bound` is what no
    set can go below in lost GPU-seconds; `proved`: none is milder."""

    jobs: tuple[JobKey, ...]
    spot: Spot
    causes: Mapping[JobKey, Cause]
    lost: GpuSeconds
    bound: GpuSeconds
    proved: bool
    visits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nobody:
    """No set was found. `proved`: there is none; else the steps ran out first."""

    proved: bool = True


def find_victims(draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, claim: Claim) -> Victims | Nobody:
    """The mildest lawful set whose leaving starts the gang. GPUs already being released are used before any victim; a
    gang that straddles its queue's guarantee goes only when nothing else helps."""
    if is_hopeless(draft, job, gpu_type, claim):
        return Nobody()
    with draft.charges.without(draft.releasing(gpu_type), gpu_type):
        trial = _Trial(draft, record, job, gpu_type, claim)
        found = _mildest(draft, job, gpu_type, trial)
        if isinstance(found, Nobody) and claim.caps and trial.fits_without_all():
            with claim.straddling() as may_straddle:
                straddling = _mildest(draft, job, gpu_type, trial) if may_straddle else Nobody()
            is_proof = found.proved and isinstance(straddling, Nobody) and straddling.proved
            found = straddling if isinstance(straddling, Victims) else Nobody(proved=is_proof)
        return found


def is_hopeless(draft: Draft, job: Job, gpu_type: GpuType, claim: Claim) -> bool:
    """No lawful set can exist: told without a search, by what is shared by all who are alike."""
    return (
        not claim.able or not claim.could_ever_help(job) or not _can_make_room(draft, job, gpu_type, claim)
    )  # fmt: skip


def _can_make_room(draft: Draft, job: Job, gpu_type: GpuType, claim: Claim) -> bool:
    """Inside each queue that is too full for the job, enough may be asked to go."""
    branches, fixed = draft.quotas.branches, draft.is_fixed(job)
    return all(
        sum(one.gpus for one in claim.able if number in branches.path(one.leaf)) >= over
        for number, over in draft.quotas.overs(job.queue, gpu_type, job.gpus, fixed=fixed)
    )


def _mildest(draft: Draft, job: Job, gpu_type: GpuType, trial: _Trial) -> Victims | Nobody:
    """With `lowestPriority` first: among those up to the lowest priority that is enough; else among all."""
    able = trial.claim.able
    values = sorted({c.priority for c in able})
    if draft.desired.scheduling.victim_order[:1] != ("lowestPriority",):
        values = values[-1:]
    proved = True
    for value in values:
        search = _Search(draft, job, gpu_type, [c for c in able if c.priority <= value], trial)
        found = search.run(proved)
        if found is not None:
            return found
        proved = proved and search.proved
    return Nobody(proved=proved)


class _Trial:
    """The one question of the search: does the gang start once these are gone?"""

    __slots__ = (
        "_all",
        "_draft",
        "_gpu_type",
        "_job",
        "_record",
        "_steps",
        "causes",
        "claim",
        "owed",
        "spot",
        "visits",
    )

    def __init__(self, draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, claim: Claim) -> None:
        self._draft, self._record, self._job, self._gpu_type = draft, record, job, gpu_type
        self.claim = claim
        self.owed = draft.quotas.deficit(job.queue, gpu_type, job.gpus, fixed=draft.is_fixed(job))
        self.spot: Spot | None = None
        self.causes: Mapping[JobKey, Cause] = {}
        self.visits = self._steps = 0
        self._all: bool | None = None

    def bounded(self, candidates: int) -> None:
        """One more set was looked at, by its bound over so many candidates."""
        self.visits += 1
        self._spend(1 + candidates // _BOUNDED)

    def _tried(self, candidates: int) -> None:
        """One more set of so many was tried."""
        self.visits += _TRIAL
        self._spend(_LOOK + _GONE * candidates)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        self.claim.effort.spend(steps)

    def is_over(self, *, found: bool) -> bool:
        """The steps of this job are used up; before any set was `found` it has but a part of them."""
        part = 1 if found else _SCOUTING
        return self.visits >= VISITS // part or self._steps >= STEPS // part

    def starts(self, gone: Iterable[Candidate]) -> bool:
        """True when it fits, no limit is passed and all of these may be taken together; `spot` is where."""
        gone = list(gone)
        if sum(c.gpus for c in gone) < self.owed or not self.claim.may_go(gone):
            return False
        self._tried(len(gone))
        with self._draft.charges.without((c.record for c in gone), self._gpu_type):
            found = self._draft.look(self._record, self._job, self._gpu_type)
            if not isinstance(found, Spot) or self._draft.breach(self._job, self._gpu_type, promised=True, spot=found):
                return False
            nodes = [self._draft.ground.nodes[index].name for index, _ in found.rows]
            causes = self.claim.causes(gone, nodes)
        if causes is None or self._makes_only_room(gone):
            return False
        self.spot, self.causes = found, causes
        return True

    def _makes_only_room(self, gone: list[Candidate]) -> bool:
        """One who is nearer would go only so that others, farther away, may be asked: that is no use of its GPUs."""
        heights = [self.claim.height(one) for one in gone]
        farthest = max(heights, default=0)
        nearer = [one for one, height in zip(gone, heights, strict=True) if height < farthest]
        return any(self._may_stay(one, gone) for one in nearer)

    def _may_stay(self, one: Candidate, gone: list[Candidate]) -> bool:
        fewer = [c.record for c in gone if c is not one]
        self._tried(len(fewer))
        with self._draft.charges.without(fewer, self._gpu_type):
            found = self._draft.look(self._record, self._job, self._gpu_type)
            return isinstance(found, Spot) and not self._draft.breach(
                self._job, self._gpu_type, promised=True, spot=found
            )

    def fits(self, gone: Sequence[Candidate]) -> bool:
        """It would fit if all these could be taken, whatever their queues are guaranteed."""
        self.visits += _TRIAL
        self.claim.effort.spend(_LOOK + _GONE * len(gone))  # asked once: no part of the steps of the search itself
        with self._draft.charges.without((c.record for c in gone), self._gpu_type):
            return isinstance(self._draft.look(self._record, self._job, self._gpu_type), Spot)

    def fits_without_all(self) -> bool:
        """It would fit if all who may be asked were gone."""
        if self._all is None:
            self._all = self.fits(self.claim.able)
        return self._all


class _Search:
    """Branch and bound over the domains in which the gang could lie."""

    __slots__ = (
        "_best", "_best_bound", "_best_cost", "_draft", "_gpu_type", "_job", "_least", "_level", "_limits", "_numbers", "_order", "_place",
        "_pool", "_trial", "_whole_nodes", "proved",
    )  # fmt: skip

    def __init__(self, draft: Draft, job: Job, gpu_type: GpuType, pool: list[Candidate], trial: _Trial) -> None:
        self._draft, self._job, self._gpu_type, self._pool, self._trial = draft, job, gpu_type, pool, trial
        self._order = draft.desired.scheduling.victim_order
        self._least = min(c.priority for c in pool)
        self._level = ROOT if trial.owed else _search_level(draft, job, gpu_type)
        self._whole_nodes = _whole_nodes_only(draft, job, gpu_type) and not trial.owed
        claim = trial.claim
        self._limits = Limits(caps=claim.caps, side_of=claim.side_of) if claim.caps and not claim.straddles else None
        named = [name for name in self._order if name in _CRITERIA]
        self._place = named.index("lowestPriority") if "lowestPriority" in named else None
        self._numbers = numbers_of(self._order)
        self._best: list[Candidate] = []
        self._best_cost: Cost | None = None
        self._best_bound: Bound | None = None
        self.proved = True

    def run(self, proved: bool = True) -> Victims | None:
        """The mildest set of the pool; `proved`: no set of a milder pool exists for certain."""
        domains = []
        self._trial.claim.effort.spend(len(self._pool))
        for number, bound in self._domains():
            least = bound.of(0, 0)
            if least is not None:
                domains.append((self._cost(self._least, least), number, bound))
        domains.sort(key=lambda row: row[:2])
        is_possible = False
        for cost, _, bound in domains:
            if self._best_cost is not None and cost >= self._best_cost:
                break
            if self._best_cost is None and self._trial.is_over(found=False):
                self.proved = False
                break
            first = self._first_set(bound, guess_only=not is_possible)
            if first is None and not is_possible:
                if not self._trial.fits(self._pool):
                    return None
                first = self._first_set(bound)
            is_possible = True
            self._solve(bound, first, cost)
        if self._best_cost is None and domains and not self.proved:
            self._take_all_and_let_off()
        if self._best_cost is None:
            return None
        return self._answer(min((self._lost_in(cost) for cost, _, _ in domains), default=0), proved)

    def _take_all_and_let_off(self) -> None:
        """The steps ran out before any set was found: take as many as may go together, let off whom one can."""
        taken = self._trial.claim.greedy(self._pool)
        if self._trial.starts(taken):
            self._consider(self._spared(taken))

    def _answer(self, least_lost: int, proved: bool) -> Victims | None:
        if not self.proved:  # the last set may hold one that is not needed: the search would have found it later
            self._best = self._spared(self._best, self._best_bound)
        if not self._trial.starts(self._best) or self._trial.spot is None:
            return None
        lost, proved = sum(c.lost for c in self._best), proved and self.proved
        return Victims(
            jobs=tuple(sorted(c.record.job for c in self._best)), spot=self._trial.spot, causes=self._trial.causes,
            lost=GpuSeconds(lost), bound=GpuSeconds(lost if proved else min(lost, least_lost)), proved=proved,
            visits=self._trial.visits,
        )  # fmt: skip

    def _lost_in(self, cost: Cost) -> int:
        named = [name for name in self._order if name in _CRITERIA]
        return cost[named.index("leastLostWork")] if "leastLostWork" in named else 0

    def _cost(self, highest: int, packed: int) -> Cost:
        """All criteria in their order: the highest priority among the victims, and what adds up."""
        if self._place is None:
            return unpacked(packed, self._numbers)
        parts = unpacked(packed, self._numbers)
        return (*parts[: self._place], highest, *parts[self._place :])

    def _cost_of(self, chosen: Sequence[Candidate]) -> Cost:
        packed = sum(price(candidate, self._order) for candidate in chosen)
        return self._cost(max((c.priority for c in chosen), default=self._least), packed)

    def _domains(self) -> Iterator[tuple[int, Bound]]:
        """Each domain that holds candidates, with the bound that is sharpest for this gang."""
        by_node: dict[int, list[tuple[Candidate, int]]] = {}
        tree, supply, level = self._draft.ground.tree, self._draft.supply, self._level
        usable, promised = supply.usable, supply.promised
        for candidate in self._pool:
            for node, mask in candidate.places:
                freed = mask & usable[node] & ~promised[node]
                if not freed:
                    continue
                if node in by_node:
                    by_node[node].append((candidate, freed))
                else:
                    by_node[node] = [(candidate, freed)]
        inside: dict[int, dict[int, list[tuple[Candidate, int]]]] = {}
        for node, rows in by_node.items():
            inside.setdefault(tree.domain_of(node, level), {})[node] = rows
        for domain, nodes in inside.items():
            by_nodes = self._whole_nodes and level <= tree.leaf_level
            yield domain, self._by_nodes(domain, nodes) if by_nodes else self._by_gpus(domain, nodes)

    def _by_gpus(self, domain: int, nodes: dict[int, list[tuple[Candidate, int]]]) -> Bound:
        engine = self._draft.supply.engines[self._gpu_type]
        inside_node = self._level > self._draft.ground.tree.leaf_level
        free = engine.free_mask(domain).bit_count() if inside_node else engine.free_gpus(self._level, domain)
        missing = max(0, self._job.gpus - free)
        freed: dict[JobKey, tuple[Candidate, int]] = {}
        for rows in nodes.values():
            for candidate, mask in rows:
                known = freed.get(candidate.record.job)
                gpus = mask.bit_count() + (known[1] if known is not None else 0)
                freed[candidate.record.job] = (candidate, gpus)
        if self._trial.owed:  # a limit of a queue counts every GPU of a gang, wherever it is
            return Alone(
                [(c, c.gpus) for c, _ in freed.values()], max(missing, self._trial.owed), self._order, self._limits
            )
        return Alone(freed.values(), missing, self._order, self._limits)

    def _by_nodes(self, domain: int, nodes: dict[int, list[tuple[Candidate, int]]]) -> Bound:
        engine, shapes = self._draft.supply.engines[self._gpu_type], self._draft.ground.nodes
        clearable = []
        for node, rows in sorted(nodes.items()):
            mask = engine.free_mask(node)
            for _, freed in rows:
                mask |= freed
            if mask == shapes[node].shape.all_gpus:
                clearable.append([candidate for candidate, _ in rows])
        missing = max(0, self._job.gpus // engine.largest_node - engine.whole_nodes(self._level, domain))
        jobs = {c.record.job for members in clearable for c in members}
        if all(len(members) == 1 for members in clearable) and len(jobs) == len(clearable):
            return Alone(((members[0], 1) for members in clearable), missing, self._order, self._limits)
        return Shared(clearable, missing, self._order, self._limits)

    def _solve(self, bound: Bound, first: list[Candidate] | None, least: Cost) -> None:
        """The mildest set inside one domain that beats the best so far; `least`: what any costs there."""
        order, claim, trial = bound.order, self._trial.claim, self._trial
        if first is not None:
            self._consider(first if self._cost_of(first) == least else self._spared(first, bound), bound)
        prices = [price(candidate, self._order) for candidate in order]
        stack: list[tuple[int, int, bool, int, int]] = [(0, 0, True, self._least, 0)]
        while stack:
            at, chosen, fresh, highest, paid = stack.pop()
            more = bound.of(at, chosen)
            if more is None or (self._best_cost is not None and self._cost(highest, paid + more) >= self._best_cost):
                continue
            trial.bounded(len(order) - at)
            if trial.is_over(found=self._best_cost is not None):
                self.proved = False
                return
            if fresh and not more and trial.starts(picked := [order[i] for i in bits(chosen)]):
                self._consider(picked, bound)
                continue
            if at < len(order):
                stack.append((at + 1, chosen, False, highest, paid))
                if not claim.caps or claim.may_go([order[i] for i in bits(chosen | 1 << at)]):
                    highest = max(highest, order[at].priority)
                    stack.append((at + 1, chosen | 1 << at, True, highest, paid + prices[at]))

    def _first_set(self, bound: Bound, *, guess_only: bool = False) -> list[Candidate] | None:
        """The bound's own guess if it is enough, else the shortest run of its order that is (more never hurts)."""
        order = bound.order
        guess = [order[i] for i in bound.guess()]
        if self._trial.starts(guess):
            return guess
        if guess_only:
            return None
        order = self._trial.claim.greedy(order)
        if not self._trial.starts(order):
            return None
        low, high = 0, len(order)  # `high` is enough, `low` is not
        while high - low > 1:
            middle = (low + high) // 2
            if self._trial.starts(order[:middle]):
                high = middle
            else:
                low = middle
        return list(order[:high])

    def _spared(self, chosen: Sequence[Candidate], bound: Bound | None = None) -> list[Candidate]:
        """A set in which nobody can be spared: the dearest are let off first. `bound`: of the domain they are in, where
        the numbers may tell at once that all are needed."""
        kept = list(chosen)
        number_of = {c.record.job: number for number, c in enumerate(bound.order)} if bound is not None else {}
        for candidate in sorted(chosen, key=lambda c: (-c.priority, -c.lost, -c.gpus, c.record.job)):
            fewer = [c for c in kept if c is not candidate]
            if (
                bound is not None
                and bound.of(len(bound.order), sum(1 << number_of[c.record.job] for c in fewer)) is None
            ):
                continue
            if self._trial.starts(fewer):
                kept = fewer
        return kept

    def _consider(self, chosen: Sequence[Candidate], bound: Bound | None = None) -> None:
        cost = self._cost_of(chosen)
        if self._best_cost is None or cost < self._best_cost:
            self._best, self._best_cost, self._best_bound = list(chosen), cost, bound


_CRITERIA: Final = ("lowestPriority", "leastLostWork", "fewestJobs")


def _search_level(draft: Draft, job: Job, gpu_type: GpuType) -> int:
    """The level one of whose domains must hold the whole gang."""
    asks = draft.access.asks(job, gpu_type)
    level = min((max(role.required for role in ask.roles) for ask in asks), default=ROOT)
    return min(level, draft.ground.tree.node_level)


def _whole_nodes_only(draft: Draft, job: Job, gpu_type: GpuType) -> bool:
    """Every way to cut the gang takes whole nodes."""
    engine = draft.supply.engines[gpu_type]
    asks = draft.access.asks(job, gpu_type)
    return engine.is_uniform and all(len(a.roles) == 1 and a.roles[0].unit == engine.largest_node for a in asks)
