"""Fixtures of the renderers' tests: a cluster at work, built once, and golden files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.store.signatures import make_key
from reconciler.store.statecommit import Writer
from tests.render.pulls import Site, at_work
from tests.runtime.lab import Lab
from tests.store.world import new_repository

GOLDENS = Path(__file__).parent / "goldens"
Golden = Callable[[str, str], None]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The cluster of `pulls`, with no configuration of this machine near its git."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GIT_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(folder))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        (folder / "key").mkdir()
        writer = Writer(identity="gangops <gangops@lab>", signer=make_key(folder / "key/signing", "lab"))
        yield at_work(Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares text with a file of `goldens/`; with `--update-goldens` writes it and prints the difference."""

    def check(name: str, told: str) -> None:
        file = GOLDENS / name
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        if request.config.getoption("--update-goldens"):
            print("".join(difflib.unified_diff(before.splitlines(True), told.splitlines(True), "before", name)))
            GOLDENS.mkdir(exist_ok=True)
            file.write_text(told, encoding="utf-8")
            return
        assert told == before, f"{name} differs; read the difference, then run with --update-goldens"

    return check
