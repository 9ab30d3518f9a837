"""Gangs that step aside, shrink, grow, and change places: minimal, by right, never in vain, and whole again after."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import Allocation, JobRecord, Placement
from reconciler.model.desired import Desired
from reconciler.model.job import Elastic, Job, OnPreempt
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import AttemptState, Observed
from reconciler.model.queue import Scheduling
from reconciler.model.units import MINUTE, SECOND, Gpus, GpuType, Instant, JobKey, LevelName, Nanoseconds
from reconciler.planner import elastic
from reconciler.planner.decide import decide
from reconciler.planner.verify import violations
from tests.planner.worlds import (
    H100,
    LEASE,
    START,
    Cluster,
    Process,
    Spines,
    allocation,
    job,
    placement,
    queue,
    ready,
    running,
    with_jobs,
    world,
)

RULES = Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0), backfill="none", defragment_action="never")
TWO: Spines = {"s": {"r": ["n1", "n2"]}}
NOW = Instant(START + 60 * MINUTE)
NEW = JobKey("nlp/new")


def whole_node(priority: str = "normal") -> Job:
    return job(NEW, 8, priority, dims={"tensor": 8}, required={"tensor": "node"})


def decided(desired: Desired, *records: JobRecord, at: Instant = NOW) -> Allocation:
    """One judged decision on an allocation of these records; everybody else is new."""
    before = allocation(desired, *records, at=START)
    observed: Observed = ready(desired, *records)
    after = decide(desired, observed, before, at).allocation
    assert violations(desired, observed, before, after) == ()
    return after


def told(after: Allocation, cause: Cause) -> dict[str, tuple[str, ...]]:
    """Who was told to stop for a cause, and the nodes on which each goes on."""
    return {
        str(key): record.promise.placement.nodes if record.promise else ()
        for key, record in after.jobs.items()
        if record.state is JobState.STOPPING and record.cause is cause
    }


def on_nodes(desired: Desired, records: list[JobRecord]) -> Cluster:
    """A simulated cluster in which these jobs run where their records say."""
    cluster = Cluster(desired)
    cluster.allocation = allocation(desired, *records, at=START, generation=1)
    for record in records:
        for node, mask in record.placement.masks.items() if record.placement else ():
            process = Process(gpus=mask, state=AttemptState.RUNNING, lease=LEASE)
            cluster.nodes[node].attempts[record.job, record.attempt] = process
    return cluster


# --- sizes ---


def stretchy(
    key: str, now: int, least: int, most: int, *, dims: Mapping[str, int] | None = None, priority: str = "low"
) -> Job:
    """Groups of 4 GPUs inside a node, `now` of them; elastic in data."""
    made = job(key, 4 * now, priority, dims=dims or {"tensor": 4, "data": now}, required={"tensor": "node"})
    return replace(made, elastic=Elastic(dimension="data", least=least, most=most))


def test_sizes_run_from_the_largest_to_the_least_in_whole_groups() -> None:
    assert [one.gpus for one in elastic.sizes_of(stretchy("nlp/e", 3, 2, 5))] == [20, 16, 12, 8]
    assert elastic.smallest(stretchy("nlp/e", 3, 2, 5)).gpus == 8
    assert elastic.sizes_of(job("nlp/f", 8)) == (job("nlp/f", 8),)


def test_an_elastic_role_varies_alone() -> None:
    made = job("nlp/r", 1 + 3 * 2, roles=[("leader", 1, 1), ("worker", 3, 2)], dims={"data": 7})
    made = replace(made, elastic=Elastic(dimension="worker", least=1, most=4))
    assert [one.gpus for one in elastic.sizes_of(made)] == [9, 7, 5, 3]
    left = elastic.without_groups(made, {1})
    assert left is not None
    assert left[1] == (0, 1, 2, 5, 6)


def test_ranks_that_stay_keep_their_order_whatever_dimension_varies() -> None:
    made = replace(stretchy("nlp/e", 3, 1, 3, dims={"data": 3, "tensor": 4}), gpus=Gpus(12))
    left = elastic.highest_gone(made, 1)
    assert left is not None
    smaller, kept = left
    assert smaller.gpus == 8
    assert kept == (0, 1, 3, 4, 6, 7, 9, 10)


def test_an_elastic_gang_starts_at_the_largest_size_that_is_free() -> None:
    asked = stretchy("nlp/e", 2, 1, 4, priority="normal")
    desired = world(TWO, jobs=[asked, job("nlp/old", 6)], rules=RULES)
    old = running(desired, "nlp/old", {"n1": 6})
    assert decided(desired, old).jobs[asked.key].gpus_held == 8


# --- moves ---


def test_a_small_job_steps_aside_and_everyone_runs_again() -> None:
    desired = world(TWO, jobs=[job("nlp/a", 4, dims={"tensor": 4}), job("nlp/b", 4)], rules=RULES)
    spread = allocation(desired, running(desired, "nlp/a", {"n1": 4}), running(desired, "nlp/b", {"n2": 4}))
    cluster = on_nodes(desired, list(spread.jobs.values()))
    cluster.desired = with_jobs(desired, whole_node())
    cluster.step(60)
    assert len(told(cluster.allocation, Cause.MOVED)) == 1, cluster.show()
    cluster.settle()
    assert {cluster.state(key) for key in cluster.desired.jobs} == {JobState.RUNNING}, cluster.show()
    assert set(cluster.places(NEW).values()) == {8}


MOVERS = {"a": {"n1": 4}, "b": {"n2": 4}}


def half_used(**changes: object) -> Desired:
    """Two nodes, each half used by a job of four GPUs; and one that wants a whole node."""
    jobs = [replace(job(f"nlp/{name}", 4, "low"), **changes) for name in MOVERS]  # type: ignore[arg-type]  # fields by name
    return world(TWO, jobs=[*jobs, whole_node("low")], rules=replace(RULES, preempt_same_queue="never"))


def movers(desired: Desired, started: Instant = START) -> list[JobRecord]:
    return [running(desired, f"nlp/{name}", place, started=started) for name, place in MOVERS.items()]


def test_the_one_that_loses_least_moves() -> None:
    desired = half_used()
    a, b = movers(desired)
    after = decided(desired, a, replace(b, started=Instant(START + 30 * MINUTE)))
    assert told(after, Cause.MOVED) == {"nlp/b": ("n1",)}
    assert after.jobs[NEW].state is JobState.PROMISED
    promise = after.jobs[NEW].promise
    assert promise is not None
    assert promise.waiting_for == (JobKey("nlp/b"),)
    assert after.jobs[JobKey("nlp/b")].interruptions == (NOW,)


@pytest.mark.parametrize("reason", ["nonPreemptible", "minRuntime", "cooldown", "maxPerDay", "never", "higher", "none"])
def test_nobody_moves_who_is_protected_or_whom_the_rules_spare(reason: str) -> None:
    desired = half_used(on_preempt=OnPreempt.NEVER) if reason == "nonPreemptible" else half_used()
    rules = desired.scheduling
    if reason == "minRuntime":
        rules = replace(rules, min_runtime=Nanoseconds(2 * 60 * MINUTE), max_min_runtime=Nanoseconds(3 * 60 * MINUTE))
    if reason == "cooldown":
        rules = replace(rules, cooldown=Nanoseconds(60 * MINUTE))
    if reason == "maxPerDay":
        rules = replace(rules, max_per_day=1)
    if reason == "never":
        rules = replace(rules, move_to_start="never")
    if reason == "higher":
        jobs = (
            replace(desired.jobs[JobKey(f"nlp/{n}")], priority_class=job("q/x", 1, "high").priority_class)
            for n in MOVERS
        )
        desired = with_jobs(desired, *jobs)
    desired = replace(desired, scheduling=rules)
    records = movers(desired)
    if reason in ("cooldown", "maxPerDay"):
        records = [replace(r, interruptions=(Instant(NOW - 10 * MINUTE),)) for r in records]
    after = decided(desired, *records)
    assert bool(told(after, Cause.MOVED)) is (reason == "none")


def test_a_job_within_its_guarantee_moves_others_of_any_queue_and_priority() -> None:
    for guaranteed, moved in ((8, 1), (4, 0)):
        mine = replace(queue("nlp"), guaranteed={GpuType(H100): Gpus(guaranteed)})
        other = replace(queue("vision"), guaranteed={GpuType(H100): Gpus(16 - guaranteed)})
        jobs = [job(f"vision/{name}", 4, "normal") for name in MOVERS]
        rules = replace(RULES, preempt_other_queues="never")
        desired = world(TWO, jobs=[*jobs, whole_node("low")], queues=[mine, queue("root", None), other], rules=rules)
        after = decided(desired, *(running(desired, f"vision/{name}", place) for name, place in MOVERS.items()))
        assert len(told(after, Cause.MOVED)) == moved


def test_no_chains_and_no_more_than_the_configured_moves() -> None:
    """Six GPUs used on each of three nodes by three jobs of two: one node is free after three moves, not after two."""
    spines: Spines = {"s": {"r": ["n1", "n2", "n3"]}}
    names = [(node, k) for node in (1, 2, 3) for k in range(3)]
    jobs = [job(f"nlp/j{node}{k}", 2, "low") for node, k in names]
    for most in (2, 3):
        rules = replace(RULES, preempt_same_queue="never", max_moves_per_start=most)
        desired = world(spines, jobs=[*jobs, whole_node("low")], rules=rules)
        begun = [running(desired, f"nlp/j{node}{k}", {f"n{node}": (2 * k, 2 * k + 1)}) for node, k in names]
        after = decided(desired, *begun)
        assert told(after, Cause.MOVED) == {}  # four GPUs are free elsewhere: three jobs of two do not fit there
        gone = ("nlp/j30", "nlp/j31")
        fewer = decided(with_jobs(desired, without=gone), *(record for record in begun if record.job not in gone))
        assert len(told(fewer, Cause.MOVED)) == 1


# --- shrinks ---


def test_an_elastic_gang_gives_up_its_highest_groups_and_no_more_than_needed() -> None:
    big = stretchy("nlp/e", 4, 1, 4)
    desired = world(TWO, jobs=[big, job(NEW, 4, dims={"tensor": 4}, required={"tensor": "node"})], rules=RULES)
    before = running(desired, "nlp/e", {"n1": 8, "n2": 8})
    after = decided(desired, before)
    shrunk = after.jobs[big.key]
    assert (shrunk.state, shrunk.cause) == (JobState.STOPPING, Cause.RESIZED)
    assert shrunk.promise is not None
    assert before.placement is not None
    assert shrunk.promise.placement.ranks == before.placement.ranks[:12]
    assert after.jobs[NEW].state is JobState.PROMISED
    assert told(after, Cause.PREEMPTED) == {}


def test_a_gang_at_its_least_size_is_evicted_whole_if_at_all() -> None:
    small = stretchy("nlp/e", 4, 4, 6)
    desired = world(TWO, jobs=[small, whole_node()], rules=RULES)
    after = decided(desired, running(desired, "nlp/e", {"n1": 8, "n2": 8}))
    assert told(after, Cause.RESIZED) == {}
    assert list(told(after, Cause.PREEMPTED)) == ["nlp/e"]


def test_nobody_shrinks_for_an_equal_priority_nor_while_protected() -> None:
    for priority, rules in (
        ("low", RULES),
        ("normal", replace(RULES, min_runtime=Nanoseconds(90 * MINUTE), max_min_runtime=Nanoseconds(90 * MINUTE))),
    ):
        desired = world(TWO, jobs=[stretchy("nlp/e", 4, 1, 4), whole_node(priority)], rules=rules)
        assert told(decided(desired, running(desired, "nlp/e", {"n1": 8, "n2": 8})), Cause.RESIZED) == {}


def test_the_shrunk_gang_goes_on_with_a_smaller_world_beside_the_new_one() -> None:
    cluster = Cluster(world(TWO, jobs=[stretchy("nlp/e", 4, 1, 4)], rules=RULES))
    cluster.settle()
    assert cluster.places("nlp/e") == {"n1": 8, "n2": 8}
    cluster.desired = with_jobs(cluster.desired, whole_node())
    cluster.settle()
    assert (cluster.state("nlp/e"), cluster.places("nlp/e")) == (JobState.RUNNING, {"n1": 8})
    assert cluster.places(NEW) == {"n2": 8}


# --- growth ---


@pytest.mark.parametrize(("gangs", "cut"), [(6, False), (10, True)])
def test_when_not_all_sets_can_be_looked_at_all_shrink_but_who_can_be_spared_and_that_is_published(
    gangs: int, cut: bool
) -> None:
    """All but one of them are needed: of 2^6 sets that is found exactly, of 2^10 not."""
    nodes = [f"n{n}" for n in range(gangs)]
    jobs = [stretchy(f"nlp/e{n}", 2, 1, 2) for n in range(gangs)]
    desired = world({"s": {"r": nodes}}, jobs=[*jobs, job(NEW, 4 * (gangs - 1))], rules=RULES)
    begun = [Instant(START + n * MINUTE) for n in range(gangs)]
    records = [
        running(desired, one.key, {node: 8}, started=at) for one, node, at in zip(jobs, nodes, begun, strict=True)
    ]
    after = decided(desired, *records)
    assert sorted(told(after, Cause.RESIZED)) == [f"nlp/e{n}" for n in range(1, gangs)]  # e0 would lose most
    assert told(after, Cause.PREEMPTED) == {}
    assert after.jobs[NEW].reason.number("shrinksTried") == (500 if cut else None)


THREE: Spines = {"s": {"r": ["n1", "n2", "n3"]}}


def eviction_and_shrink(least: int = 1, **rules: object) -> tuple[Desired, list[JobRecord]]:
    """nlp/wide has four groups of four GPUs on n1 and n2, nlp/small has n3; nlp/new wants 20 GPUs anywhere."""
    wide = replace(
        job("nlp/wide", 16, "low", dims={"tensor": 4, "data": 4}, required={"tensor": "node"}),
        elastic=Elastic(dimension="data", least=least, most=4),
    )
    made = replace(RULES, move_to_start="never", **rules)  # type: ignore[arg-type]  # fields by name
    desired = world(THREE, jobs=[wide, job("nlp/small", 8, "low"), job(NEW, 20)], rules=made)
    return desired, [running(desired, "nlp/wide", {"n1": 8, "n2": 8}), running(desired, "nlp/small", {"n3": 8})]


@pytest.mark.parametrize(("least", "left"), [(1, 4), (2, 0)])
def test_who_would_be_evicted_with_others_only_shrinks_when_that_is_enough(least: int, left: int) -> None:
    desired, records = eviction_and_shrink(least)
    after = decided(desired, *records)
    assert after.jobs[NEW].state is JobState.PROMISED
    wide = after.jobs[JobKey("nlp/wide")]
    if left:
        assert list(told(after, Cause.PREEMPTED)) == ["nlp/small"]
        assert wide.cause is Cause.RESIZED
        assert wide.promise is not None
        assert len(wide.promise.placement.ranks) == left
        assert after.jobs[NEW].victims == (JobKey("nlp/small"),)
        promise = after.jobs[NEW].promise
        assert promise is not None
        assert promise.waiting_for == ("nlp/small", "nlp/wide")
    else:
        assert sorted(told(after, Cause.PREEMPTED)) == ["nlp/small", "nlp/wide"]


def test_after_an_eviction_with_a_shrink_both_run() -> None:
    desired, records = eviction_and_shrink()
    cluster = on_nodes(desired, records)
    cluster.settle()
    assert {key: cluster.state(key) for key in ("nlp/new", "nlp/wide", "nlp/small")} == {
        "nlp/new": JobState.RUNNING,
        "nlp/wide": JobState.RUNNING,
        "nlp/small": JobState.PENDING,
    }
    assert sum(cluster.places("nlp/wide").values()) == 4


def test_it_grows_back_when_the_gpus_are_free_and_nobody_waits_for_them() -> None:
    cluster = Cluster(world(TWO, jobs=[stretchy("nlp/e", 4, 1, 4)], rules=RULES))
    cluster.settle()
    cluster.desired = with_jobs(cluster.desired, whole_node())
    cluster.settle()
    before = cluster.allocation.jobs[JobKey("nlp/e")].placement
    cluster.end(NEW)
    cluster.settle()
    after = cluster.allocation.jobs[JobKey("nlp/e")].placement
    assert cluster.places("nlp/e") == {"n1": 8, "n2": 8}, cluster.show()
    assert before is not None
    assert after is not None
    assert after.ranks[:8] == before.ranks


@pytest.mark.parametrize(
    ("somebody_waits", "young", "grows"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_it_does_not_grow_while_a_job_waits_or_soon_after_a_resize(
    somebody_waits: bool, young: bool, grows: bool
) -> None:
    rules = replace(RULES, cooldown=Nanoseconds(30 * MINUTE))
    more = [job("nlp/z", 16, "low")] if somebody_waits else []
    desired = world(TWO, jobs=[stretchy("nlp/e", 2, 1, 4), *more], rules=rules)
    record = running(desired, "nlp/e", {"n1": 8})
    after = decided(desired, replace(record, interruptions=(Instant(NOW - 10 * MINUTE),) if young else ()))
    assert bool(told(after, Cause.RESIZED)) is grows


# --- improvement ---


def test_gangs_that_start_together_are_exchanged_when_they_cross_fewer_levels_together() -> None:
    """One by one: two nodes into the rack of three, two into the rack of four, and three nodes over both racks."""
    spines: Spines = {"s": {"r1": ["a1", "a2", "a3"], "r2": ["b1", "b2", "b3", "b4"]}}
    jobs = [
        job(f"nlp/{name}", 8 * nodes, dims={"tensor": 8, "data": nodes}, preferred={"job": "rack"})
        for name, nodes in (("a", 2), ("b", 2), ("c", 3))
    ]
    after = decided(world(spines, jobs=jobs, rules=RULES))
    places = [record.placement for record in after.jobs.values()]
    assert [place.level if place else "" for place in places] == [LevelName("rack")] * 3


# --- whole domains ---


def scattered(action: str, **changes: object) -> tuple[Desired, list[JobRecord]]:
    """Three nodes of eight GPUs, a small job on each."""
    spines: Spines = {"s": {"r": ["n1", "n2", "n3"]}}
    rules = replace(RULES, defragment_action=action, **changes)  # type: ignore[arg-type]  # fields by name
    desired = world(spines, jobs=[job(f"nlp/j{n}", n, "low") for n in (1, 2, 3)], rules=rules)
    return desired, [running(desired, f"nlp/j{n}", {f"n{n}": n}) for n in (1, 2, 3)]


def test_scattered_work_is_gathered_where_it_loses_least() -> None:
    desired, records = scattered("move")
    before = allocation(desired, *records, at=START)
    decision = decide(desired, ready(desired, *records), before, NOW)
    assert violations(desired, ready(desired, *records), before, decision.allocation) == ()
    (plan,) = decision.tidying
    assert (plan.nodes, plan.gpus) == (("n1",), 8)
    assert [(move.job, move.source, move.target, move.lost) for move in plan.moves] == [("nlp/j1", "n1", ("n3",), 3600)]
    assert plan.phi_after_ppm < plan.phi_before_ppm == 1_000_000
    assert told(decision.allocation, Cause.MOVED) == {"nlp/j1": ("n3",)}
    assert decision.allocation.moved == (NOW,)


def test_a_proposal_does_nothing() -> None:
    desired, records = scattered("propose")
    before = allocation(desired, *records, at=START)
    decision = decide(desired, ready(desired, *records), before, NOW)
    assert [plan.nodes for plan in decision.tidying] == [("n1",)]
    assert not decision.changed


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"defragment_threshold_ppm": 1_000_000}, ()),
        ({"defragment_moves_per_hour": 1}, (Instant(NOW - 10 * MINUTE),)),
        (
            {
                "cooldown": Nanoseconds(0),
                "min_runtime": Nanoseconds(61 * MINUTE),
                "max_min_runtime": Nanoseconds(61 * MINUTE),
            },
            (),
        ),
    ],
    ids=["under the threshold", "too many within the hour", "protected"],
)
def test_no_plan_when_the_rules_do_not_allow_it(changes: dict[str, object], moved: tuple[Instant, ...]) -> None:
    desired, records = scattered("move", **changes)
    before = replace(allocation(desired, *records, at=START), moved=moved)
    assert decide(desired, ready(desired, *records), before, NOW).tidying == ()


def test_gathering_ends_with_whole_nodes_free() -> None:
    desired, records = scattered("move", defragment_moves_per_hour=10)
    cluster = on_nodes(desired, records)
    cluster.settle()
    assert sorted(gpus for key in desired.jobs for gpus in cluster.places(key).values()) == [1, 2, 3]
    assert len({node for key in desired.jobs for node in cluster.places(key)}) == 1, cluster.show()


# --- oracles ---


def tiny(seed: int) -> tuple[Desired, list[JobRecord]]:
    """Three nodes of four GPUs, one to five small gangs on them with different losses, and one that wants a node."""
    chance = random.Random(seed)
    spines: Spines = {"s": {"r": ["n1", "n2", "n3"]}}
    free = dict.fromkeys(spines["s"]["r"], 4)
    jobs: list[Job] = []
    places: dict[str, tuple[str, tuple[int, ...], Instant]] = {}
    for number in range(chance.randint(2, 6)):
        size, node = chance.randint(1, 3), chance.choice(list(free))
        if free[node] < size:
            continue
        first = 4 - free[node]
        free[node] -= size
        made = job(
            f"nlp/j{number}", size, chance.choice(["low", "normal"]), dims={"tensor": size}, required={"tensor": "node"}
        )
        jobs.append(made)
        began = Instant(START + chance.randint(0, 50) * MINUTE)
        places[made.key] = (node, tuple(range(first, first + size)), began)
    new = job(NEW, 4, "normal", dims={"tensor": 4}, required={"tensor": "node"})
    rules = replace(RULES, preempt_same_queue="never")
    desired = world(spines, 4, jobs=[*jobs, new], rules=rules)
    return desired, [running(desired, key, {n: g}, started=at) for key, (n, g, at) in places.items()]


def cheapest_moves(desired: Desired, records: list[JobRecord]) -> tuple[int, int, int] | None:
    """By trying everything: (highest priority, GPU-seconds lost, jobs) of the best set of one or two moves."""
    free: dict[str, int] = {"n1": 4, "n2": 4, "n3": 4}
    for record in records:
        free[record.placement.nodes[0]] -= record.gpus_held  # type: ignore[union-attr]  # it runs, so it has a place
    if 4 in free.values():
        return (-1, 0, 0)
    costs = []
    for count in (1, 2):
        for chosen in combinations(records, count):
            if any(_fits(dict(free), order, chosen) for order in _targets(chosen)):
                highest = max(desired.classes[desired.jobs[r.job].priority_class].value for r in chosen)
                lost = sum(r.gpus_held * ((NOW - (r.started or 0)) // 10**9) for r in chosen)
                costs.append((highest, lost, count))
    return min(costs, default=None)


def _targets(chosen: tuple[JobRecord, ...]) -> Iterator[tuple[str, ...]]:
    names = ["n1", "n2", "n3"]
    yield from ((a,) for a in names) if len(chosen) == 1 else ((a, b) for a in names for b in names)


def _fits(free: dict[str, int], targets: tuple[str, ...], chosen: tuple[JobRecord, ...]) -> bool:
    """Everyone goes to a node with room now; then some node is all free."""
    for record, target in zip(chosen, targets, strict=True):
        free[target] -= record.gpus_held
    if min(free.values()) < 0:
        return False
    for record in chosen:
        free[record.placement.nodes[0]] += record.gpus_held  # type: ignore[union-attr]  # it runs, so it has a place
    return 4 in free.values()


@pytest.mark.parametrize("seed", range(60))
def test_moves_cost_what_trying_everything_finds(seed: int) -> None:
    desired, records = tiny(seed)
    best = cheapest_moves(desired, records)
    after = decided(desired, *records)
    moved = [r for r in records if after.jobs[r.job].cause is Cause.MOVED]
    if best is None:
        assert after.jobs[NEW].state is JobState.PENDING
    elif best[0] < 0:
        assert after.jobs[NEW].state is JobState.STARTING
    else:
        highest = max(desired.classes[desired.jobs[r.job].priority_class].value for r in moved)
        lost = sum(r.gpus_held * ((NOW - (r.started or 0)) // 10**9) for r in moved)
        assert (highest, lost, len(moved)) == best


@pytest.mark.parametrize("seed", range(40))
def test_shrinks_cost_what_trying_everything_finds(seed: int) -> None:
    chance = random.Random(1000 + seed)
    gangs = chance.randint(1, 3)
    spines: Spines = {"s": {"r": [f"n{number}" for number in range(4)]}}
    jobs = [
        stretchy(f"nlp/e{k}", size, chance.randint(1, size), size)
        for k, size in enumerate(chance.choices((1, 2, 3), k=gangs))
    ]
    seats = [(f"n{n}", half) for n in range(4) for half in (0, 1)]
    chance.shuffle(seats)
    desired = world(spines, jobs=[*jobs, *[job("nlp/z", 1)]], rules=RULES)
    records, used = [], 0
    for one in jobs:
        groups = one.gpus // 4
        mine, used = seats[used : used + groups], used + groups
        record = running(desired, one.key, {}, started=Instant(START + chance.randint(0, 50) * MINUTE))
        places = [(node, 4 * half + gpu) for node, half in mine for gpu in range(4)]
        records.append(replace(record, placement=_placed(desired, places)))
    fixed = [running(desired, "nlp/z", {})]
    block = [(node, 4 * half + gpu) for node, half in seats[used:] for gpu in range(4)]
    taken = block[: chance.randint(len(block) // 2, len(block))] if block else []
    filler = replace(job("nlp/z", max(1, len(taken)), "high"), on_preempt=OnPreempt.NEVER)
    desired = with_jobs(desired, filler, job(NEW, 8, "normal", dims={"tensor": 8}, required={"tensor": "node"}))
    desired = desired if taken else with_jobs(desired, without=["nlp/z"])
    fixed = [replace(running(desired, "nlp/z", {}), placement=_placed(desired, taken))] if taken else []
    rules = replace(RULES, preempt_same_queue="lowerPriority", move_to_start="never")
    desired = replace(desired, scheduling=rules)
    free = {f"n{n}": 8 for n in range(4)}
    for record in (*records, *fixed):
        for rank in record.placement.ranks:  # type: ignore[union-attr]  # it runs, so it has a place
            free[rank.node] -= 1
    after = decided(desired, *records, *fixed)
    shrunk = [r for r in records if after.jobs[r.job].cause is Cause.RESIZED]
    best = _cheapest_shrinks(desired, records, free)
    if best is not None and 8 not in free.values():
        assert (sum(r.gpus_held * ((NOW - (r.started or 0)) // 10**9) for r in shrunk), len(shrunk)) == best
    else:  # where shrinks alone do not help, one may only spare a gang that would have left with others
        assert not shrunk or told(after, Cause.PREEMPTED)


def _placed(desired: Desired, places: list[tuple[str, int]]) -> Placement:
    made = placement(desired, {})
    ranks = []
    for rank, (node, gpu) in enumerate(places):
        one = placement(desired, {node: [gpu]}).ranks[0]
        ranks.append(replace(one, rank=rank, local_rank=sum(n == node for n, _ in places[:rank])))
    return replace(made, ranks=tuple(ranks))


def _cheapest_shrinks(desired: Desired, records: list[JobRecord], free: dict[str, int]) -> tuple[int, int] | None:
    """(GPU-seconds lost, gangs) of the best set, each giving up its highest groups."""
    found = []
    for count in range(1, len(records) + 1):
        for chosen in combinations(records, count):
            open_now = dict(free)
            for record in chosen:
                made = desired.jobs[record.job].elastic
                least = 4 * made.least if made else record.gpus_held
                for rank in record.placement.ranks[least:]:  # type: ignore[union-attr]  # it runs, so it has a place
                    open_now[rank.node] += 1
            gives = all(
                record.gpus_held
                > 4 * (desired.jobs[record.job].elastic or Elastic(dimension="", least=9, most=9)).least
                for record in chosen
            )
            if gives and 8 in open_now.values():
                found.append((sum(r.gpus_held * ((NOW - (r.started or 0)) // 10**9) for r in chosen), count))
    return min(found, default=None)


def test_orders_of_moves_do_not_depend_on_the_order_of_jobs() -> None:
    desired = half_used()
    records = movers(desired)
    answers = {str(told(decided(desired, *order), Cause.MOVED)) for order in permutations(records)}
    assert len(answers) == 1


# --- whatever happens ---


@st.composite
def happenings(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens in each round, and to whom."""
    kinds = ("submit", "submit", "end", "die", "back", "wait", "cancel")
    return draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 7)), min_size=4, max_size=14))


@settings(max_examples=60, deadline=None)
@given(happenings(), st.sampled_from(("move", "propose")))
def test_moves_resizes_and_repairs_keep_every_promise(story: list[tuple[str, int]], action: str) -> None:
    """Every round is judged, no GPU is ever used twice, and in the end everything comes to rest."""
    rules = replace(RULES, defragment_action=action, defragment_moves_per_hour=2, cooldown=Nanoseconds(5 * SECOND))
    spines: Spines = {"s1": {"r1": ["a1", "a2"], "r2": ["b1"]}, "s2": {"r3": ["c1", "c2"]}}
    cluster = Cluster(world(spines, rules=rules))
    names = [node.name for node in cluster.desired.inventory.nodes]
    for number, (kind, who) in enumerate(story):
        live = list(cluster.desired.jobs)
        if kind == "submit":
            cluster.desired = with_jobs(cluster.desired, _drawn(number, who))
        elif kind in ("end", "cancel") and live:
            key = live[who % len(live)]
            if kind == "end":
                cluster.end(key)
            else:
                cluster.desired = with_jobs(cluster.desired, without=[key])
        elif kind in ("die", "back"):
            (cluster.die if kind == "die" else cluster.back)(names[who % len(names)])
        for _ in range(1 + who % 3):
            cluster.step(7)
    for name in names:
        cluster.back(name)
    cluster.step(60)
    cluster.settle(rounds=80)
    stuck = (JobState.STOPPING, JobState.PROMISED, JobState.LOST)
    assert not [key for key, record in cluster.allocation.jobs.items() if record.state in stuck], cluster.show()


def _drawn(number: int, who: int) -> Job:
    """Small jobs, elastic ones, whole nodes; some with a checkpoint."""
    key, priority = f"nlp/{'abcd'[who % 4]}{number}", ("low", "normal")[who % 2]
    if who < 3:
        return replace(stretchy(key, 2, 1, 4, priority=priority))
    if who < 6:
        return job(
            key,
            who - 1,
            priority,
            dims={"tensor": who - 1},
            required={"tensor": "node"},
            checkpoint=20 if who == 4 else None,
        )
    return job(
        key, 8 * (who - 5), priority, dims={"tensor": 8, "data": who - 5}, required={"tensor": "node"}, checkpoint=15
    )
