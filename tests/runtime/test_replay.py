"""The record proves itself: every decision follows from its inputs, and whatever is changed is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.model.decision import DECISION_VERSION
from reconciler.model.units import NodeName
from reconciler.runtime.proofs import Proofs
from reconciler.runtime.replay import Replayed, replay
from reconciler.store.history import CommitMeta
from reconciler.store.objects import path_proof
from reconciler.store.statecommit import Writer
from tests.runtime.lab import Lab, jobs
from tests.store.world import MAIN, STATE, Repository, git, new_repository

JOB = "allocation/jobs/nlp/sft.yaml"
SUMMARY = "allocation/summary.yaml"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Path:
    """A record of four generations, made once: begun, placed, started, running."""
    folder = tmp_path_factory.mktemp("kept")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**jobs("sft", gpus=8))
    lab.desk().settle()
    assert lab.numbers() == [0, 1, 2, 3]
    return folder / "remote.git"


@pytest.fixture
def lab(tmp_path: Path, kept: Path, writer: Writer) -> Lab:
    """A copy of that record, to be changed."""
    shutil.copytree(kept, tmp_path / "remote.git")
    return Lab(folder=tmp_path, remote=Repository(tmp_path / "remote.git"), writer=writer)


def rewritten(lab: Lab, number: int, path: str, old: bytes, new: bytes) -> None:
    """The state branch with one file of one generation changed, and every later commit made anew on top."""
    folder = lab.remote.path
    chain = list(reversed(lab.log()))
    parent = chain[number - 1].id
    for meta in chain[number:]:
        files = _tree(folder, meta)
        if meta is chain[number]:
            changed = files[path].replace(old, new)
            assert changed != files[path], files[path].decode()
            files[path] = changed
        parent = _commit(folder, files, meta, parent)
    git(folder, "update-ref", STATE, parent)


def _tree(folder: Path, meta: CommitMeta) -> dict[str, bytes]:
    listed = git(folder, "ls-tree", "-r", "-z", "--name-only", meta.id).decode().split("\0")[:-1]
    return {path: git(folder, "show", f"{meta.id}:{path}") for path in listed}


def _commit(folder: Path, files: dict[str, bytes], meta: CommitMeta, parent: str) -> str:
    stream = [f"commit refs/heads/planted\ncommitter T <t@t> 1000 +0000\ndata {len(meta.message.encode())}\n".encode()]
    stream += [meta.message.encode()]
    stream += [f"from {parent}\nmerge {meta.parents[1]}\n".encode()]
    stream += [b"deleteall\n"]
    for path, content in files.items():
        stream.append(f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n")
    git(folder, "fast-import", "--quiet", "--force", "--date-format=raw", stdin=b"".join(stream))
    return git(folder, "rev-parse", "refs/heads/planted").decode().strip()


def wrong(lab: Lab) -> dict[int, Replayed]:
    return {result.generation: result for result in lab.replayed() if not result.identical}


def test_an_untouched_record_is_identical_and_newest_comes_first(lab: Lab) -> None:
    assert [(r.generation, r.identical) for r in lab.replayed()] == [(3, True), (2, True), (1, True)]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_digit_flipped_in_an_allocation_names_its_generation(lab: Lab, number: int) -> None:
    rewritten(lab, number, JOB, b'gpus: "0-7"', b'gpus: "0-6,8"')
    found = wrong(lab)
    assert min(found) == number
    assert JOB in found[number].differs


@pytest.mark.parametrize(
    ("path", "old", "new", "named"),
    [
        (JOB, b"ranks: 8", b"ranks: 9", JOB),
        (JOB, b"\n", b"\n\n", JOB),
        (SUMMARY, b"held: 8", b"held: 9", SUMMARY),
        (SUMMARY, b"generation: 3", b"generation: 4", SUMMARY),
        (
            "allocation/nodes/r01/gpu-001.json",
            b'"worldSize": 8',
            b'"worldSize": 9',
            "allocation/nodes/r01/gpu-001.json",
        ),
        ("observed/nodes/r01/gpu-001.yaml", b"bootId: boot-", b"bootId: loot-", SUMMARY),
        ("desired/cluster-state/jobs/nlp/sft.yaml", b"gpus: 8", b"gpus: 7", "desired/"),
    ],
)
def test_whatever_is_changed_is_named(lab: Lab, path: str, old: bytes, new: bytes, named: str) -> None:
    rewritten(lab, 3, path, old, new)
    (found,) = wrong(lab).values()
    assert named in found.differs


def test_a_record_that_cannot_be_read_is_a_verdict_and_no_traceback(lab: Lab) -> None:
    rewritten(lab, 2, JOB, b"state: Starting", b"state: Flying")
    found = wrong(lab)
    assert sorted(found) == [2, 3]  # the next one stood on it
    assert found[2].why.startswith("BadRecord: allocation/jobs/nlp/sft.yaml")


def test_a_decision_of_another_version_is_not_judged(lab: Lab) -> None:
    version = f"decisionVersion: {DECISION_VERSION}".encode()
    rewritten(lab, 3, SUMMARY, version, version + b"1")
    (found,) = wrong(lab).values()
    assert found.other_version
    assert not found.differs


def test_the_desired_branch_need_not_exist_any_more(lab: Lab) -> None:
    git(lab.remote.path, "update-ref", "-d", MAIN)
    assert wrong(lab) == {}


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LC_ALL": "C"}, {"PYTHONHASHSEED": "77", "LC_ALL": "tr_TR.UTF-8"}],
)
def test_another_process_recomputes_the_same_bytes(lab: Lab, environment: dict[str, str]) -> None:
    script = (
        "import sys; from pathlib import Path; from reconciler.store.runner import Git\n"
        "from reconciler.runtime.replay import replay\n"
        "git = Git(folder=Path(sys.argv[1]), bare=True, protocols=frozenset())\n"
        "import json; print(json.dumps([[r.generation, r.identical] for r in replay(git, sys.argv[2])]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(lab.remote.path), lab.tip],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[3, True], [2, True], [1, True]]


def test_proofs_are_those_of_the_store_whatever_was_asked_before(lab: Lab) -> None:
    current = lab.generation()
    proofs = Proofs(lab.remote.git, current)
    for node in ("gpu-001", "gpu-002", "gpu-003", "gpu-001"):
        proof = proofs(NodeName(node))
        raw, trees, file = path_proof(lab.remote.git, current.commit, proof.path)
        assert (proof.commit, proof.trees, proof.file) == (raw, list(trees), file)
    with pytest.raises(KeyError):
        proofs(NodeName("gpu-999"))


def test_replaying_asks_nothing_of_a_reader_of_another_clone(lab: Lab) -> None:
    clone = lab.mirror("auditor")
    clone.fetch()
    assert all(result.identical for result in replay(clone.git, lab.tip))
