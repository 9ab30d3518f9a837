"""The one writer: fixed bytes, and read back the same by every loader."""

from __future__ import annotations

import io
import json
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from reconciler.documents.canonical import Writable, to_json, to_yaml
from reconciler.documents.loader import STATE_LIMITS, Tree, load
from reconciler.documents.scalars import DecimalText
from reconciler.errors import BrokenInvariant


class Colour(StrEnum):
    RED = "Red"


def test_yaml_bytes() -> None:
    tree: Tree = {
        "kind": "Job",
        "a b": "x: y",
        "yes": "no",
        "count": -3,
        "on/off": True,
        "nothing": None,
        "empty": {"map": {}, "list": [], "text": ""},
        "rows": [{"gpu": 1, "numa": 0, "deep": [1, [2, "3"]]}, [], "12e4567", "two\nlines"],
    }
    assert to_yaml(tree, "Written by gangops.\nDo not edit.").decode() == (
        "# Written by gangops.\n"
        "# Do not edit.\n"
        "kind: Job\n"
        '"a b": "x: y"\n'
        '"yes": "no"\n'
        "count: -3\n"
        "on/off: true\n"
        "nothing: null\n"
        "empty:\n"
        "  map: {}\n"
        "  list: []\n"
        '  text: ""\n'
        "rows:\n"
        "  - gpu: 1\n"
        "    numa: 0\n"
        "    deep:\n"
        "      - 1\n"
        "      - - 2\n"
        '        - "3"\n'
        "  - []\n"
        '  - "12e4567"\n'
        '  - "two\\nlines"\n'
    )


def test_json_bytes() -> None:
    assert to_json({"b": [1, "ü"], "a": {}}).decode() == '{\n "b": [\n  1,\n  "ü"\n ],\n "a": {}\n}\n'


def test_key_order_is_the_callers() -> None:
    assert to_yaml({"b": 1, "a": 2}) != to_yaml({"a": 2, "b": 1})
    assert to_json({"b": 1, "a": 2}) != to_json({"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Colour.RED, "Red"),
        (DecimalText("0.70"), '"0.70"'),
        ((1, 2), "\n  - 1\n  - 2"),
        ("a\u2028b", '"a\\u2028b"'),
        ("-x", '"-x"'),
    ],
)
def test_values_with_one_spelling(value: Writable, written: str) -> None:
    separator = "" if written.startswith("\n") else " "
    assert to_yaml({"a": value}).decode() == f"a:{separator}{written}\n"


def _nested(depth: int) -> Writable:
    tree: Writable = "x"
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        {"a": 1.0}, [float("nan")], {"a": {1, 2}}, {1: "a"}, {None: 1}, {"a": b"x"}, {"a": object()},
        {"a": "\ud800"}, {"k" * 1001: 1}, [10**40], _nested(33),
    ],
    ids=lambda tree: str(type(tree)),
)  # fmt: skip
def test_what_has_no_canonical_form_is_our_bug(tree: Writable) -> None:
    for write in (to_yaml, to_json):
        with pytest.raises(BrokenInvariant):
            write(tree)


def test_the_deepest_tree_is_written_and_read() -> None:
    assert read(to_yaml(_nested(32))) == _nested(32)


TEXT = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="0123456789abcdefxo_.:+-eE~yYnN<=#'\"\\ \n\t", max_size=12),
    st.sampled_from(
        [
            *["yes", "no", "on", "off", "y", "n", "Yes", "NO", "NULL", "null", "~", "true", "=", "<<", "-", "?", ":"],
            *[
                "010",
                "1_000",
                "0x1F",
                "1e3",
                "12e4567",
                "1:30:00",
                ".inf",
                ".nan",
                "2026-12-03",
                "---",
                "...",
                "> {} []",
            ],
            *[
                "\ufeff",
                "\x85",
                "\u2028",
                "\u202e",
                "\x00",
                "\x7f",
                "😀",
                "a: b",
                "#x",
                "x #",
                "%a",
                "@b",
                "*a",
                "&b",
                "!t",
            ],
        ]
    ),
)
KEY = st.one_of(st.text(max_size=40), TEXT.map(lambda text: text[:40]))
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(-(10**30), 10**30), TEXT)
TREE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=4), max_leaves=12
)
FILLED = st.dictionaries(KEY, TREE, min_size=1, max_size=5)


def read(content: bytes) -> Tree:
    loaded = load(content, "written.yaml", STATE_LIMITS)
    assert loaded.diagnostics == ()
    return loaded.documents[0].value


def same(left: object, right: object) -> bool:
    """Equal, and of equal types: True is not 1."""
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@given(FILLED)
def test_the_strict_loader_reads_back_the_same_tree(tree: dict[str, Tree]) -> None:
    assert same(read(to_yaml(tree)), tree)


@given(FILLED)
def test_writing_what_was_read_gives_the_same_bytes(tree: dict[str, Tree]) -> None:
    assert to_yaml(read(to_yaml(tree))) == to_yaml(tree)


@given(FILLED)
def test_yaml_1_2_reads_back_the_same_tree(tree: dict[str, Tree]) -> None:
    assert same(YAML(typ="safe", pure=True).load(io.BytesIO(to_yaml(tree))), tree)


@given(FILLED)
def test_yaml_1_1_reads_back_the_same_tree(tree: dict[str, Tree]) -> None:
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)  # type: ignore[assignment, unused-ignore]  # the annotation is narrower than the setter
    assert same(reader.load(io.BytesIO(to_yaml(tree))), tree)


@given(FILLED)
def test_pyyaml_reads_back_the_same_tree(tree: dict[str, Tree]) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML only comes along with other packages")
    assert same(yaml.safe_load(to_yaml(tree)), tree)


@given(FILLED)
def test_json_reads_back_the_same_tree(tree: dict[str, Tree]) -> None:
    assert same(json.loads(to_json(tree)), tree)


@given(st.text(max_size=60).filter(lambda text: text.isprintable()))
def test_a_header_is_only_a_comment(header: str) -> None:
    assert read(to_yaml({"a": 1}, header)) == {"a": 1}
