"""A person's clone: read where it is, whatever its settings say, and honest about what may be old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.errors import ExitStatus, NotFound
from reconciler.model.units import SECOND, Instant, JobKey
from reconciler.render.names import places
from reconciler.render.plan import Step
from reconciler.render.plan.forms import exit_status
from reconciler.runtime.clone import open_clone
from reconciler.runtime.preview import preview
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import git


def cloned(lab: Lab, name: str = "clone") -> Path:
    git(lab.folder, "clone", "-q", str(lab.remote.path), name)
    return lab.folder / name


def test_the_newest_generation_of_a_clone_and_its_refresh(lab: Lab) -> None:
    lab.begin()
    folder = cloned(lab)
    desk = lab.desk()
    lab.desire(jobs("sft"))
    desk.settle()
    clone = open_clone(folder)
    assert clone.generation().summary.generation == 0
    assert clone.refresh() == ""
    assert clone.generation() == lab.generation()


def test_a_remote_that_is_away_is_a_warning(lab: Lab) -> None:
    lab.begin()
    clone = open_clone(cloned(lab))
    lab.remote.path.rename(lab.folder / "away")
    assert "RemoteUnreachable" in clone.refresh()
    assert clone.generation().summary.generation == 0


def test_a_bare_repository_and_a_folder_inside_a_clone_will_do(lab: Lab) -> None:
    lab.begin()
    assert open_clone(lab.remote.path).state_tip() == lab.tip
    assert open_clone(lab.remote.path).refresh() == ""  # it has no origin
    inside = cloned(lab) / "cluster-state" / "jobs"
    assert open_clone(inside).state_tip() == lab.tip


def test_what_a_clone_lacks_is_fetched_as_the_person_who_reads_it(lab: Lab) -> None:
    """A clone without contents needs their login to read; a whole one is read with nobody's settings."""
    lab.begin(**jobs("a"))
    git(lab.remote.path, "config", "uploadpack.allowFilter", "true")
    git(lab.folder, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{lab.remote.path}", "part")
    whole, part = open_clone(cloned(lab)), open_clone(lab.folder / "part")
    assert (whole.partial, whole.git.person) == (False, False)
    assert (part.partial, part.git.person) == (True, True)
    assert whole.git.environment()["HOME"] == os.devnull
    assert part.git.environment()["HOME"] == os.environ["HOME"]


def test_what_is_no_clone(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotFound) as caught:
            open_clone(folder)
        assert caught.value.code == "NotAClone"


def test_a_clone_without_a_state_branch_says_how_to_get_one(lab: Lab) -> None:
    lab.desire()
    with pytest.raises(NotFound) as caught:
        open_clone(cloned(lab)).generation()
    assert caught.value.code == "StateMissing"
    assert "init --state" in caught.value.remedy


def test_no_program_that_a_clone_names_is_run(lab: Lab) -> None:
    lab.begin()
    folder = cloned(lab)
    ran = lab.folder / "ran"
    script = lab.folder / "evil"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "core.pager", "gpg.program", "diff.external"):
        git(folder, "config", key, str(script))
    hooks = folder / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-merge"):
        (hooks / name).write_bytes(script.read_bytes())
        (hooks / name).chmod(0o755)
    clone = open_clone(folder)
    assert clone.refresh() == ""
    assert clone.generation().summary.generation == 0
    assert not ran.exists()


# --- the preview on a clone ---


def test_a_preview_is_the_decision_that_is_then_made(lab: Lab) -> None:
    lab.begin()
    desk = lab.desk()
    lab.clock.advance(600 * SECOND)
    desk.settle()  # what nodes report is in the record now
    folder = cloned(lab)
    head = lab.desire(jobs("sft", gpus=16))
    git(folder, "fetch", "-q")

    plan = preview(open_clone(folder), head, Instant(lab.clock.now() + SECOND))

    assert [(row.step, row.job, row.where) for row in plan.rows] == [(Step.PLACE, "nlp/sft", "r01 gpu-[001-002]")]
    assert plan.basis.generation == lab.numbers()[-1]
    committed = desk.round().committed
    assert committed is not None
    record = committed.allocation.jobs[JobKey("nlp/sft")]
    assert record.placement is not None
    assert plan.rows[0].where == places(record.placement, committed.inputs.desired.inventory)


def test_with_a_base_only_what_the_head_adds_is_shown(lab: Lab) -> None:
    lab.begin()
    desk = lab.desk()
    lab.clock.advance(600 * SECOND)
    desk.settle()
    base = lab.desire(jobs("sft", gpus=16))
    head = lab.desire(jobs("zeta"))
    clone = open_clone(lab.remote.path)
    both = preview(clone, head, lab.clock.now())
    added = preview(clone, head, lab.clock.now(), base=base)
    assert [row.job for row in both.rows] == ["nlp/sft", "nlp/zeta"]
    assert [row.job for row in added.rows] == ["nlp/zeta"]
    assert (added.before.busy, added.after.busy) == (16, 24)


def test_a_preview_of_a_wrong_file_names_every_problem(lab: Lab) -> None:
    lab.begin()
    head = lab.desire({job_file("sft"): job_text("sft").replace("gpus: 8", "gpus: many"), job_file("b"): "x: [\n"})
    plan = preview(open_clone(lab.remote.path), head, lab.clock.now())
    assert {found.file for found in plan.errors} == {job_file("sft"), job_file("b")}
    assert exit_status(plan) is ExitStatus.INVALID


def test_an_unknown_revision(lab: Lab) -> None:
    lab.begin()
    with pytest.raises(NotFound) as caught:
        preview(open_clone(lab.remote.path), "nope", lab.clock.now())
    assert caught.value.code == "UnknownRevision"
