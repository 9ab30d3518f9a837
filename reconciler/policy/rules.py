"""Which rules does a document break? Policies made ready once, and what each of them finds in one document.

Anything but true is a failure. An expression that has no value at all, because a field is missing or a loop is too
long, denies whatever its action would have been: a rule that cannot be judged was not kept. Holding jobs back and
telling people are for `holds`; the plan is judged by `plan`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from reconciler.documents.check import Item
from reconciler.documents.schema.base import kind_of
from reconciler.documents.text import HIDDEN_CHARACTERS
from reconciler.errors import Diagnostic
from reconciler.policy.cel import (
    MOST_PARTS,
    Expression,
    ExpressionError,
    Given,
    Result,
    Value,
    is_plain,
    parts,
    weight_of,
)

PLAN: Final = "Plan"
_LONGEST: Final = 300  # characters of a message
_HIDDEN: Final = re.compile(f"[\x00-\x1f{HIDDEN_CHARACTERS}]")


class Action(StrEnum):
    """What a failure does."""

    DENY = "Deny"
    WARN = "Warn"
    REQUIRE_APPROVAL = "RequireApproval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One validation. `expression` is its text when it does not compile, with the `problem`."""

    number: int
    expression: Expression | str
    problem: str
    message: str
    message_expression: Expression | None
    reason: str
    action: Action
    approvers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy, compiled. `variables` in order; one that does not compile is an error text."""

    name: str
    kinds: frozenset[str]
    queues: frozenset[str]
    labels: Mapping[str, str]
    variables: tuple[tuple[str, Expression | str], ...]
    rules: tuple[Rule, ...]

    def matches(self, subject: Subject) -> bool:
        """Whether it looks at this document."""
        return (
            subject.kind in self.kinds
            and (not self.queues or not self.queues.isdisjoint(subject.queues))
            and all(subject.labels.get(key) == value for key, value in self.labels.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A document with its defaults. `queues`: its queue and those around it, for a job or a queue; else empty.

    `size`: no fewer than its parts, 0 when nobody knows.
    """

    kind: str
    name: str
    queues: tuple[str, ...]
    labels: Mapping[str, str]
    tree: Mapping[str, Any]
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that failed. `message` is one line, whatever the policy or the document say."""

    policy: str
    rule: str
    action: Action
    message: str
    approvers: tuple[str, ...] = ()


# --- making ready ---------------------------------------------------------------------------------------------------


def policies_of(items: Iterable[Item]) -> tuple[Policy, ...]:
    """Compiled policies, by name. One that does not compile denies all it matches; `lint_policies` says where."""
    return tuple(sorted(map(_policy, items), key=lambda policy: policy.name))


def lint_policies(items: Iterable[Item]) -> Iterator[Diagnostic]:
    """Every expression that is no CEL or names what there is not, at its place."""
    for item in items:
        for path, text in _expressions(item.model.spec):
            _, problem = _compiled(text)
            if problem:
                yield item.problem(
                    "BadExpression",
                    "Expression cannot be compiled",
                    f"{problem[:1].upper()}{problem[1:]}.",
                    *path,
                    remedy="It is CEL over object, variables, author and approvers, or over plan: see policies/README.md.",
                )


def _expressions(spec: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for number, variable in enumerate(spec.variables):
        yield ("spec", "variables", number, "expression"), variable.expression
    for number, rule in enumerate(spec.validations):
        yield ("spec", "validations", number, "expression"), rule.expression
        if rule.message_expression is not None:
            yield ("spec", "validations", number, "messageExpression"), rule.message_expression


def _policy(item: Item) -> Policy:
    spec = item.model.spec
    variables = []
    for variable in spec.variables:
        expression, problem = _compiled(variable.expression)
        variables.append((variable.name, expression or problem))
    return Policy(
        name=item.name,
        kinds=frozenset(spec.match.kinds),
        queues=frozenset(spec.match.queues),
        labels=dict(spec.match.labels),
        variables=tuple(variables),
        rules=tuple(_rule(number, said) for number, said in enumerate(spec.validations)),
    )


def _rule(number: int, said: Any) -> Rule:
    expression, problem = _compiled(said.expression)
    words, _ = _compiled(said.message_expression) if said.message_expression is not None else (None, "")
    return Rule(
        number=number,
        expression=expression or said.expression,
        problem=problem,
        message=said.message,
        message_expression=words,
        reason=said.reason,
        action=Action(said.action),
        approvers=said.approvers,
    )


def _compiled(text: str) -> tuple[Expression | None, str]:
    try:
        return Expression(text), ""
    except ExpressionError as err:
        return None, str(err)


# --- judging --------------------------------------------------------------------------------------------------------


def findings(
    policies: Sequence[Policy], subject: Subject, author: Value = None, approvers: Value = None
) -> tuple[Finding, ...]:
    """All that policies find in a document, by policy and rule. Never raises.

    `author` and `approvers` are what expressions see under these names: who brought it, and who agreed.
    """
    matching = [policy for policy in policies if policy.matches(subject)]
    values = {"object": subject.tree, "author": author or {}, "approvers": approvers or []}
    return tuple(failures(matching, values, subject.size))


def failures(policies: Sequence[Policy], values: Mapping[str, Value], size: int = 0) -> Iterator[Finding]:
    """The rules of these policies that fail for these values, whatever they match. `size`: parts, when known."""
    size = size or sum(map(parts, values.values()))
    given = Given({**values, "variables": {}}, weight_of(size)) if policies and size <= MOST_PARTS else None
    for policy in policies:
        if given is None:
            told = f"cannot be judged: it has {size} parts, and policies look at {MOST_PARTS} at most"
            yield Finding(policy=policy.name, rule=policy.rules[0].reason, action=Action.DENY, message=told)
        else:
            yield from _failures(policy, given)


def _failures(policy: Policy, given: Given) -> Iterator[Finding]:
    given, missing = _with_variables(policy, given)
    for rule in policy.rules:
        result = _judged(rule.expression, rule.problem, given)
        if result.value is not True:
            yield _failure(policy, rule, result, given, missing)


def _with_variables(policy: Policy, given: Given) -> tuple[Given, str]:
    """The values with the variables that have one, and why the first of the others has none."""
    found: dict[str, Value] = {}
    seen, missing, left = given, "", MOST_PARTS
    for name, expression in policy.variables:
        if isinstance(expression, Expression) and "variables" in expression.text:
            seen = given.with_variables(found)
        result = _judged(expression, expression if isinstance(expression, str) else "", seen)
        size = parts(result.value)
        if not result.error and size > left:
            result = Result(error=f"its value has {size} parts")
        if not result.error and not is_plain(result.value):
            result = Result(
                error="a variable cannot keep a duration or a time; keep its text, and convert where it is used"
            )
        if result.error:
            missing = missing or f"variables.{name}: {result.error}"
        else:
            left -= size
            found[name] = result.value
    return given.with_variables(found) if found else given, missing


def _judged(expression: Expression | str, problem: str, given: Given) -> Result:
    return Result(error=problem) if isinstance(expression, str) else expression.of(given)


def _failure(policy: Policy, rule: Rule, result: Result, given: Given, missing: str) -> Finding:
    """What is told of a failure: the rule's words when it is false, else what is wrong with the rule."""
    if result.value is False:
        return Finding(
            policy=policy.name,
            rule=rule.reason,
            action=rule.action,
            message=one_line(_words(rule, given)),
            approvers=rule.approvers,
        )
    told = (
        missing
        if missing and result.error
        else result.error or f"it is {kind_of(result.value)}, neither true nor false"
    )
    return Finding(
        policy=policy.name, rule=rule.reason, action=Action.DENY, message=one_line(f"cannot be judged: {told}")
    )


def _words(rule: Rule, given: Given) -> str:
    if rule.message_expression is not None:
        said = rule.message_expression.of(given)
        if isinstance(said.value, str) and said.value.strip():
            return said.value
    return rule.message or f"{rule.reason}: its message cannot be computed"


def one_line(text: str) -> str:
    """Text of someone else's, fit for a record: one line, nothing hidden, not too long."""
    words = " ".join(_HIDDEN.sub(" ", text.encode("utf-8", "replace").decode()).split())
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 1]}…"
