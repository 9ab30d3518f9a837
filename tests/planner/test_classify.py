"""What the files make of a job: buckets, forced stops, incarnations, dependencies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Dependency
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.observed import AttemptState, JobObservation
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.tombstones import Tombstone, Tombstones, buried
from reconciler.model.units import SECOND, Digest, Instant, JobKey, Nanoseconds
from reconciler.planner.classify import judge_all
from reconciler.planner.decide import decide
from reconciler.planner.steps import lost_gpu_seconds
from reconciler.planner.verify import violations
from tests.planner.worlds import (
    START,
    Cluster,
    allocation,
    job,
    pending,
    queue,
    ready,
    running,
    said,
    window,
    with_jobs,
    with_node,
    world,
)

KEY = JobKey("nlp/a")
ASKED = job(KEY, 8, checkpoint=60, limit=3600)
DESIRED = world(jobs=[ASKED])
RUNS = running(DESIRED, KEY, {"gpu-001": 8})
WAITS = pending(DESIRED, KEY)
DONE = replace(
    WAITS, state=JobState.FINISHED, outcome=Outcome.SUCCEEDED, attempt=1, reason=reason(ReasonCode.SUCCEEDED)
)


def judge(desired: Desired, record: JobRecord | None, after: int = 10, **more: object) -> JobRecord | None:
    before = allocation(DESIRED, *([record] if record else []))
    before = replace(before, **more)  # type: ignore[arg-type]  # fields by name
    observed = ready(DESIRED, *([record] if record else []))
    return judge_all(desired, observed, before, Instant(START + after * SECOND))[0].get(KEY)


def stone(outcome: Outcome, digest: str = ASKED.digest, attempts: int = 3) -> Tombstones:
    made = Tombstone(job=KEY, digest=Digest(digest), outcome=outcome, at=START, attempts=attempts)
    return buried({KEY: (made,)})


CHANGED = with_jobs(DESIRED, replace(ASKED, digest=Digest("other")))
SUSPENDED = with_jobs(DESIRED, replace(ASKED, suspend=True))
DELETED = with_jobs(DESIRED, without=[KEY])


@pytest.mark.parametrize(
    ("desired", "cause"), [(DELETED, Cause.CANCELLED), (CHANGED, Cause.CHANGED), (SUSPENDED, Cause.SUSPENDED)]
)
def test_people_stop_a_running_gang_through_its_checkpoint(desired: Desired, cause: Cause) -> None:
    after = judge(desired, RUNS)
    assert after is not None
    assert (after.state, after.cause, after.phase) == (JobState.STOPPING, cause, Phase.CHECKPOINT)
    assert after.deadline == START + (10 + 60 + 30) * SECOND
    assert after.placement is RUNS.placement


def test_a_gang_that_only_starts_has_nothing_to_save() -> None:
    after = judge(DELETED, replace(RUNS, state=JobState.STARTING, phase=Phase.PREPARE, started=None))
    assert after is not None
    assert (after.state, after.phase) == (JobState.STOPPING, Phase.STOP)


@pytest.mark.parametrize(
    ("before", "desired", "cause"),
    [
        (Cause.PREEMPTED, DELETED, Cause.CANCELLED),
        (Cause.SUSPENDED, CHANGED, Cause.CHANGED),
        (Cause.CHANGED, SUSPENDED, Cause.CHANGED),
        (Cause.CANCELLED, DESIRED, Cause.CANCELLED),
        (Cause.TIME_LIMIT, SUSPENDED, Cause.SUSPENDED),
    ],
)
def test_only_a_stronger_cause_changes_where_a_stop_ends(before: Cause, desired: Desired, cause: Cause) -> None:
    stopping = replace(RUNS, state=JobState.STOPPING, phase=Phase.STOP, cause=before, deadline=Instant(START + 5))
    after = judge(desired, stopping)
    assert after is not None
    assert (after.state, after.cause, after.deadline) == (JobState.STOPPING, cause, START + 5)


@pytest.mark.parametrize(("after", "state"), [(3539, JobState.RUNNING), (3540, JobState.STOPPING)])
def test_the_signal_goes_out_a_grace_before_the_end(after: int, state: JobState) -> None:
    found = judge(DESIRED, RUNS, after)
    assert found is not None
    assert found.state is state
    assert state is JobState.RUNNING or (found.cause, found.reason.code) == (Cause.TIME_LIMIT, ReasonCode.TIME_LIMIT)


NOTEBOOK = replace(ASKED, run=replace(ASKED.run, command=(), session=True, idle_timeout=Nanoseconds(600 * SECOND)))


@pytest.mark.parametrize(
    ("idle", "attempt", "after", "stops"),
    [
        (100, 1, 699, False),
        (100, 1, 700, True),
        (None, 1, 700, False),
        (100, 9, 700, False),
        (-5000, 1, 599, False),
        (-5000, 1, 600, True),
    ],
    ids=["not yet", "long enough", "somebody uses it", "that was another attempt", "before it began", "since it began"],
)
def test_a_session_that_nobody_uses_ends_by_itself(idle: int | None, attempt: int, after: int, *, stops: bool) -> None:
    desired = with_jobs(DESIRED, NOTEBOOK)
    since = None if idle is None else Instant(START + idle * SECOND)
    observed = replace(ready(desired, RUNS), jobs={KEY: JobObservation(job=KEY, attempt=attempt, idle_since=since)})
    now = Instant(START + after * SECOND)
    made = decide(desired, observed, allocation(desired, RUNS), now)
    found = made.allocation.jobs[KEY]
    assert (found.state is JobState.STOPPING) is stops
    if stops:
        assert (found.cause, found.reason.code, found.reason.number("limit")) == (Cause.IDLE, ReasonCode.IDLE, 600)
        assert violations(desired, observed, allocation(desired, RUNS), made.allocation) == ()


def test_a_session_without_idle_timeout_is_left_alone_until_its_time_limit() -> None:
    desired = with_jobs(DESIRED, replace(NOTEBOOK, run=replace(NOTEBOOK.run, idle_timeout=None)))
    idle = JobObservation(job=KEY, attempt=1, idle_since=Instant(START))
    observed = replace(ready(desired, RUNS), jobs={KEY: idle})
    found = decide(desired, observed, allocation(desired, RUNS), Instant(START + 3000 * SECOND)).allocation.jobs[KEY]
    assert found.state is JobState.RUNNING


def test_an_idle_session_loses_no_work() -> None:
    seen = replace(ready(DESIRED, RUNS), jobs={KEY: JobObservation(job=KEY, attempt=1, idle_since=Instant(START))})
    now = Instant(START + 100 * SECOND)
    assert lost_gpu_seconds(RUNS, seen, now) == 0
    assert lost_gpu_seconds(RUNS, ready(DESIRED, RUNS), now) > 0


def test_maintenance_drains_in_time_and_a_cordon_drains_nobody() -> None:
    drained = replace(DESIRED, windows=(window("gpu-001", 100, 200),))
    for after, state in ((39, JobState.RUNNING), (40, JobState.STOPPING)):
        found = judge(drained, RUNS, after)
        assert found is not None
        assert found.state is state
    assert judge(with_node(DESIRED, "gpu-001", cordoned="fan"), RUNS) is RUNS


def test_a_node_taken_out_of_the_inventory_stops_its_gangs() -> None:
    nodes = tuple(node for node in DESIRED.inventory.nodes if node.name != "gpu-001")
    after = judge(replace(DESIRED, inventory=replace(DESIRED.inventory, nodes=nodes)), RUNS)
    assert after is not None
    assert (after.cause, after.reason.number("nodes")) == (Cause.NODE_REMOVED, "gpu-001")


def test_a_change_of_priority_or_limits_keeps_the_age_and_the_object() -> None:
    edited = with_jobs(DESIRED, replace(ASKED, priority_class=job("q/x", 1, "low").priority_class, nice=5))
    assert judge(edited, WAITS) is WAITS
    assert judge(edited, RUNS) is RUNS


def test_a_changed_job_that_waits_starts_a_new_age() -> None:
    after = judge(CHANGED, replace(WAITS, attempt=2))
    assert after is not None
    assert (after.state, after.submitted, after.attempt) == (JobState.PENDING, START + 10 * SECOND, 2)


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT])
def test_what_ended_for_good_never_runs_again_when_its_file_comes_back(outcome: Outcome) -> None:
    after = judge(DESIRED, None, tombstones=stone(outcome))
    assert after is not None
    assert (after.state, after.outcome, after.attempt) == (JobState.FINISHED, outcome, 3)


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.REPLACED])
def test_what_was_cancelled_or_replaced_goes_on_as_its_next_attempt(outcome: Outcome) -> None:
    after = judge(DESIRED, None, tombstones=stone(outcome))
    assert after is not None
    assert (after.state, after.attempt) == (JobState.PENDING, 3)


def test_a_new_incarnation_of_a_finished_job_counts_attempts_on() -> None:
    after = judge(CHANGED, DONE, tombstones=stone(Outcome.SUCCEEDED, attempts=1))
    assert after is not None
    assert (after.state, after.attempt, after.outcome) == (JobState.PENDING, 1, None)


def test_a_finished_job_stays_with_its_file_and_goes_with_it() -> None:
    assert judge(DESIRED, DONE) is DONE
    assert judge(DELETED, DONE) is None


def test_an_invalid_job_without_a_valid_form_is_held_and_named() -> None:
    desired = replace(DELETED, invalid={KEY: "UnknownQueue"})
    for record in (None, WAITS):
        after = judge(desired, record)
        assert after is not None
        assert (after.state, after.reason) == (JobState.HELD, reason(ReasonCode.INVALID, problem="UnknownQueue"))
    assert judge(desired, RUNS) is RUNS


def test_a_queue_that_is_gone_holds_what_waits_and_keeps_what_runs() -> None:
    desired = world(jobs=[ASKED], queues=[queue("other")])
    held = judge(desired, WAITS)
    assert held is not None
    assert (held.state, held.reason.code) == (JobState.HELD, ReasonCode.QUEUE_GONE)
    assert judge(desired, RUNS) is RUNS


def test_nothing_is_admitted_while_a_cluster_file_is_invalid() -> None:
    held = judge(replace(DESIRED, blocked="cluster-state/cluster.yaml"), WAITS)
    assert held is not None
    assert (held.state, held.reason.code) == (JobState.HELD, ReasonCode.ADMISSIONS_FROZEN)


def test_a_back_off_is_over_at_its_instant() -> None:
    waits = replace(WAITS, state=JobState.HELD, retry_at=Instant(START + 20 * SECOND), failures=1)
    states = [found.state for after in (19, 20) if (found := judge(DESIRED, waits, after))]
    assert states == [JobState.HELD, JobState.PENDING]


@pytest.mark.parametrize(
    ("condition", "outcome", "met"),
    [
        ("Succeeded", Outcome.SUCCEEDED, True),
        ("Succeeded", Outcome.FAILED, False),
        ("Failed", Outcome.TIMED_OUT, True),
        ("Failed", Outcome.SUCCEEDED, False),
        ("Finished", Outcome.CANCELLED, True),
        ("Finished", Outcome.REPLACED, False),
        ("Started", Outcome.SUCCEEDED, True),
        ("Started", None, False),
    ],
)
def test_a_dependency_is_met_by_how_the_other_ended(condition: str, outcome: Outcome | None, met: bool) -> None:
    other = JobKey("nlp/b")
    after = (Dependency(job=other, condition=condition),)
    desired = with_jobs(DESIRED, replace(ASKED, after=after))
    ended = (
        {other: (Tombstone(job=other, digest=Digest("d"), outcome=outcome, at=START, attempts=1),)} if outcome else {}
    )
    found = judge(desired, WAITS, tombstones=buried(ended))
    assert found is not None
    assert found.state is (JobState.PENDING if met else JobState.HELD)
    assert met or found.reason == reason(ReasonCode.AFTER, job=other, condition=condition)


def test_a_live_dependency_counts_before_an_earlier_end() -> None:
    other = job("nlp/b", 8)
    desired = with_jobs(DESIRED, other, replace(ASKED, after=(Dependency(job=other.key, condition="Succeeded"),)))
    ended = {
        other.key: (Tombstone(job=other.key, digest=Digest("d"), outcome=Outcome.SUCCEEDED, at=START, attempts=1),)
    }
    before = replace(
        allocation(desired, pending(desired, "nlp/a"), pending(desired, "nlp/b")), tombstones=buried(ended)
    )
    found = judge_all(desired, ready(desired), before, START)[0]
    assert found[KEY].reason.code is ReasonCode.AFTER


def finish(desired: Desired, record: JobRecord) -> Allocation:
    """The decision after the gang's node let go of it."""
    gone = said(ready(DESIRED, record), "gpu-001", KEY, 1, AttemptState.GONE)
    return decide(desired, gone, allocation(DESIRED, record), Instant(START + 100 * SECOND)).allocation


def test_a_cancelled_job_leaves_a_tombstone_and_a_changed_one_begins_anew() -> None:
    stopping = replace(RUNS, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.CANCELLED)
    after = finish(DELETED, stopping)
    assert KEY not in after.jobs
    assert [(s.outcome, s.attempts) for s in after.tombstones[KEY]] == [(Outcome.CANCELLED, 1)]
    anew = finish(CHANGED, replace(stopping, cause=Cause.CHANGED))
    assert [(s.outcome, s.digest) for s in anew.tombstones[KEY]] == [(Outcome.REPLACED, ASKED.digest)]
    assert (anew.jobs[KEY].state, anew.jobs[KEY].attempt, anew.jobs[KEY].digest) == (JobState.STARTING, 2, "other")


def test_a_job_deleted_and_brought_back_resumes() -> None:
    cluster = Cluster(DESIRED)
    cluster.settle()
    cluster.desired = DELETED
    for _ in range(4):
        cluster.step(1)
    assert KEY not in cluster.allocation.jobs
    cluster.desired = DESIRED
    cluster.settle()
    assert (cluster.state(KEY), cluster.allocation.jobs[KEY].attempt) == (JobState.RUNNING, 2)
