"""Do the jobs get along? GPUs, ports, CPUs and memory of the nodes they share.

Only nodes of jobs that are given something now are looked at: the rest is inherited.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import JobState
from reconciler.planner.verify.case import Breach, Case, Violation, held_by, new_places


def overlaps(case: Case) -> Iterator[Violation]:
    """No GPU is given twice. A promise may lie on GPUs that their holder is giving up, and on no others."""
    for before, after in case.started:
        for place in new_places(before, after):
            starts = after.state.holds_gpus and place is after.placement
            for node, mask in place.masks.items():
                for other, holds, promised in case.claims[node]:
                    if other.job == after.job:
                        continue
                    pair = f"{node}, also {other.job}"
                    if starts and mask & holds:
                        yield Violation(code=Breach.GPU_TWICE, job=after.job, detail=pair)
                    elif mask & promised or (mask & holds and other.state is not JobState.STOPPING):
                        yield Violation(code=Breach.PROMISED_GPU, job=after.job, detail=pair)


def neighbours(case: Case) -> Iterator[Violation]:
    """On each node of a gang that starts: ports that nobody else there uses, and CPUs and memory for all."""
    for before, after in case.started:
        place = after.placement
        if place is None or not after.state.holds_gpus or all(new is not place for new in new_places(before, after)):
            continue
        for name in place.nodes:
            holders = [(other, holds.bit_count()) for other, holds, _ in case.claims[name] if holds]
            for other, _ in holders:
                if other.job != after.job and name in held_by(other) and set(other.ports) & set(after.ports):
                    yield Violation(code=Breach.PORT_TWICE, job=after.job, detail=f"{name}, also {other.job}")
            asked = [(case.desired.jobs.get(other.job), gpus) for other, gpus in holders]
            cpus = sum(gpus * job.cpus_per_gpu for job, gpus in asked if job)
            memory = sum(gpus * job.memory_per_gpu for job, gpus in asked if job)
            node = case.nodes.get(name)
            if node and (cpus > node.shape.cpu_count or memory > node.shape.memory) and _asks(case, after):
                yield Violation(code=Breach.NODE_OVERFULL, job=after.job, detail=name)


def _asks(case: Case, record: JobRecord) -> bool:
    """The job takes a share of a node's CPUs or memory."""
    job = case.desired.jobs.get(record.job)
    return job is not None and bool(job.cpus_per_gpu or job.memory_per_gpu)
