"""By what right is a running gang evicted, and does it help?

A lower priority of the same queue may be; what another queue has above its guarantee may be taken back by one that
stays within its own, or by one that has less. What counts for a queue is bounded from both sides: within one decision
it is not known what was decided first. Whether a cheaper set of victims exists is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job, OnPreempt
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.units import DAY, JobKey
from reconciler.planner.verify.case import RUNS, Breach, Case, Violation, bound_by, is_new
from reconciler.planner.verify.quotas import LOST, Tree, bound, count, goes_on_at, is_fixed, tree_of

_EVICTED: Final = frozenset({Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE})


def victim(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """Who is evicted was asked by right, is unprotected, ran, and its GPUs are what the preemptor waits for."""
    told = before is not None and before.state is JobState.STOPPING
    if after.state is not JobState.STOPPING or after.cause not in _EVICTED or told or before is None:
        return
    winner = case.next.jobs.get(after.preemptor) if after.preemptor else None
    if winner is None or winner.state not in (JobState.PROMISED, JobState.STARTING):
        yield Violation(code=Breach.VICTIM_IN_VAIN, job=after.job, detail=f"for {after.preemptor}")
        return
    tree = tree_of(case, case.gpu_type(before.placement))
    if not ran(case, before) or not _may_evict(case, tree, winner, before, after.cause):
        yield Violation(code=Breach.NO_RIGHT_TO_EVICT, job=after.job, detail=f"for {winner.job}")
    for protection in protections(case, before, after.cause, is_orphan=LOST in tree.path(before.queue)):
        yield Violation(code=Breach.VICTIM_PROTECTED, job=after.job, detail=protection)
    if after.cause is Cause.RECLAIMED and after.reclaimed != case.now:
        yield Violation(code=Breach.BORROWS_TOO_SOON, job=after.job, detail="not recorded when it gave back")
    if after.job not in winner.victims or not _new_claim(case, winner) or not helps(case, tree, winner, after):
        yield Violation(code=Breach.VICTIM_IN_VAIN, job=after.job, detail=f"for {winner.job}")


def ran(case: Case, victim: JobRecord) -> bool:
    """All its ranks had started."""
    return victim.state is JobState.RUNNING or (victim.phase is Phase.RUN and case.reports(victim, RUNS))


def _may_evict(case: Case, tree: Tree, winner: JobRecord, victim: JobRecord, cause: Cause | None) -> bool:
    mine, theirs = tree.path(winner.queue), tree.path(victim.queue)
    rules = case.desired.scheduling
    if mine[0] == theirs[0]:
        return cause is Cause.PREEMPTED and rules.preempt_same_queue != "never" and _is_lower(case, winner, victim)
    if cause is Cause.PREEMPTED or rules.preempt_other_queues == "never":
        return False
    common = next(name for name in mine if name in theirs)
    own, side = mine[mine.index(common) - 1], theirs[: theirs.index(common)]
    sums = _Bounds(case, tree)
    if any(not sums.may_give(name) for name in side):
        return False
    if cause is Cause.RECLAIMED:
        return sums.with_winners(own, winner) <= tree.guaranteed(own)
    if rules.preempt_other_queues != "fairShare":
        return False
    rows = tree.rows
    mine_above = max(0, sums.with_winners(own, winner) - tree.guaranteed(own)) * (
        rows[side[-1]].weight if side[-1] in rows else 1
    )
    left_above = max(0, sums.most(side[-1]) - sums.taken(side[-1]) - tree.guaranteed(side[-1]))
    return mine_above <= left_above * (rows[own].weight if own in rows else 1)


def _is_lower(case: Case, winner: JobRecord, victim: JobRecord) -> bool:
    """Strictly lower priority, and the class of the upper one takes from lower ones."""
    upper, lower = case.desired.jobs.get(winner.job), case.desired.jobs.get(victim.job)
    above, below = (case.priority(job) if job else None for job in (upper, lower))
    return above is not None and below is not None and above.preempts_lower and above.value > below.value


class _Bounds:
    """What a queue has at least and at most at any moment of the decision, in GPUs of one type."""

    def __init__(self, case: Case, tree: Tree) -> None:
        self.case, self.tree = case, tree

    def most(self, name: str) -> int:
        """With all that went on before and all that was given GPUs now, and nobody evicted yet."""
        return self.tree.at_most[name]

    def _evicted(self, name: str) -> list[int]:
        """GPUs of each gang of a queue that another queue takes now."""
        return [
            bound(self.case, self.tree.kind, before)
            for before, after in self.case.changed
            if after is not None and before is not None and before.state is not JobState.STOPPING
            if after.cause in (Cause.RECLAIMED, Cause.FAIR_SHARE) and after.state is JobState.STOPPING
            and name in self.tree.path(after.queue) and self._from_outside(name, after)
        ]  # fmt: skip

    def _from_outside(self, name: str, victim: JobRecord) -> bool:
        winner = self.case.next.jobs.get(victim.preemptor) if victim.preemptor else None
        return winner is None or name not in self.tree.path(winner.queue)

    def taken(self, name: str) -> int:
        return sum(self._evicted(name))

    def may_give(self, name: str) -> bool:
        """It keeps its guarantee; or all but one gang leave it above, and that one was partly borrowed."""
        gangs, spare = self._evicted(name), self.most(name) - self.tree.guaranteed(name)
        if sum(gangs) <= spare:
            return True
        return self.case.desired.scheduling.reclaim_straddlers and sum(gangs) - max(gangs) < spare

    def with_winners(self, name: str, winner: JobRecord) -> int:
        """At least what a queue has once this one runs, and others that took from the same side of it."""
        owners = {winner.job, *self._owners(name)}
        old, new = self.case.previous.jobs, self.case.next.jobs
        fresh = [new[key] for key in sorted(owners) if key not in old or goes_on_at(old[key]) is None]
        if not self.tree.in_nodes(name):
            return self.tree.staying[name] + sum(self.tree.ahead_of(record) for record in fresh)
        stays = [r for key, r in new.items() if key in old and goes_on_at(old[key]) is not None]
        return self.tree.shape(name, [*stays, *fresh])

    def _owners(self, name: str) -> Iterable[JobKey]:
        for before, after in self.case.changed:
            if (
                after is not None
                and after.cause is Cause.RECLAIMED
                and after.state is JobState.STOPPING
                and after.preemptor
            ):
                told = before is not None and before.state is JobState.STOPPING
                winner = self.case.next.jobs.get(after.preemptor)
                if (
                    not told
                    and winner is not None
                    and name in self.tree.path(winner.queue)
                    and name not in self.tree.path(after.queue)
                ):
                    yield winner.job


def protections(case: Case, victim: JobRecord, cause: Cause | None, *, is_orphan: bool) -> Iterator[str]:
    """The protections of the rule book §6 that hold against this cause now; of an orphan only its minRuntime."""
    job, rules = case.desired.jobs.get(victim.job), case.desired.scheduling
    rank = case.priority(job) if job else None
    if job is None or rank is None:
        return
    if (not rank.preemptible or job.on_preempt is OnPreempt.NEVER) and not is_orphan:
        yield "nonPreemptible"
    granted = rank.min_runtime if rank.min_runtime is not None else rules.min_runtime
    least = min(granted if job.min_runtime is None else min(granted, job.min_runtime), rules.max_min_runtime)
    if least and case.now < (victim.started if victim.started is not None else case.now) + least:
        yield "minRuntime"
    if is_orphan:
        return
    if cause is Cause.RECLAIMED:
        if victim.reclaimed is not None and victim.reclaimed + rules.cooldown > case.now:
            yield "cooldown"
        return
    if any(at + rules.cooldown > case.now for at in victim.interruptions):
        yield "cooldown"
    most = rank.max_per_day if rank.max_per_day is not None else rules.max_per_day
    most = most if job.max_per_day is None else max(most, job.max_per_day)
    if sum(at + DAY > case.now for at in victim.interruptions) >= most:
        yield "maxPerDay"


def _new_claim(case: Case, winner: JobRecord) -> bool:
    """A promise once made takes no further victims."""
    return is_new(case.previous.jobs.get(winner.job), winner)


def has_right(case: Case, tree: Tree, winner: JobRecord, victim: JobRecord) -> bool:
    """By one right or another the winner could have evicted it."""
    return any(
        _may_evict(case, tree, winner, victim, cause) for cause in (Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE)
    )


def within_guarantee(case: Case, tree: Tree, winner: JobRecord, other: JobRecord) -> bool:
    """Below their common queue the winner's side stays within its guarantee."""
    mine, theirs = tree.path(winner.queue), tree.path(other.queue)
    common = next(name for name in mine if name in theirs)
    if mine.index(common) == 0:
        return False
    own = mine[mine.index(common) - 1]
    return _Bounds(case, tree).with_winners(own, winner) <= tree.guaranteed(own)


def takes_anew(case: Case, winner: JobRecord) -> bool:
    """It was given a place in this very decision, and others stop for it."""
    return winner.state in (JobState.PROMISED, JobState.STARTING) and _new_claim(case, winner)


def helps(case: Case, tree: Tree, winner: JobRecord, victim: JobRecord) -> bool:
    """Some of what the victim gives up, GPUs, room on a node or room below a limit, is what the winner takes."""
    place = winner.promise.placement if winner.promise else winner.placement
    kept = victim.promise.placement.masks if victim.promise else {}
    target, given = place.masks if place else {}, {n: m & ~kept.get(n, 0) for n, m in bound_by(victim).items()}
    if any(mask & given.get(node, 0) for node, mask in target.items()):
        return True
    job = case.desired.jobs.get(winner.job)
    if job and (job.cpus_per_gpu or job.memory_per_gpu) and target.keys() & given.keys():
        return True
    return count(case, tree.kind, place) > 0 and _makes_room(case, tree, winner, victim, job)


def _makes_room(case: Case, tree: Tree, winner: JobRecord, victim: JobRecord, job: Job | None) -> bool:
    """Without the victim's leaving a ceiling, a guarantee or the pot would be passed."""
    theirs, more = tree.path(victim.queue), bound(case, tree.kind, victim)
    for name in (name for name in tree.path(winner.queue) if name in theirs):
        row, has = tree.rows.get(name), tree.at_most[name]
        if row is not None and has > row.ceiling.get(tree.kind, has):
            return True
        if job is not None and is_fixed(case, job) and tree.is_declared(name) and has > tree.guaranteed(name):
            return True
    return any(tree.rows[name].lend is not None for name in tree.rows) and tree.ahead.drawn[tree.top] + more > tree.pot(
        tree.top
    )
