"""Who brought a job: the account it runs under, what one person may hold at once, and that neither can be borrowed."""

from __future__ import annotations

import json

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Person, Proof
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import MINUTE, JobKey
from reconciler.runtime.clone import open_clone
from reconciler.runtime.preview import preview
from reconciler.store.signatures import Signer, make_key
from tests.runtime.lab import QUEUES, Desk, Lab, job_file, job_text
from tests.runtime.test_policies import merged
from tests.store.world import MAIN, git

TREE = "cluster-state/queues/tree.yaml"
CLASSES = "cluster-state/priorities/classes.yaml"


def user(name: str, *, unix: str = "", key: Signer | None = None) -> str:
    more = f", unixUser: {unix}" if unix else ""
    more += f", sshKeys: ['{key.public_key()}']" if key is not None else ""
    return (
        f"apiVersion: gangops/v1\nkind: User\nmetadata: {{name: {name}}}\n"
        f"spec: {{emails: [{name}@acme.org], github: {name}-gh{more}}}\n"
    )


PEOPLE = {
    "cluster-state/users/kim.yaml": user("kim", unix="ukim"),
    "cluster-state/users/ana.yaml": user("ana"),
    "cluster-state/users/ben.yaml": user("ben", unix="uben"),
}


def nlp(said: str) -> str:
    return QUEUES.replace("spec: {parent: root}", f"spec: {{parent: root, {said}}}")


def begun(lab: Lab, queues: str, **files: str) -> Desk:
    lab.begin(**{TREE: queues, **PEOPLE, **files})
    desk = lab.desk()
    desk.settle()
    return desk


def brings(lab: Lab, who: str, name: str, gpus: int = 8, *, more: str = "", **how: object) -> None:
    """A pull request of somebody, squashed by the forge."""
    lab.desire({job_file(name): job_text(name, gpus, more=more)})
    merged(lab, "Job (#7)\n", author=who, **how)  # type: ignore[arg-type]  # as `merged` has them


def account(desk: Desk, name: str) -> str:
    """Under which account the nodes are ordered to run a job."""
    assert desk.reconciler.last is not None
    orders = desk.reconciler.last.generation.node_orders
    found = {
        one["run"]["user"]
        for content in orders.values()
        for one in json.loads(content)["attempts"]
        if one["job"] == f"nlp/{name}"
    }
    (only,) = found
    return str(only)


def check_replay(lab: Lab) -> None:
    assert [(done.generation, done.differs, done.why) for done in lab.replayed() if not done.identical] == []
    lab.check_chain()


# --- accounts ---


def test_a_job_runs_as_who_brought_it(lab: Lab) -> None:
    desk = begun(lab, nlp("runAs: submitter"))
    brings(lab, "kim", "a")
    brings(lab, "ben", "b")
    desk.settle()
    assert (account(desk, "a"), account(desk, "b")) == ("ukim", "uben")
    check_replay(lab)


def test_a_service_account_needs_nobody_s(lab: Lab) -> None:
    desk = begun(lab, nlp("runAs: {user: svc-nlp}"))
    brings(lab, "mallory", "a")
    desk.settle()
    assert account(desk, "a") == "svc-nlp"


def test_without_an_account_it_is_held_until_the_user_has_one(lab: Lab) -> None:
    desk = begun(lab, nlp("runAs: submitter"))
    brings(lab, "ana", "a")
    desk.settle()
    held = desk.record("a")
    assert (held.state, held.reason.code, held.reason.number("user")) == (JobState.HELD, ReasonCode.NO_ACCOUNT, "ana")
    lab.desire({"cluster-state/users/ana.yaml": user("ana", unix="uana")})
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    assert account(desk, "a") == "uana"
    check_replay(lab)


def test_who_edits_what_does_not_change_the_run_is_not_its_submitter(lab: Lab) -> None:
    desk = begun(lab, nlp("runAs: submitter"))
    brings(lab, "kim", "a")
    desk.settle()
    brings(lab, "ben", "a", more="  nice: 5\n")
    lab.clock.advance(6 * MINUTE)  # who edited what moves no job: it rides along with the next commit
    desk.settle()
    known = lab.generation().observed.provenance[JobKey("nlp/a")]
    assert (known.author.user, known.submitter) == ("ben", Person(user="kim", email="kim@acme.org", login="kim-gh"))
    brings(lab, "ben", "a", gpus=16)  # and now it is his
    desk.settle()
    assert account(desk, "a") == "uben"
    check_replay(lab)


@pytest.mark.parametrize(
    ("committer", "merge"),
    [
        pytest.param("kim <kim@acme.org>", False, id="a push with kim's name on it"),
        pytest.param("GitHub <noreply@github.com>", True, id="a merge of a commit with kim's name on it"),
    ],
)
def test_a_name_in_a_commit_is_no_account(lab: Lab, committer: str, merge: bool) -> None:
    desk = begun(lab, nlp("runAs: submitter"))
    base = lab.remote.tip(MAIN)
    brings(lab, "kim", "a", committer="kim <kim@acme.org>")
    if merge:
        folder, head = lab.remote.path, lab.remote.tip(MAIN)
        tree = git(folder, "rev-parse", f"{head}^{{tree}}").decode().strip()
        person = "eve <eve@acme.org> 1700000000 +0000"
        body = f"tree {tree}\nparent {base}\nparent {head}\nauthor {person}\ncommitter {committer} 1700000000 +0000\n\n"
        made = git(folder, "hash-object", "-t", "commit", "-w", "--stdin", stdin=f"{body}Merge\n".encode())
        git(folder, "update-ref", MAIN, made.decode().strip())
    desk.settle()
    assert desk.record("a").reason.code is ReasonCode.NO_ACCOUNT
    assert desk.record("a").reason.number("user") == "kim (unproven)"


def test_a_signed_commit_that_is_merged_speaks_for_its_author(lab: Lab) -> None:
    key = make_key(lab.folder / "kim-key", "kim")
    desk = begun(lab, nlp("runAs: submitter"), **{"cluster-state/users/kim.yaml": user("kim", unix="ukim", key=key)})
    brings(lab, "kim", "a", committer="kim <kim@acme.org>", key=key)
    desk.settle()
    assert account(desk, "a") == "ukim"
    assert lab.generation().observed.provenance[JobKey("nlp/a")].vouched is Proof.SIGNATURE


@pytest.mark.parametrize(("who", "step"), [("kim", "place"), ("ana", "hold")], ids=["with an account", "without"])
def test_a_preview_takes_the_author_for_the_submitter(lab: Lab, who: str, step: str) -> None:
    desk = begun(lab, nlp("runAs: submitter"))
    brings(lab, "ben", "z")
    desk.settle()
    base = lab.remote.tip(MAIN)
    brings(lab, who, "a", committer=f"{who} <{who}@acme.org>")
    head = lab.remote.tip(MAIN)
    assert base is not None
    assert head is not None
    plan = preview(open_clone(lab.remote.path), head, lab.clock.now(), base=base)
    assert [(row.job, row.step.value) for row in plan.rows] == [("nlp/a", step)]


# --- what one person may hold ---


@pytest.mark.parametrize(
    ("limit", "what", "scope", "queues"),
    [
        pytest.param(16, "GPUs", "queue nlp", nlp("limits: {perUser: {gpus: 16}}"), id="GPUs"),
        pytest.param(2, "jobs", "queue nlp", nlp("limits: {perUser: {jobs: 2}}"), id="jobs"),
        pytest.param(16, "GPUs", "queue root", QUEUES.replace("spec: {}", "spec: {limits: {perUser: {gpus: 16}}}"),
                     id="of the queue around it"),
    ],
)  # fmt: skip
def test_a_person_at_the_limit_waits_and_others_do_not(
    lab: Lab, limit: int, what: str, scope: str, queues: str
) -> None:
    desk = begun(lab, queues)
    for name in "abc":
        brings(lab, "kim", name)
    brings(lab, "ben", "d")
    desk.settle()
    waits = desk.record("c")
    assert [desk.record(name).state for name in "abd"] == [JobState.RUNNING] * 3
    assert (waits.state, waits.reason.code) == (JobState.PENDING, ReasonCode.USER_LIMIT)
    assert dict(waits.reason.numbers) == {
        "user": "kim", "wouldBe": limit * 3 // 2, "most": limit, "what": what, "scope": scope,
    }  # fmt: skip
    desk.engine.cluster.finish("nlp/a", 0)
    desk.settle()
    assert desk.record("c").state is JobState.RUNNING
    check_replay(lab)


def test_a_class_may_be_limited_by_person(lab: Lab) -> None:
    limited = lab.files[CLASSES].replace("value: 1000}", "value: 1000, maxGpusPerUser: 8}")
    desk = begun(lab, QUEUES, **{CLASSES: limited})
    brings(lab, "kim", "a", more="  priorityClass: production\n")
    brings(lab, "kim", "b", more="  priorityClass: production\n")
    brings(lab, "kim", "c")
    desk.settle()
    assert desk.record("b").reason.number("scope") == "class production"
    assert desk.record("c").state is JobState.RUNNING


def test_others_name_is_not_charged_with_what_nobody_vouches_for(lab: Lab) -> None:
    desk = begun(lab, nlp("limits: {perUser: {jobs: 1}}"))
    brings(lab, "kim", "a", committer="eve <eve@acme.org>")
    brings(lab, "kim", "b", committer="eve <eve@acme.org>")
    brings(lab, "kim", "c")
    desk.settle()
    assert desk.record("b").reason.number("user") == "kim (unproven)"
    assert desk.record("c").state is JobState.RUNNING


def test_a_limit_that_comes_later_stops_nobody(lab: Lab) -> None:
    desk = begun(lab, QUEUES)
    for name in "ab":
        brings(lab, "kim", name)
    desk.settle()
    lab.desire({TREE: nlp("limits: {perUser: {gpus: 8}}")})
    desk.settle()
    assert [desk.record(name).state for name in "ab"] == [JobState.RUNNING] * 2
    check_replay(lab)


def test_the_limit_holds_when_a_preemptor_is_the_same_person_s(lab: Lab) -> None:
    """Who makes room by eviction may not pass the limit while the victim still holds its GPUs."""
    desk = begun(lab, nlp("limits: {perUser: {gpus: 32}}"))
    for name in "abcd":
        brings(lab, "kim", name)
    desk.settle()
    brings(lab, "kim", "e", more="  priorityClass: production\n")
    desk.settle()
    assert desk.record("e").reason.code is ReasonCode.USER_LIMIT
    assert [desk.record(name).state for name in "abcd"] == [JobState.RUNNING] * 4
