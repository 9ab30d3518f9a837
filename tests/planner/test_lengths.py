"""How long attempts really run: counted when they end, and what a forecast makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.allocation import Allocation, RunLengths
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.observed import AttemptState
from reconciler.model.queue import Scheduling
from reconciler.model.units import HOUR, SECOND, Instant, JobKey, Nanoseconds, QueueName
from reconciler.planner.decide import decide
from reconciler.planner.forecast import forecast
from reconciler.planner.lengths import Lengths
from reconciler.planner.verify import Breach, violations
from tests.planner.worlds import (
    START,
    Cluster,
    Spines,
    allocation,
    job,
    pending,
    queue,
    ready,
    running,
    said,
    with_jobs,
    world,
)

KEY = JobKey("nlp/a")
NLP = QueueName("nlp")
LIMIT = 1600
RACK: Spines = {"sg0": {"r01": ["n1", "n2", "n3", "n4"]}}


def lengths(queue_name: str = "nlp", **parts: int) -> RunLengths:
    """Ends by sixteenth: `p3=2` are two in the fourth."""
    return RunLengths(queue=QueueName(queue_name), sixteenths=tuple(parts.get(f"p{n}", 0) for n in range(16)))


def one_end(part: int) -> RunLengths:
    return RunLengths(queue=NLP, sixteenths=tuple(int(n == part) for n in range(16)))


def ended(after: int, code: int = 0, limit: int | None = LIMIT, known: tuple[RunLengths, ...] = ()) -> Allocation:
    """What is decided so many seconds after the start, when the only rank of nlp/a has exited."""
    desired = world(jobs=[job(KEY, 8, limit=limit)])
    runs = running(desired, KEY, {"gpu-001": 8})
    before = replace(allocation(desired, runs), run_lengths=known, usage_as_of=START)
    observed = said(ready(desired, runs), "gpu-001", KEY, 1, AttemptState.EXITED, code)
    now = Instant(START + after * SECOND)
    made = decide(desired, observed, before, now).allocation
    assert violations(desired, observed, before, made) == ()
    return made


@pytest.mark.parametrize(
    ("seconds", "part"), [(0, 0), (99, 0), (100, 1), (799, 7), (800, 8), (1499, 14), (1500, 15), (1599, 15)]
)
def test_an_end_is_counted_in_the_sixteenth_of_its_limit(seconds: int, part: int) -> None:
    made = ended(seconds)
    assert made.jobs[KEY].outcome is Outcome.SUCCEEDED
    assert made.run_lengths == (one_end(part),)


def test_what_has_no_limit_is_not_counted() -> None:
    assert ended(800, limit=None).run_lengths == ()


def test_counts_are_halved_when_there_are_many() -> None:
    made = ended(800, known=(lengths(p0=127, p15=1), lengths("vision", p2=5)))
    assert made.run_lengths == (lengths(p0=63, p8=1), lengths("vision", p2=5))


def test_a_queue_that_is_gone_is_forgotten_with_the_next_decision() -> None:
    desired = world(jobs=[job(KEY, 8)], queues=[queue("root", None), queue("nlp")])
    before = replace(allocation(desired), run_lengths=(lengths(p1=3), lengths("old", p1=3)))
    made = decide(desired, ready(desired), before, START).allocation
    assert made.jobs[KEY].state is JobState.STARTING
    assert made.run_lengths == (lengths(p1=3),)


def test_attempts_cut_short_by_others_and_cancelled_ones_are_not_counted_and_those_at_their_limit_are() -> None:
    cluster = Cluster(world(RACK, jobs=[job(KEY, 8, limit=LIMIT), job("nlp/b", 8, limit=LIMIT, restarts=0)]))
    cluster.settle()
    cluster.desired = with_jobs(cluster.desired, without=["nlp/b"])
    cluster.step(400)
    cluster.settle()
    assert not cluster.allocation.run_lengths
    cluster.step(LIMIT)
    cluster.settle()
    assert cluster.allocation.jobs[KEY].outcome is Outcome.TIMED_OUT
    assert cluster.allocation.run_lengths == (lengths(p15=1),)


def test_a_gang_that_fails_for_good_is_counted_when_its_rank_failed() -> None:
    cluster = Cluster(world(RACK, jobs=[job(KEY, 8, limit=LIMIT)]))
    cluster.settle()
    began = cluster.allocation.jobs[KEY].started
    assert began is not None
    cluster.end(KEY, 1)
    cluster.step((began - cluster.now) // SECOND + 850)
    cluster.settle()
    assert cluster.allocation.jobs[KEY].outcome is Outcome.FAILED
    assert cluster.allocation.run_lengths == (lengths(p8=1),)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param((), id="an end not counted"),
        pytest.param((lengths(p8=2),), id="counted twice"),
        pytest.param((lengths(p7=1),), id="another sixteenth"),
        pytest.param((lengths(p8=1), lengths("vision", p0=1)), id="an end that was not"),
    ],
)
def test_the_judge_counts_ends_too(wrong: tuple[RunLengths, ...]) -> None:
    desired = world(jobs=[job(KEY, 8, limit=LIMIT)])
    runs = running(desired, KEY, {"gpu-001": 8})
    before = replace(allocation(desired, runs), usage_as_of=START)
    observed = said(ready(desired, runs), "gpu-001", KEY, 1, AttemptState.EXITED, 0)
    made = decide(desired, observed, before, Instant(START + 800 * SECOND)).allocation
    found = violations(desired, observed, before, replace(made, run_lengths=wrong))
    assert [one.code for one in found] == [Breach.WRONG_RUN_LENGTHS]
    same = decide(desired, observed, made, Instant(START + 801 * SECOND)).allocation
    assert [one.code for one in violations(desired, observed, made, replace(same, run_lengths=wrong))] == [
        Breach.WRONG_RUN_LENGTHS
    ]


# --- nine in ten ---


@pytest.mark.parametrize(
    ("row", "run", "within"),
    [
        pytest.param(lengths(), 0, 1600, id="nothing known: the limit"),
        pytest.param(lengths(p3=9), 0, 1600, id="too few to say anything"),
        pytest.param(lengths(p3=10), 0, 400, id="all end in the fourth"),
        pytest.param(lengths(p3=9, p9=1), 0, 400, id="nine of ten"),
        pytest.param(lengths(p3=8, p9=2), 0, 1000, id="eight of ten are not enough"),
        pytest.param(lengths(p3=8, p9=2), 400, 1000, id="past the fourth only the others count"),
        pytest.param(lengths(p3=9, p9=1), 399, 400, id="still inside the fourth"),
        pytest.param(lengths(p3=10), 500, 1600, id="none ran so long"),
        pytest.param(lengths(p15=10), 0, 1600, id="to the limit"),
        pytest.param(lengths("vision", p3=10), 0, 1600, id="another queue's history"),
    ],
)
def test_nine_in_ten_ended_within(row: RunLengths, run: int, within: int) -> None:
    known = Lengths([row])
    found = known.nine_in_ten(NLP, Nanoseconds(LIMIT * SECOND), Nanoseconds(run * SECOND))
    assert found == within * SECOND


def waits(known: tuple[RunLengths, ...], began: int = 0) -> tuple[Desired, Allocation]:
    """nlp/a holds everything for four hours at most, nlp/b waits for it."""
    rules = Scheduling(order="priorityThenAge", preempt_same_queue="never", move_to_start="never")
    desired = world(RACK, jobs=[job(KEY, 32, limit=4 * 3600), job("nlp/b", 32, limit=3600)], rules=rules)
    runs = running(desired, KEY, {f"n{n}": 8 for n in range(1, 5)}, started=Instant(START - began * HOUR))
    return desired, replace(allocation(desired, runs, pending(desired, "nlp/b")), run_lengths=known)


@pytest.mark.parametrize(
    ("row", "began", "p90"),
    [
        pytest.param(lengths(p0=20), 0, 15, id="most end in the first quarter of an hour"),
        pytest.param(lengths(p0=20, p11=20), 1, 120, id="it has passed those: the others took three hours"),
        pytest.param(lengths(p15=20), 0, None, id="no sooner than the limit says"),
        pytest.param(lengths(p0=5), 0, None, id="too little history"),
        pytest.param(lengths("vision", p0=20), 0, None, id="none of this queue"),
    ],
)
def test_a_forecast_has_a_second_instant_from_how_long_such_jobs_ran(
    row: RunLengths, began: int, p90: int | None
) -> None:
    desired, known = waits((row,), began)
    found = forecast(desired, ready(desired, known.jobs[KEY]), known, START)[JobKey("nlp/b")]
    assert found.at == START + (4 - began) * HOUR
    assert found.p90 == (None if p90 is None else START + p90 * 60 * SECOND)


def test_no_decision_reads_how_long_attempts_ran() -> None:
    desired, plain = waits(())
    observed = ready(desired, plain.jobs[KEY])
    told = replace(plain, run_lengths=(lengths(p0=100),))
    one, other = (decide(desired, observed, known, START).allocation for known in (plain, told))
    assert one.jobs == other.jobs
