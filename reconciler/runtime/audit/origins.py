"""Who asked for this job? The commits of the desired branch that last touched its file: a person, a pull request.

Merges are followed along the first parent, as a forge makes them: the person is the author of what was merged, the
number stands in the merge's subject. Where a forge squashes, both stand in the one commit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from reconciler.documents.layout import JOBS
from reconciler.model.units import JobKey, document_of
from reconciler.store.history import CommitMeta, parse_commit
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import changed_paths, commits_touching, first_parents

_NUMBER = re.compile(
    r"Merge pull request #(\d+)|\(#(\d+)\)\s*$|See merge request \S*!(\d+)|Merged in .* \(pull request #(\d+)\)"
)
_PERSON = re.compile(r"(.*?) ?<([^<>]*)>")
_CHUNK = 2000


@dataclass(frozen=True, slots=True)
class Origin:
    """`person` is an address, or a name where there is none; `request` a pull request's number, "" without one."""

    commit: str
    person: str
    request: str


NOBODY = Origin("", "", "")


@dataclass
class Origins:
    """Who asked for each job, as of one desired commit. `at` moves on with `advance`, in the order of the record."""

    git: Git
    at: str = ""
    by_path: dict[str, Origin] = field(default_factory=dict)
    _ahead: list[tuple[str, dict[str, Origin]]] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)
    _next: int = 0

    def look_ahead(self, newest: str) -> None:
        """Read the desired branch up to a commit in one go, so that each `advance` on the way there costs nothing."""
        links = first_parents(self.git, newest, after=self.at)
        if self.at and links and links[0].parent != self.at:
            return  # rewritten in between: `advance` reads each branch as it comes
        self._ahead, self._known, self._next = [], {}, 0
        merged = {link.id: link.merged for link in links}
        for start in range(0, len(links), _CHUNK):
            part = links[start : start + _CHUNK]
            touched = dict(changed_paths(self.git, part, (JOBS.rstrip("/"),)))
            metas = _metas(self.git, [*touched, *(merged[c] for c in touched if merged[c])])
            for link in part:
                self._known[link.id] = len(self._ahead)
                self._ahead.append((link.id, _origins(link.id, touched.get(link.id, {}), metas, merged)))

    def advance(self, desired: str) -> None:
        """What is known is now as of this desired commit."""
        if desired == self.at:
            return
        position = self._known.get(desired)
        if position is None or position < self._next - 1:
            self._start_over(desired)
            return
        for _, found in self._ahead[self._next : position + 1]:
            self.by_path.update(found)
        self._next, self.at = position + 1, desired

    def of(self, job: str) -> Origin:
        """Who last touched the file of a job."""
        return self.by_path.get(f"{JOBS}{document_of(JobKey(job))}.yaml", NOBODY)

    def _start_over(self, desired: str) -> None:
        """Another branch than the one known: the file of each job as that branch tells it."""
        other = Origins(self.git)
        other.look_ahead(desired)
        other.advance(desired) if desired in other._known else None
        self.by_path = {**self.by_path, **other.by_path}
        self.at = desired


def last_touch(git: Git, desired: str, path: str) -> Origin:
    """Who last touched a file, as of a desired commit; NOBODY where the clone does not know."""
    if not desired:
        return NOBODY
    commit = next(commits_touching(git, desired, path), None)
    if commit is None:
        return NOBODY
    meta = _metas(git, [commit])[commit]
    merged = meta.parents[1] if len(meta.parents) > 1 else ""
    return origin_of(meta, _metas(git, [merged])[merged] if merged else None)


def origin_of(meta: CommitMeta, merged: CommitMeta | None) -> Origin:
    """Who a commit of the desired branch is by; `merged` is its second parent, if it has one."""
    found = _NUMBER.search(meta.subject) or _NUMBER.search(meta.message)
    number = next((group for group in found.groups() if group), "") if found else ""
    return Origin(commit=meta.id, person=person((merged or meta).author), request=number)


def person(author: str) -> str:
    """The address of an author line, or the name where there is none."""
    match = _PERSON.fullmatch(author)
    return (match[2] or match[1]) if match else author


def _origins(
    commit: str, touched: Mapping[str, str], metas: Mapping[str, CommitMeta], merged: Mapping[str, str]
) -> dict[str, Origin]:
    if not touched:
        return {}
    origin = origin_of(metas[commit], metas.get(merged[commit]))
    return dict.fromkeys(touched, origin)


def _metas(git: Git, commits: list[str]) -> dict[str, CommitMeta]:
    return {commit: parse_commit(commit, raw) for commit, raw in raw_commits(git, commits).items()}
