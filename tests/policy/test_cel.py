"""Expressions are judged the same in every process, within a budget, whatever they and the values are."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.policy.cel import BUDGET, Expression, ExpressionError, Given, is_plain, parts, weight_of

ROOT = Path(__file__).parents[2]
VALUES = {
    "object": {"m": dict.fromkeys("hgfedcba", 1), "l": list(range(1000)), "n": 3, "f": 1.5, "s": "text", "none": None}
}


def judged(text: str, values: object = None) -> tuple[object, str]:
    result = Expression(text).of(Given(VALUES if values is None else {"object": values}))
    return result.value, result.error


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("object.n == 3", True),
        ("object.n % 2 == 0", False),
        ("object.f < 20.0", True),
        ("object.n < 20.0", True),
        ("has(object.missing)", False),
        ("object.none == null", True),
        ("object.m.map(k, k)", list("abcdefgh")),
        ("object.m.filter(k, k > 'f')", ["g", "h"]),
        ("object.m.exists_one(k, k == 'c')", True),
        ("[[1, 2], [3]].map(l, l.map(x, x + 1))", [[2, 3], [4]]),
        ("object.l.all(x, x >= 0) && object.l.exists(x, x == 999)", True),
        ("object.missing == 1 || true", True),
        ("duration('12h') <= duration('43200s')", True),
        ("object.s.startsWith('te') && object.s.size() == 4", True),
    ],
)
def test_values(text: str, value: object) -> None:
    assert judged(text) == (value, "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("object.missing == 1", "missing"),
        ("1 / 0 == 1", "zero"),
        ("9223372036854775807 + object.n > 0", "overflow"),
        ("object.n.all(x, true)", "No matching overloads"),
        ("object.n + object.s == 'x'", "No matching overloads"),
        ("object.l.all(a, object.l.all(b, a + b >= 0))", "budget"),
        ("author.teams.exists(t, true)", "author"),
    ],
)
def test_errors_are_results(text: str, error: str) -> None:
    value, told = judged(text)
    assert value is None
    assert error in told
    assert "\n" not in told


@pytest.mark.parametrize("text", ["1 +", "unknown == 1", "@range([1])", "'a", "1 < 2.0", "now()", "object..x", "🦆"])
def test_what_is_no_expression_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        Expression(text)
    assert "\n" not in str(refused.value)


def test_a_loop_over_a_large_document_is_weighed_by_it() -> None:
    big = {"l": [str(number) for number in range(20_000)], "few": [1, 2, 3]}
    weight = weight_of(parts(big))
    assert weight > 50
    told = Expression("object.l.all(x, x in object.l)").of(Given({"object": big}, weight))
    assert told.value is None
    assert Expression("object.few.all(x, x > 0)").of(Given({"object": big}, weight)).value is True


def test_the_budget_names_itself() -> None:
    values = {"object": {"l": list(range(5000))}}
    told = Expression("object.l.all(x, x >= 0)").of(Given(values, BUDGET // 1000))
    assert told.error == f"its loops cost more than {BUDGET} steps"
    # Even where `||` would hide the error of a loop that was broken off.
    assert Expression("object.l.all(x, x >= 0) || true").of(Given(values, BUDGET // 1000)).error == told.error


HOSTILE = [
    "object.l.all(a, object.l.all(b, object.l.all(c, a + b + c >= 0)))",
    "object.l.map(a, object.l).map(b, b.map(c, object.l)).size() == 1",
    "object.l.all(x, object.l == object.l && object.l == object.l && x in object.l && (x + 1) in object.l)",
    "(" * 300 + "1" + ")" * 300 + " == 1",
    " + ".join(["object.s"] * 400) + " == ''",
    "!" * 3000 + "true",
    "object.s.matches('(a+)+$')",
    "object.s.matches('(((((a{1,100}){1,100}){1,100}){1,100}){1,100})')",
    "[" * 120 + "]" * 120 + " == []",
    "object" + ".m" * 900 + " == 1",
    "object.l.filter(x, object.s.matches('x*x*x*x*x*y')).size() == 0",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_expressions_end_soon(text: str) -> None:
    values = {"object": {"l": list(range(9000)), "s": "a" * 10_000, "m": {}}}
    began = time.process_time()
    with contextlib.suppress(ExpressionError):
        Expression(text).of(Given(values, weight_of(sum(map(parts, values.values())))))
    assert time.process_time() - began < 2


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=4), inside, max_size=4),
    max_leaves=12,
)
PIECES = st.sampled_from(
    ["object", "variables", "author", ".spec", ".x", "['a']", "[0]", "==", "<", "&&", "||", "!", "(", ")", "[", "]", "{", "}",
     "1", "2.0", "'a'", "true", "null", ".size()", ".all(x, x)", ".map(k, k)", ".exists(e, e == 1)", "has(object.a)", "?", ":",
     "+", "-", "%", "in", ",", "string(object)", "duration('1h')", ".matches('a')", "b'x'", "dyn(", "type(object)"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=12).map(" ".join) | st.text(max_size=40), TREES)
def test_nothing_raises_and_twice_is_the_same(text: str, tree: object) -> None:
    try:
        expression = Expression(text)
    except ExpressionError:
        return
    one, two = (expression.of(Given({"object": tree, "variables": {}, "author": {}})) for _ in range(2))
    assert (repr(one.value), one.error) == (repr(two.value), two.error) or not is_plain(one.value)
    assert one.value is None or not one.error


_KEYS = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=6)  # as in documents: no NUL


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(_KEYS, st.integers(-5, 5), max_size=8))
def test_maps_go_in_the_order_of_their_keys(tree: dict[str, int]) -> None:
    assert judged("object.map(k, k)", tree) == (sorted(tree), "")


_SCRIPT = """
from reconciler.policy.cel import Expression, Given
labels = {"object": {c: 1 for c in "qwertyuiopasdfgh"}}
print(Expression("object.map(k, k)[0] + object.filter(k, k > 'f')[1]").of(Given(labels)).value)
print(Expression("object.map(k, object.zz + k)").of(Given(labels)).error)
"""


def test_every_process_says_the_same() -> None:
    said = set()
    for seed in ("0", "1", "2", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )  # fmt: skip
        said.add(done.stdout)
    assert len(said) == 1
    assert said.pop().startswith("ah\n")
