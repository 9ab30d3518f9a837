"""The bit-set engine: nothing twice, every count right, and a trial that leaves no trace."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.errors import BrokenInvariant
from reconciler.topology.capacity import Capacity
from reconciler.topology.fragmentation import nvlink_domains, phi, phi_of, stranded_gpus
from reconciler.topology.tree import NodeShape, Tree, bits_of, build_tree, lowest_bits, node_shape
from reconciler.topology.units import units_on

BOARD = node_shape(8)
PAIRS = node_shape(4, nvlink=(0x3, 0xC))
SHAPES = (BOARD, PAIRS, node_shape(10), node_shape(7))


def tree_of(shapes: list[NodeShape], in_rack: int = 2) -> Tree:
    rows = [(f"n{i:02}", (f"s{i // (2 * in_rack)}", f"r{i // in_rack}"), shape) for i, shape in enumerate(shapes)]
    return build_tree(("cluster", "spineGroup", "rack"), rows)


def test_the_tree_numbers_domains_by_path_and_keeps_them_together() -> None:
    rows = [
        ("z", ("s2", "r1"), BOARD),
        ("a", ("s2", "r1"), BOARD),
        ("m", ("s1", "r1"), BOARD),
        ("b", ("s2", "r0"), PAIRS),
    ]
    tree = build_tree(("cluster", "spineGroup", "rack"), rows)
    assert tree.nodes == ("m", "b", "a", "z")
    assert tree.domains[2] == (("s1", "r1"), ("s2", "r0"), ("s2", "r1"))  # one r1 a spine: two racks
    assert tree.leaf_of == (0, 1, 2, 2)
    assert tree.slot_of == (0, 0, 0, 1)
    assert tree.span(1, 1, tree.node_level) == (1, 4)
    assert tree.span(0, 0, 2) == (0, 3)
    assert [tree.common_level(2, other) for other in range(4)] == [0, 1, 3, 2]
    assert [tree.level_name(level) for level in range(5)] == ["cluster", "spineGroup", "rack", "node", "nvlink"]
    assert [tree.gpus_of(node) for node in range(4)] == [8, 4, 8, 8]


@pytest.mark.parametrize(
    "rows",
    [[("a", ("s", "r"), BOARD), ("a", ("s", "q"), BOARD)], [("a", ("s",), BOARD)]],
    ids=["a node named twice", "a path too short"],
)
def test_a_tree_that_makes_no_sense_is_refused(rows: list[tuple[str, tuple[str, ...], NodeShape]]) -> None:
    with pytest.raises(ValueError, match="a"):
        build_tree(("cluster", "spineGroup", "rack"), rows)


def test_masks_of_a_shape_cover_each_gpu_once() -> None:
    with pytest.raises(ValueError, match="exactly once"):
        node_shape(4, nvlink=(0x3, 0x6))
    with pytest.raises(ValueError, match="exactly once"):
        node_shape(4, numa=(0x3,))


@given(st.integers(1, 2**90), st.data())
def test_lowest_bits(mask: int, draw: st.DataObject) -> None:
    count = draw.draw(st.integers(0, mask.bit_count()))
    assert bits_of(lowest_bits(mask, count)) == bits_of(mask)[:count]


@pytest.mark.parametrize(
    ("verb", "where", "mask"),
    [
        pytest.param("take", 0, 0b0010, id="taken already"),
        pytest.param("give", 0, 0b1000, id="free already"),
        pytest.param("take", 0, 0, id="nothing"),
        pytest.param("take", 1, 0x100, id="no such GPU"),
        pytest.param("give", 1, 0x100, id="no such GPU to give"),
        pytest.param("take_whole", 0, 0b01, id="node partly used"),
        pytest.param("give_whole", 0, 0b01, id="node partly free"),
        pytest.param("give_whole", 0, 0b10, id="node wholly free"),
    ],
)
def test_no_gpu_is_taken_or_given_twice(verb: str, where: int, mask: int) -> None:
    capacity = Capacity(tree_of([BOARD] * 4))
    capacity.take(0, 0b0110)
    before = capacity.snapshot()
    with pytest.raises(BrokenInvariant):
        getattr(capacity, verb)(where, mask)
    assert capacity.snapshot() == before


def test_an_excluded_node_is_offered_to_nobody_and_remembers_its_gpus() -> None:
    capacity = Capacity(tree_of([BOARD] * 4))
    capacity.take(0, 0x0F)
    capacity.exclude(0)
    assert (capacity.free_gpus(), capacity.whole_nodes(), capacity.free_mask(0)) == (24, 3, 0xF0)
    capacity.give(0, 0x0F)
    assert capacity.free_gpus() == 24
    capacity.include(0)
    assert (capacity.free_gpus(), capacity.whole_nodes()) == (32, 4)


def test_members_of_another_pool_are_not_seen() -> None:
    capacity = Capacity(tree_of([BOARD] * 4), members=(1, 2))
    assert (capacity.gpus, capacity.free_gpus(), capacity.free_mask(0), capacity.size_of(3)) == (16, 16, 0, 0)
    assert capacity.largest_domain(2, 8) == (0, 1)
    with pytest.raises(BrokenInvariant):
        capacity.give_whole(0, 0b01)


def test_nested_trials_and_commit() -> None:
    capacity = Capacity(tree_of([BOARD] * 4))
    start = capacity.snapshot()
    with capacity.trial():
        capacity.take(0, 1)
        with capacity.trial() as inner:
            capacity.take(1, 1)
            inner.commit()
        assert capacity.free_gpus() == 30
        with capacity.trial():
            capacity.take_whole(1, 0b11)
        assert capacity.free_gpus() == 30
    assert capacity.snapshot() == start
    with pytest.raises(BrokenInvariant), capacity.trial() as kept:  # noqa: PT012 -- the trial is what is tested
        capacity.take(0, 1)
        kept.commit()
        capacity.take(0, 1)
    assert capacity.snapshot() == start
    with capacity.trial() as kept:
        capacity.take(0, 1)
        kept.commit()
    assert capacity.free_gpus() == 31


# --- random sequences against counting from scratch ---

actions = st.lists(
    st.tuples(
        st.sampled_from(["take", "give", "exclude", "include", "whole", "refuse", "back"]),
        st.integers(0, 7),
        st.integers(1, 1023),
    ),
    max_size=30,
)


def act(capacity: Capacity, todo: list[tuple[str, int, int]]) -> None:
    """Whatever of the actions is allowed at its turn."""
    for kind, node, mask in todo:
        free, full = capacity.free_mask(node), (1 << capacity.size_of(node)) - 1
        if kind == "take" and mask & free:
            capacity.take(node, mask & free)
        elif kind == "give" and mask & full & ~free:
            capacity.give(node, mask & full & ~free)
        elif kind == "exclude":
            capacity.exclude(node)
        elif kind == "include":
            capacity.include(node)
        elif kind == "refuse":
            capacity.exclude_all(mask & 0xFF)
        elif kind == "back" and not free:
            leaf, slot = capacity.tree.leaf_of[node], capacity.tree.slot_of[node]
            capacity.give_whole(leaf, 1 << slot)
        elif kind == "whole" and free == full and node not in capacity.excluded:
            leaf, slot = capacity.tree.leaf_of[node], capacity.tree.slot_of[node]
            capacity.take_whole(leaf, 1 << slot)
            if mask & 1:
                capacity.give_whole(leaf, 1 << slot)


def check(capacity: Capacity) -> None:
    """Every count and bucket equals what going through the nodes gives."""
    tree = capacity.tree
    offered = [0 if node in capacity.excluded else capacity.free_mask(node) for node in range(len(tree.nodes))]
    for level, domains in enumerate(tree.domains):
        for domain in range(len(domains)):
            first, end = tree.span(level, domain, tree.node_level)
            nodes = range(first, end)
            whole = sum(offered[n] == (1 << tree.gpus_of(n)) - 1 for n in nodes)
            assert capacity.free_gpus(level, domain) == sum(offered[n].bit_count() for n in nodes)
            assert capacity.whole_nodes(level, domain) == whole
            if level:
                assert capacity.counts.by_whole[level][whole] >> domain & 1
            for unit, share in ((1, 1), (2, 1), (2, 2), (4, 2)):
                index = capacity.units(unit, share)
                units = sum(units_on(tree.shapes[tree.shape_of[n]], offered[n], unit, index.share) for n in nodes)
                assert index.count[level][domain] == units
                assert level == 0 or index.buckets[level][units] >> domain & 1
    assert phi(capacity) == phi_of(nvlink_domains(capacity))


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.lists(st.sampled_from(SHAPES), min_size=8, max_size=8), st.sampled_from(SHAPES).map(lambda s: [s] * 8)
    ),
    actions,
    actions,
)
def test_counts_stay_right_and_a_trial_restores_everything(
    shapes: list[NodeShape], before: list[tuple[str, int, int]], inside: list[tuple[str, int, int]]
) -> None:
    capacity = Capacity(tree_of(shapes))
    check(capacity)
    act(capacity, before)
    check(capacity)
    start = capacity.snapshot()
    with capacity.trial():
        act(capacity, inside)
        check(capacity)
        with capacity.trial():
            act(capacity, before)
    assert capacity.snapshot() == start


@settings(max_examples=60, deadline=None)
@given(actions)
def test_phi_of_nvlink_blocks_of_nodes(todo: list[tuple[str, int, int]]) -> None:
    capacity = Capacity(tree_of([node_shape(4)] * 8), block_level=2)
    act(capacity, todo)
    assert phi(capacity) == phi_of(nvlink_domains(capacity))


def test_phi_counts_what_no_whole_board_can_use() -> None:
    capacity = Capacity(tree_of([BOARD] * 5, in_rack=5))
    for node, used in enumerate((3, 5, 0, 4, 2)):
        if used:
            capacity.take(node, (1 << used) - 1)
    assert Fraction(*phi(capacity)) == Fraction(18, 26)
    assert (stranded_gpus(capacity), capacity.free_gpus()) == (18, 26)
    capacity.take(2, 0xFF)
    assert Fraction(*phi(capacity)) == 1
    empty = Capacity(tree_of([]))
    assert (phi(empty), empty.free_gpus()) == ((0, 1), 0)


def test_an_empty_pool_of_a_real_tree_gives_nothing() -> None:
    capacity = Capacity(tree_of([BOARD] * 4), members=())
    assert (capacity.free_gpus(), capacity.largest_domain(2)) == (0, (0, 0))
    with pytest.raises(BrokenInvariant):
        capacity.give_whole(0, 0b01)
    capacity.exclude_all(0b1111)
    assert capacity.free_gpus() == 0
