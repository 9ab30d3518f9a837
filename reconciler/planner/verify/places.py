"""Is one new place a right one? Wanted now, whole, on nodes that take it until it ends, inside its levels.

What other jobs hold there is for `between`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reconciler.model.allocation import JobRecord, Placement, RankPlace
from reconciler.model.inventory import Node
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import NodeCondition
from reconciler.model.request import Ask
from reconciler.model.units import GpuType, LevelName, NodeName
from reconciler.planner.verify.case import FINAL, Breach, Case, Violation


def admission(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """Only what somebody wants now, and that has not ended yet, gets GPUs; promises made earlier are still kept."""
    job, queues = case.desired.jobs.get(after.job), case.desired.quotas.queues
    if job is None or job.suspend or job.digest != after.digest or (queues and job.queue not in queues):
        yield Violation(code=Breach.NOT_WANTED, job=after.job)
        return
    if case.asked_for(after.job, Ask.CANCEL, Ask.SUSPEND):
        yield Violation(code=Breach.NOT_WANTED, job=after.job, detail="a request stops it")
    if (case.desired.blocked or case.asked_for(after.job, Ask.FREEZE)) and not _goes_on(before):
        yield Violation(code=Breach.ADMISSIONS_FROZEN, job=after.job)
    ended = [(stone.digest, stone.outcome) for stone in case.previous.tombstones.get(after.job, ())]
    if before and before.state is JobState.FINISHED and before.outcome:
        ended.append((before.digest, before.outcome))
    if any(digest == after.digest and outcome in FINAL for digest, outcome in ended):
        yield Violation(code=Breach.FINISHED_RUNS_AGAIN, job=after.job)
    for other in case.waiting:
        if after.job in other.victims and other.job != after.job:
            yield Violation(code=Breach.VICTIM_FIRST, job=after.job, detail=f"before {other.job}")


def _goes_on(before: JobRecord | None) -> bool:
    """Work under way that only changes its place, or was promised one before."""
    if before is None or before.state in (JobState.PROMISED, JobState.REPAIRING):
        return before is not None
    return before.state is JobState.STOPPING and before.cause in (Cause.NODE_LOST, Cause.MOVED, Cause.RESIZED)


def gang(case: Case, job: Job, place: Placement) -> Iterator[Violation]:
    """Whole: ranks 0 to n-1 in order, each its own GPU and what hangs beside it; each member of a role on one node."""
    slots = {(rank.node, rank.gpu) for rank in place.ranks}
    if [rank.rank for rank in place.ranks] != list(range(job.gpus)) or len(slots) != job.gpus:
        yield Violation(code=Breach.GANG_NOT_WHOLE, job=job.key, detail=f"{len(slots)} of {job.gpus} GPUs")
        return
    counts: dict[NodeName, int] = {}
    for rank in place.ranks:
        node, local = case.nodes.get(rank.node), counts.get(rank.node, 0)
        counts[rank.node] = local + 1
        slot = next((s for s in node.shape.gpus if s.index == rank.gpu), None) if node else None
        beside = slot and (slot.numa, slot.nic, slot.rail)
        if rank.local_rank != local or (slot and beside != (rank.numa, rank.nic, rank.rail)):
            yield Violation(code=Breach.WRONG_RANKS, job=job.key, detail=f"rank {rank.rank} on {rank.node}")
    first = 0
    for size in (role.gpus_each for role in job.roles for _ in range(role.workers)):
        if len({rank.node for rank in place.ranks[first : first + size]}) > 1:
            yield Violation(code=Breach.ROLE_SPLIT, job=job.key, detail=f"ranks {first} to {first + size - 1}")
        first += size


def eligible(case: Case, job: Job, place: Placement) -> Iterator[Violation]:
    """Declared, observed ready and healthy, open for this job, and free of maintenance until it ends."""
    types: set[GpuType] = set()
    engines: set[str] = set()
    limit = case.limit(job)
    end = case.now + (limit if limit is not None else case.desired.scheduling.unlimited_counts_as)
    for name, mask in place.masks.items():
        node = case.nodes.get(name)
        if node is None or (unfit := _unfit(case, node, job)):
            yield Violation(code=Breach.NODE_UNFIT, job=job.key, detail=f"{name}: {unfit if node else 'not declared'}")
            continue
        types.add(node.shape.gpu_type)
        engines.add(node.engine)
        if mask & ~usable_gpus(case, node):
            yield Violation(code=Breach.GPU_UNFIT, job=job.key, detail=name)
        own = {*case.desired.quotas.path(job.queue)}
        if any(
            begins < end and ends > case.now and not own & members for begins, ends, members in case.shut.get(name, ())
        ):
            yield Violation(code=Breach.MAINTENANCE_AHEAD, job=job.key, detail=name)
    if (len(types) > 1 and not job.mixed_types) or not types <= set(job.gpu_types or types):
        yield Violation(code=Breach.WRONG_GPU_TYPE, job=job.key, detail=", ".join(sorted(types)))
    if len(engines) > 1:
        yield Violation(code=Breach.ENGINES_SPANNED, job=job.key, detail=", ".join(sorted(engines)))


def takes_work(case: Case, node: Node) -> bool:
    """It would take new work of a job without demands, as far as its state goes."""
    return not _closed(case, node)


def _unfit(case: Case, node: Node, job: Job) -> str:
    """Why a node takes no new work of this job; "" when it does."""
    if closed := _closed(case, node):
        return closed
    if any(node.labels.get(key) != value for key, value in job.node_labels.items()):
        return "labels"
    barred = (t for t in node.taints if t.effect == "NoSchedule")
    return "taint" if any(not {t.key, f"{t.key}={t.value}"} & {*job.tolerations} for t in barred) else ""


def _closed(case: Case, node: Node) -> str:
    """Why a node takes no new work of anyone; "" when it does."""
    seen = case.observed.nodes.get(node.name)
    if seen is None or seen.condition is not NodeCondition.READY or seen.unhealthy:
        return "not ready"
    if any(not said.state.released and case.live.get(said.job) != said.attempt for said in seen.attempts):
        return "processes of an attempt that holds nothing"
    return "dead" if node.dead else "cordoned" if node.cordoned else ""


def usable_gpus(case: Case, node: Node) -> int:
    """GPUs of a ready node that were seen healthy, are not declared failed and that no stranger uses."""
    seen = case.observed.nodes[node.name]
    if seen.gpu_type and not node.shape.goes_by(seen.gpu_type):
        return 0
    healthy = sum(1 << gpu.index for gpu in seen.gpus if gpu.is_usable)
    return healthy & node.shape.all_gpus & ~node.failed


def levels(case: Case, job: Job, place: Placement) -> Iterator[Violation]:
    """Each group that must stay together does, and the level the placement claims really contains it."""
    rules = [(rule.group, rule.level) for rule in job.required]
    for group, level in (*rules, ("job", place.level)):
        for members in _groups(job, group, place):
            if len({_domain(case, level, rank.node, rank.gpu) for rank in members}) > 1:
                yield Violation(code=Breach.LEVEL_BROKEN, job=job.key, detail=f"{group} in one {level}")
                break


def _groups(job: Job, group: str, place: Placement) -> Iterable[Sequence[RankPlace]]:
    """The ranks that differ only in this dimension, dimensions running fastest first; all ranks for `job`."""
    if group == "job":
        return [place.ranks]
    stride = 1
    for dimension in job.dimensions:
        if dimension.name == group:
            found: dict[tuple[int, int], list[RankPlace]] = {}
            for rank in place.ranks:
                found.setdefault((rank.rank % stride, rank.rank // (stride * dimension.size)), []).append(rank)
            return found.values()
        stride *= dimension.size
    return []  # a dimension of size 1: every rank is a group of its own


def _domain(case: Case, level: LevelName, name: NodeName, gpu: int) -> tuple[str | int, ...]:
    """The domain of a level around one GPU: an island inside the node, the node, or a stretch of its path."""
    node, depth = case.nodes.get(name), case.depths.get(level, 0)
    if node is None or depth == 0:
        return (name,)
    if depth > 0:
        return node.path[: len(node.path) + 1 - depth]
    return (name, *(index for index, mask in enumerate(node.shape.nvlink) if mask >> gpu & 1))
