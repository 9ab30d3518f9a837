"""Usage that decays: the fixed-point arithmetic against exact fractions, and what a decision commits of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Context, Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import Allocation, Usage
from reconciler.model.desired import Desired
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.units import DAY, HOUR, SECOND, Gpus, GpuType, Instant, JobKey, Nanoseconds, QueueName
from reconciler.planner.decide import decide
from reconciler.planner.usage import INVERSE_LN2, ONE, advanced, brought_to, decay
from reconciler.planner.verify import Breach, violations
from tests.planner.worlds import (
    H100,
    START,
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

EXACT = Context(prec=60)
WEEK = 7 * 86400
KIND = GpuType(H100)


def exactly(acc: int, rate: int, span: int, half: int) -> Decimal:
    """acc·2^(-t) + rate·half/ln 2·(1 - 2^(-t)), t = span/half."""
    left = EXACT.power(Decimal(2), EXACT.divide(Decimal(-span), Decimal(half)))
    grown = EXACT.multiply(EXACT.divide(Decimal(half), EXACT.ln(Decimal(2))), 1 - left)
    return EXACT.add(EXACT.multiply(Decimal(acc), left), EXACT.multiply(Decimal(rate), grown))


def test_the_constant_is_one_over_the_natural_logarithm_of_two() -> None:
    assert int(EXACT.divide(Decimal(ONE), EXACT.ln(Decimal(2)))) == INVERSE_LN2


@pytest.mark.parametrize("halvings", range(70))
def test_whole_half_lives_are_exact(halvings: int) -> None:
    assert decay(halvings * WEEK, WEEK) == (ONE >> halvings if halvings < 64 else 0)


def test_a_hundred_gpu_hours_are_twenty_five_after_two_half_lives() -> None:
    hundred = 100 * 3600 * 1000
    assert advanced(hundred, 0, 2 * WEEK, WEEK) == hundred // 4


@settings(derandomize=True, deadline=None, database=None, max_examples=500)
@given(st.integers(0, 10**16), st.integers(0, 10**8), st.integers(0, 10**8), st.integers(60, 10**7))
def test_close_to_the_exact_integral(acc: int, rate: int, span: int, half: int) -> None:
    """To 10^-9 and one floored unit for each of the two terms."""
    due = exactly(acc, rate, span, half)
    found = advanced(acc, rate, span, half)
    assert found <= due + due * Decimal("1e-9")
    assert due - found <= 2 + due * Decimal("1e-9")


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.integers(0, 10**14), st.integers(0, 10**7), st.lists(st.integers(0, 10**6), min_size=2, max_size=6))
def test_many_small_steps_are_one_large_one(acc: int, rate: int, spans: list[int]) -> None:
    """A unit is floored in each term of each step, no more."""
    step = acc
    for span in spans:
        step = advanced(step, rate, span, WEEK)
    whole = advanced(acc, rate, sum(spans), WEEK)
    assert abs(step - whole) <= 3 * len(spans) + whole // 10**9


def test_less_than_a_second_waits_for_the_next_time() -> None:
    row = Usage(queue=QueueName("a"), gpu_type=KIND, acc=1000, rate=8000)
    found, as_of = brought_to([row], START, Instant(START + 3 * SECOND + 999), Nanoseconds(WEEK * SECOND))
    assert as_of == START + 3 * SECOND
    assert found == {(QueueName("a"), KIND): (advanced(1000, 8000, 3, WEEK), 8000)}


# --- what a decision commits ---


def shared(guaranteed: Mapping[str, int]) -> list[Queue]:
    rows = [replace(queue(name), guaranteed={KIND: Gpus(gpus)}) for name, gpus in guaranteed.items()]
    return [queue("root", None), *rows]


def borrowing(permille: int = 1000) -> tuple[Desired, Allocation]:
    """nlp is guaranteed 8 of 32 GPUs and holds 24; vision waits for 8 with nothing held."""
    classes = (replace(priority("normal", 500), usage_permille=permille),)
    desired = world(
        jobs=[job("nlp/a", 16), job("nlp/b", 8), job("vision/new", 8)],
        queues=shared({"nlp": 8, "vision": 8}),
        classes=classes,
    )
    records = [running(desired, "nlp/a", {"gpu-001": 8, "gpu-002": 8}), running(desired, "nlp/b", {"gpu-003": 8})]
    return desired, replace(allocation(desired, *records, pending(desired, "vision/new")), usage_as_of=START)


@pytest.mark.parametrize("permille", [1000, 250])
def test_only_what_is_above_the_guarantee_is_charged_and_scaled_by_class(permille: int) -> None:
    desired, before = borrowing(permille)
    after = decide(desired, ready(desired, *before.jobs.values()), before, Instant(START + HOUR)).allocation
    assert after.usage == (Usage(queue=QueueName("nlp"), gpu_type=KIND, acc=0, rate=16 * permille),)
    assert after.usage_as_of == START + HOUR


def test_accounts_move_only_with_a_committed_decision() -> None:
    desired, before = borrowing()
    first = decide(desired, ready(desired, *before.jobs.values()), before, Instant(START + HOUR)).allocation
    seen = ready(desired, *before.jobs.values())  # the new gang has not prepared yet
    again = decide(desired, seen, first, Instant(START + HOUR + SECOND))
    assert not again.changed
    assert (again.allocation.usage, again.allocation.usage_as_of) == (first.usage, first.usage_as_of)
    fewer = with_jobs(desired, without=["nlp/b"])
    later = decide(fewer, seen, first, Instant(START + 3 * HOUR)).allocation
    assert later.usage[0].acc == advanced(0, 16_000, 2 * 3600, WEEK)


def test_a_queue_that_is_gone_keeps_its_account() -> None:
    desired, before = borrowing()
    old = Usage(queue=QueueName("gone"), gpu_type=KIND, acc=4_000_000, rate=8)
    before = replace(before, usage=(old,))
    after = decide(desired, ready(desired, *before.jobs.values()), before, Instant(START + 7 * DAY)).allocation
    assert {row.queue: (row.acc, row.rate) for row in after.usage}[QueueName("gone")] == (
        advanced(4_000_000, 8, WEEK, WEEK),
        0,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda after: replace(after, usage=()), id="forgotten"),
        pytest.param(lambda after: replace(after, usage=(replace(after.usage[0], rate=1),)), id="another rate"),
        pytest.param(lambda after: replace(after, usage=(replace(after.usage[0], acc=10**9),)), id="made up"),
        pytest.param(lambda after: replace(after, usage_as_of=START), id="not brought to now"),
    ],
)
def test_the_judge_counts_too(wrong: object) -> None:
    assert callable(wrong)
    desired, before = borrowing()
    seen = ready(desired, *before.jobs.values())
    after = decide(desired, seen, before, Instant(START + HOUR)).allocation
    assert violations(desired, seen, before, after) == ()
    assert {found.code for found in violations(desired, seen, before, wrong(after))} == {Breach.WRONG_USAGE}


# --- what it decides ---


def first_to_start(usage: tuple[Usage, ...], rules: Scheduling, weights: Mapping[str, int] | None = None) -> str:
    """Two queues without guarantee want the one free node; who gets it?"""
    rows = [replace(one, weight=(weights or {}).get(one.name, 1)) for one in shared({"nlp": 0, "vision": 0})]
    desired = world({"sg0": {"r1": ["a1"]}}, jobs=[job("nlp/x"), job("vision/x")], queues=rows, rules=rules)
    before = replace(
        allocation(desired, pending(desired, "nlp/x"), pending(desired, "vision/x", Instant(START + 1))),
        usage=usage,
        usage_as_of=START,
    )
    after = decide(desired, ready(desired), before, Instant(START + HOUR)).allocation
    return next(str(r.queue) for r in after.jobs.values() if r.state == "Starting")


FAIR = Scheduling(order="fairShare", backfill="none")


def used(name: str, gpu_hours: int) -> Usage:
    return Usage(queue=QueueName(name), gpu_type=KIND, acc=gpu_hours * 3_600_000)


def test_who_has_used_less_goes_first() -> None:
    assert first_to_start((), FAIR) == "nlp"
    assert first_to_start((used("nlp", 10),), FAIR) == "vision"
    assert first_to_start((used("nlp", 10), used("vision", 30)), FAIR, {"vision": 4}) == "vision"
    assert first_to_start((used("nlp", 10),), replace(FAIR, order="priorityThenAge")) == "nlp"


def test_priority_does_not_order_across_queues() -> None:
    desired = world({"sg0": {"r1": ["a1"]}}, jobs=[job("nlp/x", 8, "high"), job("vision/x", 8, "low")], rules=FAIR)
    before = replace(
        allocation(desired, pending(desired, "nlp/x"), pending(desired, "vision/x")),
        usage=(used("nlp", 1),),
        usage_as_of=START,
    )
    after = decide(desired, ready(desired), before, Instant(START + HOUR)).allocation
    assert after.jobs[JobKey("vision/x")].state == "Starting"
