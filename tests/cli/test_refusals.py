"""Who is not let into a job reads who holds it, as the record has it, and the way in that is named is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli.door import refusals_explained
from reconciler.documents.holders import holders_of
from reconciler.model.units import JobKey
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.visiting import NotAdmitted
from reconciler.store.signatures import make_key
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs
from tests.store.world import git, text

SAID = "the request is not signed by who holds the job"
KEY = JobKey("nlp/a")


def user(name: str, email: str, keys: list[str]) -> dict[str, str]:
    content = f"apiVersion: gangops/v1\nkind: User\nmetadata: {{name: {name}}}\nspec: {{emails: [{email}], sshKeys: {keys}}}\n"
    return {f"cluster-state/users/{name}.yaml": content}


def queues(*admins: str) -> dict[str, str]:
    root = "apiVersion: gangops/v1\nkind: Queue\nmetadata: {name: root}\nspec: {}\n"
    below = f"---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {{name: nlp}}\nspec: {{parent: root, admins: {{users: [{', '.join(admins)}]}}}}\n"
    return {"cluster-state/queues/tree.yaml": root + below}


@pytest.fixture
def desk(lab: Lab) -> Desk:
    lab.begin(**jobs("a"))
    desk = lab.desk()
    desk.settle()
    git(lab.folder, "clone", "-q", str(lab.remote.path), "clone")
    return desk


def refused(lab: Lab, job: str = "nlp/a", where: Path | None = None, code: str = "NotHeld") -> NotAdmitted:
    with pytest.raises(NotAdmitted) as caught, refusals_explained(where or lab.folder / "clone", job):
        raise NotAdmitted(SAID, code=code, remedy="as it was")
    return caught.value


def holders(lab: Lab) -> list[str]:
    current = lab.generation()
    read = DesiredReader(lab.remote.git).recorded(current.commit, current.summary.desired_commit, current.frozen)
    assert read.desired is not None
    return holders_of(KEY, read.desired, current.observed) or []


def test_an_author_without_a_user_is_named_and_the_way_in_that_is_told_works(lab: Lab, desk: Desk) -> None:
    first = text(lab.remote.path, "rev-list", "--max-parents=0", "main").strip()
    email = text(lab.remote.path, "log", "-1", "--format=%ae", first).strip()
    line = make_key(lab.folder / "kim-key", "kim").public_key()
    about = f"{SAID}\n  nlp/a: its author {email}, who had no User when commit {first[:7]} was merged; admins of queue nlp: no User"
    told = refused(lab)
    assert (told.code, told.message) == ("NotHeld", about)
    assert (
        told.remedy == f"Merge a User with {email} and a key, then `owner: {email}` under spec of its file; it runs on."
    )
    # Half of that: the User came after the job.
    lab.desire(user("kim", email, [line]))
    desk.settle()
    told = refused(lab)
    assert (told.message, holders(lab)) == (about, [])
    assert told.remedy == f"{email} is User kim now: merge `owner: {email}` under spec of its file; it runs on."
    # And the other half.
    attempt = desk.record("a").attempt
    lab.desire({job_file("a"): job_text("a", 8, more=f"  owner: {email}\n")})
    desk.settle()
    assert [one.partition(" ")[0] for one in holders(lab)] == ["kim"]
    assert desk.record("a").attempt == attempt


def test_all_that_was_looked_at_is_told(lab: Lab, desk: Desk) -> None:
    line = make_key(lab.folder / "ada-key", "ada").public_key()
    lab.desire(
        {
            **user("ada", "ada@example.org", [line]),
            **user("bob", "bob@example.org", []),
            **queues("ada@example.org", "bob@example.org"),
            job_file("a"): job_text("a", 8, more="  owner: kim@example.org\n"),
        }
    )
    desk.settle()
    (told,) = refused(lab).message.splitlines()[1:]
    assert told.endswith(
        "; its owner kim@example.org (the address of no User); admins of queue nlp: ada, bob (without a key)"
    )


def test_what_no_record_explains_stays_as_it_was_told(lab: Lab, desk: Desk, tmp_path: Path) -> None:
    assert desk.summary.generation > 0
    (tmp_path / "elsewhere").mkdir()
    for told in (
        refused(lab, code="OldChallenge"),
        refused(lab, job="nlp/none"),
        refused(lab, where=tmp_path / "elsewhere"),
    ):
        assert (told.message, told.remedy) == (SAID, "as it was")
