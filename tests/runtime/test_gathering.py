"""Few commits when many submit at once: what may wait, for how long, and what never does."""

from __future__ import annotations

import pytest

from reconciler.model.decision import Action, Change
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import MINUTE, SECOND, JobKey, Nanoseconds
from reconciler.runtime.gathering import FREE, Gathering
from tests.runtime.lab import NODES, Desk, Lab, job_file, job_text, jobs
from tests.runtime.test_run import run_for

EVERY = Nanoseconds(12 * SECOND)
GATHERED = {Action.PLACE, Action.START, Action.PROMISE, Action.RUNNING, Action.WAIT, Action.HOLD}


def of(*actions: Action) -> tuple[Change, ...]:
    return tuple(Change(action=action, job=JobKey("nlp/a")) for action in actions)


def emptied() -> Gathering:
    """As many starts as come free, all at 0 s."""
    made = Gathering()
    for _ in range(FREE):
        assert made.wait(of(Action.PLACE), EVERY, 0) == 0
        made.committed(of(Action.PLACE), EVERY, 0)
    return made


@pytest.mark.parametrize("action", sorted(Action))
def test_only_what_starts_or_explains_waits(action: Action) -> None:
    assert (emptied().wait(of(action), EVERY, 0) > 0) is (action in GATHERED)
    assert emptied().wait(of(Action.PLACE, action), EVERY, 0) == (EVERY if action in GATHERED else 0)


def test_after_the_free_ones_one_is_due_each_interval() -> None:
    gathering, at = emptied(), []
    for now in range(0, 60 * SECOND, SECOND):
        if not gathering.wait(of(Action.PLACE), EVERY, now):
            gathering.committed(of(Action.PLACE), EVERY, now)
            at.append(now // SECOND)
    assert at == [12, 24, 36, 48]


def test_a_quiet_while_makes_them_free_again_and_no_more_than_that() -> None:
    gathering, now = emptied(), 10 * MINUTE
    for _ in range(FREE):
        assert gathering.wait(of(Action.START), EVERY, now) == 0
        gathering.committed(of(Action.START), EVERY, now)
    assert gathering.wait(of(Action.START), EVERY, now) == EVERY


@pytest.mark.parametrize("shorter", [0, SECOND])
def test_a_shorter_interval_counts_at_once(shorter: int) -> None:
    """What was committed while the interval was an hour keeps nobody waiting for hours after it was mended."""
    gathering, hour = Gathering(), Nanoseconds(60 * MINUTE)
    for _ in range(FREE):
        gathering.committed(of(Action.PLACE), hour, 0)
    assert gathering.wait(of(Action.PLACE), hour, 0) == hour
    assert gathering.wait(of(Action.PLACE), Nanoseconds(shorter), 0) == shorter
    assert gathering.wait(of(Action.PLACE), Nanoseconds(shorter), shorter) == 0


def test_the_last_free_one_is_left_to_a_start() -> None:
    gathering = Gathering()
    for _ in range(FREE - 1):
        gathering.committed(of(Action.PLACE), EVERY, 0)
    assert gathering.wait(of(Action.RUNNING), EVERY, 0) == EVERY
    assert gathering.wait(of(Action.RUNNING, Action.START), EVERY, 0) == 0


def test_what_could_not_wait_takes_nothing_from_starts() -> None:
    gathering = Gathering()
    for _ in range(20):
        gathering.committed(of(Action.STOP, Action.PLACE), EVERY, 0)
    assert gathering.wait(of(Action.PLACE), EVERY, 0) == 0


def test_an_interval_of_nothing_lets_nothing_wait() -> None:
    gathering = Gathering()
    for _ in range(50):
        assert gathering.wait(of(Action.RUNNING), Nanoseconds(0), 0) == 0
        gathering.committed(of(Action.RUNNING), Nanoseconds(0), 0)


# --- in the loop ---


def big(lab: Lab) -> Desk:
    """64 GPUs, nothing running, and the rules as they are when nobody says anything."""
    nodes = NODES.replace("gpu-[003-004]", "gpu-[003-008]")
    lab.begin(**{"cluster-state/inventory/nodes.yaml": nodes})
    desk = lab.desk(gathering=Gathering())
    desk.settle()
    lab.clock.advance(5 * MINUTE)
    desk.round()
    return desk


def test_fifty_submissions_in_a_minute_are_placed_by_ten_commits(lab: Lab) -> None:
    desk = big(lab)
    before, submitted, seconds = len(lab.log()), 0, 0
    while submitted < 50 or desk.summary.desired_commit != lab.remote.tip("refs/heads/main"):
        due = min(50, 1 + seconds * 50 // 60)
        if submitted < due:
            fresh = {job_file(f"j{n:02}"): job_text(f"j{n:02}", 1) for n in range(submitted, due)}
            lab.desire(fresh)
            submitted = due
        desk.round()
        seconds += 1
        assert seconds < 90
    placed = [desk.record(f"j{n:02}").placement is not None for n in range(50)]
    assert placed == [True] * 50
    assert len(lab.log()) - before <= 10
    assert seconds <= 60 + 12, "and the last one did not wait longer than the interval"
    for _ in range(40):
        desk.round()
    assert {desk.record(f"j{n:02}").state for n in range(50)} == {JobState.RUNNING}
    lab.check_chain()


def test_one_submission_waits_for_nothing(lab: Lab) -> None:
    desk = big(lab)
    lab.desire(jobs("a"))
    states = []
    for _ in range(3):
        assert desk.round().committed is not None
        states.append(desk.record("a").state)
    assert states[-1] is JobState.RUNNING


def test_a_cancelled_job_stops_in_the_thick_of_it_and_takes_along_what_waits(lab: Lab) -> None:
    desk = big(lab)
    lab.desire(jobs("a"))
    for _ in range(6):
        desk.round()
    for name in ("b", "c", "d"):
        lab.desire(jobs(name))
        desk.round()
    lab.desire(jobs("e"))
    assert desk.round().committed is None, "it waits"
    lab.desire({job_file("a"): None})
    assert desk.round().committed is not None
    assert desk.record("a").state is JobState.STOPPING
    assert desk.record("e").placement is not None
    desk.settle(60)
    assert JobKey("nlp/a") not in lab.generation().allocation.jobs
    stone = lab.generation().allocation.tombstones[JobKey("nlp/a")]
    assert [one.outcome for one in stone] == [Outcome.CANCELLED]


def test_the_loop_sleeps_until_what_waits_is_due(lab: Lab) -> None:
    desk = big(lab)
    for name in ("a", "b", "c", "d", "e", "f"):
        lab.desire(jobs(name))
        desk.round()
    assert desk.reconciler.last is not None
    assert JobKey("nlp/f") not in desk.reconciler.last.generation.allocation.jobs
    rounds = run_for(desk, 60)
    assert {desk.record(name).state for name in "abcdef"} == {JobState.RUNNING}
    assert rounds <= 60, "it looked at the remote, and did not turn for nothing"
