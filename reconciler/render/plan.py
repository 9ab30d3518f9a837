"""A plan: what one decision would change, as a value, and as text or JSON.

The value is made once from two allocations; every renderer reads the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reconciler.model.allocation import JobRecord, Metrics
from reconciler.model.decision import Action, Decision
from reconciler.model.desired import Desired
from reconciler.model.reasons import sentence
from reconciler.model.units import GpuSeconds, JobKey
from reconciler.render.names import gpu_hours, one_line, places, share
from reconciler.render.story import ordered
from reconciler.render.table import table

FORMAT = "1.0"

_SIGNS = {
    Action.PLACE: "+",
    Action.PROMISE: "+",
    Action.START: "+",
    Action.RUNNING: "+",
    Action.PREEMPT: "-",
    Action.STOP: "-",
    Action.LOST: "-",
    Action.DROP: "-",
    Action.RELEASE: "-",
    Action.REPLACE: "-/+",
    Action.WAIT: ".",
    Action.HOLD: ".",
    Action.FINISH: "=",
    Action.PHASE: "~",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One job's step: what, how many GPUs, of which class, where, and why."""

    action: Action
    job: JobKey
    gpus: int
    priority_class: str
    where: str
    why: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The difference one decision makes. `digest` binds it to its inputs; `state` is the commit it stands on.

    `lost_work` is what its evictions cost.
    """

    cluster: str
    desired: str
    state: str
    generation: int
    digest: str
    rows: tuple[PlanRow, ...]
    unchanged: int
    before: Metrics
    after: Metrics
    lost_work: GpuSeconds = GpuSeconds(0)

    @property
    def changes(self) -> bool:
        return bool(self.rows)


def plan_of(decision: Decision, before: Metrics, desired: Desired, *, state: str, generation: int, digest: str) -> Plan:
    """The plan of a decision on a state commit."""
    records = decision.allocation.jobs
    rows = tuple(_row(c.action, c.job, records.get(c.job), desired) for c in ordered(decision.changes))
    return Plan(
        cluster=desired.cluster,
        desired=desired.commit,
        state=state,
        generation=generation,
        digest=digest,
        rows=rows,
        unchanged=len(records) - sum(row.job in records for row in rows),
        before=before,
        after=decision.allocation.metrics,
        lost_work=GpuSeconds(
            sum(_lost(records[r.job]) for r in rows if r.action is Action.PREEMPT and r.job in records)
        ),
    )


def _lost(record: JobRecord) -> int:
    """What being evicted costs this job, as its reason tells."""
    found = record.reason.number("lost")
    return found if isinstance(found, int) else 0


def _row(action: Action, key: JobKey, record: JobRecord | None, desired: Desired) -> PlanRow:
    job = desired.jobs.get(key)
    placement = None
    if record is not None:
        placement = record.placement or (record.promise.placement if record.promise else None)
    return PlanRow(
        action=action,
        job=key,
        gpus=job.gpus if job else record.gpus_held if record else 0,
        priority_class=job.priority_class if job else "-",
        where=places(placement, desired.inventory) if placement else "-",
        why=one_line(sentence(record.reason)) if record else "nothing is left of it",
        reason=record.reason.code.value if record else "",
    )


def plan_text(plan: Plan, width: int | None) -> str:
    """For a terminal: a line a job with its sign, then what the cluster looks like, then the sum."""
    lines = [
        f"Plan for {plan.cluster}   desired {plan.desired[:7]}   state #{plan.generation} {plan.state[:7]}",
        "",
    ]
    if plan.rows:
        cells = [
            [f"{_SIGNS[r.action]:<3} {r.action}", r.job, str(r.gpus or "-"), r.priority_class, r.where, r.why]
            for r in plan.rows
        ]
        lines += [table(["", "JOB", "GPUS", "CLASS", "WHERE", "WHY"], cells, width=width, right="GPUS"), ""]
        lines += [*_numbers(plan), ""]
    lines += [_sum(plan), f"Decision sha256:{plan.digest[:12]}"]
    return "\n".join(lines)


def _numbers(plan: Plan) -> list[str]:
    """What the cluster looks like before and after; a number that stays is told once."""
    before, after = plan.before, plan.after
    rows = [
        ("GPUs held", _moved(str(before.held), str(after.held)), f"of {after.capacity}"),
        ("promised", _moved(str(before.promised), str(after.promised)), ""),
        ("idle", _moved(str(before.idle), str(after.idle)), f"{after.stranded} stranded" if after.stranded else ""),
        ("Phi", _moved(share(before.phi_ppm, 10**6), share(after.phi_ppm, 10**6)), ""),
        ("lost work", gpu_hours(plan.lost_work) if plan.lost_work else "0", ""),
    ]
    width = max(len(value) for _, value, _ in rows)
    return [f"  {name:<10}  {value:<{width}}  {note}".rstrip() for name, value, note in rows if value != "0"]


def _moved(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def _sum(plan: Plan) -> str:
    same = f"{plan.unchanged} job{'s' if plan.unchanged != 1 else ''}"
    if not plan.rows:
        return f"No changes: {same} as before."
    counts: dict[str, int] = {}
    for row in plan.rows:
        counts[row.action] = counts.get(row.action, 0) + 1
    told = ", ".join(f"{count} {action}" for action, count in counts.items())
    return f"Plan: {told}; {same} as before."


def plan_json(plan: Plan) -> Mapping[str, object]:
    """The machine form, versioned; a reader of 1.x ignores keys it does not know."""
    return {
        "formatVersion": FORMAT,
        "cluster": plan.cluster,
        "desired": plan.desired,
        "state": plan.state,
        "generation": plan.generation,
        "digest": plan.digest,
        "changes": [
            {
                "action": row.action.value,
                "job": row.job,
                "gpus": row.gpus,
                "priorityClass": row.priority_class,
                "where": row.where,
                "reason": row.reason,
                "why": row.why,
            }
            for row in plan.rows
        ],
        "unchanged": plan.unchanged,
        "gpus": {"before": _metrics(plan.before), "after": _metrics(plan.after)},
        "lostGpuSeconds": plan.lost_work,
    }


def _metrics(metrics: Metrics) -> dict[str, int]:
    return {
        "capacity": metrics.capacity,
        "held": metrics.held,
        "promised": metrics.promised,
        "idle": metrics.idle,
        "stranded": metrics.stranded,
        "phiPpm": metrics.phi_ppm,
    }
