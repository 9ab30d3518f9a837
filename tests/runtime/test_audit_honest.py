"""Honest histories: however people merge, revert and change keys, `audit verify` finds nothing in the record of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from reconciler.documents.withheld import WITHHELD
from reconciler.model.lifecycle import JobState
from reconciler.model.units import DAY, HOUR, MINUTE
from reconciler.runtime.audit.verify import verify
from reconciler.runtime.gathering import Gathering
from reconciler.runtime.restore import restore_in
from reconciler.runtime.rotate import rotate_in
from reconciler.store.publish import PublishedMark
from reconciler.store.signatures import Signer, allowed_signers_line, make_key
from tests.runtime.asking import People
from tests.runtime.lab import CLUSTER, Desk, Lab, job_file, job_text, jobs
from tests.runtime.test_policies import user
from tests.store.world import git

FORGE = ("GitHub", "noreply@github.com")


@dataclass
class Checkout:
    """A work tree of the desired branch, and people who commit in it with the git they have."""

    lab: Lab
    folder: Path

    @classmethod
    def of(cls, lab: Lab) -> Checkout:
        folder = lab.folder / "checkout"
        subprocess.run(["git", "clone", "-q", str(lab.remote.path), str(folder)], check=True, capture_output=True)
        return cls(lab, folder)

    def git(self, *words: str, by: str = "kim", committer: tuple[str, str] | None = None) -> str:
        name, email = committer or (by, f"{by}@acme.org")
        who = {
            "GIT_AUTHOR_NAME": by, "GIT_AUTHOR_EMAIL": f"{by}@acme.org", "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": email, "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(self.folder), "PATH": "/usr/bin:/bin",
        }  # fmt: skip
        done = subprocess.run(["git", *words], cwd=self.folder, env=who, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout.strip()

    def commit(
        self, files: Mapping[str, str | None], message: str = "Change", by: str = "kim",
        committer: tuple[str, str] | None = None, key: Signer | None = None,
    ) -> str:  # fmt: skip
        for path, content in files.items():
            where = self.folder / path
            if content is None:
                where.unlink()
            else:
                where.parent.mkdir(parents=True, exist_ok=True)
                where.write_text(content)
        signing = [] if key is None else ["-c", "gpg.format=ssh", "-c", f"user.signingKey={key.key}"]
        self.git("add", "-A")
        self.git(
            *signing,
            "commit",
            "-q",
            "--allow-empty",
            *(["-S"] if key else []),
            "-m",
            message,
            by=by,
            committer=committer,
        )
        return self.git("rev-parse", "HEAD")

    def branch(self, name: str, *, at: str = "main") -> None:
        self.git("checkout", "-q", "-b", name, at)

    def push(self, *flags: str) -> None:
        self.git("push", "-q", *flags, "origin", "HEAD:main")


def findings(lab: Lab, tip: str = "") -> list[tuple[int, str, str]]:
    line = allowed_signers_line("gangops@lab", lab.writer.signer.public_key())
    verdict = verify(lab.remote.git, tip or lab.tip, signers=line.encode())
    return [(one.generation, one.code, one.told) for one in verdict.findings]


@pytest.fixture
def people(lab: Lab) -> People:
    return People(lab)


def begun(people: People, *names: str, gathering: Gathering | None = None) -> tuple[Desk, Checkout]:
    people.lab.begin(**{**people.files, **jobs(*names, gpus=1)})
    desk = people.lab.desk(gathering=gathering)
    desk.settle()
    return desk, Checkout.of(people.lab)


def test_every_style_of_merge(people: People) -> None:
    lab = people.lab
    desk, work = begun(people, "a")
    # Squashed by the forge.
    work.commit(jobs("squashed", gpus=1), "Add squashed (#2)\n\nCo-authored-by: lea <lea@acme.org>", committer=FORGE)
    work.push()
    desk.settle()
    # Merged by the forge.
    work.branch("two")
    work.commit(jobs("b", gpus=1))
    work.commit({job_file("b"): job_text("b", 2)}, by="eve")
    work.git("checkout", "-q", "main")
    work.git(
        "merge", "-q", "--no-ff", "-m", "Merge pull request #3 from kim/two\n\nAdd b", "two", by="lea", committer=FORGE
    )
    work.push()
    desk.settle()
    # Rebased by the forge: each commit its own, on one line.
    work.commit(jobs("c", gpus=1), committer=FORGE)
    work.commit({job_file("c"): job_text("c", 2), **jobs("d", gpus=1)}, by="eve", committer=FORGE)
    work.push()
    desk.settle()
    # Signed and pushed past the forge.
    work.commit(jobs("e", gpus=1), "Add e", key=people.keys["kim"])
    work.push()
    desk.settle()
    # A merge the wrong way round: what was main becomes the second parent.
    work.branch("foxtrot", at="main~2")
    work.commit(jobs("f", gpus=1))
    work.git("merge", "-q", "--no-ff", "-m", "Merge main into foxtrot", "main")
    work.push()
    desk.settle()
    # Three branches at once.
    for name in ("x", "w"):
        work.git("checkout", "-q", "foxtrot")
        work.branch(f"add-{name}", at="foxtrot")
        work.commit(jobs(name, gpus=1))
    work.git("checkout", "-q", "foxtrot")
    work.git("merge", "-q", "--no-ff", "-m", "Merge both", "add-x", "add-w", by="lea", committer=FORGE)
    work.push()
    desk.settle()
    # Nothing, a comment, and several merges in one poll.
    work.commit({}, "Nothing")
    work.push()
    desk.settle()
    work.commit({job_file("a"): "# said\n" + job_text("a", 1)}, "Comment")
    work.push()
    desk.settle()
    for name in ("g", "h"):
        work.commit(jobs(name, gpus=1), f"Add {name} (#9)", committer=FORGE)
        work.push()
    desk.settle()
    known = lab.generation().observed.provenance
    assert {str(key).removeprefix("nlp/") for key in known} == set("abcdefghxw") | {"squashed"}
    assert findings(lab) == []


def test_reverts_and_a_rewritten_branch(people: People) -> None:
    lab = people.lab
    desk, work = begun(people, "a", "b")
    first = work.git("rev-parse", "HEAD")
    removed = work.commit({job_file("a"): None}, "Remove a (#2)", committer=FORGE)
    work.push()
    desk.settle()
    work.git("revert", "--no-edit", removed, by="lea", committer=FORGE)
    work.push()
    desk.settle()
    assert desk.record("a").state is JobState.RUNNING
    work.git("revert", "--no-edit", "HEAD", by="lea")
    work.git("revert", "--no-edit", "HEAD", by="lea")
    work.push()
    desk.settle()
    work.branch("m")
    work.commit({job_file("b"): job_text("b", 2), **jobs("c", gpus=1)})
    work.git("checkout", "-q", "main")
    work.git("merge", "-q", "--no-ff", "-m", "Merge pull request #4 from kim/m", "m", by="lea", committer=FORGE)
    work.push()
    desk.settle()
    work.git("revert", "--no-edit", "-m", "1", "HEAD", by="lea", committer=FORGE)
    work.push()
    desk.settle()
    # Set back, forward again, and somewhere else altogether.
    newest = work.git("rev-parse", "HEAD")
    work.git("reset", "-q", "--hard", first)
    work.push("--force")
    desk.settle()
    work.git("reset", "-q", "--hard", newest)
    work.push("--force")
    desk.settle()
    work.git("checkout", "-q", "--orphan", "anew")
    work.commit({**jobs("z", gpus=1)}, "All in one")
    work.push("--force")
    desk.settle()
    # A file that moves to another name, and one that is broken between two rounds.
    work.git("mv", job_file("z"), job_file("zz"))
    work.commit({job_file("zz"): job_text("zz", 1)}, "Rename z")
    work.push()
    desk.settle()
    work.commit({job_file("b"): "apiVersion: [\n"}, "Break b")
    work.push()
    desk.settle()
    work.commit({**jobs("late", gpus=1)}, "Add late")
    work.push()
    desk.settle()
    work.commit({job_file("b"): job_text("b", 4)}, "Mend b")
    work.push()
    desk.settle()
    assert findings(lab) == []


def test_people_who_come_go_and_change_keys(people: People) -> None:
    lab = people.lab
    desk, work = begun(people, "a", "b")
    other = make_key(lab.folder / "keys" / "kim-2", "kim")
    kim = "cluster-state/users/kim.yaml"
    # A request by the old key, then the key rotates, then one by either.
    people.push("cancel-b", people.wish(job="nlp/b", hours=3))
    desk.settle()
    work.commit({kim: user("kim", "@acme/nlp", key=other.public_key())}, "Rotate (#2)", by="pat", committer=FORGE)
    work.push()
    desk.settle()
    people.push("suspend-a", people.wish("suspend"))
    people.push("again", people.wish("suspend"), key=other)
    desk.settle()
    # A refused name is asked under once more, rightly.
    people.push("suspend-a", people.wish("suspend", hours=1), key=other)
    desk.settle()
    work.commit(jobs("signed", gpus=1), "Signed by the new", key=other)
    work.push()
    desk.settle()
    # Kim leaves while a job of theirs runs and a request is in force.
    work.commit({kim: None}, "Farewell (#3)", by="pat", committer=FORGE)
    work.push()
    desk.settle()
    people.push("late", people.wish("suspend", job="nlp/signed"), key=other)
    desk.settle()
    lab.clock.advance(4 * HOUR)
    desk.settle()
    # Eve brings what she may not, lea stands behind it afterwards; eve's other change is taken back.
    tree = "cluster-state/queues/tree.yaml"
    queues = (work.folder / tree).read_text()
    commit = work.commit(
        {tree: queues + "---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {name: own}\nspec: {parent: root}\n"},
        "Mine (#4)",
        by="eve",
        committer=FORGE,
    )
    work.push()
    desk.settle()
    work.commit({}, f"Yes (#5)\n\nAcknowledge-Change: {commit[:12]}", by="pat", committer=FORGE)
    work.push()
    desk.settle()
    work.commit({job_file("eves"): job_text("eves", 1)}, "Add (#6)", by="eve", committer=FORGE)
    work.push()
    desk.settle()
    work.git("revert", "--no-edit", "HEAD", by="lea", committer=FORGE)
    work.push()
    desk.settle()
    lab.clock.advance(8 * DAY)
    desk.settle()
    assert findings(lab) == []


def test_many_requests_and_merges_while_starts_are_gathered(people: People) -> None:
    lab = people.lab
    desk, work = begun(people, "a", "b", gathering=Gathering())
    for turn in range(6):
        work.commit(jobs(f"j{turn}", gpus=1), f"Add (#{turn + 2})", committer=FORGE)
        work.push()
        desk.round()
    for turn in range(20):
        people.push(
            f"r{turn:02}",
            people.wish("suspend" if turn % 2 else "cancel", job=f"nlp/j{turn % 6}"),
            by="kim" if turn % 3 else "eve",
        )
    desk.round()
    work.commit({job_file("j0"): None, job_file("j1"): None}, "Remove (#20)", committer=FORGE)
    work.push()
    desk.round()
    lab.clock.advance(MINUTE)
    desk.settle()
    lab.clock.advance(3 * HOUR)
    desk.settle()
    assert findings(lab) == []


def test_a_restored_record_that_goes_on_and_is_rotated(people: People) -> None:
    """The forge is lost with what was newest, the record goes on from a backup in the next epoch, and in the next year."""
    lab = people.lab
    desk, work = begun(people, "a")
    people.push("cancel-a", people.wish(hours=1))
    desk.settle()
    git(lab.folder, "clone", "-q", "--mirror", str(lab.remote.path), "backup.git")
    work.commit(jobs("late", gpus=1), "Add late (#2)", committer=FORGE)
    work.push()
    desk.settle()
    shutil.rmtree(lab.remote.path)
    shutil.move(lab.folder / "backup.git", lab.remote.path)
    restore_in(lab.mirror("new"), PublishedMark(folder=lab.folder / "new"), lab.writer, CLUSTER, None)
    assert findings(lab) == []
    desk = lab.desk("new")
    desk.settle()
    work.git("commit", "-q", "--allow-empty", "--amend", "-m", "Add late (#2)")
    work.push("--force")
    desk.settle()
    lab.clock.advance(2 * HOUR)
    desk.settle()
    assert findings(lab) == []
    done = rotate_in(lab.mirror("new"), PublishedMark(folder=lab.folder / "new"), lab.writer, CLUSTER, 2027)
    people.push("suspend-late", people.wish("suspend", job="nlp/late"))
    desk.settle()
    assert findings(lab, git(lab.remote.path, "rev-parse", f"refs/heads/{done.new}").decode().strip()) == []


def test_files_with_names_that_git_writes_with_escapes(people: People) -> None:
    """Notes beside the documents may have any name, and keys too: who brought each is known."""
    lab = people.lab
    desk, work = begun(people, "a")
    notes = {"cluster-state/jobs/nlp/für alle.md": "Bitte lesen\n", 'cluster-state/jobs/nlp/"quoted"\t.md': "x\n"}
    work.commit({**notes, **jobs("b", gpus=1)}, "Add b (#2)", committer=FORGE)
    work.push()
    desk.settle()
    work.commit({"cluster-state/trust/schlüssel": "x\n"}, "Add keys (#3)", by="pat", committer=FORGE)
    work.push()
    desk.settle()
    assert WITHHELD not in lab.generation().frozen, "pat may"
    work.commit(dict.fromkeys(notes), "Remove the notes (#4)", committer=FORGE)
    work.commit(jobs("c", gpus=1), "Add c (#5)", committer=FORGE)
    work.push()
    desk.settle()
    assert findings(lab) == []
