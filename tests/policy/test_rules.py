"""Anything but true is a failure; what cannot be judged denies; messages are one line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.documents.cache import ParseCache
from reconciler.documents.judged import read_files
from reconciler.policy.rules import Action, Finding, Subject, findings, lint_policies, one_line
from tests.documents.trees import sources
from tests.policy.house import POLICY, policies, policy_text, rule

TREE = {"kind": "Job", "spec": {"gpus": 12, "run": {"command": ["a"]}}, "metadata": {"labels": {"team": "x"}}}


def subject(**changes: object) -> Subject:
    fields = {"kind": "Job", "name": "x", "queues": ("nlp", "root"), "labels": {"team": "x"}, "tree": TREE, **changes}
    return Subject(**fields)  # type: ignore[arg-type]  # fields by name


def found(text: str, **changes: object) -> list[tuple[str, str]]:
    return [(f.action.value, f.message) for f in findings(policies(text), subject(**changes))]


@pytest.mark.parametrize(
    ("validation", "expected"),
    [
        pytest.param(rule("object.spec.gpus > 0"), [], id="true is fine"),
        pytest.param(rule("object.spec.gpus > 100"), [("Deny", "no")], id="false is denied"),
        pytest.param(rule("object.spec.gpus > 100", action="Warn"), [("Warn", "no")], id="false may only warn"),
        pytest.param(
            rule("false", action="RequireApproval", approvers="['@a/b']"), [("RequireApproval", "no")], id="or ask"
        ),
        pytest.param(
            rule("object.spec.gpus"),
            [("Deny", "cannot be judged: it is a number, neither true nor false")],
            id="a number",
        ),
        pytest.param(rule("'true'"), [("Deny", "cannot be judged: it is text, neither true nor false")], id="text"),
        pytest.param(rule("null"), [("Deny", "cannot be judged: it is nothing, neither true nor false")], id="null"),
        pytest.param(
            rule("object.spec.missing > 1", action="Warn"),
            [("Deny", 'cannot be judged: Key not found in map : "missing"')],
            id="an error denies, whatever the action",
        ),
        pytest.param(
            rule("1 +", action="Warn")[:-1] + "}",
            [("Deny", "cannot be judged: ")],
            id="so does what is no expression",
        ),
    ],
)
def test_failures(validation: str, expected: list[tuple[str, str]]) -> None:
    got = found(policy_text(validation))
    assert [action for action, _ in got] == [action for action, _ in expected]
    assert all(message.startswith(begin) for (_, message), (_, begin) in zip(got, expected, strict=True))


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("kinds: [Job]", True),
        ("kinds: [Queue, NodeSet]", False),
        ("kinds: [Job], queues: [nlp]", True),
        ("kinds: [Job], queues: [root]", True),
        ("kinds: [Job], queues: [vision]", False),
        ("kinds: [Job], labels: {team: x}", True),
        ("kinds: [Job], labels: {team: z}", False),
        ("kinds: [Job], queues: [nlp], labels: {other: x}", False),
    ],
)
def test_what_a_policy_looks_at(match: str, *, matches: bool) -> None:
    assert bool(found(policy_text(rule("false"), match=match))) is matches


def test_variables_see_those_before_them() -> None:
    variables = "[{name: a, expression: object.spec.gpus}, {name: b, expression: variables.a * 2}]"
    assert found(policy_text(rule("variables.b == 24"), variables=variables)) == []


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("object.nope", "variables.v: Key not found"),
        ("duration('1h')", "variables.v: a variable cannot keep a duration"),
        ("1 +", "variables.v: 1:4: Syntax error"),
    ],
)
def test_a_variable_without_a_value_only_fails_those_who_use_it(expression: str, told: str) -> None:
    text = policy_text(rule("variables.v == 1"), rule("true"), variables=f'[{{name: v, expression: "{expression}"}}]')
    ((action, message),) = found(text)
    assert (action, message.startswith(f"cannot be judged: {told}")) == ("Deny", True), message


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("messageExpression: \"'has ' + string(object.spec.gpus)\"", "has 12"),
        ("messageExpression: object.spec.gpus", "R: its message cannot be computed"),
        ("messageExpression: object.nope, message: plain", "plain"),
        ("messageExpression: \"'a\\\\nb \\\\u202e c'\"", "a b c"),
    ],
)
def test_words_of_a_failure(words: str, told: str) -> None:
    assert found(policy_text(f"{{expression: 'false', reason: R, {words}}}")) == [("Deny", told)]


def test_a_document_that_is_too_large_is_denied() -> None:
    ((action, message),) = found(policy_text(rule("true")), tree={"spec": {"l": [0] * 60_000}})
    assert action == "Deny"
    assert "parts, and policies look at 50000 at most" in message


def test_what_does_not_compile_is_told_at_its_place() -> None:
    text = policy_text(rule("object.x ="), rule("true"), variables="[{name: v, expression: nope}]")
    tree = read_files(sources({POLICY: text}), ParseCache())
    told = list(lint_policies(item for checked in tree.checked.values() for item in checked.items))
    assert [(d.code, d.place.path, d.place.line) for d in told] == [
        ("BadExpression", "spec.variables[0].expression", 6),
        ("BadExpression", "spec.validations[0].expression", 8),
    ]


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400))
def test_one_line_is_one_visible_line(text: str) -> None:
    line = one_line(text)
    assert len(line) <= 300
    assert line == " ".join(line.split())
    assert not any(ord(c) < 32 or c in "\u202e\u2028\ufeff\x7f" for c in line)


_LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["spec", "metadata", "kind", "x"]), st.recursive(_LEAVES, st.lists, max_leaves=5))
)
def test_policies_never_raise_over_any_object(tree: dict[str, object]) -> None:
    text = policy_text(
        rule("object.spec.gpus % 8 == 0"), rule("variables.v"), variables="[{name: v, expression: object.spec}]"
    )
    for one in findings(policies(text), subject(tree=tree)):
        assert isinstance(one, Finding)
        assert one.action is Action.DENY
