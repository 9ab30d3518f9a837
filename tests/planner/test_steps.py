"""What observation alone makes of a job: one row a rule of the lifecycle table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Fence
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.observed import AttemptState, JobObservation, NodeCondition, Observed
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import HOUR, MINUTE, SECOND, Instant, JobKey, NodeName
from reconciler.planner import steps
from tests.planner.worlds import START, Cluster, job, ready, running, said, saw, world

S = AttemptState
KEY = "nlp/a"
DESIRED = world(jobs=[job(KEY, 16, restarts=2, checkpoint=60)])
JOB = DESIRED.jobs[JobKey(KEY)]
RULES = Scheduling()
RUNS = running(DESIRED, KEY, {"gpu-001": 8, "gpu-002": 8})
PREPARES = replace(RUNS, state=JobState.STARTING, phase=Phase.PREPARE, started=None)
BEGINS = replace(PREPARES, phase=Phase.RUN)
LOST = replace(RUNS, state=JobState.LOST)


def stopping(cause: Cause, **changes: object) -> JobRecord:
    return replace(RUNS, state=JobState.STOPPING, phase=Phase.STOP, cause=cause, **changes)  # type: ignore[arg-type]  # fields by name


def seen(first: AttemptState, second: AttemptState, codes: tuple[int | None, int | None] = (None, None)) -> Observed:
    one = said(ready(DESIRED), "gpu-001", KEY, 1, first, codes[0])
    return said(one, "gpu-002", KEY, 1, second, codes[1])


def silent(observed: Observed, **changes: object) -> Observed:
    return saw(observed, "gpu-002", condition=NodeCondition.LOST, **changes)


def advance(record: JobRecord, observed: Observed, after: int = 1) -> JobRecord:
    return steps.advance(record, JOB, observed, RULES, Instant(START + after * SECOND))


@pytest.mark.parametrize(
    ("record", "observed", "state", "phase"),
    [
        pytest.param(PREPARES, ready(DESIRED), JobState.STARTING, Phase.PREPARE, id="no report yet is not prepared"),
        pytest.param(
            PREPARES, seen(S.PREPARED, S.PREPARING), JobState.STARTING, Phase.PREPARE, id="one still prepares"
        ),
        pytest.param(PREPARES, seen(S.PREPARED, S.PREPARED), JobState.STARTING, Phase.RUN, id="all prepared: run"),
        pytest.param(PREPARES, seen(S.PREPARED, S.REFUSED), JobState.STOPPING, Phase.STOP, id="one refuses: all stop"),
        pytest.param(BEGINS, seen(S.RUNNING, S.PREPARED), JobState.STARTING, Phase.RUN, id="one has not begun"),
        pytest.param(BEGINS, seen(S.RUNNING, S.RUNNING), JobState.RUNNING, Phase.RUN, id="all began"),
        pytest.param(BEGINS, seen(S.RUNNING, S.EXITED, (None, 0)), JobState.RUNNING, Phase.RUN, id="one was quick"),
        pytest.param(BEGINS, seen(S.EXITED, S.EXITED, (0, 0)), JobState.FINISHED, None, id="all were quick"),
        pytest.param(RUNS, seen(S.RUNNING, S.EXITED, (None, 0)), JobState.RUNNING, Phase.RUN, id="one is done"),
        pytest.param(RUNS, seen(S.EXITED, S.EXITED, (0, 0)), JobState.FINISHED, None, id="all are done"),
        pytest.param(
            RUNS, seen(S.RUNNING, S.EXITED, (None, 3)), JobState.STOPPING, Phase.STOP, id="one fails: all stop"
        ),
        pytest.param(RUNS, silent(seen(S.RUNNING, S.RUNNING)), JobState.LOST, Phase.RUN, id="one node is silent"),
        pytest.param(RUNS, seen(S.RUNNING, S.GONE), JobState.STOPPING, Phase.STOP, id="one node booted again"),
        pytest.param(LOST, seen(S.RUNNING, S.RUNNING), JobState.RUNNING, Phase.RUN, id="back in time, ranks alive"),
        pytest.param(LOST, seen(S.RUNNING, S.GONE), JobState.STOPPING, Phase.STOP, id="back, but its ranks are gone"),
        pytest.param(LOST, silent(seen(S.RUNNING, S.RUNNING)), JobState.LOST, Phase.RUN, id="lost and not fenced"),
    ],
)
def test_what_is_seen_moves_a_gang_as_a_whole(
    record: JobRecord, observed: Observed, state: JobState, phase: Phase | None
) -> None:
    after = advance(record, observed)
    assert (after.state, after.phase) == (state, phase)


def test_nothing_new_is_the_same_object() -> None:
    observed = ready(DESIRED, RUNS)
    assert advance(RUNS, observed) is RUNS
    assert advance(PREPARES, ready(DESIRED)) is PREPARES


@pytest.mark.parametrize("record", [PREPARES, BEGINS])
def test_a_start_that_takes_too_long_blames_the_node_that_is_behind(record: JobRecord) -> None:
    observed = seen(S.RUNNING, S.PREPARING)
    assert advance(record, observed, 119).state is JobState.STARTING
    late = advance(record, observed, 120)
    assert (late.state, late.cause, late.reason.code) == (
        JobState.STOPPING,
        Cause.START_FAILED,
        ReasonCode.START_FAILED,
    )
    assert [entry.node for entry in late.avoid] == ["gpu-002"]
    assert late.avoid[0].until == START + 120 * SECOND + RULES.avoid_for


def test_a_running_gang_knows_since_when() -> None:
    assert advance(BEGINS, seen(S.RUNNING, S.RUNNING), 7).started == START + 7 * SECOND


@pytest.mark.parametrize(
    ("fence", "facts", "fenced"),
    [
        (Fence.CONFIRM, {}, False),
        (Fence.CONFIRM, {"lease_expired": True}, False),
        (Fence.CONFIRM, {"confirmed_dead": True}, True),
        (Fence.LEASE, {"lease_expired": True}, True),
        (Fence.LEASE, {}, False),
    ],
)
def test_a_loss_ends_the_attempt_once_it_is_fenced_as_the_attempt_was_started(
    fence: Fence, facts: dict[str, bool], fenced: bool
) -> None:
    # The file says `lease` (worlds' default) whatever the attempt was started with: only the record counts.
    after = advance(replace(RUNS, fence=fence), silent(seen(S.RUNNING, S.RUNNING), **facts))
    assert after.state is (JobState.STOPPING if fenced else JobState.LOST)
    if fenced:
        assert (after.cause, after.node_losses, after.avoid[0].node) == (Cause.NODE_LOST, 1, "gpu-002")


@pytest.mark.parametrize(
    ("cause", "state", "outcome"),
    [
        (Cause.PREEMPTED, JobState.PENDING, None),
        (Cause.START_FAILED, JobState.PENDING, None),
        (Cause.NODE_REMOVED, JobState.PENDING, None),
        (Cause.MAINTENANCE, JobState.PENDING, None),
        (Cause.SUSPENDED, JobState.HELD, None),
        (Cause.RANK_FAILED, JobState.HELD, None),
        (Cause.TIME_LIMIT, JobState.FINISHED, Outcome.TIMED_OUT),
        (Cause.CANCELLED, JobState.FINISHED, Outcome.CANCELLED),
        (Cause.CHANGED, JobState.FINISHED, Outcome.REPLACED),
    ],
)
def test_a_stop_ends_where_its_cause_says_and_only_when_every_node_let_go(
    cause: Cause, state: JobState, outcome: Outcome | None
) -> None:
    record = stopping(cause, failures=1)
    for observed in (ready(DESIRED), seen(S.GONE, S.STOPPING), seen(S.GONE, S.KILL_FAILED)):
        assert advance(record, observed).state is JobState.STOPPING
    after = advance(record, seen(S.GONE, S.EXITED, (None, 1)))
    assert (after.state, after.outcome, after.placement, after.phase, after.ports) == (state, outcome, None, None, ())


def test_what_is_left_after_a_node_was_lost_is_kept_for_the_repair_with_its_rank_numbers() -> None:
    record = stopping(Cause.NODE_LOST)
    assert advance(record, silent(seen(S.GONE, S.RUNNING))).state is JobState.STOPPING
    after = advance(record, silent(seen(S.GONE, S.RUNNING), confirmed_dead=True))
    assert (after.state, after.whole) == (JobState.REPAIRING, record.placement)
    assert after.placement is not None
    assert record.placement is not None
    assert after.placement.ranks == tuple(rank for rank in record.placement.ranks if rank.node == "gpu-001")
    assert after.placement.ranks


def test_a_lost_node_counts_as_released_in_a_stop_once_fenced() -> None:
    record = stopping(Cause.PREEMPTED)
    assert advance(record, silent(seen(S.GONE, S.RUNNING))).state is JobState.STOPPING
    assert advance(record, silent(seen(S.GONE, S.RUNNING), confirmed_dead=True)).state is JobState.PENDING


def test_an_unseen_node_is_a_release_only_when_it_is_not_declared_either() -> None:
    record, half = stopping(Cause.NODE_REMOVED), seen(S.GONE, S.RUNNING)
    gone = replace(half, nodes={name: node for name, node in half.nodes.items() if name != "gpu-002"})
    for declared, state in ((["gpu-001", "gpu-002"], JobState.STOPPING), (["gpu-001"], JobState.PENDING)):
        names = frozenset(NodeName(name) for name in declared)
        after = steps.advance(record, JOB, gone, RULES, Instant(START), names)
        assert after.state is state


def test_back_off_doubles_until_the_restarts_are_used_up() -> None:
    released = seen(S.GONE, S.EXITED, (None, 9))
    waits = []
    for failures in (1, 2):
        after = advance(stopping(Cause.RANK_FAILED, failures=failures), released, 0)
        assert (after.state, after.reason.code) == (JobState.HELD, ReasonCode.BACK_OFF)
        waits.append((after.retry_at or 0) - START)
    assert waits == [10 * SECOND, 20 * SECOND]
    over = advance(stopping(Cause.RANK_FAILED, failures=3), released)
    assert (over.state, over.outcome, over.reason.code) == (JobState.FINISHED, Outcome.FAILED, ReasonCode.FAILED)


def test_ranks_that_fail_because_a_node_died_are_not_counted_as_failures() -> None:
    failed = advance(RUNS, seen(S.EXITED, S.RUNNING, (1, None)))
    assert (failed.cause, failed.failures) == (Cause.RANK_FAILED, 1)
    told = silent(seen(S.EXITED, S.RUNNING, (1, None)))
    after = advance(failed, told)
    assert (after.cause, after.failures, after.node_losses) == (Cause.NODE_LOST, 0, 1)


def test_lost_work_counts_from_the_last_checkpoint_of_this_attempt() -> None:
    now = Instant(START + HOUR)
    assert steps.lost_gpu_seconds(RUNS, Observed(), now) == 16 * 3600
    saved = JobObservation(job=RUNS.job, attempt=1, checkpoint=Instant(START + 50 * MINUTE))
    assert steps.lost_gpu_seconds(RUNS, Observed(jobs={RUNS.job: saved}), now) == 16 * 600
    older = replace(saved, attempt=0)
    assert steps.lost_gpu_seconds(RUNS, Observed(jobs={RUNS.job: older}), now) == 16 * 3600


def test_the_avoid_list_keeps_the_newest_eight_and_drops_what_is_over() -> None:
    known = steps.avoiding((), [f"n{i}" for i in range(10)], START, HOUR)  # type: ignore[misc]  # node names
    assert [entry.node for entry in known] == [f"n{i}" for i in range(2, 10)]
    later = Instant(START + HOUR)
    assert [e.node for e in steps.avoiding(known, ["n5"], later, HOUR)] == ["n5"]  # type: ignore[list-item]  # a node name


def test_a_start_that_fails_again_and_again_backs_off_and_says_why() -> None:
    # Each attempt is three commits: without a pause one refusing node would fill the record.
    cluster = Cluster(world({"sg0": {"r01": ("gpu-001",)}}, jobs=[job(KEY, 8)]))
    cluster.nodes[NodeName("gpu-001")].refuses = True
    for _ in range(40):
        cluster.step(seconds=1)
    record = cluster.allocation.jobs[JobKey(KEY)]
    assert 2 <= record.attempt <= 5, cluster.show()
    assert record.failed_starts == record.attempt
    assert (record.state, record.reason.code) == (JobState.HELD, ReasonCode.BACK_OFF)
    assert "gpu-001" in str(record.reason.number("last"))
