"""What somebody does in their own name: their settings count, the clone's word about programs never does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.errors import StoreError, UsageError
from reconciler.store.person import as_person, commit_as, push_branch, scratch_commit
from reconciler.store.runner import Git
from reconciler.store.signatures import make_key, split_signature
from reconciler.store.statecommit import tree_with
from tests.store.world import LOCAL, Repository, git, new_repository, text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("XDG_CONFIG_HOME", "EMAIL", "GIT_SSH_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    (folder / "gitconfig").write_text("[user]\n name = Ada\n email = ada@example.org\n")
    return folder


@pytest.fixture
def remote(tmp_path: Path) -> Repository:
    found = new_repository(tmp_path / "remote.git")
    found.commit({"a/b.txt": b"one\n", "c.txt": b"two\n"})
    return found


@pytest.fixture
def clone(tmp_path: Path, remote: Repository, home: Path) -> Git:
    git(tmp_path, "clone", "-q", remote.url, "clone")
    return Git(folder=tmp_path / "clone", protocols=LOCAL)


def main_of(clone: Git) -> str:
    return text(clone.folder, "rev-parse", "origin/main")


def script(folder: Path, ran: Path) -> Path:
    path = folder / "evil"
    path.write_text(f"#!/bin/sh\necho x >> {ran}\nexit 1\n")
    path.chmod(0o755)
    return path


def test_a_tree_with_files_changed_added_and_removed(clone: Git) -> None:
    tree = tree_with(clone, {"a/b.txt": b"new\n", "c.txt": None, "d/e.txt": b"three\n"}, main_of(clone))
    assert text(clone.folder, "ls-tree", "-r", "--name-only", tree).split() == ["a/b.txt", "d/e.txt"]
    assert git(clone.folder, "show", f"{tree}:a/b.txt") == b"new\n"
    assert text(clone.folder, "for-each-ref", "refs/gangops") == ""


def test_a_commit_has_the_name_of_its_author_and_no_ref(clone: Git) -> None:
    before = text(clone.folder, "for-each-ref")
    tree = tree_with(clone, {"c.txt": b"x"}, main_of(clone))
    commit = commit_as(as_person(clone), tree, main_of(clone), "Say so\n\nBecause.\n")
    assert text(clone.folder, "log", "-1", "--format=%an %ae %P %B", commit) == (
        f"Ada ada@example.org {main_of(clone)} Say so\n\nBecause."
    )
    assert text(clone.folder, "for-each-ref") == before


def test_the_address_of_one_clone_alone_counts_there(clone: Git) -> None:
    git(clone.folder, "config", "user.email", "ada@work.example")
    commit = commit_as(as_person(clone), text(clone.folder, "rev-parse", "origin/main^{tree}"), main_of(clone), "x\n")
    assert text(clone.folder, "log", "-1", "--format=%ae", commit) == "ada@work.example"


def test_nobody_in_particular_is_told_how_to_be_somebody(clone: Git, home: Path) -> None:
    (home / "gitconfig").write_text("")
    with pytest.raises(UsageError) as refused:
        commit_as(as_person(clone), text(clone.folder, "rev-parse", "origin/main^{tree}"), main_of(clone), "x\n")
    assert refused.value.code == "NoIdentity"
    assert "git config --global user.name" in refused.value.remedy


def test_a_commit_is_signed_when_its_author_signs(clone: Git, home: Path) -> None:
    key = make_key(home / "id", "ada")
    with (home / "gitconfig").open("a") as file:
        file.write(f" signingKey = {key.key}\n[gpg]\n format = ssh\n[commit]\n gpgSign = true\n")
    tree = text(clone.folder, "rev-parse", "origin/main^{tree}")
    commit = commit_as(as_person(clone), tree, main_of(clone), "x\n")
    _, signature = split_signature(git(clone.folder, "cat-file", "commit", commit))
    assert signature.startswith("-----BEGIN SSH SIGNATURE-----")
    (home / "id").unlink()
    with pytest.raises(StoreError) as refused:
        commit_as(as_person(clone), tree, main_of(clone), "x\n")
    assert refused.value.code == "SigningFailed"


def test_a_look_at_a_change_is_in_nobodys_name_and_signs_nothing(clone: Git, home: Path) -> None:
    (home / "gitconfig").write_text("[commit]\n gpgSign = true\n")
    tree = tree_with(clone, {"c.txt": b"x"}, main_of(clone))
    commit = scratch_commit(clone, tree, main_of(clone), "x\n")
    assert commit == scratch_commit(clone, tree, main_of(clone), "x\n")
    assert text(clone.folder, "log", "-1", "--format=%an %P", commit) == f"gangops {main_of(clone)}"


def test_no_program_that_the_clone_names_is_run(clone: Git, home: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    evil = script(tmp_path, ran)
    for key in (
        "core.fsmonitor", "core.sshCommand", "credential.helper", "gpg.program", "gpg.ssh.program", "core.askPass",
        "core.pager", "core.editor", "remote.origin.receivepack",
    ):  # fmt: skip
        git(clone.folder, "config", key, str(evil))
    git(clone.folder, "config", "commit.gpgSign", "true")
    git(clone.folder, "config", "user.signingKey", "ABCD")
    hooks = clone.folder / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-push", "reference-transaction", "post-commit", "prepare-commit-msg"):
        (hooks / name).write_bytes(evil.read_bytes())
        (hooks / name).chmod(0o755)
    person = as_person(clone)
    tree = tree_with(person, {"c.txt": b"x"}, main_of(clone))
    with pytest.raises(StoreError):  # gpg is not the clone's program, and knows no such key
        commit_as(person, tree, main_of(clone), "x\n")
    git(clone.folder, "config", "commit.gpgSign", "false")
    push_branch(person, commit_as(person, tree, main_of(clone), "x\n"), "gangops/x")
    assert not ran.exists()


def test_the_persons_own_helper_and_ssh_are_used(clone: Git, home: Path, tmp_path: Path) -> None:
    helper, ran = tmp_path / "helper", tmp_path / "asked"
    helper.write_text(f"#!/bin/sh\necho $1 >> {ran}\necho username=ada\necho password=token\n")
    helper.chmod(0o755)
    for key in ("credential.helper", "credential.https://forge.example.helper"):
        git(clone.folder, "config", key, str(script(tmp_path, tmp_path / "evil-asked")))
    with (home / "gitconfig").open("a") as file:
        file.write(f'[credential "https://forge.example"]\n helper = {helper}\n[core]\n sshCommand = ssh -i mine\n')
    person = as_person(clone)
    told = person.run("credential", "fill", stdin=b"protocol=https\nhost=forge.example\n\n").stdout.decode()
    assert "password=token" in told
    assert ran.read_text() == "get\n"
    assert not (tmp_path / "evil-asked").exists()
    assert person.environment()["GIT_SSH_COMMAND"] == "ssh -i mine"
    assert "ssh -i mine" not in clone.environment().values()
    assert clone.environment()["HOME"] == os.devnull


def test_a_branch_is_made_once_and_never_moved(clone: Git, remote: Repository) -> None:
    person = as_person(clone)
    one, two = (
        commit_as(person, tree_with(clone, {"c.txt": what}, main_of(clone)), main_of(clone), "x\n")
        for what in (b"1", b"2")
    )
    push_branch(person, one, "gangops/x")
    for commit in (one, two):
        with pytest.raises(StoreError) as refused:
            push_branch(person, commit, "gangops/x")
        assert refused.value.code == "BranchExists"
    assert remote.tip("refs/heads/gangops/x") == one


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("branches have tickets", "PushRejected"),
        ("ERROR: Permission to acme/cluster.git denied to ada.", "NoPushRights"),
        ("You are not allowed to push code to this project.", "NoPushRights"),
    ],
)
def test_a_refusal_is_told_in_the_words_of_the_remote(clone: Git, remote: Repository, words: str, code: str) -> None:
    remote.hook("pre-receive", f"echo '{words}' >&2; exit 1")
    person = as_person(clone)
    commit = commit_as(person, tree_with(clone, {"c.txt": b"1"}, main_of(clone)), main_of(clone), "x\n")
    with pytest.raises(StoreError) as refused:
        push_branch(person, commit, "gangops/x")
    assert refused.value.code == code
    assert words in refused.value.message
