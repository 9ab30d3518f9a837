"""Weeks of real git: branches merged and reverted in a clone, as people do it, and what becomes of the jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import DAY, MINUTE, JobKey
from reconciler.store.signatures import make_key
from tests.cli.people import Person, person_at
from tests.runtime.lab import QUEUES, Desk, Lab, job_file, job_text, jobs
from tests.store.world import git, text

KEPT = job_text("a", more="  checkpoint: {dir: /fs/ckpt/a, every: 30m}\n")


@dataclass
class House:
    """Ada and her clone, a reconciler, and the cluster's nodes."""

    ada: Person
    desk: Desk

    @property
    def lab(self) -> Lab:
        return self.ada.lab

    def git(self, *words: str, who: str = "Ada <ada@example.org>") -> str:
        """In the clone, on its branch main, as somebody."""
        name, _, email = who.rstrip(">").partition(" <")
        person = ("-c", f"user.name={name}", "-c", f"user.email={email}")
        return git(self.ada.clone, *person, *words).decode().strip()

    def merge(self, branch: str, why: str) -> str:
        """What the forge's button does, and a pull of what it made."""
        self.git("fetch", "-q", "origin")
        self.git("checkout", "-q", "-B", "main", "origin/main")
        self.git("merge", "-q", "--no-ff", "-m", why, f"origin/{branch}")
        return self.push()

    def push(self) -> str:
        self.git("push", "-q", "origin", "main")
        self.lab.files = {
            path: git(self.lab.remote.path, "show", f"main:{path}").decode()
            for path in text(self.lab.remote.path, "ls-tree", "-r", "--name-only", "main").splitlines()
        }
        return text(self.lab.remote.path, "rev-parse", "main")

    def revert(self, merge: str) -> str:
        """`git revert` of a merge, pushed."""
        self.git("fetch", "-q", "origin")
        self.git("checkout", "-q", "-B", "main", "origin/main")
        self.git("revert", "--no-edit", "-m", "1", merge)
        return self.push()

    def check(self) -> None:
        assert [(one.generation, one.differs, one.why) for one in self.lab.replayed() if not one.identical] == []
        self.lab.check_chain()


def house(lab: Lab, monkeypatch: pytest.MonkeyPatch, **files: str) -> House:
    monkeypatch.setattr("time.time_ns", lab.clock.now)
    lab.begin(**files)
    desk = lab.desk()
    desk.settle()
    return House(person_at(lab, monkeypatch, url=str(lab.remote.path)), desk)


def test_other_code_runs_nothing_again_but_a_rerun_does(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    at = house(lab, monkeypatch, **{**jobs("a"), "src/train.py": "lr = 1\n"})
    at.desk.engine.cluster.finish("nlp/a", 0)
    at.desk.settle()
    first = at.desk.record("a")
    assert first.outcome is Outcome.SUCCEEDED
    at.git("pull", "-q", "origin", "main")
    (at.ada.clone / "src" / "train.py").write_text("lr = 2\n")
    at.git("commit", "-qam", "Train slower")
    at.push()
    at.desk.settle()
    assert at.desk.record("a") == first
    at.ada.done("rerun", "a", "--yes")
    at.merge(at.ada.only_branch(), "Merge pull request #2 from rerun")
    at.desk.settle()
    again = at.desk.record("a")
    assert (again.state, again.attempt, again.digest == first.digest) == (JobState.RUNNING, 2, False)
    at.desk.engine.cluster.finish("nlp/a", 0)
    at.desk.settle()
    assert at.desk.settle() == []
    at.check()


def test_a_bad_deletion_reverted_goes_on_as_the_next_attempt(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    at = house(lab, monkeypatch, **{job_file("a"): KEPT, **jobs("b")})
    at.desk.engine.cluster.checkpoint("nlp/a")
    at.ada.done("cancel", "a", "--yes")
    bad = at.merge(at.ada.only_branch(), "Merge pull request #3 from cancel")
    at.desk.settle()
    assert JobKey("nlp/a") not in at.lab.generation().allocation.jobs
    at.revert(bad)
    at.desk.settle()
    back = at.desk.record("a")
    assert (back.state, back.attempt, back.resumes) == (JobState.RUNNING, 2, True)
    assert (at.desk.record("b").state, at.desk.record("b").attempt) == (JobState.RUNNING, 1)
    at.check()


def test_who_reverts_a_deletion_does_not_become_the_submitter(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = make_key(tmp_path / "kim-key", "kim")
    kim = (
        "apiVersion: gangops/v1\nkind: User\nmetadata: {name: kim}\n"
        f"spec: {{emails: [kim@acme.org], unixUser: ukim, sshKeys: ['{key.public_key()}']}}\n"
    )
    queues = QUEUES.replace("spec: {parent: root}", "spec: {parent: root, runAs: submitter}")
    at = house(lab, monkeypatch, **{"cluster-state/queues/tree.yaml": queues, "cluster-state/users/kim.yaml": kim})
    at.git("pull", "-q", "origin", "main")
    file = at.ada.clone / job_file("a")
    file.parent.mkdir(parents=True)
    file.write_text(KEPT)
    at.git("add", "-A")
    signing = ("-c", "gpg.format=ssh", "-c", f"user.signingkey={key.key}")
    at.git(*signing, "commit", "-qS", "-m", "Train", who="kim <kim@acme.org>")
    at.push()
    at.desk.settle()
    assert at.desk.record("a").state is JobState.RUNNING
    at.ada.done("cancel", "a", "--yes")
    bad = at.merge(at.ada.only_branch(), "Merge pull request #4 from cancel")
    at.desk.settle()
    lab.clock.advance(6 * MINUTE)
    at.desk.settle()
    assert JobKey("nlp/a") not in at.lab.generation().observed.provenance  # only its tombstone knows
    at.revert(bad)
    at.desk.settle()
    known = at.lab.generation().observed.provenance[JobKey("nlp/a")]
    assert (known.author.email, known.submitter and known.submitter.user) == ("ada@example.org", "kim")
    assert at.desk.record("a").state is JobState.RUNNING
    at.check()


def test_folders_that_fill_up_are_tidied_and_a_reverted_tidy_runs_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"run-{number:02d}" for number in range(8)]
    at = house(lab, monkeypatch, **jobs(*names, gpus=4))
    for number, name in enumerate(names[:6]):
        at.desk.engine.cluster.finish(f"nlp/{name}", 1 if number == 5 else 0)
    at.desk.settle()
    lab.clock.advance(15 * DAY)
    at.desk.settle()
    over = [name for name in names if at.desk.record(name).state is JobState.FINISHED]
    assert len(over) >= 5
    at.ada.done("tidy", "--yes")
    tidied = at.merge(at.ada.only_branch(), "Merge pull request #5 from tidy")
    at.desk.settle()
    left = {key.partition("/")[2] for key in at.lab.generation().allocation.jobs}
    assert left == set(names) - set(over)
    assert {key.partition("/")[2] for key in at.lab.generation().allocation.tombstones} >= set(over)
    at.revert(tidied)
    at.desk.settle()
    assert {(at.desk.record(name).state, at.desk.record(name).attempt) for name in over} == {(JobState.FINISHED, 1)}
    # Tidied again, and one of them is wanted once more: only that one runs.
    at.git("push", "-q", "origin", "--delete", at.ada.only_branch())
    lab.clock.advance(15 * DAY)
    at.ada.done("rerun", over[0], "--yes")
    at.merge(at.ada.only_branch(), "Merge pull request #6 from rerun")
    at.desk.settle()
    assert at.desk.record(over[0]).attempt == 2
    assert {at.desk.record(name).attempt for name in over[1:]} == {1}
    at.check()
