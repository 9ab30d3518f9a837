"""The preview of a change: what it says, when it stops being true, and that nothing of a pull request is run for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.errors import ExitStatus, InvalidInput
from reconciler.model.units import SECOND, Instant
from reconciler.render.plan import Plan, Step, plan_markdown, plan_text
from reconciler.render.plan.forms import exit_status
from reconciler.render.plan.machine import plan_text_json
from reconciler.render.plan.page import plan_page
from reconciler.runtime.clone import open_clone
from reconciler.runtime.forge.job import annotation_lines
from reconciler.runtime.known_states import known_generation
from reconciler.runtime.preview import preview
from reconciler.store.runner import Git
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs
from tests.store.world import MAIN, git

ROOT = Path(__file__).parents[2]
FORMS: tuple[Callable[[Plan], str], ...] = (plan_text, plan_markdown, plan_text_json, plan_page)


def settled(lab: Lab, *names: str) -> Desk:
    """Nodes have reported, and these jobs of 8 GPUs run."""
    lab.begin()
    desk = lab.desk()
    lab.desire(jobs(*names))
    lab.clock.advance(600 * SECOND)
    desk.settle()
    return desk


def planned(lab: Lab, head: str, *, base: str | None = None) -> Plan:
    return preview(open_clone(lab.remote.path), head, lab.clock.now(), base=base)


def gangops(folder: Path, *arguments: str) -> Result:
    done = CliRunner().invoke(root, ["-C", str(folder), "plan", "--no-fetch", *arguments], standalone_mode=False)
    assert done.exception is None
    return done


# --- a large part of it all goes at once (g03) ---


def test_a_commit_without_any_job_is_in_the_headline_and_fails_in_its_own_way(lab: Lab) -> None:
    names = ("a", "b", "c", "d")
    settled(lab, *names)
    base = lab.remote.tip("refs/heads/main")
    head = lab.desire({job_file(name): None for name in names})
    plan = planned(lab, head, base=base)
    assert exit_status(plan) is ExitStatus.MASS_REMOVAL
    assert plan.counts == {Step.STOP: 4}
    assert "— stops 4 of 4 running jobs ·" in plan_markdown(plan)
    assert "! STOPS 4 OF 4 RUNNING JOBS" in plan_text(plan)
    done = gangops(lab.remote.path, "--head", head)
    assert done.return_value == 8
    assert "Acknowledge-Removal: 4" in " ".join(done.stdout.split())


def test_an_acknowledgement_for_exactly_this_commit_lets_it_through(lab: Lab) -> None:
    names = ("a", "b", "c", "d")
    settled(lab, *names)
    told = "Clear out\n\nAcknowledge-Removal: 4\n"
    plan = planned(lab, lab.desire({job_file(name): None for name in names}, message=told))
    assert plan.removals == ()
    assert exit_status(plan) is ExitStatus.OK


def test_an_inventory_that_vanishes_is_a_removal_as_well(lab: Lab) -> None:
    settled(lab, "a", "b", "c", "d")
    nodes = lab.files["cluster-state/inventory/nodes.yaml"].partition("---")[2].replace("003-004", "009-010")
    plan = planned(lab, lab.desire({"cluster-state/inventory/nodes.yaml": nodes}))
    assert exit_status(plan) is ExitStatus.MASS_REMOVAL
    assert plan.removals[0].what == "nodes in use"


def test_a_tree_without_desired_state_is_an_error_and_never_an_empty_one(lab: Lab) -> None:
    settled(lab, "a")
    lab.files = {"README.md": "gone"}
    plan = planned(lab, lab.desire())
    assert not plan.decided
    assert [found.code for found in plan.errors] == ["PathNotFound"]
    assert exit_status(plan) is ExitStatus.INVALID


# --- still true? (g12) ---


def test_a_preview_names_what_it_stands_on_and_is_stale_as_soon_as_that_moves(lab: Lab) -> None:
    desk = settled(lab)
    base = lab.remote.tip("refs/heads/main")
    assert base is not None
    head = lab.remote.commit(
        {p: c.encode() for p, c in {**lab.files, **jobs("a")}.items()}, ref="refs/heads/pull", parent=base
    )
    clone, sides = lab.remote.path, ("--base", base, "--head", head)
    tree = json.loads(gangops(clone, *sides, "-o", "json").stdout)
    digest = tree["basis"]["digest"]
    assert (tree["basis"]["base"], tree["basis"]["head"], tree["basis"]["state"]) == (base, head, lab.tip)
    assert digest[:12] in gangops(clone, *sides).stdout
    for shown in (digest, f"sha256:{digest[:12]}"):
        assert gangops(clone, *sides, "--check", shown).return_value == ExitStatus.OK
    # Time alone makes nothing stale; another base does, and so does another state.
    assert gangops(clone, *sides, "--check", digest, "--at", "2027-01-01T00:00:00Z").return_value == ExitStatus.OK
    moved = lab.desire(jobs("b"))
    assert gangops(clone, "--base", moved, "--head", head, "--check", digest).return_value == ExitStatus.LOST_RACE
    then = lab.tip
    desk.settle()
    stale = gangops(clone, *sides, "--check", digest)
    assert (stale.return_value, stale.stdout.partition(":")[0]) == (6, "stale")
    assert gangops(clone, *sides, "--check", digest, "--state", then).return_value == ExitStatus.OK
    assert (
        gangops(clone, *sides, "--check", digest[:4]).return_value == ExitStatus.LOST_RACE
    )  # too short to mean anything


def test_the_command_in_the_footer_prints_the_same_plan(lab: Lab) -> None:
    desk = settled(lab)
    base = lab.remote.tip("refs/heads/main")
    plan = planned(lab, lab.desire(jobs("a", "b")), base=base)
    lab.clock.advance(3600 * SECOND)
    desk.settle()
    words = " ".join(plan.basis.command).split()[2:]
    assert gangops(lab.remote.path, *words).stdout == f"{plan_text(plan)}\n"


# --- what is found in the files ---


def test_only_what_the_change_brings_is_held_against_it(lab: Lab) -> None:
    settled(lab)
    base = lab.desire({job_file("broken"): job_text("broken").replace("gpus: 8", "gpus: many")})
    plan = planned(lab, lab.desire(jobs("a")), base=base)
    assert [(found.new, found.file) for found in plan.findings if found.is_error] == [(False, job_file("broken"))]
    assert exit_status(plan) is ExitStatus.OK
    worse = planned(lab, lab.desire({job_file("other"): "x: [\n"}), base=base)
    assert {found.file for found in worse.errors} == {job_file("other")}
    assert exit_status(worse) is ExitStatus.INVALID


def test_findings_become_annotations_at_their_lines(lab: Lab) -> None:
    settled(lab)
    base = lab.remote.tip("refs/heads/main")
    head = lab.desire({job_file(f"j{n}"): job_text(f"j{n}").replace("gpus: 8", "gpus: many") for n in range(12)})
    told = annotation_lines(planned(lab, head, base=base))
    errors = [line for line in told if line.startswith("::error ")]
    assert len(errors) == 10
    assert errors[0] == (
        f"::error file={job_file('j0')},line=6,col=9,title=WrongType::Expected a whole number, found text."
    )


# --- values that nobody marked secret (g26) ---

TOKEN = "c0ffee0123"


@pytest.mark.parametrize(("before", "after"), [(TOKEN, ""), ("", TOKEN), (TOKEN, "c0ffee9999"), ("c0ffee9999", TOKEN)])
def test_g26_the_value_of_a_variable_is_printed_nowhere(before: str, after: str, lab: Lab) -> None:
    settled(lab)

    def text(value: str) -> str:
        return job_text("a").replace(
            "train.py]}", f"train.py], env: {{MODEL_HASH: '{value}'}}}}" if value else "train.py]}"
        )

    base = lab.desire({job_file("a"): text(before)})
    plan = planned(lab, lab.desire({job_file("a"): text(after)}), base=base)
    assert [edit.field for edit in plan.rows[0].edits] == ["run.env.MODEL_HASH"]
    for form in FORMS:
        told = form(plan)
        assert "c0ffee" not in told
        assert "MODEL" in told
    assert plan.rows[0].edits[0].after in {"(removed)", "(added)", "(value changed)"}


# --- clones of all kinds ---


def cloned(lab: Lab, *flags: str) -> Path:
    git(lab.folder, "clone", "-q", "--bare", *flags, f"file://{lab.remote.path}", "clone")
    return lab.folder / "clone"


def test_a_shallow_clone_will_do(lab: Lab) -> None:
    settled(lab, "a")
    base = lab.remote.tip("refs/heads/main")
    head = lab.desire(jobs("b"))
    whole = planned(lab, head, base=base)
    folder = cloned(lab, "--depth=2")
    git(folder, "fetch", "-q", "--depth=1", "origin", "+refs/heads/allocations:refs/remotes/origin/allocations")
    plan = preview(open_clone(folder), head, whole.basis.at, base=base)
    assert plan == whole


def test_a_clone_without_blobs_will_do_and_asks_for_them_in_one_go(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(lab, "a")
    base = lab.remote.tip("refs/heads/main")
    head = lab.desire(jobs("b"))
    git(lab.remote.path, "config", "uploadpack.allowFilter", "true")
    git(lab.remote.path, "config", "uploadpack.allowAnySHA1InWant", "true")
    whole = planned(lab, head, base=base)
    folder = cloned(lab, "--filter=blob:none")
    with monkeypatch.context() as patched:
        run = Git.run
        asked: list[tuple[str, ...]] = []

        def witness(self: Git, *arguments: str, **how: object) -> object:
            if how.get("network"):
                asked.append(arguments)
            return run(self, *arguments, **how)  # type: ignore[arg-type]  # what it was given

        patched.setattr(Git, "run", witness)
        assert preview(open_clone(folder), head, whole.basis.at, base=base) == whole
    assert 1 <= len(asked) <= 3  # the state, the base and the head: one request each, however many files
    assert base is not None
    assert "fetched, all at once" in gangops(folder, "--base", base, "--head", head).stderr


def test_the_kept_state_is_as_good_as_the_branch_and_may_be_damaged(lab: Lab, tmp_path: Path) -> None:
    settled(lab, "a")
    file = tmp_path / "state.cache"
    clone = open_clone(lab.remote.path)
    first = known_generation(clone.git, lab.tip, file)
    assert known_generation(clone.git, lab.tip, file) == first == lab.generation()
    content = file.read_bytes()
    for damaged in (b"", content[:40], content[:-1], content.replace(b"cache 5", b"cache 0"), os.urandom(500)):
        file.write_bytes(damaged)
        assert known_generation(clone.git, lab.tip, file) == first


# --- nothing of a pull request is run (g27, g28) ---


def hostile(lab: Lab) -> tuple[Path, str, str, Path]:
    """A clone whose configuration, hooks, attributes and files all name a program, and a head that does as well."""
    settled(lab, "a")
    base = lab.remote.tip("refs/heads/main")
    assert base is not None
    ran = lab.folder / "ran"
    evil = f"#!/bin/sh\ntouch {ran}\n"
    head = lab.desire(
        {
            **jobs("b"),
            ".gitattributes": "* filter=x diff=x merge=x\n",
            ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% ran\n',
            "conftest.py": f"open({str(ran)!r}, 'w')\n",
            "sitecustomize.py": f"open({str(ran)!r}, 'w')\n",
            "reconciler/__init__.py": f"open({str(ran)!r}, 'w')\n",
            "pwn.sh": evil,
        }
    )
    git(lab.folder, "clone", "-q", str(lab.remote.path), "mine")
    folder = lab.folder / "mine"
    git(folder, "fetch", "-q", "origin", "+refs/heads/allocations:refs/remotes/origin/allocations")
    script = lab.folder / "evil"
    script.write_text(evil)
    script.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "diff.external", "filter.x.smudge", "filter.x.clean", "core.pager",
                "gpg.program", "diff.x.textconv", "core.alternateRefsCommand"):  # fmt: skip
        git(folder, "config", key, str(script))
    for name in ("pre-commit", "commit-msg", "post-commit", "reference-transaction", "pre-push", "post-checkout"):
        hook = folder / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(evil)
        hook.chmod(0o755)
    return folder, base, head, ran


READING, FETCHING = {"git", "ssh-keygen"}, {"sh", "git-upload-pack"}


@pytest.mark.parametrize(
    ("options", "allowed"), [(["--no-fetch"], READING), ([], READING | FETCHING)], ids=["read", "fetched"]
)
def test_a_plan_over_a_hostile_head_runs_git_and_nothing_else(lab: Lab, options: list[str], allowed: set[str]) -> None:
    """Reading objects calls nothing that a clone names; a fetch would call its hooks."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    folder, base, head, ran = hostile(lab)
    trace, branch = lab.folder / "trace", "refs/remotes/origin/main"
    git(folder, "-c", "core.hooksPath=/dev/null", "update-ref", "-d", branch)
    environment = {"PATH": os.environ["PATH"], "HOME": str(lab.folder), "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=execve", "-s", "200", "-o", str(trace), sys.executable, "-m", "reconciler.cli",
         "-C", str(folder), "plan", *options, "--base", base, "--head", head],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr.lower():
        pytest.skip("this machine does not let strace trace")
    assert done.returncode == 0, done.stderr
    assert "nlp/b" in done.stdout
    executed = [line.partition('execve("')[2].partition('"')[0] for line in trace.read_text().splitlines()
                if "execve(" in line and line.endswith("= 0")]  # fmt: skip
    programs = {Path(program).name for program in executed[1:]}  # the first is the interpreter itself
    assert programs <= allowed, programs
    assert "git" in programs
    assert bool(git(folder, "for-each-ref", branch)) is not ("--no-fetch" in options), "it is fetched, or not"
    assert not ran.exists()


def test_validate_and_plan_never_run_what_a_clone_names(lab: Lab) -> None:
    folder, base, head, ran = hostile(lab)
    clone = open_clone(folder)
    clone.refresh()
    plan = preview(clone, head, Instant(lab.clock.now()), base=base)
    assert [row.job for row in plan.rows] == ["nlp/b"]
    assert (
        CliRunner().invoke(root, ["-C", str(folder), "validate", "--rev", head], standalone_mode=False).return_value
        == 0
    )
    assert not ran.exists()


# --- too large to be shown (g25) ---


def test_g25_four_thousand_moves_fit_into_a_comment_and_say_what_is_left_out(lab: Lab) -> None:
    settled(lab, "a")
    plan = planned(lab, lab.desire(jobs("b")))
    row = replace(plan.rows[0], step=Step.MOVE, was="r01 gpu-001", why="moves " * 40, own=False)
    rows = [replace(row, job=f"nlp/job-{n}", lost_gpu_seconds=n) for n in range(3999)]
    rows.append(replace(row, job=f"nlp/{'🦆' * 200}", lost_gpu_seconds=10**9))
    large = replace(plan, rows=tuple(rows), lost_gpu_seconds=sum(one.lost_gpu_seconds for one in rows))
    told = plan_markdown(large, more="[All of it](https://example.org/run/1)")
    assert len(told) < 60_000
    assert len(told.encode()) < 1_048_576
    assert "4,000 moved" in told
    assert "🦆" in told  # the victim with the most lost work
    assert "jobs that pay left out" in told
    assert "[All of it](https://example.org/run/1)" in told
    assert told.count("```") % 2 == 0
    assert told.count("<details>") == told.count("</details>")


# --- a repository without a record ---


def test_without_a_state_branch_the_cluster_is_taken_to_be_empty_and_the_plan_says_so(lab: Lab) -> None:
    base = lab.desire(jobs("a"))
    head = lab.desire(jobs("b", gpus=16))
    alone = planned(lab, head)
    assert {(row.job, row.step) for row in alone.rows} == {("nlp/a", Step.PLACE), ("nlp/b", Step.PLACE)}
    assert (alone.before.busy, alone.after.busy, alone.after.capacity) == (0, 24, 32)
    plan = planned(lab, head, base=base)
    assert [(row.job, row.step) for row in plan.rows] == [("nlp/b", Step.PLACE)]
    assert plan.basis.state == ""
    told = gangops(lab.remote.path, "--base", base, "--head", head).stdout
    assert "Assumed: there is no state branch here: nothing runs, all declared nodes are well." in " ".join(
        told.split()
    )
    assert "--state" not in told
    assert all(len(line) <= 80 for line in told.splitlines())
    for form in (plan_markdown, plan_page):
        assert "assumed: there is no state branch here" in form(plan)
    digest = ("--base", base, "--head", head, "--check", plan.basis.digest)
    assert gangops(lab.remote.path, *digest).return_value == ExitStatus.OK


def test_without_a_state_branch_and_without_a_cluster_the_files_are_to_blame(lab: Lab) -> None:
    head = lab.desire({"cluster-state/cluster.yaml": None})
    with pytest.raises(InvalidInput) as caught:
        planned(lab, head)
    assert "MissingClusterConfig" in {found.code for found in caught.value.diagnostics}


# --- what defragmentation proposes ---


def test_moves_that_would_free_a_domain_are_told_in_a_line_with_their_price(lab: Lab) -> None:
    spread = {job_file(f"w{n}"): job_text(f"w{n}", 4) for n in range(6)}
    lab.begin(**spread)
    desk = lab.desk()
    desk.settle()
    lab.clock.advance(600 * SECOND)
    # One of each pair ends: three half-used nodes, of which one could be emptied.
    by_node: dict[str, list[str]] = {}
    for name in [f"w{n}" for n in range(6)]:
        placement = desk.record(name).placement
        assert placement is not None
        by_node.setdefault(placement.nodes[0], []).append(name)
    for pair in by_node.values():
        if len(pair) > 1:
            desk.engine.cluster.finish(f"nlp/{pair[0]}")
    lab.desire(jobs("last"))
    desk.settle()
    plan = planned(lab, MAIN.removeprefix("refs/heads/"))
    (one,) = plan.tidying
    (hop,) = one.hops
    assert one.gpus == 8
    assert one.phi_after_ppm < one.phi_before_ppm
    assert hop.source == one.nodes
    assert hop.lost_gpu_seconds >= 4 * 600
    line = f"Defragment: 1 move frees 1 whole domain, cost {hop.lost_gpu_seconds * 10 // 3600 / 10} GPU-h"
    for form in (plan_text, plan_markdown, plan_page):
        assert line in form(plan)
    assert f"  {hop.job}: {hop.source} -> {hop.target}, " in plan_text(plan)
    (row,) = json.loads(plan_text_json(plan))["tidying"]
    assert row["hops"][0]["job"] == hop.job
    status = CliRunner().invoke(root, ["-C", str(lab.remote.path), "status", "--no-fetch"], standalone_mode=False)
    assert "Defragment: 1 move frees 1 whole domain" in status.stdout
    asked = ["explain", "job", hop.job, "--no-fetch"]
    told = CliRunner().invoke(root, ["-C", str(lab.remote.path), *asked], standalone_mode=False)
    assert f"Defragment proposes to move it for {one.nodes}: {hop.job}" in told.stdout
    # A change has it only where the change brings it.
    head = lab.desire({"README.md": "x"})
    assert planned(lab, head, base=lab.generation().summary.desired_commit).tidying == ()
