"""A sweep of twelve tasks, end to end: real agents and processes, four at once, one of them failing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import JobKey, task_key
from reconciler.runtime.audit.index import indexed
from reconciler.runtime.audit.scenes import scenes
from reconciler.runtime.audit.usage import usage
from reconciler.runtime.clone import Clone, open_clone
from reconciler.runtime.demo.stage import Stage
from reconciler.runtime.generation import Generation, read_generation
from reconciler.store.history import first_parent_log
from tests.e2e.test_cluster import stage  # noqa: F401  a fixture

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

SWEEP = JobKey("vision/sweep")
LR, SEEDS = ("0.1", "0.01", "0.001"), ("1", "2", "3", "it's 4")
FAILS = 5  # lr 0.01, seed 2

TEXT = """\
apiVersion: gangops/v1
kind: Job
metadata: {{name: sweep}}
spec:
  queue: vision
  gpus: 1
  priorityClass: research
  restart: {{onFailure: 0}}
  checkpoint: {{dir: {checkpoints}/sweep}}
  array:
    matrix: {{lr: ["0.1", "0.01", "0.001"], seed: [1, 2, 3, "it's 4"]}}
    maxParallel: 4
  run: {{command: ["{python}", "-I", "-S", "{program}", "{out}"]}}
"""
PROGRAM = """\
import json, os, sys
told = {k: v for k, v in os.environ.items() if k.startswith("GANGOPS_")}
open(sys.argv[1] + "/" + told["GANGOPS_TASK_INDEX"] + ".json", "w").write(json.dumps(told))
print("task", told["GANGOPS_TASK_INDEX"], "lr", told["GANGOPS_PARAM_LR"])
sys.exit(3 if (told["GANGOPS_PARAM_LR"], told["GANGOPS_PARAM_SEED"]) == ("0.01", "2") else 0)
"""


def over(generation: Generation) -> bool:
    mine = [r for key, r in generation.allocation.jobs.items() if key.startswith(f"{SWEEP}.")]
    return len(mine) == 12 and all(record.state is JobState.FINISHED for record in mine)


def test_a_sweep_runs_four_at_once_with_its_parameters_and_one_failure_stops_no_other(stage: Stage) -> None:  # noqa: F811  a fixture's name is its import
    out = stage.folder / "out"
    out.mkdir()
    program = stage.folder / "task.py"
    program.write_text(PROGRAM)
    text = TEXT.format(checkpoints=stage.checkpoints, python=sys.executable, program=program, out=out)
    stage.write(f"cluster-state/jobs/{SWEEP}.yaml", text)
    stage.commit("Submit the sweep", branch="main")
    last = stage.until("every task is over", 240, over)

    # 1. One failed, for the reason it gave; the others did what they were told.
    outcomes = {key: record.outcome for key, record in last.allocation.jobs.items()}
    assert outcomes == {
        task_key(SWEEP, index): Outcome.FAILED if index == FAILS else Outcome.SUCCEEDED for index in range(12)
    }
    assert last.allocation.jobs[task_key(SWEEP, FAILS)].reason.number("exitCode") == 3
    check_environment(out, stage.checkpoints)
    assert (stage.logs / f"{SWEEP}.7" / "1" / "0.log").read_text() == "task 7 lr 0.01\n"
    # 2. Never more than four, and one file of the record.
    clone = open_clone(stage.remote)
    history = [read_generation(clone.git, meta.id) for meta in first_parent_log(clone.git, clone.state_tip())]
    held = [sum(r.state.holds_gpus or r.promise is not None for r in g.allocation.jobs.values()) for g in history]
    assert max(held) == 4
    tree = clone.git.run("ls-tree", "-r", "--name-only", clone.state_tip(), "allocation/jobs", "finished").stdout
    assert tree.decode().split() == ["allocation/jobs/vision/sweep.yaml", "finished/vision/df/sweep.yaml"]
    # 3. The auditor's side: who had what, by array and by task; it adds up.
    check_usage(clone)
    check_commands(stage.remote)


def check_environment(out: Path, checkpoints: Path) -> None:
    told = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert told.keys() == {str(index) for index in range(12)}
    for index, (lr, seed) in enumerate((lr, seed) for lr in LR for seed in SEEDS):
        found = told[str(index)]
        assert (found["GANGOPS_TASK_INDEX"], found["GANGOPS_PARAM_LR"], found["GANGOPS_PARAM_SEED"]) == (
            str(index), lr, seed,
        )  # fmt: skip
        assert found["GANGOPS_JOB"] == f"{SWEEP}.{index}"
        assert found["GANGOPS_CHECKPOINT_DIR"] == f"{checkpoints}/sweep/{index}"


def check_usage(clone: Clone) -> None:
    git, tip = clone.git, clone.state_tip()
    index = indexed(git, tip)
    world = scenes(git, index)
    by_task, by_job = (usage(index, world, by=by) for by in ("task", "job"))
    assert {row.key for row in by_task.rows} == {task_key(SWEEP, i) for i in range(12)}
    assert {row.key for row in by_job.rows} == {SWEEP}
    assert sum(r.hours.allocated for r in by_task.rows) == sum(r.hours.allocated for r in by_job.rows) > 0
    for total in by_job.totals:
        assert total.hours.allocated + total.hours.reserved + total.idle + total.unavailable == total.capacity


def ran(repo: Path, *words: str) -> str:
    """What a verb of the command line prints."""
    command = [sys.executable, "-m", "reconciler.cli", "-C", str(repo), *words]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})
    assert found.returncode == 0, (words, found.stdout, found.stderr)
    return found.stdout


def check_commands(repo: Path) -> None:
    ran(repo, "audit", "verify")
    one = json.loads(ran(repo, "history", f"{SWEEP}.{FAILS}", "-o", "json"))["generations"]
    actions = [row["action"] for row in reversed(one)]
    assert (actions[:2], actions[-1]) == (["wait", "place"], "finish")
    assert {row["job"] for row in one} == {f"{SWEEP}.{FAILS}"}
    whole = json.loads(ran(repo, "history", SWEEP, "-n", "0", "-o", "json"))["generations"]
    assert sum(row["gpus"] for row in whole if row["action"] == "place") == 12
    first = [(row["action"], row["job"]) for row in whole if row["generation"] == whole[-1]["generation"]]
    assert sorted(first) == [("place", f"{SWEEP}.0-3"), ("wait", f"{SWEEP}.4-11")]
    assert ran(repo, "wait", f"{SWEEP}.0") == f"{SWEEP}.0 Succeeded\n"
    table = ran(repo, "status", SWEEP)
    assert f"{SWEEP}   12 tasks of 1 GPU each, at most 4 at once\n11 Succeeded, 1 Failed\n" in table
    assert "lr=0.01 seed=2" in table
    assert f"{SWEEP}: 11 Succeeded, 1 Failed" in ran(repo, "explain", "job", SWEEP)
    assert "2 restarts" not in ran(repo, "explain", "job", f"{SWEEP}.{FAILS}")
