"""Does this clone show what is in it, and does the chain begin and end where it should?

What makes git show other commits than those that are there, commits that were in the branch and no longer are, the
root, and the part of the chain that was asked for. What is inside each generation is left to `judge`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from reconciler.errors import NotFound
from reconciler.model.units import SECOND
from reconciler.runtime.audit.findings import Bounds, Finding
from reconciler.store.objects import described, raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import Link, record_chain

_SHADOWS = tuple(
    f"refs/{folder}origin/allocations{rest}" for folder in ("", "tags/", "heads/") for rest in ("", "-[0-9]*")
)
"""What `origin/allocations` would mean before it meant the branch."""


def chosen(git: Git, chain: list[Link], bounds: Bounds) -> tuple[list[Link], int]:
    """The part of the chain asked for, and the position of its first link."""
    if bounds == Bounds(root=bounds.root, contains=bounds.contains):
        return chain, 0
    raw = raw_commits(git, (link.id for link in chain))
    numbers, dates = [], []
    for link in chain:
        numbers.append(number_said(raw[link.id], b"Generation"))
        dates.append(date_said(raw[link.id]) * SECOND)
    wanted = [
        i for i in range(len(chain))
        if (bounds.since is None or numbers[i] >= bounds.since) and (bounds.until is None or numbers[i] <= bounds.until)
        and (bounds.since_at is None or dates[i] >= bounds.since_at) and (bounds.until_at is None or dates[i] <= bounds.until_at)
    ]  # fmt: skip
    if not wanted:
        raise NotFound(
            f"the record has no generation between --since and --until: it has {min(numbers)} to {max(numbers)}",
            code="UnknownGeneration", remedy="gangops audit verify",
        )  # fmt: skip
    return chain[wanted[0] : wanted[-1] + 1], wanted[0]


def number_said(raw: bytes, key: bytes) -> int:
    """The number a commit's last such trailer says, -1 when it says none."""
    for line in reversed(raw.split(b"\n")):
        if line.startswith(key + b": "):
            digits = line[len(key) + 2 :]
            return int(digits) if digits.isdigit() and len(digits) < 19 else -1
    return -1


def date_said(raw: bytes) -> int:
    """The committer date of a commit in seconds, 0 when it has none."""
    for line in raw.split(b"\n\n", 1)[0].split(b"\n"):
        if line.startswith(b"committer "):
            digits = line.rsplit(b" ", 2)[1]
            return int(digits) if digits.isdigit() else 0
    return 0


def disguises(git: Git, chain: list[Link]) -> Iterator[Finding]:
    """What makes git show other commits than those that are there, and other tools believe it."""
    positions = {link.id: i for i, link in enumerate(chain)}
    for line in git.run("for-each-ref", "--format=%(refname)", "refs/replace/").stdout.decode().split():
        replaced = line.rpartition("/")[2]
        told = f"this clone shows another object in place of {replaced[:12]} ({line})"
        yield at_link(git, chain, positions.get(replaced, 0), "objects", "ReplacedObject", told)
    for line in git.run("for-each-ref", "--format=%(refname)", *_SHADOWS).stdout.decode().split():
        told = f"{line} stands before the branch of the record where git is asked for it by its short name"
        yield at_link(git, chain, len(chain) - 1, "objects", "ShadowedBranch", told)
    grafts = git.folder / git.run("rev-parse", "--git-path", "info/grafts").stdout.decode().strip()
    with contextlib.suppress(OSError):
        for line in grafts.read_text().split("\n"):
            if line and not line.startswith("#"):
                yield at_link(
                    git,
                    chain,
                    positions.get(line.split()[0], 0),
                    "objects",
                    "GraftedParents",
                    "info/grafts gives it other parents",
                )


def lost(git: Git, chain: list[Link], bounds: Bounds) -> Iterator[Finding]:
    """Commits known to have been in the branch that no longer are."""
    inside = {link.id for link in chain}
    known = [*bounds.contains, *([kept] if (kept := verified_before(git)) else [])]
    for commit in known:
        if not any(one.startswith(commit) for one in inside):
            told = f"the branch does not contain {commit[:12]}, which was in it before: it was rewound or rewritten"
            yield at_link(git, chain, _common(git, chain, commit), "chain", "BranchRewritten", told)


def _common(git: Git, chain: list[Link], commit: str) -> int:
    """The position after the last commit that this branch and the lost one share."""
    kind, oid, _ = described(git, f"{commit}^{{commit}}")
    if kind != "commit":
        return len(chain) - 1
    other = {link.id for link in record_chain(git, oid)}
    shared = max((i for i, link in enumerate(chain) if link.id in other), default=-1)
    return min(shared + 1, len(chain) - 1)


def root_faults(git: Git, chain: list[Link], bounds: Bounds) -> Iterator[Finding]:
    """What is wrong with where the chain begins."""
    first = chain[0]
    if bounds.root and not first.id.startswith(bounds.root):
        told = f"the record begins with {first.id[:12]}, not with {bounds.root[:12]}"
        yield at_link(git, chain, 0, "chain", "OtherRoot", told)


def at_link(git: Git, chain: list[Link], position: int, check: str, code: str, told: str) -> Finding:
    """A finding at a link of the whole chain."""
    commit = chain[position].id
    number = number_said(raw_commits(git, (commit,))[commit], b"Generation")
    return Finding(position=position, generation=number, commit=commit, check=check, code=code, told=told)


def verified_file(git: Git) -> Path:
    """Where a clone remembers the tip it verified last."""
    return git.folder / git.run("rev-parse", "--git-path", "gangops/verified").stdout.decode().strip()


def verified_before(git: Git) -> str:
    """The tip that was verified last in this clone, "" when none was."""
    try:
        found = verified_file(git).read_text().strip()
    except OSError:
        return ""
    return found if len(found) == 40 and set(found) <= set("0123456789abcdef") else ""


def remember_verified(git: Git, commit: str) -> None:
    """Keep the tip of a record that was found true; best effort."""
    file = verified_file(git)
    with contextlib.suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{commit}\n")
