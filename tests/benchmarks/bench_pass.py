"""How long one pass takes: 10,000 nodes, 5,000 running jobs, 10,000 pending ones, 64 reservations.

Not a test: `python -m tests.benchmarks.bench_pass [NODES]` prints a table. Target for the pass of a blocked line: 100 ms.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from dataclasses import replace

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.units import HOUR, Instant, Nanoseconds
from reconciler.planner import explain
from reconciler.planner.admit import Sweep
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.line import line_of
from tests.planner.worlds import START, allocation, job, pending, queue, ready, running, world

RACK_LEVEL = {"job": "rack"}


def made(nodes: int, mode: str, others: str = "reclaim") -> tuple[Desired, Allocation]:
    """A cluster 97 % full of gangs of 1 to 8 nodes with limits, and twice as many jobs that wait."""
    chance = random.Random(7)
    names = [f"n{i:06}" for i in range(nodes)]
    spines: dict[str, dict[str, list[str]]] = {}
    for i, name in enumerate(names):
        spines.setdefault(f"s{i // 512:03}", {}).setdefault(f"r{i // 32:04}", []).append(name)
    teams = [queue(f"org{o}-team{t:02}", f"org{o}") for o in range(10) for t in range(20)]
    queues = [queue("root", None), *(queue(f"org{o}") for o in range(10)), *teams]
    jobs: list[Job] = []
    places: dict[str, dict[str, int]] = {}
    at = 0
    while at < nodes * 97 // 100:
        size = min(chance.choice((1, 1, 2, 2, 2, 4)), nodes - at)
        one = _like(chance, teams, f"run{len(jobs):05}", size)
        places[one.key] = {names[at + n]: 8 for n in range(size)}
        jobs.append(one)
        at += size
    for number in range(nodes):
        size = chance.choice((1, 2, 4, 8, 16, 32))
        one = _like(chance, teams, f"wait{number:05}", size)
        jobs.append(one)
    rules = Scheduling(backfill=mode, order="priorityThenAge", preempt_other_queues=others)
    desired = world(spines, jobs=jobs, queues=queues, rules=rules)
    records: list[JobRecord] = []
    for one in jobs:
        if one.key in places:
            began = Instant(START - chance.randrange(24) * HOUR)
            records.append(running(desired, one.key, places[one.key], started=began))
        else:
            records.append(pending(desired, one.key, Instant(START - chance.randrange(10**6) * 10**6)))
    return desired, allocation(desired, *records)


def _like(chance: random.Random, teams: list[Queue], name: str, size: int) -> Job:
    home = f"org{chance.randrange(10)}-team{chance.randrange(20):02}"
    hours = chance.choice((1, 4, 12, 24, 48))
    limit = Nanoseconds((hours + 24 * name.startswith("run")) * HOUR)
    asked = job(f"{home}/{name}", 8 * size, required=RACK_LEVEL if size <= 16 and chance.random() < 0.5 else None)
    return replace(asked, time_limit=limit)


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for mode, others in (("none", "never"), ("conservative", "never"), ("conservative", "reclaim")):
        desired, known = made(nodes, mode, others)
        seen = ready(desired, *(r for r in known.jobs.values() if r.placement))
        ground = ground_of(desired.inventory)
        gc.collect()
        gc.freeze()
        rows: dict[str, list[float]] = {}
        count = 0
        for _ in range(3):
            draft = Draft(desired, seen, ground, dict(known.jobs), START)
            began = time.process_time()
            sweep = Sweep(draft)
            line = line_of(draft, {})
            rows.setdefault("line", []).append(time.process_time() - began)
            began = time.process_time()
            waiting = sweep.run(line)
            rows.setdefault("pass", []).append(time.process_time() - began)
            began = time.process_time()
            explainer = explain.Explainer(draft, sweep.rights, sweep.bookings)
            for record, one, alike in waiting:
                explainer.why(record, one, alike)
            rows.setdefault("reasons", []).append(time.process_time() - began)
            count = len(sweep.bookings.reservations)
        began = time.process_time()
        first = decide(desired, seen, known, START)
        rows["decide"] = [time.process_time() - began]
        began = time.process_time()
        again = decide(desired, seen, first.allocation, Instant(START + 1))
        rows["decide, nothing changed"] = [time.process_time() - began]
        told = ", ".join(f"{name} {min(times) * 1000:.0f} ms" for name, times in rows.items())
        print(
            f"{nodes} nodes, {len(known.jobs)} jobs, {mode}, from other queues {others}, {count} reservations: {told}, changed {again.changed}"
        )


if __name__ == "__main__":
    main()
