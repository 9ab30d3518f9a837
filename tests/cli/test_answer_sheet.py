"""The auditor's answer sheet is true: every command in it is run again on the record it was written for.

With `--update-goldens` the answers are written anew, and a person reads the difference. Ids, fingerprints and our version
change with every key and release, so they are not compared.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.errors import GangOpsError
from reconciler.model.units import MINUTE
from reconciler.store.signatures import allowed_signers_line
from reconciler.store.statecommit import Writer
from tests.runtime.lab import CLASSES, QUEUES, Desk, Lab, job_text
from tests.runtime.test_policies import merged, user
from tests.store.world import git, new_repository

SHEET = Path(__file__).parents[2] / ".github" / "AUDIT.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
# An id that could be read as a number stands in quotes, another does not.
_CHANGING = re.compile(r"\"?\b[0-9a-f]{7,64}\b\"?|SHA256:\S+|gangops \d+\.\d\S*|packageVersion: \S+")
CHECKPOINT = "  checkpoint: {dir: /fs/ckpt, every: 30m}\n"


def of(queue: str, name: str, gpus: int, more: str = "") -> dict[str, str]:
    text = job_text(name, gpus, more=f"  timeLimit: 12h\n{more}").replace("queue: nlp", f"queue: {queue}")
    return {f"cluster-state/jobs/{queue}/{name}.yaml": text}


class Story:
    """A morning: two teams, an eviction, a node that fails, a change that nobody reviewed."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self.lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
        self.signers = allowed_signers_line("gangops@lab", writer.signer.public_key())
        queues = QUEUES.replace("spec: {parent: root}", "spec: {parent: root, guaranteed: {H100: 24}}")
        vision = queues.rpartition("---\n")[2].replace("name: nlp", "name: vision").replace("H100: 24", "H100: 8")
        self.lab.begin(
            **{
                "cluster-state/queues/tree.yaml": f"{queues}---\n{vision}",
                "cluster-state/priorities/classes.yaml": CLASSES,
                "cluster-state/trust/allowed_signers": self.signers,
                "cluster-state/users/kim.yaml": user("kim", "@acme/nlp"),
                "cluster-state/users/ana.yaml": user("ana", "@acme/release"),
                "cluster-state/users/leo.yaml": user("leo", "@acme/vision"),
            }
        )
        self.desk: Desk = self.lab.desk()
        self.desk.settle()

    def merge(self, minutes: int, who: str, message: str, files: dict[str, str | None], *, alone: bool = False) -> None:
        """Some minutes later somebody's change is merged by the forge, or by its author alone."""
        self.lab.clock.advance(minutes * MINUTE)
        self.lab.desire(files)
        merged(
            self.lab,
            message,
            author=who,
            committer=f"{who} <{who}@acme.org>" if alone else "GitHub <noreply@github.com>",
        )
        self.desk.settle()

    def play(self) -> None:
        cluster = self.desk.engine.cluster
        self.merge(
            4,
            "kim",
            "Fine-tune on the new corpus (#11)\n\nApproved-by: ana <ana@acme.org>\n",
            dict(of("nlp", "sft", 16, CHECKPOINT)),
        )
        self.merge(10, "leo", "Train dino (#12)\n", dict(of("vision", "dino", 8)), alone=True)
        self.lab.clock.advance(15 * MINUTE)
        cluster.checkpoint("nlp/sft")
        self.merge(
            5,
            "ana",
            "Serve the demo, in production (#13)\n\nApproved-by: kim <kim@acme.org>\n",
            dict(of("nlp", "demo", 16, "  priorityClass: production\n")),
        )
        self.lab.clock.advance(30 * MINUTE)
        cluster.finish("nlp/demo")
        self.desk.settle()
        self.lab.clock.advance(20 * MINUTE)
        cluster.finish("nlp/sft", 1, node="gpu-001")
        self.desk.settle()
        self.merge(
            5,
            "leo",
            "Stop dino (#14)\n\nApproved-by: kim <kim@acme.org>\n",
            {"cluster-state/jobs/vision/dino.yaml": None},
        )
        self.lab.clock.advance(10 * MINUTE)
        self.desk.settle()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Path:
    """An auditor's clone, with the signers got by another way."""
    folder = tmp_path_factory.mktemp("sheet")
    story = Story(folder, writer)
    story.play()
    git(folder, "clone", "-q", str(story.lab.remote.path), "clone")
    (folder / "clone" / "operators.allowed_signers").write_text(story.signers)
    return folder / "clone"


def answer(command: str, clone: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a line prints, in the clone."""
    monkeypatch.chdir(clone)
    words = shlex.split(command)
    if words[0] == "git":
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert words[0] == "gangops"
    done = CliRunner().invoke(root, words[1:])
    assert done.exception is None or isinstance(done.exception, SystemExit | GangOpsError), done.exception
    told = f"error: {done.exception}\n" if isinstance(done.exception, GangOpsError) else ""
    return done.stdout + told


def rerun(block: str, clone: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The block as it comes out now."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"{line}\n{answer(line[2:], clone, monkeypatch)}" for line in commands)


def masked(text: str) -> str:
    return "\n".join(line.rstrip() for line in _CHANGING.sub("…", text).splitlines())


@pytest.mark.timeout(600)
def test_every_answer_comes_out_as_it_is_written(
    clone: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sheet = SHEET.read_text()
    if request.config.getoption("--update-goldens"):
        sheet = BLOCK.sub(lambda found: f"```console\n{rerun(found[1], clone, monkeypatch)}```", sheet)
        SHEET.write_text(sheet)
    blocks = BLOCK.findall(sheet)
    assert len(blocks) >= 10
    for block in blocks:
        assert masked(rerun(block, clone, monkeypatch)) == masked(block)


def test_there_are_ten_questions_and_each_has_an_answer() -> None:
    parts = re.split(r"^## \d+\. ", SHEET.read_text(), flags=re.MULTILINE)[1:]
    assert len(parts) >= 10
    for part in parts:
        title, _, rest = part.partition("\n")
        assert title.endswith("?")
        assert BLOCK.search(rest)
