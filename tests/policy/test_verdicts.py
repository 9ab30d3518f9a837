"""Which jobs are held back, by whom they were brought, and what is told of it."""

from __future__ import annotations

import pytest

from reconciler.errors import Severity
from reconciler.model.desired import PolicyHold
from reconciler.model.observed import Person, Proof, Provenance
from reconciler.policy.verdicts import answers_to, same_person
from tests.documents.trees import job
from tests.policy.house import KEY, brought, person, policy_text, rule, verdicts

ASKS = rule("false", action="RequireApproval", approvers="['@acme/release', '@boss', 'eve@acme.org']", reason="Ask")
KIM, ANA, BOSS = person("kim", "@acme/nlp"), person("ana", "@acme/Release"), person("boss")


def test_defaults_are_filled_in_before_a_document_is_judged() -> None:
    text = policy_text(
        rule("object.spec.priorityClass != ''"),
        rule("object.spec.run.launch == 'perGpu' && object.spec.preemption.policy == 'requeue'"),
        rule("duration(object.spec.timeLimit) == duration('1h')"),
        rule(
            "object.spec.restart.onFailure == 3 && object.spec.parallelism.tensor == 8 && !has(object.spec.checkpoint)"
        ),
    )
    assert verdicts(text, {"x": job()}).holds({}) == {}


def test_a_job_without_an_end_has_no_time_limit_to_see() -> None:
    text = policy_text(rule("has(object.spec.timeLimit)"))
    assert list(verdicts(text, {"x": job("timeLimit: unlimited")}).holds({})) == [KEY]


def test_the_first_denial_comes_before_any_approval_that_is_missing() -> None:
    text = policy_text(ASKS, rule("object.spec.gpus == 1", reason="One"), rule("false", reason="Two"))
    assert verdicts(text, {"x": job()}).holds({}) == {KEY: PolicyHold(policy="house", rule="One", message="no")}


def test_a_warning_holds_nothing_and_is_told_with_its_place() -> None:
    made = verdicts(policy_text(rule("false", action="Warn", reason="Hm")), {"x": job()})
    assert made.holds({}) == {}
    (told,) = made.diagnostics({})
    assert (told.code, told.severity, told.place.file, told.place.line) == (
        "Hm", Severity.WARNING, "cluster-state/jobs/research/x.yaml", 4,
    )  # fmt: skip


def test_a_denial_is_an_error_of_a_proposal_and_a_warning_once_it_is_merged() -> None:
    made = verdicts(policy_text(rule("false")), {"x": job()})
    assert [d.severity for d in made.diagnostics({}, proposal=True)] == [Severity.ERROR]
    assert [d.severity for d in made.diagnostics({})] == [Severity.WARNING]


@pytest.mark.parametrize(
    ("provenance", "held"),
    [
        pytest.param(None, True, id="nobody knows"),
        pytest.param(brought(KIM), True, id="nobody agreed"),
        pytest.param(brought(KIM, ANA), False, id="somebody of the team"),
        pytest.param(brought(KIM, BOSS), False, id="somebody by login"),
        pytest.param(brought(KIM, person("eve")), False, id="somebody by address"),
        pytest.param(brought(KIM, person("bob", "@acme/nlp")), True, id="somebody else"),
        pytest.param(brought(ANA, ANA), True, id="the author is no second person"),
        pytest.param(brought(KIM, ANA, proven=Proof.FORGE), False, id="the forge's word"),
        pytest.param(brought(KIM, ANA, proven=Proof.NONE), True, id="names alone"),
    ],
)
def test_approval(provenance: Provenance | None, *, held: bool) -> None:
    found = verdicts(policy_text(ASKS), {"x": job()}).holds({KEY: provenance} if provenance else {})
    assert (KEY in found) is held
    if held:
        assert found[KEY].approvers == ("@acme/release", "@boss", "eve@acme.org")


@pytest.mark.parametrize(("proven", "held"), [(Proof.SIGNATURE, False), (Proof.FORGE, False), (Proof.NONE, True)])
def test_teams_of_the_author_are_seen_when_something_stands_behind_the_name(proven: Proof, *, held: bool) -> None:
    made = verdicts(policy_text(rule("author.teams.exists(t, t == 'acme/nlp')")), {"x": job()})
    assert (KEY in made.holds({KEY: brought(KIM, proven=proven)})) is held


def test_what_was_found_is_kept_for_as_long_as_nothing_changes() -> None:
    made = verdicts(policy_text(rule("author.login == 'kim'")), {"x": job()})
    kim, ana = brought(KIM), brought(ANA)
    assert made.of_job(KEY, kim) is made.of_job(KEY, kim)
    assert made.holds({KEY: kim}) == {}
    assert list(made.holds({KEY: ana})) == [KEY]


def test_documents_of_the_cluster_are_judged_too() -> None:
    text = policy_text(rule("object.spec.weight > 5", reason="Heavy"), match="kinds: [Queue]")
    made = verdicts(text, {"x": job()})
    assert made.holds({}) == {}
    assert {(d.code, d.place.file) for d in made.diagnostics(None)} == {("Heavy", "cluster-state/queues/tree.yaml")}


@pytest.mark.parametrize(
    ("wanted", "who", "is_meant"),
    [
        ("@acme/nlp", Person(teams=("@ACME/nlp",)), True),
        ("acme/nlp", Person(teams=("@acme/nlp",)), True),
        ("@acme/nlp", Person(login="acme/nlp"), False),
        ("@kim", Person(login="Kim"), True),
        ("@kim", Person(user="kim"), False),
        ("kim", Person(user="kim"), True),
        ("kim@acme.org", Person(email="Kim@acme.org"), True),
        ("@", Person(), False),
        ("", Person(), False),
    ],
)
def test_whom_a_name_means(wanted: str, who: Person, *, is_meant: bool) -> None:
    assert answers_to(who, wanted) is is_meant


def test_strangers_are_not_one_another() -> None:
    assert not same_person(Person(), Person())
    assert same_person(Person(login="Kim"), Person(login="kim"))
    assert not same_person(Person(login="kim", email=""), Person(login="ana", email=""))
