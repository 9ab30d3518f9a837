"""A job's life as its record tells it: attempts with their ends and prices, and every step."""

from __future__ import annotations

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.model.units import HOUR, MINUTE, JobKey, NodeName
from reconciler.render.life import Pace, attempts_table, story_lines
from reconciler.runtime.lives import Life, life_of
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs

SFT = JobKey("nlp/sft")
SAVES = "  checkpoint: {dir: /fs/x, every: 30m}\n  timeLimit: 10h\n"
HIGH = "  priorityClass: production\n  timeLimit: 2h\n"


def life(lab: Lab, desk: Desk) -> Life:
    return life_of(desk.mirror.git, lab.tip, SFT)


@pytest.fixture
def desk(lab: Lab) -> Desk:
    """The job runs for an hour and a half, with a checkpoint after the first hour."""
    lab.begin(**{job_file("sft"): job_text("sft", 16, more=SAVES)})
    desk = lab.desk()
    desk.settle()
    lab.clock.advance(HOUR)
    desk.engine.cluster.checkpoint("nlp/sft")
    lab.clock.advance(HOUR // 2)
    return desk


def test_a_preempted_attempt_says_by_whom_at_what_price_and_from_which_checkpoint(lab: Lab, desk: Desk) -> None:
    saved = lab.clock.now() - HOUR // 2
    lab.desire({job_file("high"): job_text("high", 32, more=HIGH)})
    desk.settle()
    desk.engine.cluster.finish("nlp/high")
    desk.settle()

    first, second = life(lab, desk).attempts
    assert (first.number, first.how, first.preemptor) == (1, "Preempted", "nlp/high")
    assert first.checkpoint is not None
    assert first.checkpoint >= saved
    assert 16 * 1800 <= first.lost <= 16 * 1860 or first.checkpoint > saved  # it saved itself within its grace
    assert first.started is not None
    assert first.ended is not None
    assert 90 * MINUTE < first.ended - first.started < 92 * MINUTE
    assert (second.number, second.how, second.ended, second.lost) == (2, "Running", None, 0)


def test_a_failed_attempt_ends_when_its_ranks_are_gone_although_it_keeps_its_gpus(lab: Lab, desk: Desk) -> None:
    desk.engine.cluster.finish("nlp/sft", 3, node="gpu-002")
    desk.settle()
    assert desk.record("sft").state is JobState.REPAIRING  # the short back-off
    (failed,) = life(lab, desk).attempts
    assert (failed.how, failed.ended is not None) == ("RankFailed", True)
    assert failed.why == "a rank on gpu-002 exited with 3"
    lab.clock.advance(10 * MINUTE)
    desk.settle()
    assert [(one.number, one.how) for one in life(lab, desk).attempts] == [(1, "RankFailed"), (2, "Running")]


def test_a_lost_node_is_the_end_of_its_attempt(lab: Lab, desk: Desk) -> None:
    desk.settle()
    desk.engine.cluster.power_off("gpu-002")
    for _ in range(12):
        lab.clock.advance(MINUTE)
        desk.round()
    desk.engine.cluster.reboot("gpu-002")
    desk.settle()
    lab.clock.advance(HOUR)
    desk.settle()
    first, second = life(lab, desk).attempts
    assert (first.how, second.how) == ("NodeLost", "Running")
    assert first.placement.nodes == (NodeName("gpu-001"), NodeName("gpu-002"))


def test_what_ended_well_ended_by_itself(lab: Lab, desk: Desk) -> None:
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    found = life(lab, desk)
    (only,) = found.attempts
    assert (only.how, only.preemptor, only.lost) == ("Succeeded", None, 0)
    assert [step.action for step in found.steps] == ["place", "start", "running", "finish"]
    assert [step.generation for step in found.steps] == [1, 2, 3, 4]
    assert found.whole


def test_a_job_that_never_ran_has_a_story_and_no_attempts(lab: Lab) -> None:
    lab.begin(**jobs("sft", gpus=64))
    desk = lab.desk()
    desk.settle()
    found = life(lab, desk)
    assert found.attempts == ()
    assert [(step.action, step.state) for step in found.steps] == [("hold", "Held")]


def test_of_a_long_life_the_newest_steps_are_told(lab: Lab, desk: Desk) -> None:
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    found = life_of(desk.mirror.git, lab.tip, SFT, most=2)
    assert not found.whole
    assert [step.generation for step in found.steps] == [3, 4]
    assert story_lines(found.steps, whole=found.whole, width=None).startswith("(older steps")


def test_measured_beside_foretold(lab: Lab, desk: Desk) -> None:
    desk.settle()
    attempts = life(lab, desk).attempts
    inventory = desk.reconciler.last.desired.desired.inventory  # type: ignore[union-attr]  # it has settled
    paces = {1: Pace(attempt=1, step_seconds=1.85, mfu=0.4123)}
    plain = attempts_table(attempts, {}, inventory, lab.clock.now(), None).splitlines()
    header, row = attempts_table(attempts, paces, inventory, lab.clock.now(), None).splitlines()
    assert plain[0].split() == ["#", "SINCE", "RAN", "WHERE", "T_COMM", "HOW"]
    assert header.split() == ["#", "SINCE", "RAN", "WHERE", "T_COMM", "STEP", "MFU", "HOW"]
    assert row.split()[6:9] == ["3.0us", "1s", "41.2%"]


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(lab: Lab, desk: Desk, width: int) -> None:
    lab.desire({job_file("high"): job_text("high", 32, more=HIGH)})
    desk.settle()
    found = life(lab, desk)
    inventory = desk.reconciler.last.desired.desired.inventory  # type: ignore[union-attr]  # it has settled
    text = attempts_table(found.attempts, {}, inventory, lab.clock.now(), width)
    text += "\n" + story_lines(found.steps, whole=True, width=width)
    assert max(map(len, text.splitlines())) <= width
