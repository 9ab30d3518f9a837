"""The loop that goes on: when it looks again, how long it waits after a failure, and that it always lets go."""

from __future__ import annotations

import threading

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.model.units import SECOND, Nanoseconds
from tests.runtime.lab import Desk, Lab, jobs
from tests.runtime.test_loop import pushes, running


def run_for(desk: Desk, span: int, *, news: bool = False) -> int:
    """Run the loop for so many seconds of its clock; `news`: a node reports every second. Rounds made."""
    stop, clock, end = threading.Event(), desk.lab.clock, desk.lab.clock.now() + span * SECOND
    wait, rounds = desk.engine.wait, 0

    def waiting(timeout: Nanoseconds) -> bool:
        if news:
            clock.advance(min(timeout, SECOND))
        found = news or wait(timeout)
        if clock.now() >= end:
            stop.set()
        return found

    round_ = desk.reconciler.round

    def counted() -> object:
        nonlocal rounds
        rounds += 1
        return round_()

    desk.engine.wait = waiting  # type: ignore[method-assign]  # the end of the script
    desk.reconciler.round = counted  # type: ignore[method-assign, assignment]  # a counter
    desk.reconciler.run(stop)
    return rounds


def test_without_news_a_round_comes_with_every_look_at_the_remote(lab: Lab) -> None:
    desk = running(lab, "sft")
    assert 28 <= run_for(desk, 60) <= 32  # pollInterval is 2 s, cycleInterval 5 s
    assert desk.engine.calls[-1] == "stop"


def test_with_news_it_looks_at_once_and_a_merge_needs_no_restart(lab: Lab) -> None:
    desk = running(lab, "sft")
    lab.desire(jobs("eval"))
    assert run_for(desk, 25, news=True) >= 20
    assert desk.record("eval").state is JobState.RUNNING  # found by the poll, after 15 s


def test_a_rule_that_refuses_our_push_is_not_tried_again_with_every_report(lab: Lab) -> None:
    desk = running(lab, "sft")
    lab.remote.hook("pre-receive", "exit 1")
    lab.desire(jobs("eval"))
    desk.reconciler.wake()
    rounds = run_for(desk, 200, news=True)
    assert desk.reconciler.condition.reason == "PushRejected"
    assert pushes(desk, "rejected") <= 8  # after 2, 4, 8 ... 60 s
    assert rounds <= 8


def test_a_wake_ends_the_wait_after_a_failure(lab: Lab) -> None:
    desk = running(lab, "sft")
    lab.remote.hook("pre-receive", "exit 1")
    lab.desire(jobs("eval"))
    desk.reconciler.wake()
    stop, waits = threading.Event(), 0

    def waiting(timeout: Nanoseconds) -> bool:
        nonlocal waits
        waits += 1
        if waits == 3:
            lab.remote.hook("pre-receive", "exit 0")
            desk.reconciler.wake()
        if waits > 8:
            stop.set()
        return True

    desk.engine.wait = waiting  # type: ignore[method-assign]  # the script
    desk.reconciler.run(stop)
    assert desk.record("eval").state is JobState.RUNNING


def test_a_bug_still_lets_go_of_the_engine(lab: Lab) -> None:
    desk = running(lab, "sft")

    def broken() -> None:
        raise ZeroDivisionError

    desk.reconciler.round = broken  # type: ignore[method-assign, assignment]  # a bug of ours
    with pytest.raises(ZeroDivisionError):
        desk.reconciler.run(threading.Event())
    assert desk.engine.calls[-1] == "stop"
