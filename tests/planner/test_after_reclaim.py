"""What gave borrowed GPUs back does not borrow again for a cooldown, and may have all that its queue is guaranteed.

Four nodes of eight GPUs and ten minutes of cooldown; `b/gone` gave back a minute ago. The judge sees every decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Elastic, Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import AttemptState
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import HOUR, MINUTE, Digest, Gpus, GpuType, Instant, JobKey, Nanoseconds
from reconciler.planner.decide import decide
from reconciler.planner.explain import blockers_of
from reconciler.planner.verify import violations
from tests.planner.worlds import (
    H100,
    START,
    Spines,
    allocation,
    job,
    pending,
    queue,
    ready,
    running,
    said,
    shape,
    with_node,
    world,
)

NOW = Instant(START + HOUR)
BACK = Instant(NOW - MINUTE)
RULES = Scheduling(
    order="priorityThenAge", cooldown=Nanoseconds(10 * MINUTE), backfill="none", preempt_other_queues="reclaim"
)
FOUR: Spines = {"sg0": {"r1": ["n1", "n2", "n3", "n4"]}}
FIRST, SECOND = GpuType("L40S"), GpuType(H100)
GONE = JobKey("b/gone")


def guaranteed(name: str, **gpus: int) -> Queue:
    return replace(queue(name), guaranteed={GpuType(kind): Gpus(count) for kind, count in gpus.items()})


def lab(*jobs: Job, **gpus: int) -> Desired:
    """Queue b is guaranteed this, by type."""
    return world(FOUR, jobs=jobs, queues=[queue("root", None), guaranteed("a"), guaranteed("b", **gpus)], rules=RULES)


def with_two_types(desired: Desired) -> Desired:
    """n1 and n2 are of another type, which jobs name first."""
    for node in ("n1", "n2"):
        desired = with_node(desired, node, shape=shape(gpu_type=FIRST))
    return desired


def decided(
    desired: Desired, *held: JobRecord, gave_back: Mapping[JobKey, Instant], ended: str = ""
) -> Mapping[JobKey, JobRecord]:
    """The records after one decision, in which the judge finds nothing; `ended`: this job's ranks have exited."""
    holds = {record.job for record in held}
    waits = [replace(pending(desired, key), reclaimed=gave_back.get(key)) for key in desired.jobs if key not in holds]
    return judged(desired, allocation(desired, *held, *waits), *held, ended=ended).jobs


def judged(desired: Desired, before: Allocation, *held: JobRecord, ended: str = "") -> Allocation:
    seen = ready(desired, *held)
    for node in (
        node for record in held if record.job == ended and record.placement for node in record.placement.nodes
    ):
        seen = said(seen, node, ended, 1, AttemptState.EXITED, 0)
    after = decide(desired, seen, before, NOW).allocation
    assert violations(desired, seen, before, after) == ()
    return after


def gpus_of(records: Mapping[JobKey, JobRecord]) -> dict[str, int]:
    return {str(key): record.gpus_held for key, record in records.items() if record.gpus_held}


def test_it_starts_within_the_guarantee_although_another_borrows_after_it() -> None:
    """16 are guaranteed and in use until b/old ends now. Then b/gone has 8 of 16; b/young, which gave nothing back,
    takes the queue to 24."""
    desired = lab(job("b/old", 16), job(GONE, 8, "high"), job("b/young", 16), H100=16)
    old = running(desired, "b/old", {"n1": 8, "n2": 8})
    after = decided(desired, old, gave_back={GONE: BACK}, ended="b/old")
    assert after[JobKey("b/old")].state is JobState.FINISHED
    assert gpus_of(after) == {"b/gone": 8, "b/young": 16}


def test_it_waits_when_another_borrows_before_it() -> None:
    desired = lab(job("b/old", 16), job(GONE, 8), job("b/young", 16, "high"), H100=16)
    old = running(desired, "b/old", {"n1": 8, "n2": 8})
    after = decided(desired, old, gave_back={GONE: BACK}, ended="b/old")
    assert gpus_of(after) == {"b/young": 16}
    assert after[GONE].reason.code is ReasonCode.AFTER_RECLAIM


@pytest.mark.parametrize(
    ("guarantee", "started"), [(16, {"b/gone": 8, "b/too": 8}), (15, {"b/gone": 8}), (7, {})], ids=str
)
def test_of_two_that_gave_back_both_start_only_within_the_guarantee(guarantee: int, started: dict[str, int]) -> None:
    desired = lab(job(GONE, 8), job("b/too", 8), H100=guarantee)
    after = decided(desired, gave_back={GONE: BACK, JobKey("b/too"): BACK})
    assert gpus_of(after) == started


@pytest.mark.parametrize(("ago", "size"), [(9, 16), (10, 32)], ids=["within the cooldown", "after it"])
def test_an_elastic_gang_starts_no_larger_than_the_guarantee(ago: int, size: int) -> None:
    desired = lab(replace(job(GONE, 32), elastic=Elastic(dimension="data", least=8, most=32)), H100=16)
    assert gpus_of(decided(desired, gave_back={GONE: Instant(NOW - ago * MINUTE)})) == {"b/gone": size}


def test_it_passes_over_the_type_that_it_would_borrow() -> None:
    desired = with_two_types(lab(replace(job(GONE), gpu_types=(FIRST, SECOND)), L40S=0, H100=8))
    after = decided(desired, gave_back={GONE: BACK})
    place = after[GONE].placement
    assert place is not None
    assert set(place.nodes) <= {"n3", "n4"}


def test_it_waits_for_the_cooldown_when_only_the_type_that_it_would_borrow_is_free() -> None:
    """Its like, which gave nothing back, may borrow what it may not."""
    types = (FIRST, SECOND)
    like = replace(job("b/like"), gpu_types=types)
    desired = with_two_types(lab(replace(job(GONE), gpu_types=types), like, job("a/full", 16), L40S=0, H100=8))
    full = running(desired, "a/full", {"n3": 8, "n4": 8})
    full = replace(full, started=Instant(NOW - 1))
    desired = replace(desired, scheduling=replace(RULES, min_runtime=Nanoseconds(MINUTE)))
    held = (full,)
    before = allocation(
        desired, full, replace(pending(desired, GONE), reclaimed=BACK), pending(desired, "b/like", Instant(START + 1))
    )
    after = judged(desired, before, *held)
    assert gpus_of(after.jobs) == {"a/full": 16, "b/like": 8}
    why = after.jobs[GONE].reason
    assert (why.code, why.number("until")) == (ReasonCode.AFTER_RECLAIM, BACK + 10 * MINUTE)
    assert blockers_of(desired, ready(desired, *held), after, GONE, NOW)[0] == why


def test_another_incarnation_gave_nothing_back() -> None:
    desired = lab(job(GONE), H100=0)
    before = allocation(desired, replace(pending(desired, GONE), reclaimed=BACK, digest=Digest("another")))
    assert gpus_of(judged(desired, before).jobs) == {"b/gone": 8}
