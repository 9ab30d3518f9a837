"""Which rank sits on which GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from reconciler.model.allocation import Placement
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import JobKey
from reconciler.planner.ranks import gpus_in_order
from tests.planner.worlds import Cluster, Spines, job, shape, taint, with_jobs, with_node, world

SPINES: Spines = {"sg0": {"r1": ["a1", "a2", "a3", "a4"], "r2": ["b1", "b2", "b3", "b4"]}}
ISLANDS = shape(8, nvlink=(0b00001111, 0b11110000))


def placed(
    *jobs: Job, spines: Spines = SPINES, islands: bool = False, before: Mapping[str, object] | None = None
) -> Cluster:
    desired = world(spines, jobs=jobs, of=ISLANDS if islands else None)
    for name, changes in (before or {}).items():
        desired = with_node(desired, name, **changes)  # type: ignore[arg-type]  # fields by name
    cluster = Cluster(desired)
    cluster.step()
    return cluster


def place_of(cluster: Cluster, key: str) -> Placement:
    place = cluster.allocation.jobs[JobKey(key)].placement
    assert place is not None, cluster.show()
    return place


def test_on_a_whole_node_local_rank_r_takes_rail_r() -> None:
    place = place_of(placed(job("nlp/a", 16)), "nlp/a")
    assert [(r.rank, r.local_rank, r.gpu, r.rail) for r in place.ranks] == [(i, i % 8, i % 8, i % 8) for i in range(16)]
    assert {(r.gpu, r.numa, r.nic) for r in place.ranks} == {(i, i // 4, f"mlx5_{i}") for i in range(8)}


def test_rails_in_another_order_than_gpus_are_followed() -> None:
    crossed = shape(4)
    crossed = replace(crossed, gpus=tuple(replace(slot, rail=3 - slot.index) for slot in crossed.gpus))
    assert gpus_in_order(crossed, 0b1111) == [3, 2, 1, 0]
    torn = replace(crossed, nvlink=(0b0101, 0b1010), gpus=tuple(replace(s, rail=s.index) for s in crossed.gpus))
    assert gpus_in_order(torn, 0b1111) == [0, 2, 1, 3]  # an island is worth more than a rail
    assert gpus_in_order(torn, 0b1110) == [1, 3, 2]


def test_neighbours_in_rank_share_a_rack() -> None:
    place = place_of(placed(job("nlp/a", 64)), "nlp/a")
    racks = ["r1" if rank.node.startswith("a") else "r2" for rank in place.ranks]
    assert racks == ["r1"] * 32 + ["r2"] * 32
    assert (place.level, place.domain) == ("spineGroup", "sg0")


def test_tensor_groups_share_nvlink_and_a_pipeline_shares_a_rack() -> None:
    wanted = job(
        "nlp/a",
        32,
        dims={"tensor": 4, "pipeline": 4, "data": 2},
        required={"tensor": "nvlinkDomain", "pipeline": "rack"},
    )
    place = place_of(placed(wanted, islands=True), "nlp/a")
    for first in range(0, 32, 4):
        group = place.ranks[first : first + 4]
        assert len({(rank.node, rank.gpu // 4) for rank in group}) == 1
    for first in (0, 16):
        assert len({rank.node[0] for rank in place.ranks[first : first + 16]}) == 1


def test_a_slow_varying_tensor_dimension_still_lands_inside_nvlink() -> None:
    wanted = job("nlp/a", 16, dims={"data": 4, "tensor": 4}, required={"tensor": "nvlinkDomain"})
    place = place_of(placed(wanted, islands=True), "nlp/a")
    for data in range(4):
        group = [place.ranks[data + 4 * tensor] for tensor in range(4)]
        assert len({(rank.node, rank.gpu // 4) for rank in group}) == 1


def test_the_leader_role_comes_first_and_each_member_is_on_one_node() -> None:
    wanted = replace(
        job("nlp/a", 17, required={"job": "rack"}, roles=[("leader", 1, 1), ("worker", 2, 8)]), dimensions=()
    )
    place = place_of(placed(wanted), "nlp/a")
    assert [len({r.node for r in place.ranks[a:b]}) for a, b in ((0, 1), (1, 9), (9, 17))] == [1, 1, 1]
    assert [rank.rank for rank in place.ranks] == list(range(17))


@pytest.mark.parametrize(
    ("gpus", "level", "nodes"),
    [(1, "nvlinkDomain", 1), (8, "nvlinkDomain", 1), (12, "rack", 2), (32, "rack", 4), (40, "spineGroup", 5)],
)
def test_the_narrowest_level_that_fits_is_taken(gpus: int, level: str, nodes: int) -> None:
    place = place_of(placed(job("nlp/a", gpus)), "nlp/a")
    assert (place.level, len(place.nodes)) == (level, nodes)


def test_a_gang_scatters_only_when_whole_nodes_do_not_fit() -> None:
    half = {name: {"failed": 0b1111} for name in ("a1", "a2", "a3", "a4")}
    cluster = placed(job("nlp/a", 16), spines={"sg0": {"r1": ["a1", "a2", "a3", "a4"]}}, before=half)
    assert cluster.places("nlp/a") == {"a1": 4, "a2": 4, "a3": 4, "a4": 4}
    tied = placed(job("nlp/a", 16, dims={"tensor": 8, "data": 2}, required={"tensor": "nvlinkDomain"}),
                  spines={"sg0": {"r1": ["a1", "a2", "a3", "a4"]}}, before=half)  # fmt: skip
    assert tied.state("nlp/a") is JobState.PENDING


def test_cost_and_bound_are_equal_when_the_place_is_the_best_there_is() -> None:
    wanted = job("nlp/a", 16, dims={"tensor": 8, "data": 2})
    sized = tuple(replace(d, bytes_per_step=size) for d, size in zip(wanted.dimensions, (2**29, 2**20), strict=True))  # type: ignore[arg-type]  # bytes
    place = place_of(placed(replace(wanted, dimensions=sized)), "nlp/a")
    assert place.comm_time == place.comm_bound > 0


def test_taints_labels_and_cpus_keep_gangs_off_nodes() -> None:
    spines: Spines = {"sg0": {"r1": ["a1", "a2"]}}
    tainted = placed(job("nlp/a", 8), spines=spines, before={"a1": {"taints": (taint("ci"),)}})
    assert tainted.places("nlp/a") == {"a2": 8}
    tolerant = placed(
        replace(job("nlp/a", 16), tolerations=("ci=yes",)), spines=spines, before={"a1": {"taints": (taint("ci"),)}}
    )
    assert tolerant.state("nlp/a") is JobState.STARTING
    soft = placed(job("nlp/a", 8), spines=spines, before={"a1": {"taints": (taint("ci", "PreferNoSchedule"),)}})
    assert soft.places("nlp/a") == {"a2": 8}
    soft.desired = with_jobs(soft.desired, job("nlp/b", 8))
    soft.step(1)
    assert soft.places("nlp/b") == {"a1": 8}
    labelled = placed(
        replace(job("nlp/a", 8), node_labels={"fs": "fast"}), spines=spines, before={"a2": {"labels": {"fs": "fast"}}}
    )
    assert labelled.places("nlp/a") == {"a2": 8}


def test_cpus_beside_the_gpus_are_counted_across_jobs() -> None:
    greedy = replace(job("nlp/a", 4), cpus_per_gpu=24)
    cluster = placed(greedy, replace(job("nlp/b", 4), cpus_per_gpu=24), spines={"sg0": {"r1": ["a1", "a2"]}})
    assert sorted([*cluster.places("nlp/a"), *cluster.places("nlp/b")]) == ["a1", "a2"]  # 96 + 96 of 128 CPUs
    cluster.desired = with_jobs(cluster.desired, replace(job("nlp/c", 4), cpus_per_gpu=24))
    cluster.step(1)
    waits = cluster.allocation.jobs[JobKey("nlp/c")]
    assert (waits.state, waits.reason.code) == (JobState.PENDING, ReasonCode.NODE_RESOURCES)
    assert waits.reason.number("short") == "CPU"
