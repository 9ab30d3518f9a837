"""The plan, as text for a terminal and as JSON for machines, from one value."""

from __future__ import annotations

import json
from dataclasses import replace

from reconciler.model.decision import Action
from reconciler.render.plan import Plan, plan_json, plan_of, plan_text
from tests.render.scene import BEFORE_METRICS, DECISION, DESIRED, METRICS, SWEEP


def plan() -> Plan:
    return plan_of(DECISION, BEFORE_METRICS, DESIRED, state="c01d9e2" + "a" * 33, generation=7, digest="0d4f" * 16)


def test_a_plan_on_eighty_columns() -> None:
    assert plan_text(plan(), 80) == (
        """\
Plan for test   desired ccccccc   state #7 c01d9e2

             JOB            GPUS  CLASS   WHERE
-   preempt  vision/sweep      4  low     r01 gpu-001:0-3
    gives way to nlp/pretrain; 3360 GPU-seconds since the last checkpoint
+   promise  nlp/pretrain     16  high    r01 gpu-[001-002]
    vision/sweep stopping; 12 of 16 GPUs released
.   wait     vision/dino-l    32  normal  -
    needs 32 GPUs in one rack; the best, r02, has 14 free

  GPUs held   6               of 32
  promised    0 -> 12
  idle        26 -> 14        6 stranded
  Phi         0.384 -> 0.428
  lost work   0.9 GPU-h

Plan: 1 preempt, 1 promise, 1 wait; 1 job as before.
Decision sha256:0d4f0d4f0d4f"""
    )


def test_off_a_terminal_each_job_is_one_line() -> None:
    lines = plan_text(plan(), None).splitlines()
    assert lines[2].split() == ["JOB", "GPUS", "CLASS", "WHERE", "WHY"]
    assert lines[3].startswith(
        "-   preempt  vision/sweep      4  low     r01 gpu-001:0-3    gives way to nlp/pretrain;"
    )
    assert all(line.index("r01") == lines[2].index("WHERE") for line in lines[3:5])


def test_nothing_to_do_is_said_in_a_sentence() -> None:
    quiet = plan_of(replace(DECISION, changes=()), METRICS, DESIRED, state="a" * 40, generation=8, digest="0" * 64)
    assert not quiet.changes
    assert plan_text(quiet, 80).splitlines()[2:] == ["No changes: 4 jobs as before.", "Decision sha256:000000000000"]


def test_a_job_without_file_or_record() -> None:
    gone = replace(DECISION.allocation, jobs={})
    dropped = plan_of(
        replace(DECISION, allocation=gone), METRICS, DESIRED, state="a" * 40, generation=8, digest="0" * 64
    )
    assert [(row.why, row.where, row.reason) for row in dropped.rows] == [("nothing is left of it", "-", "")] * 3
    assert dropped.lost_work == 0


def test_json_says_the_same_and_has_a_version() -> None:
    tree = plan_json(plan())
    assert json.loads(json.dumps(tree)) == {
        "formatVersion": "1.0",
        "cluster": "test",
        "desired": "c" * 40,
        "state": "c01d9e2" + "a" * 33,
        "generation": 7,
        "digest": "0d4f" * 16,
        "changes": [
            {
                "action": "preempt",
                "job": "vision/sweep",
                "gpus": 4,
                "priorityClass": "low",
                "where": "r01 gpu-001:0-3",
                "reason": "Preempted",
                "why": "gives way to nlp/pretrain; 3360 GPU-seconds since the last checkpoint",
            },
            {
                "action": "promise",
                "job": "nlp/pretrain",
                "gpus": 16,
                "priorityClass": "high",
                "where": "r01 gpu-[001-002]",
                "reason": "WaitingForVictims",
                "why": "vision/sweep stopping; 12 of 16 GPUs released",
            },
            {
                "action": "wait",
                "job": "vision/dino-l",
                "gpus": 32,
                "priorityClass": "normal",
                "where": "-",
                "reason": "NoDomainFits",
                "why": "needs 32 GPUs in one rack; the best, r02, has 14 free",
            },
        ],
        "unchanged": 1,
        "gpus": {
            "before": {"capacity": 32, "held": 6, "promised": 0, "idle": 26, "stranded": 10, "phiPpm": 384615},
            "after": {"capacity": 32, "held": 6, "promised": 12, "idle": 14, "stranded": 6, "phiPpm": 428571},
        },
        "lostGpuSeconds": 3360,
    }


def test_rows_are_in_a_reader_s_order_whatever_the_decision_s() -> None:
    assert [row.action for row in plan().rows] == [Action.PREEMPT, Action.PROMISE, Action.WAIT]
    assert plan().rows[0].job == SWEEP
