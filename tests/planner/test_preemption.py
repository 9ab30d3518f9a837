"""Victims: who may be one, that the set is the mildest, and that nobody is one in vain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Job, OnPreempt
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.observed import JobObservation
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import DAY, HOUR, MINUTE, SECOND, Instant, JobKey, Nanoseconds
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.preemption import STEPS, VISITS, Victims, find_victims
from reconciler.planner.rights import Rights, may_preempt
from reconciler.planner.standing import Standing
from tests.planner.worlds import (
    CLASSES,
    START,
    Cluster,
    Spines,
    allocation,
    job,
    priority,
    queue,
    ready,
    running,
    with_jobs,
    world,
)

NOW = Instant(START + HOUR)
KEY = JobKey("nlp/new")
ONE_NODE: Spines = {"sg0": {"r1": ["a1"]}}


def draft(desired: Desired, records: Sequence[JobRecord], saved: dict[str, int] | None = None) -> Draft:
    """One hour after START; `saved`: minutes since each job's last checkpoint."""
    observed = ready(desired, *records)
    kept = {
        JobKey(key): JobObservation(job=JobKey(key), attempt=1, checkpoint=Instant(NOW - ago * MINUTE))
        for key, ago in (saved or {}).items()
    }
    by_key = {record.job: record for record in sorted(records, key=lambda record: record.job)}
    return Draft(desired, replace(observed, jobs=kept), ground_of(desired.inventory), by_key, NOW)


def search(made: Draft, asked: Job) -> Victims | None:
    new = JobRecord(job=asked.key, queue=asked.queue, digest=asked.digest, state=JobState.PENDING, since=NOW,
                    submitted=NOW, reason=made.records[next(iter(made.records))].reason)  # fmt: skip
    kind = asked.gpu_types[0]
    found = find_victims(made, new, asked, kind, Rights(made).claim(asked, kind))
    assert isinstance(found, Victims) or found.proved  # small worlds never run out of steps
    return found if isinstance(found, Victims) else None


def test_the_freshest_checkpoint_loses_least() -> None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2"]}}
    desired = world(spines, jobs=[job("nlp/a", 8, "low"), job("nlp/b", 8, "low")])
    records = [running(desired, "nlp/a", {"a1": 8}), running(desired, "nlp/b", {"a2": 8})]
    found = search(draft(desired, records, {"nlp/a": 50, "nlp/b": 2}), job(KEY, 8))
    assert found is not None
    assert (found.jobs, found.lost, found.proved) == (("nlp/b",), 8 * 120, True)


def test_a_lower_priority_goes_first_whatever_it_loses() -> None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2"]}}
    classes = (*CLASSES, priority("scavenger", 1))
    desired = world(spines, jobs=[job("nlp/a", 8, "low"), job("nlp/b", 8, "scavenger")], classes=classes)
    records = [running(desired, "nlp/a", {"a1": 8}), running(desired, "nlp/b", {"a2": 8})]
    made = draft(desired, records, {"nlp/a": 1})
    assert [victims.jobs for victims in [search(made, job(KEY, 8))] if victims] == [("nlp/b",)]


def test_a_ceiling_alone_can_make_victims_although_gpus_are_free() -> None:
    desired = world(jobs=[job("nlp/a", 8, "low"), job("nlp/b", 4, "low")], queues=[queue("nlp", None, ceiling=16)])
    records = [running(desired, "nlp/a", {"gpu-001": 8}), running(desired, "nlp/b", {"gpu-002": 4})]
    found = search(draft(desired, records, {"nlp/a": 1, "nlp/b": 30}), job(KEY, 8))
    assert found is not None
    assert (found.jobs, found.lost) == (("nlp/a",), 8 * 60)
    cluster_free = decide(
        with_jobs(desired, job(KEY, 8)), ready(desired, *records), allocation(desired, *records), NOW
    ).allocation
    assert cluster_free.jobs[KEY].state is JobState.PROMISED
    assert sum(r.cause is Cause.PREEMPTED for r in cluster_free.jobs.values()) == 1


RUNS_LOW = job("nlp/a", 8, "low")


@pytest.mark.parametrize(
    ("asked", "changes", "rules", "by"),
    [
        pytest.param(RUNS_LOW, {}, {}, "", id="nothing protects it"),
        pytest.param(replace(RUNS_LOW, on_preempt=OnPreempt.NEVER), {}, {}, "nonPreemptible", id="its file says never"),
        pytest.param(replace(RUNS_LOW, priority_class=CLASSES[0].name), {}, {}, "nonPreemptible", id="its class does"),
        pytest.param(RUNS_LOW, {}, {"min_runtime": 61 * MINUTE, "max_min_runtime": DAY}, "minRuntime", id="too young"),
        pytest.param(RUNS_LOW, {}, {"min_runtime": 61 * MINUTE}, "", id="the cluster caps every minRuntime"),
        pytest.param(RUNS_LOW, {"interruptions": (Instant(NOW - MINUTE),)}, {"cooldown": 2 * MINUTE}, "cooldown", id="cooling down"),
        pytest.param(RUNS_LOW, {"interruptions": tuple(Instant(NOW - h * HOUR) for h in (4, 3, 2, 1))}, {}, "maxPerDay", id="often enough"),
        pytest.param(RUNS_LOW, {"interruptions": tuple(Instant(NOW - h * HOUR) for h in (28, 27, 26, 25))}, {}, "", id="but not today"),
    ],
)  # fmt: skip
def test_protections(asked: Job, changes: dict[str, object], rules: dict[str, Nanoseconds], by: str) -> None:
    chosen = replace(Scheduling(cooldown=Nanoseconds(0)), **rules)  # type: ignore[arg-type]  # fields by name
    classes = [replace(one, value=min(one.value, 400)) for one in CLASSES] + [priority("top", 900)]
    desired = world(ONE_NODE, jobs=[asked], rules=chosen, classes=classes)
    record = replace(running(desired, "nlp/a", {"a1": 8}), **changes)  # type: ignore[arg-type]  # fields by name
    made = draft(desired, [record])
    able, shielded = Standing(made).below(asked.queue, 900, asked.gpu_types[0])
    assert ([s.by for s in shielded] or [""]) == [by]
    assert len(able) == (0 if by else 1)


def test_only_strictly_lower_priority_of_the_same_queue_and_only_when_the_class_may() -> None:
    rows = [job("nlp/a", 2, "low"), job("nlp/b", 2), job("vision/c", 2, "low")]
    desired = world(ONE_NODE, jobs=rows)
    spots = {"nlp/a": [0, 1], "nlp/b": [2, 3], "vision/c": [4, 5]}
    made = draft(desired, [running(desired, key, {"a1": gpus}) for key, gpus in spots.items()])
    able, shielded = Standing(made).below(rows[0].queue, 500, rows[0].gpu_types[0])
    assert [c.record.job for c in able] == ["nlp/a"]
    assert shielded == ()
    assert may_preempt(made, job(KEY))
    assert not may_preempt(made, job(KEY, priority="low"))
    never = draft(
        world(ONE_NODE, jobs=rows, rules=Scheduling(preempt_same_queue="never")),
        [running(desired, "nlp/a", {"a1": [0, 1]})],
    )
    assert not may_preempt(never, job(KEY))


def test_nobody_is_evicted_when_it_would_not_be_enough() -> None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2"]}}
    desired = world(spines, jobs=[job("nlp/a", 8, "low"), job("nlp/b", 1, "high")])
    records = [running(desired, "nlp/a", {"a1": 8}), running(desired, "nlp/b", {"a2": 1})]
    wanted = job(KEY, 16, dims={"tensor": 8, "data": 2}, required={"tensor": "nvlinkDomain"})
    after = decide(with_jobs(desired, wanted), ready(desired, *records), allocation(desired, *records), NOW).allocation
    assert after.jobs[JobKey("nlp/a")].state is JobState.RUNNING
    assert after.jobs[KEY].state is JobState.PENDING


def test_victims_stop_through_their_checkpoint_and_the_preemptor_is_promised_the_place() -> None:
    desired = world(ONE_NODE, jobs=[job("nlp/a", 8, "low", checkpoint=60)])
    cluster = Cluster(desired)
    cluster.settle()
    cluster.desired = with_jobs(desired, job(KEY, 8))
    cluster.step(600)
    victim, winner = cluster.allocation.jobs[JobKey("nlp/a")], cluster.allocation.jobs[KEY]
    assert (victim.state, victim.phase, victim.cause) == (JobState.STOPPING, Phase.CHECKPOINT, Cause.PREEMPTED)
    assert (victim.preemptor, victim.deadline) == (KEY, cluster.now + 90 * SECOND)
    assert victim.interruptions == (cluster.now,)
    assert victim.lost_work == victim.reason.number("lost")
    assert (winner.state, winner.victims) == (JobState.PROMISED, ("nlp/a",))
    assert winner.promise is not None
    assert (winner.promise.made, winner.promise.deadline) == (cluster.now, victim.deadline)
    assert winner.reason.code is ReasonCode.WAITING_FOR_VICTIMS
    cluster.settle()
    assert cluster.state(KEY) is JobState.RUNNING
    assert cluster.state("nlp/a") is JobState.PENDING


# --- the oracle: every subset, by counting alone ---


@st.composite
def full_racks(draw: st.DrawFn) -> tuple[Desired, list[JobRecord], dict[str, int], Job]:
    """Two racks of two nodes of four GPUs, filled with small low jobs; a new one wants nodes, or GPUs of one node."""
    spines: Spines = {"sg0": {"r1": ["a1", "a2"], "r2": ["b1", "b2"]}}
    free = {name: [0, 1, 2, 3] for name in ("a1", "a2", "b1", "b2")}
    jobs, spots = [], []
    for number in range(draw(st.integers(3, 8))):
        across = draw(st.booleans())
        rack = draw(st.sampled_from(("a", "b")))
        size = draw(st.integers(1, 4))
        names = [f"{rack}1", f"{rack}2"] if across else [f"{rack}{draw(st.integers(1, 2))}"]
        if any(len(free[name]) < size for name in names):
            continue
        spots.append({name: [free[name].pop(0) for _ in range(size)] for name in names})
        jobs.append(job(f"nlp/j{number}", size * len(names), draw(st.sampled_from(("low", "normal")))))
    wanted = draw(
        st.sampled_from(
            (
                job(KEY, 8, "top", dims={"tensor": 4, "data": 2}, required={"tensor": "node", "job": "rack"}),
                job(KEY, 4, "top", required={"job": "node"}),
                job(KEY, 3, "top", required={"job": "node"}),
                job(KEY, 6, "top", required={"job": "rack"}),
                job(KEY, 12, "top"),
            )
        )
    )
    desired = world(spines, 4, jobs=jobs, classes=(*CLASSES, priority("top", 2000)))
    records = [running(desired, one.key, spot) for one, spot in zip(jobs, spots, strict=True)]
    saved = {str(one.key): draw(st.integers(0, 30)) for one in jobs}
    return desired, records, saved, wanted


def fits_when_gone(records: Sequence[JobRecord], gone: frozenset[str], wanted: Job) -> bool:
    """By counting free GPUs of nodes, racks and the cluster."""
    free = dict.fromkeys(("a1", "a2", "b1", "b2"), 4)
    for record in records:
        if record.job not in gone and record.placement:
            for node, mask in record.placement.masks.items():
                free[str(node)] -= mask.bit_count()
    racks = [[free["a1"], free["a2"]], [free["b1"], free["b2"]]]
    required = {place.group: place.level for place in wanted.required}
    if "tensor" in required:
        return any(sum(n == 4 for n in rack) >= 2 for rack in racks)
    if required.get("job") == "node":
        return any(n >= wanted.gpus for rack in racks for n in rack)
    if required.get("job") == "rack":
        return any(sum(rack) >= wanted.gpus for rack in racks)
    return sum(map(sum, racks)) >= wanted.gpus


@settings(
    derandomize=True, deadline=None, database=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)
@given(full_racks())
def test_no_milder_set_exists(made: tuple[Desired, list[JobRecord], dict[str, int], Job]) -> None:
    """Rule book §6: highest victim priority, then lost GPU-seconds, then number of jobs, over every possible set."""
    desired, records, saved, wanted = made
    if not records or fits_when_gone(records, frozenset(), wanted):
        return
    values = {record.job: {"low": 100, "normal": 500}[desired.jobs[record.job].priority_class] for record in records}
    lost = {record.job: desired.jobs[record.job].gpus * 60 * saved[record.job] for record in records}
    sets = [frozenset(chosen) for n in range(1, len(records) + 1) for chosen in combinations(sorted(values), n)]
    costs = [
        (max(values[k] for k in chosen), sum(lost[k] for k in chosen), len(chosen))
        for chosen in sets
        if fits_when_gone(records, frozenset(chosen), wanted)
    ]
    found = search(draft(desired, records, saved), wanted)
    assert (found is None) == (not costs)
    if found is not None:
        chosen = found.jobs
        assert (max(values[k] for k in chosen), sum(lost[k] for k in chosen), len(chosen)) == min(costs)
        assert found.proved
        assert found.bound == found.lost


# --- two thousand nodes, seven hundred candidates (a peer needs 40 s for that) ---


def two_thousand_nodes() -> tuple[Draft, Job]:
    """Every node is full of gangs of two to four nodes, with checkpoints of all ages; one gang wants 64 nodes of a spine
    group of 250."""
    names = [f"n{n:04d}" for n in range(2000)]
    spines = {
        f"s{s}": {f"r{s}{r}": names[s * 250 + r * 25 : s * 250 + r * 25 + 25] for r in range(10)} for s in range(8)
    }
    jobs, records, saved, at = [], [], {}, 0
    wanted = job(KEY, 512, "high", dims={"tensor": 8, "data": 64}, required={"tensor": "node", "job": "spineGroup"})
    sizes = [2 + number % 3 for number in range(700)]
    for number, size in enumerate(sizes):
        if at + size > len(names):
            break
        jobs.append(job(f"nlp/v{number:03d}", 8 * size, "low" if number % 2 else "normal"))
        saved[f"nlp/v{number:03d}"] = number * 37 % 60
    desired = world(spines, jobs=[*jobs, wanted])
    for one in jobs:
        spot = dict.fromkeys(names[at : at + one.gpus // 8], 8)
        records.append(running(desired, one.key, spot))
        at += one.gpus // 8
    return draft(desired, records, saved), wanted


def test_victims_among_hundreds_are_found_in_bounded_steps_and_say_what_is_not_proved() -> None:
    made, wanted = two_thousand_nodes()
    assert len(made.records) >= 650
    rights = Rights(made)
    claim = rights.claim(wanted, wanted.gpu_types[0])
    new = replace(
        next(iter(made.records.values())), job=KEY, state=JobState.PENDING, placement=None, digest=wanted.digest
    )
    found = find_victims(made, new, wanted, wanted.gpu_types[0], claim)
    assert isinstance(found, Victims)
    gpus = sum(made.records[key].gpus_held for key in found.jobs)
    assert 512 <= gpus < 512 + 32  # no more than the last gang's size is freed in vain
    assert len(found.spot.rows) == 64
    assert found.visits <= VISITS + 10 * len(found.jobs)  # what letting off the unneeded may cost on top
    # Its own steps, and what finding out whether all of them would be enough and letting off may cost on top.
    assert rights.standing.effort.spent <= STEPS + 20 * len(made.records) + 600 * len(found.jobs)
    assert found.proved or found.bound < found.lost
    assert len({made.ground.nodes[index].path[0] for index, _ in found.spot.rows}) == 1
