"""Who may take from whom across queues: worked examples, every lawful set by brute force, and CP-SAT as a second oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.job import Job, OnPreempt
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import JobObservation
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import HOUR, MINUTE, SECOND, Gpus, GpuType, Instant, JobKey, Nanoseconds
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.preemption import Victims, find_victims
from reconciler.planner.rights import Rights
from reconciler.planner.verify import violations
from tests.planner.worlds import (
    CLASSES,
    H100,
    START,
    Cluster,
    Spines,
    allocation,
    job,
    pending,
    priority,
    queue,
    ready,
    running,
    with_jobs,
    world,
)

KIND = GpuType(H100)
NOW = Instant(START + HOUR)
RULES = Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0), backfill="none", preempt_other_queues="reclaim")
FOUR: Spines = {"sg0": {"r1": ["n1", "n2", "n3", "n4"]}}


def q(name: str, guaranteed: int | None = 0, parent: str | None = "root", weight: int = 1, **more: object) -> Queue:
    own = {} if guaranteed is None else {KIND: Gpus(guaranteed)}
    return replace(queue(name, parent), guaranteed=own, weight=weight, **more)  # type: ignore[arg-type]  # fields by name


ROOT = q("root", None, None)
Spot = dict[str, int]


def changed(one: Job, fields: Mapping[str, object]) -> Job:
    return replace(one, **fields)  # type: ignore[arg-type]  # fields by name


def decided(
    queues: Sequence[Queue], held: Mapping[str, Spot], asked: Job, rules: Scheduling = RULES, *, classes: str = "low",
    changes: Mapping[str, Mapping[str, object]] | None = None, started: Mapping[str, int] | None = None,
) -> Allocation:  # fmt: skip
    """One decision on four nodes of eight GPUs; `started`: minutes before now, an hour otherwise. The judge agrees."""
    jobs = [changed(job(key, sum(spot.values()), classes), (changes or {}).get(key, {})) for key, spot in held.items()]
    desired = world(FOUR, jobs=[*jobs, asked], queues=[ROOT, *queues], rules=rules)
    at = {key: Instant(NOW - (started or {}).get(key, 60) * MINUTE) for key in held}
    records = [running(desired, key, spot, started=at[key]) for key, spot in held.items()]
    before = allocation(desired, *records, pending(desired, asked.key))
    seen = ready(desired, *records)
    after = decide(desired, seen, before, NOW).allocation
    assert violations(desired, seen, before, after) == ()
    return after


def evicted(after: Allocation) -> dict[str, Cause | None]:
    return {str(key): r.cause for key, r in after.jobs.items() if r.state is JobState.STOPPING}


def whole(key: str, nodes: int, rank: str = "normal") -> Job:
    return job(key, 8 * nodes, rank, dims={"tensor": 8, "data": nodes}, required={"tensor": "node"})


BORROWER = {"b/j1": {"n1": 8}, "b/j2": {"n2": 8}, "b/j3": {"n3": 8}, "b/j4": {"n4": 8}}


def test_an_owner_takes_back_what_was_borrowed_and_no_more() -> None:
    after = decided([q("a", 16), q("b", 16)], BORROWER, whole("a/new", 2))
    assert list(evicted(after).values()) == [Cause.RECLAIMED, Cause.RECLAIMED]
    assert after.jobs[JobKey("a/new")].state is JobState.PROMISED
    assert {r.reason.code for r in after.jobs.values() if r.cause is Cause.RECLAIMED} == {ReasonCode.RECLAIMED}


@pytest.mark.parametrize(
    ("queues", "need", "code"),
    [
        pytest.param([q("a", 16), q("b", 24)], 2, ReasonCode.CAPACITY, id="the borrower would fall below its own"),
        pytest.param([q("a", 8), q("b", 8)], 2, ReasonCode.CAPACITY, id="the owner asks for more than its own"),
        pytest.param([q("a", 0), q("b", 32)], 1, ReasonCode.PROTECTED, id="the other is at its guarantee"),
    ],
)
def test_nothing_is_taken(queues: list[Queue], need: int, code: ReasonCode) -> None:
    after = decided(queues, BORROWER, whole("a/new", need))
    assert evicted(after) == {}
    assert after.jobs[JobKey("a/new")].reason.code is code


def test_priority_alone_takes_nothing_from_another_queue() -> None:
    after = decided([q("a", None), q("b", None)], BORROWER, whole("a/new", 1, "high"))
    assert evicted(after) == {}


def test_a_reclaim_stops_at_every_level_on_the_way_to_the_victim() -> None:
    """org is above its guarantee because of org2; org1 is not, and is left alone although its job loses less."""
    queues = [q("a", 8), q("org", 16), q("org1", 16, "org"), q("org2", 0, "org")]
    held = {"org1/j1": {"n1": 8}, "org1/j2": {"n2": 8}, "org2/j1": {"n3": 8}, "org2/j2": {"n4": 8}}
    after = decided(queues, held, whole("a/new", 1), started={"org1/j1": 1, "org1/j2": 1})
    assert list(evicted(after)) in (["org2/j1"], ["org2/j2"])


def test_a_team_reclaims_for_its_organisation() -> None:
    after = decided([q("org", 16), q("team", 0, "org"), q("b", 0)], BORROWER, whole("team/new", 2))
    assert list(evicted(after).values()) == [Cause.RECLAIMED, Cause.RECLAIMED]


def test_one_big_gang_may_straddle_the_guarantee_when_nothing_else_serves_the_owner() -> None:
    held = {"b/big": {"n1": 8, "n2": 8, "n3": 8, "n4": 8}}
    queues = [q("a", 8), q("b", 24)]
    assert evicted(decided(queues, held, whole("a/new", 1))) == {"b/big": Cause.RECLAIMED}
    assert evicted(decided(queues, held, whole("a/new", 1), replace(RULES, reclaim_straddlers=False))) == {}
    small = {"b/big": {"n1": 8, "n2": 8, "n3": 8}, "b/small": {"n4": 8}}
    assert evicted(decided(queues, small, whole("a/new", 1), started={"b/big": 1})) == {"b/small": Cause.RECLAIMED}


def test_a_borrower_that_is_spread_thinly_is_above_in_nodes_but_not_below_in_gpus() -> None:
    row = q("b", 16, guaranteed_shape="node")
    held = {f"b/j{n}": {f"n{n}": 2} for n in range(1, 5)}
    assert evicted(decided([q("a", 16), row], held, whole("a/new", 2), replace(RULES, move_to_start="never"))) == {}
    moved = evicted(decided([q("a", 16), row], held, whole("a/new", 2)))
    assert list(moved.values()) == [Cause.MOVED, Cause.MOVED]


def test_orphans_have_no_protection_but_their_minimal_runtime() -> None:
    held = {"gone/j1": {"n1": 8}, "gone/j2": {"n2": 8}, "b/j1": {"n3": 8}, "b/j2": {"n4": 8}}
    fixed = {"gone/j1": {"on_preempt": OnPreempt.NEVER}, "gone/j2": {"on_preempt": OnPreempt.NEVER}}
    after = decided([q("a", 8), q("b", 16)], held, whole("a/new", 1), changes=fixed)
    assert len(evicted(after)) == 1
    young = replace(RULES, min_runtime=Nanoseconds(30 * MINUTE))
    after = decided([q("a", 8), q("b", 16)], held, whole("a/new", 1), young, changes=fixed, started={"gone/j1": 5})
    assert list(evicted(after)) == ["gone/j2"]


@pytest.mark.parametrize(
    ("rules", "interrupted", "goes"),
    [
        pytest.param({"cooldown": HOUR}, 1, True, id="cooldown does not stop a reclaim"),
        pytest.param({"max_per_day": 1}, 1, True, id="maxPerDay does not stop a reclaim"),
        pytest.param({"min_runtime": 2 * HOUR, "max_min_runtime": 2 * HOUR}, 0, False, id="minRuntime does"),
    ],
)
def test_what_protects_against_a_reclaim(rules: dict[str, int], interrupted: int, goes: bool) -> None:
    desired = world(FOUR, jobs=[*(job(key, 8, "low") for key in BORROWER), whole("a/new", 1)],
                    queues=[ROOT, q("a", 8), q("b", 0)], rules=replace(RULES, **rules))  # type: ignore[arg-type]  # fmt: skip
    told = (Instant(NOW - MINUTE),) * interrupted
    records = [replace(running(desired, key, spot), interruptions=told) for key, spot in BORROWER.items()]
    before, seen = allocation(desired, *records, pending(desired, "a/new")), ready(desired, *records)
    after = decide(desired, seen, before, NOW).allocation
    assert violations(desired, seen, before, after) == ()
    assert bool(evicted(after)) is goes


# --- fair share ---

SHARE = replace(RULES, preempt_other_queues="fairShare")


@pytest.mark.parametrize(
    ("weights", "need", "count"),
    [
        pytest.param((1, 1), 2, 2, id="to the middle"),
        pytest.param((1, 1), 3, 0, id="not beyond it"),
        pytest.param((1, 3), 1, 1, id="a quarter for a quarter of the weight"),
        pytest.param((1, 3), 2, 0, id="and no more"),
        pytest.param((3, 1), 3, 3, id="three quarters"),
    ],
)
def test_use_is_evened_out_by_weight(weights: tuple[int, int], need: int, count: int) -> None:
    queues = [q("a", 0, weight=weights[0]), q("b", 0, weight=weights[1])]
    after = decided(queues, BORROWER, whole("a/new", need), SHARE)
    assert list(evicted(after).values()) == [Cause.FAIR_SHARE] * count
    if not count:
        assert after.jobs[JobKey("a/new")].reason.code is ReasonCode.FAIR_SHARE_REACHED
    assert evicted(decided(queues, BORROWER, whole("a/new", need))) == {}


def test_an_exchange_for_fair_share_cannot_be_undone() -> None:
    """Both queues keep asking; after the first exchange nobody is stopped any more."""
    rules = replace(SHARE, min_runtime=Nanoseconds(0))
    names = [f"b/j{n}" for n in range(1, 5)]
    cluster = Cluster(
        world(FOUR, jobs=[whole(name, 1, "low") for name in names], queues=[ROOT, q("a"), q("b")], rules=rules)
    )
    cluster.settle()
    cluster.desired = with_jobs(cluster.desired, *(whole(f"a/j{n}", 1, "low") for n in range(1, 5)))
    cluster.settle()
    held = [str(r.queue) for r in cluster.allocation.jobs.values() if r.state is JobState.RUNNING]
    assert sorted(held) == ["a", "a", "b", "b"], cluster.show()
    assert sum(len(r.interruptions) for r in cluster.allocation.jobs.values()) == 2


# --- what does not swing back ---


def test_a_job_that_gave_back_does_not_borrow_again_for_a_cooldown() -> None:
    rules = replace(RULES, cooldown=Nanoseconds(10 * MINUTE))
    cluster = Cluster(
        world(FOUR, jobs=[whole(key, 1, "low") for key in BORROWER], queues=[ROOT, q("a", 8), q("b", 8)], rules=rules)
    )
    cluster.settle()
    cluster.desired = with_jobs(cluster.desired, replace(whole("a/new", 1), time_limit=Nanoseconds(60 * SECOND)))
    cluster.step(3600)
    (gone,) = evicted(cluster.allocation)
    since = cluster.now
    cluster.settle()
    cluster.end("a/new")
    cluster.settle()
    assert cluster.allocation.jobs[JobKey(gone)].reason.code is ReasonCode.AFTER_RECLAIM, cluster.show()
    assert cluster.allocation.jobs[JobKey(gone)].reason.number("until") == since + 10 * MINUTE
    cluster.step(600)
    cluster.settle()
    assert cluster.state(gone) is JobState.RUNNING


def test_nobody_is_evicted_for_less_than_a_grace() -> None:
    """n4 comes free by its limit in half a minute; the borrowers need up to a minute to save themselves."""
    held = {"b/j1": {"n1": 8}, "b/j2": {"n2": 8}, "b/j3": {"n3": 8}, "b/j4": {"n4": 8}}
    checkpoint = job("b/x", 8, checkpoint=60).checkpoint
    changes: dict[str, dict[str, object]] = {
        key: {"checkpoint": checkpoint, "on_preempt": OnPreempt.CHECKPOINT} for key in list(held)[:3]
    }
    changes["b/j4"] = {"time_limit": Nanoseconds(HOUR + 30 * SECOND)}
    after = decided([q("a", 8), q("b", 0)], held, whole("a/new", 1), changes=changes)
    assert evicted(after) == {}
    why = after.jobs[JobKey("a/new")].reason
    assert (why.code, why.number("at")) == (ReasonCode.STARTS_SOON, NOW + 30 * SECOND)
    changes["b/j4"] = {"time_limit": Nanoseconds(HOUR + 61 * SECOND)}
    assert len(evicted(decided([q("a", 8), q("b", 0)], held, whole("a/new", 1), changes=changes))) == 1


# --- complaints of users of other schedulers ---


def test_eight_small_victims_over_four_nodes_help_nobody() -> None:
    held = {f"b/s{n}{half}": {f"n{n}": 1} for n in range(1, 5) for half in "xy"}
    fixed = {f"b/k{n}": {f"n{n}": 6} for n in range(1, 5)}
    spots: dict[str, dict[str, int]] = {**fixed, **held}
    keep = {key: {"on_preempt": OnPreempt.NEVER} for key in fixed}
    jobs = [changed(job(key, sum(spot.values()), "low"), keep.get(key, {})) for key, spot in spots.items()]
    asked = job("b/new", 8, "high", required={"job": "node"})
    desired = world(FOUR, jobs=[*jobs, asked], queues=[ROOT, q("b", None)], rules=RULES)
    rows: dict[str, dict[str, Iterable[int]]] = {
        **{k: {n: range(6) for n in s} for k, s in fixed.items()},
        **{k: {n: [6 if k.endswith("x") else 7] for n in s} for k, s in held.items()},
    }
    records = [running(desired, key, {n: list(g) for n, g in spot.items()}) for key, spot in rows.items()]
    after = decide(
        desired, ready(desired, *records), allocation(desired, pending(desired, "b/new"), *records), NOW
    ).allocation
    assert evicted(after) == {}


def test_a_protected_queue_does_not_end_the_search() -> None:
    """KAI: b is at its guarantee and comes first; c borrows, and is found."""
    held = {"b/j1": {"n1": 8}, "b/j2": {"n2": 8}, "c/j1": {"n3": 8}, "c/j2": {"n4": 8}}
    after = decided([q("a", 8), q("b", 16), q("c", 8)], held, whole("a/new", 1))
    assert list(evicted(after).values()) == [Cause.RECLAIMED]
    assert all(key.startswith("c/") for key in evicted(after))


# --- the oracle: every set of gangs, by the law and by counting alone ---

PARENTS = {"a": "root", "b": "root", "org": "root", "c": "org", "d": "org"}


@dataclass(frozen=True)
class Crowd:
    """Four nodes of four GPUs in two racks, gangs of several queues on them, and one job that wants in."""

    guaranteed: Mapping[str, int]
    spots: Mapping[str, Mapping[str, int]]
    ranks: Mapping[str, str]
    saved: Mapping[str, int]
    asked: Job
    policy: str
    straddlers: bool
    order: tuple[str, ...]

    def leaf(self, key: str) -> str:
        return key.split("/", maxsplit=1)[0]

    def gpus(self, key: str) -> int:
        return sum(self.spots[key].values())

    def use(self, name: str, keys: Sequence[str]) -> int:
        return sum(self.gpus(key) for key in keys if name in path(self.leaf(key)))


def path(name: str) -> list[str]:
    found = [name]
    while found[-1] in PARENTS:
        found.append(PARENTS[found[-1]])
    return found


VALUES = {"low": 100, "normal": 500, "top": 2000}


def is_lawful(crowd: Crowd, gone: Sequence[str], *, straddle: bool) -> bool:
    """Rule book §6 word for word, over one set."""
    stay = [key for key in crowd.spots if key not in gone]
    mine = path(crowd.leaf(str(crowd.asked.key)))
    sides: dict[str, list[str]] = {}
    for key in gone:
        theirs = path(crowd.leaf(key))
        if theirs[0] == mine[0]:
            if VALUES[crowd.ranks[key]] >= VALUES[str(crowd.asked.priority_class)]:
                return False
            continue
        common = next(name for name in mine if name in theirs)
        own, side = mine[mine.index(common) - 1], theirs[: theirs.index(common)]
        sides.setdefault(side[-1], []).append(key)
        after = crowd.use(own, stay) + crowd.asked.gpus
        within = after <= crowd.guaranteed[own]
        left = max(0, crowd.use(side[-1], stay) - crowd.guaranteed[side[-1]])
        fair = crowd.policy == "fairShare" and after - crowd.guaranteed[own] <= left
        if crowd.policy == "never" or not (within or fair):
            return False
        if any(crowd.use(name, list(crowd.spots)) <= crowd.guaranteed[name] for name in side):
            return False
    return all(_keeps_its_own(crowd, stay, keys, straddle=straddle) for keys in sides.values())


def _keeps_its_own(crowd: Crowd, stay: Sequence[str], gone: Sequence[str], *, straddle: bool) -> bool:
    names = {name for key in gone for name in path(crowd.leaf(key))[:-1]} - set(path(crowd.leaf(str(crowd.asked.key))))
    if all(crowd.use(name, stay) >= crowd.guaranteed[name] for name in names):
        return True
    if not straddle:
        return False
    for last in gone:
        with_it = [*stay, last]
        own = [name for name in path(crowd.leaf(last)) if name in names]
        if all(crowd.use(name, with_it) >= crowd.guaranteed[name] + (name in own) for name in names):
            return True
    return False


def fits(crowd: Crowd, gone: Sequence[str]) -> bool:
    free = dict.fromkeys(("a1", "a2", "b1", "b2"), 4)
    for key, spot in crowd.spots.items():
        if key not in gone:
            for node, gpus in spot.items():
                free[node] -= gpus
    racks = [[free["a1"], free["a2"]], [free["b1"], free["b2"]]]
    required = {str(place.group): str(place.level) for place in crowd.asked.required}
    if "tensor" in required:
        return any(sum(n == 4 for n in rack) >= crowd.asked.gpus // 4 for rack in racks)
    if "job" in required:
        return any(sum(rack) >= crowd.asked.gpus for rack in racks)
    return sum(map(sum, racks)) >= crowd.asked.gpus


def cost(crowd: Crowd, gone: Sequence[str]) -> tuple[int, ...]:
    parts = {
        "lowestPriority": max(VALUES[crowd.ranks[key]] for key in gone),
        "leastLostWork": sum(crowd.gpus(key) * 60 * crowd.saved[key] for key in gone),
        "fewestJobs": len(gone),
    }
    return (*(parts[name] for name in crowd.order), sum(crowd.gpus(key) for key in gone))


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    free = dict.fromkeys(("a1", "a2", "b1", "b2"), 4)
    spots: dict[str, dict[str, int]] = {}
    for number in range(draw(st.integers(3, 8))):
        rack, size = draw(st.sampled_from("ab")), draw(st.sampled_from((1, 2, 4, 4)))
        nodes = [f"{rack}1", f"{rack}2"] if draw(st.booleans()) else [f"{rack}{draw(st.integers(1, 2))}"]
        if any(free[node] < size for node in nodes):
            continue
        for node in nodes:
            free[node] -= size
        spots[f"{draw(st.sampled_from('abbccd'))}/j{number}"] = dict.fromkeys(nodes, size)
    inner = [draw(st.integers(0, 6)) for _ in "cd"]
    guaranteed = {
        "a": draw(st.integers(0, 10)),
        "b": draw(st.integers(0, 6)),
        "c": inner[0],
        "d": inner[1],
        "org": sum(inner),
        "root": 16,
    }
    home = draw(st.sampled_from("aaac"))
    shapes = (
        job(f"{home}/new", 8, "top", dims={"tensor": 4, "data": 2}, required={"tensor": "node", "job": "rack"}),
        job(f"{home}/new", 4, "top", dims={"tensor": 4, "data": 1}, required={"tensor": "node", "job": "rack"}),
        job(f"{home}/new", 6, "top", required={"job": "rack"}), job(f"{home}/new", 8, "normal"), job(f"{home}/new", 5, "top"),
    )  # fmt: skip
    keys = list(spots)
    return Crowd(
        guaranteed=guaranteed, spots=spots, ranks={key: draw(st.sampled_from(("low", "normal"))) for key in keys},
        saved={key: draw(st.integers(0, 30)) for key in keys}, asked=draw(st.sampled_from(shapes)),
        policy=draw(st.sampled_from(("reclaim", "reclaim", "fairShare", "never"))), straddlers=draw(st.booleans()),
        order=draw(st.sampled_from((("lowestPriority", "leastLostWork", "fewestJobs"), ("lowestPriority", "fewestJobs", "leastLostWork"),
                                    ("leastLostWork", "lowestPriority", "fewestJobs"), ("fewestJobs", "leastLostWork", "lowestPriority")))),
    )  # fmt: skip


def searched(crowd: Crowd) -> Victims | None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2"], "r2": ["b1", "b2"]}}
    queues = [ROOT, *(q(name, crowd.guaranteed[name], above) for name, above in PARENTS.items())]
    rules = replace(
        RULES, preempt_other_queues=crowd.policy, reclaim_straddlers=crowd.straddlers, victim_order=crowd.order
    )
    jobs = [job(key, crowd.gpus(key), crowd.ranks[key]) for key in crowd.spots]
    desired = world(
        spines, 4, jobs=[*jobs, crowd.asked], queues=queues, rules=rules, classes=(*CLASSES, priority("top", 2000))
    )
    left = {name: [0, 1, 2, 3] for name in ("a1", "a2", "b1", "b2")}
    records = [
        running(desired, key, {node: [left[node].pop(0) for _ in range(gpus)] for node, gpus in spot.items()})
        for key, spot in crowd.spots.items()
    ]
    saved = {
        JobKey(key): JobObservation(job=JobKey(key), attempt=1, checkpoint=Instant(NOW - ago * MINUTE))
        for key, ago in crowd.saved.items()
    }
    seen = replace(ready(desired, *records), jobs=saved)
    by_key: dict[JobKey, JobRecord] = {r.job: r for r in sorted(records, key=lambda r: r.job)}
    made = Draft(desired, seen, ground_of(desired.inventory), by_key, NOW)
    new = pending(desired, str(crowd.asked.key))
    found = find_victims(made, new, crowd.asked, KIND, Rights(made).claim(crowd.asked, KIND))
    assert isinstance(found, Victims) or found.proved  # small worlds never run out of steps
    return found if isinstance(found, Victims) else None


ORACLE = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@settings(ORACLE, max_examples=400)
@given(crowds())
def test_no_milder_lawful_set_exists(crowd: Crowd) -> None:
    assume(crowd.spots and not fits(crowd, ()))
    sets = [chosen for n in range(1, len(crowd.spots) + 1) for chosen in combinations(sorted(crowd.spots), n)]
    # Nobody goes only so that his queue has room below its guarantee: all of a set's GPUs are needed.
    useful = [s for s in sets if fits(crowd, s) and not any(fits(crowd, [k for k in s if k != one]) for one in s)]
    lawful = [chosen for chosen in useful if is_lawful(crowd, chosen, straddle=False)]
    if not lawful and crowd.straddlers:
        lawful = [chosen for chosen in useful if is_lawful(crowd, chosen, straddle=True)]
    found = searched(crowd)
    assert (found is None) == (not lawful), (found, lawful[:3])
    if found is not None:
        jobs = [str(key) for key in found.jobs]
        assert found.proved
        assert cost(crowd, jobs) == min(cost(crowd, chosen) for chosen in lawful), (
            jobs,
            min(lawful, key=lambda c: cost(crowd, c)),
        )


# --- CP-SAT: larger, one rack of whole nodes ---


@pytest.mark.parametrize("seed", range(12))
def test_cp_sat_finds_nothing_milder(seed: int) -> None:
    """Sixteen nodes, gangs of one to three nodes that share them; six whole nodes are wanted within caps of two queues."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="the oracle needs OR-tools")
    import random

    rng = random.Random(seed)
    names = [f"n{n:02}" for n in range(16)]
    free = dict.fromkeys(names, 8)
    spots: dict[str, dict[str, int]] = {}
    while any(free.values()):
        nodes = rng.sample(
            [n for n in names if free[n]], min(rng.choice((1, 1, 2, 3)), sum(1 for n in names if free[n]))
        )
        size = rng.choice([s for s in (1, 2, 4, 8) if all(s <= free[n] for n in nodes)])
        for node in nodes:
            free[node] -= size
        spots[f"{rng.choice('bc')}/j{len(spots):02}"] = dict.fromkeys(nodes, size)
    saved = {key: rng.randrange(60) for key in spots}
    guaranteed = {"a": 48, "b": rng.choice((0, 8, 24)), "c": rng.choice((0, 16))}
    queues = [ROOT, *(q(name, gpus) for name, gpus in guaranteed.items())]
    asked = job("a/new", 48, dims={"tensor": 8, "data": 6}, required={"tensor": "node"})
    desired = world({"sg0": {"r1": names}}, jobs=[*(job(k, sum(s.values()), "low") for k, s in spots.items()), asked],
                    queues=queues, rules=replace(RULES, reclaim_straddlers=False))  # fmt: skip
    left = {name: list(range(8)) for name in names}
    records = [
        running(desired, k, {n: [left[n].pop(0) for _ in range(g)] for n, g in s.items()}) for k, s in spots.items()
    ]
    kept = {
        JobKey(k): JobObservation(job=JobKey(k), attempt=1, checkpoint=Instant(NOW - ago * MINUTE))
        for k, ago in saved.items()
    }
    made = Draft(desired, replace(ready(desired, *records), jobs=kept), ground_of(desired.inventory),
                 {r.job: r for r in sorted(records, key=lambda r: r.job)}, NOW)  # fmt: skip
    search = find_victims(made, pending(desired, "a/new"), asked, KIND, Rights(made).claim(asked, KIND))
    found = search if isinstance(search, Victims) else None

    model = cp_model.CpModel()
    gone = {key: model.new_bool_var(key) for key in spots}
    empty = {name: model.new_bool_var(name) for name in names}
    for key, spot in spots.items():
        for node in spot:
            model.add_implication(empty[node], gone[key])
    model.add(sum(empty.values()) >= 6)
    for name in "bc":
        has = sum(sum(s.values()) for k, s in spots.items() if k.startswith(name))
        model.add(
            sum(gone[k] * sum(s.values()) for k, s in spots.items() if k.startswith(name))
            <= max(0, has - guaranteed[name])
        )
    model.minimize(sum(gone[k] * sum(s.values()) * 60 * saved[k] for k, s in spots.items()))
    solver = cp_model.CpSolver()
    status = solver.solve(model)
    assert (found is None) == (status == cp_model.INFEASIBLE)
    if found is not None and found.proved:
        assert found.lost == round(solver.objective_value)
    if found is not None:
        assert found.bound <= round(solver.objective_value) <= found.lost
