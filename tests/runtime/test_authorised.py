"""Authority over what is merged already: who may, by the tree decided on before, and what happens to the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.documents.withheld import WITHHELD
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Proof
from reconciler.model.reasons import ReasonCode
from reconciler.runtime.audit.verify import verify
from reconciler.runtime.clone import open_clone
from reconciler.runtime.preview import preview
from reconciler.store.runner import Git
from reconciler.store.signatures import allowed_signers_line, make_key
from tests.runtime.lab import CONFIG, Desk, Lab, job_file, job_text, jobs
from tests.runtime.tampering import Change, Rewriter, replacing
from tests.runtime.test_policies import merged, user
from tests.store.world import MAIN

QUEUES = """\
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {admins: {github: ["@acme/platform"]}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: nlp}
spec: {parent: root, members: {github: ["@acme/nlp"]}, admins: {users: [lea@acme.org]}, limits: {maxPriorityClass: research}}
"""
TREE = "cluster-state/queues/tree.yaml"
PEOPLE = {
    "cluster-state/users/kim.yaml": user("kim", "@acme/nlp"),
    "cluster-state/users/lea.yaml": user("lea"),
    "cluster-state/users/pat.yaml": user("pat", "@acme/platform"),
    "cluster-state/users/eve.yaml": user("eve"),
}


def begun(lab: Lab, **more: str) -> Desk:
    lab.begin(**{TREE: QUEUES, **PEOPLE, **more})
    desk = lab.desk()
    desk.settle()
    return desk


def land(lab: Lab, changes: dict[str, str | None], who: str, message: str = "Change (#7)\n") -> str:
    lab.desire(changes)
    return merged(lab, message, author=who)


def acknowledge(lab: Lab, commit: str, who: str, **how: object) -> str:
    lab.desire()
    return merged(lab, f"Agree (#8)\n\nAcknowledge-Change: {commit[:12]}\n", author=who, **how)  # type: ignore[arg-type]  # keywords of `merged`


def check_replay(lab: Lab) -> None:
    replayed = lab.replayed()
    assert [(done.generation, done.differs, done.why) for done in replayed if not done.identical] == []
    lab.check_chain()


def test_a_member_s_job_runs_and_a_stranger_s_is_held_with_who_may_agree(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, dict(jobs("a")), "kim")
    desk.settle()
    commit = land(lab, dict(jobs("b")), "eve")
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    held = desk.record("b")
    assert (held.state, held.reason.code) == (JobState.HELD, ReasonCode.APPROVAL)
    assert held.reason.number("rule") == "QueueMember"
    assert "@acme/nlp" in str(held.reason.number("approvers"))
    assert f"Acknowledge-Change: {commit[:12]}" in str(held.reason.number("message"))
    assert desk.reconciler.condition.reason == "AuthorityMissing"
    assert desk.reconciler.condition.ready
    assert [fields["file"] for event, fields in desk.told if event == "withheld"] == [job_file("b")]
    status = CliRunner().invoke(root, ["-C", str(lab.remote.path), "status", "--no-fetch"], standalone_mode=False)
    assert f"! {job_file('b')} is not acted on: brought by eve in {commit[:12]}" in status.stdout
    check_replay(lab)


def test_who_has_the_authority_lets_it_through_with_a_trailer(lab: Lab) -> None:
    desk = begun(lab)
    commit = land(lab, dict(jobs("b")), "eve")
    desk.settle()
    acknowledge(lab, commit, "eve")  # by himself: of no use
    desk.settle()
    assert desk.record("b").state is JobState.HELD
    acknowledge(lab, commit, "kim")
    desk.settle()
    assert desk.record("b").state is JobState.RUNNING
    known = lab.generation().observed.provenance[desk.record("b").job]
    assert (known.author.user, [one.user for one in known.approvers]) == ("eve", ["kim"])
    assert WITHHELD not in lab.generation().frozen
    assert desk.reconciler.condition.reason == "Applied"
    check_replay(lab)


@pytest.mark.parametrize(
    ("who", "message", "committer", "state"),
    [
        pytest.param("eve", "Add (#7)\n\nApproved-by: @kim-gh\n", "GitHub <noreply@github.com>", JobState.RUNNING, id="a member approved"),
        pytest.param("kim", "Add\n", "kim <kim@acme.org>", JobState.HELD, id="a member's name that nothing stands behind"),
        pytest.param("pat", "Add (#7)\n", "GitHub <noreply@github.com>", JobState.RUNNING, id="a platform owner"),
        pytest.param("mallory", "Add (#7)\n", "GitHub <noreply@github.com>", JobState.HELD, id="nobody we know"),
    ],
)  # fmt: skip
def test_authority_comes_from_author_or_approvers_as_far_as_proven(
    lab: Lab, who: str, message: str, committer: str, state: JobState
) -> None:
    desk = begun(lab)
    lab.desire(dict(jobs("a")))
    merged(lab, message, author=who, committer=committer)
    desk.settle()
    assert desk.record("a").state is state
    check_replay(lab)


def test_a_job_that_was_never_valid_is_not_admitted_by_a_restart(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, {job_file("a"): job_text("a", more="  priorityClass: production\n")}, "lea")
    desk.settle()
    assert desk.record("a").reason.code is ReasonCode.INVALID
    again = lab.desk("two", desk.engine.cluster)
    again.settle()
    land(lab, {job_file("b"): job_text("b")}, "kim")
    again.settle()
    assert again.record("a").reason.code is ReasonCode.INVALID
    check_replay(lab)


def test_a_stranger_s_edit_leaves_what_runs_as_it_was(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, dict(jobs("a")), "kim")
    desk.settle()
    attempt, digest = desk.record("a").attempt, desk.record("a").digest
    land(lab, {job_file("a"): job_text("a", 16)}, "eve")
    desk.settle()
    assert (desk.record("a").state, desk.record("a").attempt, desk.record("a").digest) == (
        JobState.RUNNING,
        attempt,
        digest,
    )
    assert lab.generation().frozen[job_file("a")].decode() == job_text("a")
    told = desk.reconciler.last
    assert told is not None
    assert [d.place.file for d in told.desired.diagnostics if d.code == "AuthorityMissing"] == [job_file("a")]
    # The member takes the same content over: another commit that touches the file.
    land(lab, {job_file("a"): job_text("a", 16, more="  nice: 0\n")}, "kim")
    desk.settle()
    assert (desk.record("a").state, desk.record("a").digest == digest) == (JobState.RUNNING, False)
    check_replay(lab)


def test_a_stranger_s_removal_stops_nobody_and_its_revert_needs_nobody(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, dict(jobs("a")), "kim")
    desk.settle()
    land(lab, {job_file("a"): None}, "eve")
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    assert list(lab.generation().frozen) == [job_file("a"), WITHHELD]
    desk.reconciler = lab.desk("two", desk.engine.cluster).reconciler  # nothing of it is in memory alone
    assert desk.settle() == []
    assert desk.record("a").state is JobState.RUNNING
    land(lab, dict(jobs("a")), "eve")
    desk.settle()
    assert lab.generation().frozen == {}
    assert desk.record("a").attempt == 1
    check_replay(lab)


def test_a_cluster_file_without_authority_counts_as_before_and_nothing_is_admitted(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, dict(jobs("a")), "kim")
    desk.settle()
    opened = QUEUES.replace('["@acme/nlp"]', '["@acme/nlp", "@eve-gh"]')
    commit = land(lab, {TREE: opened, **jobs("b")}, "eve")
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    assert desk.record("b").reason.code is ReasonCode.APPROVAL  # the rule he brought along does not let him in
    land(lab, dict(jobs("c")), "kim")
    desk.settle()
    assert desk.record("c").reason.code is ReasonCode.ADMISSIONS_FROZEN
    assert desk.record("c").reason.number("file") == TREE
    acknowledge(lab, commit, "pat")
    desk.settle()
    assert [desk.record(name).state for name in "abc"] == [JobState.RUNNING] * 3
    check_replay(lab)


def test_a_new_cluster_file_without_authority_is_left_out(lab: Lab) -> None:
    desk = begun(lab)
    path = "policies/house.yaml"
    land(lab, {path: "apiVersion: gangops/v1\nkind: Policy\nmetadata: {name: house}\nspec: {match: {kinds: [Job]}, "
               "validations: [{expression: 'false', reason: Never, message: no}]}\n"}, "kim")  # fmt: skip
    desk.settle()
    assert desk.reconciler.last is not None
    assert desk.reconciler.last.desired.verdicts is None
    check_replay(lab)


def test_signatures_may_be_required_of_every_commit(lab: Lab, tmp_path: Path) -> None:
    key = make_key(tmp_path / "k" / "kim", "kim")
    strict = CONFIG.replace("spec: {}", "spec: {repository: {requireSignedDesired: true}}")
    people = {"cluster-state/users/kim.yaml": user("kim", "@acme/nlp", key=key.public_key())}
    desk = begun(lab, **{"cluster-state/cluster.yaml": strict, **people})
    lab.desire(dict(jobs("a")))
    merged(lab, "Add (#7)\n", author="kim")  # the forge's word is not enough
    done = desk.round()
    assert done.held is not None
    assert (done.held.code, desk.reconciler.condition.stalled) == ("UnsignedDesired", True)
    assert "nlp/a" not in lab.generation().allocation.jobs
    lab.desire(dict(jobs("b")))
    merged(lab, "Both\n", author="kim", committer="kim <kim@acme.org>", key=key)
    desk.settle()
    assert desk.record("b").state is JobState.RUNNING
    # The commit that brought it is not signed; the tip is. So it waits for a word of its own.
    assert desk.record("a").reason.code is ReasonCode.APPROVAL
    land(lab, {job_file("a"): job_text("a", more="  nice: 1\n")}, "kim")
    merged(lab, "Again\n", author="kim", committer="kim <kim@acme.org>", key=key)
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    known = lab.generation().observed.provenance[desk.record("a").job]
    assert known.proven is Proof.SIGNATURE
    check_replay(lab)


def test_requiring_signatures_begins_with_a_signed_commit(lab: Lab) -> None:
    lab.begin()
    desk = lab.desk()
    desk.settle()
    lab.desire({"cluster-state/cluster.yaml": CONFIG.replace("{}", "{repository: {requireSignedDesired: true}}")})
    held = desk.round().held
    assert held is not None
    assert held.code == "UnsignedDesired"


def test_what_a_cluster_without_names_does_is_not_asked_about(lab: Lab) -> None:
    lab.begin()
    desk = lab.desk()
    desk.settle()
    lab.desire(dict(jobs("a")))  # by nobody, proven by nothing
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    assert lab.generation().frozen == {}


def test_it_can_be_switched_off_by_who_may_and_by_nobody_else(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, dict(jobs("a")), "eve")
    desk.settle()
    off = CONFIG.replace("{}", "{repository: {authority: 'off'}}")
    land(lab, {"cluster-state/cluster.yaml": off}, "eve")
    desk.settle()
    assert desk.record("a").state is JobState.HELD
    land(lab, {"cluster-state/cluster.yaml": off + "# \n"}, "pat")
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    check_replay(lab)


def test_a_preview_holds_back_what_the_reconciler_holds_back(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, dict(jobs("b")), "eve")
    desk.settle()
    base = lab.remote.tip(MAIN)
    head = lab.desire(dict(jobs("a")))
    plan = preview(open_clone(lab.remote.path), head, lab.clock.now(), base=base)
    assert [(row.job, row.step.value) for row in plan.rows] == [("nlp/a", "place")]


def test_the_verdict_is_made_again_from_the_recorded_facts(lab: Lab) -> None:
    desk = begun(lab)
    land(lab, dict(jobs("b")), "eve")
    desk.settle()
    record = f"frozen/{WITHHELD}"
    Rewriter(lab).rewrite(1, Change(files=replacing(record, b"eve@acme.org", b"lea@acme.org")))  # who may
    (found,) = [done for done in lab.replayed() if done.generation == 1]
    assert "allocation/jobs/nlp/b.yaml" in found.differs


def test_the_audit_takes_withheld_changes_as_they_are(lab: Lab) -> None:
    signers = allowed_signers_line("gangops@lab", lab.writer.signer.public_key())
    desk = begun(lab, **{"cluster-state/trust/allowed_signers": signers})
    land(lab, dict(jobs("a")), "kim")
    desk.settle()
    commit = land(lab, {job_file("a"): None, TREE: QUEUES + "---\n"}, "eve")
    desk.settle()
    acknowledge(lab, commit, "pat")
    desk.settle()
    access = Git(folder=lab.remote.path, bare=True, protocols=frozenset({"file"}))
    result = verify(access, lab.tip, signers=signers.encode())
    assert [str(finding) for finding in result.findings] == []
    assert len(result.judged) == len(lab.log())
