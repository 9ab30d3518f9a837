"""What shall run where next? The whole next allocation from four values, and nothing else.

`decide` is pure: no clock, no chance, integers only; the same inputs give the same allocation on every machine. It
tells the story in numbered steps; each step is a module. What it decides is judged by `verify`, committed by the
shell, and only then acted on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from reconciler.model.allocation import Allocation
from reconciler.model.decision import Decision, Judge
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.tombstones import Tombstones
from reconciler.model.units import Instant
from reconciler.planner import explain
from reconciler.planner.admit import Sweep
from reconciler.planner.changes import changes_between, settled
from reconciler.planner.classify import judge_all
from reconciler.planner.defragment import defragment
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.grow import grow
from reconciler.planner.improve import improve
from reconciler.planner.lengths import lengths_after
from reconciler.planner.line import line_of, standings_of
from reconciler.planner.masks import gang_masks
from reconciler.planner.metrics import metrics_of
from reconciler.planner.promise import keep_promises
from reconciler.planner.repair import repair_broken
from reconciler.planner.spares import complete_running, complete_starting, drop_unfit
from reconciler.planner.usage import Accounts, brought_to, usage_after
from reconciler.planner.veto import NO_VETOES, Attempt, Vetoes, hold_vetoed, undenied


def decide(
    desired: Desired, observed: Observed, previous: Allocation, now: Instant, judge: Judge | None = None
) -> Decision:
    """The next allocation, with a reason for every job, and the list of what changed.

    When nothing that deserves a commit changed, the allocation is the previous one, same generation, dated now.
    `judge` is asked before anything starts; what it denies is held back, and the decision made again.
    Raises BrokenInvariant when a rule of the lifecycle or of the engines would be broken: commit nothing then.
    """
    if judge is None:
        return attempt(desired, observed, previous, now, NO_VETOES).decision
    return undenied(lambda vetoes: attempt(desired, observed, previous, now, vetoes), judge, previous)


def attempt(desired: Desired, observed: Observed, previous: Allocation, now: Instant, vetoes: Vetoes) -> Attempt:
    """One decision with what was vetoed held back. Raises as `decide` does."""
    # 1. Time never goes back.
    now = Instant(max(now, previous.decided_at))
    # 2. What was observed, then what the files say, makes of every job; forced stops are ordered here.
    records, tombstones = judge_all(desired, observed, previous, now)
    hold_vetoed(records, vetoes)
    # 3. Effective capacity, with everything that holds or was promised GPUs charged against it.
    draft = Draft(desired, observed, ground_of(desired.inventory, observed), records, now)
    # 4. Promises come true, stay, or fall.
    keep_promises(draft)
    # 5. Broken gangs before new work; spares for those that start.
    drop_unfit(draft)
    repair_broken(draft)
    complete_starting(draft)
    # 6. One pass over the candidates, each by the first way that works.
    sweep = Sweep(draft)
    accounts, as_of = brought_to(previous.usage, previous.usage_as_of, now, desired.scheduling.half_life)
    waiting = sweep.run(line_of(draft, accounts))
    # 7. Elastic gangs grow, gangs that start now lie better, scattered work moves together: nobody waits for these.
    grow(draft)
    complete_running(draft)
    improve(draft, sweep.on_free)
    tidying, moved = defragment(draft, previous.moved)
    # 8. A reason for everyone who waits.
    explainer = explain.Explainer(draft, sweep.rights, sweep.bookings, sweep.unproved)
    for record, job, alike in waiting:
        explain.settle_waiting(draft, record, explainer.why(record, job, alike))
    sweep.bookings.lift_all()
    # 9. What of all this deserves a commit.
    decision = replace(_conclude(draft, previous, tombstones, accounts, as_of, moved), tidying=tidying)
    standings = partial(standings_of, desired, previous, draft.quotas, draft.ground.types)
    return Attempt(decision=decision, started=tuple(sweep.started), standings=standings)


def _conclude(
    draft: Draft, previous: Allocation, tombstones: Tombstones, accounts: Accounts, as_of: Instant,
    moved: tuple[Instant, ...],
) -> Decision:  # fmt: skip
    jobs = {}
    for key, record in draft.records.items():
        before = previous.jobs.get(key)
        jobs[key] = settled(before, record, draft.now)
    changes = changes_between(previous.jobs, jobs)
    if not changes:
        metrics = metrics_of(draft.supply, jobs)  # capacity may have moved; the numbers ride with the next commit
        same = replace(previous, decided_at=draft.now, desired_commit=draft.desired.commit, jobs=jobs, metrics=metrics)
        return Decision(allocation=same, changes=())
    following = Allocation(
        generation=previous.generation + 1,
        epoch=previous.epoch,
        cluster_id=previous.cluster_id,
        decided_at=draft.now,
        desired_commit=draft.desired.commit,
        jobs=jobs,
        tombstones=tombstones,
        metrics=metrics_of(draft.supply, jobs),
        usage=usage_after(accounts, draft.quotas, draft.desired, jobs, lambda r: draft.ground.parts(gang_masks(r))),
        usage_as_of=as_of,
        moved=moved,
        run_lengths=lengths_after(previous.run_lengths, changes, previous.jobs, jobs, draft.desired, draft.now),
    )
    return Decision(allocation=following, changes=changes)
