"""Do the policies say of their examples what their authors expect? Unit tests for house rules, run without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from reconciler.documents.convert import job_of
from reconciler.documents.examples import Example
from reconciler.documents.surroundings import Surroundings
from reconciler.errors import Place
from reconciler.model.observed import Person, Proof
from reconciler.model.queue import QuotaTree
from reconciler.policy.cel import Value
from reconciler.policy.plan import empty_plan, plan_rows
from reconciler.policy.rules import PLAN, Finding, Policy, failures, findings
from reconciler.policy.verdicts import person_value, subject_of

_LISTS: Final = ("placed", "preemptions", "moves", "stops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One example and what came of it. `differs` has a line for each difference; empty: as expected."""

    name: str
    place: Place
    differs: tuple[str, ...]


def try_examples(
    policies: Sequence[Policy], examples: Iterable[Example], around: Surroundings, quotas: QuotaTree
) -> Iterator[Tried]:
    """Each example against these policies, in order. `around`: the cluster whose defaults fill in jobs."""
    for example in examples:
        found = tuple(_found(policies, example, around, quotas))
        yield Tried(name=example.name, place=example.place, differs=tuple(_differences(example.expect, found)))


def untried(policies: Sequence[Policy], examples: Iterable[Example]) -> tuple[tuple[str, str], ...]:
    """(policy, rule) of rules that no example expects to fail: nothing shows that they can."""
    expected = {reason for example in examples for reasons in example.expect.values() for reason in reasons}
    return tuple((p.name, rule.reason) for p in policies for rule in p.rules if rule.reason not in expected)


def _found(policies: Sequence[Policy], example: Example, around: Surroundings, quotas: QuotaTree) -> Iterator[Finding]:
    if example.item is None:
        plan = plan_of_example(example.plan)
        yield from failures([policy for policy in policies if PLAN in policy.kinds], {"plan": plan})
        return
    job = job_of(example.item, around) if example.item.kind == "Job" else None
    approvers: Value = [_person(said) for said in example.approvers]
    yield from findings(policies, subject_of(example.item, job, quotas), _person(example.author), approvers)


def _person(said: Person | None) -> Value:
    """Somebody an example names counts as proven."""
    return person_value(said or Person(), Proof.SIGNATURE if said is not None else Proof.NONE)


def plan_of_example(said: Mapping[str, Any]) -> dict[str, Value]:
    """A whole `plan` from the parts an example names."""
    plan = empty_plan()
    for key, value in said.items():
        known = plan.get(key)
        if key in _LISTS and isinstance(value, int):
            plan[key] = plan_rows(value)
        elif isinstance(known, dict) and isinstance(value, dict):
            plan[key] = {**known, **value}
        else:
            plan[key] = float(value) if isinstance(known, float) and isinstance(value, int) else value
    return plan


def _differences(expect: Mapping[str, tuple[str, ...]], found: Sequence[Finding]) -> Iterator[str]:
    wanted = {(action, reason) for action, reasons in expect.items() for reason in reasons}
    there = {(finding.action.value, finding.rule): finding.message for finding in found}
    for action, reason in sorted(wanted - there.keys()):
        yield f"expected {action} {reason}, which was not found"
    for action, reason in sorted(there.keys() - wanted):
        yield f"found {action} {reason}: {there[action, reason]}"
