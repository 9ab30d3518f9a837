"""When will it start? The planner run forward, against what a simulated cluster really does."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.lifecycle import JobState
from reconciler.model.queue import Scheduling
from reconciler.model.units import HOUR, SECOND, Instant, JobKey, Nanoseconds
from reconciler.planner.forecast import Forecast, forecast
from tests.planner.worlds import (
    START,
    Cluster,
    Spines,
    allocation,
    job,
    pending,
    ready,
    running,
    window,
    with_jobs,
    world,
)

H = 3600
RACK: Spines = {"sg0": {"r01": ["n1", "n2", "n3", "n4"]}}
RULES = Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0), preempt_same_queue="never", move_to_start="never")


def hours(found: dict[str, int] | object, key: str) -> float | None:
    known = found.get(JobKey(key)) if isinstance(found, dict) else None
    return (known.at - START) / HOUR if isinstance(known, Forecast) else None


def test_ends_follow_one_another() -> None:
    jobs = [job("nlp/a", 32, limit=2 * H), job("nlp/b", 32, limit=3 * H), job("nlp/c", 32, limit=H)]
    desired = world(RACK, jobs=jobs, rules=RULES)
    runs = running(desired, "nlp/a", {f"n{n}": 8 for n in range(1, 5)})
    known = allocation(desired, runs, pending(desired, "nlp/b"), pending(desired, "nlp/c", Instant(START + 1)))
    found = dict(forecast(desired, ready(desired, runs), known, START))
    assert (hours(found, "nlp/b"), hours(found, "nlp/c")) == (2, 5)
    assert found[JobKey("nlp/b")].reserved


def test_who_waits_for_work_without_limit_is_unknown() -> None:
    desired = world(RACK, jobs=[job("nlp/a", 32), job("nlp/b", 32, limit=3 * H)], rules=RULES)
    runs = running(desired, "nlp/a", {f"n{n}": 8 for n in range(1, 5)})
    known = allocation(desired, runs, pending(desired, "nlp/b"))
    assert forecast(desired, ready(desired, runs), known, START) == {}


def test_a_window_is_waited_for() -> None:
    desired = world(RACK, jobs=[job("nlp/b", 32, limit=3 * H)], rules=RULES, windows=[window("n1", H, 4 * H)])
    found = dict(forecast(desired, ready(desired), allocation(desired, pending(desired, "nlp/b")), START))
    assert hours(found, "nlp/b") == 4


def test_steps_are_bounded_and_what_is_beyond_is_unknown() -> None:
    jobs = [job("nlp/a", 32, limit=2 * H), *(job(f"nlp/w{n}", 32, limit=H) for n in range(4))]
    desired = world(RACK, jobs=jobs, rules=replace(RULES, backfill="none"))
    runs = running(desired, "nlp/a", {f"n{n}": 8 for n in range(1, 5)})
    waits = [pending(desired, f"nlp/w{n}", Instant(START + n)) for n in range(4)]
    known = allocation(desired, runs, *waits)
    found = dict(forecast(desired, ready(desired, runs), known, START, instants=3))
    assert [hours(found, f"nlp/w{n}") for n in range(4)] == [2, 3, None, None]
    assert set(forecast(desired, ready(desired, runs), known, START, jobs=1)) == {"nlp/w0"}
    assert set(forecast(desired, ready(desired, runs), known, START, [JobKey("nlp/w1")])) == {"nlp/w1"}


def test_a_forecast_changes_nothing() -> None:
    desired = world(RACK, jobs=[job("nlp/a", 32, limit=2 * H), job("nlp/b", 32, limit=3 * H)], rules=RULES)
    runs = running(desired, "nlp/a", {f"n{n}": 8 for n in range(1, 5)})
    known = allocation(desired, runs, pending(desired, "nlp/b"))
    before = dict(known.jobs)
    forecast(desired, ready(desired, runs), known, START)
    assert known.jobs == before


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=7))
def test_a_cluster_that_runs_to_its_limits_starts_the_head_of_the_line_by_its_forecast(
    crowd: list[tuple[int, int]],
) -> None:
    """Each attempt takes some seconds longer to come and go than the forecast assumes: a few minutes are allowed. Those
    behind the head may miss a gap by these seconds; they are known at least."""
    jobs = [job(f"nlp/j{n}", 8 * size, limit=H * limit) for n, (size, limit) in enumerate(crowd)]
    cluster = Cluster(world(RACK, rules=RULES))
    cluster.desired = with_jobs(cluster.desired, *jobs)
    cluster.settle()
    found = forecast(cluster.desired, cluster.observe(), cluster.allocation, cluster.now)
    waiting = [key for key, r in cluster.allocation.jobs.items() if r.state is JobState.PENDING]
    assert set(found) >= set(waiting)
    while waiting and not cluster.allocation.jobs[waiting[0]].attempt:
        cluster.step(60)
        assert cluster.now <= found[waiting[0]].at + 600 * SECOND, (waiting[0], found)
