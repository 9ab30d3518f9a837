"""Holds for those who have waited too long: target, whom they bind, how long they last, and the bound they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import Allocation, Hold
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.queue import Scheduling
from reconciler.model.units import DAY, HOUR, SECOND, Instant, JobKey, Nanoseconds
from reconciler.planner.decide import decide
from reconciler.planner.verify import Breach, violations
from tests.planner.worlds import (
    START,
    Cluster,
    Spines,
    allocation,
    job,
    pending,
    placement,
    priority,
    ready,
    running,
    with_jobs,
    with_node,
    world,
)

H = 3600
RACK: Spines = {"sg0": {"r01": ["n1", "n2", "n3", "n4"]}}
STARVED = Instant(START - DAY)
RULES = Scheduling(
    order="priorityThenAge", cooldown=Nanoseconds(0), backfill="none", preempt_same_queue="never", move_to_start="never",
    hold_for_starved_after=Nanoseconds(DAY), hold_max_share_ppm=250_000,
)  # fmt: skip
Places = Mapping[str, Mapping[str, int | Sequence[int]]]


def after(desired: Desired, runs: Places, starved: Sequence[str] = ("nlp/big",), now: Instant = START) -> Allocation:
    """One decision; the starved have waited a day, all others a minute. The judge must agree."""
    records = [running(desired, key, gpus) for key, gpus in runs.items()]
    for key in desired.jobs:
        if key not in runs:
            at = (
                Instant(STARVED - len(starved) + starved.index(key)) if key in starved else Instant(START - 60 * SECOND)
            )
            records.append(pending(desired, key, at))
    known = allocation(desired, *records)
    return step(desired, known, now)


def step(desired: Desired, known: Allocation, now: Instant) -> Allocation:
    seen = ready(desired, *(r for r in known.jobs.values() if r.placement))
    following = decide(desired, seen, known, now).allocation
    assert [v for v in violations(desired, seen, known, following) if v.code != "WrongUsage"] == []
    return following


def held(found: Allocation, key: str = "nlp/big") -> set[str]:
    hold = found.jobs[JobKey(key)].hold
    return {str(node) for node in hold.placement.nodes} if hold else set()


def told(found: Allocation, key: str) -> str:
    record = found.jobs[JobKey(key)]
    return "start" if record.state is JobState.STARTING else record.reason.code


def starving(*more: Job, limit: int | None = None, rules: Scheduling = RULES, **world_changes: object) -> Desired:
    """A gang of four nodes that has waited a day; one of its nodes is busy."""
    jobs = [job("nlp/run", 8, limit=limit), job("nlp/big", 32), *more]
    return world(RACK, jobs=jobs, rules=rules, **world_changes)  # type: ignore[arg-type]  # fields by name


BUSY: Places = {"nlp/run": {"n4": 8}}


def test_free_gpus_of_the_target_are_for_the_starved_job_alone() -> None:
    found = after(starving(job("nlp/new", 8)), BUSY)
    assert held(found) == {"n1", "n2", "n3", "n4"}
    assert told(found, "nlp/new") == "HeldFor"
    assert found.jobs[JobKey("nlp/new")].reason.number("owner") == "nlp/big"
    assert told(found, "nlp/big") == "Capacity"
    assert found.jobs[JobKey("nlp/big")].placement is None  # held is not given


@pytest.mark.parametrize(
    ("busy_until", "limit", "expected"),
    [
        (4 * H, 4 * H, "start"),  # gone when the last node is
        (4 * H, 4 * H + 1, "HeldFor"),
        (None, 1 * H, "HeldFor"),  # nobody knows when it is complete: for nobody
    ],
)
def test_who_is_gone_in_time_may_use_it(busy_until: int | None, limit: int, expected: str) -> None:
    found = after(starving(job("nlp/new", 8, limit=limit), limit=busy_until), BUSY)
    assert told(found, "nlp/new") == expected


def test_before_it_has_waited_long_enough_nothing_is_held() -> None:
    found = after(starving(job("nlp/new", 8)), BUSY, starved=())
    assert not held(found)
    assert told(found, "nlp/new") == "start"


def test_whom_a_reservation_serves_needs_no_hold() -> None:
    rules = replace(RULES, backfill="conservative")
    found = after(starving(job("nlp/new", 8), limit=4 * H, rules=rules), BUSY)
    assert not held(found)
    assert told(found, "nlp/new") == "WouldDelay"


def test_the_target_is_kept_and_ends_with_the_start() -> None:
    desired = starving()
    first = after(desired, BUSY)
    again = step(desired, first, Instant(START + HOUR))
    assert again.jobs == first.jobs
    freed = replace(desired, jobs={key: one for key, one in desired.jobs.items() if key != "nlp/run"})
    known = replace(again, jobs={key: r for key, r in again.jobs.items() if key != "nlp/run"})
    started = step(freed, known, Instant(START + 2 * HOUR)).jobs[JobKey("nlp/big")]
    assert (started.state, started.hold) == (JobState.STARTING, None)


def test_a_target_that_can_no_longer_hold_it_is_chosen_anew() -> None:
    spines: Spines = {"sg0": {"r01": ["n1", "n2"], "r02": ["n3", "n4"]}}
    jobs = [job("nlp/a", 8), job("nlp/b", 8), job("nlp/big", 16, required={"job": "rack"})]
    desired = world(spines, jobs=jobs, rules=RULES)
    first = after(desired, {"nlp/a": {"n1": 8}, "nlp/b": {"n3": 8}})
    assert held(first) == {"n1", "n2"}
    shut = with_node(desired, "n2", cordoned="asked")
    assert held(step(shut, first, Instant(START + HOUR))) == {"n3", "n4"}


def test_the_domain_with_fewest_missing_gpus_is_chosen() -> None:
    spines: Spines = {"sg0": {"r01": ["n1", "n2", "n3"], "r02": ["n4", "n5", "n6"]}}
    jobs = [job("nlp/a", 16), job("nlp/b", 8), job("nlp/big", 24, required={"job": "rack"})]
    desired = world(spines, jobs=jobs, rules=RULES)
    found = after(desired, {"nlp/a": {"n1": 8, "n2": 8}, "nlp/b": {"n4": 8}})
    assert held(found) == {"n4", "n5", "n6"}


def test_a_hold_binds_neither_who_comes_earlier_nor_who_could_evict_its_owner() -> None:
    rules = replace(RULES, preempt_same_queue="lowerPriority")
    found = after(starving(job("nlp/urgent", 8, "high"), rules=rules), BUSY)
    assert told(found, "nlp/urgent") == "start"


def test_the_oldest_hold_stands_and_more_only_within_their_share() -> None:
    spines: Spines = {"s": {f"r{n}": [f"n{n}a", f"n{n}b"] for n in range(4)}}
    runs = {f"nlp/r{n}": {f"n{n}a": 8} for n in range(4)}
    jobs = [job(key, 8) for key in runs] + [job(f"nlp/w{n}", 16, required={"job": "rack"}) for n in range(3)]
    starved = [f"nlp/w{n}" for n in range(3)]
    desired = world(spines, jobs=jobs, rules=RULES)
    assert [bool(held(after(desired, runs, starved), key)) for key in starved] == [True, False, False]
    half = world(spines, jobs=jobs, rules=replace(RULES, hold_max_share_ppm=500_000))
    assert [bool(held(after(half, runs, starved), key)) for key in starved] == [True, True, False]


def test_a_suspended_owner_lets_go() -> None:
    desired = starving()
    first = after(desired, BUSY)
    paused = with_jobs(desired, replace(desired.jobs[JobKey("nlp/big")], suspend=True))
    assert step(paused, first, Instant(START + HOUR)).jobs[JobKey("nlp/big")].hold is None


def test_who_waits_only_for_young_victims_is_held_for_at_once() -> None:
    rules = replace(RULES, preempt_same_queue="lowerPriority", min_runtime=Nanoseconds(30 * 60 * SECOND))
    jobs = [job("nlp/young", 32, "low"), job("nlp/elder", 32), job("nlp/other", 8)]
    desired = world(RACK, jobs=jobs, rules=rules)
    found = after(desired, {"nlp/young": {f"n{n}": 8 for n in range(1, 5)}}, starved=())
    assert told(found, "nlp/elder") == "ProtectedUntil"
    assert held(found, "nlp/elder") == {"n1", "n2", "n3", "n4"}


# --- the judge ---


def test_the_judge_sees_a_hold_that_was_broken() -> None:
    desired = starving(job("nlp/new", 8))
    first = after(desired, BUSY)
    thief = running(desired, "nlp/new", {"n1": 8})
    started = replace(first.jobs[JobKey("nlp/new")], state=JobState.STARTING, placement=thief.placement, attempt=1)
    wrong = replace(first, generation=first.generation + 1, jobs={**first.jobs, started.job: started})
    found = violations(desired, ready(desired, first.jobs[JobKey("nlp/run")]), first, wrong)
    assert Breach.HOLD_BROKEN in {v.code for v in found}


@pytest.mark.parametrize("wrong", ["not starved", "Running", "not its size"])
def test_the_judge_sees_a_hold_that_is_unfounded(wrong: str) -> None:
    desired = starving()
    first = after(desired, BUSY, starved=())
    old = replace(first.jobs[JobKey("nlp/run")], started=Instant(START - 10 * DAY))
    first = replace(first, jobs={**first.jobs, old.job: old})
    gpus = {"n1": 8, "n2": 8, "n3": 8} if wrong == "not its size" else {f"n{n}": 8 for n in range(1, 5)}
    hold = Hold(placement=placement(desired, gpus), since=START)
    key = JobKey("nlp/run" if wrong == "Running" else "nlp/big")
    since = STARVED if wrong == "not its size" else START
    record = replace(first.jobs[key], hold=hold, submitted=since)
    after_ = replace(first, generation=first.generation + 1, jobs={**first.jobs, key: record})
    found = violations(desired, ready(desired, first.jobs[JobKey("nlp/run")]), first, after_)
    assert (Breach.HOLD_UNFOUNDED, wrong) in {(v.code, v.detail) for v in found}


# --- the bound ---


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), min_size=4, max_size=12),
    st.sampled_from(("none", "conservative")),
)
def test_a_starved_head_starts_within_the_bound(crowd: list[tuple[int, int]], mode: str) -> None:
    """Small jobs keep coming, each within its limit of at most three hours: the big one still starts in time."""
    wait, longest = 2 * HOUR, 3 * HOUR
    rules = replace(RULES, backfill=mode, hold_for_starved_after=Nanoseconds(wait), hold_max_share_ppm=1_000_000)
    first = [job(f"nlp/s{n}", 8, limit=H * hours) for n, (_, hours) in enumerate(crowd[:4])]
    cluster = Cluster(world(RACK, jobs=first, rules=rules, classes=(priority("normal", 500),)))
    cluster.settle()
    big, coming = job("nlp/big", 32, limit=H), list(crowd)
    cluster.desired = with_jobs(cluster.desired, big)
    born, number = cluster.now, len(first)
    bound = wait + longest + 10 * 60 * SECOND
    while cluster.allocation.jobs.get(big.key) is None or cluster.state("nlp/big") is JobState.PENDING:
        assert cluster.now - born <= bound, cluster.show()
        if coming:
            count, hours = coming.pop(0)
            fresh = [job(f"nlp/s{number + n}", 8, limit=H * hours) for n in range(count)]
            cluster.desired, number = with_jobs(cluster.desired, *fresh), number + count
        else:
            coming = list(crowd)
        for _ in range(3):
            cluster.step(200)
    assert cluster.state("nlp/big") in (JobState.PROMISED, JobState.STARTING, JobState.RUNNING)
