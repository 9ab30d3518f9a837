"""Where the record goes on in another branch: is it the branch that was named, and did the one before really end?

A closed branch has to end with the commit that closed it in this clone too: whoever reads it by its own name must not be
shown what the record does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.runtime.audit.ends import at_link
from reconciler.runtime.audit.findings import Finding
from reconciler.store.branches import CONTINUED, year_of
from reconciler.store.history import parse_commit
from reconciler.store.names import is_ref
from reconciler.store.objects import find_commit, raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import Link

_FOLDERS = ("refs/remotes/origin/", "refs/heads/")


def seam_faults(git: Git, chain: list[Link], branch: str) -> Iterator[Finding]:
    """What is wrong at each seam. `branch` is the name of the branch the record ends in, "" where that is not known."""
    seams = [i for i, link in enumerate(chain) if link.carried and i]
    closing = [chain[i - 1].id for i in seams]
    raw = raw_commits(git, closing)
    following = [dict(parse_commit(oid, raw[oid]).trailers).get(CONTINUED, "") for oid in closing]
    if not following:
        return
    if branch and following[-1] not in ("", branch):
        told = f"it begins {branch}, and the branch before goes on in {following[-1]}"
        yield at_link(git, chain, seams[-1], "chain", "OtherBranch", told)
    names = [_first_of(following[0]), *following[:-1]]
    for at, name, closed in zip(seams, names, closing, strict=True):
        ended = _end_of(git, name)
        if ended not in ("", closed):
            told = f"it closes {name}, which in this clone ends with {ended[:12]}"
            yield at_link(git, chain, at - 1, "chain", "ClosedBranchMoved", told)


def _first_of(following: str) -> str:
    """The name of the first branch, which is in no commit: that of a later one begins with it. "" when not known."""
    base = following.rpartition("-")[0]
    return base if base and year_of(following, base) else ""


def _end_of(git: Git, name: str) -> str:
    """The newest commit of a branch in this clone, "" where it has none of that name."""
    for folder in _FOLDERS:
        ref = f"{folder}{name}"
        found = find_commit(git, ref) if name and is_ref(ref) else None
        if found is not None:
            return found
    return ""
