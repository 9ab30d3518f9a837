"""The clone is a cache: it follows the remote wherever that goes, and mends or replaces itself."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.errors import StoreError, Unreachable, UsageError
from reconciler.store.leftovers import git_at_work
from reconciler.store.mirror import Branches, Mirror, Remote, Rewrite
from reconciler.store.objects import find_commit
from reconciler.store.publish import PublishedMark, PushResult, publish
from reconciler.store.statecommit import Writer
from reconciler.store.trees import read_tree
from tests.store.world import LOCAL, MAIN, STATE, Desk, Repository, git, new_mirror, new_repository, text

REQUEST = "refs/heads/request/1a2b"


def test_fetch_brings_branches_and_requests_and_nothing_else(desk: Desk, remote: Repository) -> None:
    main = remote.commit({"a": b"1"})
    state = remote.commit({"s": b"1"}, ref=STATE)
    request = remote.commit({"r": b"1"}, ref=REQUEST)
    remote.commit({"x": b"unrelated"}, ref="refs/heads/feature")
    git(remote.path, "tag", "v1", main)
    fetched = desk.mirror.fetch()
    assert (fetched.desired, fetched.state, fetched.rewritten) == (main, state, None)
    assert fetched.requests == {REQUEST: request}
    assert desk.mirror.tracked() == {
        "refs/remotes/origin/main": main,
        "refs/remotes/origin/allocations": state,
        "refs/remotes/origin/request/1a2b": request,
    }


def test_request_that_was_taken_back_is_forgotten(desk: Desk, remote: Repository) -> None:
    remote.commit({"a": b"1"})
    remote.commit({"r": b"1"}, ref=REQUEST)
    desk.mirror.fetch()
    git(remote.path, "update-ref", "-d", REQUEST)
    assert desk.mirror.fetch().requests == {}
    assert desk.mirror.tracked().keys() == {"refs/remotes/origin/main"}


def test_poll_moves_no_objects(desk: Desk, remote: Repository) -> None:
    main = remote.commit({"a": b"1"})
    assert desk.mirror.remote_refs(desk.mirror.branches.source) == {MAIN: main}
    assert find_commit(desk.mirror.git, main) is None


def test_state_in_another_repository(tmp_path: Path, remote: Repository, desk: Desk) -> None:
    record = new_repository(tmp_path / "record.git")
    branches = Branches(source=Remote(url=remote.url), record=Remote(url=record.url, name="record"))
    mirror = Mirror(tmp_path / "two" / "git", branches, protocols=LOCAL)
    mirror.open()
    desired = remote.commit({"a": b"1"})
    assert mirror.fetch().state is None
    place = Desk(mirror, desk.writer)
    first = place.first(desired)
    assert publish(mirror, first, expected=None).result is PushResult.OK
    second = place.next(first, desired, 1)
    assert publish(mirror, second, expected=first).result is PushResult.OK
    assert (record.tip(), remote.tip()) == (second, None)
    assert text(record.path, "rev-parse", f"{STATE}:desired") == text(remote.path, "rev-parse", f"{MAIN}^{{tree}}")
    remote.path.rename(tmp_path / "away.git")  # the forge is down, the record goes on
    assert mirror.fetch_state() == second
    assert mirror.last_seen(branches.source, MAIN) == desired
    with pytest.raises(Unreachable):
        mirror.fetch()


def test_clone_holds_no_address_no_hook_and_is_ours_alone(desk: Desk, remote: Repository) -> None:
    remote.commit({"a": b"1"})
    desk.mirror.fetch()
    assert remote.url not in (desk.mirror.folder / "config").read_text()
    assert not (desk.mirror.folder / "hooks").exists()
    assert desk.mirror.folder.stat().st_mode & 0o777 == 0o700


def test_addresses_and_branches_are_checked_before_anything_runs(tmp_path: Path) -> None:
    good = Remote(url="https://git.example/x")
    with pytest.raises(UsageError):
        Mirror(tmp_path, Branches(source=Remote(url="ext::id"), record=good))
    with pytest.raises(UsageError):
        Mirror(tmp_path, Branches(source=good, record=Remote(url="--upload-pack=id")))
    with pytest.raises(UsageError):
        Mirror(tmp_path, Branches(source=good, record=good, desired="--all"))
    assert list(tmp_path.iterdir()) == []


def damage_empty_object(folder: Path) -> None:
    loose = next(path for path in sorted(folder.glob("objects/??/*")) if path.is_file())
    loose.chmod(0o600)
    loose.write_bytes(b"")


def damage_no_head(folder: Path) -> None:
    (folder / "HEAD").unlink()


def damage_config(folder: Path) -> None:
    (folder / "config").write_bytes(b"\0\0[[[")


def damage_objects_gone(folder: Path) -> None:
    shutil.rmtree(folder / "objects")
    (folder / "objects").mkdir()


def damage_empty_ref(folder: Path) -> None:
    (folder / "refs/remotes/origin/main").write_bytes(b"")


DAMAGES = [damage_empty_object, damage_no_head, damage_config, damage_objects_gone, damage_empty_ref]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_broken_clone_is_made_again_at_the_start(desk: Desk, remote: Repository, damage: object) -> None:
    main = remote.commit({"jobs/a": b"1"})
    desk.mirror.fetch()
    assert publish(desk.mirror, desk.first(main), expected=None).result is PushResult.OK
    assert callable(damage)
    damage(desk.mirror.folder)
    again = new_mirror(desk.mirror.folder, remote)
    assert again.fetch().desired == main
    assert list(read_tree(again.git, main, ("jobs",)).blobs.values()) == [b"1"]
    git(again.folder, "fsck", "--strict", "--no-dangling")
    assert len(again.repairs) <= 1
    if damage is not damage_empty_ref:
        assert again.repairs[0].startswith("remade: ")


@pytest.mark.parametrize(
    "damage", [damage_no_head, damage_config, damage_objects_gone, shutil.rmtree], ids=lambda d: d.__name__
)
def test_clone_that_breaks_while_we_run_is_made_again_by_the_next_fetch(
    desk: Desk, remote: Repository, damage: object
) -> None:
    first = remote.commit({"jobs/a": b"1"})
    desk.mirror.fetch()
    second = remote.commit({"jobs/a": b"2"}, parent=first)
    assert callable(damage)
    damage(desk.mirror.folder)
    assert desk.mirror.fetch().desired == second
    assert list(read_tree(desk.mirror.git, second, ("jobs",)).blobs.values()) == [b"2"]
    # Git itself mends a clone that lost its objects, by fetching them again.
    assert len(desk.mirror.repairs) == (0 if damage is damage_objects_gone else 1)


def test_broken_repository_at_the_remote_does_not_cost_us_our_clone(desk: Desk, remote: Repository) -> None:
    main = remote.commit({"a": b"1"})
    desk.mirror.fetch()
    later = remote.commit({"a": b"2"}, parent=main)
    tree = text(remote.path, "rev-parse", f"{later}^{{tree}}")
    config = (remote.path / "config").read_bytes()
    damages = {remote.path / "config": config, remote.path / "objects" / tree[:2] / tree[2:]: None}
    for path, whole in damages.items():
        path.chmod(0o644)
        path.write_bytes(b"[[[" if whole else b"")
        with pytest.raises(Unreachable) as caught:
            desk.mirror.fetch()
        assert caught.value.code == "RemoteUnreachable"
        assert desk.mirror.repairs == []
        assert desk.mirror.last_seen(desk.mirror.branches.source, MAIN) == main
        if whole:
            path.write_bytes(whole)


def test_healthy_clone_is_kept(desk: Desk, remote: Repository) -> None:
    remote.commit({"a": b"1"})
    desk.mirror.fetch()
    inode = desk.mirror.folder.stat().st_ino
    again = new_mirror(desk.mirror.folder, remote)
    assert again.repairs == []
    assert again.folder.stat().st_ino == inode


def test_leftovers_of_a_killed_git_are_removed_at_the_start(desk: Desk, remote: Repository) -> None:
    remote.commit({"a": b"1"})
    desk.mirror.fetch()
    pack = desk.mirror.folder / "objects" / "pack"
    pack.mkdir(exist_ok=True)
    torn = [
        pack / "tmp_pack_x",
        desk.mirror.folder / "objects" / "tmp_obj_x",
        desk.mirror.folder / "fast_import_crash_1",
    ]
    for path in torn:
        path.write_bytes(b"x")
    assert new_mirror(desk.mirror.folder, remote).repairs == []
    assert [path for path in torn if path.exists()] == []


def test_git_at_work_is_seen_by_folder_and_by_argument(desk: Desk, remote: Repository, tmp_path: Path) -> None:
    assert not git_at_work(desk.mirror.folder)
    for options in (["--git-dir", str(desk.mirror.folder)], [f"--git-dir={desk.mirror.folder}"], []):
        where = tmp_path if options else desk.mirror.folder
        command = ["git", *options, "cat-file", "--batch"]
        with subprocess.Popen(command, cwd=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"none\n")
            child.stdin.flush()
            child.stdout.readline()  # it answers: so it runs
            assert git_at_work(desk.mirror.folder)
            assert not git_at_work(tmp_path / "elsewhere")
            child.stdin.close()
        assert not git_at_work(desk.mirror.folder)


def test_maintenance_loses_nothing_reachable(desk: Desk, remote: Repository) -> None:
    desired = remote.commit({"a": b"1"})
    desk.mirror.fetch()
    tip = desk.first(desired)
    assert publish(desk.mirror, tip, expected=None).result is PushResult.OK
    for generation in range(1, 6):
        commit = desk.next(tip, desired, generation)
        assert publish(desk.mirror, commit, expected=tip).result is PushResult.OK
        tip = commit
    desk.mirror.maintain()
    assert text(desk.mirror.folder, "rev-list", "--first-parent", "--count", tip) == "6"
    git(desk.mirror.folder, "fsck", "--strict", "--no-dangling")
    assert b"BDAT" in (desk.mirror.folder / "objects/info/commit-graph").read_bytes()[:200]  # filters of changed paths
    assert len(list(desk.mirror.folder.glob("objects/pack/*.pack"))) <= 2
    newest = desk.next(tip, desired, 6)
    assert publish(desk.mirror, newest, expected=tip).result is PushResult.OK


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_g24_full_disk_is_told_apart_and_heals(small_disk: Path, remote: Repository, writer: Writer) -> None:
    desired = remote.commit({"a": b"1"})
    desk = Desk(new_mirror(small_disk / "git", remote), writer)
    mark = PublishedMark(folder=small_disk)
    desk.mirror.fetch()
    first = desk.first(desired)
    assert publish(desk.mirror, first, expected=None).result is PushResult.OK
    mark.write(first)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 512):
            pass
    changes: dict[str, bytes | None] = {"allocation/a": random.Random(1).randbytes(20_000)}
    for attempt in (lambda: desk.next(first, desired, 1, changes), lambda: mark.write(desired)):
        with pytest.raises(StoreError) as caught:
            attempt()
        assert caught.value.code == "LocalStorageFull"
    assert mark.read() == first
    filler.unlink()
    desk.mirror.open()
    assert not list(desk.mirror.folder.glob("fast_import_crash_*"))
    second = desk.next(first, desired, 1, changes)
    assert publish(desk.mirror, second, expected=first).result is PushResult.OK
    git(desk.mirror.folder, "fsck", "--strict", "--no-dangling")
    assert text(remote.path, "rev-list", "--first-parent", "--count", STATE) == "2"


def test_failure_of_the_disk_under_the_clone_is_storage_and_not_a_traceback(tmp_path: Path, remote: Repository) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError) as caught:
        new_mirror(tmp_path / "file" / "git", remote)
    assert caught.value.code == "LocalStorageFull"


def test_rewrite_is_a_fact_and_not_an_error(desk: Desk, remote: Repository) -> None:
    base = remote.commit({"a": b"1"})
    old = remote.commit({"a": b"2"}, parent=base)
    assert desk.mirror.fetch().rewritten is None
    new = remote.commit({"a": b"3"}, parent=base)
    assert desk.mirror.fetch().rewritten == Rewrite(old=old, new=new)
    assert desk.mirror.fetch().rewritten is None
    assert find_commit(desk.mirror.git, old) == old
    remote.commit({"a": b"4"}, parent=new)
    assert desk.mirror.fetch().rewritten is None
