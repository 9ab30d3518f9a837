"""Even spread: equal shares in each rack and spine group, the fewest racks that have them; checked against all ways."""

from __future__ import annotations

import random
from itertools import product

import pytest

from reconciler.topology.capacity import Capacity
from reconciler.topology.even import find_even
from reconciler.topology.request import request
from reconciler.topology.tree import Tree, build_tree, node_shape

SHAPE = node_shape(8)


def tree_of(racks: dict[str, list[int]]) -> tuple[Tree, Capacity]:
    """Spine groups of racks with so many free nodes each."""
    nodes = [
        (f"{spine}-{rack}-{n}", (spine, f"{spine}-{rack}"), SHAPE)
        for spine, counts in racks.items() for rack, count in enumerate(counts) for n in range(count)
    ]  # fmt: skip
    tree = build_tree(["cluster", "spineGroup", "rack"], nodes)
    return tree, Capacity(tree)


def shares(racks: dict[str, list[int]], nodes: int, **more: object) -> dict[str, list[int]] | None:
    """Nodes taken of each rack, by spine group, racks without any left out; None when nothing is even."""
    tree, capacity = tree_of(racks)
    found = find_even(capacity, request(tree, workers=nodes, gpus_each=8, **more))  # type: ignore[arg-type]  # by name
    if found is None:
        return None
    result: dict[str, list[int]] = {}
    for leaf, slots in found.whole:
        result.setdefault(tree.domains[1][tree.parents[2][leaf]][0], []).append(slots.bit_count())
    return result


def test_one_rack_is_the_most_even_of_all() -> None:
    assert shares({"a": [4, 8]}, 4) == {"a": [4]}


def test_equal_shares_where_packing_would_take_five_and_three() -> None:
    assert shares({"a": [5, 5]}, 8) == {"a": [4, 4]}


def test_spine_groups_have_equally_many_racks() -> None:
    assert shares({"a": [2, 2, 2], "b": [2, 2]}, 8) == {"a": [2, 2], "b": [2, 2]}
    assert shares({"a": [2, 2, 2], "b": [1]}, 8) is None


def test_groups_are_not_torn() -> None:
    assert shares({"a": [3, 3, 3, 3]}, 6, groups=[(16, 2)]) == {"a": [2, 2, 2]}
    assert shares({"a": [3, 3]}, 6) == {"a": [3, 3]}


def test_a_required_level_is_kept() -> None:
    assert shares({"a": [2, 2], "b": [2, 2]}, 8, required=1) is None
    assert shares({"a": [2, 2], "b": [2, 2]}, 8) == {"a": [2, 2], "b": [2, 2]}


@pytest.mark.parametrize("seed", range(60))
def test_as_few_racks_as_trying_everything_finds(seed: int) -> None:
    chance = random.Random(seed)
    racks = {spine: [chance.randint(0, 4) for _ in range(chance.randint(1, 3))] for spine in ("a", "b")}
    nodes = chance.randint(2, 8)
    if not any(sum(counts) for counts in racks.values()):
        return
    racks = {spine: [count for count in counts if count] for spine, counts in racks.items() if any(counts)}
    levels = {"rack": [], "spine": [], "cluster": []}  # type: dict[str, list[int]]
    flat = [(spine, count) for spine, counts in racks.items() for count in counts]
    for taken in product(*(range(count + 1) for _, count in flat)):
        used = [(spine, t) for (spine, _), t in zip(flat, taken, strict=True) if t]
        per_spine = [sum(s == spine for s, _ in used) for spine in {s for s, _ in used}]
        if sum(taken) == nodes and len({t for _, t in used}) == 1 and len(set(per_spine)) == 1:
            level = "rack" if len(used) == 1 else "spine" if len(per_spine) == 1 else "cluster"
            levels[level].append(len(used))
    best = next((min(found) for found in levels.values() if found), None)
    answer = shares(racks, nodes)
    assert (None if answer is None else sum(map(len, answer.values()))) == best
    if answer is not None:
        assert len({count for counts in answer.values() for count in counts}) == 1
        assert len({len(counts) for counts in answer.values()}) == 1
