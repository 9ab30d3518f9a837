"""A gang that lost nodes: nearest replacement first, its other ranks where they were; then anew, smaller, later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.job import Elastic, Job
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import SECOND, JobKey, Nanoseconds
from tests.planner.worlds import Cluster, Spines, job, with_jobs, with_node, world

SPINES: Spines = {
    "s1": {"r1": ["a1", "a2", "a3", "a4"], "r2": ["b1", "b2", "b3", "b4"]},
    "s2": {"r3": ["c1", "c2", "c3", "c4"]},
}
GANG = "nlp/gang"


def running_cluster(*jobs: Job, spines: Spines = SPINES) -> Cluster:
    cluster = Cluster(world(spines, jobs=jobs))
    cluster.settle()
    assert all(cluster.state(one.key) is JobState.RUNNING for one in jobs), cluster.show()
    return cluster


def loses(cluster: Cluster, *nodes: str) -> None:
    for node in nodes:
        cluster.die(node)
    cluster.step(60)
    cluster.settle()


def gang(nodes: int, **more: object) -> Job:
    made = job(GANG, 8 * nodes, dims={"tensor": 8, "data": nodes}, required={"tensor": "node"})
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


def test_the_lost_node_is_replaced_in_its_rack_and_every_other_rank_keeps_its_gpu() -> None:
    cluster = running_cluster(gang(3, required=job("q/x", required={"job": "rack", "tensor": "node"}).required))
    before = cluster.allocation.jobs[JobKey(GANG)].placement
    assert before is not None
    rack = {rank.node[0] for rank in before.ranks}
    lost = before.nodes[1]
    loses(cluster, lost)
    record = cluster.allocation.jobs[JobKey(GANG)]
    assert record.state is JobState.RUNNING
    assert record.placement is not None
    assert {rank.node[0] for rank in record.placement.ranks} == rack
    kept = [(old, new) for old, new in zip(before.ranks, record.placement.ranks, strict=True) if old.node != lost]
    assert len(kept) == 16
    assert all(old == new for old, new in kept)


def test_k_losses_are_one_repair() -> None:
    cluster = running_cluster(gang(4, preferred=job("q/x", preferred={"job": "rack"}).preferred))
    loses(cluster, "a1", "a2")
    assert cluster.state(GANG) is JobState.RUNNING
    places = cluster.places(GANG)
    assert {"a3", "a4"} < set(places), cluster.show()
    assert not {"a1", "a2"} & set(places)
    assert {node[0] for node in places} == {"a", "b"}  # outward: the other rack of the spine group before the next


def test_a_broken_group_is_replaced_as_its_required_level_asks() -> None:
    """Pipelines of two nodes share a rack: the replacement for a broken one comes from its own rack."""
    pipes = job(GANG, 64, dims={"tensor": 8, "pipeline": 2, "data": 4}, required={"tensor": "node", "pipeline": "rack"})
    spines: Spines = {"s1": {"r1": ["a1", "a2", "a3", "a4", "a5"], "r2": ["b1", "b2", "b3", "b4", "b5"]}}
    cluster = running_cluster(pipes, spines=spines)
    place = cluster.allocation.jobs[JobKey(GANG)].placement
    assert place is not None
    lost = next(rank.node for rank in place.ranks if rank.node.startswith("b"))
    loses(cluster, lost)
    after = cluster.allocation.jobs[JobKey(GANG)].placement
    assert after is not None
    new = set(after.nodes) - set(place.nodes)
    assert {node[0] for node in new} == {"b"}


def test_when_the_rest_cannot_be_completed_the_whole_gang_is_placed_anew() -> None:
    tied = gang(4, required=job("q/x", required={"job": "rack", "tensor": "node"}).required)
    cluster = running_cluster(tied)
    old = {node[0] for node in cluster.places(GANG)}
    loses(cluster, next(iter(cluster.places(GANG))))
    assert cluster.state(GANG) is JobState.RUNNING
    assert {node[0] for node in cluster.places(GANG)} != old


def full(*, checkpoint: int | None = None, elastic: Elastic | None = None) -> Cluster:
    """Four nodes, all used by the gang: nothing can replace a lost one."""
    made = job(GANG, 32, dims={"tensor": 8, "data": 4}, required={"tensor": "node"}, checkpoint=checkpoint)
    return running_cluster(replace(made, elastic=elastic), spines={"s1": {"r1": ["a1", "a2", "a3", "a4"]}})


def test_an_elastic_gang_goes_on_without_its_broken_groups() -> None:
    cluster = full(elastic=Elastic(dimension="data", least=2, most=4))
    before = cluster.allocation.jobs[JobKey(GANG)].placement
    assert before is not None
    loses(cluster, "a2")
    record = cluster.allocation.jobs[JobKey(GANG)]
    assert record.state is JobState.RUNNING
    assert record.placement is not None
    assert record.placement.nodes == ("a1", "a3", "a4")
    assert [rank.rank for rank in record.placement.ranks] == list(range(24))


def test_a_gang_without_a_checkpoint_waits_with_its_old_age() -> None:
    cluster = full()
    submitted = cluster.allocation.jobs[JobKey(GANG)].submitted
    loses(cluster, "a2")
    record = cluster.allocation.jobs[JobKey(GANG)]
    assert (record.state, record.submitted, record.placement) == (JobState.PENDING, submitted, None)


def test_one_with_a_checkpoint_keeps_the_rest_for_repair_wait() -> None:
    cluster = full(checkpoint=20)
    loses(cluster, "a2")
    record = cluster.allocation.jobs[JobKey(GANG)]
    assert record.state is JobState.REPAIRING
    assert record.reason.code is ReasonCode.REPAIR_WAIT
    assert set(cluster.places(GANG)) == {"a1", "a3", "a4"}
    cluster.desired = with_jobs(cluster.desired, job("nlp/small", 8))
    cluster.settle()
    assert cluster.state("nlp/small") is JobState.PENDING  # what is left is held
    cluster.step(600)
    cluster.settle()
    assert cluster.state(GANG) is JobState.PENDING
    assert cluster.state("nlp/small") is JobState.RUNNING


def test_a_node_that_comes_back_within_the_wait_completes_it_again() -> None:
    cluster = full(checkpoint=20)
    loses(cluster, "a2")
    cluster.back("a2")
    cluster.settle()
    assert cluster.state(GANG) is JobState.RUNNING
    assert set(cluster.places(GANG)) == {"a1", "a2", "a3", "a4"}


def test_a_second_loss_while_it_waits_starts_over() -> None:
    cluster = full(checkpoint=20)
    loses(cluster, "a2")
    loses(cluster, "a3")
    assert cluster.state(GANG) is JobState.REPAIRING
    assert set(cluster.places(GANG)) == {"a1", "a4"}
    cluster.back("a2")
    cluster.back("a3")
    cluster.settle()
    assert cluster.state(GANG) is JobState.RUNNING


@pytest.mark.parametrize("change", ["cancel", "suspend", "cordon"])
def test_what_is_left_is_let_go_of_when_it_is_not_wanted(change: str) -> None:
    cluster = full(checkpoint=20)
    loses(cluster, "a2")
    made = cluster.desired.jobs[JobKey(GANG)]
    if change == "cancel":
        cluster.desired = with_jobs(cluster.desired, without=[GANG])
    elif change == "suspend":
        cluster.desired = with_jobs(cluster.desired, replace(made, suspend=True))
    else:
        cluster.desired = with_node(cluster.desired, "a1", cordoned="fan")
    cluster.settle()
    if change == "cancel":
        assert JobKey(GANG) not in cluster.allocation.jobs
    elif change == "suspend":
        assert cluster.state(GANG) is JobState.HELD
    else:
        assert (cluster.state(GANG), set(cluster.places(GANG))) == (JobState.REPAIRING, {"a3", "a4"})


def test_repair_comes_before_new_work_of_any_priority() -> None:
    spines: Spines = {"s1": {"r1": ["a1", "a2", "a3"]}}
    cluster = running_cluster(gang(2), spines=spines)
    rules = replace(cluster.desired.scheduling, preempt_same_queue="never")
    cluster.desired = replace(cluster.desired, scheduling=rules)
    cluster.die(next(iter(cluster.places(GANG))))
    cluster.step(60)
    assert cluster.state(GANG) is JobState.STOPPING
    cluster.desired = with_jobs(cluster.desired, job("nlp/late", 8, "high"))
    cluster.settle()
    assert cluster.state(GANG) is JobState.RUNNING
    assert cluster.state("nlp/late") is JobState.PENDING


# --- a rank that failed ---


def fails(cluster: Cluster, code: int = 1) -> None:
    """The gang ends badly and stops; its back-off begins."""
    cluster.end(GANG, code)
    cluster.step(1)
    cluster.step(1)


def test_a_gang_whose_rank_failed_begins_again_where_it_was_and_nobody_gets_its_gpus_meanwhile() -> None:
    again = gang(3, restart=job(GANG, 24, restarts=1).restart)
    cluster = running_cluster(again, spines={"s1": {"r1": ["a1", "a2", "a3"]}})
    before = cluster.allocation.jobs[JobKey(GANG)].placement
    cluster.desired = with_jobs(cluster.desired, job("nlp/other", 8))
    fails(cluster)
    record = cluster.allocation.jobs[JobKey(GANG)]
    assert (record.state, record.reason.code, record.gpus_held) == (JobState.REPAIRING, ReasonCode.BACK_OFF, 24)
    cluster.step(8)
    assert (cluster.state(GANG), cluster.state("nlp/other")) == (JobState.REPAIRING, JobState.PENDING)
    cluster.step(2)
    cluster.settle()
    record = cluster.allocation.jobs[JobKey(GANG)]
    assert (record.state, record.attempt, record.failures) == (JobState.RUNNING, 2, 1)
    assert record.placement == before
    fails(cluster)
    assert cluster.state(GANG) is JobState.FINISHED
    cluster.settle()
    assert cluster.state("nlp/other") is JobState.RUNNING


def test_a_long_back_off_gives_the_gpus_to_others() -> None:
    slow = replace(job(GANG, 24, restarts=3).restart, backoff=Nanoseconds(121 * SECOND))
    cluster = running_cluster(gang(3, restart=slow), spines={"s1": {"r1": ["a1", "a2", "a3"]}})
    cluster.desired = with_jobs(cluster.desired, job("nlp/other", 8))
    fails(cluster)
    assert (cluster.state(GANG), cluster.allocation.jobs[JobKey(GANG)].gpus_held) == (JobState.HELD, 0)
    cluster.settle()
    assert cluster.state("nlp/other") is JobState.RUNNING


def test_a_node_that_cannot_be_used_again_is_replaced_when_the_back_off_is_over() -> None:
    near = job("q/x", required={"job": "rack", "tensor": "node"}).required
    cluster = running_cluster(gang(2, required=near, restart=job(GANG, 16, restarts=1).restart))
    before = cluster.allocation.jobs[JobKey(GANG)].placement
    assert before is not None
    fails(cluster)
    cluster.desired = with_node(cluster.desired, before.nodes[0], cordoned="fan")
    cluster.step(10)
    cluster.settle()
    after = cluster.allocation.jobs[JobKey(GANG)].placement
    assert after is not None
    assert cluster.state(GANG) is JobState.RUNNING
    assert after.ranks[8:] == before.ranks[8:]
    assert before.nodes[0] not in after.nodes
    assert after.nodes[0][0] == before.nodes[0][0]
