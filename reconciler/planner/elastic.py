"""Which sizes may an elastic gang have, and which of its ranks are left when it loses groups?

A group is one step of the elastic dimension (or one worker of the elastic role): it comes and goes whole. Ranks that
stay keep their order, so that who was a neighbour stays one. Which size is right now is for `admit`, `shrink`,
`repair` and `grow`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from reconciler.model.job import Job
from reconciler.planner.memo import Memo

FIXED: Final = -1
"""The coordinate of a rank that no resize touches: a member of another role."""


def _sizes(job: Job) -> tuple[Job, ...]:
    if job.elastic is None:
        return (job,)
    each, base = job.group_gpus, 0
    if job.roles:  # only the members of one role vary
        base = job.gpus - sum(r.workers * r.gpus_each for r in job.roles if r.name == job.elastic.dimension)
    sizes = range(job.elastic.most, job.elastic.least - 1, -1)
    found = (job.resized(base + each * steps) for steps in sizes if steps)
    return tuple(one for one in found if one is not None) or (job,)


sizes_of: Final = Memo(_sizes)
"""The job at every size it may have, the largest first; only itself when it is not elastic."""


def smallest(job: Job) -> Job:
    """The job at the size below which it does not run: all that it may displace others for."""
    return sizes_of(job)[-1]


def at_size(job: Job, gpus: int) -> Job:
    """The job at the size of a gang of it; as its file says when it may not have that size any more."""
    if gpus == job.gpus:
        return job
    return next((one for one in sizes_of(job) if one.gpus == gpus), job)


def steps_of(job: Job) -> int:
    """Groups that the gang has at this size; 0 when it is not elastic."""
    return max(coordinates(job), default=FIXED) + 1 if job.elastic is not None else 0


def coordinates(job: Job) -> list[int]:
    """The group of each rank, by rank."""
    name = job.elastic.dimension if job.elastic is not None else ""
    if job.roles:
        found: list[int] = []
        for role in job.roles:
            for worker in range(role.workers):
                found += [worker if role.name == name else FIXED] * role.gpus_each
        return found
    stride = 1
    for dimension in job.dimensions:
        if dimension.name == name:
            return [rank // stride % dimension.size for rank in range(job.gpus)]
        stride *= dimension.size
    return [FIXED] * job.gpus


def without_groups(job: Job, gone: Container[int]) -> tuple[Job, tuple[int, ...]] | None:
    """The job without these groups, and for each rank of it the rank it was before; None when it may not be so small."""
    kept = tuple(rank for rank, group in enumerate(coordinates(job)) if group == FIXED or group not in gone)
    smaller = next((one for one in sizes_of(job) if one.gpus == len(kept)), None)
    return (smaller, kept) if smaller is not None else None


def highest_gone(job: Job, groups: int) -> tuple[Job, tuple[int, ...]] | None:
    """The job with so many groups fewer, the highest ones, and the ranks that stay; None when it may not be so small."""
    total = steps_of(job)
    return without_groups(job, range(total - groups, total)) if 0 < groups < total else None
