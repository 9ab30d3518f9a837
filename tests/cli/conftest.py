"""Fixtures of the command line's tests: git kept apart from this machine's settings, and one small cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.store.signatures import make_key
from reconciler.store.statecommit import Writer
from tests.runtime.lab import Lab, job_file, job_text, jobs
from tests.store.world import git, new_repository


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of this machine reaches the git of the tests."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Who signs in these tests."""
    signer = make_key(tmp_path_factory.mktemp("key") / "signing", "lab")
    return Writer(identity="gangops <gangops@lab>", signer=signer)


@pytest.fixture
def lab(tmp_path: Path, writer: Writer) -> Lab:
    """A repository without a commit."""
    return Lab(folder=tmp_path, remote=new_repository(tmp_path / "remote.git"), writer=writer)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Path:
    """A clone of a record in which one job runs and one waits."""
    folder = tmp_path_factory.mktemp("record")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**jobs("sft", gpus=16))
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("wide"): job_text("wide", 32)})
    desk.settle()
    git(folder, "clone", "-q", str(lab.remote.path), "clone")
    return folder / "clone"
