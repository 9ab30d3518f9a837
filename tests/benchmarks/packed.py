"""A cluster full of borrowers, and an owner that wants a whole rack's worth of nodes back."""

from __future__ import annotations

import random
from dataclasses import replace

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.queue import Scheduling
from reconciler.model.units import SECOND, Gpus, GpuType, Instant, Nanoseconds
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from tests.planner.worlds import H100, START, job, queue, ready, running, world

KIND = GpuType(H100)
BORROWERS = 10  # queues


def packed(nodes: int, each: int) -> tuple[Desired, list[JobRecord], Job]:
    """`nodes` nodes of eight GPUs full of gangs of `each`, and a job of eight whole nodes in one rack that reclaims."""
    chance, names = random.Random(3), [f"n{number:05}" for number in range(nodes)]
    spines: dict[str, dict[str, list[str]]] = {}
    for number, name in enumerate(names):
        spines.setdefault(f"s{number // 256:03}", {}).setdefault(f"r{number // 32:04}", []).append(name)
    lent = {KIND: Gpus(nodes * 8 * 6 // 10 // BORROWERS)}
    queues = [queue("root", None), replace(queue("own"), guaranteed={KIND: Gpus(512)})]
    queues += [replace(queue(f"b{number}"), guaranteed=lent) for number in range(BORROWERS)]
    rules = Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0), backfill="none")
    gangs: list[tuple[Job, dict[str, list[int]]]] = []
    for name in names:
        for first in range(0, 8, each):
            home = f"b{chance.randrange(BORROWERS)}"
            gangs.append((job(f"{home}/{name}-{first}", each, checkpoint=20), {name: [*range(first, first + each)]}))
    asked = job("own/big", 64, required={"job": "rack"}, dims={"tensor": 8, "data": 8})
    desired = world(spines, jobs=[*(one for one, _ in gangs), asked], queues=queues, rules=rules)
    records = [
        running(desired, one.key, place, started=Instant(START - chance.randrange(1, 5_000) * SECOND))
        for one, place in gangs
    ]
    return desired, records, asked


def drafted(desired: Desired, records: list[JobRecord]) -> Draft:
    """The beginning of a decision in which all these go on."""
    by_key = {record.job: record for record in sorted(records, key=lambda record: record.job)}
    return Draft(desired, ready(desired, *records), ground_of(desired.inventory), by_key, START)
