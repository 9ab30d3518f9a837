"""Which GPUs does a gang hold beside its own, so that a lost node is replaced at once?

`topology.spares` nodes' worth, each as large as the gang's largest part on one node, on nodes that it does not use
itself, as near to it as free GPUs allow and inside whatever domain the job has to stay in. Nothing runs on them; they
are the gang's, and charged to its queue, until it lets go of everything. They never make a start wait and never
displace anyone: a gang takes them when it starts, before anyone later in line; one that lacks some takes more when
nobody waits for such GPUs. Who may take from the gang takes its spares before anything that runs. A spare whose node
goes out is let go of. Using them is for `repair`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace

from reconciler.model.allocation import JobRecord, Placement, Spare
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import Gpus, GpuSeconds, GpuType, NodeName
from reconciler.planner.draft import Draft
from reconciler.planner.grow import waited_for
from reconciler.planner.memo import masks_of
from reconciler.planner.placement import Spot
from reconciler.planner.replacement import nvlink_share
from reconciler.planner.rights import Claim
from reconciler.planner.victims import Candidate
from reconciler.topology.gpus import tightest_gpus
from reconciler.topology.tree import ROOT, NodeIndex

May = Callable[[Job, GpuType], bool]
"""Whether a job may take so many GPUs of a type more, as far as others have booked quota."""

_ALIVE = (JobState.STARTING, JobState.RUNNING)
_FIRM = ("nonPreemptible", "guarantee")  # protections of what a gang has, and not only of its work
_TENDED = (*_ALIVE, JobState.REPAIRING)


def drop_unfit(draft: Draft) -> None:
    """Let go of spares that could not be used, or that are more than the file says now."""
    for record in list(draft.records.values()):
        job = draft.job(record) if record.spares and record.state in _TENDED else None
        if job is None:
            continue
        kept = tuple(one for one in record.spares if _is_sound(draft, job, one))[: job.spares]
        if kept != record.spares:
            draft.respare(record, kept)


def complete_starting(draft: Draft) -> None:
    """Gangs that start, as they were promised or repaired, have their spares before any new work."""
    for record in list(draft.records.values()):
        job = draft.job(record) if record.state is JobState.STARTING else None
        if job is not None and job.spares:
            take_spares(draft, record, job)


def complete_running(draft: Draft) -> None:
    """Running gangs that lack spares take free GPUs that nobody waits for, first in line first."""
    if draft.desired.blocked:
        return
    lacking = [
        (record, job)
        for record in draft.records.values()
        if record.state is JobState.RUNNING and (job := draft.job(record)) is not None
        if len(record.spares) < job.spares and draft.is_queue(job.queue)
    ]
    wanted = waited_for(draft) if lacking else set()
    for record, job in sorted(lacking, key=lambda one: draft.line(*one)):
        if draft.charges.types.get(record.job) not in wanted:
            take_spares(draft, record, job)


def take_spares(draft: Draft, record: JobRecord, job: Job, may: May = lambda _job, _kind: True) -> None:
    """Bind as many spares as the file asks for and its queue and free GPUs allow."""
    kind, place = draft.charges.types.get(record.job), record.placement
    if len(record.spares) >= job.spares or record.state not in _ALIVE or kind is None or place is None:
        return
    unit = part_of(place)
    for node, mask in _nearest(draft, record, job, kind, unit):
        more = replace(job, gpus=Gpus(unit))
        if draft.quotas.breach(job.queue, kind, unit, fixed=draft.is_fixed(job)) is not None or not may(more, kind):
            return
        record = draft.respare(record, (*record.spares, Spare(node=draft.ground.nodes[node].name, mask=mask)))
        if len(record.spares) >= job.spares:
            return


def yield_spares(draft: Draft, record: JobRecord, job: Job, kind: GpuType, claim: Claim) -> Spot | None:
    """Where a job fits once gangs that it may take from have let go of spares, which they do here; None: nowhere, and
    nothing was let go of. What these gangs run is not touched, so protections against that do not matter."""
    asked = {one.record.job: one.record for one in claim.able if one.record.spares}
    asked |= {one.record.job: one.record for one in claim.kept if one.record.spares and one.by not in _FIRM}
    givers = [_Giver(draft, draft.records[key], None) for key in sorted(asked)]
    chosen = {one.record.job for one in claim.greedy(one.candidate for one in givers)}
    every = [one for one in givers if one.record.job in chosen]
    spot = _after(draft, record, job, kind, claim, every, None)
    if spot is None:
        return None
    nodes = frozenset(draft.ground.nodes[index].name for index, _ in spot.rows)
    touched = [one for one in (_Giver(draft, giver.record, nodes) for giver in every) if one.spares]
    for gives in (touched, every):  # all of them when it is a limit of its queue that has to be made room at
        if _after(draft, record, job, kind, claim, gives, spot) is not None:
            return spot if _let_go(draft, job, spot, gives) else None
    return None


def _let_go(draft: Draft, job: Job, spot: Spot, gives: Sequence[_Giver]) -> bool:
    """They give it up; all is as before when what others still hold on their way out keeps the job from starting now."""
    for one in gives:
        draft.respare(one.record, tuple(spare for spare in one.record.spares if spare not in one.spares))
    if draft.breach(job, spot.gpu_type, spot=spot) is None:
        return True
    for one in gives:
        draft.respare(draft.records[one.record.job], one.record.spares)
    return False


def _after(
    draft: Draft, record: JobRecord, job: Job, kind: GpuType, claim: Claim, gives: Sequence[_Giver], spot: Spot | None
) -> Spot | None:  # fmt: skip
    """The spot that is lawful once these have given up what they give: this one, or the best there is then."""
    with draft.charges.without_parts([(one.record, one.masks) for one in gives], kind):
        found = spot or draft.look(record, job, kind)
        if not gives or not isinstance(found, Spot) or draft.breach(job, kind, promised=True, spot=found):
            return None
        nodes = [draft.ground.nodes[index].name for index, _ in found.rows]
        return found if claim.causes([one.candidate for one in gives], nodes) is not None else None


class _Giver:
    """A gang, and those of its spares that lie on some nodes (None: on any)."""

    __slots__ = ("candidate", "masks", "record", "spares")

    def __init__(self, draft: Draft, record: JobRecord, nodes: Container[NodeName] | None) -> None:
        self.record = record
        self.spares = tuple(one for one in record.spares if nodes is None or one.node in nodes)
        self.masks = {one.node: one.mask for one in self.spares}
        job = draft.job(record)
        self.candidate = Candidate(
            record=record, priority=draft.priority(job) if job is not None else 0, lost=GpuSeconds(0),
            gpus=sum(mask.bit_count() for mask in self.masks.values()),
            leaf=draft.quotas.branches.leaf(record.queue),
        )  # fmt: skip


def part_of(place: Placement) -> int:
    """GPUs of a gang's largest part on one node: what a spare has to make up for."""
    return max(mask.bit_count() for mask in masks_of(place).values())


def _is_sound(draft: Draft, job: Job, spare: Spare) -> bool:
    """Its node could take a part of the gang: open, healthy and right for it."""
    index = draft.ground.tree.index_of.get(spare.node)
    if index is None or spare.mask & ~draft.supply.usable[index]:
        return False
    return not draft.access.closed_to(job) >> index & 1


def _nearest(draft: Draft, record: JobRecord, job: Job, kind: GpuType, unit: int) -> Iterator[tuple[NodeIndex, int]]:
    """Nodes that have room for a spare, and its GPUs there: nearest to the gang first, then the fullest, then by name."""
    engine, tree = draft.supply.engines[kind], draft.ground.tree
    own = (
        {tree.index_of[name] for name in masks_of(record.placement) if name in tree.index_of}
        if record.placement
        else set()
    )
    taken = own | {tree.index_of[one.node] for one in record.spares if one.node in tree.index_of}
    shut = draft.access.closed_to(job)
    least = max((draft.ground.levels[rule.level] for rule in job.required if rule.group == "job"), default=ROOT)
    least = least if least <= tree.leaf_level else ROOT  # a gang of one node goes anywhere when that is lost
    least = max(least, draft.ground.floor)
    seen: set[NodeIndex] = set(taken)
    for level in range(tree.leaf_level, least - 1, -1):
        rows = []
        for domain in sorted({tree.domain_of(node, level) for node in own}):
            first, end = tree.span(level, domain, tree.node_level)
            for node in range(first, end):
                if node in seen or shut >> node & 1 or node in engine.excluded:
                    continue
                seen.add(node)
                free = engine.free_mask(node)
                if free.bit_count() >= unit and _has_resources(draft, job, node, unit):
                    rows.append((free.bit_count(), node, free))
        share = nvlink_share(draft.ground, job, unit)
        for _, node, free in sorted(rows):
            yield node, tightest_gpus(tree.shapes[tree.shape_of[node]], free, unit, share)


def _has_resources(draft: Draft, job: Job, node: NodeIndex, gpus: int) -> bool:
    cpus, memory = draft.supply.resources_left(node)
    return gpus * job.cpus_per_gpu <= cpus and gpus * job.memory_per_gpu <= memory
