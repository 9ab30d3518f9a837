"""What leaves nobody without an answer: a merge that is held back, a job whose file broke, a job that is gone."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.errors import NotFound, UsageError
from reconciler.model.lifecycle import JobState
from reconciler.model.units import MINUTE, SECOND
from tests.runtime.lab import CONFIG, NODES, Desk, Lab, job_file, job_text, jobs
from tests.store.world import MAIN, STATE, git

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def desk(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Four jobs run; there is a clone of that. Verbs look at the lab's clock."""
    lab.begin(**jobs(*NAMES, gpus=8))
    desk = lab.desk()
    desk.settle()
    git(lab.folder, "clone", "-q", str(lab.remote.path), "clone")
    monkeypatch.setattr("time.time_ns", lab.clock.now)
    return desk


def gangops(lab: Lab, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["-C", str(lab.folder / "clone"), *arguments])


def remarks(lab: Lab, *more: str) -> list[str]:
    done = gangops(lab, "status", *more)
    assert done.exit_code == 0, done.output
    return [line for line in done.stdout.splitlines() if line.startswith("!")]


def held_back(lab: Lab, *more: str) -> dict[str, object] | None:
    found: dict[str, object] | None = json.loads(gangops(lab, "status", "-o", "json", *more).stdout).get("heldBack")
    return found


# --- a merge that is held back ---


def test_a_refused_removal_is_told_with_what_counts_instead_and_the_remedy(lab: Lab, desk: Desk) -> None:
    before = desk.summary.desired_commit
    refused = lab.desire({job_file(name): None for name in NAMES[:3]})
    assert desk.round().held is not None
    told = (
        f"! What was merged is not acted on (MassRemovalRefused): commit {refused[:12]} removes 3 of 4 running jobs; "
        f"at most 30 % may go at once. Until then {before[:7]} counts. If that is meant, add a commit on top whose "
        "message ends with `Acknowledge-Removal: 3`."
    )
    assert remarks(lab) == [told]
    found = held_back(lab)
    assert found is not None
    assert (found["code"], found["commit"], found["decided"]) == ("MassRemovalRefused", refused, before)


def test_it_is_told_before_the_reconciler_has_looked_and_of_a_clone_that_was_not_fetched(lab: Lab, desk: Desk) -> None:
    lab.desire({job_file(name): None for name in NAMES[:3]})
    git(lab.folder / "clone", "fetch", "-q")
    assert [line.split(":")[0] for line in remarks(lab, "--no-fetch")] == [
        "! What was merged is not acted on (MassRemovalRefused)"
    ]
    assert desk.round().held is not None


def test_once_acknowledged_nothing_is_held_back(lab: Lab, desk: Desk) -> None:
    lab.desire({job_file(name): None for name in NAMES[:3]})
    lab.desire(message="Yes\n\nAcknowledge-Removal: 3\n")
    assert remarks(lab) == []
    desk.settle()
    assert remarks(lab) == []
    assert held_back(lab) is None


def test_a_rewrite_that_waits_for_a_word_is_told(lab: Lab, desk: Desk) -> None:
    strict = CONFIG.replace("spec: {}", "spec: {repository: {rewritesNeedAcknowledgement: true}}")
    lab.desire({"cluster-state/cluster.yaml": strict})
    desk.settle()
    lab.desire(jobs("e"), anew=True)
    assert desk.round().held is not None
    told = held_back(lab)
    assert told is not None
    assert (told["code"], told["decided"]) == ("RewriteRefused", desk.summary.desired_commit)


def test_a_commit_nobody_decides_on_is_told_when_it_is_late(lab: Lab, desk: Desk) -> None:
    newest = lab.desire(jobs("e"))
    made = int(git(lab.remote.path, "log", "-1", "--format=%ct", newest)) * SECOND
    before = desk.summary.desired_commit
    lab.clock.jump(made + 59 * SECOND - lab.clock.now())
    assert remarks(lab) == []
    lab.clock.jump(11 * MINUTE + SECOND)  # less than a minute and the gathering interval is no delay
    told = (
        f"! Nothing was decided yet on commit {newest[:12]}, 12m old; {before[:7]} still counts. "
        "`gangops doctor --cluster` says what is wrong."
    )
    assert remarks(lab) == [told]
    assert remarks(lab, "--no-fetch") == []  # this clone may be what is old
    desk.settle()
    assert remarks(lab) == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"README.md": "Read me.\n"}, id="another file"),
        pytest.param({"cluster-state/cluster.yaml": f"# why\n{CONFIG}"}, id="a comment"),
    ],
)
def test_what_says_nothing_new_is_never_late(lab: Lab, desk: Desk, changes: dict[str, str]) -> None:
    newest = lab.desire(changes)
    assert desk.settle() == []
    assert desk.summary.desired_commit != newest
    lab.clock.jump(int(git(lab.remote.path, "log", "-1", "--format=%ct", newest)) * SECOND - lab.clock.now())
    lab.clock.advance(60 * MINUTE)
    assert remarks(lab) == []


def test_a_clone_whose_desired_branch_is_older_than_its_record_says_nothing(lab: Lab, desk: Desk) -> None:
    lab.desire({job_file("a"): None})
    desk.settle()
    git(lab.folder / "clone", "fetch", "-q", "origin", f"+{STATE}:refs/remotes/origin/allocations")
    assert remarks(lab, "--no-fetch") == []
    assert lab.remote.tip(MAIN) == desk.summary.desired_commit


def test_a_shallow_clone_shows_the_rest_all_the_same(lab: Lab, desk: Desk) -> None:
    lab.desire({job_file(name): None for name in NAMES[:3]})
    assert desk.round().held is not None
    shutil.rmtree(lab.folder / "clone")
    git(lab.folder, "clone", "-q", "--depth=1", "--no-single-branch", lab.remote.url, "clone")
    done = gangops(lab, "status", "--no-fetch")
    assert (done.exit_code, done.stdout.count("Running")) == (0, 4)


# --- a job whose file broke ---

BROKEN = "apiVersion: gangops/v1\nkind: Job\nmetadata: {name: a}\nspec: {queue: nlp, gpus: many}\n"
BEFORE = "its older file counts"


def validate(desk: Desk) -> str:
    return f"`gangops validate --rev {desk.summary.desired_commit[:12]}` says what is wrong"


def why_of(lab: Lab, job: str) -> str:
    line = next(line for line in gangops(lab, "status").stdout.splitlines() if line.startswith(f"nlp/{job} "))
    return line.rsplit("  ", 1)[1]


def test_a_job_whose_file_broke_says_so_in_its_row_and_where_to_look(lab: Lab, desk: Desk) -> None:
    lab.desire({job_file("a"): BROKEN})
    desk.settle()
    assert [why_of(lab, name) for name in NAMES] == [BEFORE, "-", "-", "-"]
    assert remarks(lab) == [f"! {job_file('a')} is invalid and counts as it was before; {validate(desk)}"]
    assert f"\nfile          {BEFORE}\n" in gangops(lab, "describe", "a").stdout
    told = gangops(lab, *re.findall("`gangops (.*)`", remarks(lab)[0])[0].split())
    assert f"{job_file('a')}:4:" in told.stdout
    lab.desire(jobs("a", gpus=8))
    desk.settle()
    assert (why_of(lab, "a"), remarks(lab)) == ("-", [])


def test_one_that_waits_keeps_its_reason(lab: Lab, desk: Desk) -> None:
    lab.desire(jobs("wide", gpus=16))
    desk.settle()
    waits = why_of(lab, "wide")
    lab.desire({job_file("wide"): BROKEN.replace("name: a", "name: wide")})
    desk.settle()
    assert why_of(lab, "wide") == f"{waits}; {BEFORE}"


def test_many_broken_files_are_one_line(lab: Lab, desk: Desk) -> None:
    lab.desire({job_file(name): BROKEN.replace("name: a", f"name: {name}") for name in NAMES})
    desk.settle()
    named = ", ".join(map(job_file, NAMES[:3]))
    assert remarks(lab) == [f"! {named} and 1 more are invalid and count as they were before; {validate(desk)}"]


def test_a_broken_file_of_the_cluster_says_that_nothing_starts(lab: Lab, desk: Desk) -> None:
    lab.desire({"cluster-state/queues/tree.yaml": "kind: Queue\n"})
    desk.settle()
    assert remarks(lab) == [
        "! cluster-state/queues/tree.yaml is invalid and counts as it was before, and no job starts until it is valid; "
        + validate(desk)
    ]


def test_of_several_broken_files_the_one_that_lets_nothing_start_is_named(lab: Lab, desk: Desk) -> None:
    lab.desire({"cluster-state/queues/tree.yaml": "kind: Queue\n", job_file("a"): BROKEN})
    desk.settle()
    named = f"{job_file('a')}, cluster-state/queues/tree.yaml"
    stops = "no job starts until cluster-state/queues/tree.yaml is valid"
    assert remarks(lab) == [f"! {named} are invalid and count as they were before, and {stops}; {validate(desk)}"]


# --- a job that is gone, by its name alone ---

VISION = "apiVersion: gangops/v1\nkind: Queue\nmetadata: {name: vision}\nspec: {parent: root}\n"
VERBS = (["describe"], ["explain", "job"], ["history"], ["status"], ["wait", "--for", "running"])


def removed(lab: Lab, desk: Desk, *names: str) -> None:
    for name in names:
        lab.desire({job_file(name): None})
        desk.settle()


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_name_alone_is_the_job_that_is_there(lab: Lab, desk: Desk, verb: list[str]) -> None:
    assert desk.record("a").state is JobState.RUNNING
    done = gangops(lab, *verb, "a")
    assert done.exit_code == 0, done.output
    assert "nlp/a" in done.stdout


def test_a_name_alone_is_the_job_that_was_there(lab: Lab, desk: Desk) -> None:
    removed(lab, desk, "a")
    page = gangops(lab, "describe", "a").stdout
    assert page.startswith("Its file was removed, and its record went with it in generation ")
    assert "nlp/a" in gangops(lab, "history", "a").stdout
    for verb in (["explain", "job"], ["status"], ["wait"]):
        done = gangops(lab, *verb, "a")
        assert isinstance(done.exception, NotFound)
        told = (done.exception.code, done.exception.remedy)
        assert told == ("UnknownJob", "its file was removed: `gangops describe nlp/a` tells what became of it")
    done = gangops(lab, "describe", "zzz")
    assert isinstance(done.exception, NotFound)
    assert done.exception.code == "UnknownName"


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_a_name_of_several_is_told_with_all_of_them(lab: Lab, desk: Desk, gone: bool) -> None:
    removed(lab, desk, "b")
    twin = job_text("a", 8).replace("queue: nlp", "queue: vision")
    lab.desire({"cluster-state/queues/vision.yaml": VISION, "cluster-state/jobs/vision/a.yaml": twin})
    desk.settle()
    if gone:
        removed(lab, desk, "a")
        assert "vision/a" in gangops(lab, "describe", "a").stdout  # the one that is left
        lab.desire({"cluster-state/jobs/vision/a.yaml": None})
        desk.settle()
    for verb in VERBS:
        done = gangops(lab, *verb, "a")
        assert isinstance(done.exception, UsageError)
        assert (done.exception.code, done.exception.remedy) == ("AmbiguousJob", "name one: nlp/a, vision/a")
        assert done.exception.message == f"2 queues {'had' if gone else 'have'} a job a"


def test_logs_are_found_by_the_name_alone(lab: Lab, desk: Desk) -> None:
    removed(lab, desk, "a")
    folder = lab.folder / "logs" / "nlp" / "a" / "1"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text("1764000000000000000 hello\n")
    named = gangops(lab, "logs", "nlp/a", "--dir", str(lab.folder / "logs"))
    alone = gangops(lab, "logs", "a", "--dir", str(lab.folder / "logs"))
    assert named.exit_code == 0
    assert alone.stdout == named.stdout
    assert "hello" in alone.stdout


# --- a node that there was not, then ---


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_who_held_a_node_that_there_was_not_is_an_unknown_name(lab: Lab, desk: Desk, output: str) -> None:
    lab.clock.advance(60 * MINUTE)
    lab.desire({"cluster-state/inventory/nodes.yaml": NODES.replace("gpu-[003-004]", "gpu-[003-005]")})
    desk.settle()
    then, later = ("2026-01-01T00:30:00Z", "2026-01-01T01:00:30Z")
    done = gangops(lab, "history", "--node", "gpu-005", "--at", then, "-o", output)
    assert isinstance(done.exception, NotFound)
    assert (done.exception.code, done.exception.exit_status) == ("UnknownNode", 3)
    assert done.exception.message == "no node gpu-005 was declared or seen at 2026-01-01 00:30:00Z"
    assert done.exception.remedy == "did you mean gpu-004 or gpu-003 or gpu-002?"
    lab.clock.advance(MINUTE)
    for node in ("gpu-005", "gpu-001"):
        assert gangops(lab, "history", "--node", node, "--at", later, "-o", output).exit_code == 0
