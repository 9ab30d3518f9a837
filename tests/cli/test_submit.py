"""submit and new job: from a file, a script or a few answers to the right place in the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.documents.edit import format_text
from reconciler.errors import ExitStatus, InvalidInput
from reconciler.store.statecommit import Writer
from tests.cli.people import Kept, Person, codes, on_a_terminal, person_at
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import new_repository, text

JOB = """\
# my job
apiVersion: gangops/v1
kind: Job
metadata: {name: fresh}
spec:
  queue: nlp
  gpus: 8
  timeLimit: 2h
  run:
    command: [python, train.py]   # the trainer
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=tok
#SBATCH --nodes=2 --gpus-per-node=8
#SBATCH --account=nlp
#SBATCH --time=1:00:00
#SBATCH --mail-type=END
srun python train.py
"""


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Kept:
    folder = tmp_path_factory.mktemp("idle")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**jobs("sft"))
    lab.desk().settle()
    return Kept(lab)


@pytest.fixture
def ada(idle: Kept, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Person:
    return person_at(idle.again(tmp_path, writer), monkeypatch)


@pytest.fixture
def code(ada: Person) -> Path:
    """A folder of Ada's own, no cluster repository."""
    folder = ada.home / "code"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (folder / "train.sh").write_text(SCRIPT)
    return folder


def submitted(ada: Person, code: Path, *arguments: str, input_: str = "") -> str:
    """What `submit` printed, run in that folder on Ada's clone."""
    return ada.done("-C", str(ada.clone), "submit", *arguments, "--yes", at=code, input_=input_).stdout


def test_a_file_goes_to_its_queue_and_starts_where_its_author_stood(ada: Person, code: Path) -> None:
    told = submitted(ada, code, "job.yaml")
    branch = ada.only_branch()
    assert branch.startswith("gangops/submit-fresh-")
    assert ada.at(branch, job_file("fresh")) == f"{JOB}    workingDir: {code}\n"
    assert text(ada.lab.remote.path, "log", "-1", "--format=%s", branch) == "Submit nlp/fresh"
    assert any(line.split()[:3] == ["+", "place", "nlp/fresh"] for line in told.splitlines())


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (JOB + "    workingDir: /fs/other\n", "it says where it starts"),
        (JOB + "    image: registry/img@sha256:0\n", "an image has a folder of its own"),
    ],
    ids=lambda value: value if len(value) < 50 else "job",
)
def test_a_job_that_says_where_it_starts_is_left_as_it_is(ada: Person, code: Path, job: str, why: str) -> None:
    (code / "job.yaml").write_text(job)
    submitted(ada, code, "job.yaml")
    assert ada.at(ada.only_branch(), job_file("fresh")) == job


def test_no_folder_is_filled_in_when_that_is_not_wanted_or_one_stands_in_the_cluster_repository(
    ada: Person, code: Path
) -> None:
    submitted(ada, code, "job.yaml", "--no-working-dir")
    assert ada.at(ada.only_branch(), job_file("fresh")) == JOB
    told = ada.done("submit", str(code / "job.yaml"), "--dry-run", at=ada.clone / "cluster-state/jobs").stdout
    assert "workingDir" not in told


def test_a_submission_that_is_there_already_and_one_that_changes_a_job(ada: Person, code: Path) -> None:
    (code / "job.yaml").write_text(job_text("sft"))
    assert (
        submitted(ada, code, "job.yaml", "--no-working-dir") == "nothing to change: nlp/sft is on main as it is here\n"
    )
    (code / "job.yaml").write_text(job_text("sft", 16))
    told = submitted(ada, code, "job.yaml", "--no-working-dir")
    assert any(line.split()[:3] == ["-/+", "replace", "nlp/sft"] for line in told.splitlines())
    assert text(ada.lab.remote.path, "log", "-1", "--format=%s", ada.only_branch()) == "Change nlp/sft"


@pytest.mark.parametrize(
    ("content", "code_"),
    [
        ("x: [\n", "InvalidYaml"),
        (JOB.replace("gpus: 8", "gpus: many"), "WrongType"),
        (JOB + "---\n" + JOB, "NotOneJob"),
        ("apiVersion: gangops/v1\nkind: Queue\nmetadata: {name: a}\nspec: {}\n", "NotOneJob"),
        ("", "EmptyFile"),
    ],
)
def test_what_is_no_job_is_refused_with_its_own_place(ada: Person, code: Path, content: str, code_: str) -> None:
    (code / "job.yaml").write_text(content)
    found = ada.run("-C", str(ada.clone), "submit", "job.yaml", "--yes", at=code)
    assert isinstance(found.exception, InvalidInput), found.output
    assert found.exception.exit_status == ExitStatus.INVALID
    assert code_ in {d.code for d in found.exception.diagnostics}
    assert {d.place.file for d in found.exception.diagnostics} == {"job.yaml"}
    assert ada.branches() == []


def test_a_job_that_this_cluster_cannot_take_is_shown_and_not_pushed(ada: Person, code: Path) -> None:
    (code / "job.yaml").write_text(JOB.replace("queue: nlp", "queue: nlb"))
    found = ada.run("-C", str(ada.clone), "submit", "job.yaml", "--yes", at=code)
    assert codes(found) == ("ProposalInvalid", ExitStatus.INVALID)
    assert "error[UnknownQueue]" in found.stdout
    assert ada.branches() == []


def test_standard_input_and_an_absent_file(ada: Person, code: Path) -> None:
    submitted(ada, code, "-", "--no-working-dir", input_=JOB)
    assert ada.at(ada.only_branch(), job_file("fresh")) == JOB
    assert codes(ada.run("submit", "nowhere.yaml", "--yes")) == ("FileNotReadable", ExitStatus.NOT_FOUND)


def test_an_sbatch_script_is_imported_with_a_note_for_what_stays_behind(ada: Person, code: Path) -> None:
    found = ada.done("-C", str(ada.clone), "submit", "--from-sbatch", "train.sh", "--yes", at=code)
    content = ada.at(ada.only_branch(), job_file("tok"))
    assert content is not None
    assert "gpus: 16" in content
    assert f"workingDir: {code}" in content
    assert "NotCarriedOver" in found.stderr
    assert "mail-type" in found.stderr


def test_a_script_that_sbatch_would_refuse_is_refused(ada: Person, code: Path) -> None:
    (code / "train.sh").write_text("echo no shebang\n")
    found = ada.run("-C", str(ada.clone), "submit", "--from-sbatch", "train.sh", "--yes", at=code)
    assert isinstance(found.exception, InvalidInput)


# --- new job ---


def test_from_flags_alone(ada: Person, code: Path) -> None:
    arguments = ("new", "job", "sft2", "--queue", "nlp", "--gpus", "8", "--time-limit", "12h", "--checkpoint", "/fs/c")
    told = ada.done(*arguments, "--into", str(code / "sft2.yaml"), "--", "torchrun", "train.py", "--lr", "1e-4").stdout
    assert told == f"{code / 'sft2.yaml'}\n"
    content = (code / "sft2.yaml").read_text()
    assert (
        content
        == """\
# yaml-language-server: $schema=../../../schemas/job.schema.json
apiVersion: gangops/v1
kind: Job
metadata: {name: sft2}
spec:
  queue: nlp
  gpus: 8
  timeLimit: 12h
  checkpoint: {dir: /fs/c}
  run: {command: [torchrun, train.py, "--lr", "1e-4"]}
"""
    )
    assert format_text(content.encode()).decode() == content
    assert codes(ada.run(*arguments, "--into", str(code / "sft2.yaml"), "--", "x")) == ("FileExists", ExitStatus.USAGE)


def test_the_file_goes_into_the_cluster_repository_one_stands_in_else_beside_one(ada: Person, code: Path) -> None:
    arguments = ("new", "job", "a", "--queue", "nlp", "--gpus", "8", "--session", "--time-limit", "2h")
    assert ada.done(*arguments, at=ada.clone / "cluster-state").stdout == "jobs/nlp/a.yaml\n"
    assert (ada.clone / job_file("a")).exists()
    lost = ada.run("submit", "a.yaml", "--yes", at=ada.clone)
    assert codes(lost) == ("FileNotReadable", ExitStatus.NOT_FOUND)
    assert getattr(lost.exception, "remedy", "") == f"gangops submit {job_file('a')}"
    ada.done("-C", str(ada.clone), *arguments, at=code)
    assert "run: {session: true}" in (code / "a.yaml").read_text()


def test_what_is_missing_off_a_terminal_is_named_at_once(ada: Person) -> None:
    found = ada.run("new", "job", "--gpus", "8")
    assert codes(found) == ("NothingAsked", ExitStatus.USAGE)
    assert str(found.exception).endswith("NAME, --queue, -- COMMAND")


def test_on_a_terminal_it_asks_with_what_the_cluster_knows(
    ada: Person, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_terminal(monkeypatch)
    answers = ["sft3", "nlb", "nlp", "none", "16", "12h", "", "/fs/ckpt/sft3", "torchrun train.py --name 'a b'"]
    found = ada.done("-C", str(ada.clone), "new", "job", at=code, input_="\n".join(answers) + "\n")
    assert "Queue (nlp, root)" in found.stderr
    assert "There is no nlb." in found.stderr
    assert "Priority class (production, research; Enter: the default)" in found.stderr
    assert (code / "sft3.yaml").read_text().splitlines()[4:] == [
        "spec:", "  queue: nlp", "  gpus: 16", "  timeLimit: 12h", "  checkpoint: {dir: /fs/ckpt/sft3}",
        '  run: {command: [torchrun, train.py, "--name", "a b"]}',
    ]  # fmt: skip


def test_a_job_this_cluster_would_not_take_is_not_written(ada: Person, code: Path) -> None:
    found = ada.run("-C", str(ada.clone), "new", "job", "big", "--queue", "nlp", "--gpus", "4000", "--", "x", at=code)
    assert isinstance(found.exception, InvalidInput)
    assert not (code / "big.yaml").exists()
