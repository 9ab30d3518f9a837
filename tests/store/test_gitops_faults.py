"""The cases of the gitops-faults corpus, as far as they concern git itself.

Each test names its case. Inputs with odd bytes are read from the corpus where it is there; what a whole round makes
of these outcomes (conditions, back-off, metrics) is tested with the loop.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import traceback
from pathlib import Path

import pytest

from reconciler.errors import GangOpsError, StoreError, Unreachable, UsageError
from reconciler.store.credentials import Credentials
from reconciler.store.history import commit_meta, first_parent_log
from reconciler.store.mirror import Branches, Mirror, Remote, Rewrite
from reconciler.store.objects import file_at, raw_commit, resolve, subtree
from reconciler.store.publish import PushResult, publish
from reconciler.store.runner import DEFAULT_PROTOCOLS, Git
from reconciler.store.statecommit import Writer
from reconciler.store.trees import read_tree, tree_entries
from tests.store.http_remote import HttpRemote, served
from tests.store.world import LOCAL, MAIN, STATE, Desk, File, Repository, git, new_mirror, text

SECRET = f"S3CR3T-t0ken-{secrets.token_hex(8)}"
"""In no process but ours: what another one of this machine happens to show is no leak."""
JOB = b"kind: Job\n"


@pytest.fixture
def desired(remote: Repository, desk: Desk) -> str:
    commit = remote.commit({"cluster-state/jobs/nlp/a.yaml": JOB, "README.md": b"1\n"})
    desk.mirror.fetch()
    return commit


@pytest.fixture
def first(desk: Desk, desired: str) -> str:
    commit = desk.first(desired)
    assert publish(desk.mirror, commit, expected=None).result is PushResult.OK
    return commit


def test_g01_rewritten_desired_branch_is_followed_and_the_old_commit_stays_readable(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    old = remote.commit({"cluster-state/jobs/nlp/c.yaml": JOB}, parent=desired)
    desk.mirror.fetch()
    seventh = desk.next(first, old, 7)
    assert publish(desk.mirror, seventh, expected=first).result is PushResult.OK
    new = remote.commit({"cluster-state/jobs/nlp/d.yaml": JOB}, parent=desired)
    fetched = desk.mirror.fetch()
    assert (fetched.desired, fetched.rewritten) == (new, Rewrite(old=old, new=new))
    eighth = desk.next(seventh, new, 8)
    assert publish(desk.mirror, eighth, expected=seventh).result is PushResult.OK
    assert commit_meta(desk.mirror.git, eighth).parents == (seventh, new)
    # A clone that never saw the old branch can still replay generation 7.
    other_desk.mirror.fetch()
    assert file_at(other_desk.mirror.git, old, "cluster-state/jobs/nlp/c.yaml") == JOB
    assert subtree(other_desk.mirror.git, seventh, "desired") == subtree(other_desk.mirror.git, old, "")


def test_g02_missing_desired_branch_is_its_own_error_and_heals_by_itself(
    desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    git(remote.path, "update-ref", "-d", MAIN)
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            desk.mirror.fetch()
        assert caught.value.code == "SourceMissing"
        assert MAIN in caught.value.message
        assert desk.mirror.last_seen(desk.mirror.branches.source, MAIN) == desired
        assert desk.mirror.last_seen(desk.mirror.branches.record, STATE) == first
    git(remote.path, "update-ref", MAIN, desired)
    back = desk.mirror.fetch()
    assert (back.desired, back.state, back.rewritten) == (desired, first, None)


def test_g04_missing_folder_names_path_and_commit(desk: Desk, remote: Repository) -> None:
    commit = remote.commit({"workloads/a.yaml": JOB})
    desk.mirror.fetch()
    with pytest.raises(StoreError) as caught:
        read_tree(desk.mirror.git, commit, ("jobs",))
    assert caught.value.code == "PathNotFound"
    assert "'jobs'" in caught.value.message
    assert commit[:12] in caught.value.message
    kept = remote.commit({"jobs/.gitkeep": b""})
    desk.mirror.fetch()
    assert [entry.path for entry in read_tree(desk.mirror.git, kept, ("jobs",)).entries] == ["jobs/.gitkeep"]


@pytest.mark.parametrize(
    "lock",
    ["index.lock", "HEAD.lock", "shallow.lock", "packed-refs.lock", "refs/remotes/origin/main.lock", "config.lock"],
)
def test_g05_stale_lock_is_removed_counted_and_work_goes_on(
    desk: Desk, remote: Repository, desired: str, lock: str
) -> None:
    (desk.mirror.folder / lock).write_text("")
    again = new_mirror(desk.mirror.folder, remote)
    assert again.repairs == [f"stale lock removed: {lock}"]
    new = remote.commit({"cluster-state/b.yaml": b"b"}, parent=desired)
    assert again.fetch().desired == new


def test_g05_lock_that_appears_while_we_run_is_dealt_with_by_the_next_fetch(
    desk: Desk, remote: Repository, desired: str
) -> None:
    (desk.mirror.folder / "refs/remotes/origin/main.lock").write_text("")
    new = remote.commit({"cluster-state/b.yaml": b"b"}, parent=desired)
    assert desk.mirror.fetch().desired == new
    assert desk.mirror.repairs == ["stale lock removed: refs/remotes/origin/main.lock"]


def test_g05_lock_of_a_live_git_is_left_alone(desk: Desk, remote: Repository, desired: str) -> None:
    lock = desk.mirror.folder / "refs/remotes/origin/main.lock"
    lock.write_text("")
    command = ["git", "--git-dir", str(desk.mirror.folder), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"none\n")
        child.stdin.flush()
        child.stdout.readline()
        with pytest.raises(StoreError) as caught:
            new_mirror(desk.mirror.folder, remote, patience=0.2)
        assert caught.value.code == "CloneBusy"
        assert lock.exists()
        child.stdin.close()
    assert new_mirror(desk.mirror.folder, remote).repairs == ["stale lock removed: refs/remotes/origin/main.lock"]


def test_g06_lost_race_ends_with_the_others_commit_and_a_new_decision_on_top(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    other_desk.mirror.fetch()
    theirs = other_desk.next(first, desired, 8, {"allocation/jobs/theirs.yaml": b"x"})
    assert publish(other_desk.mirror, theirs, expected=first).result is PushResult.OK
    ours = desk.next(first, desired, 8, {"allocation/jobs/ours.yaml": b"x"})
    assert publish(desk.mirror, ours, expected=first).result is PushResult.LOST_RACE
    assert desk.mirror.fetch().state == theirs
    again = desk.next(theirs, desired, 9)
    assert publish(desk.mirror, again, expected=theirs).result is PushResult.OK
    assert [commit.id for commit in first_parent_log(desk.mirror.git, again)] == [again, theirs, first]
    assert file_at(desk.mirror.git, again, "allocation/jobs/ours.yaml") is None


def test_g07_server_rule_is_rejected_with_its_words_redacted(
    desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    remote.hook("pre-receive", f"echo 'GH006 Protected branch update failed https://x:{SECRET}@h/' >&2; exit 1")
    outcome = publish(desk.mirror, desk.next(first, desired, 8), expected=first)
    assert outcome.result is PushResult.REJECTED
    assert "GH006 Protected branch update failed" in outcome.message
    assert SECRET not in outcome.message
    assert remote.tip() == first
    assert desk.mirror.fetch().state == first


# g08, both pushes meet at the ref lock: test_publish.py.


def test_g09_unchanged_remote_costs_one_look_and_writes_nothing(
    desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    def everything() -> list[tuple[str, int]]:
        return sorted((str(path), path.stat().st_mtime_ns) for path in desk.mirror.folder.rglob("*") if path.is_file())

    before = everything()
    for _ in range(5):
        fetched = desk.mirror.fetch()
        assert (fetched.desired, fetched.state, fetched.rewritten) == (desired, first, None)
    assert everything() == before


def test_g09_change_outside_the_read_paths_leaves_their_tree_ids_alone(
    desk: Desk, remote: Repository, desired: str
) -> None:
    later = remote.commit({"cluster-state/jobs/nlp/a.yaml": JOB, "README.md": b"2\n"}, parent=desired)
    desk.mirror.fetch()
    clone = desk.mirror.git
    assert subtree(clone, later, "cluster-state") == subtree(clone, desired, "cluster-state")
    assert subtree(clone, later, "") != subtree(clone, desired, "")


def test_g10_own_commit_moves_the_state_ref_alone_and_names_its_decision(
    desk: Desk, other_desk: Desk, remote: Repository, desired: str, first: str
) -> None:
    fetched = other_desk.mirror.fetch()
    assert (fetched.desired, fetched.state) == (desired, first)
    assert commit_meta(other_desk.mirror.git, first).only_trailer("Cluster-Id") == "lab"
    assert "[skip ci]" not in commit_meta(other_desk.mirror.git, first).message


def test_g16_links_under_read_paths_are_refused_unopened_and_elsewhere_ignored(remote: Repository) -> None:
    remote.commit({
        "jobs/evil.yaml": ("120000", b"/etc/passwd"),
        "jobs/up.yaml": ("120000", b"../../secrets.yaml"),
        "jobs/inside.yaml": ("120000", b"good.yaml"),
        "jobs/good.yaml": JOB,
        "docs/far.md": ("120000", b"/dev/null"),
    })  # fmt: skip
    tree = read_tree(remote.git, "main", ("jobs",))
    assert [(d.code, d.place.file) for d in tree.diagnostics] == [
        ("SymlinkRefused", "jobs/evil.yaml"),
        ("SymlinkRefused", "jobs/inside.yaml"),
        ("SymlinkRefused", "jobs/up.yaml"),
    ]
    assert list(tree.blobs.values()) == [JOB]
    shown = "\n".join(str(d) for d in tree.diagnostics)
    assert not any(target in shown for target in ("/etc/passwd", "secrets", "root:"))


def test_g18_name_that_is_not_utf8_is_reported_escaped_and_the_bytes_of_others_arrive_as_they_are(
    remote: Repository,
) -> None:
    contents: dict[str | bytes, File] = {
        "jobs/u16.yaml": b"\xff\xfen\x00a\x00m\x00e\x00:\x00 \x00u\x00\n\x00",
        "jobs/latin1.yaml": b"name: caf\xe9\n",
    }
    remote.commit({**contents, b"jobs/caf\xe9.yaml": b"name: okname\n"})
    tree = read_tree(remote.git, "main", ("jobs",))
    assert [(d.code, d.place.file) for d in tree.diagnostics] == [("NameRefused", "jobs/caf\\xe9.yaml")]
    json.dumps([e.path for e in tree.entries], ensure_ascii=False).encode()
    assert {e.path: tree.blobs[e.oid] for e in tree.entries if e.oid in tree.blobs} == contents


def test_g20_gitlinks_are_refused_under_read_paths_ignored_elsewhere_and_never_fetched(
    desk: Desk, remote: Repository
) -> None:
    gitlink = ("160000", "1" * 40)
    hostile = (
        b'[submodule "x"]\n  path = jobs/team-x\n  url = ext::sh -c id\n[submodule "y"]\n  path = -x\n  url = -y\n'
    )
    commit = remote.commit({"jobs/team-x": gitlink, "vendor/y": gitlink, ".gitmodules": hostile, "jobs/a.yaml": JOB})
    assert desk.mirror.fetch().desired == commit
    tree = read_tree(desk.mirror.git, commit, ("jobs",))
    assert [(d.code, d.place.file) for d in tree.diagnostics] == [("SubmoduleRefused", "jobs/team-x")]
    assert list(tree.blobs.values()) == [JOB]
    assert not (desk.mirror.folder / "modules").exists()
    second = desk.next(desk.first(commit), commit, 1)
    assert subtree(desk.mirror.git, second, "desired") == subtree(desk.mirror.git, commit, "")


def test_g21_names_that_differ_in_case_are_both_read_with_a_warning(remote: Repository) -> None:
    remote.commit({"jobs/Train.yaml": b"name: train-a\n", "jobs/train.yaml": b"name: train-b\n"})
    tree = read_tree(remote.git, "main", ("jobs",))
    assert [tree.blobs[e.oid] for e in tree.entries] == [b"name: train-a\n", b"name: train-b\n"]
    assert [(d.code, d.is_error, d.place.file) for d in tree.diagnostics] == [
        ("CaseCollision", False, "jobs/train.yaml")
    ]
    assert "jobs/Train.yaml" in tree.diagnostics[0].detail


# -- credentials


def http_desk(remote: HttpRemote, folder: Path, writer: Writer) -> tuple[Desk, Path]:
    """A reconciler of a remote that wants a token, and the token's file."""
    token = folder / "token"
    token.write_text(remote.reading)
    url = remote.url.replace("//", "//bot@")
    credentials = Credentials.for_url(url, token_file=token, folder=folder / "state", username="bot")
    place = Remote(url=url, credentials=credentials)
    mirror = Mirror(folder / "state" / "git", Branches(source=place, record=place), protocols=frozenset({"http"}))
    mirror.open()
    return Desk(mirror, writer), token


def test_g22_token_that_stops_working_is_its_own_outcome_and_a_new_one_is_read_without_restart(
    remote: Repository, tmp_path: Path, writer: Writer
) -> None:
    desired = remote.commit({"a": b"a"})
    with served(remote, token=f"0ld-{SECRET}") as http:
        desk, token = http_desk(http, tmp_path, writer)
        assert desk.mirror.fetch().desired == desired
        first = desk.first(desired)
        http.writing = f"n3w-{SECRET}"
        for _ in range(2):
            outcome = publish(desk.mirror, first, expected=None)
            assert outcome.result is PushResult.AUTHENTICATION
            with pytest.raises(Unreachable) as caught:
                outcome.raise_for_result()
            assert caught.value.code == "AuthenticationFailed"
            assert remote.tip() is None
        http.reading = http.writing
        token.write_text(f"{http.writing}\n")
        assert publish(desk.mirror, first, expected=None).result is PushResult.OK
        assert remote.tip() == first
        token.unlink()
        with pytest.raises(Unreachable) as caught:
            desk.mirror.fetch()
        assert caught.value.code == "AuthenticationFailed"
        assert http.seen_in_processes == []


def test_g23_secret_is_in_no_error_process_or_file_of_the_clone(
    remote: Repository, tmp_path: Path, writer: Writer
) -> None:
    desired = remote.commit({"a": b"a"})
    shown: list[str] = []

    def attempt(mirror: Mirror) -> str:
        try:
            mirror.fetch()
        except GangOpsError as err:
            shown.append("".join(traceback.format_exception(err)) + repr(err) + str(vars(err)))
            return err.code
        return "ok"

    with served(remote, token=SECRET) as http:
        desk, token = http_desk(http, tmp_path, writer)
        assert attempt(desk.mirror) == "ok"
        commit = desk.first(desired)
        assert publish(desk.mirror, commit, expected=None).result is PushResult.OK
        http.forbidden = True
        assert attempt(desk.mirror) == "AuthenticationFailed"
        http.forbidden = False
        shutil.rmtree(remote.path / "objects")  # the server's git breaks in the middle of an answer
        attempt(desk.mirror)
        assert http.seen_in_processes == []
    assert attempt(desk.mirror) == "RemoteUnreachable"
    place = Remote(url="https://bot@git.invalid/x", credentials=desk.mirror.branches.source.credentials)
    nowhere = Mirror(tmp_path / "nowhere", Branches(source=place, record=place))
    nowhere.open()
    assert attempt(nowhere) == "RemoteUnreachable"
    shown.append(raw_commit(desk.mirror.git, commit).decode())
    assert len(shown) >= 4
    assert SECRET not in "".join(shown)
    holders = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert holders == [token]


def test_g23_address_with_a_password_is_refused_without_showing_it(tmp_path: Path) -> None:
    place = Remote(url=f"https://bot:{SECRET}@git.example/org/repo.git")
    with pytest.raises(UsageError) as caught:
        Mirror(tmp_path / "git", Branches(source=place, record=place))
    assert caught.value.code == "SecretInUrl"
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + caught.value.remedy


# -- a clone that someone else prepared


@pytest.fixture
def trapped(remote: Repository, tmp_path: Path) -> tuple[Path, Path]:
    """A person's clone whose configuration and hooks run a program; and the file that tells whether it ran."""
    remote.commit({"jobs/a.yaml": JOB, ".gitattributes": b"* filter=x diff=x\n", "b": b"b"})
    git(tmp_path, "clone", "-q", str(remote.path), "theirs")
    clone, proof = tmp_path / "theirs", tmp_path / "pwned"
    pwn = clone / "pwn.sh"
    pwn.write_text(f"#!/bin/sh\necho $0 $@ >> {proof}\n")
    pwn.chmod(0o755)
    keys = (
        "core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "core.gitProxy",
        "core.alternateRefsCommand", "diff.external", "diff.x.command", "diff.x.textconv", "filter.x.smudge",
        "filter.x.clean", "filter.x.process", "gpg.program", "gpg.ssh.program", "remote.origin.uploadpack",
        "remote.origin.receivepack", "uploadpack.packObjectsHook", "sequence.editor", "interactive.diffFilter",
    )  # fmt: skip
    for key in keys:
        git(clone, "config", key, str(pwn))
    for key, value in {
        "credential.helper": f"!{pwn}",
        "log.showSignature": "true",
        "gpg.format": "ssh",
        "core.hooksPath": str(clone / ".git" / "hooks"),
        "alias.rev-list": f"!{pwn}",
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
    }.items():
        git(clone, "config", key, value)
    hooks = clone / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "commit-msg", "post-commit", "reference-transaction", "pre-push", "post-checkout"):
        shutil.copy(pwn, hooks / name)
    return clone, proof


@pytest.mark.parametrize("protocols", [frozenset[str](), DEFAULT_PROTOCOLS, LOCAL], ids=["none", "usual", "local"])
def test_g28_reading_a_hostile_clone_runs_nothing_of_it(
    trapped: tuple[Path, Path], protocols: frozenset[str], remote: Repository, writer: Writer, tmp_path: Path
) -> None:
    clone, proof = trapped
    theirs = Git(folder=clone, protocols=protocols)
    commit = resolve(theirs, "origin/main")
    assert list(read_tree(theirs, commit, ("jobs",)).blobs.values()) == [JOB]
    assert [c.id for c in first_parent_log(theirs, "HEAD", paths=("jobs",))] == [commit]
    assert tree_entries(theirs, commit)
    # Our own machinery on a clone with such settings: nothing of it may run either.
    place = Remote(url=str(remote.path))
    mirror = Mirror(clone / ".git", Branches(source=place, record=place), protocols=LOCAL)
    desk = Desk(mirror, writer)
    assert mirror.fetch().desired == commit
    assert publish(mirror, desk.first(commit), expected=None).result is PushResult.OK
    assert not proof.exists(), proof.read_text()


def test_g28_missing_object_of_a_hostile_clone_opens_no_connection(trapped: tuple[Path, Path]) -> None:
    clone, proof = trapped
    blob = text(clone, "rev-parse", "HEAD:jobs/a.yaml")
    for pack in (clone / ".git/objects/pack").glob("*"):
        pack.chmod(0o600)
    git(clone, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "repack", "-q", "-a", "-d")
    packs = list((clone / ".git/objects/pack").glob("*.pack"))
    for pack in packs:
        content = pack.read_bytes()
        for path in pack.parent.glob(f"{pack.stem}.*"):
            path.unlink()
        git(clone, "-c", "core.hooksPath=/dev/null", "unpack-objects", "-q", stdin=content)
    proof.unlink(missing_ok=True)  # what plain git ran while we took the clone apart
    loose = clone / ".git/objects" / blob[:2] / blob[2:]
    loose.unlink()
    for protocols in (frozenset[str](), DEFAULT_PROTOCOLS):
        with pytest.raises(GangOpsError):
            read_tree(Git(folder=clone, protocols=protocols), "HEAD", ("jobs",))
    assert not proof.exists(), proof.read_text()


def test_g28_credential_program_of_a_hostile_clone_is_not_asked(trapped: tuple[Path, Path], remote: Repository) -> None:
    clone, proof = trapped
    with served(remote, token=SECRET) as http:
        place = Remote(url=http.url)
        mirror = Mirror(clone / ".git", Branches(source=place, record=place), protocols=frozenset({"http"}))
        with pytest.raises(Unreachable) as caught:
            mirror.fetch()
        assert caught.value.code == "AuthenticationFailed"
        assert http.asked_without_token > 0
    assert not proof.exists(), proof.read_text()


def test_g28_bare_repository_hidden_in_a_folder_is_not_taken_for_a_clone(remote: Repository, tmp_path: Path) -> None:
    remote.commit({"a": b"a"})
    shutil.copytree(remote.path, tmp_path / "plain" / "folder")
    with pytest.raises(StoreError) as caught:
        resolve(Git(folder=tmp_path / "plain" / "folder"), "main")
    assert caught.value.code == "NotAClone"


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_g28_clone_of_another_user_gets_one_clear_message(remote: Repository, tmp_path: Path) -> None:
    remote.commit({"a": b"a"})
    git(tmp_path, "clone", "-q", str(remote.path), "theirs")
    for path in [tmp_path / "theirs", *(tmp_path / "theirs").rglob("*")]:
        os.lchown(path, 12345, 12345)
    with pytest.raises(StoreError) as caught:
        resolve(Git(folder=tmp_path / "theirs"), "HEAD")
    assert caught.value.code == "ForeignClone"
    assert "owner" in caught.value.remedy
