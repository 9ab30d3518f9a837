"""The codec: led by annotations, exact about types, and silent about defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

import pytest

from reconciler.documents.loader import Tree
from reconciler.documents.values import Codec, Form, camel, tree_of, value_of
from reconciler.errors import StoreError
from reconciler.model.units import Instant, Nanoseconds

Port = NewType("Port", int)


class Colour(StrEnum):
    RED = "Red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    made_at: Instant
    colour: Colour
    inner: Inner
    limit: Nanoseconds | None = None
    ports: tuple[Port, ...] = ()
    pairs: tuple[tuple[str, int | str], ...] = ()
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    on: bool = False


FULL = Outer(
    made_at=Instant(1_767_225_600_000_000_001),
    colour=Colour.RED,
    inner=Inner(name="a", count=3),
    limit=Nanoseconds(90 * 10**9),
    ports=(Port(1), Port(2)),
    pairs=(("x", 1), ("y", "z")),
    by_name={"b": Inner(name="b"), "a": Inner(name="a")},
    on=True,
)
FULL_TREE: dict[str, Tree] = {
    "madeAt": "2026-01-01T00:00:00.000000001+00:00",
    "colour": "Red",
    "inner": {"name": "a", "count": 3},
    "limit": "1m30s",
    "ports": [1, 2],
    "pairs": [["x", 1], ["y", "z"]],
    "byName": {"a": {"name": "a"}, "b": {"name": "b"}},
    "on": True,
}


def test_each_type_has_one_spelling() -> None:
    tree = tree_of(FULL)
    assert tree == FULL_TREE
    assert list(tree) == list(FULL_TREE)  # fields in declared order
    assert list(tree["byName"]) == ["a", "b"]  # type: ignore[arg-type]  # names sorted
    assert value_of(Outer, tree) == FULL


def test_defaults_are_left_out_and_come_back() -> None:
    bare = Outer(made_at=Instant(0), colour=Colour.RED, inner=Inner(name="a"))
    assert tree_of(bare) == {"madeAt": "1970-01-01T00:00:00+00:00", "colour": "Red", "inner": {"name": "a"}}
    assert value_of(Outer, tree_of(bare)) == bare


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "text",
        {},
        {**FULL_TREE, "extra": 1},
        {**FULL_TREE, "made_at": 1},
        {**FULL_TREE, "madeAt": 5},
        {**FULL_TREE, "colour": "Blue"},
        {**FULL_TREE, "colour": []},
        {**FULL_TREE, "inner": None},
        {**FULL_TREE, "inner": {"count": 3}},
        {**FULL_TREE, "limit": "-1s"},
        {**FULL_TREE, "limit": 90},
        {**FULL_TREE, "ports": "12"},
        {**FULL_TREE, "ports": [True]},
        {**FULL_TREE, "ports": {"1": 2}},
        {**FULL_TREE, "pairs": [["x"]]},
        FULL_TREE | {"pairs": [["x", True]]},
        FULL_TREE | {"pairs": [["x", None]]},
        {**FULL_TREE, "byName": ["a"]},
        {**FULL_TREE, "on": 1},
    ],
)
def test_any_other_tree_is_a_bad_record(wrong: Tree) -> None:
    with pytest.raises(StoreError) as caught:
        value_of(Outer, wrong)
    assert caught.value.code == "BadRecord"
    assert caught.value.remedy


def test_a_kind_can_have_a_form_of_its_own() -> None:
    codec = Codec({Inner: Form(lambda inner: f"{inner.name} x{inner.count}", lambda tree: Inner(name=str(tree)[0]))})
    tree = codec.tree_of(FULL)
    assert tree["inner"] == "a x3"
    assert tree["byName"] == {"a": "a x0", "b": "b x0"}
    assert codec.value_of(Outer, tree).by_name["b"] == Inner(name="b")
    assert tree_of(FULL) == FULL_TREE  # the others are not touched by it


def test_names_as_in_people_s_files() -> None:
    assert [camel(name) for name in ("job", "decided_at", "phi_whole_ppm")] == ["job", "decidedAt", "phiWholePpm"]
