"""What shall run where next? The whole next allocation from four values, and nothing else.

`decide` is pure: no clock, no chance, integers only; the same inputs give the same allocation on every machine. It
tells the story in numbered steps; each step is a module. What it decides is judged by `verify`, committed by the
shell, and only then acted on.
"""

from __future__ import annotations

from dataclasses import replace

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.decision import Decision
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.units import Instant
from reconciler.planner import explain
from reconciler.planner.admit import Sweep
from reconciler.planner.candidacy import Tombstones
from reconciler.planner.changes import changes_between, settled
from reconciler.planner.classify import judge_all
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.metrics import metrics_of
from reconciler.planner.order import pass_order
from reconciler.planner.promise import keep_promises
from reconciler.planner.repair import repair_broken


def decide(desired: Desired, observed: Observed, previous: Allocation, now: Instant) -> Decision:
    """The next allocation, with a reason for every job, and the list of what changed.

    When nothing that deserves a commit changed, the allocation is the previous one, same generation, dated now.
    Raises BrokenInvariant when a rule of the lifecycle or of the engines would be broken: commit nothing then.
    """
    # 1. Time never goes back.
    now = Instant(max(now, previous.decided_at))
    # 2. What was observed, then what the files say, makes of every job; forced stops are ordered here.
    records, tombstones = judge_all(desired, observed, previous, now)
    # 3. Effective capacity, with everything that holds or was promised GPUs charged against it.
    draft = Draft(desired, observed, ground_of(desired.inventory), records, now)
    # 4. Promises come true, stay, or fall.
    keep_promises(draft)
    # 5. Broken gangs before new work.
    repair_broken(draft)
    # 6. One pass over the candidates, each by the first way that works.
    sweep = Sweep(draft)
    waiting = sweep.run(_candidates(draft))
    # 7. A reason for everyone who waits.
    explainer = explain.Explainer(draft, sweep.standing)
    for record, job, alike in waiting:
        explain.settle_waiting(draft, record, explainer.why(record, job, alike))
    # 8. What of all this deserves a commit.
    return _conclude(draft, previous, tombstones)


def _candidates(draft: Draft) -> list[tuple[JobRecord, Job]]:
    """Pending jobs in the order of the pass; none while admissions are frozen."""
    pending = []
    for record in draft.records.values():
        if record.state is JobState.PENDING and not draft.desired.blocked:
            job = draft.job(record)
            if job is not None:
                pending.append((record, job))
    return pass_order(pending, draft.desired.classes, draft.desired.scheduling, draft.now)


def _conclude(draft: Draft, previous: Allocation, tombstones: Tombstones) -> Decision:
    jobs = {}
    for key, record in draft.records.items():
        before = previous.jobs.get(key)
        jobs[key] = settled(before, record, draft.now)
    changes = changes_between(previous.jobs, jobs)
    if not changes:
        same = replace(previous, decided_at=draft.now, desired_commit=draft.desired.commit, jobs=jobs)
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
    )
    return Decision(allocation=following, changes=changes)
