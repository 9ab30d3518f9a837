"""What would this decision do to the cluster, as the `plan` of policies; and which of them do not want it?

    plan.placed, plan.preemptions, plan.moves, plan.stops    lists of {job, queue, gpus, priorityClass, lostGpuHours, ...}
    plan.lostGpuHours                          work lost to evictions and moves
    plan.phi.before, plan.phi.after            fragmentation, 0 to 1
    plan.gpus.capacity, .held, .idle, .stranded, .promised     each {before, after}
    plan.waiting                               jobs without a place afterwards

Built from the previous allocation and the decision alone. The same decision gives the same plan in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.decision import Action, Decision, Denial, Judge
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import Cause, JobState
from reconciler.policy import rules
from reconciler.policy.cel import Value
from reconciler.policy.rules import Policy, failures

_HOUR: Final = 3600
_MILLION: Final = 1_000_000
_GIVES_WAY: Final = frozenset({Cause.PREEMPTED, Cause.RECLAIMED, Cause.FAIR_SHARE})
_GOES_ON: Final = frozenset({Cause.MOVED, Cause.RESIZED})


def judge_of(policies: Sequence[Policy], desired: Desired, previous: Allocation) -> Judge | None:
    """A judge for decisions that follow `previous`; None when no policy is about plans."""
    if not policies:
        return None

    def judge(decision: Decision) -> tuple[Denial, ...]:
        plan = plan_value(decision, previous, desired)
        return tuple(
            Denial(policy=found.policy, rule=found.rule, message=found.message)
            for found in failures(policies, {"plan": plan})
            if found.action is not rules.Action.WARN
        )

    return judge


def plan_value(decision: Decision, previous: Allocation, desired: Desired) -> dict[str, Value]:
    """The `plan` of a decision; jobs in the order of their names."""
    after, before = decision.allocation.jobs, previous.jobs
    rows: dict[str, list[Value]] = {"placed": [], "preemptions": [], "moves": [], "stops": []}
    lost = 0
    for change in sorted(decision.changes, key=lambda change: change.job):
        record = after.get(change.job)
        kind = _kind(change.action, before.get(change.job), record)
        if kind and record is not None:
            seconds = record.reason.count("lost") if kind in ("preemptions", "moves") else 0
            lost += seconds
            rows[kind].append(_row(record, desired, seconds))
    waiting = sum(record.state in (JobState.PENDING, JobState.HELD) for record in after.values())
    then, now = previous.metrics, decision.allocation.metrics
    gpus = {
        name: {"before": int(getattr(then, name)), "after": int(getattr(now, name))}
        for name in ("capacity", "held", "idle", "stranded", "promised")
    }
    return {
        **rows,
        "lostGpuHours": lost / _HOUR,
        "phi": {"before": then.phi_ppm / _MILLION, "after": now.phi_ppm / _MILLION},
        "gpus": gpus,
        "waiting": waiting,
    }


def empty_plan() -> dict[str, Value]:
    """A plan in which nothing happens, for examples."""
    gpus = {name: {"before": 0, "after": 0} for name in ("capacity", "held", "idle", "stranded", "promised")}
    lists: dict[str, Value] = {"placed": [], "preemptions": [], "moves": [], "stops": []}
    return {**lists, "lostGpuHours": 0.0, "phi": {"before": 0.0, "after": 0.0}, "gpus": gpus, "waiting": 0}


def plan_rows(count: int) -> list[Value]:
    """So many jobs of a list of the plan, for examples."""
    return [
        {"job": f"example/job-{number}", "queue": "example", "gpus": 8, "priorityClass": "", "preemptor": "", "cause": "",
         "lostGpuHours": 0.0}
        for number in range(min(count, 10_000))
    ]  # fmt: skip


def _kind(action: Action, before: JobRecord | None, after: JobRecord | None) -> str:
    """In which list of the plan a change is told, "" when in none."""
    if after is None:
        return ""
    if action in (Action.PLACE, Action.PROMISE):
        return "placed"
    if after.state is JobState.STOPPING and (before is None or before.state is not JobState.STOPPING):
        if after.cause in _GIVES_WAY:
            return "preemptions"
        return "moves" if after.cause in _GOES_ON else "stops"
    return ""


def _row(record: JobRecord, desired: Desired, lost: int) -> Value:
    job = desired.jobs.get(record.job)
    return {
        "job": str(record.job),
        "queue": str(record.queue),
        "gpus": int(job.gpus) if job is not None else record.gpus_held,
        "priorityClass": str(job.priority_class) if job is not None else "",
        "preemptor": str(record.preemptor or ""),
        "cause": record.cause.value if record.cause is not None else "",
        "lostGpuHours": lost / _HOUR,
    }
