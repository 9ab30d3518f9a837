"""Does a start of this decision put off the job that has waited at the head of its queue?

Rule book §7: with backfill on, who is behind may start only if no reservation moves. Reservations are no state, and
working all of them out again would be the planner's search once more. What can be proved without it is judged here:
the one blocked gang that is surely before all others who wait, when it wants whole nodes in one domain and nothing else
limits it. For such a gang counting free nodes is exact, so a start behind it that lets its nodes come together later
than they would have is an offence for certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.inventory import Node
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import NVLINK_LEVEL, DomainName, LevelName, NodeName
from reconciler.planner.verify.case import Breach, Case, Violation, bound_by
from reconciler.planner.verify.holds import is_behind, value_of
from reconciler.planner.verify.places import takes_work, usable_gpus
from reconciler.planner.verify.quotas import is_fixed

NEVER: Final = 1 << 80

_FOR_NODES: Final = frozenset({ReasonCode.CAPACITY, ReasonCode.NO_DOMAIN_FITS, ReasonCode.PROTECTED})
"""Reasons of a gang that only nodes keep waiting."""


def delays(case: Case) -> Iterator[Violation]:
    """Nobody behind the head of the line starts so that the head starts later."""
    if case.desired.scheduling.backfill == "none" or not case.started or case.desired.windows:
        return
    head = _head(case)
    job = case.desired.jobs.get(head.job) if head is not None else None
    nodes = _nodes_for(case, job) if job is not None else None
    if head is None or job is None or not nodes:
        return
    behind = [after for before, after in case.started if _is_new_work(before, after) and is_behind(case, after, head)]
    if not behind:
        return
    names = {record.job for record in behind}
    others = [record for record in case.next.jobs.values() if record.job not in names]
    need = job.gpus // len(nodes[0].shape.gpus)
    level = next((rule.level for rule in job.required if rule.group == "job"), None)
    due = _together(case, _free_from(case, nodes, others), nodes, level, need)
    starts = _together(case, _free_from(case, nodes, case.next.jobs.values()), nodes, level, need)
    if due < NEVER and starts > due:
        detail = f"{head.job} could start at {due}, now {starts if starts < NEVER else 'never'}"
        yield Violation(code=Breach.RESERVATION_DELAYED, job=min(names), detail=detail)


def _is_new_work(before: JobRecord | None, after: JobRecord) -> bool:
    """A start on free GPUs that is no repair."""
    waited = before is None or before.state in (JobState.PENDING, JobState.HELD)
    repaired = before is not None and before.cause is Cause.NODE_LOST
    return after.state is JobState.STARTING and waited and not repaired


def _head(case: Case) -> JobRecord | None:
    """The waiting job that is before all others whatever the order of queues; None when none surely is."""
    waiting = [record for record in case.next.jobs.values() if record.state is JobState.PENDING]
    if not waiting or any(record.hold is not None for record in waiting):
        return None
    jobs = case.desired.jobs
    first = min(waiting, key=lambda r: (-value_of(case, jobs.get(r.job)), r.submitted, r.job))
    if first.reason.code not in _FOR_NODES:
        return None
    return first if all(other is first or is_behind(case, other, first) for other in waiting) else None


def _nodes_for(case: Case, job: Job) -> list[Node] | None:
    """The nodes that count for a gang of whole nodes; None when more than nodes decides where it goes."""
    kinds = {node.shape.gpu_type for node in case.nodes.values()}
    wanted = kinds & {*job.gpu_types} if job.gpu_types else kinds
    rows = case.desired.quotas.queues
    above = [rows[name] for name in case.desired.quotas.path(job.queue) if name in rows]
    limited = any(row.ceiling or (row.guaranteed and is_fixed(case, job)) for row in above)
    lent = any(row.lend is not None for row in rows.values())
    odd = job.roles or job.elastic or job.cpus_per_gpu or job.memory_per_gpu or job.node_labels or job.task
    if len(wanted) != 1 or limited or lent or odd:
        return None
    nodes = [node for node in case.nodes.values() if node.shape.gpu_type in wanted]
    sizes = {len(node.shape.gpus) for node in nodes}
    if len({node.engine for node in nodes}) > 1:  # then no domain is one place
        return None
    if len(sizes) != 1 or job.gpus % min(sizes) or any(node.taints or len(node.shape.nvlink) > 1 for node in nodes):
        return None
    simple = all(_is_simple(case, job, rule.group, rule.level) for rule in job.required)
    return nodes if simple else None


def _is_simple(case: Case, job: Job, group: str, level: LevelName) -> bool:
    """The whole gang in one domain above nodes, or groups that any whole node holds."""
    if case.depths.get(level, -1) > 0:
        return group == "job" and level != NVLINK_LEVEL and sum(rule.group == "job" for rule in job.required) == 1
    size = next((one.size for one in job.dimensions if one.name == group), 0)
    first = bool(job.dimensions) and job.dimensions[0].name == group
    return group != "job" and first and size <= min(len(node.shape.gpus) for node in case.nodes.values())


def _free_from(case: Case, nodes: Iterable[Node], records: Iterable[JobRecord]) -> dict[NodeName, int]:
    """When each node is wholly free, if all run to their ends."""
    found = {
        node.name: 0 if takes_work(case, node) and usable_gpus(case, node) == node.shape.all_gpus else NEVER
        for node in nodes
    }
    for record in records:
        ends, promised = _end(case, record), record.promise.placement.masks if record.promise is not None else {}
        for name in bound_by(record):
            if name in found:
                found[name] = max(found[name], ends)
        for name in promised:
            if name in found:
                found[name] = max(found[name], _promised_end(case, record))
    return found


def _end(case: Case, record: JobRecord) -> int:
    """When a gang is gone at the latest. One told to stop just now may have counted as running when that was asked."""
    limit, now = case.limit(case.desired.jobs.get(record.job)), case.now
    before = case.previous.jobs.get(record.job)
    if record.state is JobState.STOPPING:
        stops = record.deadline if record.deadline is not None and record.deadline > now else NEVER
        told = before is not None and before.state is JobState.STOPPING
        runs = NEVER if limit is None else (record.started or now) + limit
        return stops if told else max(stops, runs)
    backs_off = record.state is JobState.REPAIRING and record.retry_at is not None
    if limit is None or not (backs_off or record.state in (JobState.STARTING, JobState.RUNNING)):
        return NEVER
    began = record.started if record.started is not None else max(now, record.retry_at or 0)
    return max(began + limit, now + record.grace)


def _promised_end(case: Case, record: JobRecord) -> int:
    limit = case.limit(case.desired.jobs.get(record.job))
    if limit is None or record.promise is None:
        return NEVER
    return max(record.promise.deadline, case.now) + limit


def _together(
    case: Case, free: Mapping[NodeName, int], nodes: Iterable[Node], level: LevelName | None, need: int
) -> int:  # fmt: skip
    """When so many nodes of one domain are free at once, in the domain where that is soonest."""
    domains: dict[tuple[DomainName, ...], list[int]] = {}
    for node in nodes:
        depth = case.depths[level] if level is not None else len(node.path) + 1
        domains.setdefault(node.path[: len(node.path) + 1 - depth], []).append(free[node.name])
    return min((sorted(ends)[need - 1] for ends in domains.values() if len(ends) >= need), default=NEVER)
