"""T_comm by hand, its lower bound against every placement, and the secondary key."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.topology.cost import Dimension, Link, comm_time, lower_bound
from reconciler.topology.tree import Tree, build_tree, node_shape

# Outermost first: the cluster, a rack, PCIe in a node, NVLink.
LINKS = (
    Link(latency=5_000, bandwidth=400_000_000_000, oversubscription=2000),
    Link(latency=3_000, bandwidth=400_000_000_000),
    Link(latency=1_000, bandwidth=500_000_000_000),
    Link(latency=600, bandwidth=3_600_000_000_000),
)


def tree_of(nodes: int, per_rack: int = 2, gpus: int = 2) -> Tree:
    shape = node_shape(gpus)
    return build_tree(("cluster", "rack"), [(f"n{i}", (f"r{i // per_rack}",), shape) for i in range(nodes)])


def ranks_on(nodes: int, gpus: int = 2) -> list[tuple[int, int]]:
    return [(node, gpu) for node in range(nodes) for gpu in range(gpus)]


def test_a_message_is_rounded_up_to_whole_nanoseconds() -> None:
    link = Link(latency=7, bandwidth=8_000_000_000)
    assert (link.time(0), link.time(1), link.time(1000)) == (7, 8, 1007)
    assert Link(latency=0, bandwidth=3_000_000_000).time(1) == 3
    assert Link(latency=0, bandwidth=8_000_000_000, oversubscription=2000).time(10) == 20


def test_tensor_on_nvlink_data_across_racks() -> None:
    tree = tree_of(4)
    cost = comm_time(tree, ranks_on(4), (Dimension(size=2, message=10**6), Dimension(size=4, message=10**6)), LINKS)
    assert (cost.time, cost.level, cost.dimension) == (LINKS[0].time(10**6), 0, 1)
    assert cost.crossings == (0, 2, 2, 2)


def test_ranks_in_the_wrong_order_cost_more() -> None:
    tree = tree_of(2)
    tensor = (Dimension(size=2, message=10**6), Dimension(size=2, message=1))
    good = comm_time(tree, [(0, 0), (0, 1), (1, 0), (1, 1)], tensor, LINKS)
    bad = comm_time(tree, [(0, 0), (1, 0), (0, 1), (1, 1)], tensor, LINKS)
    assert (good.time, bad.time) == (LINKS[1].time(1), LINKS[1].time(10**6))
    assert (good.level, bad.level) == (1, 1)


def test_one_rank_has_no_pairs() -> None:
    cost = comm_time(tree_of(1), [(0, 0)], (Dimension(size=1, message=10**9),), LINKS)
    assert (cost.time, cost.dimension, cost.crossings) == (0, -1, (0, 0, 0, 0))


def test_sizes_must_multiply_to_the_ranks() -> None:
    with pytest.raises(ValueError, match="multiply to 4"):
        comm_time(tree_of(1), ranks_on(1), (Dimension(size=4, message=1),), LINKS)


def slow(tree: Tree, ranks: list[tuple[int, int]], dimensions: tuple[Dimension, ...], links: tuple[Link, ...]) -> int:
    """The formula, pair by pair."""
    worst, stride = 0, 1
    for dimension in dimensions:
        for rank in range(len(ranks)):
            step = rank // stride % dimension.size
            after = rank + ((step + 1) % dimension.size - step) * stride
            if after != rank:
                same_node = ranks[rank][0] == ranks[after][0]
                level = tree.island_level if same_node else tree.common_level(ranks[rank][0], ranks[after][0])
                worst = max(worst, links[level].time(dimension.message))
        stride *= dimension.size
    return worst


sizes = st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8)])
messages = st.lists(st.integers(0, 10**7), min_size=3, max_size=3)
speeds = st.lists(st.integers(10**9, 10**12), min_size=4, max_size=4)


@settings(max_examples=100, deadline=None)
@given(sizes, messages, speeds, st.permutations(ranks_on(6)))
def test_equals_the_formula_pair_by_pair(
    size: tuple[int, ...], message: list[int], speed: list[int], order: list[tuple[int, int]]
) -> None:
    links = tuple(Link(latency=100, bandwidth=bandwidth) for bandwidth in speed)  # in any order, also not monotone
    dimensions = tuple(Dimension(size=n, message=m) for n, m in zip(size, message, strict=False))
    tree = tree_of(6)
    cost = comm_time(tree, order[:8], dimensions, links)
    assert cost.time == slow(tree, order[:8], dimensions, links)
    assert cost.time >= lower_bound(dimensions, (12, 4, 2, 2), links)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([(4,), (2, 2)]), messages)
def test_the_lower_bound_is_reached_on_tiny_clusters(size: tuple[int, ...], message: list[int]) -> None:
    tree = tree_of(4)
    dimensions = tuple(Dimension(size=n, message=m) for n, m in zip(size, message, strict=False))
    best = min(comm_time(tree, list(p), dimensions, LINKS).time for p in itertools.permutations(ranks_on(4), 4))
    assert lower_bound(dimensions, (8, 4, 2, 2), LINKS) == best
