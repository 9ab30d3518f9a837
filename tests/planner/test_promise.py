"""Promises: made once, kept while they can come true, never stronger than what was seen released."""

from __future__ import annotations

from dataclasses import replace

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Fence
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.observed import AttemptState, NodeCondition, Observed
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import MINUTE, SECOND, Instant, JobKey
from reconciler.planner.decide import decide
from reconciler.planner.verify import violations
from tests.planner.worlds import START, Spines, allocation, job, ready, running, said, saw, with_jobs, with_node, world

SPINES: Spines = {"sg0": {"r1": ["a1", "a2", "a3"]}}
NEW, OLD = JobKey("nlp/new"), JobKey("nlp/old")
NOW = Instant(START + 10 * MINUTE)


def promised(free: int = 0) -> tuple[Desired, Allocation]:
    """`new` was promised a1 and a2 when `old` was told to leave them; `free` more nodes have nobody on them."""
    others = [job(f"nlp/b{n}", 8, "high") for n in range(1 - free)]
    desired = world(SPINES, jobs=[job(OLD, 16, "low", checkpoint=60), *others])
    spots = [running(desired, OLD, {"a1": 8, "a2": 8}), *(running(desired, o.key, {"a3": 8}) for o in others)]
    asked = with_jobs(desired, job(NEW, 16, dims={"tensor": 8, "data": 2}, required={"tensor": "node"}))
    before = allocation(desired, *spots)
    after = decide(asked, ready(asked, *spots), before, NOW).allocation
    assert after.jobs[NEW].state is JobState.PROMISED
    return asked, after


def next_round(desired: Desired, before: Allocation, observed: Observed, seconds: int = 1) -> Allocation:
    now = Instant(before.decided_at + seconds * SECOND)
    after = decide(desired, observed, before, now).allocation
    assert violations(desired, observed, before, after) == ()
    return after


def holders(allocated: Allocation) -> list[JobRecord]:
    return [r for r in allocated.jobs.values() if r.state.holds_gpus]


def seen(desired: Desired, allocated: Allocation, *released: str) -> Observed:
    observed = ready(desired, *holders(allocated))
    for node in released:
        observed = said(observed, node, OLD, 1, AttemptState.GONE)
    return observed


def test_it_comes_true_when_the_last_gpu_was_seen_released_and_not_before() -> None:
    desired, first = promised()
    half = next_round(desired, first, seen(desired, first, "a1"))
    assert half.jobs[NEW] is first.jobs[NEW]
    done = next_round(desired, half, seen(desired, half, "a1", "a2"))
    started = done.jobs[NEW]
    assert (started.state, started.phase, started.attempt) == (JobState.STARTING, Phase.PREPARE, 1)
    assert started.promise is None
    kept = first.jobs[NEW].promise
    assert kept is not None
    assert started.placement == kept.placement
    assert done.jobs[OLD].state is JobState.PENDING


def test_nobody_else_gets_promised_gpus_and_the_reason_names_the_owner() -> None:
    desired, first = promised()
    stray = with_jobs(desired, job("nlp/small", 1, "high"), without=["nlp/old"])
    # The victim is gone from the record's view only when seen; one node is free already and promised.
    half = next_round(stray, first, seen(desired, first, "a1"))
    assert half.jobs[JobKey("nlp/small")].state is JobState.PENDING
    assert half.jobs[JobKey("nlp/small")].reason.code in (ReasonCode.CAPACITY, ReasonCode.NO_DOMAIN_FITS)


def test_a_victim_waits_for_its_preemptor_although_gpus_are_free_elsewhere() -> None:
    desired, first = promised()
    smaller = with_jobs(desired, without=["nlp/b0"])
    after = first
    for _ in range(2):
        after = next_round(smaller, after, said(seen(desired, after), "a3", "nlp/b0", 1, AttemptState.GONE))
    assert JobKey("nlp/b0") not in after.jobs
    blocked = replace(after.jobs[OLD], state=JobState.PENDING, placement=None, phase=None, started=None, ports=())
    # The victim was seen gone, the preemptor still waits for a node that is only now being cleaned.
    world_now = replace(after, jobs={**after.jobs, OLD: blocked})
    again = decide(smaller, ready(desired), world_now, Instant(after.decided_at + SECOND)).allocation
    assert again.jobs[NEW].state is JobState.STARTING
    assert again.jobs[OLD].reason.code is not ReasonCode.AFTER_PREEMPTOR
    assert again.jobs[OLD].state is JobState.PENDING


def test_it_falls_with_its_job_and_victims_go_on_stopping() -> None:
    desired, first = promised()
    for changed in (
        with_jobs(desired, without=["nlp/new"]),
        with_jobs(desired, replace(desired.jobs[NEW], suspend=True)),
    ):
        after = next_round(changed, first, seen(desired, first))
        assert (after.jobs[OLD].state, after.jobs[OLD].cause) == (JobState.STOPPING, Cause.PREEMPTED)
        assert NEW not in after.jobs or (after.jobs[NEW].state, after.jobs[NEW].promise) == (JobState.HELD, None)


def test_a_lower_priority_does_not_take_the_promise_away() -> None:
    desired, first = promised()
    lowered = with_jobs(desired, replace(desired.jobs[NEW], priority_class=job("q/x", 1, "low").priority_class))
    assert next_round(lowered, first, seen(desired, first)).jobs[NEW] is first.jobs[NEW]


def test_a_target_that_is_cordoned_is_made_good_without_new_victims() -> None:
    desired, first = promised(free=1)
    kept = first.jobs[NEW].promise
    assert kept is not None
    lost = kept.placement.nodes[0]
    after = next_round(with_node(desired, lost, cordoned="fan"), first, seen(desired, first))
    moved = after.jobs[NEW].promise
    assert moved is not None
    assert set(moved.placement.nodes) == {"a1", "a2", "a3"} - {lost}
    assert moved.made == kept.made
    assert [r.job for r in after.jobs.values() if r.cause is Cause.PREEMPTED] == [OLD]


def test_a_target_that_cannot_be_made_good_is_dropped_with_the_old_age() -> None:
    desired, first = promised()
    after = next_round(desired, first, saw(seen(desired, first), "a1", condition=NodeCondition.UNREACHABLE))
    fallen = after.jobs[NEW]
    assert (fallen.state, fallen.promise, fallen.submitted) == (JobState.PENDING, None, first.jobs[NEW].submitted)
    assert fallen.reason.code in (ReasonCode.CAPACITY, ReasonCode.NODE_STATE)


def test_a_kill_that_failed_breaks_the_promise_at_its_deadline_only() -> None:
    desired, first = promised()
    stuck = said(seen(desired, first), "a1", OLD, 1, AttemptState.KILL_FAILED)
    assert next_round(desired, first, stuck).jobs[NEW] is first.jobs[NEW]
    assert next_round(desired, first, stuck, seconds=3600).jobs[NEW].state is not JobState.PROMISED


def test_a_silent_victim_that_nobody_fenced_breaks_the_promise_at_its_deadline_only() -> None:
    desired, first = promised()
    confirmed = {**first.jobs, OLD: replace(first.jobs[OLD], fence=Fence.CONFIRM)}
    first = replace(first, jobs=confirmed)
    others = with_jobs(desired, without=["nlp/b0"])
    # One node of the victim is silent; the target is moved off it, and then waits for the victim's other node.
    silent = saw(seen(others, first), "a1", condition=NodeCondition.LOST)
    early = next_round(others, first, silent)
    assert early.jobs[NEW].state is not JobState.STARTING
    late = next_round(others, early, silent, seconds=3600)
    promise = late.jobs[NEW].promise
    assert promise is None or OLD not in promise.waiting_for
    assert late.jobs[OLD].state is JobState.STOPPING
