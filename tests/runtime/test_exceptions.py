"""What `audit exceptions` lists of people, policies and requests, asked of records made for it."""

from __future__ import annotations

import pytest

from reconciler.model.observed import Proof
from reconciler.runtime.audit.exceptions import Exceptional, exceptions
from reconciler.runtime.audit.index import indexed
from reconciler.store.signatures import make_key
from tests.policy.house import policy_text, rule
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.runtime.test_policies import USERS, merged, user

POLICY = "policies/house.yaml"
SMALL_ONLY = policy_text(rule("object.spec.gpus <= 4", reason="TooLarge"))


def listed(lab: Lab) -> list[Exceptional]:
    return list(exceptions(lab.remote.git, indexed(lab.remote.git, lab.tip)))


def of_kind(lab: Lab, kind: str) -> list[tuple[int, str, str]]:
    return [(one.generation, one.person, one.told) for one in listed(lab) if one.kind == kind]


def test_a_policy_that_is_lifted_for_a_waiting_job(lab: Lab) -> None:
    lab.begin(**jobs("a"), **{POLICY: SMALL_ONLY})
    desk = lab.desk()
    desk.settle()
    assert of_kind(lab, "PolicyOverride") == []
    held = desk.summary.generation
    lab.desire({POLICY: SMALL_ONLY.replace("<= 4", "<= 8")})
    desk.settle()
    (changed,) = of_kind(lab, "PolicyChanged")
    assert changed == (held + 1, "", f"{POLICY} was changed")
    (override,) = of_kind(lab, "PolicyOverride")
    assert (override[0], override[2]) == (held + 1, "nlp/a was held by a policy (Policy) and is so no longer")
    lab.desire({POLICY: None, **jobs("b")})
    desk.settle()
    assert [told for _, _, told in of_kind(lab, "PolicyChanged")] == [f"{POLICY} was changed", f"{POLICY} was removed"]


@pytest.mark.parametrize("proof", list(Proof))
def test_how_sure_it_is_who_brought_a_job(lab: Lab, proof: Proof) -> None:
    key = make_key(lab.folder / "kim", "kim")
    people = {**USERS, "cluster-state/users/kim.yaml": user("kim", "@acme/nlp", key=key.public_key())}
    lab.begin(**people)
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("a"): job_text("a")})
    if proof is not Proof.NONE:
        committer = "GitHub <noreply@github.com>" if proof is Proof.FORGE else "kim <kim@acme.org>"
        merged(lab, "Add a (#7)", committer=committer, key=key if proof is Proof.SIGNATURE else None)
    desk.settle()
    kinds = {Proof.FORGE: "ForgeAlone", Proof.NONE: "Unproven"}
    found = [(one.kind, one.told.partition(":")[0]) for one in listed(lab) if one.kind in kinds.values()]
    brought = {Proof.FORGE: "nlp/a (#7)", Proof.NONE: "nlp/a"}
    assert found == ([(kinds[proof], brought[proof])] if proof in kinds else [])
