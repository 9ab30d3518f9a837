"""Maintenance and reserved nodes: who may use them until when, and what becomes of who is still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reconciler.model.desired import Desired, Window
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import HOUR, SECOND, Instant, JobKey, Nanoseconds, QueueName
from reconciler.planner.decide import decide
from reconciler.planner.verify import Breach, violations
from tests.planner.worlds import (
    START,
    Spines,
    allocation,
    job,
    pending,
    queue,
    ready,
    running,
    window,
    with_jobs,
    world,
)

H = 3600
NODE: Spines = {"s": {"r": ["n1"]}}
RULES = Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0))
QUEUES = (queue("nlp"), queue("nlp-a", "nlp"), queue("root", None), queue("vision"))


def reserved(*members: str, begins: int = 2 * H, ends: int = 9 * H) -> Window:
    made = window("n1", begins, ends)
    return replace(made, name="demo", drain="wait", members=tuple(QueueName(name) for name in members))


def told(asked: Job, *windows: Window, now: int = 0) -> str:
    desired = world(NODE, jobs=[asked], windows=windows, rules=RULES, queues=QUEUES)
    known = allocation(desired, pending(desired, asked.key))
    seen = ready(desired)
    after = decide(desired, seen, known, Instant(START + now * SECOND)).allocation
    assert [v for v in violations(desired, seen, known, after) if v.code != "WrongUsage"] == []
    record = after.jobs[asked.key]
    return "start" if record.state is JobState.STARTING else record.reason.code


@pytest.mark.parametrize(
    ("asked", "windows", "now", "expected"),
    [
        (job("nlp/x", limit=2 * H), [window("n1", 2 * H, 9 * H)], 0, "start"),  # gone when it begins
        (job("nlp/x", limit=2 * H + 1), [window("n1", 2 * H, 9 * H)], 0, "Maintenance"),
        (job("nlp/x"), [window("n1", 6 * 24 * H, 9 * 24 * H)], 0, "Maintenance"),  # without limit: taken as 7 days
        (job("nlp/x"), [window("n1", 7 * 24 * H, 9 * 24 * H)], 0, "start"),
        (job("nlp/x", limit=H), [window("n1", 2 * H, 9 * H)], 3 * H, "Maintenance"),  # it is on
        (job("nlp/x", limit=H), [window("n1", 2 * H, 9 * H)], 9 * H, "start"),  # it is over
        (job("nlp/x"), [reserved("nlp")], 0, "start"),
        (job("nlp-a/x"), [reserved("nlp")], 3 * H, "start"),  # a queue below a member is one
        (job("vision/x", limit=2 * H), [reserved("nlp")], 0, "start"),  # strangers, until it begins
        (job("vision/x", limit=3 * H), [reserved("nlp")], 0, "Maintenance"),
        (job("nlp/x", limit=3 * H), [reserved("nlp"), reserved("vision")], 0, "Maintenance"),  # the stricter holds
        (job("nlp/x", limit=3 * H), [reserved("nlp"), window("n1", 2 * H, 3 * H)], 0, "Maintenance"),
    ],
)
def test_who_may_start_on_a_node_with_a_window(asked: Job, windows: Sequence[Window], now: int, expected: str) -> None:
    assert told(asked, *windows, now=now) == expected


def leaving(
    drain: str, *, seconds: int, grace: int | None = 600, class_: str = "normal", members: Sequence[str] = ()
) -> tuple[object, ...]:
    """State, cause, phase of a running job so long after START; the window begins at two hours."""
    asked = job("nlp/x", 8, class_, checkpoint=grace)
    made = replace(window("n1", 2 * H, 9 * H), drain=drain, members=tuple(QueueName(m) for m in members))
    desired = world(NODE, jobs=[asked], windows=[made], rules=RULES, queues=QUEUES)
    runs = running(desired, "nlp/x", {"n1": 8})
    known, seen = allocation(desired, runs), ready(desired, runs)
    after = decide(desired, seen, known, Instant(START + seconds * SECOND)).allocation
    assert [v for v in violations(desired, seen, known, after) if v.code != "WrongUsage"] == []
    record = after.jobs[asked.key]
    return record.state, record.cause, record.phase


RUNS = (JobState.RUNNING, None, Phase.RUN)


@pytest.mark.parametrize(
    ("drain", "seconds", "expected"),
    [
        ("checkpoint", 2 * H - 601, RUNS),
        ("checkpoint", 2 * H - 600, (JobState.STOPPING, Cause.MAINTENANCE, Phase.CHECKPOINT)),
        ("kill", 2 * H - 600, (JobState.STOPPING, Cause.MAINTENANCE, Phase.STOP)),
        ("wait", 3 * H, RUNS),
    ],
)
def test_what_becomes_of_work_that_is_there(drain: str, seconds: int, expected: tuple[object, ...]) -> None:
    assert leaving(drain, seconds=seconds) == expected


def test_the_reason_counts_the_gpus_on_drained_nodes_alone() -> None:
    asked = job("nlp/x", 12, checkpoint=600)
    two: Spines = {"s": {"r": ["n1", "n2"]}}
    closed = window("n1", 2 * H, 9 * H)
    desired = world(two, jobs=[asked], windows=[closed], rules=RULES, queues=QUEUES)
    runs = running(desired, "nlp/x", {"n1": 8, "n2": 4})
    after = decide(desired, ready(desired, runs), allocation(desired, runs), Instant(START + 3 * H * SECOND)).allocation
    assert after.jobs[asked.key].reason == reason(ReasonCode.MAINTENANCE, excluded=8, window=closed.name)


def test_work_that_nobody_may_preempt_is_drained_too() -> None:
    assert leaving("checkpoint", seconds=2 * H, class_="high")[1] is Cause.MAINTENANCE


def test_members_are_not_drained() -> None:
    assert leaving("checkpoint", seconds=3 * H, members=["nlp"]) == RUNS
    assert leaving("checkpoint", seconds=3 * H, members=["vision"])[1] is Cause.MAINTENANCE


def test_the_judge_sees_a_stranger_on_reserved_nodes() -> None:
    desired: Desired = world(NODE, jobs=[job("vision/x", limit=3 * H)], rules=RULES, queues=QUEUES)
    known = allocation(desired, pending(desired, "vision/x"))
    seen = ready(desired)
    after = decide(desired, seen, known, START).allocation
    closed = replace(desired, windows=(reserved("nlp"),))
    assert Breach.MAINTENANCE_AHEAD in {v.code for v in violations(closed, seen, known, after)}
    open_to = replace(desired, windows=(reserved("vision"),))
    assert Breach.MAINTENANCE_AHEAD not in {v.code for v in violations(open_to, seen, known, after)}


def test_a_reservation_is_made_around_a_window() -> None:
    jobs = [job("nlp/a", 8, limit=H), job("nlp/x", 8, limit=2 * H)]
    desired = world(NODE, jobs=jobs, windows=[window("n1", 2 * H, 5 * H)], rules=RULES, queues=QUEUES)
    runs = running(desired, "nlp/a", {"n1": 8})
    known = allocation(with_jobs(desired, without=["nlp/x"]), runs)
    after = decide(desired, ready(desired, runs), known, START).allocation
    assert after.jobs[JobKey("nlp/x")].reason.number("earliestStart") == START + 5 * HOUR
