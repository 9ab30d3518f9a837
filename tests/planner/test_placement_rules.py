"""Where one gang goes: NVLink blocks above the node, odd sizes of node, even spread, mixed types; and metamorphic laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Inventory, Node, NodeShape
from reconciler.model.job import Job, Spread
from reconciler.model.lifecycle import JobState
from reconciler.model.units import (
    NODE_LEVEL,
    NVLINK_LEVEL,
    DomainName,
    GpuType,
    JobKey,
    LevelName,
    NodeName,
)
from reconciler.planner.decide import decide
from reconciler.planner.verify import violations
from tests.planner.strategies import Site, sites
from tests.planner.worlds import START, Cluster, Spines, allocation, inventory, job, ready, running, shape, world


def records(desired: Desired, *others: JobRecord) -> Mapping[JobKey, JobRecord]:
    """One judged decision."""
    before, observed = allocation(desired, *others), ready(desired, *others)
    after = decide(desired, observed, before, START).allocation
    assert violations(desired, observed, before, after) == ()
    return after.jobs


def nodes_of(record: JobRecord) -> dict[str, int]:
    assert record.placement is not None, record.reason
    return {str(node): mask.bit_count() for node, mask in record.placement.masks.items()}


# --- blocks of nodes that share NVLink ---


def nvl72(racks: int = 2, nodes: int = 6) -> Desired:
    """Nodes of four GPUs; each rack one NVLink domain, a level between node and rack."""
    made = shape(4)
    rows = inventory({})
    levels = [level for level in rows.levels if level.name != NVLINK_LEVEL]
    level = next(level for level in rows.levels if level.name == NVLINK_LEVEL)
    at = [one.name for one in levels].index(NODE_LEVEL) + 1
    found = [
        Node(
            name=NodeName(f"r{rack}-{n}"), shape=made, labels={},
            path=(DomainName("s"), DomainName(f"r{rack}"), DomainName(f"r{rack}b")),
        )
        for rack in range(racks)
        for n in range(nodes)
    ]  # fmt: skip
    return replace(
        world({}, of=made), inventory=Inventory(levels=(*levels[:at], level, *levels[at:]), nodes=tuple(found))
    )


def asking(desired: Desired, *jobs: Job) -> Desired:
    return replace(desired, jobs={one.key: one for one in sorted(jobs, key=lambda one: one.key)})


def test_a_tensor_group_of_several_nodes_lies_inside_one_block() -> None:
    group = job("nlp/g", 16, dims={"tensor": 8, "data": 2}, required={"tensor": "nvlinkDomain"})
    place = records(asking(nvl72(), group))[group.key]
    assert len({node[:2] for node in nodes_of(place)}) == 1


def test_small_work_opens_no_empty_block_while_a_used_one_has_room() -> None:
    old, small = job("nlp/a", 4), job("nlp/b", 4)
    desired = asking(nvl72(), old, small)
    begun = running(desired, "nlp/a", {"r1-0": 4})
    assert [node[:2] for node in nodes_of(records(desired, begun)[small.key])] == ["r1"]


def test_a_whole_block_is_one_domain_for_a_gang_of_its_size() -> None:
    gang = job("nlp/g", 24, dims={"tensor": 24}, required={"tensor": "nvlinkDomain"})
    tail = job("nlp/h", 20, dims={"tensor": 20}, required={"tensor": "nvlinkDomain"})
    after = records(asking(nvl72(), gang, tail))
    assert {after[key].state for key in (gang.key, tail.key)} == {JobState.STARTING}


# --- nodes of all sizes ---


@pytest.mark.parametrize("size", [4, 7, 8, 10])
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_whole_nodes_of_any_size_hold_whole_gangs(size: int, nodes: int) -> None:
    spines: Spines = {"s": {"r": [f"n{n}" for n in range(3)]}}
    gang = job("nlp/g", size * nodes, dims={"tensor": size, "data": nodes}, required={"tensor": "node"})
    assert list(nodes_of(records(world(spines, size, jobs=[gang]))[gang.key]).values()) == [size] * nodes


def test_pieces_that_do_not_divide_an_island_are_no_whole_node() -> None:
    """A node of 8 in islands of 5 and 3 holds one tensor pair less than whole nodes would."""
    spines: Spines = {"s": {"r": ["n0", "n1"]}}
    made = shape(8, nvlink=(0b00011111, 0b11100000))
    fits = job("nlp/g", 6, dims={"tensor": 2, "data": 3}, required={"tensor": "nvlinkDomain"})
    never = job("nlp/h", 16, dims={"tensor": 2, "data": 8}, required={"tensor": "nvlinkDomain"})
    after = records(world(spines, of=made, jobs=[fits, never]))
    assert sum(nodes_of(after[fits.key]).values()) == 6
    assert after[never.key].state is JobState.HELD


def test_part_of_a_node_comes_from_one_numa_node_when_it_can() -> None:
    spines: Spines = {"s": {"r": ["n0"]}}
    old, part = job("nlp/a", 2), job("nlp/b", 4)
    desired = world(spines, jobs=[old, part])
    place = records(desired, running(desired, "nlp/a", {"n0": [0, 1]}))[part.key].placement
    assert place is not None
    assert {rank.numa for rank in place.ranks} == {1}


# --- even spread ---


def test_even_takes_the_same_number_of_nodes_in_each_rack_and_says_what_is_left_to_hashing() -> None:
    spines: Spines = {"s": {"r1": [f"a{n}" for n in range(5)], "r2": [f"b{n}" for n in range(5)]}}
    packed = job("nlp/g", 64, dims={"tensor": 8, "data": 8}, required={"tensor": "node"})
    even = replace(packed, spread=Spread.EVEN)
    for asked, counts in ((packed, {"a": 5, "b": 3}), (even, {"a": 4, "b": 4})):
        after = records(world(spines, jobs=[asked]))[asked.key]
        racks = [node[0] for node in nodes_of(after)]
        assert {rack: racks.count(rack) for rack in racks} == counts
    told = dict(records(world(spines, jobs=[even]))[even.key].reason.numbers)
    assert (told["racks"], told["unevenness"], told["crossPairs"]) == (2, 0, 0)


def test_pairs_across_spine_groups_are_told() -> None:
    spines: Spines = {"s": {"r1": ["a0", "a1"]}, "t": {"r2": ["b0", "b1"]}}
    gang = job("nlp/g", 32, dims={"tensor": 8, "data": 4}, required={"tensor": "node"})
    assert records(world(spines, jobs=[gang]))[gang.key].reason.number("crossPairs") == 2


def test_where_nothing_is_even_it_is_packed() -> None:
    spines: Spines = {"s": {"r1": ["a0", "a1"], "r2": ["b0"]}}
    gang = job("nlp/g", 24, dims={"tensor": 8, "data": 3}, required={"tensor": "node"})
    after = records(world(spines, jobs=[replace(gang, spread=Spread.EVEN)]))[gang.key]
    assert after.reason.number("unevenness") in (0, 1)
    assert len(nodes_of(after)) == 3


# --- types ---


def two_types(first: Sequence[str], second: Sequence[str]) -> Desired:
    spines: Spines = {"s": {"r": [*first, *second]}}
    made = world(spines)
    other: NodeShape = replace(shape(8), gpu_type=GpuType("A100"), profile="A100x8")
    nodes = tuple(replace(n, shape=other) if n.name in second else n for n in made.inventory.nodes)
    return replace(made, inventory=replace(made.inventory, nodes=nodes))


def typed(gpus: int, *kinds: str, mixed: bool = False) -> Job:
    made = job("nlp/g", gpus, dims={"tensor": 8, "data": gpus // 8}, required={"tensor": "node"})
    return replace(made, gpu_types=tuple(GpuType(kind) for kind in kinds), mixed_types=mixed)


def test_any_of_takes_the_first_type_that_has_room_for_all() -> None:
    desired = two_types(["h0"], ["a0", "a1"])
    for gpus, kinds, nodes in (
        (8, ("A100", "H100"), {"a"}),
        (8, ("H100", "A100"), {"h"}),
        (16, ("H100", "A100"), {"a"}),
    ):
        asked = typed(gpus, *kinds)
        assert {node[0] for node in nodes_of(records(asking(desired, asked))[asked.key])} == nodes


def test_types_are_mixed_only_in_a_gang_that_says_so() -> None:
    desired = two_types(["h0"], ["a0"])
    assert records(asking(desired, typed(16, "H100", "A100")))[JobKey("nlp/g")].state is not JobState.STARTING
    after = records(asking(desired, typed(16, "H100", "A100", mixed=True)))[JobKey("nlp/g")]
    assert nodes_of(after) == {"a0": 8, "h0": 8}


# --- laws ---


def renamed(desired: Desired) -> Desired:
    """Every node has another name; the order of the names is the same."""
    nodes = tuple(replace(node, name=NodeName(f"x-{node.name}-y")) for node in desired.inventory.nodes)
    return replace(desired, inventory=replace(desired.inventory, nodes=nodes))


@settings(max_examples=25, deadline=None)
@given(sites(most_jobs=5))
def test_other_names_in_the_same_order_give_the_same_answer_under_those_names(site: Site) -> None:
    desired = site.world()
    for key, record in records(renamed(desired)).items():
        plain = records(desired)[key]
        assert record.state is plain.state
        if plain.placement is not None and record.placement is not None:
            assert [rank.node for rank in record.placement.ranks] == [f"x-{r.node}-y" for r in plain.placement.ranks]
            assert [rank.gpu for rank in record.placement.ranks] == [rank.gpu for rank in plain.placement.ranks]


@settings(max_examples=15, deadline=None)
@given(sites(most_jobs=4), st.sampled_from(("a-first", "z-last")))
def test_an_idle_spine_more_changes_no_place_that_is_taken(site: Site, name: str) -> None:
    cluster = Cluster(site.world())
    cluster.settle()
    before = {
        key: record.placement for key, record in cluster.allocation.jobs.items() if record.state is JobState.RUNNING
    }
    more = [
        Node(name=NodeName(f"{name}-{n}"), shape=cluster.desired.inventory.nodes[0].shape, labels={},
             path=(DomainName(name), DomainName(f"{name}-r")))
        for n in range(2)
    ]  # fmt: skip
    nodes = tuple(sorted((*cluster.desired.inventory.nodes, *more), key=lambda node: node.name))
    cluster.desired = replace(cluster.desired, inventory=replace(cluster.desired.inventory, nodes=nodes))
    larger = Cluster(cluster.desired, cluster.now)
    larger.allocation, larger.nodes = cluster.allocation, {**larger.nodes, **cluster.nodes}
    larger.step(1)
    after = larger.allocation.jobs
    assert {key: after[key].placement for key in before} == before
    assert LevelName("cluster") in {level.name for level in cluster.desired.inventory.levels}
