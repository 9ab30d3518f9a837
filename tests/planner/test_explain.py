"""Why a job waits: the code, and numbers a person can check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NodeCondition
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import HOUR, SECOND, GpuType, Instant, JobKey, Nanoseconds
from reconciler.planner.capacity import OutageCode, outages_of
from reconciler.planner.decide import decide
from reconciler.planner.explain import blockers_of
from reconciler.planner.ground import ground_of
from tests.planner.worlds import (
    START,
    allocation,
    job,
    queue,
    ready,
    running,
    saw,
    window,
    with_jobs,
    with_node,
    world,
)

KEY = JobKey("nlp/z")
BASE = world()
WHOLE = {"tensor": "nvlinkDomain"}


def why(
    desired: Desired, asked: Job, records: Sequence[JobRecord] = (), *, silent: str = ""
) -> tuple[JobState, Reason]:
    wanted = with_jobs(desired, asked)
    observed = ready(wanted, *records)
    if silent:
        observed = saw(observed, silent, condition=NodeCondition.UNREACHABLE)
    decision = decide(wanted, observed, allocation(wanted, *records), Instant(START + HOUR))
    record = decision.allocation.jobs[asked.key]
    again = decide(wanted, observed, decision.allocation, Instant(START + HOUR + SECOND))
    assert again.allocation.jobs[asked.key] is record, "an unchanged world keeps the record"
    return record.state, record.reason


@pytest.mark.parametrize(
    ("asked", "state", "expected"),
    [
        pytest.param(
            job(KEY, 64), JobState.HELD, reason(ReasonCode.NEVER_FITS, need=64, largest=32, level="cluster"),
            id="more than there is",
        ),
        pytest.param(
            job(KEY, 24, required={"job": "rack"}), JobState.HELD,
            reason(ReasonCode.NEVER_FITS, need=24, largest=16, level="rack"), id="more than any rack has",
        ),
        pytest.param(
            job(KEY, 16, dims={"tensor": 16}, required=WHOLE), JobState.HELD,
            reason(ReasonCode.NEVER_FITS, need=16, largest=8, level="nvlinkDomain"), id="more than any NVLink domain has",
        ),
        pytest.param(
            replace(job(KEY, 8), gpu_types=(GpuType("H900"),)), JobState.HELD,
            reason(ReasonCode.GPU_TYPE_MISSING, gpuTypes="H900"), id="a type nobody has",
        ),
        pytest.param(
            job(KEY, 8, required={"job": "planet"}), JobState.HELD,
            reason(ReasonCode.NEVER_FITS, need=8, largest=0, level="planet"), id="a level the fabric does not have",
        ),
        pytest.param(
            replace(job(KEY, 8, required={"job": "node"}), cpus_per_gpu=1000),
            JobState.HELD,
            reason(ReasonCode.NEVER_FITS, need=8, largest=0, level="node", short="CPU"),
            id="more CPUs than any node has",
        ),
    ],
)  # fmt: skip
def test_never_is_told_apart_from_not_now(asked: Job, state: JobState, expected: Reason) -> None:
    assert why(BASE, asked) == (state, expected)


def test_a_queue_that_can_never_hold_so_much_is_told_at_once() -> None:
    desired = world(queues=[queue("nlp", "root", ceiling=16), queue("root", None, ceiling=8)])
    assert why(desired, job(KEY, 12)) == (
        JobState.HELD, reason(ReasonCode.NEVER_FITS_QUOTA, need=12, queue="nlp", most=8)
    )  # fmt: skip


def test_a_full_ceiling_up_the_tree_names_the_queue_that_is_full() -> None:
    queues = [queue("nlp", "root"), queue("root", None, ceiling=16), queue("vision", "root")]
    desired = world(jobs=[job("vision/a", 8, "high")], queues=queues)
    records = [running(desired, "vision/a", {"gpu-001": 8})]
    assert why(desired, job(KEY, 16), records) == (
        JobState.PENDING, reason(ReasonCode.QUOTA_CEILING, queue="root", wouldBe=24, ceiling=16, gpuType="H100")
    )  # fmt: skip


FULL = [job(f"nlp/a{n}", 8, "high") for n in range(1, 5)]


def filled(nodes: Sequence[int], gpus: int = 8) -> tuple[Desired, list[JobRecord]]:
    jobs = [job(f"nlp/a{n}", gpus, "high") for n in nodes]
    desired = world(jobs=jobs)
    return desired, [running(desired, f"nlp/a{n}", {f"gpu-00{n}": gpus}) for n in nodes]


def test_too_few_gpus() -> None:
    desired, records = filled((1, 2, 3))
    expected = reason(ReasonCode.CAPACITY, need=16, free=8, evictable=0, releasing=0)
    shielded = [replace(r, started=Instant(START + HOUR)) for r in records]
    assert why(desired, job(KEY, 16), shielded) == (JobState.PENDING, expected)


def test_gpus_that_only_a_protection_keeps() -> None:
    rules = Scheduling(min_runtime=Nanoseconds(2 * HOUR), max_min_runtime=Nanoseconds(2 * HOUR))
    jobs = [job(f"nlp/a{n}", 8, "low") for n in range(1, 5)]
    desired = world(jobs=jobs, rules=rules)
    records = [running(desired, f"nlp/a{n}", {f"gpu-00{n}": 8}) for n in range(1, 5)]
    state, found = why(desired, job(KEY, 8), records)
    assert (state, found.code, found.number("protected")) == (JobState.PENDING, ReasonCode.PROTECTED_UNTIL, 32)
    assert found.number("until") == START + 2 * HOUR
    assert found.number("by") == ", ".join(f"nlp/a{n} (minRuntime)" for n in range(1, 5))


def test_enough_gpus_in_the_wrong_shape() -> None:
    desired, records = filled((1, 2, 3, 4), gpus=6)
    assert why(desired, job(KEY, 4, required={"job": "node"}), records) == (
        JobState.PENDING, reason(ReasonCode.NO_DOMAIN_FITS, need=4, level="node", best="gpu-001", free=2)
    )  # fmt: skip
    desired, records = filled((1, 3))
    assert why(desired, job(KEY, 16, required={"job": "rack"}), records) == (
        JobState.PENDING, reason(ReasonCode.NO_DOMAIN_FITS, need=16, level="rack", best="r01", free=8)
    )  # fmt: skip


def test_groups_that_do_not_fit_although_gpus_do() -> None:
    desired, records = filled((1, 3), gpus=4)
    wanted = job(KEY, 24, dims={"tensor": 12, "data": 2}, required={"tensor": "rack"})
    assert why(desired, wanted, records)[0] is JobState.STARTING  # 12 + 12 in each rack
    desired, records = filled((1, 3), gpus=5)
    state, found = why(
        desired, job(KEY, 16, dims={"tensor": 8, "data": 2}, required={"tensor": "nvlinkDomain"}), [*records]
    )
    assert state is JobState.STARTING
    held = [*filled((1, 2, 3, 4), gpus=2)[1]]
    state, found = why(
        filled((1, 2, 3, 4), gpus=2)[0], job(KEY, 24, dims={"tensor": 8, "data": 3}, required=WHOLE), held
    )
    assert (state, found.code) == (JobState.PENDING, ReasonCode.NO_DOMAIN_FITS)


def test_nodes_that_take_no_work_are_named_by_state() -> None:
    desired = with_node(BASE, "gpu-001", cordoned="fan")
    state, found = why(desired, job(KEY, 32), silent="gpu-002")
    expected = reason(ReasonCode.NODE_STATE, excluded=16, states="8 Cordoned, 8 Unreachable")
    assert (state, found) == (JobState.PENDING, expected)


def test_maintenance_that_begins_before_the_job_would_end() -> None:
    desired = replace(BASE, windows=(window("gpu-001", 7200, 9000),))
    state, found = why(desired, job(KEY, 32, limit=7200))
    assert (state, found) == (JobState.PENDING, reason(ReasonCode.MAINTENANCE, excluded=8, window="works"))
    assert why(desired, job(KEY, 32, limit=1800))[0] is JobState.STARTING


def test_like_jobs_share_a_reason_and_keep_their_numbers_as_of_since() -> None:
    desired, records = filled((1, 2, 3, 4))
    desired = with_jobs(desired, job("nlp/x", 8), job("nlp/y", 8))
    first = decide(desired, ready(desired, *records), allocation(desired, *records), Instant(START + HOUR)).allocation
    assert first.jobs[JobKey("nlp/x")].reason == first.jobs[JobKey("nlp/y")].reason
    fewer = with_jobs(desired, without=["nlp/a1"])
    second = decide(fewer, ready(desired, *records), first, Instant(START + 2 * HOUR)).allocation
    waits = second.jobs[JobKey("nlp/y")]
    assert waits is first.jobs[JobKey("nlp/y")] or waits.state is JobState.PROMISED


def test_all_blockers_are_listed_live_and_the_binding_one_is_first() -> None:
    desired, records = filled((1, 2, 3))
    desired = with_node(with_jobs(desired, job(KEY, 8)), "gpu-004", cordoned="fan")
    observed = ready(desired, *records)
    made = decide(desired, observed, allocation(desired, *records), Instant(START + HOUR)).allocation
    found = blockers_of(desired, observed, made, KEY, Instant(START + HOUR))
    assert [one.code for one in found] == [ReasonCode.NODE_STATE, ReasonCode.CAPACITY]
    assert made.jobs[KEY].reason == found[0]
    assert [(d.node, d.code) for d in outages_of(ground_of(desired.inventory), observed, made)] == [
        ("gpu-004", OutageCode.CORDONED)
    ]
