"""Policies in the whole loop: what is denied is held, what is approved runs, and a replay comes to the same."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.documents.record import OBSERVED_PROVENANCE
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Person, Proof
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import MINUTE, JobKey
from reconciler.runtime.generation import Inputs, next_generation
from reconciler.runtime.reading import DesiredReader
from reconciler.store.signatures import Signer, make_key
from tests.policy.house import policy_text, rule
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import MAIN, git

POLICY = "policies/house.yaml"
KEY = JobKey("nlp/a")
ASKS = policy_text(
    rule(
        "object.spec.priorityClass != 'production'",
        action="RequireApproval",
        approvers="['@acme/release']",
        reason="Ask",
    )
)
PRODUCTION = job_text("a", more="  priorityClass: production\n")
ROOT = Path(__file__).parents[2]


def user(name: str, *teams: str, key: str = "") -> str:
    keys = f", sshKeys: ['{key}']" if key else ""
    return (
        f"apiVersion: gangops/v1\nkind: User\nmetadata: {{name: {name}}}\n"
        f"spec: {{emails: [{name}@acme.org], github: {name}-gh, teams: [{', '.join(repr(t) for t in teams)}]{keys}}}\n"
    )


USERS = {
    "cluster-state/users/kim.yaml": user("kim", "@acme/nlp"),
    "cluster-state/users/ana.yaml": user("ana", "@acme/release"),
}


def merged(
    lab: Lab,
    message: str,
    author: str = "kim",
    committer: str = "GitHub <noreply@github.com>",
    key: Signer | None = None,
) -> str:
    """The tip of main made anew as a person or a forge would have made it."""
    folder = lab.remote.path
    tip = lab.remote.tip(MAIN)
    assert tip is not None
    raw = git(folder, "cat-file", "commit", tip).decode()
    head = [line for line in raw.partition("\n\n")[0].splitlines() if line.startswith(("tree", "parent"))]
    head += [f"author {author} <{author}@acme.org> 1700000000 +0000", f"committer {committer} 1700000000 +0000"]
    body = "\n".join(head) + "\n\n" + message
    if key is not None:
        signature = key.sign(body.encode()).rstrip("\n").replace("\n", "\n ")
        body = "\n".join([*head, f"gpgsig {signature}"]) + "\n\n" + message
    made = git(folder, "hash-object", "-t", "commit", "-w", "--stdin", stdin=body.encode()).decode().strip()
    git(folder, "update-ref", MAIN, made)
    return made


def test_a_denied_job_is_held_with_the_rule_and_its_words(lab: Lab) -> None:
    lab.begin(
        **{POLICY: policy_text(rule("object.spec.gpus != 16", reason="Not16")), **jobs("a", gpus=16), **jobs("b")}
    )
    desk = lab.desk()
    desk.settle()
    held = desk.record("a")
    assert (held.state, held.reason.code) == (JobState.HELD, ReasonCode.POLICY)
    assert [held.reason.number(name) for name in ("policy", "rule", "message")] == ["house", "Not16", "no"]
    assert desk.record("b").state is JobState.RUNNING
    lab.desire({job_file("a"): job_text("a", 8)})
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    assert all(done.identical for done in lab.replayed())


def test_a_policy_that_comes_later_stops_nobody_who_runs(lab: Lab) -> None:
    lab.begin(**jobs("a"))
    desk = lab.desk()
    desk.settle()
    lab.desire({POLICY: policy_text(rule("false")), **jobs("b")})
    desk.settle()
    assert (desk.record("a").state, desk.record("b").state) == (JobState.RUNNING, JobState.HELD)
    lab.desire({POLICY: None})
    desk.settle()
    assert desk.record("b").state is JobState.RUNNING
    assert all(done.identical for done in lab.replayed())


def test_a_policy_that_does_not_compile_denies_and_is_told(lab: Lab) -> None:
    lab.begin(**{POLICY: policy_text(rule("object.spec.gpus =")), **jobs("a")})
    desk = lab.desk()
    done = desk.round()
    assert [d.code for d in done.desired.diagnostics if d.is_error] == ["BadExpression"]
    assert desk.record("a").reason.code is ReasonCode.POLICY
    assert desk.reconciler.condition.reason == "InvalidDocuments"


def test_a_policy_over_plans_holds_the_last_that_started(lab: Lab) -> None:
    lab.begin(
        **{
            POLICY: policy_text(rule("plan.placed.size() <= 1", reason="OneByOne"), match="kinds: [Plan]"),
            **jobs("a", "b"),
        }
    )
    desk = lab.desk()
    desk.round()
    assert (desk.record("a").state, desk.record("b").reason.code) == (JobState.STARTING, ReasonCode.POLICY_PLAN)
    desk.settle()
    assert (desk.record("a").state, desk.record("b").state) == (JobState.RUNNING, JobState.RUNNING)
    assert all(done.identical for done in lab.replayed())


@pytest.mark.parametrize(
    ("message", "committer", "approvers", "proven", "state"),
    [
        pytest.param("Add a (#7)\n\nApproved-by: @ana-gh\n", "GitHub <noreply@github.com>", ["ana"], Proof.FORGE, JobState.RUNNING, id="approved"),
        pytest.param("Add a (#7)\n\nReviewed-by: Ana <ana@acme.org>\n", "GitHub <noreply@github.com>", ["ana"], Proof.FORGE, JobState.RUNNING, id="by address"),
        pytest.param("Add a (#7)\n", "GitHub <noreply@github.com>", [], Proof.FORGE, JobState.HELD, id="nobody agreed"),
        pytest.param("Add a (#7)\n\nApproved-by: @kim-gh\n", "GitHub <noreply@github.com>", [], Proof.FORGE, JobState.HELD, id="the author alone"),
        pytest.param("Add a (#7)\n\nApproved-by: @ana-gh\n", "kim <kim@acme.org>", [], Proof.NONE, JobState.HELD, id="past the forge"),
    ],
)  # fmt: skip
def test_approval_from_the_forge_s_merge_commit(
    lab: Lab, message: str, committer: str, approvers: list[str], proven: Proof, state: JobState
) -> None:
    lab.begin(**{POLICY: ASKS, **USERS})
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("a"): PRODUCTION})
    made = merged(lab, message, committer=committer)
    desk.settle()
    assert desk.record("a").state is state
    if state is JobState.HELD:
        assert desk.record("a").reason.code is ReasonCode.APPROVAL
    known = lab.generation().observed.provenance[KEY]
    assert (known.commit, known.author.user, known.pull_request, known.proven) == (made, "kim", "7", proven)
    assert [person.user for person in known.approvers] == approvers
    assert all(done.identical for done in lab.replayed())


def test_a_signature_proves_who_made_a_commit(lab: Lab, tmp_path: Path) -> None:
    mine, other = make_key(tmp_path / "k" / "ana", "ana"), make_key(tmp_path / "k" / "other", "other")
    users = {**USERS, "cluster-state/users/ana.yaml": user("ana", "@acme/release", key=mine.public_key())}
    lab.begin(**{POLICY: policy_text(rule("author.teams.exists(t, t == 'acme/release')")), **users})
    desk = lab.desk()
    desk.settle()
    lab.desire(jobs("a", "b"))
    merged(lab, "By Ana\n", author="kim", committer="kim <kim@acme.org>", key=mine)
    lab.desire(jobs("c"))
    merged(lab, "By somebody\n", author="ana", committer="ana <ana@acme.org>", key=other)
    desk.settle()
    assert [desk.record(name).state for name in "abc"] == [JobState.RUNNING, JobState.RUNNING, JobState.HELD]
    known = lab.generation().observed.provenance
    assert (known[KEY].proven, known[KEY].author) == (
        Proof.SIGNATURE, Person(user="ana", email="ana@acme.org", login="ana-gh", teams=("@acme/release",)),
    )  # fmt: skip
    assert known[JobKey("nlp/c")].proven is Proof.NONE


def test_nobody_brings_his_own_approval_along(lab: Lab) -> None:
    lab.begin(**{POLICY: ASKS, **USERS})
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("a"): PRODUCTION, "cluster-state/users/kim.yaml": user("kim", "@acme/nlp", "@acme/release"),
                "cluster-state/users/eve.yaml": user("eve", "@acme/release")})  # fmt: skip
    merged(lab, "Add a (#8)\n\nApproved-by: @eve-gh\n")
    desk.settle()
    assert desk.record("a").reason.code is ReasonCode.APPROVAL
    assert lab.generation().observed.provenance[KEY].approvers == (Person(login="eve-gh"),)


def test_an_approval_does_not_cover_a_later_edit(lab: Lab) -> None:
    lab.begin(**{POLICY: ASKS, **USERS, job_file("a"): job_text("a", more="  suspend: true\n")})
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("a"): PRODUCTION + "  suspend: true\n"})
    merged(lab, "Raise (#9)\n\nApproved-by: @ana-gh\n")
    desk.settle()
    lab.desire({job_file("a"): PRODUCTION})
    merged(lab, "Resume (#10)\n")
    desk.settle()
    assert desk.record("a").reason.code is ReasonCode.APPROVAL
    assert lab.generation().observed.provenance[KEY].pull_request == "10"


def test_provenance_is_written_once_and_goes_with_the_job(lab: Lab) -> None:
    lab.begin(**USERS, **jobs("a", "b"))
    desk = lab.desk()
    desk.settle()
    path = f"{OBSERVED_PROVENANCE}nlp/a.yaml"
    log = git(lab.remote.path, "log", "--format=%H", lab.tip, "--", path).decode().split()
    assert len(log) == 1
    lab.desire({job_file("a"): None})
    desk.settle()
    lab.clock.advance(6 * MINUTE)  # the decision that buried it had it as an input; the next commit does without
    desk.settle()
    assert list(lab.generation().observed.provenance) == ["nlp/b"]


_REPLAY = """
import sys
from pathlib import Path
from reconciler.runtime.replay import replay
from reconciler.store.runner import Git
git = Git(folder=Path(sys.argv[1]), bare=True, protocols=frozenset({"file"}))
print([(done.generation, done.differs, done.why) for done in replay(git, sys.argv[2])])
"""


def test_another_process_with_another_hash_seed_comes_to_the_same(lab: Lab) -> None:
    order = policy_text(
        "{expression: 'object.metadata.labels.size() == 0', reason: Labels, "
        'messageExpression: "object.metadata.labels.map(k, k)[0] + object.metadata.labels.map(k, k)[1]"}'
    )
    labels = ", ".join(f"{letter}: x" for letter in "qwertzuiopasdfg")
    text = job_text("a").replace("{name: a}", f"{{name: a, labels: {{{labels}}}}}")
    lab.begin(**{POLICY: order, job_file("a"): text})
    desk = lab.desk()
    desk.settle()
    assert desk.record("a").reason.number("message") == "ad"
    said = set()
    for seed in ("0", "3", "42"):
        done = subprocess.run(
            [sys.executable, "-c", _REPLAY, str(lab.remote.path), lab.tip], cwd=ROOT, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        said.add(done.stdout)
    assert len(said) == 1
    rows = ast.literal_eval(said.pop())
    assert [(differs, why) for _, differs, why in rows] == [((), "")] * len(lab.replayed())


def test_a_preview_of_an_edit_does_not_ride_on_the_approval_of_what_was_merged(lab: Lab) -> None:
    lab.begin(**{POLICY: ASKS, **USERS})
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("a"): PRODUCTION + "  suspend: true\n"})
    merged(lab, "Add (#9)\n\nApproved-by: @ana-gh\n")
    desk.settle()
    current = lab.generation()
    head = lab.desire({job_file("a"): PRODUCTION})
    read = DesiredReader(lab.remote.git).read(head, current)
    assert read.desired is not None
    following = next_generation(
        Inputs(
            desired=read.desired, read=read.read, frozen=read.frozen, observed=current.observed, previous=current,
            now=lab.clock.now(), trigger="preview", verdicts=read.verdicts,
        )
    )  # fmt: skip
    assert following.allocation.jobs[KEY].reason.code is ReasonCode.APPROVAL
    assert list(following.inputs.desired.policy) == [KEY]
