"""Which files stand under the read paths of a commit, and which of them are refused?

Only plain files are read; links, submodules and odd names under the read paths become diagnostics, elsewhere they
are ignored. Limits are counted before anything is read. What the bytes mean is left to `documents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from reconciler.errors import Diagnostic, InvalidInput, Place, Severity, StoreError, sorted_by_place
from reconciler.store.objects import blobs, path_not_found, subtree, subtrees
from reconciler.store.runner import Git

REGULAR = "100644"
_SUBMODULE = "160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    r"""One path of a tree. `path` is always printable: bytes that are not UTF-8 stand escaped as `\xe9`.

    `size` is that of a blob in bytes, -1 for a submodule.
    """

    path: str
    mode: str
    oid: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a tree is read before it is refused. Counted, never timed."""

    files: int = 200_000
    file_bytes: int = 1 << 20
    total_bytes: int = 256 << 20

    @property
    def listing_bytes(self) -> int:
        """Room for the listing itself: a small tree object can name itself into billions of paths."""
        return 64_000 + self.files * 400


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeContents:
    """Everything under the read paths of one commit.

    `entries` are all paths, sorted, refused ones too: a refused file is not an absent one. `blobs` holds the
    contents of the readable ones by object id, as far as they were not known before.
    """

    commit: str
    entries: tuple[TreeEntry, ...]
    blobs: Mapping[str, bytes]
    diagnostics: tuple[Diagnostic, ...]


def tree_entries(git: Git, commit: str, prefix: str = "", *, at_most: int | None = None) -> tuple[TreeEntry, ...]:
    """All files under a folder of a commit, in git's order. Raises StoreError(PathNotFound)."""
    tree = subtree(git, commit, prefix)
    if tree is None:
        raise path_not_found(prefix, commit)
    found = _raw_entries(git, prefix, tree, at_most, {}, partial=is_partial(git))
    return tuple(TreeEntry(path=printable(path), mode=mode, oid=oid, size=size) for path, mode, oid, size in found)


def file_ids(git: Git, commit: str, under: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    """(path, mode, id) of all files under some folders of a commit, in git's order; folders may be missing.

    Without sizes, which cost git a look at every object. Raises StoreError(PathNotFound).
    """
    tree = subtree(git, commit, "")
    if tree is None:
        raise path_not_found("", commit)
    if is_partial(git):
        _fetch_missing(git, tree)
    listed = _listing(git, tree, None, under)
    return tuple((printable(path), mode, oid) for path, mode, oid, _ in listed)


def read_tree(
    git: Git,
    revision: str,
    under: tuple[str, ...],
    *,
    optional: tuple[str, ...] = (),
    known: Mapping[str, bytes] = MappingProxyType({}),
    limits: Limits = Limits(),
    partial: bool | None = None,
) -> TreeContents:
    """The files under some folders of a revision, with a diagnostic for each that was refused.

    A missing folder is an error unless it is also named in `optional`: "not found" never reads as "empty". Blobs whose
    contents are `known` by id are listed but not read again. `partial`: what `is_partial` said of the clone, when asked.
    Raises: StoreError(PathNotFound), NotFound(UnknownRevision); InvalidInput(TooManyFiles | TreeTooLarge), because
    half a tree must not be taken for the whole.
    """
    commit, trees = subtrees(git, revision, under)
    partial = is_partial(git) if partial is None else partial
    raw: dict[bytes, TreeEntry] = {}
    for prefix, tree in zip(under, trees, strict=True):
        if tree is None and prefix in optional:
            continue
        if tree is None:
            raise path_not_found(prefix, commit)
        try:
            found = _raw_entries(git, prefix, tree, limits.listing_bytes, known, partial=partial)
        except StoreError as err:
            if err.code != "OutputTooLarge":
                raise
            raise InvalidInput([_too_many(prefix, limits)]) from err
        raw |= {p: TreeEntry(path=printable(p), mode=m, oid=o, size=s) for p, m, o, s in found}
        if len(raw) > limits.files:
            raise InvalidInput([_too_many(prefix, limits)])
    entries = tuple(raw[path] for path in sorted(raw))
    refused = {one.path: problem for path, one in raw.items() if (problem := _refusal(path, one, limits))}
    readable = [entry for entry in entries if entry.path not in refused]
    if sum(entry.size for entry in readable) > limits.total_bytes:
        raise InvalidInput([_too_large_together(under, limits)])
    return TreeContents(
        commit=commit,
        entries=entries,
        blobs=blobs(git, (entry.oid for entry in readable if entry.oid not in known)),
        diagnostics=sorted_by_place([*refused.values(), *_colliding(entries)]),
    )


def printable(path: bytes) -> str:
    """A path as it may be shown anywhere: valid UTF-8 as it is, other bytes and control characters escaped."""
    text = path.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


# -- listing


def _raw_entries(
    git: Git, prefix: str, tree: str, at_most: int | None, known: Mapping[str, bytes], *, partial: bool
) -> list[tuple[bytes, str, str, int]]:  # fmt: skip
    # In a blobless clone `-l` would fetch each blob alone: list, fetch all that lack at once, then ask for sizes. Where
    # most contents are known, it is quicker to ask for the sizes of the others alone.
    sized = not partial and not known
    head = prefix.encode() + b"/" if prefix else b""
    found = [(head + name, mode, oid, size) for name, mode, oid, size in _listing(git, tree, at_most, sized=sized)]
    if sized:
        return found
    if partial:
        _fetch_missing(git, tree)
    sizes = _sizes(git, [oid for _, mode, oid, _ in found if mode != _SUBMODULE and oid not in known])
    return [(path, mode, oid, len(known[oid]) if oid in known else sizes.get(oid, -1)) for path, mode, oid, _ in found]


def _listing(
    git: Git, tree: str, at_most: int | None, under: tuple[str, ...] = (), *, sized: bool = False
) -> Iterator[tuple[bytes, str, str, int]]:  # fmt: skip
    """Path, mode, id and size (-1 when not asked for) of all files of a tree."""
    asked = (*(("-l",) if sized else ()), tree, *under)
    listing = git.run("ls-tree", "-r", "-z", "--full-tree", *asked, at_most=at_most).stdout
    for line in listing.split(b"\0")[:-1]:
        facts, _, name = line.partition(b"\t")
        mode, _, oid, *size = str(facts, "ascii").split()
        if size == ["BAD"]:  # what ls-tree prints when it cannot find a blob, with exit status 0
            raise StoreError(f"object {oid} is missing from the clone", code="CloneBroken", remedy="Fetch it again.")
        yield name, mode, oid, int(size[0]) if size and size[0] != "-" else -1


def is_partial(git: Git) -> bool:
    """Whether a clone was made without some objects that its origin has: by either way git has of writing that down."""
    written = r"^(extensions\.partialclone|remote\.origin\.promisor)$"
    return bool(git.run("config", "--get-regexp", written, accept=(0, 1)).stdout)


def _fetch_missing(git: Git, tree: str) -> None:
    """Brings all blobs of a tree that a blobless clone lacks, with one request instead of one each."""
    listed = git.run("rev-list", "--objects", "--missing=print", "--no-object-names", tree).stdout.decode().split()
    missing = [oid[1:] for oid in listed if oid.startswith("?")]
    if missing:
        git.run(
            "-c", "fetch.negotiationAlgorithm=noop", "fetch", "origin", "--no-tags", "--no-write-fetch-head",
            "--no-recurse-submodules", "--filter=blob:none", "--quiet", "--stdin",
            stdin="".join(f"{oid}\n" for oid in missing).encode(), network=True,
        )  # fmt: skip


def _sizes(git: Git, oids: list[str]) -> dict[str, int]:
    if not oids:
        return {}
    told = git.run("cat-file", "--batch-check", "--buffer", stdin="".join(f"{oid}\n" for oid in oids).encode())
    rows = (line.split() for line in told.stdout.decode("ascii").splitlines())
    return {row[0]: int(row[2]) for row in rows if len(row) == 3}


# -- what is refused


def _refusal(raw_path: bytes, entry: TreeEntry, limits: Limits) -> Diagnostic | None:
    """The diagnostic of an entry that is not read, or None. First match wins."""
    path, size = entry.path, entry.size
    if entry.mode == "120000":
        told = f"{path} is a symbolic link; its target was not opened."
        remedy = "Replace the link by the file itself."
        return _diagnostic("SymlinkRefused", "Symbolic links are not followed", told, path, remedy)
    if entry.mode == _SUBMODULE:
        told = f"{path} is a submodule; it was not fetched."
        remedy = "Put the files into this repository, or move the submodule out of the read paths."
        return _diagnostic("SubmoduleRefused", "Submodules are not read", told, path, remedy)
    if entry.mode != REGULAR:
        told = f"{path} has mode {entry.mode}, wanted {REGULAR}."
        return _diagnostic(
            "ModeRefused", "Only plain files are read", told, path, f"git update-index --chmod=-x {path}"
        )
    if path.encode() != raw_path:
        told = f"The name, with odd bytes escaped, is {path}."
        return _diagnostic("NameRefused", "File names must be printable UTF-8", told, path, "Rename the file.")
    if size > limits.file_bytes:
        told = f"{size} bytes, at most {limits.file_bytes} are read."
        remedy = "Split the file; one document a file is usual."
        return _diagnostic("FileTooLarge", "File is larger than what is read", told, path, remedy)
    return None


def _colliding(entries: tuple[TreeEntry, ...]) -> list[Diagnostic]:
    """A warning at the second of two paths that are one on a disk which ignores case."""
    first: dict[str, str] = {}
    pairs = [(entry.path, first.setdefault(entry.path.casefold(), entry.path)) for entry in entries]
    return [
        Diagnostic(
            code="CaseCollision",
            summary="Two paths differ only in letter case",
            detail=f"{path} and {other} are one file on some disks.",
            place=Place(path),
            remedy="Rename one of them.",
            severity=Severity.WARNING,
        )
        for path, other in pairs
        if path != other
    ]


def _too_many(prefix: str, limits: Limits) -> Diagnostic:
    told = f"More than {limits.files} files."
    remedy = "Remove files of finished jobs with `gangops tidy`."
    return _diagnostic("TooManyFiles", "Folder holds more files than are read", told, prefix, remedy)


def _too_large_together(under: tuple[str, ...], limits: Limits) -> Diagnostic:
    told = f"More than {limits.total_bytes} bytes in {', '.join(under)}."
    remedy = "Keep outputs and binaries out of these folders."
    return _diagnostic("TreeTooLarge", "Files are larger together than what is read", told, under[0], remedy)


def _diagnostic(code: str, summary: str, detail: str, path: str, remedy: str) -> Diagnostic:
    return Diagnostic(code=code, summary=summary, detail=detail, place=Place(path or "."), remedy=remedy)
