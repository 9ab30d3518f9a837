"""A GPU loses its NVLink while the cluster runs: it is told, tensor groups keep away, nothing else does, and it heals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import JobKey
from reconciler.runtime.clone import open_clone
from reconciler.runtime.demo.files import job
from reconciler.runtime.demo.stage import Stage
from reconciler.runtime.generation import Generation
from reconciler.runtime.replay import replay
from tests.e2e.day import be_patient

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

FIRST, TENSOR, PLAIN = JobKey("vision/first"), JobKey("vision/tensor"), JobKey("nlp/plain")


@pytest.fixture
def stage() -> Iterator[Stage]:
    """One rack of four nodes; each agent reads its pretended hardware from `hw.json` beside its configuration."""
    folder = Path(f"/tmp/gangops-drift-{os.getpid()}")  # Unix sockets of shims need short paths; pytest's are long
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with Stage(folder, racks=1) as made:
        made.build()
        for node in made.nodes:
            with (folder / "nodes" / node / "agent.conf").open("a") as conf:
                conf.write("profile = hw.json\n")
        be_patient(made)
        made.commit("Be patient", branch="main")
        made.start_reconciler()
        made.start_agents()
        made.until("agents connect", 120, lambda g: len(g.observed.nodes) == len(made.nodes))
        yield made
    assert made.alive() == []
    clone = open_clone(made.remote)
    assert [r for r in replay(clone.git, clone.state_tip()) if not r.identical] == []
    shutil.rmtree(folder)


def pretend(stage: Stage, node: str, **facts: object) -> None:
    """Change what a node's hardware is, as a whole: the agent may read at any moment."""
    home = stage.folder / "nodes" / node
    (home / "hw.fresh").write_text(json.dumps(facts))
    (home / "hw.fresh").replace(home / "hw.json")


def submit(stage: Stage, key: JobKey, *, gpus: int, parallelism: str = "", priority: str = "research") -> None:
    queue, _, name = key.partition("/")
    command = ["/bin/sleep", "600"]
    text = job(queue, name, gpus=gpus, command=command, checkpoints=str(stage.checkpoints), priority=priority)
    if parallelism:
        text = text.replace(f"  gpus: {gpus}\n", f"  gpus: {gpus}\n  parallelism: {parallelism}\n")
    stage.write(f"cluster-state/jobs/{key}.yaml", text)
    stage.commit(f"Submit {key}", branch="main")


def is_in(key: JobKey, *states: JobState) -> Callable[[Generation], bool]:
    def holds(generation: Generation) -> bool:
        record = generation.allocation.jobs.get(key)
        return record is not None and record.state in states

    return holds


def nodes_of(generation: Generation, key: JobKey) -> set[str]:
    placement = generation.allocation.jobs[key].placement
    assert placement is not None
    return set(placement.nodes)


def links(node: str, count: int) -> Callable[[Generation], bool]:
    return lambda g: [gpu.nvlinks for gpu in g.observed.nodes[node].gpus if gpu.index == 5] == [count]  # type: ignore[index]  # a node by the text of its name


def gangops(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reconciler.cli", "-C", str(stage.people), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_gpu_that_loses_its_nvlink_mid_run(stage: Stage) -> None:
    submit(stage, FIRST, gpus=16, parallelism="{tensor: 8, data: 2}")
    busy = nodes_of(stage.until("first runs", 120, is_in(FIRST, JobState.RUNNING)), FIRST)
    broken = next(node for node in stage.nodes if node not in busy)

    pretend(stage, broken, gpus=[{"index": 5, "nvlinks": 0}])
    stage.until("the break is on record", 120, links(broken, 0))
    told = gangops(stage, "inventory", "diff", "-o", "json")
    (drift,) = json.loads(told.stdout)["drift"]
    assert (drift["node"], drift["code"], drift["effect"]) == (broken, "NvlinkDown", "domain split")
    assert drift["numbers"] == {"gpus": "5", "up": 0, "links": 18}

    # Two nodes are idle, sixteen GPUs: enough for anyone but a gang of two whole NVLink domains.
    submit(stage, TENSOR, gpus=16, parallelism="{tensor: 8, data: 2}")
    waits = stage.until("tensor waits", 120, is_in(TENSOR, JobState.PENDING)).allocation.jobs[TENSOR]
    assert waits.reason.code is ReasonCode.NVLINK_DOWN
    explained = gangops(stage, "explain", "job", TENSOR)
    assert "NvlinkDown" in explained.stdout
    assert broken in explained.stdout

    # What asks for no NVLink gets all eight GPUs of the broken node; it comes first, so nobody waits for the gang above.
    submit(stage, PLAIN, gpus=16, parallelism="{data: 16}", priority="production")
    runs = stage.until("plain runs", 120, is_in(PLAIN, JobState.RUNNING))
    assert broken in nodes_of(runs, PLAIN)

    # It heals: drift goes, and once the GPUs are free the gang starts on them.
    (stage.people / f"cluster-state/jobs/{PLAIN}.yaml").unlink()
    stage.commit("Cancel plain", branch="main")
    pretend(stage, broken, gpus=[{"index": 5, "nvlinks": 18}])
    after = stage.until("tensor runs", 180, is_in(TENSOR, JobState.RUNNING))
    assert broken in nodes_of(after, TENSOR)
    assert json.loads(gangops(stage, "inventory", "diff", "-o", "json").stdout)["drift"] == []
    assert after.allocation.jobs[FIRST].attempt == 1  # what ran was never touched


def test_a_nic_that_went_dark_is_adopted_into_the_inventory(stage: Stage) -> None:
    node = stage.nodes[2]
    pretend(stage, node, nics=[{"name": f"mlx5_{i}", "up": i != 2} for i in range(8)])
    stage.until("the dark NIC is on record", 120, lambda g: len(g.observed.nodes[node].nics) == 8)  # type: ignore[index]  # a node by the text of its name
    assert f"! node {node}: mlx5_2 is down, which serves GPU 2 (rail avoided)" in gangops(stage, "status").stdout

    done = gangops(stage, "inventory", "adopt", node)
    assert (done.returncode, done.stdout) == (0, "cluster-state/inventory/r01.yaml\n"), done.stderr
    submit(stage, PLAIN, gpus=32, parallelism="{data: 32}")  # with the edit: a decision that has both on record
    ranks = stage.until("plain runs", 120, is_in(PLAIN, JobState.RUNNING)).allocation.jobs[PLAIN].placement
    assert ranks is not None
    assert [(rank.node, rank.gpu) for rank in ranks.ranks if rank.nic == ""] == [(node, 2)]
    assert json.loads(gangops(stage, "inventory", "diff", "-o", "json").stdout)["drift"] == []


def test_a_gpu_that_fell_off_the_bus_is_given_to_nobody_and_a_hot_one_is_told_before_the_merge(stage: Stage) -> None:
    ill, hot = stage.nodes[1], stage.nodes[2]
    pretend(stage, ill, gpus=[{"index": 3, "xids": [79]}])
    pretend(stage, hot, gpus=[{"index": 6, "throttled": "heat, by the hardware"}])
    stage.until("the fault is on record", 120, lambda g: any(gpu.xids == (79,) for gpu in g.observed.nodes[ill].gpus))  # type: ignore[index]  # a node by the text of its name
    stage.until("the heat is on record", 120, lambda g: any(gpu.throttled for gpu in g.observed.nodes[hot].gpus))  # type: ignore[index]  # a node by the text of its name
    told = json.loads(gangops(stage, "inventory", "diff", "-o", "json").stdout)["drift"]
    assert [(d["node"], d["code"], d["severity"], d["effect"]) for d in told] == [
        (ill, "XidFatal", "error", "capacity removed"),
        (hot, "Throttled", "warning", "warning only"),
    ]

    # Thirty-one GPUs are left, on four nodes: the preview of a job for all of them says where it is hot.
    text = job(
        "nlp",
        "plain",
        gpus=31,
        command=["/bin/sleep", "600"],
        checkpoints=str(stage.checkpoints),
        priority="production",
    )
    stage.write(
        f"cluster-state/jobs/{PLAIN}.yaml", text.replace("  gpus: 31\n", "  gpus: 31\n  parallelism: {data: 31}\n")
    )
    stage.commit("Submit plain", branch="plain")
    before = gangops(stage, "plan", "--base", "main", "--head", "plain").stdout
    assert f"  {ill}  GpuFailed  1 GPU not usable: GPU 3: XID 79: fell off the bus" in before
    assert f"  {hot}  Throttled" in before
    assert f"{PLAIN} is placed there" in " ".join(before.split())
    stage.merge("plain", "Merge plain")
    ranks = stage.until("plain runs", 120, is_in(PLAIN, JobState.RUNNING)).allocation.jobs[PLAIN].placement
    assert ranks is not None
    assert len(ranks.ranks) == 31
    assert [gpu for gpu in range(8) if (ill, gpu) not in {(r.node, r.gpu) for r in ranks.ranks}] == [3]
