"""What is read from a tree, what is refused, and that neither size nor trickery gets through."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from reconciler.errors import InvalidInput, NotFound, StoreError, UsageError
from reconciler.store.history import file_at, first_parent_log, is_ancestor, parse_commit, paths_at, trailers_of
from reconciler.store.mirror import Branches, Mirror, Remote
from reconciler.store.objects import find_commit, path_proof, resolve, subtree
from reconciler.store.runner import Git
from reconciler.store.trees import Limits, printable, read_tree, tree_entries
from tests.store.world import LOCAL, MAIN, Desk, Repository, git, text


def test_everything_under_the_read_paths_comes_back_sorted_with_contents(remote: Repository) -> None:
    remote.commit({"a/z.yaml": b"z\n", "a/b/c.yaml": b"", "p/q.yaml": b"z\n", "README.md": b"no\n"})
    tree = read_tree(remote.git, "main", ("a", "p"))
    assert [entry.path for entry in tree.entries] == ["a/b/c.yaml", "a/z.yaml", "p/q.yaml"]
    assert [tree.blobs[entry.oid] for entry in tree.entries] == [b"", b"z\n", b"z\n"]
    assert [entry.size for entry in tree.entries] == [0, 2, 2]
    assert tree.diagnostics == ()
    assert tree.commit == remote.tip(MAIN)


def test_names_with_line_feeds_tabs_and_quotes_do_not_break_the_listing(remote: Repository) -> None:
    blob = git(remote.path, "hash-object", "-w", "--stdin", stdin=b"x").decode().strip()
    odd = ["tab\there.yaml", "line\nfeed.yaml", '"quoted".yaml', "spaces in it.yaml", "grün.yaml"]
    listing = b"".join(f"100644 blob {blob}\t{name}\0".encode() for name in odd)
    folder = git(remote.path, "mktree", "-z", stdin=listing).decode().strip()
    top = git(remote.path, "mktree", stdin=f"040000 tree {folder}\tjobs\n".encode()).decode().strip()
    commit = text(remote.path, "-c", "user.name=T", "-c", "user.email=t@t", "commit-tree", "-m", "x", top)
    tree = read_tree(remote.git, commit, ("jobs",))
    assert [entry.path for entry in tree.entries] == [
        'jobs/"quoted".yaml', "jobs/grün.yaml", "jobs/line\\x0afeed.yaml", "jobs/spaces in it.yaml", "jobs/tab\\x09here.yaml",
    ]  # fmt: skip
    assert [(d.code, d.place.file) for d in tree.diagnostics] == [
        ("NameRefused", "jobs/line\\x0afeed.yaml"),
        ("NameRefused", "jobs/tab\\x09here.yaml"),
    ]


def test_missing_folder_is_an_error_unless_it_may_be_absent(remote: Repository) -> None:
    remote.commit({"jobs/a.yaml": b"a\n", "file": b"x"})
    for missing in ("policies", "jobs/a.yaml", "file"):
        with pytest.raises(StoreError) as caught:
            read_tree(remote.git, "main", ("jobs", missing))
        assert caught.value.code == "PathNotFound"
        assert missing in caught.value.message
    assert len(read_tree(remote.git, "main", ("jobs", "policies"), optional=("policies",)).entries) == 1


def test_read_folder_that_is_itself_a_link_is_an_error_and_not_empty(remote: Repository) -> None:
    remote.commit({"jobs": ("120000", b"elsewhere"), "elsewhere/a.yaml": b"a\n"})
    with pytest.raises(StoreError) as caught:
        read_tree(remote.git, "main", ("jobs",))
    assert caught.value.code == "PathNotFound"


def test_executable_files_are_refused_by_mode(remote: Repository) -> None:
    remote.commit({"jobs/run.yaml": ("100755", b"x")})
    tree = read_tree(remote.git, "main", ("jobs",))
    assert [d.code for d in tree.diagnostics] == ["ModeRefused"]
    assert [entry.path for entry in tree.entries] == ["jobs/run.yaml"]
    assert tree.blobs == {}


def test_large_file_is_refused_unread_and_the_others_are_read(remote: Repository) -> None:
    remote.commit({"jobs/large.yaml": b"x" * 101, "jobs/small.yaml": b"y" * 100})
    tree = read_tree(remote.git, "main", ("jobs",), limits=Limits(file_bytes=100))
    assert [(d.code, d.place.file) for d in tree.diagnostics] == [("FileTooLarge", "jobs/large.yaml")]
    assert list(tree.blobs.values()) == [b"y" * 100]


def test_too_many_or_too_much_together_is_no_shorter_list_but_an_error(remote: Repository) -> None:
    remote.commit({f"jobs/{n}.yaml": f"{n}".encode() * 10 for n in range(20)})
    for limits, code in ((Limits(files=19), "TooManyFiles"), (Limits(total_bytes=200), "TreeTooLarge")):
        with pytest.raises(InvalidInput) as caught:
            read_tree(remote.git, "main", ("jobs",), limits=limits)
        assert [d.code for d in caught.value.diagnostics] == [code]
    assert len(read_tree(remote.git, "main", ("jobs",), limits=Limits(files=20)).entries) == 20


def test_tree_that_names_itself_into_billions_of_paths_is_cut_off(remote: Repository) -> None:
    blob = git(remote.path, "hash-object", "-w", "--stdin", stdin=b"x").decode().strip()
    tree = git(remote.path, "mktree", stdin=f"100644 blob {blob}\tf\n".encode()).decode().strip()
    for _ in range(12):
        rows = "".join(f"040000 tree {tree}\t{name}\n" for name in "abcdefghij")
        tree = git(remote.path, "mktree", stdin=rows.encode()).decode().strip()
    commit = text(remote.path, "-c", "user.name=T", "-c", "user.email=t@t", "commit-tree", "-m", "x", tree)
    with pytest.raises(InvalidInput) as caught:
        read_tree(remote.git, commit, ("a",), limits=Limits(files=1000))
    assert [d.code for d in caught.value.diagnostics] == ["TooManyFiles"]


def test_ten_thousand_files_are_read_whole(remote: Repository) -> None:
    remote.commit({f"jobs/q{n % 50}/{n:05}.yaml": f"job {n}\n".encode() * 8 for n in range(10_000)})
    tree = read_tree(remote.git, "main", ("jobs",))
    assert len(tree.entries) == len(tree.blobs) == 10_000
    assert all(tree.blobs[e.oid] == f"job {int(e.path[-10:-5])}\n".encode() * 8 for e in tree.entries)


def test_blob_that_is_missing_is_a_broken_clone_and_never_skipped(remote: Repository) -> None:
    commit = remote.commit({"jobs/a.yaml": b"a", "jobs/b.yaml": b"b"})
    oid = tree_entries(remote.git, commit, "jobs")[0].oid
    (remote.path / "objects" / oid[:2] / oid[2:]).unlink()
    with pytest.raises(StoreError) as caught:
        read_tree(remote.git, commit, ("jobs",))
    assert caught.value.code == "CloneBroken"


def test_known_blobs_are_listed_but_not_read_again(remote: Repository) -> None:
    remote.commit({"jobs/a.yaml": b"a", "jobs/b.yaml": b"b"})
    before = read_tree(remote.git, "main", ("jobs",))
    known = next(oid for oid, content in before.blobs.items() if content == b"a")
    after = read_tree(remote.git, "main", ("jobs",), known={known: b"a"})
    assert after.entries == before.entries
    assert list(after.blobs.values()) == [b"b"]


def test_blobless_clone_brings_what_it_lacks_in_one_go(remote: Repository, tmp_path: Path) -> None:
    git(remote.path, "config", "uploadpack.allowFilter", "true")
    git(remote.path, "config", "uploadpack.allowAnySHA1InWant", "true")
    remote.commit({f"jobs/{n}.yaml": f"{n}\n".encode() for n in range(50)})
    place = Remote(url=remote.url)
    mirror = Mirror(tmp_path / "use", Branches(source=place, record=place), protocols=LOCAL, blobless=True)
    mirror.open()
    commit = mirror.fetch().desired
    packs = len(list(mirror.folder.glob("objects/pack/*.pack")))
    tree = read_tree(mirror.git, commit, ("jobs",))
    assert [tree.blobs[e.oid] for e in tree.entries] == [f"{e.path[5:-5]}\n".encode() for e in tree.entries]
    assert [e.size for e in tree.entries] == [len(tree.blobs[e.oid]) for e in tree.entries]
    assert len(list(mirror.folder.glob("objects/pack/*.pack"))) <= packs + 1
    mirror.open()
    assert mirror.repairs == []


def test_shallow_clone_of_a_person_is_readable_from_any_folder_in_it(remote: Repository, tmp_path: Path) -> None:
    first = remote.commit({"jobs/a.yaml": b"1\n"})
    remote.commit({"jobs/a.yaml": b"2\n"}, parent=first)
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{remote.path}", "mine")
    mine = Git(folder=tmp_path / "mine" / "jobs", protocols=frozenset())
    tree = read_tree(mine, "origin/main", ("jobs",))
    assert list(tree.blobs.values()) == [b"2\n"]
    assert find_commit(mine, first) is None


@pytest.mark.parametrize("revision", ["-h", "--upload-pack=touch pwned", "a b", "main\nHEAD", ""])
def test_revisions_that_look_like_options_or_lists_are_refused(remote: Repository, revision: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(remote.git, revision)
    assert caught.value.code == "UnsafeRevision"


def test_unknown_revision_is_not_found(remote: Repository) -> None:
    remote.commit({"a": b"a"})
    with pytest.raises(NotFound) as caught:
        resolve(remote.git, "no-such-branch")
    assert caught.value.code == "UnknownRevision"


def test_folder_that_is_no_clone_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        resolve(Git(folder=tmp_path), "HEAD")
    assert caught.value.code == "NotAClone"


def test_history_of_a_path_follows_first_parents_only(desk: Desk, remote: Repository) -> None:
    desired = remote.commit({"allocation/jobs/a.yaml": b"a decoy in the desired tree\n"})
    desk.mirror.fetch()
    clone = desk.mirror.git
    one = desk.first(desired)
    two = desk.next(one, desired, 1, {"allocation/jobs/a.yaml": b"placed\n"})
    three = desk.next(two, desired, 2)
    four = desk.next(three, desired, 3, {"allocation/jobs/a.yaml": None})
    assert [c.id for c in first_parent_log(clone, four)] == [four, three, two, one]
    assert [c.id for c in first_parent_log(clone, four, paths=("allocation/jobs/a.yaml",))] == [four, two]
    assert [c.id for c in first_parent_log(clone, four, limit=2)] == [four, three]
    assert [c.only_trailer("Generation") for c in first_parent_log(clone, four)] == ["3", "2", "1", "0"]
    assert file_at(clone, two, "allocation/jobs/a.yaml") == b"placed\n"
    assert file_at(clone, four, "allocation/jobs/a.yaml") is None
    assert file_at(clone, two, "allocation") is None
    assert paths_at(clone, two, "allocation") == ("allocation/jobs/a.yaml", "allocation/summary.yaml")
    assert subtree(clone, two, "desired") == subtree(clone, desired, "")
    assert is_ancestor(clone, one, four)
    assert is_ancestor(clone, desired, four)
    assert not is_ancestor(clone, four, one)
    assert not is_ancestor(clone, "1" * 40, four)


def test_proof_hashes_link_by_link_from_commit_to_file(desk: Desk, remote: Repository) -> None:
    desired = remote.commit({"a": b"a"})
    desk.mirror.fetch()
    first = desk.first(desired)
    commit = desk.next(first, desired, 1, {"allocation/nodes/rack1/node1.json": b"{}\n"})
    raw, trees, content = path_proof(desk.mirror.git, commit, "allocation/nodes/rack1/node1.json")

    def oid(kind: str, body: bytes) -> str:
        return hashlib.sha1(f"{kind} {len(body)}\0".encode() + body).hexdigest()

    assert oid("commit", raw) == commit
    assert len(trees) == 4
    for above, below in zip((raw, *trees), (*((tree, "tree") for tree in trees), (content, "blob")), strict=True):
        named = oid(below[1], below[0])
        assert named.encode() in above or bytes.fromhex(named) in above
    with pytest.raises(StoreError) as caught:
        path_proof(desk.mirror.git, commit, "allocation/nodes/rack1/node2.json")
    assert caught.value.code == "PathNotFound"


@pytest.mark.parametrize(
    ("message", "trailers"),
    [
        ("s\n\nGeneration: 7\nEpoch: 1\n", (("Generation", "7"), ("Epoch", "1"))),
        ("s\n\nGeneration: 7\nGeneration: 8\n", (("Generation", "7"), ("Generation", "8"))),
        ("s\n\nGeneration: 7\nand a sentence\n", ()),
        ("Generation: 7\n", ()),
        ("s\n\nGeneration: 7\n\nEpoch: 1\n", (("Epoch", "1"),)),
        ("s\n\nGeneration:7\n", ()),
    ],
)
def test_trailers_are_the_last_paragraph_and_nothing_else(message: str, trailers: tuple[tuple[str, str], ...]) -> None:
    assert trailers_of(message) == trailers


def test_repeated_or_absent_trailer_is_not_ours() -> None:
    raw = (
        b"tree " + b"1" * 40 + b"\nauthor a <a> 1 +0000\ncommitter a <a> 2 +0130\n\ns\n\nGeneration: 1\nGeneration: 2\n"
    )
    commit = parse_commit("2" * 40, raw)
    assert (commit.authored_at, commit.committed_at) == (1_000_000_000, 2_000_000_000)
    for key in ("Generation", "Epoch"):
        with pytest.raises(StoreError) as caught:
            commit.only_trailer(key)
        assert caught.value.code == "NotOurCluster"


@pytest.mark.parametrize("raw", [b"", b"tree x", b"tree x\nauthor nobody\ncommitter y <y> 1 +0000\n\nx"])
def test_malformed_commit_is_an_error_and_no_traceback(raw: bytes) -> None:
    with pytest.raises(StoreError):
        parse_commit("2" * 40, raw)


def test_printable_escapes_what_could_trick_a_reader() -> None:
    assert printable(b"jobs/caf\xe9.yaml") == "jobs/caf\\xe9.yaml"
    assert printable("a\u202eb\x1b[31m".encode()) == "a\\x202eb\\x1b[31m"
    assert printable("größe.yaml".encode()) == "größe.yaml"


def test_entries_of_a_whole_tree(remote: Repository) -> None:
    commit = remote.commit({"a/b": b"1", "c": b"22"})
    assert [(e.path, e.mode, e.size) for e in tree_entries(remote.git, commit)] == [
        ("a/b", "100644", 1),
        ("c", "100644", 2),
    ]
