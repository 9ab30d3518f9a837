"""Verbs that read, on a real clone of a real record: what a person and a script get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ruamel.yaml import YAML

from reconciler.cli.root import root
from reconciler.errors import AuditFailed, ExitStatus, NotFound
from tests.store.world import STATE, git

ROOT = Path(__file__).parents[2]


def gangops(clone: Path, *arguments: str) -> Result:
    done = CliRunner().invoke(root, ["-C", str(clone), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done


def ended(clone: Path, *arguments: str) -> Result:
    """As `gangops`, with the status it ends with as the result's value."""
    return CliRunner().invoke(root, ["-C", str(clone), *arguments], standalone_mode=False)


def test_status_is_a_page(clone: Path) -> None:
    lines = gangops(clone, "status").stdout.splitlines()
    assert lines[0].startswith("lab   generation 4, decided ")
    assert lines[1].startswith("16 of 32 GPUs held, 16 idle")
    assert [line.split()[:3] for line in lines if line.startswith("nlp/")] == [
        ["nlp/sft", "Running", "16"],
        ["nlp/wide", "Pending", "32"],
    ]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_status_for_machines_has_a_version(clone: Path, output: str) -> None:
    text = gangops(clone, "status", "-o", output).stdout
    tree = json.loads(text) if output == "json" else YAML(typ="safe").load(text)
    assert (tree["formatVersion"], tree["kind"]) == ("1.0", "Status")
    assert [job["state"] for job in tree["jobs"]] == ["Running", "Pending"]


@pytest.mark.parametrize(
    ("kind", "names"),
    [("jobs", ["nlp/sft", "nlp/wide"]), ("nodes", [f"gpu-00{n}" for n in (1, 2, 3, 4)]), ("queues", ["nlp", "root"])],
)
def test_names_are_for_pipes(clone: Path, kind: str, names: list[str]) -> None:
    assert gangops(clone, "get", kind, "-o", "name").stdout.split() == names
    assert len(gangops(clone, "get", kind).stdout.splitlines()) == len(names) + 1
    assert len(json.loads(gangops(clone, "get", kind, "-o", "json").stdout)[kind]) == len(names)


def test_describe_with_its_ranks(clone: Path) -> None:
    lines = gangops(clone, "describe", "nlp/sft", "--topology").stdout.splitlines()
    assert "where         r01 gpu-[001-002]" in lines
    assert lines[-1].split() == ["15", "gpu-002", "7", "-", "-", "-", "GPU-gpu-002-7"]


def test_explain_a_job_that_waits(clone: Path) -> None:
    told = gangops(clone, "explain", "job", "nlp/wide").stdout
    assert "nlp/wide is Pending" in told
    assert "<- binding" in told
    assert "gangops replay 4" in told


def test_history_of_all_and_of_one_job(clone: Path) -> None:
    rows = gangops(clone, "history").stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["#4", "#3", "#2", "#1", "#0"]
    rows = gangops(clone, "history", "nlp/wide").stdout.splitlines()[1:]
    assert len(rows) == 1
    assert rows[0].split()[4:7] == ["wait", "-", "nlp/wide"]
    assert "needs 32 GPUs" in rows[0]
    tree = json.loads(gangops(clone, "history", "-o", "json", "-n", "2").stdout)
    assert [row["subject"] for row in tree["generations"]] == ["nlp/wide waits", "nlp/sft runs"]


def test_replay_recomputes_all(clone: Path) -> None:
    assert gangops(clone, "replay", "--all").stdout == "4 of 4 decisions recomputed, byte for byte identical\n"
    assert gangops(clone, "replay", "2").stdout.startswith("1 of 1")
    rows = json.loads(gangops(clone, "replay", "--all", "-o", "json").stdout)["generations"]
    assert [row["identical"] for row in rows] == [True] * 4


def test_plan_of_a_work_in_progress_exits_with_two_only_when_asked(clone: Path) -> None:
    assert gangops(clone, "plan", "--head", "origin/main").exit_code == ExitStatus.OK
    told = gangops(clone, "plan", "--head", "origin/main", "--detailed-exitcode")
    assert "No job changes" in told.stdout
    assert json.loads(gangops(clone, "plan", "--head", "origin/main", "-o", "json").stdout)["rows"] == []


def test_a_code_is_explained_in_words_for_people() -> None:
    told = CliRunner().invoke(root, ["explain", "code", "running"])
    assert told.output == "Running\n  all <ranks> ranks started\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["describe", "nlp/none"], "UnknownJob"),
        (["describe", "nlp/wide", "--topology"], "NotPlaced"),
        (["explain", "job", "sfft"], "UnknownJob"),
        (["explain", "code", "Nope"], "UnknownCode"),
        (["history", "nlp/none"], "UnknownJob"),
        (["replay", "77"], "UnknownGeneration"),
        (["plan", "--head", "nope"], "UnknownRevision"),
        (["logs", "nlp/sft", "--dir", "/nonexistent"], "LogsMissing"),
    ],
)
def test_what_does_not_exist_is_not_found(clone: Path, arguments: list[str], code: str) -> None:
    done = CliRunner().invoke(root, ["-C", str(clone), *arguments])
    assert isinstance(done.exception, NotFound)
    assert done.exception.code == code


def test_a_flipped_digit_makes_replay_exit_5_and_name_the_generation(clone: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--mirror", str(clone.parent / "remote.git"), "forged.git")
    forged = tmp_path / "forged.git"
    tip = git(forged, "rev-parse", STATE).decode().strip()
    path = "allocation/jobs/nlp/sft.yaml"
    content = git(forged, "show", f"{tip}:{path}").replace(b'gpus: "0-7"', b'gpus: "0-6,8"', 1)
    raw = git(forged, "cat-file", "commit", tip).decode()
    message = raw.partition("\n\n")[2].encode()
    stream = f"commit {STATE}\ncommitter T <t@t> 1000 +0000\ndata {len(message)}\n".encode() + message
    parents = [line.split()[1] for line in raw.splitlines() if line.startswith("parent ")]
    stream += f"from {parents[0]}\nmerge {parents[1]}\n".encode()
    tree = git(forged, "ls-tree", tip).decode().splitlines()
    stream += b"deleteall\n" + b"".join(
        f"M {row.split()[0]} {row.split()[2]} {row.partition(chr(9))[2]}\n".encode() for row in tree
    )
    stream += f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n"
    git(forged, "fast-import", "--quiet", "--force", "--date-format=raw", stdin=stream)

    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli", "-C", str(forged), "replay", "--all", "--no-fetch"],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == AuditFailed.exit_status == 5
    assert done.stdout.startswith("#4 ")
    assert path in done.stdout
    assert "the first is generation 4" in done.stderr


def test_doctor_looks_at_a_cluster(clone: Path, tmp_path: Path) -> None:
    """One job of 16 runs on two nodes of the record; the log says that their ring goes over TCP."""
    log = tmp_path / "nccl.log"
    log.write_text(
        "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
        "n2:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0\n"
    )
    arguments = ("doctor", "--cluster", "--no-fetch", "--settings", str(tmp_path / "none"))
    well = ended(clone, *arguments)
    assert (well.return_value, well.stdout) == (0, "no anomalies; looked at generation 4\n")
    ill = ended(clone, *arguments, "--nccl-log", str(log), "-o", "json")
    tree = json.loads(ill.stdout)
    assert (ill.return_value, tree["kind"], tree["looked"]) == (1, "Anomalies", ["generation 4", "1 NCCL logs"])
    assert [(a["code"], a["on"]) for a in tree["anomalies"]] == [("RingOverSockets", "n1")]
    silent = ended(clone, *arguments, "--live", "127.0.0.1:1")
    assert (silent.return_value, silent.stdout.splitlines()[0]) == (1, "! ReconcilerSilent  reconciler")
