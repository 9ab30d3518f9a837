"""Arrays in the planner: how many tasks at once, who goes further than what is free, who ends unstarted, and the cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.desired import Desired
from reconciler.model.job import Array, Dependency, Job, Task
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import ReasonCode, sentence
from reconciler.model.tombstones import Tombstone, buried
from reconciler.model.units import MINUTE, SECOND, Digest, Instant, JobKey, Nanoseconds, task_key
from reconciler.planner.arrays import Arrays
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.explain import blockers_of
from reconciler.planner.preemption import find_victims
from reconciler.planner.verify import Breach, violations
from tests.planner.test_verify import starting
from tests.planner.worlds import START, Cluster, allocation, job, pending, placement, ready, running, with_jobs, world

SWEEP = JobKey("nlp/sweep")
PRIORITY = Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0), backfill="none")


def tasks(
    count: int, template: Job | None = None, *, most: int | None = None, stop: bool = False,
    cancelled: frozenset[int] = frozenset(), again: frozenset[int] = frozenset(),
) -> list[Job]:  # fmt: skip
    """The tasks of an array, as `documents` makes them; those `again` are another incarnation."""
    made = template or job(SWEEP, 1)
    return [
        replace(
            made, name=f"{made.name}.{index}", digest=Digest(f"{made.digest}/{index}{'+' * (index in again)}"),
            task=Task(array=made.key, index=index, size=count, max_parallel=most, stop_on_failure=stop,
                      cancelled=index in cancelled),
        )
        for index in range(count)
    ]  # fmt: skip


def sweeping(
    count: int, template: Job | None = None, *others: Job, most: int | None = None, stop: bool = False,
    cancelled: frozenset[int] = frozenset(), again: frozenset[int] = frozenset(), rules: Scheduling = PRIORITY,
) -> Desired:  # fmt: skip
    """The two racks with 32 GPUs, and an array that wants some."""
    made = template or job(SWEEP, 1)
    gangs = tasks(count, made, most=most, stop=stop, cancelled=cancelled, again=again)
    whole = replace(made, array=Array(tasks=({},) * count, max_parallel=most, stop_on_failure=stop))
    return replace(world(jobs=[*gangs, *others], rules=rules), arrays={made.key: whole})


def states(cluster: Cluster) -> Counter[str]:
    return Counter(str(r.state) for r in cluster.allocation.jobs.values() if r.job.startswith(f"{SWEEP}."))


def codes(cluster: Cluster, state: JobState) -> Counter[ReasonCode]:
    return Counter(r.reason.code for r in cluster.allocation.jobs.values() if r.state is state)


def at_work(cluster: Cluster) -> list[int]:
    return sorted(int(r.job.rpartition(".")[2]) for r in cluster.allocation.jobs.values() if r.state.holds_gpus)


# --- how many at once -------------------------------------------------------------------------------------------


def test_two_hundred_tasks_take_all_that_is_free_in_one_round_in_the_order_of_their_numbers() -> None:
    cluster = Cluster(sweeping(200))
    assert cluster.step()
    assert at_work(cluster) == list(range(32))
    assert states(cluster) == {"Starting": 32, "Pending": 168}
    assert codes(cluster, JobState.PENDING) == {ReasonCode.CAPACITY: 168}


def test_no_more_than_max_parallel_hold_gpus_and_the_next_starts_when_one_ends() -> None:
    cluster = Cluster(sweeping(12, most=4))
    cluster.settle()
    assert at_work(cluster) == [0, 1, 2, 3]
    why = cluster.allocation.jobs[task_key(SWEEP, 4)].reason
    assert sentence(why) == "4 tasks of nlp/sweep hold GPUs, as many as it allows at once"
    cluster.end("nlp/sweep.2")
    cluster.settle()
    assert at_work(cluster) == [0, 1, 3, 4]
    for _ in range(11):
        for index in at_work(cluster):
            cluster.end(f"nlp/sweep.{index}")
        cluster.settle()
    assert states(cluster) == {"Finished": 12}
    assert len(cluster.allocation.tombstones) == 12


def test_a_task_that_stops_for_somebody_still_counts_until_it_is_gone() -> None:
    high = job("nlp/urgent", 32, "high")
    cluster = Cluster(sweeping(40, job(SWEEP, 8, "low", checkpoint=60), most=3))
    cluster.settle()
    cluster.desired = replace(with_jobs(cluster.desired, high), arrays=cluster.desired.arrays)
    cluster.step()
    assert states(cluster)["Stopping"] == 3
    assert states(cluster)["Starting"] == 0
    assert codes(cluster, JobState.PENDING)[ReasonCode.MAX_PARALLEL] == 37


def test_a_limit_that_was_lowered_stops_nobody_and_starts_nobody() -> None:
    cluster = Cluster(sweeping(12, most=6))
    cluster.settle()
    cluster.desired = sweeping(12, most=2)
    cluster.settle()
    assert at_work(cluster) == [0, 1, 2, 3, 4, 5]
    for index in (0, 1, 2, 3):
        cluster.end(f"nlp/sweep.{index}")
    cluster.settle()
    assert at_work(cluster) == [4, 5]


def test_the_limit_binds_its_own_array_only() -> None:
    other = tasks(8, job("nlp/other", 1), most=2)
    cluster = Cluster(sweeping(8, None, *other, job("nlp/plain", 1), most=3))
    cluster.settle()
    held = Counter(r.job.partition(".")[0] for r in cluster.allocation.jobs.values() if r.state.holds_gpus)
    assert held == {"nlp/sweep": 3, "nlp/other": 2, "nlp/plain": 1}


# --- who goes further -------------------------------------------------------------------------------------------


def test_only_the_first_waiting_task_evicts_one_a_round_and_others_are_not_barred_by_it() -> None:
    lows = [job(f"nlp/low-{number}", 8, "low", checkpoint=60) for number in range(4)]
    cluster = Cluster(world(jobs=lows))
    cluster.settle()
    cluster.desired = sweeping(20, job(SWEEP, 8, "normal"), *lows)
    cluster.step()
    evicted = [r for r in cluster.allocation.jobs.values() if r.cause is Cause.PREEMPTED]
    assert [(r.preemptor, r.state) for r in evicted] == [(task_key(SWEEP, 0), JobState.STOPPING)]
    assert states(cluster) == {"Promised": 1, "Pending": 19}
    waits = [r.reason for r in cluster.allocation.jobs.values() if r.state is JobState.PENDING]
    assert {(r.code, r.number("owner")) for r in waits} == {(ReasonCode.BLOCKED_BY_EARLIER, "nlp/sweep.0")}
    cluster.step(1)
    assert states(cluster)["Promised"] + states(cluster)["Starting"] == 2


def test_a_shape_that_only_an_array_may_not_take_by_force_is_not_given_up_for_others() -> None:
    """A follower that may not evict fails; a plain job of the same shape after it still may."""
    lows = [job(f"nlp/low-{number}", 8, "low") for number in range(4)]
    cluster = Cluster(world(jobs=lows))
    cluster.settle()
    cluster.desired = sweeping(3, job(SWEEP, 8, "normal"), *lows, job("nlp/zz", 8, "normal"))
    cluster.step()
    promised = [r.job for r in cluster.allocation.jobs.values() if r.state is JobState.PROMISED]
    assert promised == ["nlp/sweep.0", "nlp/zz"]


def test_only_one_task_of_an_array_is_held_for() -> None:
    rules = replace(PRIORITY, hold_for_starved_after=Nanoseconds(MINUTE))
    fill = [job(f"nlp/fill-{number}", 4) for number in range(7)]
    cluster = Cluster(world(jobs=fill, rules=rules))
    cluster.settle()
    cluster.desired = sweeping(50, job(SWEEP, 16), *fill, rules=rules)
    cluster.step()
    cluster.step(120)
    assert [r.job for r in cluster.allocation.jobs.values() if r.hold is not None] == ["nlp/sweep.0"]


def test_only_one_task_of_an_array_reserves() -> None:
    rules = replace(PRIORITY, backfill="conservative")
    fill = [job(f"nlp/fill-{number}", 8, limit=3600) for number in range(4)]
    cluster = Cluster(world(jobs=fill, rules=rules))
    cluster.settle()
    desired = sweeping(50, job(SWEEP, 16, limit=3600), *fill, rules=rules)
    found = decide(desired, cluster.observe(), cluster.allocation, cluster.now).allocation
    starts = [r.job for r in found.jobs.values() if r.reason.number("earliestStart") is not None]
    assert starts == ["nlp/sweep.0"]


# --- tasks that end unstarted, and run again --------------------------------------------------------------------


def test_a_cancelled_task_stops_stays_on_record_and_runs_again_when_wanted_again() -> None:
    cluster = Cluster(sweeping(6, most=2))
    cluster.settle()
    cluster.desired = sweeping(6, most=2, cancelled=frozenset({1, 4}))
    cluster.step()
    running_one, waiting_one = (cluster.allocation.jobs[task_key(SWEEP, index)] for index in (1, 4))
    assert (running_one.state, running_one.cause) == (JobState.STOPPING, Cause.CANCELLED)
    assert (waiting_one.state, waiting_one.outcome) == (JobState.FINISHED, Outcome.CANCELLED)
    assert waiting_one.reason.code is ReasonCode.TASK_CANCELLED
    cluster.settle()
    assert at_work(cluster) == [0, 2]
    assert cluster.allocation.jobs[task_key(SWEEP, 1)].outcome is Outcome.CANCELLED
    cluster.desired = sweeping(6, most=6)
    cluster.settle()
    assert at_work(cluster) == [0, 1, 2, 3, 4, 5]
    assert cluster.allocation.jobs[task_key(SWEEP, 1)].attempt == 2


def test_a_task_that_ran_is_numbered_on_when_it_was_cancelled_while_it_waited() -> None:
    """Receipts are told apart by attempt: a number is never used twice, whatever became of the task and its file."""
    cluster = Cluster(sweeping(2, job(SWEEP, 16, "low")))
    cluster.settle()
    cluster.desired = sweeping(2, job(SWEEP, 16, "low"), job("nlp/urgent", 32, "high"))
    cluster.settle()
    assert states(cluster) == {"Pending": 2}
    cluster.desired = sweeping(2, job(SWEEP, 16, "low"), job("nlp/urgent", 32, "high"), cancelled=frozenset({0, 1}))
    cluster.settle()
    cluster.desired = world()
    cluster.settle()
    assert not cluster.allocation.jobs
    cluster.desired = sweeping(2, job(SWEEP, 16, "low"))
    cluster.settle()
    assert [r.attempt for r in cluster.allocation.jobs.values()] == [2, 2]


def test_a_failure_ends_what_never_started_and_a_rerun_of_it_brings_that_back() -> None:
    cluster = Cluster(sweeping(6, most=2, stop=True))
    cluster.settle()
    cluster.end("nlp/sweep.0", code=1)
    cluster.settle()
    assert states(cluster) == {"Finished": 5, "Running": 1}
    ended = [cluster.allocation.jobs[task_key(SWEEP, index)] for index in (2, 3, 4, 5)]
    assert {(r.outcome, r.reason.code, r.reason.number("task")) for r in ended} == {
        (Outcome.CANCELLED, ReasonCode.ARRAY_STOPPED, "nlp/sweep.0")
    }
    cluster.desired = sweeping(6, most=2, stop=True, again=frozenset({0}))
    cluster.settle()
    assert states(cluster) == {"Running": 2, "Pending": 4}
    assert at_work(cluster) == [0, 1]


def test_a_failure_leaves_the_others_alone_when_the_array_goes_on() -> None:
    cluster = Cluster(sweeping(6, most=2))
    cluster.settle()
    cluster.end("nlp/sweep.0", code=1)
    cluster.settle()
    assert (states(cluster), at_work(cluster)) == ({"Finished": 1, "Running": 2, "Pending": 3}, [1, 2])


def test_a_preempted_task_goes_on_although_its_array_stopped_meanwhile() -> None:
    template = job(SWEEP, 16, "low", checkpoint=5)
    cluster = Cluster(sweeping(4, template, stop=True))
    cluster.settle()
    cluster.desired = sweeping(4, template, job("nlp/urgent", 16, "high"), stop=True)
    cluster.settle()
    victim = next(r.job for r in cluster.allocation.jobs.values() if r.cause is Cause.PREEMPTED or r.preemptor)
    other = next(key for key in (task_key(SWEEP, 0), task_key(SWEEP, 1)) if key != victim)
    cluster.end(other, code=1)
    cluster.settle()
    assert cluster.state(victim) is JobState.RUNNING
    assert states(cluster) == {"Running": 1, "Finished": 3}


def test_a_change_of_some_parameters_replaces_those_tasks_alone() -> None:
    cluster = Cluster(sweeping(4))
    cluster.settle()
    cluster.desired = sweeping(4, again=frozenset({2}))
    cluster.step()
    assert [r.job for r in cluster.allocation.jobs.values() if r.state is JobState.STOPPING] == ["nlp/sweep.2"]
    cluster.settle()
    assert [r.attempt for r in cluster.allocation.jobs.values()] == [1, 1, 2, 1]


def test_tasks_of_an_invalid_array_go_on_when_not_even_an_older_form_is_known() -> None:
    cluster = Cluster(sweeping(4))
    cluster.settle()
    cluster.desired = replace(world(), invalid={SWEEP: "BadName"})
    cluster.settle()
    assert at_work(cluster) == [0, 1, 2, 3]


# --- what comes after an array ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "codes_", "met"),
    [
        ("Succeeded", (0, 0, 0), True),
        ("Succeeded", (0, 0, None), False),
        ("Succeeded", (0, 1, 0), False),
        ("Failed", (0, 1, 0), True),
        ("Failed", (0, 1, None), False),
        ("Failed", (0, 0, 0), False),
        ("Finished", (1, 0, 1), True),
        ("Finished", (1, 0, None), False),
        ("Started", (0, None, None), True),
    ],
)
def test_after_an_array_means_after_all_its_tasks(condition: str, codes_: tuple[int | None, ...], met: bool) -> None:
    second = replace(job("nlp/after", 1), after=(Dependency(job=SWEEP, condition=condition),))
    cluster = Cluster(sweeping(3, None, second))
    cluster.settle()
    for index, code in enumerate(codes_):
        if code is not None:
            cluster.end(f"nlp/sweep.{index}", code)
    cluster.settle()
    assert cluster.state("nlp/after") is (JobState.RUNNING if met else JobState.HELD)
    cluster.desired = world(jobs=[second])  # tidied away: what its tasks came to is remembered, what ran is cancelled
    if None not in codes_:
        cluster.settle()
        assert cluster.state("nlp/after") is (JobState.RUNNING if met else JobState.HELD)


def test_started_is_not_met_while_one_task_waits() -> None:
    second = replace(job("nlp/after", 1), after=(Dependency(job=SWEEP, condition="Started"),))
    cluster = Cluster(sweeping(3, None, second, most=2))
    cluster.settle()
    assert cluster.state("nlp/after") is JobState.HELD


# --- the independent judge --------------------------------------------------------------------------------------


def decided(most: int, begun: tuple[int, ...], held: tuple[int, ...] = (), **array: object) -> set[Breach]:
    """What the judge says of a round after which tasks `begun` start while those `held` run."""
    desired = sweeping(6, most=most, **array)  # type: ignore[arg-type]  # fields by name
    before = [
        running(desired, f"nlp/sweep.{i}", {"gpu-001": [i]}) if i in held else pending(desired, f"nlp/sweep.{i}")
        for i in range(6)
    ]
    made = [
        starting(one, placement(desired, {"gpu-002": [index]}, "nvlinkDomain")) if index in begun else one
        for index, one in enumerate(before)
    ]
    previous = allocation(desired, *before)
    following = allocation(desired, *made, at=Instant(START + SECOND), generation=8)
    found = violations(desired, ready(desired, *before), previous, following)
    return {one.code for one in found} - {Breach.WRONG_USAGE}


def test_the_judge_refuses_more_tasks_at_once_than_the_array_says() -> None:
    assert decided(3, (1, 2), (0,)) == set()
    assert decided(3, (1, 2, 3), (0,)) == {Breach.TOO_MANY_TASKS}
    assert decided(1, (), (0, 1)) == set()  # inherited
    assert decided(1, (2,), (0, 1)) == {Breach.TOO_MANY_TASKS}


def test_the_judge_refuses_a_task_that_is_cancelled_or_whose_array_stopped() -> None:
    assert decided(6, (1,), cancelled=frozenset({1})) == {Breach.NOT_WANTED}
    desired = sweeping(2, stop=True)
    failed = replace(pending(desired, "nlp/sweep.0"), state=JobState.FINISHED, outcome=Outcome.FAILED, attempt=1)
    waits = pending(desired, "nlp/sweep.1")
    stone = Tombstone(job=failed.job, digest=failed.digest, outcome=Outcome.FAILED, at=START, attempts=1)
    previous = replace(allocation(desired, failed, waits), tombstones=buried({failed.job: (stone,)}))
    starts = starting(waits, placement(desired, {"gpu-002": [0]}, "nvlinkDomain"))
    jobs = {failed.job: failed, waits.job: starts}
    following = replace(previous, jobs=jobs, generation=8, decided_at=Instant(START + SECOND))
    found = {one.code for one in violations(desired, ready(desired), previous, following)}
    assert found - {Breach.WRONG_USAGE} == {Breach.NOT_WANTED}


def ended(desired: Desired) -> set[Breach]:
    waits = pending(desired, "nlp/sweep.0")
    others = [pending(desired, f"nlp/sweep.{index}") for index in range(1, 6)]
    gone = replace(waits, state=JobState.FINISHED, outcome=Outcome.CANCELLED)
    previous = allocation(desired, waits, *others)
    following = allocation(desired, gone, *others, at=Instant(START + SECOND), generation=8)
    return {one.code for one in violations(desired, ready(desired), previous, following)} - {Breach.WRONG_USAGE}


def test_the_judge_refuses_to_call_a_task_cancelled_that_nobody_cancelled() -> None:
    assert ended(sweeping(6, cancelled=frozenset({0}))) == set()
    assert ended(sweeping(6)) == {Breach.ENDED_WITHOUT_CAUSE}


def test_the_judge_refuses_two_tasks_of_one_array_that_disturb_others_in_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planner that lets every task go as far as the first is caught."""
    lows = [job(f"nlp/low-{number}", 8, "low", checkpoint=60) for number in range(4)]
    cluster = Cluster(world(jobs=lows))
    cluster.settle()
    desired = sweeping(3, job(SWEEP, 8, "normal"), *lows)
    monkeypatch.setattr(Arrays, "follows", lambda *_: False)
    wrong = decide(desired, cluster.observe(), cluster.allocation, cluster.now).allocation
    found = violations(desired, cluster.observe(), cluster.allocation, wrong)
    assert {one.code for one in found} == {Breach.TASK_OUT_OF_TURN}


# --- why --------------------------------------------------------------------------------------------------------


def test_max_parallel_is_the_first_blocker_and_the_rest_is_told_beside_it() -> None:
    cluster = Cluster(sweeping(12, job(SWEEP, 8), most=4))
    cluster.settle()
    found = blockers_of(cluster.desired, cluster.observe(), cluster.allocation, task_key(SWEEP, 9), cluster.now)
    assert [one.code for one in found] == [ReasonCode.MAX_PARALLEL, ReasonCode.CAPACITY]


# --- properties -------------------------------------------------------------------------------------------------

_ACTS = st.sampled_from(["end", "fail", "cancel", "wish", "rerun", "die", "step"])


@settings(max_examples=60, deadline=None)
@given(
    most=st.none() | st.integers(1, 5), stop=st.booleans(), gpus=st.sampled_from([1, 4, 8, 16]),
    acts=st.lists(st.tuples(_ACTS, st.integers(0, 9)), max_size=14),
)  # fmt: skip
def test_whatever_happens_the_array_keeps_its_limit_and_every_decision_is_lawful(
    most: int | None, stop: bool, gpus: int, acts: list[tuple[str, int]]
) -> None:
    cancelled, again = set[int](), set[int]()
    cluster = Cluster(sweeping(10, job(SWEEP, gpus), most=most, stop=stop))
    for act, index in acts:
        _do(cluster, act, index, cancelled, again)
        cluster.desired = sweeping(
            10, job(SWEEP, gpus), most=most, stop=stop, cancelled=frozenset(cancelled), again=frozenset(again)
        )
        cluster.step(1)  # judged: see `Cluster.step`
        assert most is None or len(at_work(cluster)) <= most
    cluster.settle(30)
    wanted = [r for r in cluster.allocation.jobs.values() if r.job != f"{SWEEP}." and r.state is JobState.FINISHED]
    assert all(r.outcome is not None for r in wanted)


def _do(cluster: Cluster, act: str, index: int, cancelled: set[int], again: set[int]) -> None:
    acts: dict[str, Callable[[], object]] = {
        "end": lambda: cluster.end(f"nlp/sweep.{index}"),
        "fail": lambda: cluster.end(f"nlp/sweep.{index}", 1),
        "cancel": lambda: cancelled.add(index),
        "wish": lambda: cancelled.discard(index),
        "rerun": lambda: again.symmetric_difference_update({index}),
        "die": lambda: cluster.die(f"gpu-00{index % 4 + 1}"),
        "step": lambda: None,
    }
    acts[act]()


# --- growth -----------------------------------------------------------------------------------------------------


def racks(nodes: int) -> dict[str, dict[str, list[str]]]:
    return {"sg0": {f"r{rack:03d}": [f"n-{rack:03d}-{i:02d}" for i in range(16)] for rack in range(nodes // 16)}}


def searches(desired: Desired, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Counter[str]]:
    """How often a pass over an idle cluster looks for a place or for victims, and what became of the jobs."""
    asked = Counter[str]()
    looks = Draft.look

    def counted(*args: object, **more: object) -> object:
        asked["looks"] += 1
        return looks(*args, **more)  # type: ignore[arg-type]  # passed on as they came

    victims = find_victims

    def hunted(*args: object) -> object:
        asked["hunts"] += 1
        return victims(*args)  # type: ignore[arg-type]  # passed on as they came

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "look", counted)
        patch.setattr("reconciler.planner.admit.find_victims", hunted)
        found = decide(desired, ready(desired), allocation(desired), START).allocation
    return asked["looks"] + asked["hunts"], Counter(str(r.state) for r in found.jobs.values())


@pytest.mark.parametrize("most", [None, 100])
def test_ten_thousand_tasks_cost_as_many_searches_as_they_start(
    most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that waits costs no search of its own: the ones that start do, and the first that waits."""
    gangs = {one.key: one for one in tasks(10_000, most=most)}
    whole = replace(job(SWEEP, 1), array=Array(tasks=({},) * 10_000, max_parallel=most, stop_on_failure=False))
    desired = replace(world(racks(64)), jobs={key: gangs[key] for key in sorted(gangs)}, arrays={SWEEP: whole})
    started = most or 64 * 8
    count, found = searches(desired, monkeypatch)
    assert found == {"Starting": started, "Pending": 10_000 - started}
    assert started <= count <= started + 10


def test_an_array_costs_no_more_searches_than_as_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    gangs = tasks(2_000)
    plain = [replace(one, name=one.name.replace(".", "-"), task=None) for one in gangs]
    counts = []
    for chosen in (gangs, plain):
        desired = replace(world(racks(64)), jobs={one.key: one for one in sorted(chosen, key=lambda one: one.key)})
        counts.append(searches(desired, monkeypatch))
    assert counts[0] == counts[1]
    assert counts[0][1] == {"Starting": 512, "Pending": 1_488}
