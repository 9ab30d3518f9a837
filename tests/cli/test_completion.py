"""What a shell is offered: verbs, options, and the names of the cluster, from what the clone has, without asking anybody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.store.statecommit import Writer
from tests.cli.people import Person, person_at
from tests.runtime.lab import Lab, jobs
from tests.store.world import new_repository

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Lab:
    folder = tmp_path_factory.mktemp("completion")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.desire(jobs("sft", "eval"))
    return lab


def offered(at: Path, *words: str) -> list[str]:
    """What bash would be offered for the last of these words."""
    environment = {
        **os.environ, "_GANGOPS_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("gangops", *words)),
        "COMP_CWORD": str(len(words)), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "reconciler.cli"], cwd=at, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("su",), ["submit", "suspend"]),
        (("suspend", "nlp/"), ["nlp/eval", "nlp/sft"]),
        (("describe", "s"), ["sft"]),
        (("cordon", "gpu-001", "gpu-00"), ["gpu-001", "gpu-002", "gpu-003", "gpu-004"]),
        (("quota", "set", ""), ["nlp", "root"]),
        (("prioritize", "sft", "--class", "p"), ["production"]),
        (("suspend", "--dry"), ["--dry-run"]),
        (("suspend", "x/"), []),
    ],
)
def test_names_are_those_of_the_cluster(remote: Lab, words: tuple[str, ...], expected: list[str]) -> None:
    assert offered(remote.remote.path, *words) == expected


def test_where_there_is_no_cluster_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert offered(tmp_path, "suspend", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_by_our_variable(lab: Lab, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    lab.desire(jobs("sft"))
    ada: Person = person_at(lab, monkeypatch)
    script = ada.done("completion", shell).stdout
    assert f"_GANGOPS_COMPLETE={shell}_complete" in script
