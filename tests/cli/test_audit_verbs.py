"""The auditor's verbs on a real clone: what a person reads, what a script parses, and the exit status."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.errors import AuditFailed, ExitStatus, NotFound, UsageError
from reconciler.store.signatures import allowed_signers_line
from reconciler.store.statecommit import Writer
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import STATE, git, new_repository


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Path:
    """A clone of a record in which one job runs and one came by a pull request."""
    folder = tmp_path_factory.mktemp("audit")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    signers = allowed_signers_line("gangops@lab", writer.signer.public_key())
    lab.begin(**jobs("sft", gpus=16), **{"cluster-state/trust/allowed_signers": signers})
    desk = lab.desk()
    desk.settle()
    lab.clock.advance(3600 * 10**9)
    lab.desire({job_file("two"): job_text("two", 8)}, message="Add two (#7)\n")
    desk.settle()
    git(folder, "clone", "-q", str(lab.remote.path), "clone")
    (folder / "clone" / "signers").write_text(signers)
    return folder / "clone"


def gangops(clone: Path, *arguments: str) -> Result:
    done = CliRunner().invoke(root, ["-C", str(clone), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def test_history_of_a_job_tells_who_and_why(clone: Path) -> None:
    lines = gangops(clone, "history", "nlp/two").stdout.splitlines()
    assert lines[0].split() == ["#", "WHEN", "COMMIT", "ACTION", "GPUS", "JOB", "BY", "WHY"]
    assert [line.split()[4:] for line in lines[1:]][-1] == [
        "place",
        "8",
        "nlp/two",
        "PR",
        "#7",
        "8",
        "GPUs",
        "in",
        "one",
        "nvlinkDomain",
    ]


def test_who_held_a_node_then(clone: Path) -> None:
    told = json.loads(gangops(clone, "history", "--node", "gpu-001", "--at", "2026-01-01T00:30Z", "-o", "json").stdout)
    assert (told["formatVersion"], told["kind"], told["inForce"]["generation"]) == ("1.0", "Holders", 3)
    (holder,) = told["holders"]
    assert (holder["job"], holder["gpus"], holder["generation"]) == ("nlp/sft", "0-7", 1)
    assert (
        "Nobody held a GPU there." in gangops(clone, "history", "--node", "gpu-003", "--at", "2026-01-01T00:30Z").stdout
    )


@pytest.mark.parametrize("arguments", [("nlp/two",), ("--node", "gpu-003"), ("--pr", "7")])
def test_a_folder_inside_the_clone_tells_the_same(clone: Path, arguments: tuple[str, ...]) -> None:
    (clone / ".git/gangops/audit-index").unlink(missing_ok=True)
    inside = gangops(clone / "cluster-state" / "jobs", "history", *arguments).stdout
    assert inside == gangops(clone, "history", *arguments).stdout
    assert "nlp/two" in inside


@pytest.mark.parametrize("output", ["json", "csv"])
def test_history_for_machines(clone: Path, output: str) -> None:
    text = gangops(clone, "history", "--pr", "#7", "-o", output).stdout
    rows = json.loads(text)["generations"] if output == "json" else list(csv.DictReader(text.splitlines()))
    assert {row["job"] for row in rows} == {"nlp/two"}
    assert [row["action"] for row in rows] == ["running", "start", "place"]
    assert {row["pullRequest"] for row in rows} == {"7"}


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["history", "nlp/none"], NotFound, "UnknownJob"),
        (["history", "nlp/sft", "--since", "2026-10-10"], NotFound, "NothingFound"),
        (["history", "--queue", "none"], NotFound, "NoJobsInQueue"),
        (["history", "--node", "gpu-999"], NotFound, "UnknownNode"),
        (["history", "--node", "gpu-999", "--at", "2026-01-02"], NotFound, "UnknownNode"),
        (["history", "--at", "9999-01-01"], UsageError, "TimeToCome"),
        (["history", "--at", "2026-01-02", "--since", "2026-01-01"], UsageError, "TwoTimes"),
        (["history", "--since", "2026-01-02", "--until", "2026-01-01"], UsageError, "EmptyPeriod"),
        (["history", "--since", "2026-10-10", "--until", "2026-10-11"], NotFound, "NothingFound"),
        (["history", "--since", ""], UsageError, "BadTime"),
        (["history", "--at", "yesterday"], UsageError, "BadTime"),
        (["history", "--at", "2020-01-01"], NotFound, "BeforeTheRecord"),
        (["history", "--gpu", "1"], UsageError, "GpuOfNoNode"),
        (["usage", "--by", "colour"], UsageError, "UnknownGroup"),
        (["usage", "--since", "2027-01-01"], UsageError, "EmptyPeriod"),
        (["usage", "--until", "9999-01-01"], UsageError, "TimeToCome"),
        (["replay", "9..x"], UsageError, "BadRange"),
        (["replay", "9..3"], UsageError, "BadRange"),
        (["replay", "3", "--all"], UsageError, "TwoRanges"),
        (["audit", "verify", "--contains", ""], UsageError, "BadCommit"),
        (["audit", "verify", "--root", "main"], UsageError, "BadCommit"),
        (["audit", "verify", "--signers", "/dev/null"], UsageError, "NoSigners"),
        (["replay", "99"], NotFound, "UnknownGeneration"),
        (["audit", "verify", "--since", "99"], NotFound, "UnknownGeneration"),
    ],
)
def test_what_cannot_be_answered(clone: Path, arguments: list[str], kind: type[Exception], code: str) -> None:
    done = CliRunner().invoke(root, ["-C", str(clone), *arguments])
    assert isinstance(done.exception, kind)
    assert getattr(done.exception, "code", "") == code


def test_usage_in_each_form(clone: Path) -> None:
    assert "capacity x time" in gangops(clone, "usage").stdout
    assert gangops(clone, "usage", "-o", "markdown").stdout.startswith("### 2026-01-01 to ")
    rows = list(csv.DictReader(gangops(clone, "usage", "--by", "job", "-o", "csv").stdout.splitlines()))
    assert [row["key"] for row in rows] == ["nlp/sft", "nlp/two"]
    (total,) = json.loads(gangops(clone, "usage", "-o", "json").stdout)["totals"]
    parts = ("starting", "running", "stalled", "stopping", "reserved", "idle", "unavailable")
    assert total["capacityNanoseconds"] == sum(total[f"{part}Nanoseconds"] for part in parts)


def test_replay_of_a_range(clone: Path) -> None:
    told = json.loads(gangops(clone, "replay", "2..4", "-o", "json").stdout)["generations"]
    assert [(row["generation"], row["identical"]) for row in told] == [(4, True), (3, True), (2, True)]


def test_an_untouched_record_verifies_and_the_clone_remembers(clone: Path) -> None:
    done = gangops(clone, "audit", "verify", "--signers", str(clone / "signers"), "--jobs", "1")
    assert done.exit_code == ExitStatus.OK
    lines = done.stdout.splitlines()
    assert all(line.endswith(" ok") for line in lines[:9])
    assert lines[9].startswith("Verified #0..#")
    tip = git(clone, "rev-parse", "origin/allocations").decode().strip()
    assert (clone / ".git/gangops/verified").read_text().strip() == tip
    assert json.loads(gangops(clone, "audit", "verify", "-j", "1", "-o", "json").stdout)["verified"] is True


def test_a_bad_record_names_the_first_bad_generation_and_exits_with_5(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(clone), "bad.git")
    bad = tmp_path / "bad.git"
    git(bad, "update-ref", STATE, git(clone, "rev-parse", "origin/allocations").decode().strip())
    third = git(bad, "rev-parse", f"{STATE}~3").decode().strip()
    git(bad, "replace", third, f"{STATE}~4")
    done = CliRunner().invoke(root, ["-C", str(bad), "audit", "verify", "--no-fetch", "-j", "1"])
    assert isinstance(done.exception, AuditFailed)
    assert (done.exception.exit_status, done.exception.code, done.exception.generation) == (5, "ReplacedObject", 3)
    assert "NOT verified: generation 3 is the first bad one" in done.stdout


def test_exceptions_and_gc_and_report(clone: Path, tmp_path: Path) -> None:
    told = json.loads(gangops(clone, "audit", "exceptions", "-o", "json").stdout)["exceptions"]
    assert [row["kind"] for row in told] == ["Unproven", "SelfMerged", "Unsigned", "Unproven"]
    gangops(clone, "gc")
    assert list((clone / ".git/objects/info").glob("commit-graph*"))
    file = tmp_path / "report.html"
    gangops(clone, "report", "--html", str(file), "--verify")
    page = file.read_text()
    assert "Content-Security-Policy" in page
    assert "nlp/two" in page
    assert "verified: " in page
