"""Are the GPUs that a gang holds for its repair rightly its own?

Asked for, beside it, as large as its largest part, on nodes that could take it now, inside the domain it must stay in,
nobody else's, and within its queue's limits. What is let go of needs no receipt: nothing ever ran there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reconciler.model.allocation import JobRecord, Placement, RankPlace
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.units import NodeName
from reconciler.planner.verify.case import Breach, Case, Violation, fresh_spares, held_by
from reconciler.planner.verify.places import eligible, levels
from reconciler.planner.verify.quotas import limits_kept, tree_of


def spares(case: Case) -> Iterator[Violation]:
    """Every spare that was not held before."""
    for before, after in case.changed:
        if after is None or not after.spares:
            continue
        job = case.desired.jobs.get(after.job)
        if not after.state.holds_gpus:
            yield Violation(code=Breach.WRONG_SPARES, job=after.job, detail=f"while {after.state}")
        fresh = fresh_spares(before, after)
        if fresh and (job is None or after.state not in (JobState.STARTING, JobState.RUNNING)):
            yield Violation(code=Breach.WRONG_SPARES, job=after.job, detail=f"taken while {after.state}")
        elif fresh and job is not None:
            yield from _beside(case, job, after, fresh)
            yield from _alone(case, after, fresh)
            for kind in sorted({case.nodes[name].shape.gpu_type for name in fresh if name in case.nodes}):
                yield from limits_kept(case, tree_of(case, kind), after)


def _beside(case: Case, job: Job, after: JobRecord, fresh: dict[NodeName, int]) -> Iterator[Violation]:
    """As many and as large as asked for, each on a fit node of its own in the domain that is required."""
    nodes, held = [one.node for one in after.spares], held_by(after)
    if len(nodes) > job.spares or len({*nodes}) < len(nodes) or held.keys() & {*nodes}:
        yield Violation(code=Breach.WRONG_SPARES, job=after.job, detail=f"{len(nodes)} of {job.spares}")
    least = max((mask.bit_count() for mask in held.values()), default=0)
    if any(mask.bit_count() != least for mask in fresh.values()):
        yield Violation(code=Breach.WRONG_SPARES, job=after.job, detail=f"not of {least} GPUs")
    place = _place(case, after, fresh)
    yield from eligible(case, job, place)
    engines = {case.nodes[name].engine for name in (*held, *fresh) if name in case.nodes}
    if len(engines) > 1:
        yield Violation(code=Breach.ENGINES_SPANNED, job=after.job, detail=", ".join(sorted(engines)))
    for rule in job.required:
        if rule.group == "job" and after.placement is not None and case.depths.get(rule.level, 0) > 0:
            one = Placement(ranks=(*after.placement.ranks, *place.ranks), level=rule.level, domain="")
            yield from levels(case, _whole(job), one)


def _whole(job: Job) -> Job:
    """The job with no rule but those of the placement it is judged in."""
    return replace(job, required=())


def _place(case: Case, after: JobRecord, fresh: dict[NodeName, int]) -> Placement:
    """The spares as if ranks were on them."""
    found: list[RankPlace] = []
    for name, mask in fresh.items():
        node = case.nodes.get(name)
        slots = {slot.index: slot for slot in node.shape.gpus} if node is not None else {}
        for gpu in (gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1):
            numa, nic, rail = (slots[gpu].numa, slots[gpu].nic, slots[gpu].rail) if gpu in slots else (-1, "", -1)
            found.append(RankPlace(rank=len(found), node=name, local_rank=0, gpu=gpu, numa=numa, nic=nic, rail=rail))
    level = after.placement.level if after.placement is not None else case.desired.inventory.levels[-1].name
    return Placement(ranks=tuple(found), level=level, domain="")


def _alone(case: Case, after: JobRecord, fresh: dict[NodeName, int]) -> Iterator[Violation]:
    """Nobody else holds these GPUs, or was promised them."""
    for name, mask in fresh.items():
        for other, holds, promised in case.claims[name]:
            if other.job != after.job and mask & (holds | promised):
                code = Breach.GPU_TWICE if mask & holds else Breach.PROMISED_GPU
                yield Violation(code=code, job=after.job, detail=f"{name}, also {other.job}")
