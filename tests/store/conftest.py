"""Fixtures of the store's tests: git kept apart from this machine's settings, a remote, two reconcilers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.store.signatures import make_key
from reconciler.store.statecommit import Writer
from tests.store.world import Desk, Repository, new_mirror, new_repository


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of this machine reaches the plain git of the tests."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture
def remote(tmp_path: Path) -> Repository:
    """An empty bare remote."""
    return new_repository(tmp_path / "remote.git")


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Who signs in these tests."""
    signer = make_key(tmp_path_factory.mktemp("key") / "signing", "lab")
    return Writer(identity="gangops <gangops@lab>", signer=signer)


@pytest.fixture
def desk(tmp_path: Path, remote: Repository, writer: Writer) -> Desk:
    """A reconciler with an empty clone of the remote."""
    return Desk(new_mirror(tmp_path / "state" / "git", remote), writer)


@pytest.fixture
def other_desk(tmp_path: Path, remote: Repository, writer: Writer) -> Desk:
    """A second reconciler of the same remote."""
    return Desk(new_mirror(tmp_path / "state2" / "git", remote), writer)
