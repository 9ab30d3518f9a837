"""Who may change what, and when nobody else has to look: the tables of the rule."""

from __future__ import annotations

import pytest

from reconciler.documents.cache import ParseCache
from reconciler.documents.check import Item
from reconciler.documents.judged import only_job, read_files
from reconciler.documents.layout import key_of
from reconciler.model.observed import Person
from reconciler.model.units import JobKey
from reconciler.policy.approval import Approval, Objection, Proposal, approval_of
from reconciler.policy.authority import Cause, Change, Need, Ruling, person_of, rulings
from reconciler.policy.codeowners import codeowners
from reconciler.policy.rules import Action, Finding
from tests.documents.trees import sources, starter
from tests.policy.house import person, rules_of

QUEUES = """\
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {admins: {github: ["@acme/platform"]}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: nlp}
spec:
  parent: root
  members: {github: ["@acme/nlp"], users: [guest@acme.org]}
  admins: {github: ["@lead"]}
  limits: {timeLimit: 24h, gpusPerJob: 16, maxPriorityClass: research}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: inner}
spec: {parent: nlp}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: vision}
spec: {parent: root, members: {github: ["@acme/vision"]}, admins: {github: ["@seer"]}}
"""
CLASSES = """\
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: production}
spec: {value: 1000}
---
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: research}
spec: {value: 500, default: true}
"""
USERS = """\
apiVersion: gangops/v1
kind: User
metadata: {name: kim}
spec: {emails: [kim@acme.org, kim@home.net], github: kim-gh, teams: ["@acme/nlp"]}
"""
BASE = {
    **{path: text for path, text in starter().items() if "/jobs/" not in path and "/policies" not in path},
    "cluster-state/queues/tree.yaml": QUEUES,
    "cluster-state/priorities/classes.yaml": CLASSES,
    "cluster-state/users/team.yaml": USERS,
}
RULES = rules_of(BASE)
MEMBER, PEER = person("kim", "@acme/nlp"), person("lee", "@acme/nlp")
LEAD, SEER, OWNER = person("lead"), person("seer"), person("root", "@acme/platform")
STRANGER = person("eve")
JOB = "cluster-state/jobs/nlp/a.yaml"


def job(path: str = JOB, **spec: object) -> Item:
    key = key_of(path)
    assert key is not None
    queue, name = key.split("/")
    lines = "".join(f"  {field}: {value}\n" for field, value in {"gpus": 8, "timeLimit": "1h", **spec}.items())
    text = f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  queue: {queue}\n{lines}  run: {{command: [a]}}\n"
    found = only_job(read_files(sources({path: text}), ParseCache()).checked[path])
    assert found is not None, text
    return found


def ruled(change: Change, *people: Person) -> list[tuple[str, str, bool]]:
    return [(r.need.value, r.cause.value, r.granted) for r in rulings(RULES, [change], people)]


@pytest.mark.parametrize(
    ("change", "who", "expected"),
    [
        pytest.param(Change(path=JOB, after=job()), MEMBER, [("QueueMember", "JobChanged", True)], id="a member"),
        pytest.param(Change(path=JOB, after=job()), STRANGER, [("QueueMember", "JobChanged", False)], id="a stranger"),
        pytest.param(Change(path=JOB, after=job()), LEAD, [("QueueMember", "JobChanged", True)], id="an admin is a member"),
        pytest.param(Change(path=JOB, after=job()), OWNER, [("QueueMember", "JobChanged", True)], id="and so is an owner"),
        pytest.param(
            Change(path=JOB, after=job()), Person(email="guest@acme.org"), [("QueueMember", "JobChanged", True)], id="by address"
        ),
        pytest.param(
            Change(path="cluster-state/jobs/inner/b.yaml", after=job("cluster-state/jobs/inner/b.yaml")), MEMBER,
            [("QueueMember", "JobChanged", True)], id="members count in queues inside",
        ),
        pytest.param(
            Change(path="cluster-state/jobs/vision/b.yaml", after=job("cluster-state/jobs/vision/b.yaml")), MEMBER,
            [("QueueMember", "JobChanged", False)], id="and not beside",
        ),
        pytest.param(Change(path=JOB, before=job(), removed=True), MEMBER, [("QueueMember", "JobRemoved", True)], id="removing"),
        pytest.param(
            Change(path=JOB, before=job(), after=job(suspend="true")), MEMBER, [("QueueMember", "JobSuspended", True)], id="suspending"
        ),
        pytest.param(
            Change(path=JOB, before=job(), after=job(suspend="true", gpus=16)), MEMBER,
            [("QueueMember", "JobChanged", True)], id="suspending and more is a change",
        ),
        pytest.param(Change(path=JOB, after=None), MEMBER, [("QueueMember", "UnreadableJob", True)], id="unreadable"),
        pytest.param(
            Change(path=JOB, before=job(), after=job(priorityClass="production")), MEMBER,
            [("QueueMember", "JobChanged", True), ("QueueAdmin", "AbovePriorityCeiling", False)], id="above the ceiling",
        ),
        pytest.param(
            Change(path=JOB, before=job(), after=job(priorityClass="production")), LEAD,
            [("QueueMember", "JobChanged", True), ("QueueAdmin", "AbovePriorityCeiling", True)], id="by an admin",
        ),
        pytest.param(
            Change(path=JOB, before=job(priorityClass="production"), after=job(priorityClass="production", nice=3)), MEMBER,
            [("QueueMember", "JobChanged", True)], id="what was above before counts once",
        ),
        pytest.param(
            Change(path=JOB, after=job(gpus=24)), MEMBER,
            [("QueueMember", "JobChanged", True), ("QueueAdmin", "AboveQueueLimit", False)], id="too many GPUs",
        ),
        pytest.param(
            Change(path=JOB, after=job(timeLimit="25h")), MEMBER,
            [("QueueMember", "JobChanged", True), ("QueueAdmin", "AboveQueueLimit", False)], id="too long",
        ),
        pytest.param(
            Change(path=JOB, after=job(timeLimit="unlimited")), MEMBER,
            [("QueueMember", "JobChanged", True), ("QueueAdmin", "AboveQueueLimit", False)], id="for ever",
        ),
        pytest.param(
            Change(path="cluster-state/jobs/new/a.yaml", after=job("cluster-state/jobs/new/a.yaml")), MEMBER,
            [("PlatformOwner", "JobChanged", False)], id="a queue that the base does not have",
        ),
        pytest.param(Change(path="README.md"), MEMBER, [("Elsewhere", "OtherFile", True)], id="elsewhere"),
    ],
)  # fmt: skip
def test_jobs(change: Change, who: Person, expected: list[tuple[str, str, bool]]) -> None:
    assert ruled(change, who) == expected


@pytest.mark.parametrize(
    "path",
    [
        "cluster-state/cluster.yaml", "cluster-state/fabric/a.yaml", "cluster-state/inventory/a.yaml",
        "cluster-state/queues/nlp.yaml", "cluster-state/priorities/a.yaml", "cluster-state/maintenance/a.yaml",
        "cluster-state/users/a.yaml", "cluster-state/trust/allowed_signers", "policies/base.yaml",
        "cluster-state/jobs/README", "cluster-state/jobs/nlp/deep/a.yaml",
    ],
)  # fmt: skip
def test_what_defines_the_cluster_takes_an_owner(path: str) -> None:
    assert ruled(Change(path=path), MEMBER, LEAD) == [("PlatformOwner", "ClusterFile", False)]
    assert ruled(Change(path=path), OWNER) == [("PlatformOwner", "ClusterFile", True)]


def test_people_are_found_by_login_and_by_any_address() -> None:
    for known in (person_of(RULES.documents, login="KIM-gh"), person_of(RULES.documents, email="Kim@home.net")):
        assert (known.user, known.login, known.teams) == ("kim", "kim-gh", ("@acme/nlp",))
    assert person_of(RULES.documents, login="eve") == Person(login="eve")
    assert person_of(RULES.documents) == Person()


# --- without a second person ---


def verdict(
    *changes: Change,
    author: Person = MEMBER,
    approvers: tuple[Person, ...] = (),
    victims: tuple[str, ...] | None = (),
    findings: tuple[Finding, ...] = (),
) -> Approval:
    found = None if victims is None else tuple((JobKey(v), RULES.admins(v.partition("/")[0])) for v in victims)
    return approval_of(
        Proposal(
            author=author,
            approvers=approvers,
            rulings=rulings(RULES, changes, (author, *approvers)),
            victims=found,
            findings=tuple((JOB, finding) for finding in findings),
        )
    )


def told(approval: Approval) -> tuple[bool, bool, set[Objection], set[Objection]]:
    return (
        approval.passed,
        approval.express,
        {reason.objection for reason in approval.closed},
        {reason.objection for reason in approval.missing},
    )


NEW = Change(path=JOB, after=job())
ASKS = Finding(policy="p", rule="R", action=Action.REQUIRE_APPROVAL, message="m", approvers=("@acme/release",))
RELEASE = person("ana", "@acme/release", "@acme/nlp")


def test_a_member_changes_own_jobs_alone() -> None:
    assert told(verdict(NEW)) == (True, True, set(), set())
    assert told(verdict(NEW, victims=("nlp/other",))) == (True, True, set(), set())
    warns = Finding(policy="p", rule="R", action=Action.WARN, message="m")
    assert told(verdict(NEW, findings=(warns,))) == (True, True, set(), set())


@pytest.mark.parametrize(
    ("approval", "closed", "missing"),
    [
        pytest.param(verdict(NEW, author=STRANGER), Objection.NOT_A_MEMBER, Objection.MISSING_AUTHORITY, id="no member"),
        pytest.param(verdict(NEW, victims=("vision/x",)), Objection.FOREIGN_VICTIM, Objection.FOREIGN_VICTIM, id="a victim elsewhere"),
        pytest.param(verdict(NEW, victims=None), Objection.NO_PREVIEW, Objection.NO_SECOND_PERSON, id="no preview"),
        pytest.param(verdict(NEW, findings=(ASKS,)), Objection.POLICY_ASKS, Objection.POLICY_ASKS, id="a policy asks"),
        pytest.param(
            verdict(NEW, findings=(Finding(policy="p", rule="R", action=Action.DENY, message="m"),)),
            Objection.POLICY_DENIES, Objection.POLICY_DENIES, id="a policy denies",
        ),
        pytest.param(verdict(NEW, Change(path="README.md")), Objection.OTHER_PATHS, Objection.NO_SECOND_PERSON, id="another path"),
        pytest.param(
            verdict(NEW, Change(path="policies/a.yaml")), Objection.OTHER_PATHS, Objection.MISSING_AUTHORITY, id="a policy with it"
        ),
        pytest.param(
            verdict(Change(path=JOB, after=job(gpus=24))), Objection.ABOVE_LIMITS, Objection.MISSING_AUTHORITY, id="too large"
        ),
        pytest.param(
            verdict(Change(path=JOB, after=job(gpus=24)), author=LEAD), Objection.ABOVE_LIMITS, Objection.NO_SECOND_PERSON,
            id="an admin alone",
        ),
        pytest.param(
            verdict(Change(path="policies/a.yaml"), author=OWNER), Objection.OTHER_PATHS, Objection.NO_SECOND_PERSON, id="an owner alone"
        ),
        pytest.param(verdict(NEW, author=Person()), Objection.UNKNOWN_AUTHOR, Objection.MISSING_AUTHORITY, id="nobody"),
    ],
)  # fmt: skip
def test_the_express_lane_is_closed(approval: Approval, closed: Objection, missing: Objection) -> None:
    passed, express, why, lacks = told(approval)
    assert (passed, express) == (False, False)
    assert closed in why
    assert missing in lacks


@pytest.mark.parametrize(
    "approval",
    [
        pytest.param(verdict(NEW, author=STRANGER, approvers=(PEER,)), id="a member for a stranger"),
        pytest.param(verdict(NEW, victims=("vision/x",), approvers=(SEER,)), id="the admin of the victim's queue"),
        pytest.param(verdict(NEW, victims=None, approvers=(PEER,)), id="a peer where nothing can be foreseen"),
        pytest.param(verdict(NEW, findings=(ASKS,), approvers=(RELEASE,)), id="whom the policy names"),
        pytest.param(verdict(Change(path=JOB, after=job(gpus=24)), approvers=(LEAD,)), id="an admin above the limits"),
        pytest.param(
            verdict(Change(path=JOB, after=job(gpus=24)), author=LEAD, approvers=(PEER,)), id="an admin and a peer"
        ),
        pytest.param(
            verdict(Change(path="policies/a.yaml"), author=STRANGER, approvers=(OWNER,)), id="an owner for a stranger"
        ),
        pytest.param(verdict(Change(path="README.md"), approvers=(STRANGER,)), id="elsewhere the forge's rules hold"),
    ],
)
def test_with_the_right_second_person(approval: Approval) -> None:
    assert (approval.passed, approval.express, approval.missing) == (True, False, ())


@pytest.mark.parametrize(
    "approval",
    [
        pytest.param(verdict(NEW, victims=("vision/x",), approvers=(PEER,)), id="a peer says nothing for the victim"),
        pytest.param(verdict(NEW, findings=(ASKS,), approvers=(PEER,)), id="a peer for what release has to say"),
        pytest.param(verdict(NEW, findings=(ASKS,), author=RELEASE, approvers=(RELEASE,)), id="oneself"),
        pytest.param(verdict(Change(path="policies/a.yaml"), author=OWNER, approvers=(OWNER,)), id="an owner twice"),
        pytest.param(
            verdict(Change(path="policies/a.yaml"), NEW, author=OWNER, approvers=(PEER,)), id="a peer for an owner"
        ),
        pytest.param(verdict(NEW, victims=None, approvers=(STRANGER,)), id="a stranger"),
    ],
)
def test_with_the_wrong_second_person(approval: Approval) -> None:
    assert not approval.passed
    assert approval.missing


@pytest.mark.parametrize(
    "change", [Change(path=JOB, before=job(), removed=True), Change(path=JOB, before=job(), after=job(suspend="true"))]
)
def test_reducing_own_work_passes_at_once(change: Change) -> None:
    denied = Finding(policy="p", rule="R", action=Action.DENY, message="m")
    for found in (
        verdict(change, victims=None),
        verdict(change, victims=("vision/x",)),
        verdict(change, findings=(ASKS, denied)),
    ):
        assert told(found) == (True, True, set(), set())
    assert not verdict(change, author=STRANGER).passed


def test_an_empty_proposal_disturbs_nobody() -> None:
    assert verdict().express


def test_codeowners_leaves_jobs_out_and_matches_last() -> None:
    lines = [line.split() for line in codeowners(RULES).decode().splitlines() if line and not line.startswith("#")]
    assert lines[0] == ["*", "@acme/platform"]
    assert ["/policies/", "@acme/platform"] in lines
    assert ["/cluster-state/trust/", "@acme/platform"] in lines
    assert lines[-1] == ["/cluster-state/jobs/"]


def test_needs_and_causes_are_told_with_who_could_agree() -> None:
    (first, second) = rulings(RULES, [Change(path=JOB, after=job(gpus=24))], [STRANGER])
    assert isinstance(first, Ruling)
    assert (first.need, first.who) == (Need.QUEUE_MEMBER, ("@acme/nlp", "guest@acme.org", "@lead", "@acme/platform"))
    assert (second.cause, second.who) == (Cause.ABOVE_QUEUE_LIMIT, ("@lead", "@acme/platform"))
