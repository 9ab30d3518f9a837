"""What should a person look at, although none of it is forbidden? Read from the index, the record and the desired branch.

Self-merged changes, changes that came by no pull request, unsigned ones, removals and rewrites that were acknowledged,
force-pushed desired branches, policies that were changed and jobs that a policy held and somebody let go, jobs whose
author is known from the forge alone or not at all, requests, and evictions that threw much work away. The record is true
with all of them in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from reconciler.documents.loader import STATE_LIMITS, load
from reconciler.documents.record import OBSERVED_PROVENANCE, REQUESTS, read_observed
from reconciler.model.observed import Proof
from reconciler.model.reasons import ReasonCode
from reconciler.model.request import Request, Standing
from reconciler.model.units import SECOND, Instant
from reconciler.render.names import one_line
from reconciler.render.story import request_line
from reconciler.runtime.audit.index import Index
from reconciler.runtime.audit.origins import origin_of, person
from reconciler.runtime.guards import ACKNOWLEDGE, ACKNOWLEDGE_REWRITE
from reconciler.store.history import CommitMeta, parse_commit
from reconciler.store.objects import blobs, raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import ABSENT, changed_paths, first_parents, record_chain

_REVIEWED = re.compile(r"(?:Reviewed|Approved|Acked)-by", re.IGNORECASE)
_BROUGHT = (OBSERVED_PROVENANCE.rstrip("/"), REQUESTS.rstrip("/"), "desired/policies")
_POLICY = frozenset(map(str, (ReasonCode.POLICY, ReasonCode.APPROVAL, ReasonCode.POLICY_PLAN)))
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
    written = _written(git, index)
    last: dict[int, str] = {}
    for position, commit in enumerate(index.ids):
        events = range(index.first_event(position), index.first_event(position + 1))
        before = {event: last.get(index.events["job"][event], "") for event in events}
        last.update({index.events["job"][event]: index.text("code", event) for event in events})
        named = index.texts[desired[position]]
        if (since is not None and at[position] < since) or (until is not None and at[position] > until):
            known = named or known
            continue
        if named and named != known and position:
            yield from _desired(git, index, position, known, named)
        known = named or known
        for kind, who, told in written.get(position, ()):
            yield _one(index, position, commit, kind, who, told)
        for event in events:
            if before[event] in _POLICY and index.text("state", event) and index.text("code", event) not in _POLICY:
                told = f"{index.text('job', event)} was held by a policy ({before[event]}) and is so no longer"
                yield _one(index, position, commit, "PolicyOverride", index.text("person", event), told)
            failed = index.events["failed"][event]
            if failed >= MUCH_LOST:
                told = f"{index.text('job', event)} lost {failed // 3600} GPU-h of work to {index.text('code', event) or 'a failure'}"
                yield _one(index, position, commit, "WorkLost", index.text("person", event), told)


def _written(git: Git, index: Index) -> dict[int, list[tuple[str, str, str]]]:
    """(kind, who, what) of what generations brought into the record from people, by position."""
    positions = {commit: position for position, commit in enumerate(index.ids)}
    links = record_chain(git, index.tip)
    changes = [
        (positions[commit], path, oid)
        for commit, paths in changed_paths(git, links[1:], _BROUGHT)
        for path, oid in sorted(paths.items())
    ]
    wanted = [oid for _, path, oid in changes if oid != ABSENT and " " not in oid and not path.startswith("desired/")]
    contents = blobs(git, wanted)
    found: dict[int, list[tuple[str, str, str]]] = defaultdict(list)
    for position, path, oid in changes:
        if path.startswith("desired/"):
            how = "removed" if oid == ABSENT else "changed"
            found[position].append(("PolicyChanged", "", f"{one_line(path.removeprefix('desired/'))} was {how}"))
        elif oid in contents:
            found[position] += _of_file(path, contents[oid])
    return found


def _of_file(path: str, content: bytes) -> Iterator[tuple[str, str, str]]:
    if path.startswith(REQUESTS):
        asked = read_observed({path: content}).requests.values()
        yield from (_of_request(one) for one in asked if one.standing in _JUDGED)
        return
    tree = _fields(content, path)
    author, proven, request = tree.get("author"), tree.get("proven"), tree.get("pullRequest")
    who = (
        str(author.get("email") or author.get("login") or author.get("user") or "") if isinstance(author, dict) else ""
    )
    what = f"{tree.get('job')}{f' (#{request})' if request else ''}"
    if proven == Proof.FORGE:
        yield "ForgeAlone", who, f"{what}: who brought it is known from the forge alone"
    elif proven != Proof.SIGNATURE:
        yield "Unproven", who, f"{what}: nothing but the names in a commit says who brought it"


_JUDGED = frozenset({Standing.IN_FORCE, Standing.REFUSED})


def _of_request(request: Request) -> tuple[str, str, str]:
    """Work stopped on one person's word, or somebody who asked for what he may not."""
    kind = "RequestRefused" if request.standing is Standing.REFUSED else "Request"
    return kind, request.email or request.by, request_line(request)


def _fields(content: bytes, path: str) -> dict[str, object]:
    documents = load(content, path, STATE_LIMITS).documents
    value = documents[0].value if documents else None
    return dict(value) if isinstance(value, dict) else {}


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
