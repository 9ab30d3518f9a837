"""Fixtures of the runtime's tests: git kept apart from this machine's settings, and one small cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.store.signatures import make_key
from reconciler.store.statecommit import Writer
from tests.runtime.lab import Lab
from tests.store.world import new_repository


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
