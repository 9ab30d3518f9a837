"""GPUs held beside a gang: where they are taken, what they cost, and that a repair uses them first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reconciler.model.allocation import Allocation, JobRecord, Spare
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.queue import Scheduling
from reconciler.model.units import HOUR, Gpus, GpuType, JobKey, NodeName
from reconciler.planner.verify import Breach, violations
from tests.planner.worlds import (
    H100,
    Cluster,
    Spines,
    allocation,
    job,
    queue,
    ready,
    running,
    with_jobs,
    with_node,
    world,
)

GANG = "nlp/gang"
RACK: Spines = {"s1": {"r1": ["a1", "a2", "a3", "a4"], "r2": ["b1", "b2", "b3", "b4"]}}
SMALL: Spines = {"s1": {"r1": ["a1", "a2", "a3"]}}
IN_RACK = job("q/x", required={"job": "rack", "tensor": "node"}).required


def gang(nodes: int = 2, spares: int = 1, **more: object) -> Job:
    made = job(GANG, 8 * nodes, dims={"tensor": 8, "data": nodes}, required={"job": "rack", "tensor": "node"})
    return replace(made, spares=spares, **more)  # type: ignore[arg-type]  # fields by name


def settled(*jobs: Job, spines: Spines = RACK) -> Cluster:
    cluster = Cluster(world(spines, jobs=jobs))
    cluster.settle()
    return cluster


def record_of(cluster: Cluster, key: str = GANG) -> JobRecord:
    return cluster.allocation.jobs[JobKey(key)]


def spares_of(cluster: Cluster, key: str = GANG) -> dict[str, int]:
    return {str(one.node): one.mask.bit_count() for one in record_of(cluster, key).spares}


def test_a_gang_holds_its_spares_in_its_rack_on_nodes_of_their_own() -> None:
    cluster = settled(gang(2, spares=2))
    (rack,) = {node[0] for node in cluster.places(GANG)}
    assert set(spares_of(cluster)) == {f"{rack}{n}" for n in range(1, 5)} - set(cluster.places(GANG))
    assert set(spares_of(cluster).values()) == {8}
    held = cluster.allocation.holders()
    assert {node: held[NodeName(node)][JobKey(GANG)] for node in spares_of(cluster)} == dict.fromkeys(
        spares_of(cluster), 255
    )
    assert (cluster.allocation.metrics.held, cluster.allocation.metrics.idle) == (32, 32)


def test_nobody_else_gets_a_spare() -> None:
    cluster = settled(gang(2), job("nlp/other", 8), spines=SMALL)
    assert spares_of(cluster) == {next(iter({"a1", "a2", "a3"} - set(cluster.places(GANG)))): 8}
    assert cluster.state("nlp/other") is JobState.PENDING


def test_a_part_of_a_node_needs_a_spare_of_that_size_on_another_node() -> None:
    cluster = settled(replace(job(GANG, 4), spares=1))
    (own,) = cluster.places(GANG)
    assert len(spares_of(cluster)) == 1
    assert own not in spares_of(cluster)
    assert set(spares_of(cluster).values()) == {4}


def test_a_lost_node_is_replaced_by_the_spare_although_another_is_free() -> None:
    cluster = settled(gang(2))
    before, (spare,) = record_of(cluster).placement, spares_of(cluster)
    assert before is not None
    lost = before.nodes[0]
    cluster.die(lost)
    cluster.step(60)
    cluster.settle()
    after = record_of(cluster).placement
    assert after is not None
    assert record_of(cluster).state is JobState.RUNNING
    assert after.nodes == (spare, before.nodes[1])
    assert after.ranks[8:] == before.ranks[8:]
    (fresh,) = spares_of(cluster)
    assert fresh not in {lost, spare, before.nodes[1]}
    assert fresh[0] == spare[0]


def test_two_losses_with_one_spare_use_it_and_one_free_node() -> None:
    cluster = settled(gang(3), spines={"s1": {"r1": [f"a{n}" for n in range(1, 7)]}})
    before, (spare,) = record_of(cluster).placement, spares_of(cluster)
    assert before is not None
    for node in before.nodes[:2]:
        cluster.die(node)
    cluster.step(60)
    cluster.settle()
    after = record_of(cluster).placement
    assert after is not None
    assert spare in after.nodes[:2]
    assert after.ranks[16:] == before.ranks[16:]
    assert set(spares_of(cluster)) == {f"a{n}" for n in range(1, 7)} - {*before.nodes[:2], *after.nodes}


def test_spares_never_make_a_start_wait_and_are_taken_when_nobody_waits_for_such_gpus() -> None:
    cluster = settled(job("nlp/old", 8), spines=SMALL)
    cluster.desired = with_jobs(cluster.desired, gang(2))
    cluster.settle()
    assert (record_of(cluster).state, spares_of(cluster)) == (JobState.RUNNING, {})
    cluster.desired = with_jobs(cluster.desired, job("nlp/next", 16))
    cluster.end("nlp/old")
    cluster.settle()
    assert (cluster.state("nlp/next"), spares_of(cluster)) == (JobState.PENDING, {})
    cluster.desired = with_jobs(cluster.desired, without=["nlp/next"])
    cluster.settle()
    assert set(spares_of(cluster).values()) == {8}


@pytest.mark.parametrize(("ceiling", "spares"), [(16, 0), (23, 0), (24, 1), (31, 1), (32, 2)])
def test_spares_count_against_the_queue(ceiling: int, spares: int) -> None:
    cluster = Cluster(
        world(RACK, jobs=[gang(2, spares=2)], queues=[queue("root", None), queue("nlp", ceiling=ceiling)])
    )
    cluster.settle()
    assert record_of(cluster).state is JobState.RUNNING
    assert len(spares_of(cluster)) == spares
    cluster.desired = with_jobs(cluster.desired, job("nlp/more", 8))
    cluster.settle()
    room = ceiling - 16 - 8 * spares >= 8
    assert cluster.state("nlp/more") is (JobState.RUNNING if room else JobState.PENDING)


def test_a_spare_whose_node_goes_out_is_exchanged() -> None:
    cluster = settled(gang(2))
    (spare,) = spares_of(cluster)
    attempt = record_of(cluster).attempt
    cluster.desired = with_node(cluster.desired, spare, cordoned="fan")
    cluster.settle()
    (other,) = spares_of(cluster)
    assert (other[0], other == spare) == (spare[0], False)
    assert record_of(cluster).attempt == attempt


def test_spares_outside_the_required_rack_are_no_use() -> None:
    cluster = settled(gang(3, spares=2))
    (rack,) = {node[0] for node in cluster.places(GANG)}
    assert [node[0] for node in spares_of(cluster)] == [rack]
    wide = settled(replace(gang(3, spares=2), required=IN_RACK[1:]))
    assert sorted(node[0] for node in spares_of(wide)) == ["a", "b"]


def test_the_file_may_ask_for_fewer_or_more_of_a_running_gang() -> None:
    cluster = settled(gang(2, spares=2))
    kept = record_of(cluster).spares[:1]
    cluster.desired = with_jobs(cluster.desired, gang(2, spares=1))
    cluster.settle()
    assert record_of(cluster).spares == kept
    cluster.desired = with_jobs(cluster.desired, gang(2, spares=2))
    cluster.settle()
    assert len(record_of(cluster).spares) == 2
    assert record_of(cluster).attempt == 1


@pytest.mark.parametrize("way", ["ends", "fails", "cancelled", "preempted"])
def test_a_gang_that_goes_lets_go_of_its_spares(way: str) -> None:
    cluster = settled(gang(2, priority_class=job("q/x", priority="low").priority_class), spines=SMALL)
    assert set(spares_of(cluster).values()) == {8}
    if way in ("ends", "fails"):
        cluster.end(GANG, int(way == "fails"))
    elif way == "cancelled":
        cluster.desired = with_jobs(cluster.desired, without=[GANG])
    else:
        cluster.desired = with_jobs(cluster.desired, job("nlp/new", 24, priority="normal"))
    cluster.settle()
    if way == "preempted":
        assert set(cluster.places("nlp/new")) == {"a1", "a2", "a3"}
        assert record_of(cluster).state is JobState.PENDING
    known = cluster.allocation.jobs.get(JobKey(GANG))
    assert known is None or known.spares == ()
    assert cluster.allocation.metrics.idle == (0 if way == "preempted" else 24)


@pytest.mark.parametrize(
    ("asks", "gives"),
    [
        pytest.param(job("nlp/new", 8, priority="normal"), True, id="a higher priority of the same queue"),
        pytest.param(job("nlp/new", 8, priority="low"), False, id="an equal one does not"),
        pytest.param(job("vision/new", 8, priority="low"), True, id="an owner within its guarantee"),
    ],
)
def test_who_may_take_from_a_gang_takes_its_spares_before_anything_that_runs(asks: Job, gives: bool) -> None:
    queues = [queue("root", None), queue("nlp"), replace(queue("vision"), guaranteed={GpuType(H100): Gpus(8)})]
    low = gang(2, spares=2, priority_class=job("q/x", priority="low").priority_class)
    four: Spines = {"s1": {"r1": ["a1", "a2", "a3", "a4"]}}
    cluster = Cluster(world(four, jobs=[low], queues=queues, rules=Scheduling(min_runtime=HOUR)))
    cluster.settle()
    assert len(spares_of(cluster)) == 2
    before = record_of(cluster).placement
    cluster.desired = with_jobs(cluster.desired, asks)
    cluster.settle()
    assert cluster.state(asks.key) is (JobState.RUNNING if gives else JobState.PENDING)
    assert (record_of(cluster).state, record_of(cluster).attempt) == (JobState.RUNNING, 1)
    assert record_of(cluster).placement == before
    assert len(spares_of(cluster)) == (1 if gives else 2)


# --- the judge ---


def taken(*spares: Spare) -> Callable[[JobRecord], JobRecord]:
    return lambda record: replace(record, spares=spares)


def one(node: str, mask: int = 255) -> Spare:
    return Spare(node=NodeName(node), mask=mask)


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        pytest.param(taken(one("a3")), [], id="in its rack"),
        pytest.param(taken(one("a3"), one("a4")), [Breach.WRONG_SPARES], id="more than asked for"),
        pytest.param(taken(one("a3", 15)), [Breach.WRONG_SPARES], id="too small"),
        pytest.param(taken(one("b1")), [Breach.LEVEL_BROKEN], id="in another rack"),
        pytest.param(taken(one("b2")), [Breach.GPU_TWICE, Breach.LEVEL_BROKEN], id="somebody else's"),
        pytest.param(taken(one("a2")), [Breach.WRONG_SPARES], id="where it has ranks"),
        pytest.param(taken(one("zz")), [Breach.LEVEL_BROKEN, Breach.NODE_UNFIT], id="not declared"),
        pytest.param(
            lambda r: replace(r, state=JobState.PENDING, placement=None, phase=None, spares=(one("a3"),)),
            [Breach.NOT_RELEASED, Breach.WRONG_SPARES], id="of a gang that holds nothing",
        ),
    ],
)  # fmt: skip
def test_the_judge_looks_at_every_spare_that_is_taken(
    change: Callable[[JobRecord], JobRecord], codes: list[Breach]
) -> None:
    desired = world(RACK, jobs=[gang(2), job("nlp/other", 8)])
    runs, other = running(desired, GANG, {"a1": 8, "a2": 8}, level="rack"), running(desired, "nlp/other", {"b2": 8})
    before = allocation(desired, runs, other)
    after: Allocation = replace(
        before,
        generation=before.generation + 1,
        jobs={**before.jobs, runs.job: change(runs)},
        usage_as_of=before.decided_at,
    )
    found = {v.code for v in violations(desired, ready(desired, runs, other), before, after)}
    assert found - {Breach.ILLEGAL_MOVE, Breach.WRONG_USAGE} == set(codes)


def test_the_judge_counts_spares_at_the_ceiling() -> None:
    desired = world(RACK, jobs=[gang(2)], queues=[queue("root", None), queue("nlp", ceiling=20)])
    runs = running(desired, GANG, {"a1": 8, "a2": 8}, level="rack")
    before = allocation(desired, runs)
    after = replace(
        before, generation=before.generation + 1, jobs={runs.job: replace(runs, spares=(one("a3"),))},
        usage_as_of=before.decided_at,
    )  # fmt: skip
    found = [v.code for v in violations(desired, ready(desired, runs), before, after)]
    assert Breach.CEILING_EXCEEDED in found
