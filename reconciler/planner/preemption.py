"""Who has to give way so that this gang can start, if anyone may be asked to?

Priority preemption inside one queue: victims are strictly lower, and not protected. The set is minimal by
`victimOrder`: smallest highest priority among the victims, then least GPU-seconds lost, then fewest jobs. Nobody is
a victim in vain: a set counts only when the gang fits, quota included, once the set is gone; and nobody in it can
be spared. Exact by branch and bound over domains in the order of their lower bounds, counted in steps; when the
steps run out the best set so far is used and the bound is published. What becomes of victims is for `draft`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job, OnPreempt
from reconciler.model.lifecycle import JobState
from reconciler.model.units import GpuSeconds, GpuType, JobKey, Nanoseconds, QueueName
from reconciler.planner import steps
from reconciler.planner.draft import Draft
from reconciler.planner.placement import Spot
from reconciler.planner.victims import Bound, ByGpus, ByNodes, Candidate
from reconciler.topology.tree import ROOT

VISITS: Final = 20_000  # sets looked at, for one job
TOUCHES: Final = 2_000_000  # candidates looked at, for one job: keeps a wide search as short as a narrow one

WIDEST: Final = 256  # nodes of a domain up to which emptying whole nodes is bounded node by node

Cost = tuple[int, ...]
"""One number for each criterion of `victimOrder`, then the GPUs freed; the smaller tuple is the milder set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shielded:
    """A running gang that only a protection keeps: nonPreemptible, minRuntime, cooldown or maxPerDay."""

    record: JobRecord
    gpus: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The set to evict and the spot the gang then gets. `bound` is what no set can go below in lost GPU-seconds."""

    jobs: tuple[JobKey, ...]
    spot: Spot
    lost: GpuSeconds
    bound: GpuSeconds
    proved: bool
    visits: int


class Standing:
    """Who stands where in each queue, for one decision: made once, asked by every blocked job."""

    __slots__ = ("_by_queue", "_draft", "_known")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._by_queue: dict[QueueName, list[tuple[int, JobRecord, Job]]] | None = None
        self._known: dict[tuple[QueueName, int, GpuType], tuple[tuple[Candidate, ...], tuple[Shielded, ...]]] = {}

    def below(
        self, queue: QueueName, priority: int, gpu_type: GpuType
    ) -> tuple[tuple[Candidate, ...], tuple[Shielded, ...]]:
        """Running gangs of a queue and type of strictly lower priority: those that may be taken, and those shielded."""
        key = (queue, priority, gpu_type)
        if key not in self._known:
            self._known[key] = self._sort(queue, priority, gpu_type)
        return self._known[key]

    def forget(self) -> None:
        """Someone was evicted: look again."""
        self._by_queue = None
        self._known.clear()

    def _sort(
        self, queue: QueueName, priority: int, gpu_type: GpuType
    ) -> tuple[tuple[Candidate, ...], tuple[Shielded, ...]]:
        draft, able, shielded = self._draft, [], []
        for value, record, job in self._running().get(queue, ()):
            if value >= priority or draft.types.get(record.job) != gpu_type:
                continue
            by = shield(draft, record, job)
            if by:
                shielded.append(Shielded(record=record, gpus=record.gpus_held, by=by))
            else:
                lost = steps.lost_gpu_seconds(record, draft.observed, draft.now)
                able.append(Candidate(record=record, priority=value, lost=lost, gpus=record.gpus_held))
        return tuple(able), tuple(shielded)

    def _running(self) -> dict[QueueName, list[tuple[int, JobRecord, Job]]]:
        if self._by_queue is None:
            self._by_queue = {}
            for record in self._draft.records.values():
                job = self._draft.job(record) if record.state is JobState.RUNNING else None
                if job is not None:
                    row = (self._draft.priority(job), record, job)
                    self._by_queue.setdefault(record.queue, []).append(row)
        return self._by_queue


def may_preempt(draft: Draft, job: Job) -> bool:
    """The rules and its class let it take from lower priorities of its queue."""
    own = draft.class_of(job)
    return draft.desired.scheduling.preempt_same_queue == "lowerPriority" and own is not None and own.preempts_lower


def shield(draft: Draft, record: JobRecord, job: Job) -> str:
    """The first protection that keeps a running gang from being a victim, "" when there is none."""
    own, rules = draft.class_of(job), draft.desired.scheduling
    if job.on_preempt is OnPreempt.NEVER or (own is not None and not own.preemptible):
        return "nonPreemptible"
    if record.started is None or draft.now < record.started + min_runtime(draft, job):
        return "minRuntime"
    if record.interruptions and draft.now < record.interruptions[-1] + rules.cooldown:
        return "cooldown"
    if len(steps.recent(record.interruptions, draft.now)) >= _max_per_day(draft, job):
        return "maxPerDay"
    return ""


def min_runtime(draft: Draft, job: Job) -> Nanoseconds:
    """How long it runs undisturbed. A job may say less than its class, never more; the cluster's cap binds all."""
    own, rules = draft.class_of(job), draft.desired.scheduling
    strongest = own.min_runtime if own is not None else None
    usual = strongest if strongest is not None else rules.min_runtime
    said = job.min_runtime if job.min_runtime is not None else usual
    return min(said, rules.max_min_runtime, strongest if strongest is not None else said)


def _max_per_day(draft: Draft, job: Job) -> int:
    """Interruptions a day it has to bear. A job may bear more than its class says, never fewer."""
    own = draft.class_of(job)
    fewest = own.max_per_day if own is not None else None
    usual = fewest if fewest is not None else draft.desired.scheduling.max_per_day
    said = job.max_per_day if job.max_per_day is not None else usual
    return max(said, fewest) if fewest is not None else said


# --- the search ---


def find_victims(
    draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, able: Sequence[Candidate]
) -> Victims | None:
    """The mildest set whose leaving starts the gang, or None. GPUs already being released are used before any victim."""
    owed = draft.quotas.deficit(job.queue, gpu_type, job.gpus)
    with draft.without(draft.releasing(gpu_type), gpu_type):
        trial = _Trial(draft, record, job, gpu_type, owed)
        pool = _mildest_pool(draft, able, trial)
        if pool is None:
            return None
        return _Search(draft, job, gpu_type, pool, trial).run()


class _Trial:
    """The one question of the search: does the gang start once these are gone?"""

    __slots__ = ("_draft", "_gpu_type", "_job", "_record", "owed", "spot", "visits")

    def __init__(self, draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, owed: int) -> None:
        self._draft, self._record, self._job, self._gpu_type = draft, record, job, gpu_type
        self.owed = owed
        self.spot: Spot | None = None
        self.visits = 0

    def starts(self, gone: Iterable[Candidate]) -> bool:
        """True when it fits and no ceiling is passed; `spot` is where."""
        gone = list(gone)
        if sum(c.gpus for c in gone) < self.owed:
            return False
        self.visits += 1
        with self._draft.without((c.record for c in gone), self._gpu_type):
            found = self._draft.look(self._record, self._job, self._gpu_type)
        if isinstance(found, Spot):
            self.spot = found
            return True
        return False


def _mildest_pool(draft: Draft, able: Sequence[Candidate], trial: _Trial) -> list[Candidate] | None:
    """Those among whom the victims are: with `lowestPriority` first, up to the lowest priority that is enough."""
    if not trial.starts(able):
        return None
    if draft.desired.scheduling.victim_order[:1] != ("lowestPriority",):
        return list(able)
    for value in sorted({c.priority for c in able}):
        pool = [c for c in able if c.priority <= value]
        if trial.starts(pool):
            return pool
    return list(able)


class _Search:
    """Branch and bound over the domains in which the gang could lie."""

    __slots__ = (
        "_best", "_best_cost", "_draft", "_gpu_type", "_job", "_least", "_level", "_limit", "_order", "_pool", "_proved",
        "_trial",
    )  # fmt: skip

    def __init__(self, draft: Draft, job: Job, gpu_type: GpuType, pool: list[Candidate], trial: _Trial) -> None:
        self._draft, self._job, self._gpu_type, self._pool, self._trial = draft, job, gpu_type, pool, trial
        self._order = draft.desired.scheduling.victim_order
        self._least = min(c.priority for c in pool)
        self._level = ROOT if trial.owed else _search_level(draft, job, gpu_type)
        self._best: list[Candidate] = []
        self._best_cost: Cost | None = None
        self._proved = True
        self._limit = min(VISITS, TOUCHES // max(1, len(pool)))

    def run(self) -> Victims | None:
        domains = []
        for number, bound in self._domains():
            least = bound.of(0, ())
            if least is not None:
                domains.append((self._cost((), *least), number, bound))
        domains.sort(key=lambda row: row[:2])
        for cost, _, bound in domains:
            if self._best_cost is not None and cost >= self._best_cost:
                break
            self._solve(bound)
        if self._best_cost is None:  # the steps ran out before any set was found: take all, let off whom one can
            self._proved = False
            self._consider(self._spared(self._pool))
        if not self._trial.starts(self._best) or self._trial.spot is None:
            return None
        lost = sum(c.lost for c in self._best)
        least_lost = min((self._lost_in(cost) for cost, _, _ in domains), default=0)
        return Victims(
            jobs=tuple(sorted(c.record.job for c in self._best)), spot=self._trial.spot, lost=GpuSeconds(lost),
            bound=GpuSeconds(lost if self._proved else least_lost), proved=self._proved, visits=self._trial.visits,
        )  # fmt: skip

    def _lost_in(self, cost: Cost) -> int:
        return cost[self._order.index("leastLostWork")] if "leastLostWork" in self._order else 0

    def _cost(self, chosen: Sequence[Candidate], more_lost: int = 0, more_jobs: int = 0) -> Cost:
        """Of a set, or a lower bound for every set that contains it."""
        parts = {
            "lowestPriority": max((c.priority for c in chosen), default=self._least),
            "leastLostWork": sum(c.lost for c in chosen) + more_lost,
            "fewestJobs": len(chosen) + more_jobs,
        }
        return (*(parts[name] for name in self._order if name in parts), sum(c.gpus for c in chosen))

    def _domains(self) -> Iterator[tuple[int, Bound]]:
        """Each domain that holds candidates, with the bound that is sharpest for this gang."""
        inside: dict[int, dict[int, list[tuple[Candidate, int]]]] = {}
        tree, supply = self._draft.ground.tree, self._draft.supply
        for candidate in self._pool:
            for name, mask in self._draft.masks(candidate.record).items():
                node = tree.index_of.get(name)
                freed = mask & supply.usable[node] & ~supply.promised[node] if node is not None else 0
                if node is not None and freed:
                    domain = tree.domain_of(node, self._level)
                    inside.setdefault(domain, {}).setdefault(node, []).append((candidate, freed))
        whole = _whole_nodes_only(self._draft, self._job, self._gpu_type) and not self._trial.owed
        for domain, nodes in inside.items():
            by_nodes = whole and self._level <= tree.leaf_level and len(nodes) <= WIDEST
            yield domain, self._by_nodes(domain, nodes) if by_nodes else self._by_gpus(domain, nodes)

    def _by_gpus(self, domain: int, nodes: dict[int, list[tuple[Candidate, int]]]) -> Bound:
        engine = self._draft.supply.engines[self._gpu_type]
        inside_node = self._level > self._draft.ground.tree.leaf_level
        free = engine.free_mask(domain).bit_count() if inside_node else engine.free_gpus(self._level, domain)
        missing = max(0, self._job.gpus - free)
        freed: dict[JobKey, tuple[Candidate, int]] = {}
        for rows in nodes.values():
            for candidate, mask in rows:
                _, gpus = freed.get(candidate.record.job, (candidate, 0))
                freed[candidate.record.job] = (candidate, gpus + mask.bit_count())
        if not self._trial.owed:
            return ByGpus(list(freed.values()), missing)
        # A ceiling counts every GPU of a gang, wherever it is.
        return ByGpus([(c, c.gpus) for c, _ in freed.values()], max(missing, self._trial.owed))

    def _by_nodes(self, domain: int, nodes: dict[int, list[tuple[Candidate, int]]]) -> Bound:
        engine, shapes = self._draft.supply.engines[self._gpu_type], self._draft.ground.nodes
        clearable = []
        for node, rows in sorted(nodes.items()):
            mask = engine.free_mask(node)
            for _, freed in rows:
                mask |= freed
            if mask == shapes[node].shape.all_gpus:
                clearable.append([candidate for candidate, _ in rows])
        missing = self._job.gpus // engine.largest_node - engine.whole_nodes(self._level, domain)
        return ByNodes(clearable, missing)

    def _solve(self, bound: Bound) -> None:
        """The mildest set inside one domain that beats the best so far."""
        order = bound.order
        if (first := self._first_set(bound)) is not None:
            self._consider(self._spared(first))
        stack: list[tuple[int, tuple[int, ...], bool]] = [(0, (), True)]
        while stack:
            at, chosen, fresh = stack.pop()
            more = bound.of(at, chosen)
            picked = [order[i] for i in chosen]
            if more is None or (self._best_cost is not None and self._cost(picked, *more) >= self._best_cost):
                continue
            self._trial.visits += 1
            if self._trial.visits >= self._limit:
                self._proved = False
                return
            if fresh and more == (0, 0) and self._trial.starts(picked):
                self._consider(picked)
                continue
            if at < len(order):
                stack.append((at + 1, chosen, False))
                stack.append((at + 1, (*chosen, at), True))

    def _first_set(self, bound: Bound) -> list[Candidate] | None:
        """The bound's own guess if it is enough, else the shortest run of its order that is (more never hurts)."""
        order = bound.order
        guess = [order[i] for i in bound.guess()]
        if self._trial.starts(guess):
            return guess
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

    def _spared(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """A set in which nobody can be spared: the dearest are let off first."""
        kept = list(chosen)
        for candidate in sorted(chosen, key=lambda c: (-c.priority, -c.lost, -c.gpus, c.record.job)):
            fewer = [c for c in kept if c is not candidate]
            if self._trial.starts(fewer):
                kept = fewer
        return kept

    def _consider(self, chosen: Sequence[Candidate]) -> None:
        cost = self._cost(chosen)
        if self._best_cost is None or cost < self._best_cost:
            self._best, self._best_cost = list(chosen), cost


def _search_level(draft: Draft, job: Job, gpu_type: GpuType) -> int:
    """The level one of whose domains must hold the whole gang."""
    asks = draft.asks(job, gpu_type)
    level = min((max(role.required for role in ask.roles) for ask in asks), default=ROOT)
    return min(level, draft.ground.tree.node_level)


def _whole_nodes_only(draft: Draft, job: Job, gpu_type: GpuType) -> bool:
    """Every way to cut the gang takes whole nodes."""
    engine = draft.supply.engines[gpu_type]
    asks = draft.asks(job, gpu_type)
    return engine.is_uniform and all(len(a.roles) == 1 and a.roles[0].unit == engine.largest_node for a in asks)
