"""The commit message: what `git log --first-parent allocations` tells somebody who has never seen the tool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.allocation import Metrics
from reconciler.model.decision import Action, Change, Decision
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import JobKey
from reconciler.render.story import body, subject, use
from reconciler.store.statecommit import Message
from tests.planner.worlds import job, pending, world
from tests.render.scene import BEFORE, DECISION, DESIRED, EVAL, WIDE


def test_the_whole_message() -> None:
    assert subject(DECISION, "desired") == ("Preempt vision/sweep; promise GPUs to nlp/pretrain; vision/dino-l waits")
    assert body(DECISION, BEFORE, DESIRED.inventory).splitlines() == [
        "preempt  vision/sweep   Stopping (checkpoint) on 4 GPUs, r01 gpu-001:0-3: gives way to nlp/pretrain; 3360 GPU-seconds since the last checkpoint",
        "promise  nlp/pretrain   Promised on 16 GPUs, r01 gpu-[001-002]: vision/sweep stopping; 12 of 16 GPUs released",
        "wait     vision/dino-l  Pending: needs 32 GPUs in one rack; the best, r02, has 14 free",
        "",
        "6 of 32 GPUs held, 12 promised, 14 idle (6 of them stranded)",
    ]


@pytest.mark.parametrize("action", Action)
def test_each_action_has_its_words_for_one_and_for_many(action: Action) -> None:
    one = replace(DECISION, changes=(Change(action=action, job=EVAL),))
    two = replace(DECISION, changes=(Change(action=action, job=EVAL), Change(action=action, job=WIDE)))
    assert EVAL in subject(one, "")
    assert "2 jobs" in subject(two, "")
    assert "{" not in subject(one, "") + subject(two, "")
    assert subject(one, "")[0].isupper() or subject(one, "").startswith(EVAL)


def test_a_generation_without_changes_says_so() -> None:
    quiet = replace(DECISION, changes=())
    assert subject(quiet, "observed") == "Record what was observed"
    assert body(quiet, BEFORE, DESIRED.inventory).strip() == use(DECISION.allocation.metrics)


def test_a_thousand_jobs_are_told_in_forty_lines() -> None:
    desired = world(jobs=[job(f"nlp/job-{n:04}", 1) for n in range(1000)])
    jobs = {key: pending(desired, key) for key in desired.jobs}
    many = Decision(
        allocation=replace(BEFORE, jobs=jobs), changes=tuple(Change(action=Action.WAIT, job=key) for key in jobs)
    )
    lines = body(many, BEFORE, desired.inventory).splitlines()
    assert subject(many, "") == "1000 jobs wait"
    assert len(lines) == 43
    assert lines[40] == "and 960 more"


def test_a_subject_is_never_longer_than_a_hundred() -> None:
    name = JobKey("nlp/" + "x" * 63)
    changes = tuple(Change(action=action, job=name) for action in Action)
    assert len(subject(replace(DECISION, changes=changes), "")) == 100


def test_a_finished_job_is_told_with_its_outcome() -> None:
    record = replace(
        BEFORE.jobs[EVAL], state=JobState.FINISHED, outcome=Outcome.SUCCEEDED, placement=None, phase=None,
        reason=reason(ReasonCode.SUCCEEDED),
    )  # fmt: skip
    done = Decision(allocation=replace(BEFORE, jobs={EVAL: record}), changes=(Change(action=Action.FINISH, job=EVAL),))
    assert (
        body(done, BEFORE, DESIRED.inventory).splitlines()[0]
        == "finish   nlp/eval  Succeeded: every rank exited with 0"
    )


@pytest.mark.parametrize(
    "words", ["no\n\nGeneration: 99", "a\rb\x1b[31m", "Epoch: 7\n", "\u2028x\u202e", "y" * 5000], ids=range(5)
)
def test_no_words_of_a_node_can_forge_a_line_or_a_trailer(words: str) -> None:
    why = reason(ReasonCode.START_FAILED, node="gpu-001", why=words)
    record = replace(BEFORE.jobs[EVAL], reason=why)
    told = Decision(allocation=replace(BEFORE, jobs={EVAL: record}), changes=(Change(action=Action.STOP, job=EVAL),))
    text = body(told, BEFORE, DESIRED.inventory)
    assert len(text.splitlines()) == 3
    assert all(character.isprintable() or character == "\n" for character in text)
    assert len(text) < 600
    message = Message(subject=subject(told, ""), body=text, trailers={"Generation": "8", "Epoch": "1"})
    assert message.text().endswith("\n\nGeneration: 8\nEpoch: 1\n")


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (Metrics(capacity=32, idle=32), "0 of 32 GPUs held, 32 idle"),
        (Metrics(capacity=32, held=8, promised=16, idle=8), "8 of 32 GPUs held, 16 promised, 8 idle"),
        (Metrics(capacity=32, held=31, idle=1, stranded=1), "31 of 32 GPUs held, 1 idle (1 of them stranded)"),
    ],
)
def test_how_gpus_are_used(metrics: Metrics, told: str) -> None:
    assert use(metrics) == told
