"""Generation after generation, each read by what differs from the one before: the record played forward.

Reading a generation whole costs every file of it; played forward it costs the files that changed, which is what lets
a year of decisions be verified over lunch. What comes out equals `generation_of` on all the files.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from reconciler.documents.orders import read_orders
from reconciler.documents.record import (
    FROZEN,
    JOBS,
    NODES,
    OBSERVED_JOBS,
    OBSERVED_NODES,
    OBSERVED_PROVENANCE,
    REQUESTS,
    SUMMARY,
    TOMBSTONES,
    Files,
    document_at,
    read_allocation,
    read_observed,
    read_summary,
)
from reconciler.errors import GangOpsError, StoreError
from reconciler.model.allocation import JobRecord
from reconciler.model.observed import Observed
from reconciler.model.units import CommitId, JobKey, NodeName, document_of
from reconciler.runtime.generation import STATE_PATHS, Generation, generation_of, state_files
from reconciler.store.history import CommitMeta, parse_commit
from reconciler.store.names import object_id
from reconciler.store.objects import blobs, raw_commits
from reconciler.store.runner import Git
from reconciler.store.walk import ABSENT, Link, changed_paths

_CHUNK = 64
_T = TypeVar("_T")
_DESIRED = "desired/"
_SEEN = (OBSERVED_NODES, OBSERVED_JOBS, OBSERVED_PROVENANCE, REQUESTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One state commit as read. `generation` is None when it cannot be read; `problem` says why.

    `foreign` are paths that are none of ours; `changed` those whose content differs from the generation before.
    """

    meta: CommitMeta
    raw: bytes
    files: Files
    generation: Generation | None
    problem: GangOpsError | None = None
    changed: frozenset[str] = frozenset()
    foreign: tuple[str, ...] = ()
    forged: tuple[str, ...] = ()
    """Objects whose content is not what their id says: this clone's disk was damaged or tampered with."""


def frames(git: Git, links: list[Link], before: str = "") -> Iterator[Frame]:
    """The frames of a part of the chain, oldest first; first that of `before`, when it is given, read whole."""
    last = _whole(git, before) if before else None
    if last is not None:
        yield last
    pending = iter(links)
    while chunk := list(islice(pending, _CHUNK)):
        raw = raw_commits(git, (link.id for link in chunk))
        changes = dict(changed_paths(git, chunk, ()))
        wanted = {oid for paths in changes.values() for path, oid in paths.items() if _is_file(path, oid)}
        contents = blobs(git, wanted)
        forged = {oid for oid, content in contents.items() if object_id("blob", content) != oid}
        for link in chunk:
            last = _next(link, raw[link.id], changes.get(link.id, {}), contents, last, forged)
            yield last


def _is_file(path: str, oid: str) -> bool:
    return oid != ABSENT and " " not in oid and path.partition("/")[0] in STATE_PATHS


def _whole(git: Git, commit: str) -> Frame:
    raw = raw_commits(git, (commit,))[commit]
    meta = parse_commit(commit, raw)
    try:
        files = state_files(git, commit)
        return Frame(meta=meta, raw=raw, files=files, generation=generation_of(commit, files))
    except GangOpsError as err:
        return Frame(meta=meta, raw=raw, files={}, generation=None, problem=err)


def _next(
    link: Link,
    raw: bytes,
    paths: Mapping[str, str],
    contents: Mapping[str, bytes],
    last: Frame | None,
    forged: Container[str],
) -> Frame:
    meta = parse_commit(link.id, raw)
    files = dict(last.files) if last is not None else {}
    ours = {path: oid for path, oid in paths.items() if not path.startswith(_DESIRED)}
    false = tuple(sorted(path for path, oid in ours.items() if oid in forged))
    foreign = tuple(sorted(path for path, oid in ours.items() if oid != ABSENT and not _is_file(path, oid)))
    for path, oid in ours.items():
        files.pop(path, None)
        if _is_file(path, oid):
            files[path] = contents[oid]
    try:
        generation = _read(link.id, files, ours, last.generation if last is not None else None)
        problem: GangOpsError | None = None
    except GangOpsError as err:
        generation, problem = None, err
    return Frame(
        meta=meta,
        raw=raw,
        files=files,
        generation=generation,
        problem=problem,
        changed=frozenset(ours),
        foreign=foreign,
        forged=false if object_id("commit", raw) == link.id else ("the commit itself", *false),
    )


def _read(commit: str, files: Files, changed: Mapping[str, str], before: Generation | None) -> Generation:
    """The generation of these files, most of which are those of `before`. Raises StoreError (PathNotFound, BadRecord)."""
    if before is None:
        return generation_of(commit, files)
    part = {path: files[path] for path in (*changed, SUMMARY) if path in files}
    gone = [path for path in changed if path not in files]
    summary = read_summary(part)
    fresh = read_allocation(part, summary)
    jobs = _carried(before.allocation.jobs, fresh.jobs, changed)
    reburied = {document_at(path) for path in changed if path.startswith(TOMBSTONES)}
    stones = before.allocation.tombstones.updated(fresh.tombstones, reburied)
    seen = read_observed(part)
    nodes, progress = {**before.observed.nodes, **seen.nodes}, {**before.observed.jobs, **seen.jobs}
    brought, asked = {**before.observed.provenance, **seen.provenance}, {**before.observed.requests, **seen.requests}
    orders, node_files = dict(before.orders), dict(before.node_files)
    for path in gone:
        name = path.removesuffix(".yaml")
        if path.startswith(OBSERVED_NODES):
            _forget(nodes, NodeName(name.rpartition("/")[2]), path, files, OBSERVED_NODES)
        elif path.startswith(OBSERVED_JOBS):
            progress.pop(JobKey(name[len(OBSERVED_JOBS) :]), None)
        elif path.startswith(OBSERVED_PROVENANCE):
            brought.pop(JobKey(name[len(OBSERVED_PROVENANCE) :]), None)
        elif path.startswith(REQUESTS):
            asked.pop(name[len(REQUESTS) :], None)
        elif path.startswith(NODES):
            node_files.pop(path, None)
            _forget(orders, NodeName(path.rpartition("/")[2].removesuffix(".json")), path, files, NODES)
    for path, content in part.items():
        if path.startswith(NODES):
            node_files[path] = content
            found = read_orders(content)
            orders[NodeName(found.node)] = found
        elif path.startswith(_SEEN) and not _is_told(path, seen):
            raise StoreError(f"{path} tells of something else than its name says", code="BadRecord")
    observed_files = {p: c for p, c in before.observed_files.items() if p not in changed}
    observed_files.update({p: c for p, c in part.items() if p.startswith(_SEEN)})
    frozen = {p: c for p, c in before.frozen.items() if f"{FROZEN}{p}" not in changed}
    frozen.update({p.removeprefix(FROZEN): c for p, c in part.items() if p.startswith(FROZEN)})
    return Generation(
        commit=CommitId(commit),
        summary=summary,
        allocation=replace(fresh, jobs=jobs, tombstones=stones),
        observed=Observed(
            nodes=dict(sorted(nodes.items())),
            jobs=dict(sorted(progress.items())),
            provenance=dict(sorted(brought.items())),
            requests=dict(sorted(asked.items())),
        ),
        observed_files=observed_files,
        orders=orders,
        node_files=node_files,
        frozen=frozen,
    )


def _carried(
    known: Mapping[JobKey, JobRecord], fresh: Mapping[JobKey, JobRecord], changed: Iterable[str]
) -> Mapping[JobKey, JobRecord]:
    """By key what was known and what its changed files say now; all tasks of an array lie in one."""
    files = {document_at(path) for path in changed if path.startswith(JOBS)}
    if not files:
        return known
    kept = {key: value for key, value in known.items() if document_of(key) not in files}
    return dict(sorted({**kept, **fresh}.items()))


def _forget(known: dict[NodeName, _T], node: NodeName, path: str, files: Files, prefix: str) -> None:
    """Drop a node's value, unless its file only moved to another rack's folder."""
    end = path[path.rindex("/") :]
    if not any(other.startswith(prefix) and other.endswith(end) for other in files):
        known.pop(node, None)


def _is_told(path: str, seen: Observed) -> bool:
    """Whether a file of the observation holds the value its name says."""
    name = path.removesuffix(".yaml")
    if path.startswith(OBSERVED_JOBS):
        return JobKey(name[len(OBSERVED_JOBS) :]) in seen.jobs
    if path.startswith(OBSERVED_PROVENANCE):
        return JobKey(name[len(OBSERVED_PROVENANCE) :]) in seen.provenance
    if path.startswith(REQUESTS):
        return name[len(REQUESTS) :] in seen.requests
    return NodeName(name.rpartition("/")[2]) in seen.nodes
