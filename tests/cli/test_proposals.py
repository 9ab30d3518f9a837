"""Verbs that change: from a name on the command line to a branch at a real remote, and nothing else touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from reconciler.errors import ExitStatus, InvalidInput
from reconciler.model.units import JobKey
from reconciler.policy.previewed import shown_in
from reconciler.runtime.proposals.pulls import with_trailers
from reconciler.store.statecommit import Writer
from tests.cli.people import FORGE, Kept, Person, codes, gh_on_path, on_a_terminal, person_at, words
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import git, new_repository, text

ROOT = Path(__file__).parents[2]
SCHEMAS = ("proposal.schema.json", "plan.schema.json")
COMMENTED = """\
# Who: the sft team.
apiVersion: gangops/v1
kind: Job
metadata: {name: sft}          # do not rename
spec:
  queue:    nlp   # ours
  gpus: 8
  # trains for a week
  run: {command: [python,   train.py]}

# the end
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Kept:
    """A record in which nlp/sft runs and nlp/wide waits."""
    folder = tmp_path_factory.mktemp("running")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**{job_file("sft"): COMMENTED})
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("wide"): job_text("wide", 32)})
    desk.settle()
    return Kept(lab)


@pytest.fixture
def ada(running: Kept, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Person:
    """Ada, where nlp/sft runs and nlp/wide waits."""
    return person_at(running.again(tmp_path, writer), monkeypatch)


# --- what every verb does ---


def test_a_branch_with_one_commit_in_the_persons_name_on_the_newest_main(ada: Person) -> None:
    newer = ada.lab.desire(jobs("later"))  # not in the clone yet
    told = ada.done("suspend", "nlp/sft", "--yes", "-m", "GPUs are needed elsewhere.").stdout
    branch = ada.only_branch()
    commit = text(ada.lab.remote.path, "rev-parse", branch)
    assert branch.startswith("gangops/suspend-sft-")
    assert text(ada.lab.remote.path, "log", "-1", "--format=%P|%an <%ae>|%cn|%B", commit) == (
        f"{newer}|Ada Lovelace <ada@example.org>|Ada Lovelace|Suspend nlp/sft\n\nGPUs are needed elsewhere."
    )
    assert ada.changed(branch) == [f"M {job_file('sft')}"]
    assert f"Branch  {branch}  {commit[:7]}" in told
    assert f"Open    https://forge.example/acme/cluster/compare/main...{branch}?expand=1" in told
    assert ada.lab.remote.tip("refs/heads/main") == newer


def test_comments_and_layout_stay_byte_for_byte(ada: Person) -> None:
    ada.done("suspend", "sft", "--yes")
    found = ada.at(ada.only_branch(), job_file("sft"))
    assert found is not None
    assert [line for line in found.splitlines() if line != "  suspend: true"] == COMMENTED.splitlines()


def test_no_work_tree_no_index_and_no_branch_of_the_clone_is_touched(ada: Person) -> None:
    file = ada.clone / job_file("sft")
    file.write_text(file.read_text() + "# half done\n")
    git(ada.clone, "rm", "-q", "--cached", job_file("wide"))
    git(ada.clone, "checkout", "-q", "-b", "mine")
    before = (
        text(ada.clone, "status", "--porcelain"), text(ada.clone, "for-each-ref", "refs/heads"),
        (ada.clone / ".git/index").read_bytes(), (ada.clone / ".git/HEAD").read_text(),
    )  # fmt: skip
    ada.done("cancel", "wide", "--yes")
    after = (
        text(ada.clone, "status", "--porcelain"), text(ada.clone, "for-each-ref", "refs/heads"),
        (ada.clone / ".git/index").read_bytes(), (ada.clone / ".git/HEAD").read_text(),
    )  # fmt: skip
    assert before == after
    assert ada.changed(ada.only_branch()) == [f"D {job_file('wide')}"]


def test_the_plan_says_whom_it_costs_before_anything_is_asked(ada: Person) -> None:
    told = ada.done("prioritize", "wide", "--class", "production", "--dry-run").stdout
    lines = told.splitlines()
    assert "+  priorityClass: production" in lines
    assert any(line.split()[:3] == ["-", "preempt", "nlp/sft"] for line in lines)
    assert any(line.split()[:3] == ["+", "promise", "nlp/wide"] for line in lines)
    assert lines[-1] == "Plan: 1 preempted, 1 placed after victims; no other jobs."
    assert max(map(len, lines)) <= 80
    assert ada.branches() == []


def test_off_a_terminal_nothing_is_pushed_without_yes(ada: Person) -> None:
    found = ada.run("suspend", "sft")
    assert codes(found) == ("NotConfirmed", ExitStatus.USAGE)
    assert "suspend: true" in found.stdout
    assert ada.branches() == []


@pytest.mark.parametrize(("answer", "status", "pushed"), [("y\n", 0, 1), ("\n", 0, 1), ("n\n", 1, 0)])
def test_on_a_terminal_it_asks(
    ada: Person, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, pushed: int
) -> None:
    on_a_terminal(monkeypatch)
    found = ada.done("suspend", "sft", input_=answer, status=status)
    assert "Suspend nlp/sft: push it as a branch? [Y/n]" in found.stderr
    assert len(ada.branches()) == pushed


def test_a_job_whose_file_is_wrong_can_be_cancelled_and_nothing_else(ada: Person) -> None:
    ada.lab.desire({job_file("wide"): "x: [\n"})
    assert isinstance(ada.run("suspend", "wide", "--yes").exception, InvalidInput)
    ada.done("cancel", "wide", "--yes")
    assert ada.changed(ada.only_branch()) == [f"D {job_file('wide')}"]


def test_a_name_that_two_queues_have(ada: Person) -> None:
    text_ = job_text("sft").replace("queue: nlp", "queue: root")
    ada.lab.desire({"cluster-state/jobs/root/sft.yaml": text_})
    found = ada.run("suspend", "sft", "--yes")
    assert codes(found) == ("AmbiguousJob", ExitStatus.USAGE)
    assert getattr(found.exception, "remedy", "") == "name one: nlp/sft, root/sft"


def test_json_and_name_are_for_scripts(ada: Person) -> None:
    tree = json.loads(ada.done("suspend", "sft", "--dry-run", "-o", "json").stdout)
    assert (tree["formatVersion"], tree["kind"], tree["verb"], tree["pushed"]) == ("1.0", "Proposal", "suspend", False)
    assert tree["files"] == [job_file("sft")]
    assert [row["step"] for row in tree["plan"]["rows"] if row["job"] == "nlp/sft"] == ["stop"]
    assert ada.done("suspend", "sft", "--yes", "-o", "name").stdout == f"{ada.only_branch()}\n"
    nothing = json.loads(ada.done("resume", "sft", "--yes", "-o", "json").stdout)
    assert (nothing["changed"], nothing["why"]) == (False, "nlp/sft is not suspended")
    schemas = {name: json.loads((ROOT / "schemas" / name).read_bytes()) for name in SCHEMAS}
    registry = Registry().with_resources([(name, Resource.from_contents(schemas[name])) for name in SCHEMAS])
    judge = Draft202012Validator({"$ref": SCHEMAS[0]}, registry=registry)
    for printed in (tree, nothing):
        judge.validate(printed)
    assert not judge.is_valid({**tree, "pushed": "no"})
    assert not judge.is_valid({**tree, "plan": {"kind": "Plan"}})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("resume", "sft"), "nlp/sft is not suspended"),
        (("prioritize", "sft", "--nice", "0"), "nlp/sft has that priority already"),
        (("uncordon", "gpu-001"), "gpu-001 is not cordoned in any file"),
        (("tidy",), "no file is of a job that ended more than 14d ago"),
    ],
)
def test_nothing_to_change_is_said_and_is_no_error(ada: Person, arguments: tuple[str, ...], why: str) -> None:
    assert ada.done(*arguments, "--yes").stdout == f"nothing to change: {why}\n"
    assert ada.branches() == []


@pytest.mark.parametrize(
    ("arguments", "code", "remedy"),
    [
        (("suspend", "sff"), "UnknownJob", 'Did you mean "sft"?'),
        (("cancel", "nlp/wyde"), "UnknownJob", 'Did you mean "nlp/wide"?'),
        (("prioritize", "sft", "--class", "prodution"), "UnknownPriorityClass", 'Did you mean "production"?'),
        (("cordon", "gpu-[001-005]", "-r", "x"), "UnknownNode", 'Did you mean "gpu-001"?'),
        (("quota", "set", "nlb", "H100=8"), "UnknownQueue", 'Did you mean "nlp"?'),
        (("quota", "set", "nlp", "H10=8"), "UnknownGpuType", 'Did you mean "H100"?'),
    ],
)
def test_what_is_not_there_is_not_found_and_a_near_name_is_told(
    ada: Person, arguments: tuple[str, ...], code: str, remedy: str
) -> None:
    found = ada.run(*arguments, "--yes")
    assert codes(found) == (code, ExitStatus.NOT_FOUND)
    assert getattr(found.exception, "remedy", "") == remedy


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("prioritize", "sft"), "NothingAsked"),
        (("prioritize", "sft", "--nice", "101"), "BadNice"),
        (("cordon", "gpu-001"), "ReasonMissing"),
        (("cordon", "gpu-[1", "-r", "x"), "BadNodeList"),
        (("drain", "gpu-001", "-r", "x", "--for", "1h", "--until", "2030-01-01"), "BadTime"),
        (("drain", "gpu-001", "-r", "x", "--until", "2001-01-01"), "BadTime"),
        (("quota", "set", "nlp"), "NothingAsked"),
        (("quota", "set", "nlp", "H100"), "BadQuota"),
        (("submit",), "NothingAsked"),
        (("tidy", "--older-than", "long"), "BadDuration"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(ada: Person, arguments: tuple[str, ...], code: str) -> None:
    assert codes(ada.run(*arguments, "--yes")) == (code, ExitStatus.USAGE)


# --- the remote ---


def test_the_same_change_twice_is_told_and_another_commit_of_main_makes_another_branch(ada: Person) -> None:
    ada.done("suspend", "sft", "--yes")
    assert codes(ada.run("suspend", "sft", "--yes")) == ("BranchExists", ExitStatus.ERROR)
    ada.lab.desire(jobs("later"))
    ada.done("suspend", "sft", "--yes")
    assert len(ada.branches()) == 2


def test_a_hook_that_refuses_is_repeated_word_for_word(ada: Person) -> None:
    ada.lab.remote.hook("pre-receive", "echo 'branches are named after tickets' >&2; exit 1")
    found = ada.run("suspend", "sft", "--yes")
    assert codes(found) == ("PushRejected", ExitStatus.ERROR)
    assert "branches are named after tickets" in str(found.exception)
    assert ada.branches() == []


def test_no_right_to_push_is_told_apart(ada: Person) -> None:
    ada.lab.remote.hook("pre-receive", "echo 'You are not allowed to push code to this project.' >&2; exit 1")
    assert codes(ada.run("suspend", "sft", "--yes")) == ("NoPushRights", ExitStatus.ERROR)


def test_a_remote_that_is_away_stops_a_change_but_not_a_look_at_it(ada: Person) -> None:
    ada.lab.remote.path.rename(ada.lab.folder / "away")
    assert codes(ada.run("suspend", "sft", "--yes")) == ("RemoteUnreachable", ExitStatus.UNREACHABLE)
    told = ada.done("suspend", "sft", "--dry-run")
    assert "suspend: true" in told.stdout
    assert "RemoteUnreachable" in told.stderr


def test_a_ceiling_below_what_a_queue_holds_says_what_that_does(ada: Person) -> None:
    told = ada.done("quota", "set", "nlp", "--ceiling", "H100=4", "--dry-run").stdout
    assert "! Queue nlp holds 8 H100 of at most 4 now: nobody is stopped" in told
    assert "holds" not in ada.done("quota", "set", "nlp", "--ceiling", "H100=4000", "--dry-run").stdout


def test_a_dry_run_names_the_document_it_would_change(ada: Person) -> None:
    assert ada.done("suspend", "sft", "--dry-run", "-o", "name").stdout == f"{job_file('sft')}\n"
    assert ada.branches() == []


def test_a_clone_without_a_remote(ada: Person) -> None:
    git(ada.clone, "remote", "remove", "origin")
    assert codes(ada.run("suspend", "sft", "--yes")) == ("NoRemote", ExitStatus.USAGE)


def test_a_person_without_a_name(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ada.home / "gitconfig"
    settings.write_text(settings.read_text().partition("[url")[1] + settings.read_text().partition("[url")[2])
    assert codes(ada.run("suspend", "sft", "--yes")) == ("NoIdentity", ExitStatus.USAGE)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Grace")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "grace@example.org")
    monkeypatch.setenv("GIT_COMMITTER_NAME", "Grace")
    monkeypatch.setenv("GIT_COMMITTER_EMAIL", "grace@example.org")
    ada.done("suspend", "sft", "--yes")
    assert text(ada.lab.remote.path, "log", "-1", "--format=%an", ada.only_branch()) == "Grace"


def test_before_there_is_a_record_a_change_is_planned_on_an_empty_cluster_and_says_so(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.desire(jobs("sft"))
    ada = person_at(lab, monkeypatch)
    told = ada.done("suspend", "sft", "--yes").stdout
    assert "Assumed: there is no state branch here: nothing runs" in " ".join(told.split())
    assert "no plan" not in told
    assert len(ada.branches()) == 1


def test_a_main_with_errors_is_told_and_can_be_changed(ada: Person) -> None:
    ada.lab.desire({"cluster-state/cluster.yaml": "x: [\n", job_file("bad"): "x: [\n"})
    told = ada.done("cancel", "wide", "--yes").stdout
    assert ada.changed(ada.only_branch()) == [f"D {job_file('wide')}"]
    assert "Plan:" in told or "no plan" in told.lower()


# --- pull requests ---

PULL = "https://forge.example/acme/cluster/pull/7"


def test_a_pull_request_by_gh(ada: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gh = gh_on_path(tmp_path / "gh", monkeypatch)
    gh.answers({"pr create": f"Creating pull request\n{PULL}"})
    told = ada.done("suspend", "sft", "--yes", "--pr", "-m", "For the release.").stdout
    (call,) = gh.calls
    assert call[:2] == ["pr", "create"]
    assert [words(call, flag) for flag in ("--repo", "--base", "--head", "--title")] == [
        "forge.example/acme/cluster", "main", ada.only_branch(), "Suspend nlp/sft",
    ]  # fmt: skip
    assert words(call, "--body").startswith("For the release.\n\nPlan: 1 stopped")
    assert told.splitlines()[-1] == f"Pull    {PULL}"


def test_without_gh_the_link_is_printed(ada: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("git", "ssh-keygen"):
        (tmp_path / "bin" / name).symlink_to(text(tmp_path, "--exec-path") and f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = ada.done("suspend", "sft", "--yes", "--pr")
    assert found.stdout.splitlines()[-1].startswith(
        "Open    https://forge.example/acme/cluster/compare/main...gangops/"
    )
    assert "gh is not installed" in found.stderr


def test_gitlab_is_not_asked_by_gh(ada: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gh = gh_on_path(tmp_path / "gh", monkeypatch)
    address = "https://gitlab.example/acme/cluster.git"
    git(ada.clone, "remote", "set-url", "origin", address)
    settings = ada.home / "gitconfig"
    settings.write_text(settings.read_text().replace(FORGE, address))
    found = ada.done("suspend", "sft", "--yes", "--pr")
    assert found.stdout.splitlines()[-1].startswith("Open    https://gitlab.example/acme/cluster/-/merge_requests/new?")
    assert gh.calls == []


def test_a_gh_that_fails_leaves_the_branch_and_the_link(
    ada: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gh_on_path(tmp_path / "gh", monkeypatch).answers({"pr create": {"fails": "not logged in"}})
    found = ada.run("suspend", "sft", "--yes", "--pr")
    assert codes(found) == ("PullRequestFailed", ExitStatus.ERROR)
    assert "not logged in" in str(found.exception)
    assert found.stdout.splitlines()[-1].startswith("Open    https://forge.example/")
    assert len(ada.branches()) == 1


MERGES_AT_ONCE = 'while read old new ref; do git update-ref refs/heads/main "$new"; done'


def test_with_pr_and_wait_it_merges_by_itself_and_each_stage_has_its_time(
    ada: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gh = gh_on_path(tmp_path / "gh", monkeypatch)
    gh.answers({
        "pr create": PULL,
        "repo view": {"mergeCommitAllowed": False, "squashMergeAllowed": True, "rebaseMergeAllowed": True},
        "pr view": {"state": "MERGED", "statusCheckRollup": [{"context": "gangops/plan", "state": "SUCCESS"}]},
    })  # fmt: skip
    ada.lab.remote.hook("post-receive", MERGES_AT_ONCE)
    found = ada.done("suspend", "sft", "--yes", "--pr", "--wait")
    assert [call[:2] for call in gh.calls] == [["pr", "create"], ["repo", "view"], ["pr", "merge"], ["pr", "view"]]
    assert gh.calls[2][:5] == ["pr", "merge", PULL, "--auto", "--squash"]
    assert gh.calls[2][5] == "--body"
    rows = [line.partition(": ")[::2] for line in gh.calls[2][6].split("\n\n")[-1].splitlines()]
    shown = shown_in((key, value) for key, value in rows)
    assert shown is not None
    assert (shown.state, shown.victims) == (ada.lab.tip, ())
    tip = ada.lab.remote.tip("refs/heads/main")
    told = ada.done("plan", "--base", f"{tip}~1", "--head", str(tip), "--check", shown.digest)
    assert told.stdout.startswith("still true")
    stages = [line.split() for line in found.stderr.splitlines()]
    assert [stage[2] for stage in stages] == ["proposed", "checked", "merged"]
    assert all(stage[0].endswith("Z") and stage[1].startswith("+") for stage in stages)
    assert stages[1][3:] == ["1", "checks", "passed"]


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        ("", "A: 1\nB: 2"),
        ("Why it stops.\n", "Why it stops.\n\nA: 1\nB: 2"),
        ("Why.\n\nAcknowledge-Removal: 4\n", "Why.\n\nAcknowledge-Removal: 4\nA: 1\nB: 2"),
        ("Because: of this.\nAnd that.", "Because: of this.\nAnd that.\n\nA: 1\nB: 2"),
    ],
)
def test_trailers_of_a_merge_are_one_paragraph(body: str, whole: str) -> None:
    assert with_trailers(body, [("A", "1"), ("B", "2")]) == whole


def test_wait_without_a_pull_request_looks_at_main(ada: Person) -> None:
    ada.lab.remote.hook("post-receive", MERGES_AT_ONCE)
    found = ada.done("cancel", "wide", "--yes", "--wait")
    assert [line.split()[2] for line in found.stderr.splitlines()] == ["proposed", "merged"]


def test_auto_merge_that_is_not_allowed_is_a_warning_and_the_wait_goes_on(
    ada: Person, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gh_on_path(tmp_path / "gh", monkeypatch).answers({
        "pr create": PULL, "repo view": {"mergeCommitAllowed": True},
        "pr merge": {"fails": "Auto merge is not allowed for this repository"},
        "pr view": {"state": "OPEN", "statusCheckRollup": []},
    })  # fmt: skip
    ada.lab.remote.hook("post-receive", MERGES_AT_ONCE)
    found = ada.done("suspend", "sft", "--yes", "--pr", "--wait")
    assert "warning: it will not merge by itself: gh pr merge failed: Auto merge is not allowed" in found.stderr
    assert found.stderr.splitlines()[-1].split()[2] == "merged"


def test_the_whole_of_it_as_a_person_reads_it(ada: Person) -> None:
    told = ada.done("prioritize", "wide", "--class", "production", "--yes").stdout
    branch = ada.only_branch()
    commit = text(ada.lab.remote.path, "rev-parse", "--short=7", branch)
    lines = told.splitlines()
    starts = next(place for place, line in enumerate(lines) if "starts" in line and "Z" in line)
    lines[starts] = "      starts SOON"  # the time of day
    lost = next(place for place, line in enumerate(lines) if "loses" in line)
    lines[lost] = "      gives way to nlp/wide; loses MUCH"  # the record is years old
    assert (
        lines
        == f"""\
--- a/cluster-state/jobs/nlp/wide.yaml
+++ b/cluster-state/jobs/nlp/wide.yaml
@@ -3,5 +3,6 @@
 metadata: {{name: wide}}
 spec:
   queue: nlp
+  priorityClass: production
   gpus: 32
   run: {{command: [python, train.py]}}

  - preempt  nlp/sft    8 GPUs  research    r01 gpu-001
      gives way to nlp/wide; loses MUCH
  + promise  nlp/wide  32 GPUs  production  r01 gpu-[001-002] r02 gpu-[003-004]
      once nlp/sft has stopped; spans 2 racks; T_comm 5.0us, the least possible;
      starts SOON
      ~ priorityClass research -> production

Plan: 1 preempted, 1 placed after victims; no other jobs.

Branch  {branch}  {commit}
Open    https://forge.example/acme/cluster/compare/main...{branch}?expand=1
""".splitlines()
    )


# --- jobs that ended ---


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Kept:
    """A record in which nlp/sft ran to its end."""
    folder = tmp_path_factory.mktemp("over")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**jobs("sft"))
    desk = lab.desk()
    desk.settle()
    desk.engine.cluster.finish("nlp/sft")
    desk.settle()
    assert lab.generation().allocation.jobs[JobKey("nlp/sft")].outcome == "Succeeded"
    return Kept(lab)


@pytest.fixture
def ended(over: Kept, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Person:
    """Ada, where nlp/sft ran to its end."""
    return person_at(over.again(tmp_path, writer), monkeypatch)


@pytest.mark.parametrize("verb", [("suspend",), ("cancel",), ("prioritize", "--nice", "5")])
def test_a_job_that_ended_is_told_so(ended: Person, verb: tuple[str, ...]) -> None:
    found = ended.run(verb[0], "sft", *verb[1:], "--yes")
    assert codes(found) == ("JobFinished", ExitStatus.ERROR)
    assert "(Succeeded)" in str(found.exception)


def test_rerun_counts_up_and_the_plan_shows_the_new_run(ended: Person) -> None:
    told = ended.done("rerun", "sft", "--yes").stdout
    assert "+  rerun: 1" in told.splitlines()
    assert any(line.split()[:3] == ["+", "place", "nlp/sft"] for line in told.splitlines()), told


def test_what_has_not_ended_is_not_run_again_by_accident(ada: Person) -> None:
    assert codes(ada.run("rerun", "sft", "--yes")) == ("JobNotFinished", ExitStatus.ERROR)
    told = ada.done("rerun", "sft", "--yes", "--replace").stdout
    assert any("replace" in line and "nlp/sft" in line for line in told.splitlines())


def test_tidy_removes_the_file_and_a_revert_runs_nothing_again(ended: Person) -> None:
    lab = ended.lab
    assert ended.done("tidy", "--older-than", "4000d", "--yes").stdout.startswith("nothing to change")
    told = ended.done("tidy", "--older-than", "1d", "--yes").stdout
    branch = ended.only_branch()
    assert ended.changed(branch) == [f"D {job_file('sft')}"]
    assert text(lab.remote.path, "log", "-1", "--format=%s", branch) == "Remove the files of 1 finished job"
    assert "Tombstones" in told

    git(lab.remote.path, "update-ref", "refs/heads/main", branch)
    content = lab.files.pop(job_file("sft"))
    desk = lab.desk("two")
    desk.settle()
    assert JobKey("nlp/sft") not in lab.generation().allocation.jobs
    lab.desire({job_file("sft"): content})  # the revert
    desk.settle()
    record = lab.generation().allocation.jobs[JobKey("nlp/sft")]
    assert (record.state, record.outcome, record.attempt) == ("Finished", "Succeeded", 1)


def test_tidy_leaves_what_another_job_waits_for(ended: Person) -> None:
    ended.lab.desire({job_file("next"): job_text("next", more="  after: [{job: sft}]\n  suspend: true\n")})
    assert "nothing to change" in ended.done("tidy", "--older-than", "1d", "--yes").stdout


def test_the_forge_is_only_a_name(ada: Person) -> None:
    assert text(ada.clone, "config", "remote.origin.url") == FORGE


def test_a_real_terminal_is_asked(ada: Person) -> None:
    """As a person has it: a terminal for input and output, and the answer typed on it."""
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "reconciler.cli", "-C", str(ada.clone), "suspend", "sft"],
        cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    told = b""
    try:
        while b"[Y/n]" not in told:
            told += os.read(ours, 4096)
        os.write(ours, b"y\n")
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # how a terminal says that its last user is gone
                break
            if not more:
                break
            told += more
    finally:
        if b"[Y/n]" not in told:
            child.kill()
        status = child.wait()
        os.close(ours)
    assert status == 0, told.decode()
    lines = told.decode().replace("\r\n", "\n").split("\n")
    assert f"Branch  {ada.only_branch()}" in told.decode()
    assert max(len(line) for line in lines if not line.startswith(("Branch", "Open"))) <= 80
