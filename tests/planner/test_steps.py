"""What observation alone makes of a job: one row a rule of the lifecycle table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.allocation import Avoid, JobRecord
from reconciler.model.job import Fence
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.observed import AttemptState, JobObservation, NodeCondition, Observed
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import DAY, HOUR, MINUTE, SECOND, Instant, JobKey, Nanoseconds, NodeName
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
        pytest.param(
            BEGINS, seen(S.RUNNING, S.STOPPING), JobState.STARTING, Phase.RUN, id="one ends, and says later how"
        ),
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


@pytest.mark.parametrize("first", [S.RUNNING, S.PREPARED])
def test_a_rank_that_fails_at_once_is_charged_to_the_job_and_to_no_node(first: AttemptState) -> None:
    """Whether or not its node was seen while it was ending the rest, and its peers had begun."""
    for before in (BEGINS, advance(BEGINS, seen(first, S.STOPPING))):
        after = advance(before, seen(first, S.EXITED, (None, 3)))
        assert (after.cause, after.failures, after.failed_starts, after.avoid) == (Cause.RANK_FAILED, 1, 0, ())


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
        (Cause.TIME_LIMIT, JobState.FINISHED, Outcome.TIMED_OUT),
        (Cause.IDLE, JobState.FINISHED, Outcome.TIMED_OUT),
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


@pytest.mark.parametrize(
    ("failures", "wait", "state"),
    [
        (1, 10, JobState.REPAIRING),
        (2, 20, JobState.REPAIRING),
        (4, 80, JobState.REPAIRING),
        (5, 160, JobState.HELD),  # longer than two minutes: others may have its GPUs meanwhile
        (12, 3600, JobState.HELD),
    ],
)
def test_a_failed_rank_backs_off_twice_as_long_each_time_and_keeps_its_gpus_while_that_is_short(
    failures: int, wait: int, state: JobState
) -> None:
    record = stopping(Cause.RANK_FAILED, failures=failures)
    stubborn = job(KEY, 16, restarts=20, checkpoint=60)
    after = steps.advance(record, stubborn, seen(S.GONE, S.EXITED, (None, 9)), RULES, START)
    assert (after.state, after.reason.code) == (state, ReasonCode.BACK_OFF)
    assert (after.retry_at or 0) - START == wait * SECOND
    kept = record.placement if state is JobState.REPAIRING else None
    assert (after.placement, after.whole, after.gpus_held) == (kept, kept, 16 if kept else 0)


def test_a_gang_whose_restarts_are_used_up_is_over() -> None:
    over = advance(stopping(Cause.RANK_FAILED, failures=3), seen(S.GONE, S.EXITED, (None, 9)))
    assert (over.state, over.outcome, over.reason.code) == (JobState.FINISHED, Outcome.FAILED, ReasonCode.FAILED)
    assert over.placement is None


def test_a_gang_that_backs_off_does_not_keep_what_it_cannot_use_again() -> None:
    failed = stopping(
        Cause.RANK_FAILED, failures=1, avoid=(Avoid(node=NodeName("gpu-001"), until=Instant(START + DAY)),)
    )
    after = advance(failed, seen(S.GONE, S.EXITED, (None, 9)))
    assert after.state is JobState.REPAIRING
    assert after.placement is not None
    assert set(after.placement.nodes) == {"gpu-002"}
    assert after.whole == failed.placement


def test_ranks_that_fail_because_a_node_died_are_not_counted_as_failures() -> None:
    failed = advance(RUNS, seen(S.EXITED, S.RUNNING, (1, None)))
    assert (failed.cause, failed.failures) == (Cause.RANK_FAILED, 1)
    told = silent(seen(S.EXITED, S.RUNNING, (1, None)))
    after = advance(failed, told)
    assert (after.cause, after.failures, after.node_losses) == (Cause.NODE_LOST, 0, 1)


def gone_alone(observed: Observed, node: str, why: str) -> Observed:
    """The node says that the ranks on it ended although nobody told them to."""
    told = said(observed, node, KEY, 1, S.GONE).nodes[NodeName(node)]
    return saw(observed, node, attempts=tuple(replace(one, reason=why) for one in told.attempts))


FAILS = seen(S.EXITED, S.RUNNING, (1, None))
STOPS_FAILED = stopping(Cause.RANK_FAILED, failures=1)


@pytest.mark.parametrize("why", ["LeaseExpired", "NodeShutdown", "Rebooted"])
@pytest.mark.parametrize(
    "record",
    [
        pytest.param(RUNS, id="told together"),
        pytest.param(LOST, id="told together after a silence"),
        pytest.param(STOPS_FAILED, id="told when the gang stops already"),
    ],
)
def test_a_node_that_ends_its_own_ranks_is_to_blame_for_a_peer_that_fails(record: JobRecord, why: str) -> None:
    told = gone_alone(FAILS, "gpu-002", why)
    after = advance(record, told)
    assert (after.cause, after.reason.code) == (Cause.NODE_LOST, ReasonCode.NODE_LOST)
    assert (after.failures, after.node_losses, [a.node for a in after.avoid]) == (0, 1, ["gpu-002"])
    over = after if record is STOPS_FAILED else advance(after, told)
    assert (over.state, over.retry_at) == (JobState.REPAIRING, None)
    assert over.placement is not None
    assert set(over.placement.nodes) == {"gpu-001"}


@pytest.mark.parametrize("record", [RUNS, LOST])
def test_a_rank_that_fails_alone_counts_against_its_restarts(record: JobRecord) -> None:
    after = advance(record, seen(S.EXITED, S.RUNNING, (1, None)))
    assert (after.cause, after.failures, after.node_losses, after.avoid) == (Cause.RANK_FAILED, 1, 0, ())


def test_ranks_told_to_stop_are_no_loss_of_their_node() -> None:
    after = advance(STOPS_FAILED, seen(S.EXITED, S.GONE, (1, None)))
    assert (after.state, after.cause, after.failures) == (JobState.REPAIRING, Cause.RANK_FAILED, 1)


def test_a_node_that_goes_down_during_a_start_is_what_failed_it() -> None:
    after = advance(BEGINS, gone_alone(FAILS, "gpu-002", "NodeShutdown"))
    assert (after.cause, after.failures, after.reason.number("node")) == (Cause.START_FAILED, 0, "gpu-002")


@pytest.mark.parametrize(("limit", "cause"), [(60, Cause.TIME_LIMIT), (7200, Cause.NODE_LOST), (None, Cause.NODE_LOST)])
def test_an_attempt_that_its_nodes_ended_at_its_time_limit_is_over(limit: int | None, cause: Cause) -> None:
    """The agents end work at the limit although nobody decides; a limit raised since then is worth another attempt."""
    ended = gone_alone(gone_alone(ready(DESIRED), "gpu-001", "DeadlinePassed"), "gpu-002", "DeadlinePassed")
    limited = replace(JOB, time_limit=None if limit is None else Nanoseconds(limit * SECOND))
    after = steps.advance(RUNS, limited, ended, RULES, Instant(START + 61 * SECOND))
    assert (after.state, after.cause) == (JobState.STOPPING, cause)
    if cause is Cause.TIME_LIMIT:
        over = steps.advance(after, limited, ended, RULES, Instant(START + 62 * SECOND))
        assert (over.state, over.outcome, over.reason.number("limit")) == (JobState.FINISHED, Outcome.TIMED_OUT, 60)


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
