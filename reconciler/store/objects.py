"""What does git hold under a name? Commits, trees and blobs as bytes, read in bulk and never through a checkout.

Which files of a tree may be read is left to `trees`, what the bytes mean to `documents`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from reconciler.errors import NotFound, StoreError
from reconciler.store.names import checked_object_id, checked_revision
from reconciler.store.runner import Git


def resolve(git: Git, revision: str) -> str:
    """The commit a revision names. Raises NotFound(UnknownRevision), UsageError(UnsafeRevision)."""
    return resolve_all(git, (revision,))[0]


def resolve_all(git: Git, revisions: Sequence[str]) -> tuple[str, ...]:
    """The commits that revisions name, in their order, by one process. Raises as `resolve` does, for the first of them."""
    # Through standard input nothing can be taken for an option.
    told = described_all(git, [f"{checked_revision(revision)}^{{commit}}" for revision in revisions])
    for revision, (kind, _, _) in zip(revisions, told, strict=True):
        if kind != "commit":
            raise _unknown(git, revision)
    return tuple(oid for _, oid, _ in told)


def _unknown(git: Git, revision: str) -> NotFound:
    return NotFound(
        f"no commit is called {revision!r} in {git.folder.name}",
        code="UnknownRevision",
        remedy="`git fetch origin` gets what is new; `git branch --all` lists the names.",
    )


def find_commit(git: Git, revision: str) -> str | None:
    """The commit a revision names, or None. Raises UsageError(UnsafeRevision)."""
    # Through standard input nothing can be taken for an option.
    kind, oid, _ = described(git, f"{checked_revision(revision)}^{{commit}}")
    return oid if kind == "commit" else None


def subtree(git: Git, commit: str, path: str) -> str | None:
    """The id of the tree at a path of a commit ('' is the whole), or None when no folder is there."""
    kind, oid, _ = described(git, f"{checked_object_id(commit)}:{path}" if path else f"{commit}^{{tree}}")
    return oid if kind == "tree" else None


def subtrees(git: Git, revision: str, paths: Sequence[str]) -> tuple[str, tuple[str | None, ...]]:
    """The commit a revision names and the ids of the trees at some paths of it, None where no folder is, by one process.

    Raises as `resolve` does.
    """
    whole = f"{checked_revision(revision)}^{{commit}}"
    (kind, commit, _), *found = described_all(git, [whole, *(f"{whole}:{path}" for path in paths)])
    if kind != "commit":
        raise _unknown(git, revision)
    return commit, tuple(oid if kind == "tree" else None for kind, oid, _ in found)


def blobs(git: Git, oids: Iterable[str]) -> Mapping[str, bytes]:
    """The contents of many blobs by id, in one go. Raises StoreError(GitFailed) when one is missing."""
    return {oid: content for oid, (kind, content) in _objects(git, oids).items() if kind == "blob"}


def objects(git: Git, oids: Iterable[str]) -> Iterator[tuple[str, str, bytes]]:
    """(id, kind, content) of many objects in one go, as git hands them out: whether it hashes to its id is not checked."""
    for oid, (kind, content) in _objects(git, oids).items():
        yield oid, kind, content


def raw_commit(git: Git, commit: str) -> bytes:
    """The bytes of a commit object, as they are hashed and signed."""
    return raw_commits(git, (commit,))[commit]


def raw_commits(git: Git, commits: Iterable[str]) -> Mapping[str, bytes]:
    """The bytes of many commit objects by id, in one go, in the order asked for."""
    return {oid: content for oid, (kind, content) in _objects(git, commits).items() if kind == "commit"}


def file_at(git: Git, commit: str, path: str) -> bytes | None:
    """The contents of one file of a commit, or None when no file is there."""
    kind, oid, _ = described(git, f"{checked_object_id(commit)}:{path}")
    return blobs(git, (oid,))[oid] if kind == "blob" else None


def path_proof(git: Git, commit: str, path: str) -> tuple[bytes, tuple[bytes, ...], bytes]:
    """What proves a file to belong to a commit: commit object, tree objects from the root down, file.

    Hashing each part gives the id its predecessor names. Raises StoreError(PathNotFound).
    """
    folders = path.split("/")[:-1]
    names = [f"{commit}:{'/'.join(folders[:depth])}" for depth in range(len(folders) + 1)]
    found = described_all(git, (*names, f"{checked_object_id(commit)}:{path}"))
    if any(kind == "missing" for kind, _, _ in found):
        raise path_not_found(path, commit)
    contents = _objects(git, (commit, *(oid for _, oid, _ in found)))
    parts = [contents[oid][1] for _, oid, _ in found]
    return contents[commit][1], tuple(parts[:-1]), parts[-1]


def folders_of(git: Git, commit: str, folders: Iterable[str]) -> tuple[bytes, Mapping[str, bytes]]:
    """A commit object, and the tree object of each of its folders ('' is the whole) by path, in one go.

    Raises StoreError (PathNotFound).
    """
    wanted = list(dict.fromkeys(folders))
    whole = checked_object_id(commit)
    names = [whole, *(f"{whole}:{folder}" if folder else f"{whole}^{{tree}}" for folder in wanted)]
    if any("\n" in name for name in names):
        raise path_not_found("with a line feed", commit)
    stream = git.run("cat-file", "--batch", "--buffer", stdin="".join(f"{name}\n" for name in names).encode()).stdout
    found: list[bytes] = []
    start = 0
    for name in names:
        end = stream.find(b"\n", start)
        row = stream[start:end].split()
        if len(row) != 3 or row[1] != (b"tree" if found else b"commit"):
            raise path_not_found(name.partition(":")[2], commit)
        start = end + 1 + int(row[2])
        found.append(stream[end + 1 : start])
        start += 1
    return found[0], dict(zip(wanted, found[1:], strict=True))


def described(git: Git, name: str) -> tuple[str, str, int]:
    """Kind, id and size of what a name stands for; kind is `missing` when nothing is."""
    return described_all(git, (name,))[0]


def described_all(git: Git, names: Sequence[str]) -> list[tuple[str, str, int]]:
    """Kind, id and size of what each name stands for, by one process; kind is `missing` when nothing is."""
    asked = [name for name in names if "\n" not in name]
    if not asked:
        return [_NOTHING for _ in names]
    stdin = "".join(f"{name}\n" for name in asked).encode("utf-8", "surrogateescape")
    told = git.run("cat-file", "--batch-check", "--buffer", stdin=stdin).stdout
    rows = dict(zip(asked, told.split(b"\n"), strict=False))  # a line for each name, whatever it names
    return [_described(rows.get(name, b"")) for name in names]


_NOTHING = ("missing", "", 0)


def _described(line: bytes) -> tuple[str, str, int]:
    row = line.decode("utf-8", "replace").split()
    return (row[1], row[0], int(row[2])) if len(row) == 3 and row[2].isdigit() else _NOTHING


def _objects(git: Git, oids: Iterable[str]) -> dict[str, tuple[str, bytes]]:
    wanted = list(dict.fromkeys(oids))
    if not wanted:
        return {}
    asked = "".join(f"{checked_object_id(oid)}\n" for oid in wanted).encode()
    stream = git.run("cat-file", "--batch", "--buffer", stdin=asked).stdout
    found: dict[str, tuple[str, bytes]] = {}
    start = 0
    for oid in wanted:
        end = stream.find(b"\n", start)
        row = stream[start:end].split()
        if len(row) != 3:
            raise StoreError(f"object {oid} is missing from the clone", code="CloneBroken", remedy="Fetch it again.")
        start = end + 1 + int(row[2])
        found[oid] = row[1].decode("ascii"), stream[end + 1 : start]
        start += 1
    return found


def path_not_found(path: str, commit: str) -> StoreError:
    """The error for a folder that is not in a commit."""
    return StoreError(
        f"folder {path!r} does not exist in commit {commit[:12]}",
        code="PathNotFound",
        remedy="Restore the folder (an empty one may hold a .gitkeep), or correct the path in the configuration.",
    )
