"""Who holds a job: by its file, by who brought it, and by its queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.documents.desired import load_desired, source_file
from reconciler.documents.holders import holders_of, still_holding
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed, Person, Provenance
from reconciler.model.units import CommitId, Digest, JobKey
from tests.runtime.lab import BASE, job_file, job_text

KEYS = {name: f"ssh-ed25519 AAAA{name}" for name in ("ada", "bob", "eve", "kim", "lee")}
QUEUES = """\
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {admins: {users: [LEE@example.org]}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: nlp}
spec: {parent: root, admins: {github: ["@acme/nlp-leads", "@Kim-at-work"]}, members: {users: [eve@example.org]}}
"""


def user(name: str, more: str = "") -> str:
    return (
        f"apiVersion: gangops/v1\nkind: User\nmetadata: {{name: {name}}}\n"
        f"spec: {{emails: [{name}@example.org], sshKeys: [{KEYS[name]} a comment]{more}}}\n"
    )


@pytest.fixture
def desired() -> Desired:
    people = [
        user("ada"),
        user("bob", ', teams: ["@acme/nlp-leads"]'),
        user("eve"),
        user("kim", ", github: kim-at-work"),
    ]
    files = {
        **BASE,
        "cluster-state/queues/tree.yaml": QUEUES,
        "cluster-state/users/team.yaml": "---\n".join([*people, user("lee")]),
        job_file("sft"): job_text("sft"),
        job_file("own"): job_text("own", more="  owner: Eve@example.org\n"),
    }
    loaded = load_desired([source_file(p, c.encode()) for p, c in files.items() if c], CommitId("c" * 40))
    assert loaded.desired is not None, loaded.diagnostics
    return loaded.desired


def brought(job: str, user: str) -> Observed:
    found = Provenance(job=JobKey(job), digest=Digest(""), file="", commit=CommitId(""), author=Person(user=user))
    return Observed(provenance={JobKey(job): found})


def names(lines: list[str] | None) -> list[str]:
    assert lines is not None
    assert all(line == f"{line.split()[0]} {KEYS[line.split()[0]]}" for line in lines)
    return [line.split()[0] for line in lines]


@pytest.mark.parametrize(
    ("job", "author", "holders"),
    [
        ("nlp/sft", "ada", ["ada", "bob", "kim", "lee"]),
        ("nlp/sft", "", ["bob", "kim", "lee"]),
        ("nlp/own", "ada", ["ada", "bob", "eve", "kim", "lee"]),
        ("nlp/sft", "a-stranger", ["bob", "kim", "lee"]),
    ],
    ids=["author and admins", "nobody brought it", "its owner too", "a user without a document"],
)
def test_author_owner_and_admins_hold_it_and_members_do_not(
    desired: Desired, job: str, author: str, holders: list[str]
) -> None:
    assert names(holders_of(JobKey(job), desired, brought(job, author))) == holders


def test_a_job_without_a_file_is_held_by_whom_it_was_as_long_as_the_keys_are_theirs(desired: Desired) -> None:
    assert holders_of(JobKey("nlp/gone"), desired, Observed()) is None
    before = [f"ada {KEYS['ada']}", f"bob {KEYS['bob']}", "eve ssh-ed25519 AAAAold"]
    assert still_holding(before, desired.keys) == before[:2]
    assert still_holding(before, {name: keys for name, keys in desired.keys.items() if name != "ada"}) == before[1:2]


def test_without_users_nobody_holds_anything(desired: Desired) -> None:
    assert holders_of(JobKey("nlp/sft"), replace(desired, keys={}), brought("nlp/sft", "ada")) == []
