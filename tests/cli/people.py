"""A person at a cluster's repository: a clone of their own, a name in their git settings, perhaps a `gh` on their PATH."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reconciler.cli.root import root
from reconciler.store.statecommit import Writer
from tests.engines.fake import FakeClock
from tests.runtime.lab import Lab
from tests.store.world import Repository, git, text

FORGE = "https://forge.example/acme/cluster.git"
"""What origin is called; git is told to find it in the lab's bare repository."""


@dataclass
class Person:
    """Ada, with her clone."""

    lab: Lab
    clone: Path
    home: Path

    def run(self, *arguments: str, at: Path | None = None, input_: str = "") -> Result:
        """`gangops` in her clone; what it raised is in `exception`."""
        where = ["-C", str(self.clone)] if at is None else []
        before = Path.cwd()
        os.chdir(at or before)
        try:
            return CliRunner().invoke(root, [*where, *arguments], input=input_)
        finally:
            os.chdir(before)

    def done(self, *arguments: str, at: Path | None = None, input_: str = "", status: int = 0) -> Result:
        """The same, when it has to end well."""
        found = self.run(*arguments, at=at, input_=input_)
        assert found.exception is None or isinstance(found.exception, SystemExit), repr(found.exception) + found.output
        assert found.exit_code == status, found.output
        return found

    # -- what is at the remote

    def branches(self) -> list[str]:
        """Branches proposed so far."""
        told = text(self.lab.remote.path, "for-each-ref", "--format=%(refname:short)", "refs/heads/gangops/")
        return told.split()

    def only_branch(self) -> str:
        (branch,) = self.branches()
        return branch

    def at(self, branch: str, path: str) -> str | None:
        """A file of a branch at the remote."""
        listed = text(self.lab.remote.path, "ls-tree", "--name-only", branch, path)
        return git(self.lab.remote.path, "show", f"{branch}:{path}").decode() if listed else None

    def changed(self, branch: str) -> list[str]:
        """`M path` of each file a branch changes."""
        told = text(self.lab.remote.path, "diff-tree", "-r", "--name-status", "--no-renames", "main", branch)
        return [" ".join(line.split()) for line in told.splitlines()]


def person_at(lab: Lab, monkeypatch: pytest.MonkeyPatch, url: str = FORGE) -> Person:
    """Ada with a clone of the lab's repository, whose origin is a forge by name."""
    home = lab.folder / "ada"
    home.mkdir()
    settings = home / "gitconfig"
    settings.write_text(
        f'[user]\n name = Ada Lovelace\n email = ada@example.org\n[url "{lab.remote.path}"]\n insteadOf = {FORGE}\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "GANGOPS_REPO"):
        monkeypatch.delenv(name, raising=False)
    git(lab.folder, "clone", "-q", str(lab.remote.path), "clone")
    clone = lab.folder / "clone"
    git(clone, "remote", "set-url", "origin", url)
    return Person(lab=lab, clone=clone, home=home)


@dataclass(frozen=True)
class Kept:
    """A record once made, to be copied for each test: making one takes a second."""

    lab: Lab

    def again(self, folder: Path, writer: Writer) -> Lab:
        shutil.copytree(self.lab.remote.path, folder / "remote.git")
        clock = FakeClock(self.lab.clock.now(), self.lab.clock.monotonic())
        return Lab(
            folder=folder, remote=Repository(folder / "remote.git"), writer=writer, clock=clock,
            files=dict(self.lab.files),
        )  # fmt: skip


_GH = """\
#!{python}
import json, pathlib, sys
folder = pathlib.Path({folder!r})
calls = folder / "calls"
with calls.open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
answers = json.loads((folder / "answers").read_text())
name = " ".join(sys.argv[1:3])
told = answers.get(name, "")
if isinstance(told, list):
    count = sum(json.loads(line)[:2] == sys.argv[1:3] for line in calls.read_text().splitlines())
    told = told[min(count, len(told)) - 1]
if isinstance(told, dict) and "fails" in told:
    print(told["fails"], file=sys.stderr)
    sys.exit(1)
print(told if isinstance(told, str) else json.dumps(told))
"""


@dataclass
class Gh:
    """A stand-in for `gh` on PATH: answers as told, by the first two words, and writes down what it was asked."""

    folder: Path

    def answers(self, answers: Mapping[str, Any]) -> None:
        (self.folder / "answers").write_text(json.dumps(answers))

    @property
    def calls(self) -> list[list[str]]:
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def gh_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Gh:
    """Put the stand-in on PATH."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "gh"
    program.write_text(_GH.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return Gh(folder=folder)


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """click's test input says that it is a terminal."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)


def codes(found: Result) -> tuple[str, int]:
    """Code and exit status of what a verb raised."""
    return getattr(found.exception, "code", repr(found.exception)), getattr(found.exception, "exit_status", -1)


def words(sequence: Sequence[str], flag: str) -> str:
    """What follows a flag."""
    return sequence[list(sequence).index(flag) + 1]
