"""The decision as a whole: order, ports, changes, repair, capacity, and the same bytes everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from reconciler.model.decision import Action
from reconciler.model.job import Fence
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import AttemptReport, AttemptState, GpuReport, NodeCondition
from reconciler.model.units import HOUR, SECOND, Gpus, GpuType, Instant, JobKey, QueueName
from reconciler.planner.capacity import OutageCode, Supply
from reconciler.planner.decide import decide
from reconciler.planner.ground import ground_of
from reconciler.planner.order import pass_order
from reconciler.planner.quota import Breach, Quotas
from tests.planner.worlds import (
    START,
    Cluster,
    Spines,
    allocation,
    job,
    pending,
    queue,
    ready,
    running,
    saw,
    with_jobs,
    with_node,
    world,
)

ROOT = Path(__file__).resolve().parents[2]


def actions(cluster: Cluster, seconds: int = 1) -> list[tuple[str, str]]:
    """What the next round changes."""
    cluster.now = Instant(cluster.now + seconds * SECOND)
    decision = decide(cluster.desired, cluster.observe(), cluster.allocation, cluster.now)
    cluster.step()
    return [(str(change.action), str(change.job)) for change in decision.changes]


def test_a_life_tells_its_story_in_changes() -> None:
    cluster = Cluster(world(jobs=[job("nlp/a", 32, "low", checkpoint=60)]))
    told = [actions(cluster) for _ in range(3)]
    assert told == [[("place", "nlp/a")], [("start", "nlp/a")], [("running", "nlp/a")]]
    cluster.desired = with_jobs(cluster.desired, job("nlp/b", 8))
    told = [actions(cluster) for _ in range(4)]
    assert told[0] == [("preempt", "nlp/a"), ("promise", "nlp/b")]
    assert told[1] == [("place", "nlp/b"), ("release", "nlp/a")]
    assert told[2:] == [[("start", "nlp/b")], [("running", "nlp/b")]]
    cluster.end("nlp/b")
    assert actions(cluster) == [("place", "nlp/a"), ("finish", "nlp/b")]
    cluster.desired = with_jobs(cluster.desired, without=["nlp/b"])
    assert ("drop", "nlp/b") in actions(cluster)
    assert set(Action) >= {action for row in told for action, _ in row}


def test_unchanged_is_the_same_generation_dated_now() -> None:
    cluster = Cluster(world(jobs=[job("nlp/a", 8), job("nlp/b", 64)]))
    cluster.settle()
    later = Instant(cluster.now + HOUR)
    again = decide(cluster.desired, cluster.observe(), cluster.allocation, later)
    assert not again.changed
    assert again.allocation == replace(cluster.allocation, decided_at=later)
    assert all(again.allocation.jobs[key] is record for key, record in cluster.allocation.jobs.items())


def test_time_never_goes_back() -> None:
    desired = world(jobs=[job("nlp/a", 8)])
    before = allocation(desired, at=Instant(START + HOUR))
    assert decide(desired, ready(desired), before, START).allocation.decided_at == START + HOUR


def test_the_line_is_priority_then_nice_then_age_then_name_and_broken_gangs_lead_their_equals() -> None:
    jobs = [
        job("nlp/d", 1),
        job("nlp/a", 1, "low"),
        job("nlp/b", 1, "high"),
        job("nlp/c", 1),
        job("nlp/e", 1),
        job("nlp/f", 1),
    ]
    jobs[4] = replace(jobs[4], nice=-5)
    desired = world(jobs=jobs)
    records = [pending(desired, one.key) for one in jobs]
    records[0] = replace(records[0], submitted=Instant(START - 1))
    records[5] = replace(records[5], cause=Cause.NODE_LOST, submitted=Instant(START + 9))
    line = pass_order(zip(records, jobs, strict=True), desired.classes, desired.scheduling, START)
    assert [record.job for record, _ in line] == ["nlp/b", "nlp/f", "nlp/e", "nlp/d", "nlp/c", "nlp/a"]


def test_a_later_job_passes_one_that_cannot_start() -> None:
    cluster = Cluster(world(jobs=[job("nlp/a", 32, "high"), job("nlp/b", 8, "low")]))
    cluster.desired = with_node(cluster.desired, "gpu-001", cordoned="fan")
    cluster.settle()
    assert (cluster.state("nlp/a"), cluster.state("nlp/b")) == (JobState.PENDING, JobState.RUNNING)


def test_ports_are_never_shared_on_a_node_and_shift_with_the_attempt() -> None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2"]}}
    jobs = [job(f"nlp/{name}", 4) for name in "abc"]
    jobs[2] = replace(jobs[2], run=replace(jobs[2].run, ports=2))
    cluster = Cluster(world(spines, jobs=jobs))
    cluster.settle()
    ports = {key: record.ports for key, record in cluster.allocation.jobs.items()}
    assert [len(found) for found in ports.values()] == [1, 1, 3]
    for (key, own), (other, others) in combinations(ports.items(), 2):
        if set(cluster.places(key)) & set(cluster.places(other)):
            assert not set(own) & set(others)
    first = ports[JobKey("nlp/a")]
    cluster.desired = with_jobs(cluster.desired, job("nlp/a", 4, version=2))
    for _ in range(6):
        cluster.step(1)
    assert cluster.state("nlp/a") is JobState.RUNNING
    assert cluster.allocation.jobs[JobKey("nlp/a")].ports != first


def test_a_gang_that_lost_a_node_is_placed_anew_before_older_equal_work() -> None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2", "a3"]}}
    cluster = Cluster(world(spines, jobs=[job("nlp/a", 16, fence=Fence.LEASE)]))
    cluster.settle()
    gone = next(iter(cluster.places("nlp/a")))
    cluster.desired = with_jobs(cluster.desired, job("nlp/b", 24, "high"))
    cluster.die(gone)
    for _ in range(6):
        cluster.step(31)
    again = cluster.allocation.jobs[JobKey("nlp/a")]
    assert (again.state, again.attempt, again.node_losses) == (JobState.RUNNING, 2, 1)
    assert gone not in cluster.places("nlp/a")
    assert [entry.node for entry in again.avoid] == [gone]


def test_a_node_that_refuses_is_avoided_until_it_alone_is_left() -> None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2"]}}
    cluster = Cluster(world(spines, jobs=[job("nlp/a", 8)]))
    cluster.nodes[next(iter(sorted(cluster.nodes)))].refuses = True
    cluster.settle()
    assert cluster.places("nlp/a") == {"a2": 8}
    alone = Cluster(world({"sg0": {"r1": ["a1"]}}, jobs=[job("nlp/a", 8)]))
    node = next(iter(alone.nodes.values()))
    node.refuses = True
    for _ in range(4):
        alone.step(1)
    node.refuses = False
    alone.settle()
    assert alone.state("nlp/a") is JobState.HELD  # it failed more than once in a row, so it waits before the next start
    alone.step(seconds=600)
    alone.settle()
    assert alone.state("nlp/a") is JobState.RUNNING


@pytest.mark.parametrize(
    ("facts", "code", "left"),
    [
        ({"condition": NodeCondition.UNREACHABLE}, OutageCode.UNREACHABLE, 0),
        ({"condition": NodeCondition.LOST}, OutageCode.LOST, 0),
        ({"unhealthy": "ecc"}, OutageCode.UNHEALTHY, 0),
        ({"gpu_type": "A100"}, OutageCode.TYPE_DIFFERS, 0),
        ({"gpus": ()}, OutageCode.GPU_MISSING, 0),
        ({"gpus": tuple(GpuReport(index=i, uuid=str(i), healthy=i > 1) for i in range(8))}, OutageCode.GPU_FAILED, 6),
        ({"gpus": tuple(GpuReport(index=i, uuid=str(i), foreign="root:x" if i == 3 else "") for i in range(8))},
         OutageCode.FOREIGN_PROCESS, 7),
        ({"attempts": (AttemptReport(job=JobKey("q/old"), attempt=4, state=AttemptState.RUNNING, at=START),)},
         OutageCode.STRAY_ATTEMPT, 0),
    ],
)  # fmt: skip
def test_capacity_is_what_is_declared_and_seen_and_the_difference_has_a_reason(
    facts: dict[str, object], code: OutageCode, left: int
) -> None:
    desired = world()
    supply = Supply(ground_of(desired.inventory), saw(ready(desired), "gpu-002", **facts), {}, (), ())
    assert [(outage.node, outage.code, outage.gpus) for outage in supply.outages] == [("gpu-002", code, 8 - left)]
    assert supply.engines[GpuType("H100")].free_gpus() == 24 + left


def test_a_cordon_keeps_running_work_and_takes_its_gpus_when_they_come_back() -> None:
    cluster = Cluster(world({"sg0": {"r1": ["a1"]}}, jobs=[job("nlp/a", 4)]))
    cluster.settle()
    cluster.desired = with_node(cluster.desired, "a1", cordoned="fan")
    cluster.settle()
    assert cluster.state("nlp/a") is JobState.RUNNING
    assert cluster.allocation.metrics.held == 4
    cluster.end("nlp/a")
    cluster.desired = with_jobs(cluster.desired, job("nlp/b", 4))
    for _ in range(3):
        cluster.step(1)
    assert cluster.state("nlp/b") is JobState.PENDING
    assert (cluster.allocation.metrics.capacity, cluster.allocation.metrics.idle) == (0, 0)


def test_metrics_count_gpus_and_whole_domains() -> None:
    desired = world(jobs=[job("nlp/a", 6), job("nlp/b", 8)])
    records = [running(desired, "nlp/a", {"gpu-001": 6})]
    metrics = decide(desired, ready(desired, *records), allocation(desired, *records), START).allocation.metrics
    assert (metrics.declared, metrics.capacity, metrics.held, metrics.idle) == (32, 32, 14, 18)
    assert (metrics.stranded, metrics.phi_whole, metrics.phi_ppm) == (2, 16, 111111)
    assert metrics.jobs == (("Running", 1), ("Starting", 1))


def test_ceilings_count_the_subtree_held_and_promised() -> None:
    tree = world(queues=[queue("a", "root", ceiling=8), queue("b", "root"), queue("root", None, ceiling=12)]).quotas
    quotas, kind = Quotas(tree, {GpuType("H100"): 32}), GpuType("H100")
    quotas.hold(QueueName("b"), kind, 4)
    quotas.keep(QueueName("a"), kind, 3)
    assert quotas.breach(QueueName("a"), kind, 5) is None
    assert quotas.breach(QueueName("a"), kind, 6) == Breach(queue=QueueName("a"), would_be=9, ceiling=8)
    assert quotas.breach(QueueName("b"), kind, 6) == Breach(queue=QueueName("root"), would_be=13, ceiling=12)
    assert (quotas.deficit(QueueName("a"), kind, 8), quotas.most(QueueName("b"), kind)) == (3, Gpus(12))


STORY = """
import sys
sys.path.insert(0, sys.argv[1])
from reconciler.documents.record import changed_jobs
from tests.planner.worlds import Cluster, job, with_jobs, world
cluster = Cluster(world(jobs=[job(f"nlp/{n}", 1 + i % 5, ("low", "normal")[i % 2], checkpoint=9) for i, n in enumerate("abcdefghijklmnop")]))
for number in range(12):
    before = cluster.allocation
    if number == 4:
        cluster.desired = with_jobs(cluster.desired, job("nlp/z", 16, "high"), without=["nlp/c"])
    if number == 7:
        cluster.die("gpu-002")
    cluster.step(20)
    for path, content in sorted(changed_jobs(before, cluster.allocation).items()):
        print(cluster.allocation.generation, path, content)
"""


def test_the_same_bytes_whatever_the_hash_seed_the_time_zone_and_the_locale() -> None:
    outputs = set()
    for seed, zone, locale in (
        ("0", "UTC", "C"),
        ("1", "Asia/Tokyo", "C.UTF-8"),
        ("77", "America/Lima", "tr_TR.UTF-8"),
    ):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale}
        told = subprocess.run(
            [sys.executable, "-c", STORY, str(ROOT)], env=environment, capture_output=True, check=True, text=True
        )
        outputs.add(told.stdout)
    assert len(outputs) == 1
    assert outputs.pop().count("allocation/jobs/") > 20
