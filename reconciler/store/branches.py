"""Which branch is the record now? It goes on in a branch a year, and each names the commit it goes on from.

`allocations` comes first, then `allocations-2027`, `allocations-2028`, and so on. The first commit of a later one has no
parent, so that a clone of it alone is whole; its trailer `Previous-Commit` names the last one of the branch before, and
that one's `Continued-In` names the branch. How a branch is closed and the next one begun is for the runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from reconciler.store.history import CommitMeta, commit_meta, first_parent_log, is_ancestor
from reconciler.store.names import is_object_id
from reconciler.store.objects import find_commit, raw_commits
from reconciler.store.runner import NETWORK_SECONDS, Git

PREVIOUS = "Previous-Commit"
CONTINUED = "Continued-In"
_YEAR = re.compile(r"-(\d{4})")


def year_of(name: str, first: str) -> int | None:
    """The year of a branch of the record whose first branch is `first` (itself 0); None for any other branch."""
    if name == first:
        return 0
    match = _YEAR.fullmatch(name.removeprefix(first)) if name.startswith(first) else None
    return int(match[1]) if match else None


def in_order(names: Iterable[str], first: str) -> list[str]:
    """Those names that are branches of the record, oldest first."""
    return sorted(
        (name for name in names if year_of(name, first) is not None), key=lambda name: year_of(name, first) or 0
    )


def went_on_from(git: Git, commit: str) -> str:
    """The commit of the branch before that this first commit of a branch goes on from; "" for any other commit."""
    raw = raw_commits(git, (commit,))[commit]
    if f"\n{PREVIOUS}: ".encode() not in raw:
        return ""
    return named_before(commit_meta(git, commit))


def named_before(meta: CommitMeta) -> str:
    """What `went_on_from` says, of a commit that was read already."""
    named = dict(meta.trailers).get(PREVIOUS, "") if not meta.parents else ""
    return named if is_object_id(named) else ""


def whole_log(git: Git, tip: str, *, since: int | None = None) -> Iterator[CommitMeta]:
    """The log of a record over all of its branches that are in this clone, newest first, as `first_parent_log`."""
    at = tip
    while at:
        last: CommitMeta | None = None
        for last in first_parent_log(git, at, since=since):
            yield last
        at = named_before(last) if last is not None else ""
        at = at if at and find_commit(git, at) else ""


def before_branch(git: Git, tip: str) -> str:
    """The last commit of the branch before the one with this tip; "" when there was none, or it is not in this clone."""
    listed = git.run("rev-list", "--first-parent", "--max-parents=0", tip, seconds=NETWORK_SECONDS).stdout
    first = listed.decode("ascii").strip()
    named = went_on_from(git, first) if is_object_id(first) else ""
    return named if named and find_commit(git, named) else ""


def is_in_record(git: Git, older: str, tip: str) -> bool:
    """Whether a commit is in the record that ends at `tip`, in this branch or in one before; False when not known."""
    at = tip
    while at:
        if is_ancestor(git, older, at):
            return True
        at = before_branch(git, at)
    return False
