"""What should a person look at, although none of it is forbidden? Read from the index and the desired branch.

Self-merged changes, changes that came by no pull request, unsigned ones, removals and rewrites that were acknowledged,
force-pushed desired branches, and evictions that threw much work away. The record is true with all of them in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.model.units import SECOND, Instant
from reconciler.runtime.audit.index import Index
from reconciler.runtime.audit.origins import origin_of, person
from reconciler.runtime.guards import ACKNOWLEDGE, ACKNOWLEDGE_REWRITE
from reconciler.store.history import CommitMeta, parse_commit
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import first_parents

_REVIEWED = re.compile(r"(?:Reviewed|Approved|Acked)-by", re.IGNORECASE)
MUCH_LOST = 24 * 3600
"""GPU-seconds thrown away by one eviction or failure above which it is listed: a GPU-day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceptional:
    """One thing to look at: the generation that acted on it, its kind, who, and what in one line."""

    generation: int
    at: Instant
    commit: str
    kind: str
    person: str
    told: str


def exceptions(
    git: Git, index: Index, since: Instant | None = None, until: Instant | None = None
) -> Iterator[Exceptional]:
    """By generation, oldest first. Raises StoreError."""
    at, desired = index.commits["at"], index.commits["desired"]
    known = ""
    for position, commit in enumerate(index.ids):
        named = index.texts[desired[position]]
        if (since is not None and at[position] < since) or (until is not None and at[position] > until):
            known = named or known
            continue
        if named and named != known and position:
            yield from _desired(git, index, position, known, named)
        known = named or known
        for event in range(index.first_event(position), index.first_event(position + 1)):
            failed = index.events["failed"][event]
            if failed >= MUCH_LOST:
                told = f"{index.text('job', event)} lost {failed // 3600} GPU-h of work to {index.text('code', event) or 'a failure'}"
                yield _one(index, position, commit, "WorkLost", index.text("person", event), told)


def _desired(git: Git, index: Index, position: int, before: str, now: str) -> Iterator[Exceptional]:
    """The commits of the desired branch that a generation was the first to act on."""
    links = first_parents(git, now, after=before)
    commit = index.ids[position]
    if before and (not links or links[0].parent != before):
        yield _one(
            index,
            position,
            commit,
            "DesiredRewritten",
            "",
            f"the desired branch went from {before[:12]} to {now[:12]}, which does not have it in its history",
        )
    raw = raw_commits(git, (oid for link in links for oid in (link.id, link.merged) if oid))
    for link in links:
        meta = parse_commit(link.id, raw[link.id])
        merged = parse_commit(link.merged, raw[link.merged]) if link.merged else None
        for kind, told in _of_commit(meta, merged):
            yield _one(
                index, position, commit, kind, person((merged or meta).author), f"{told}: {link.id[:12]} {meta.subject}"
            )


def _of_commit(meta: CommitMeta, merged: CommitMeta | None) -> Iterator[tuple[str, str]]:
    origin = origin_of(meta, merged)
    trailers = dict(meta.trailers)
    reviewed = any(_REVIEWED.fullmatch(key) and person(value) != origin.person for key, value in meta.trailers)
    if not origin.request and merged is None:
        yield "NoPullRequest", "pushed without a pull request"
    elif person(meta.committer) == origin.person and not reviewed:
        yield "SelfMerged", f"merged by its own author, {origin.person}, with no reviewer named"
    if not meta.signed:
        yield "Unsigned", "not signed: who it is by is known from the forge alone"
    for key in (ACKNOWLEDGE, ACKNOWLEDGE_REWRITE):
        if key in trailers:
            yield "Acknowledged", f"{key}: {trailers[key]}"


def _one(index: Index, position: int, commit: str, kind: str, who: str, told: str) -> Exceptional:
    at = Instant(index.commits["at"][position] // SECOND * SECOND)
    return Exceptional(
        generation=index.commits["generation"][position], at=at, commit=commit, kind=kind, person=who, told=told
    )
