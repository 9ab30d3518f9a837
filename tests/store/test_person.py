"""What somebody does in their own name: their settings count, the clone's word about programs never does."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from reconciler.agent.admission import signer_among
from reconciler.errors import StoreError, UsageError
from reconciler.runtime.visiting import door_of, sign
from reconciler.store.person import as_person, commit_as, push_branch, scratch_commit, signing_key
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


# --- the key that requests, shells and logs are signed with ---


@pytest.mark.parametrize(
    ("settings", "usual", "found"),
    [
        ("[gpg]\n format = ssh\n[user]\n signingKey = {own}\n", True, "{own}"),
        ("[user]\n signingKey = {own}\n", True, "{own}"),
        ("[gpg]\n format = ssh\n[user]\n signingKey = ~/own.pub\n", True, "{own}"),
        ("[user]\n signingKey = ~/own.pub\n", True, "{own}"),
        ("[user]\n signingKey = key::ssh-ed25519 AAAA ada\n", True, "key::ssh-ed25519 AAAA ada"),
        ("[user]\n signingKey = ssh-ed25519 AAAA\n", False, "ssh-ed25519 AAAA"),
        ("[user]\n signingKey = 0xC0FFEE\n", True, "{usual}"),
        ("", True, "{usual}"),
    ],
    ids=["ssh and a file", "a file alone", "at home", "at home alone", "the key itself", "the key without a prefix",
         "a key of GnuPG's", "nothing said"],
)  # fmt: skip
def test_one_rule_says_which_key_signs(clone: Git, home: Path, settings: str, usual: bool, found: str) -> None:
    places = {"own": str(home / "own.pub"), "usual": str(home / ".ssh/id_ed25519")}
    (home / ".ssh").mkdir()
    for name in ("own", *(("usual",) if usual else ())):
        Path(places[name]).touch()
    with (home / "gitconfig").open("a") as file:
        file.write(settings.format(**places))
    assert signing_key(as_person(clone), None) == found.format(**places)
    assert signing_key(as_person(Git(folder=home.parent)), None) == found.format(**places), "outside of any clone too"
    assert door_of("https://x", home, None, home.parent).key == found.format(**places), "who looks in is who asks"
    assert signing_key(as_person(clone), home / "own.pub") == places["own"], "what is named comes first"


@pytest.mark.parametrize(
    "settings", ["", "[user]\n signingKey = 0xC0FFEE\n", "[user]\n signingKey = relative.pub\n"],
    ids=["nothing said", "a key of GnuPG's", "a file nobody could mean"],
)  # fmt: skip
def test_without_an_ssh_key_the_remedy_is_told(clone: Git, home: Path, settings: str) -> None:
    with (home / "gitconfig").open("a") as file:
        file.write(settings)
    for ask in (lambda: signing_key(as_person(clone), None), lambda: door_of("https://x", home, None, clone.folder)):
        with pytest.raises(UsageError) as caught:
            ask()
        assert caught.value.code == "NoSigningKey"
        assert "--key" in caught.value.remedy


def test_a_key_that_only_an_agent_has_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = make_key(tmp_path / "ada", "ada")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        ends = time.monotonic() + 60
        while not (tmp_path / "agent").exists():
            assert time.monotonic() < ends
            time.sleep(0.01)
        subprocess.run(["ssh-add", "-q", str(signer.key)], check=True, capture_output=True)
        public = " ".join(signer.public_key().split()[:2])
        signer.key.unlink()
        for key in (f"key::{public}", public):
            assert signer_among(b"asked", sign(key, b"asked"), [f"ada {public}"]) == "ada"
    finally:
        agent.terminate()
        agent.wait()
