"""Where one gang goes: the placement rule on small clusters, against brute force, and its cost in steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.topology.capacity import Capacity
from reconciler.topology.find import find
from reconciler.topology.gpus import tightest_gpus
from reconciler.topology.request import Placement, Request, request
from reconciler.topology.roles import cut, find_roles, pack_exactly
from reconciler.topology.shortage import NoFit
from reconciler.topology.tree import Level, NodeShape, Tree, build_tree, node_shape

SPINE, RACK = 1, 2
NODE, ISLAND = 3, 4
BOARD = node_shape(8, numa=(0x0F, 0xF0))


def cluster(**racks: int) -> Tree:
    """Racks named by spine group and letter, e.g. s1a=4: four nodes a1..a4 in rack a of spine s1."""
    rows = [(f"{name[2:]}{i + 1}", (name[:2], name[2:]), BOARD) for name, count in racks.items() for i in range(count)]
    return build_tree(("cluster", "spineGroup", "rack"), rows)


def in_use(tree: Tree, **gpus: int) -> Capacity:
    """The first so many GPUs of the named nodes are taken."""
    capacity = Capacity(tree)
    for node, count in gpus.items():
        capacity.take(tree.index_of[node], (1 << count) - 1)
    return capacity


def where(capacity: Capacity, placed: Placement | NoFit) -> dict[str, int]:
    """Node name -> number of GPUs."""
    assert isinstance(placed, Placement), placed
    return {capacity.tree.nodes[node]: mask.bit_count() for node, mask in placed.nodes(capacity)}


def workers(tree: Tree, count: int, each: int, **rest: object) -> Request:
    return request(tree, workers=count, gpus_each=each, **rest)  # type: ignore[arg-type]  # passed on as given


def test_ranks_of_one_board_need_one_board() -> None:
    tree = cluster(s1a=3, s1b=2)
    capacity = in_use(tree, a1=3, a2=5, b1=4, b2=2)
    assert where(capacity, find(capacity, workers(tree, 8, 1, required=NODE))) == {"a3": 8}


def test_only_one_rack_is_big_enough() -> None:
    tree = cluster(s1a=4, s1b=4, s2c=4)
    capacity = in_use(tree, a3=8, c1=8, c4=8)
    placed = find(capacity, workers(tree, 4, 8, required=RACK))
    assert where(capacity, placed) == {"b1": 8, "b2": 8, "b3": 8, "b4": 8}


def test_the_tight_rack_is_used_and_the_big_one_left_whole() -> None:
    tree = cluster(s1a=6, s1b=6)
    capacity = in_use(tree, b5=8, b6=8)
    placed = find(capacity, workers(tree, 4, 8, required=RACK))
    assert where(capacity, placed) == {"b1": 8, "b2": 8, "b3": 8, "b4": 8}


def test_preferred_rack_widens_to_one_spine_with_two_racks() -> None:
    tree = cluster(s1a=4, s1b=4, s2c=4, s2d=4)
    capacity = in_use(tree, a4=8, b3=8, b4=8, d4=8)
    placed = where(capacity, find(capacity, workers(tree, 6, 8, preferred=RACK)))
    assert sorted({name[0] for name in placed}) == ["c", "d"]
    assert sum(placed.values()) == 48


def test_no_spine_fits_required_waits_with_numbers_preferred_crosses() -> None:
    tree = cluster(s1a=3, s1b=3, s2c=3, s2d=3)
    capacity = in_use(tree, a1=8, d1=8)
    refused = find(capacity, workers(tree, 6, 8, required=SPINE))
    assert isinstance(refused, NoFit)
    assert (refused.level, refused.need, refused.free, refused.best_fit) == (SPINE, 48, 80, 40)
    assert (refused.groups_fit, refused.groups_need, refused.proved) == (5, 6, True)
    placed = where(capacity, find(capacity, workers(tree, 6, 8, preferred=RACK)))
    assert sorted({name[0] for name in placed}) == ["b", "c"]  # two whole racks, the fewest


def test_groups_do_not_fit_although_gpus_do() -> None:
    tree = cluster(s1a=6, s1b=8, s1c=4)
    capacity = in_use(tree, a6=8, b8=8)
    refused = find(capacity, workers(tree, 16, 8, groups=((32, RACK),)))
    assert isinstance(refused, NoFit)
    assert (refused.groups_fit, refused.groups_need) == (3, 4)
    assert (refused.need, refused.free) == (128, 128)


def test_groups_decide_the_spine() -> None:
    tree = cluster(s1a=7, s1b=7, s1c=3, s2d=8, s2e=8)
    placed = where(Capacity(tree), find(Capacity(tree), workers(tree, 16, 8, required=SPINE, groups=((32, RACK),))))
    assert sorted(name[0] for name in placed) == ["d"] * 8 + ["e"] * 8


def test_groups_inside_groups() -> None:
    tree = cluster(s1a=3, s1b=3, s2c=4, s2d=3, s3e=2, s3f=2)
    nested = workers(tree, 8, 8, groups=((16, RACK), (32, SPINE)))
    placed = find(Capacity(tree), nested)
    names = list(where(Capacity(tree), placed))
    spine = {"a": 1, "b": 1, "c": 2, "d": 2, "e": 3, "f": 3}
    assert all(len({name[0] for name in names[i : i + 2]}) == 1 for i in range(0, 8, 2))
    assert all(len({spine[name[0]] for name in names[i : i + 4]}) == 1 for i in range(0, 8, 4))
    assert isinstance(find(Capacity(tree), workers(tree, 12, 8, groups=((24, RACK), (96, SPINE)))), NoFit)


def nvl72(*healthy: int) -> Tree:
    tray = node_shape(4)
    return build_tree(
        ("cluster", "rack"),
        [(f"nv{r + 1}-{i + 1:02}", (f"nv{r + 1}",), tray) for r, count in enumerate(healthy) for i in range(count)],
    )


def test_two_slices_of_sixteen_trays() -> None:
    tree = nvl72(17, 18)
    capacity = in_use(tree, **{"nv2-01": 4, "nv2-02": 4})
    names = list(where(capacity, find(capacity, workers(tree, 32, 4, groups=((64, 1),)))))
    assert [name[:3] for name in names] == ["nv1"] * 16 + ["nv2"] * 16
    assert not {"nv2-01", "nv2-02"} & set(names)


def test_a_small_job_leaves_the_empty_nvlink_rack_alone() -> None:
    tree = nvl72(18, 18)
    capacity = in_use(tree, **{f"nv1-{i:02}": 4 for i in range(1, 9)})
    solo = find(capacity, workers(tree, 1, 4))
    assert where(capacity, solo) == {"nv1-09": 4}
    assert isinstance(solo, Placement)
    solo.bind(capacity)
    assert len(where(capacity, find(capacity, workers(tree, 18, 4, required=1)))) == 18


def test_leader_beside_its_workers() -> None:
    tree = cluster(s1a=5, s1b=5)
    capacity = in_use(tree, a5=8, b5=6)
    roles = (workers(tree, 1, 1, required=RACK), workers(tree, 4, 8, required=RACK))
    placed = find_roles(capacity, roles)
    assert not isinstance(placed, NoFit)
    assert where(capacity, placed[0]) == {"b5": 1}
    assert where(capacity, placed[1]) == {"b1": 8, "b2": 8, "b3": 8, "b4": 8}


def test_a_gang_with_a_rest_shares_one_rack() -> None:
    tree = cluster(s1a=2, s1b=3)
    capacity = in_use(tree, a2=5, b3=4)
    placed = find_roles(capacity, cut(tree, gpus=20, node_gpus=8, required=RACK))
    assert not isinstance(placed, NoFit)
    assert [where(capacity, part) for part in placed] == [{"b1": 8, "b2": 8}, {"b3": 4}]


def test_unlike_roles_need_the_exact_search() -> None:
    """5+4+3+3 on 8 and 7: greedy puts 5 on the 7 and 4 on the 8 and is stuck; 5+3 and 4+3 fit."""
    tree = cluster(s1a=2)
    capacity = in_use(tree, a2=1)
    roles = (workers(tree, 1, 5), workers(tree, 1, 4), workers(tree, 2, 3))
    placed = find_roles(capacity, roles)
    assert not isinstance(placed, NoFit)
    for part in placed:
        part.bind(capacity)
    assert capacity.free_gpus() == 0


def test_an_exhausted_search_says_it_proves_nothing() -> None:
    assert pack_exactly([0, 0, 0, 0, 0, 0, 0, 1, 1], [5, 4, 3, 3], 10_000)[0] is not None
    assert pack_exactly([0, 0, 0, 0, 0, 0, 0, 1, 1], [5, 4, 3, 3], 2)[0] is None
    assert pack_exactly([0, 0, 0, 2], [2, 2, 1, 1], 100)[0] == [3, 3, 1, 1]
    assert pack_exactly([0, 0, 0, 2], [2, 2, 2], 100) == (None, 2)


def test_ranks_are_contiguous_in_racks() -> None:
    tree = cluster(s1a=4, s1b=4)
    names = list(where(Capacity(tree), find(Capacity(tree), workers(tree, 8, 8, preferred=RACK))))
    assert names == ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"]


def test_soft_groups_break_ties_between_equal_spines() -> None:
    """Both spines need two racks; in s2 the second rack starts at a group's boundary, in s1 it does not."""
    tree = cluster(s1a=3, s1b=3, s2c=4, s2d=4)
    placed = where(Capacity(tree), find(Capacity(tree), workers(tree, 6, 8, preferred=RACK, soft_group=16)))
    assert sorted(placed) == ["c1", "c2", "c3", "c4", "d1", "d2"]


def test_soft_groups_stay_whole_when_it_costs_no_rack() -> None:
    tree = cluster(s1a=3, s1b=3)
    placed = where(Capacity(tree), find(Capacity(tree), workers(tree, 4, 8, preferred=RACK, soft_group=16)))
    assert sorted(placed) == ["a1", "a2", "b1", "b2"]
    placed = where(Capacity(tree), find(Capacity(tree), workers(tree, 6, 8, preferred=RACK, soft_group=16)))
    assert len(placed) == 6  # three and three: a group is cut, and the gang runs


def test_partly_used_nodes_come_first_then_the_fullest() -> None:
    tree = cluster(s1a=4)
    capacity = in_use(tree, a2=2, a3=4)
    assert where(capacity, find(capacity, workers(tree, 1, 3))) == {"a3": 3}
    assert where(capacity, find(capacity, workers(tree, 1, 5))) == {"a2": 5}
    assert where(capacity, find(capacity, workers(tree, 1, 7))) == {"a1": 7}


@pytest.mark.parametrize(
    ("shape", "free", "count", "share", "mask"),
    [
        pytest.param(BOARD, 0b1111_0111, 1, 1, 0b0000_0001, id="one GPU in the emptier NUMA half"),
        pytest.param(BOARD, 0b1111_0111, 4, 1, 0b1111_0000, id="four GPUs in the half that is whole"),
        pytest.param(BOARD, 0b1111_0111, 5, 1, 0b1111_0001, id="five GPUs: a whole half and one more"),
        pytest.param(node_shape(4, nvlink=(0x3, 0xC)), 0b1101, 2, 2, 0b1100, id="a pair on one bridge"),
        pytest.param(node_shape(4, nvlink=(0x3, 0xC)), 0b1101, 1, 1, 0b0001, id="one GPU breaks no pair"),
        pytest.param(node_shape(10), (1 << 10) - 1, 7, 1, 0b111_1111, id="ten GPUs in a box"),
    ],
)
def test_gpus_of_a_node(shape: NodeShape, free: int, count: int, share: int, mask: int) -> None:
    assert tightest_gpus(shape, free, count, share) == mask


def test_a_pair_that_must_share_nvlink_skips_split_nodes() -> None:
    pairs = node_shape(4, nvlink=(0x3, 0xC))
    tree = build_tree(("cluster", "rack"), [(f"p{i}", ("r",), pairs) for i in range(3)])
    capacity = Capacity(tree)
    capacity.take(0, 0b0101)  # one GPU of each pair is left
    capacity.take(1, 0b0100)
    two = workers(tree, 1, 2, required=tree.island_level)
    placed = find(capacity, two)
    assert isinstance(placed, Placement)
    assert placed.nodes(capacity) == ((1, 0b0011),)
    placed.bind(capacity)
    capacity.exclude(2)
    refused = find(capacity, two)
    assert isinstance(refused, NoFit)
    assert (refused.need, refused.best_free, refused.level) == (2, 2, tree.island_level)


def test_nodes_of_unlike_sizes() -> None:
    rows = [("a", ("r",), node_shape(4)), ("b", ("r",), node_shape(7)), ("c", ("r",), node_shape(10))]
    tree = build_tree(("cluster", "rack"), rows)
    capacity = Capacity(tree)
    assert where(capacity, find(capacity, workers(tree, 1, 4))) == {"a": 4}
    assert where(capacity, find(capacity, workers(tree, 1, 8))) == {"c": 8}
    assert where(capacity, find(capacity, workers(tree, 4, 4))) == {"a": 4, "b": 4, "c": 8}
    refused = find(capacity, workers(tree, 5, 4))
    assert isinstance(refused, NoFit)
    assert (refused.need, refused.best_fit, refused.best_free) == (20, 16, 21)


def test_a_cluster_without_nodes_holds_nothing() -> None:
    tree = build_tree(("cluster", "spineGroup", "rack"), [])
    for level in (0, SPINE, RACK, NODE):
        refused = find(Capacity(tree), workers(tree, 2, 8, required=level))
        assert isinstance(refused, NoFit)
        assert (refused.need, refused.free, refused.best_fit) == (16, 0, 0)


def test_refused_nodes_are_not_offered_and_come_back() -> None:
    tree = cluster(s1a=2, s1b=2)
    capacity = Capacity(tree)
    capacity.units(1)
    before = capacity.snapshot()
    with capacity.refusing(0b0011):
        assert where(capacity, find(capacity, workers(tree, 2, 8, required=RACK))) == {"b1": 8, "b2": 8}
        assert isinstance(find(capacity, workers(tree, 3, 8)), NoFit)
    assert capacity.snapshot() == before


@pytest.mark.parametrize(
    "asked",
    [{"workers": 0, "gpus_each": 8}, {"workers": 10, "gpus_each": 8, "groups": ((32, RACK),)}],
    ids=["no workers", "groups that do not divide the gang"],
)
def test_a_request_that_makes_no_sense_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"nothing|divide"):
        request(cluster(s1a=2), **asked)  # type: ignore[arg-type]  # that is the point


# --- against brute force ---

# (spine group, free GPUs of each node): racks of nodes of 4 GPUs, in `mixed` clusters every second one has 5
racks = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.sampled_from([4, 0, 1, 2, 3, 4, 4]), min_size=1, max_size=4)),
    min_size=1,
    max_size=5,
)
Layout = list[tuple[int, list[int]]]


def small(layout: Layout, mixed: bool = False) -> tuple[Tree, Capacity]:
    """Racks numbered in the order of their spine groups."""
    rows, used = [], {}
    for r, (spine, nodes) in enumerate(layout):
        for n, free in enumerate(nodes):
            size = 5 if mixed and n % 2 else 4
            name = f"r{r}n{n}"
            rows.append((name, (f"s{spine}", f"r{r}"), node_shape(size)))
            used[name] = (1 << size - free) - 1
    tree = build_tree(("cluster", "spineGroup", "rack"), rows)
    capacity = Capacity(tree)
    for name, mask in used.items():
        if mask:
            capacity.take(tree.index_of[name], mask)
    return tree, capacity


def free_in(capacity: Capacity, leaf: int) -> list[int]:
    """Free GPUs of each node of a rack."""
    first, end = capacity.tree.span(RACK, leaf, NODE)
    return [capacity.free_mask(node).bit_count() for node in range(first, end)]


def fewest_racks(capacity: Capacity, leaves: Iterable[int], units: int, unit: int, group: int) -> int | None:
    """Over every choice of racks, the smallest that holds the gang in whole groups."""
    rooms = [sum(free // unit for free in free_in(capacity, leaf)) // group * group for leaf in leaves]
    for count in range(1, len(rooms) + 1):
        if any(sum(chosen) >= units for chosen in itertools.combinations(rooms, count)):
            return count
    return None


def best_by_force(
    capacity: Capacity, units: int, unit: int, required: Level, group: int
) -> tuple[Level, int, int] | None:
    """(level, domain, racks used) by the rule as written: level, fewest racks, wholly free nodes, free GPUs, number."""
    tree = capacity.tree
    for level in range(RACK, required - 1, -1):
        found = []
        for domain in range(len(tree.domains[level])):
            leaves = range(*tree.span(level, domain, RACK))
            count = fewest_racks(capacity, leaves, units, unit, group)
            if count is not None:
                first, end = tree.span(level, domain, NODE)
                free = [capacity.free_mask(node).bit_count() for node in range(first, end)]
                whole = sum(n == tree.gpus_of(node) for n, node in zip(free, range(first, end), strict=True))
                found.append((count, whole, sum(free), domain))
        if found:
            return level, min(found)[3], min(found)[0]
    return None


@settings(max_examples=400, deadline=None)
@given(
    racks, st.booleans(), st.integers(2, 9), st.sampled_from([4, 4, 1, 2, 3]), st.sampled_from([0, 0, SPINE, RACK]),
    st.sampled_from([1, 1, 2, 3]),
)  # fmt: skip
def test_level_domain_and_number_of_racks_are_those_of_the_rule(
    layout: Layout, mixed: bool, units: int, unit: int, required: Level, group: int
) -> None:
    group = group if units % group == 0 and group < units else 1
    tree, capacity = small(layout, mixed)
    groups = ((group * unit, RACK),) if group > 1 else ()
    preferred = max(RACK, required)
    asked = request(tree, workers=units, gpus_each=unit, required=required, preferred=preferred, groups=groups)
    best = best_by_force(capacity, units, unit, required, group)
    placed = find(capacity, asked)
    if best is None:
        assert isinstance(placed, NoFit)
        return
    assert isinstance(placed, Placement)
    nodes = placed.nodes(capacity)
    used = sorted({tree.leaf_of[node] for node, _ in nodes})
    level, domain, count = best
    assert {tree.enclosing(RACK, leaf, level) for leaf in used} == {domain}
    assert len(used) == count
    assert sum(mask.bit_count() for _, mask in nodes) == units * unit
    assert all(mask.bit_count() % unit == 0 for _, mask in nodes)
    for leaf in used:
        assert sum(mask.bit_count() for node, mask in nodes if tree.leaf_of[node] == leaf) % (group * unit) == 0
    before = capacity.snapshot()
    with capacity.trial():
        placed.bind(capacity)  # raises when a GPU is not free
        placed.release(capacity)
        assert capacity.free_gpus() == sum(map(sum, (free_in(capacity, leaf) for leaf in range(len(layout)))))
    assert capacity.snapshot() == before


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([4, 4, 0, 1, 2, 3]), min_size=4, max_size=8), st.sampled_from([2, 4]), st.integers(1, 2)
)
def test_nested_groups_fit_exactly_when_a_numbering_exists(rooms: list[int], pair: int, outer: int) -> None:
    """Groups of `pair` whole nodes a rack, of 2 * outer pairs a spine; racks hold 0 to 4 nodes, two racks a spine."""
    rows = [
        (f"r{r}n{n}", (f"s{r // 2}", f"r{r}"), node_shape(1)) for r, count in enumerate(rooms) for n in range(count)
    ]
    tree = build_tree(("cluster", "spineGroup", "rack"), rows)
    capacity = Capacity(tree)
    big = pair * 2 * outer
    units = big * 2
    pairs_of_spine = [sum(room // pair for room in rooms[s : s + 2]) for s in range(0, len(rooms), 2)]
    exists = sum(count * pair // big for count in pairs_of_spine) >= 2
    placed = find(capacity, request(tree, workers=units, gpus_each=1, groups=((pair, RACK), (big, SPINE))))
    assert isinstance(placed, NoFit) != exists
    if isinstance(placed, Placement):
        nodes = [node for node, _ in placed.nodes(capacity)]
        assert len(nodes) == units
        assert all(len({tree.leaf_of[n] for n in nodes[i : i + pair]}) == 1 for i in range(0, units, pair))
        assert all(len({tree.domain_of(n, SPINE) for n in nodes[i : i + big]}) == 1 for i in range(0, units, big))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=2, max_size=3),
)
def test_roles_are_placed_exactly_when_a_packing_exists(free: list[int], roles: list[tuple[int, int]]) -> None:
    tree, capacity = small([(0, free)])
    items = [each for count, each in roles for _ in range(count)]
    exists = any(
        all(sum(item for item, at in zip(items, spots, strict=True) if at == n) <= room for n, room in enumerate(free))
        for spots in itertools.product(range(len(free)), repeat=len(items))
    )
    placed = find_roles(capacity, [request(tree, workers=count, gpus_each=each) for count, each in roles])
    assert isinstance(placed, NoFit) != exists
    if not isinstance(placed, NoFit):
        for part, (count, each) in zip(placed, roles, strict=True):
            assert sum(mask.bit_count() for _, mask in part.nodes(capacity)) == count * each
            part.bind(capacity)  # raises when a GPU is given twice


@settings(max_examples=50, deadline=None)
@given(racks, st.randoms(use_true_random=False))
def test_shuffled_input_gives_the_same_answer(layout: Layout, chance: Random) -> None:
    rows = [(f"r{r}n{n}", (f"s{s}", f"r{r}"), BOARD) for r, (s, nodes) in enumerate(layout) for n in range(len(nodes))]
    shuffled = list(rows)
    chance.shuffle(shuffled)
    one, two = (build_tree(("cluster", "spineGroup", "rack"), order) for order in (rows, shuffled))
    assert one == two
    placed = [find(Capacity(tree), request(tree, workers=2, gpus_each=8)) for tree in (one, two)]
    assert placed[0] == placed[1]


# --- how much work ---


def large(nodes: int) -> Tree:
    shape = node_shape(8)
    return build_tree(
        ("cluster", "spineGroup", "rack"),
        [(f"n{i:06}", (f"s{i // 512:03}", f"r{i // 32:05}"), shape) for i in range(nodes)],
    )


def visits_at(nodes: int) -> dict[str, int]:
    """Domains touched in a cluster where every seventh node is partly used and every third one full."""
    tree = large(nodes)
    capacity = Capacity(tree)
    capacity.units(4)
    for node in range(0, nodes, 7):
        capacity.take(node, (1 << node // 7 % 7 + 1) - 1)
    for node in range(1, nodes, 3):
        if capacity.free_mask(node) == 0xFF:
            capacity.take(node, 0xFF)
    counted = {}
    for name, asked in {
        "1 GPU": request(tree, workers=1, gpus_each=1),
        "5 GPUs": request(tree, workers=1, gpus_each=5),
        "1 node": request(tree, workers=1, gpus_each=8),
        "16 nodes in a rack": request(tree, workers=16, gpus_each=8, required=RACK),
        "64 nodes": request(tree, workers=64, gpus_each=8, preferred=RACK),
        "8 x 4 GPUs": request(tree, workers=8, gpus_each=4),
        "groups": request(tree, workers=64, gpus_each=8, required=SPINE, groups=((64, RACK),)),
        "hopeless": request(tree, workers=33, gpus_each=8, required=RACK),
    }.items():
        find(capacity, asked)
        counted[name] = capacity.visits
    return counted


def test_visits_do_not_grow_with_the_cluster() -> None:
    visits = [visits_at(nodes) for nodes in (1_024, 10_240, 102_400)]
    for name, few in visits[0].items():
        assert 0 < few <= 60, visits
        assert visits[1][name] <= few + 8, visits
        assert visits[2][name] <= visits[1][name] + 8, visits
