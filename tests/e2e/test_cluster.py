"""The spine, end to end: a real bare remote, a real reconciler, real agents over mutual TLS, real rank processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.model.allocation import Allocation
from reconciler.model.lifecycle import JobState
from reconciler.model.units import JobKey
from reconciler.runtime.clone import open_clone
from reconciler.runtime.demo.files import job
from reconciler.runtime.demo.stage import Stage
from reconciler.runtime.generation import Generation, read_generation
from reconciler.runtime.replay import replay
from reconciler.store.history import first_parent_log
from tests.e2e.day import awaits, be_patient, check_goes_on, log_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

LOW, HIGH = JobKey("vision/low"), JobKey("vision/high")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """One rack of four nodes with the agents and the reconciler running, nothing submitted."""
    # Unix sockets of shims need short paths; pytest's are long.
    folder = Path(f"/tmp/gangops-e2e-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with Stage(folder, racks=1) as made:
        made.build()
        be_patient(made)
        made.commit("Be patient", branch="main")
        made.start_reconciler()
        made.start_agents()
        made.until("agents connect", 120, lambda g: len(g.observed.nodes) == len(made.nodes))
        yield made
    assert made.alive() == []
    check_record(made)
    shutil.rmtree(folder)


def check_record(stage: Stage) -> None:
    """One linear chain, no GPU held twice in any generation, and every decision recomputed."""
    clone = open_clone(stage.remote)
    log = list(first_parent_log(clone.git, clone.state_tip()))
    generations = [read_generation(clone.git, meta.id).allocation for meta in log]
    assert [a.generation for a in generations] == list(range(len(log) - 1, -1, -1))
    for allocation in generations:
        assert_no_gpu_twice(allocation)
    assert [r for r in replay(clone.git, clone.state_tip()) if not r.identical] == []


def assert_no_gpu_twice(allocation: Allocation) -> None:
    for node, masks in allocation.holders().items():
        assert sum(masks.values()) == _union(masks.values()), f"{node} in generation {allocation.generation}: {masks}"


def _union(masks: object) -> int:
    found = 0
    for mask in masks:  # type: ignore[attr-defined]  # an iterable of integers
        found |= mask
    return found


def submit(stage: Stage, *keys: JobKey, text: Callable[[JobKey], str]) -> None:
    for key in keys:
        stage.write(f"cluster-state/jobs/{key}.yaml", text(key))
    stage.commit(f"Submit {', '.join(keys)}", branch="main")


def training(
    stage: Stage, *, gpus: int, priority: str, steps: int = 100_000, pace: float = 0.05
) -> Callable[[JobKey], str]:
    script = stage.folder / "train.py"
    source = Path(sys.modules["reconciler.runtime.demo"].__path__[0]) / "train.py"
    script.write_text(source.read_text())
    command = [sys.executable, "-I", "-S", str(script), str(steps), str(pace)]

    def text(key: JobKey) -> str:
        queue, _, name = key.partition("/")
        return job(queue, name, gpus=gpus, command=command, checkpoints=str(stage.checkpoints), priority=priority)

    return text


def state(key: JobKey, *wanted: JobState) -> Callable[[Generation], bool]:
    def holds(generation: Generation) -> bool:
        record = generation.allocation.jobs.get(key)
        return record is not None and record.state in wanted

    return holds


def test_a_victim_checkpoints_is_seen_gone_and_resumes_where_it_was(stage: Stage) -> None:
    # Steps so long that no save is due by itself meanwhile: one just before the asking would do for the agent.
    submit(stage, LOW, text=training(stage, gpus=32, priority="interactive", pace=4))
    stage.until("low runs", 120, state(LOW, JobState.RUNNING))
    awaits("low can be asked", lambda: "starts at step" in log_of(stage, LOW, 1))
    submit(stage, HIGH, text=training(stage, gpus=16, priority="production", steps=20))

    stage.until("high runs", 120, state(HIGH, JobState.RUNNING, JobState.FINISHED))
    stage.until("low is back", 180, lambda g: state(HIGH, JobState.FINISHED)(g) and state(LOW, JobState.RUNNING)(g))

    assert "(asked)\n" in log_of(stage, LOW, 1), "it saves every twenty steps without being asked, too"
    check_goes_on(stage, LOW, 2)


def test_an_agent_that_is_killed_leaves_its_ranks_and_adopts_them_again(stage: Stage) -> None:
    submit(stage, LOW, text=training(stage, gpus=32, priority="research"))
    before = stage.until("low runs", 120, state(LOW, JobState.RUNNING)).allocation.jobs[LOW]
    node = stage.nodes[0]
    ranks = stage.ranks_on(node)
    assert len(ranks) == 1

    stage.kill_agent(node)
    stage.start_agent(node)
    log = stage.folder / "nodes" / node / "agent.log"
    awaits("the new agent takes up the rank", lambda: f"adopted, 1 alive (pid {ranks[0]})" in log.read_text())
    submit(stage, HIGH, text=training(stage, gpus=8, priority="research"))  # makes a later generation
    later = stage.until("high waits", 120, state(HIGH, JobState.PENDING))

    assert stage.ranks_on(node) == ranks
    record = later.allocation.jobs[LOW]
    assert (record.state, record.attempt, record.placement) == (JobState.RUNNING, before.attempt, before.placement)


@pytest.mark.parametrize("failpoint", ["before-commit", "after-commit", "after-push", "after-push-response"])
def test_a_reconciler_killed_between_commit_push_and_apply_continues(stage: Stage, failpoint: str) -> None:
    stage.kill_reconciler()
    stage.start_reconciler(GANGOPS_FAILPOINT=failpoint)
    submit(stage, LOW, text=training(stage, gpus=16, priority="research"))
    assert stage.reconciler_ended(120) == 137

    stage.start_reconciler()
    record = stage.until("low runs", 120, state(LOW, JobState.RUNNING)).allocation.jobs[LOW]

    assert record.attempt == 1
    assert sum(len(stage.ranks_on(node)) for node in stage.nodes) == 2


def test_cancelling_by_removing_the_file_ends_every_process(stage: Stage) -> None:
    submit(stage, LOW, text=training(stage, gpus=16, priority="research"))
    stage.until("low runs", 120, state(LOW, JobState.RUNNING))

    (stage.people / f"cluster-state/jobs/{LOW}.yaml").unlink()
    stage.commit("Cancel low", branch="main")
    stage.until("low is gone", 120, lambda g: LOW not in g.allocation.jobs)

    assert [pid for node in stage.nodes for pid in stage.ranks_on(node)] == []


@pytest.mark.timeout(1800)
def test_the_demo_ends_well_and_a_changed_record_is_found_out(tmp_path: Path) -> None:
    folder = Path(f"/tmp/gangops-demo-test-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    gangops = [sys.executable, "-m", "reconciler.cli"]
    done = subprocess.run(
        [*gangops, "demo", "--dir", str(folder)], capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    clone = ["-C", str(folder / "clone")]
    again = subprocess.run(
        [*gangops, *clone, "replay", "--all"], capture_output=True, text=True, timeout=120, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
    shutil.rmtree(folder)
