"""The first commands of a newcomer: what `init --state` begins on, and what reading verbs say before the first round."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.errors import InvalidInput, StoreError, UsageError
from reconciler.runtime.clone import open_clone
from reconciler.runtime.service import begin_record
from reconciler.runtime.settings import Settings, read_settings
from reconciler.store.signatures import make_key
from tests.runtime.lab import BASE
from tests.store.world import MAIN, Repository, git, new_repository

Files = dict[str | bytes, bytes | tuple[str, bytes | str]]


TREE: Files = {path: text.encode() for path, text in BASE.items()}


@pytest.fixture
def remote(tmp_path: Path) -> Repository:
    return new_repository(tmp_path / "remote.git")


@pytest.fixture
def settings(tmp_path: Path, remote: Repository) -> Settings:
    make_key(tmp_path / "key", "x")
    text = f'clusterId = "lab"\n[desired]\nurl = "{remote.path}"\n[signing]\nkey = "key"\n'
    (tmp_path / "reconciler.toml").write_text(text)
    return read_settings(tmp_path / "reconciler.toml")


def test_the_record_begins_once_on_a_valid_cluster(remote: Repository, settings: Settings) -> None:
    remote.commit(TREE)
    summary, commit = begin_record(settings)
    assert summary.generation == 0
    assert open_clone(remote.path).state_tip() == commit
    with pytest.raises(UsageError) as caught:
        begin_record(settings)
    assert caught.value.code == "StateExists"


def test_no_record_begins_without_a_cluster(remote: Repository, settings: Settings) -> None:
    remote.commit({"README.md": b"nothing yet"})
    with pytest.raises(StoreError) as caught:
        begin_record(settings)
    assert caught.value.code == "PathNotFound"


def test_no_record_begins_on_a_cluster_that_was_never_valid(remote: Repository, settings: Settings) -> None:
    remote.commit({**TREE, "cluster-state/cluster.yaml": b"apiVersion: nope\n"})
    with pytest.raises(InvalidInput) as refused:
        begin_record(settings)
    assert [d.code for d in refused.value.diagnostics] == ["UnknownVersion"]


def test_a_record_on_a_tree_that_was_never_valid_names_its_problems(remote: Repository, settings: Settings) -> None:
    """Records from before the check above, or made by hand."""
    remote.commit(TREE)
    begin_record(settings)
    tip = open_clone(remote.path).state_tip()
    broken = remote.commit({**TREE, "cluster-state/cluster.yaml": b"apiVersion: nope\n"}, parent=remote.tip(MAIN))
    tree = git(remote.path, "ls-tree", tip).decode().splitlines()
    grafted = "".join(f"{row}\n" for row in tree if not row.endswith("\tdesired"))
    grafted += f"040000 tree {git(remote.path, 'rev-parse', broken + '^{tree}').decode().strip()}\tdesired\n"
    made = git(remote.path, "mktree", stdin=grafted.encode()).decode().strip()
    raw = f"tree {made}\nauthor T <t@t> 1000 +0000\ncommitter T <t@t> 1000 +0000\n\nx\n".encode()
    commit = git(remote.path, "hash-object", "-t", "commit", "-w", "--stdin", stdin=raw).decode().strip()
    git(remote.path, "update-ref", "refs/heads/allocations", commit)
    done = CliRunner().invoke(root, ["-C", str(remote.path), "status", "--no-fetch"])
    assert isinstance(done.exception, InvalidInput)
    assert [d.code for d in done.exception.diagnostics] == ["UnknownVersion"]
