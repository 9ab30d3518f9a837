"""What is the story of a branch? Commits as values, the first-parent chain, ancestry, files at a commit.

The first-parent chain of the state branch is the log of decisions. Whether a signature is good is left to
`signatures`; what a trailer must say, to the audit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.errors import StoreError
from reconciler.store.names import checked_object_id
from reconciler.store.objects import file_at, raw_commits, resolve
from reconciler.store.runner import Git
from reconciler.store.trees import tree_entries

__all__ = ["CommitMeta", "commit_meta", "file_at", "first_parent_log", "is_ancestor", "parse_commit", "paths_at"]

_SECOND = 1_000_000_000
_BATCH = 500
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): (\S.*)")
_PERSON = re.compile(r"(?P<who>.*) (?P<seconds>-?\d+) [+-]\d{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMeta:
    """One commit as a value. Instants are whole nanoseconds UTC; `trailers` keep order and repeats."""

    id: str
    tree: str
    parents: tuple[str, ...]
    author: str
    authored_at: int
    committer: str
    committed_at: int
    signed: bool
    message: str
    trailers: tuple[tuple[str, str], ...]

    @property
    def subject(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]

    def only_trailer(self, key: str) -> str:
        """The value of a trailer that must stand exactly once. Raises StoreError(NotOurCluster)."""
        values = [value for name, value in self.trailers if name == key]
        if len(values) != 1:
            raise StoreError(
                f"commit {self.id[:12]} has {len(values)} trailers {key}, wanted one",
                code="NotOurCluster",
                remedy="This branch was not written by gangops, or was changed by hand: see `gangops audit verify`.",
            )
        return values[0]


def commit_meta(git: Git, revision: str) -> CommitMeta:
    """The commit a revision names, parsed. Raises NotFound(UnknownRevision)."""
    commit = resolve(git, revision)
    return parse_commit(commit, raw_commits(git, (commit,))[commit])


def parse_commit(commit: str, raw: bytes) -> CommitMeta:
    """A commit object as a value. Raises StoreError(GitFailed) when it is no well-formed commit."""
    head, _, body = raw.partition(b"\n\n")
    unfolded = head.decode("utf-8", "backslashreplace").replace("\n ", "\x00")
    headers = [line.partition(" ")[::2] for line in unfolded.split("\n")]
    message = body.decode("utf-8", "backslashreplace")
    try:
        author, authored_at = _person(next(value for key, value in headers if key == "author"))
        committer, committed_at = _person(next(value for key, value in headers if key == "committer"))
        return CommitMeta(
            id=commit,
            tree=next(value for key, value in headers if key == "tree"),
            parents=tuple(value for key, value in headers if key == "parent"),
            author=author,
            authored_at=authored_at,
            committer=committer,
            committed_at=committed_at,
            signed=any(key in {"gpgsig", "gpgsig-sha256"} for key, _ in headers),
            message=message,
            trailers=trailers_of(message),
        )
    except (StopIteration, ValueError) as err:
        raise StoreError(f"commit {commit[:12]} cannot be read") from err


def trailers_of(message: str) -> tuple[tuple[str, str], ...]:
    """The `Key: value` lines of the last paragraph, in order; none when any line of it is something else."""
    paragraphs = message.rstrip("\n").split("\n\n")
    if len(paragraphs) < 2:
        return ()
    found = [_TRAILER.fullmatch(line) for line in paragraphs[-1].split("\n")]
    pairs = tuple((match[1], match[2]) for match in found if match is not None)
    return pairs if len(pairs) == len(found) else ()


def first_parent_log(
    git: Git, revision: str, *, paths: tuple[str, ...] = (), limit: int | None = None, since: int | None = None
) -> Iterator[CommitMeta]:
    """The commits of a first-parent chain, newest first; only those that changed `paths` when given.

    The chain of this one branch: `branches.whole_log` goes on in those before. `since`: instant in nanoseconds; older commits are left out. Raises NotFound(UnknownRevision) at the first step.
    """
    # rev-list and not log: log would obey log.showSignature and run the program a foreign clone names.
    narrowed = [f"--max-count={limit}"] if limit is not None else []
    narrowed += [f"--since={since // _SECOND}"] if since is not None else []
    listed = git.run("rev-list", "--first-parent", *narrowed, resolve(git, revision), "--", *paths)
    commits = listed.stdout.decode("ascii").split()
    for start in range(0, len(commits), _BATCH):
        for commit, raw in raw_commits(git, commits[start : start + _BATCH]).items():
            yield parse_commit(commit, raw)


def is_ancestor(git: Git, older: str, newer: str) -> bool:
    """Whether `newer` has `older` in its history (or is it). False when the clone lacks either."""
    pair = (checked_object_id(older), checked_object_id(newer))
    return git.run("merge-base", "--is-ancestor", *pair, accept=(0, 1, 128)).status == 0


def paths_at(git: Git, commit: str, prefix: str = "") -> tuple[str, ...]:
    """The paths of all files under a folder of a commit, sorted. Raises StoreError(PathNotFound)."""
    return tuple(sorted(entry.path for entry in tree_entries(git, commit, prefix)))


def _person(text: str) -> tuple[str, int]:
    match = _PERSON.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match["who"], int(match["seconds"]) * _SECOND
