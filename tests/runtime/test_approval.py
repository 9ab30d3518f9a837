"""`gangops check approval` over a real repository and recorded events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.errors import GangOpsError
from reconciler.runtime.approval import request_of
from tests.runtime.lab import BASE, Lab, job_file, job_text, jobs
from tests.runtime.test_policies import user
from tests.store.world import MAIN, git

QUEUES = """\
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {admins: {github: ["@acme/platform"]}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: nlp}
spec: {parent: root, members: {github: ["@acme/nlp"]}, limits: {gpusPerJob: 16}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: vision}
spec: {parent: root, guaranteed: {H100: 32}, members: {github: ["@acme/vision"]}, admins: {github: ["@seer-gh"]}}
"""
PEOPLE = {
    "cluster-state/queues/tree.yaml": QUEUES,
    "cluster-state/users/kim.yaml": user("kim", "@acme/nlp"),
    "cluster-state/users/lee.yaml": user("lee", "@acme/nlp"),
    "cluster-state/users/vic.yaml": user("vic", "@acme/vision"),
    "cluster-state/users/root.yaml": user("root", "@acme/platform"),
}


@pytest.fixture
def house(lab: Lab) -> Lab:
    """Queues with people, job nlp/a running."""
    lab.begin(**PEOPLE, **jobs("a"))
    lab.desk().settle()
    return lab


def propose(lab: Lab, changes: Mapping[str, str | None]) -> tuple[str, str]:
    """A head on top of main with these changes, on a branch of its own: (base, head)."""
    base = lab.remote.tip(MAIN)
    assert base is not None
    before = dict(lab.files)
    head = lab.desire(changes)
    lab.files = before
    git(lab.remote.path, "update-ref", "refs/heads/topic", head)
    git(lab.remote.path, "update-ref", MAIN, base)
    return base, head


def event(base: str, head: str, author: str) -> dict[str, object]:
    """The parts of a pull_request event that matter, among others."""
    return {
        "action": "synchronize",
        "pull_request": {"number": 12, "user": {"login": author}, "base": {"sha": base, "ref": "main"}, "head": {"sha": head}},
        "repository": {"full_name": "acme/cluster"},
    }  # fmt: skip


def check(
    lab: Lab, changes: Mapping[str, str | None], author: str, *reviews: tuple[str, str]
) -> tuple[int, dict[str, object]]:
    base, head = propose(lab, changes)
    told = [{"user": {"login": who}, "state": state, "commit_id": head} for who, state in reviews]
    where = lab.folder / "event.json", lab.folder / "reviews.json"
    where[0].write_text(json.dumps(event(base, head, author)))
    where[1].write_text(json.dumps(told))
    arguments = [
        "-C",
        str(lab.remote.path),
        "check",
        "approval",
        "--event",
        str(where[0]),
        "--reviews",
        str(where[1]),
        "-o",
        "json",
    ]
    done = CliRunner().invoke(root, arguments, standalone_mode=False)
    assert done.exception is None, done.exception
    return done.return_value, json.loads(done.stdout)


def codes(told: dict[str, object], field: str) -> list[str]:
    return [row["code"] for row in told[field]]  # type: ignore[attr-defined]  # a list of rows


def test_a_member_adds_a_job_alone(house: Lab) -> None:
    status, told = check(house, jobs("b"), "kim-gh")
    assert (status, told["passed"], told["express"]) == (0, True, True)
    assert told["changes"] == [
        {"path": job_file("b"), "need": "QueueMember", "cause": "JobChanged", "queue": "nlp", "granted": True,
         "who": ["@acme/nlp", "@acme/platform"]}
    ]  # fmt: skip


def test_a_stranger_does_not_and_a_member_may_vouch(house: Lab) -> None:
    status, told = check(house, jobs("b"), "vic-gh")
    assert (status, codes(told, "missing")) == (4, ["MissingAuthority"])
    assert check(house, jobs("b"), "vic-gh", ("lee-gh", "APPROVED"))[0] == 0
    assert check(house, jobs("b"), "vic-gh", ("lee-gh", "APPROVED"), ("lee-gh", "CHANGES_REQUESTED"))[0] == 4
    assert check(house, jobs("b"), "vic-gh", ("lee-gh", "APPROVED"), ("lee-gh", "COMMENTED"))[0] == 0


def test_cancelling_and_suspending_pass_at_once(house: Lab) -> None:
    assert check(house, {job_file("a"): None}, "kim-gh")[1]["express"] is True
    assert check(house, {job_file("a"): job_text("a", more="  suspend: true\n")}, "kim-gh")[1]["express"] is True
    assert check(house, {job_file("a"): None}, "vic-gh")[0] == 4


def test_a_victim_elsewhere_needs_its_queue_s_admin(house: Lab) -> None:
    house.desire(jobs("b", "c", "d"))
    house.desk("two").settle()
    vision = {"cluster-state/jobs/vision/big.yaml": job_text("big", 32).replace("queue: nlp", "queue: vision")}
    status, told = check(house, dict(vision), "vic-gh")
    assert status == 4
    assert set(codes(told, "missing")) == {"ForeignVictim"}
    assert check(house, dict(vision), "vic-gh", ("root-gh", "APPROVED"))[0] == 0
    assert check(house, dict(vision), "vic-gh", ("lee-gh", "APPROVED"))[0] == 4


def test_rules_come_from_the_base(house: Lab) -> None:
    grab = QUEUES.replace('"@acme/nlp"', '"@acme/nlp", "@eve"')
    status, told = check(house, {"cluster-state/queues/tree.yaml": grab, **jobs("b")}, "eve")
    assert status == 4
    assert codes(told, "missing").count("MissingAuthority") == 2
    own = {"policies/a.yaml": "apiVersion: gangops/v1\nkind: Policy\nmetadata: {name: a}\nspec:\n  match: {kinds: [Job]}\n"
           "  validations: [{expression: 'true', reason: A, message: m}]\n"}  # fmt: skip
    assert codes(check(house, {**own, **jobs("b")}, "kim-gh")[1], "missing") == ["MissingAuthority"]


def test_a_policy_of_the_base_asks_whatever_the_head_says(lab: Lab) -> None:
    policy = (
        "apiVersion: gangops/v1\nkind: Policy\nmetadata: {name: a}\nspec:\n  match: {kinds: [Job]}\n  validations:\n"
        "    - {expression: object.spec.gpus < 16, reason: Big, message: m, action: RequireApproval, approvers: ['@lee-gh']}\n"
    )
    lab.begin(**PEOPLE, **{"policies/a.yaml": policy})
    lab.desk().settle()
    assert check(lab, jobs("b"), "kim-gh")[1]["express"] is True
    status, told = check(lab, jobs("b", gpus=16), "kim-gh")
    assert (status, codes(told, "missing")) == (4, ["PolicyAsks"])
    assert check(lab, jobs("b", gpus=16), "kim-gh", ("lee-gh", "APPROVED"))[0] == 0
    assert "PolicyAsks" in codes(check(lab, {**jobs("b", gpus=16), "policies/a.yaml": None}, "kim-gh")[1], "missing")


@pytest.mark.parametrize(
    ("content", "closed"),
    [
        (job_text("b", 24), "AboveLimits"),
        (job_text("b").replace("gpus: 8", "gpus: eight"), "NoPreview"),
        ("not: a job\n", "NoPreview"),
    ],
)
def test_what_cannot_be_judged_is_not_express(house: Lab, content: str, closed: str) -> None:
    status, told = check(house, {job_file("b"): content}, "kim-gh")
    assert status == 4
    assert closed in codes(told, "closed")


def test_without_a_record_nobody_knows_the_victims(lab: Lab) -> None:
    lab.desire({**BASE, **PEOPLE})
    status, told = check(lab, jobs("b"), "kim-gh")
    assert (status, codes(told, "closed")) == (4, ["NoPreview"])


def test_an_approval_is_for_the_head_it_was_given_for() -> None:
    said = [{"user": {"login": "lee"}, "state": "APPROVED", "commit_id": "old"}]
    assert request_of(event("b", "h", "kim"), said).approvers == ()
    assert request_of(
        {**event("b", "h", "kim"), "review": {**said[0], "commit_id": "h", "state": "approved"}}
    ).approvers == ("lee",)


@pytest.mark.parametrize(
    "bad",
    [None, [], {}, {"pull_request": 3}, {"pull_request": {"user": "x"}}, event("", "h", "k"), event("b", "h", "")],
)
def test_an_event_of_something_else_is_refused(bad: object) -> None:
    with pytest.raises(GangOpsError) as refused:
        request_of(bad)
    assert refused.value.code == "BadEvent"


def test_codeowners_of_a_folder(tmp_path: Path) -> None:
    for path, text in {**BASE, **PEOPLE}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    into = tmp_path / ".github" / "CODEOWNERS"
    for arguments, status in ((["--check"], 1), (["--into", str(into)], 0), (["--check"], 0)):
        done = CliRunner().invoke(root, ["-C", str(tmp_path), "codeowners", *arguments], standalone_mode=False)
        assert (done.exception, done.return_value) == (None, status)
    assert into.read_text().rstrip().endswith("/cluster-state/jobs/")
