"""The state tree as files: where each value of a generation lies, and its canonical bytes.

The layout is DESIGN §4. Only what differs from the previous generation is written, so a generation costs what it
changes. Reading gives back values equal to those written; replay and audit stand on that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import TypeVar

from reconciler.documents.canonical import to_yaml
from reconciler.documents.loader import STATE_LIMITS, Tree, bulk, load
from reconciler.documents.places import PLACEMENT_FORM
from reconciler.documents.tasktable import Row, read_rows, rows_of
from reconciler.documents.values import Codec, Form, tree_of, value_of
from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation, JobRecord, Metrics, Placement, RunLengths, Usage
from reconciler.model.decision import Difference
from reconciler.model.inventory import Inventory
from reconciler.model.observed import JobObservation, NodeObservation, Observed, Person, Provenance
from reconciler.model.reasons import Number, Reason, ReasonCode, sentence
from reconciler.model.request import Request
from reconciler.model.tombstones import Tombstone, buried, folder_of
from reconciler.model.units import CommitId, Digest, Instant, JobKey, NodeName, document_of, index_of, task_key

SUMMARY = "allocation/summary.yaml"
JOBS = "allocation/jobs/"
NODES = "allocation/nodes/"
TOMBSTONES = "finished/"
OBSERVED_NODES = "observed/nodes/"
OBSERVED_JOBS = "observed/jobs/"
OBSERVED_PROVENANCE = "observed/provenance/"
REQUESTS = "requests/"
FROZEN = "frozen/"

_T = TypeVar("_T")
Files = Mapping[str, bytes]
Changes = dict[str, bytes | None]
NO_FILES: Files = MappingProxyType({})
NOTHING_SEEN = Observed()
_NAMELESS = JobKey("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """`allocation/summary.yaml`: one generation in a page. `trigger` says what made the loop decide.

    `previews` are digests of the previews that merges decided on for the first time were made on, `differs` where the
    decision is not what a preview had shown.
    """

    generation: int
    epoch: int
    cluster_id: str
    decision_id: str
    decided_at: Instant
    decision_version: int
    package_version: str
    desired_commit: CommitId
    inputs_digest: str
    previous_commit: str
    trigger: str
    metrics: Metrics
    usage: tuple[Usage, ...] = ()
    usage_as_of: Instant = Instant(0)
    moved: tuple[Instant, ...] = ()
    run_lengths: tuple[RunLengths, ...] = ()
    previews: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()


def job_path(job: JobKey) -> str:
    """Where a job's record lies; of a task that of its array."""
    return f"{JOBS}{document_of(job)}.yaml"


def tombstone_path(job: JobKey) -> str:
    """Where lies how a job ended, with all of its tasks.

    Folders spread a queue's jobs of years, so that burying one more writes two small trees and never one with a line for
    each.
    """
    queue, _, name = document_of(job).rpartition("/")
    return f"{TOMBSTONES}{queue}/{folder_of(job)}/{name}.yaml"


def document_at(path: str) -> JobKey:
    """Of which job, or array, this file of records or of tombstones tells."""
    folder, _, name = path.removesuffix(".yaml").rpartition("/")
    queue = (
        folder.rpartition("/")[0].removeprefix(TOMBSTONES) if path.startswith(TOMBSTONES) else folder.removeprefix(JOBS)
    )
    return JobKey(f"{queue}/{name}")


def racks_of(inventory: Inventory) -> dict[NodeName, str]:
    """The folder of each declared node. One that left the inventory lies in `unknown`."""
    return {node.name: node.rack for node in inventory.nodes}


def orders_path(node: NodeName, racks: Mapping[NodeName, str]) -> str:
    """Where a node's orders lie."""
    return f"{NODES}{racks.get(node, 'unknown')}/{node}.json"


def changed_jobs(previous: Allocation, current: Allocation) -> Changes:
    """Files of job records and tombstones that differ between two allocations; None removes one."""
    changes: Changes = {}
    old, new = previous.jobs, current.jobs
    for document, records in _by_document(new, _changed(old, new)).items():
        changes[job_path(document)] = _job_bytes(document, records)
    before, stones = previous.tombstones.apart(current.tombstones)
    for document, ended in _by_document(stones, _changed(before, stones)).items():
        changes[tombstone_path(document)] = _tombstone_bytes(ended)
    return changes


def _changed(before: Mapping[JobKey, _T], now: Mapping[JobKey, _T]) -> set[JobKey]:
    """Keys whose values came, went or differ. Most are the same objects."""
    if before is now:
        return set()
    came = {key for key, value in now.items() if (old := before.get(key)) is not value and old != value}
    return came | (before.keys() - now.keys())


def _by_document(values: Mapping[JobKey, _T], changed: set[JobKey]) -> dict[JobKey, dict[JobKey, _T]]:
    """All values that lie in one file with one that changed, by file; all tasks of an array share one."""
    found: dict[JobKey, dict[JobKey, _T]] = {document: {} for document in sorted({document_of(key) for key in changed})}
    for key, value in values.items() if found else ():
        if (document := document_of(key)) in found:
            found[document][key] = value
    return found


def observed_files(
    observed: Observed, inventory: Inventory, before: Observed = NOTHING_SEEN, files: Files = NO_FILES
) -> dict[str, bytes]:
    """All files under `observed/` and `requests/`. What is equal in `before` keeps its bytes from `files`, those made
    of that."""
    racks = racks_of(inventory)
    found: dict[str, bytes] = {}
    for name, seen in sorted(observed.nodes.items()):
        path = f"{OBSERVED_NODES}{racks.get(name, 'unknown')}/{name}.yaml"
        kept = files.get(path) if before.nodes.get(name) == seen else None
        found[path] = kept or to_yaml(_RECORD.tree_of(seen))
    for key, progress in sorted(observed.jobs.items()):
        path = f"{OBSERVED_JOBS}{key}.yaml"
        kept = files.get(path) if before.jobs.get(key) == progress else None
        found[path] = kept or to_yaml(_RECORD.tree_of(progress))
    for key, brought in sorted(observed.provenance.items()):
        path = f"{OBSERVED_PROVENANCE}{key}.yaml"
        kept = files.get(path) if before.provenance.get(key) == brought else None
        found[path] = kept or to_yaml(_RECORD.tree_of(brought))
    for request in (observed.requests[name] for name in sorted(observed.requests)):
        path = f"{REQUESTS}{request.id}.yaml"
        kept = files.get(path) if before.requests.get(request.id) == request else None
        found[path] = kept or to_yaml(_RECORD.tree_of(request))
    return found


def differing(before: Files, after: Files) -> Changes:
    """What turns one set of files into another."""
    changes: Changes = {path: content for path, content in after.items() if before.get(path) != content}
    changes.update(dict.fromkeys(before.keys() - after.keys()))
    return changes


def summary_bytes(summary: Summary) -> bytes:
    """The content of `allocation/summary.yaml`."""
    return to_yaml(_RECORD.tree_of(summary))


def read_summary(files: Files) -> Summary:
    """Raises StoreError (PathNotFound, BadRecord)."""
    if SUMMARY not in files:
        raise StoreError("the state commit has no allocation/summary.yaml", code="PathNotFound")
    return _value(Summary, _tree(SUMMARY, files[SUMMARY]), SUMMARY)


def read_allocation(files: Files, summary: Summary | None = None) -> Allocation:
    """The allocation of a state tree, from its files. Raises StoreError (PathNotFound, BadRecord)."""
    summary = summary or read_summary(files)
    with bulk():
        jobs = {record.job: record for path, tree in _trees(files, JOBS) for record in _read_jobs(path, tree)}
        stones: dict[JobKey, tuple[Tombstone, ...]] = {}
        for path, tree in _trees(files, TOMBSTONES):
            stones.update(_read_tombstones(path, tree))
    return Allocation(
        generation=summary.generation,
        epoch=summary.epoch,
        cluster_id=summary.cluster_id,
        decided_at=summary.decided_at,
        desired_commit=summary.desired_commit,
        # By key: the order of paths is another one, `a/b-c.yaml` comes before `a/b.yaml`.
        jobs=dict(sorted(jobs.items())),
        tombstones=buried(stones),
        metrics=summary.metrics,
        usage=summary.usage,
        usage_as_of=summary.usage_as_of,
        moved=summary.moved,
        run_lengths=summary.run_lengths,
    )


def read_observed(files: Files) -> Observed:
    """The observation of a state tree, by name. Raises StoreError (code BadRecord)."""
    with bulk():
        nodes = [_value(NodeObservation, tree, path) for path, tree in _trees(files, OBSERVED_NODES)]
        jobs = [_value(JobObservation, tree, path) for path, tree in _trees(files, OBSERVED_JOBS)]
        brought = [_value(Provenance, tree, path) for path, tree in _trees(files, OBSERVED_PROVENANCE)]
        asked = [_read_request(path, tree) for path, tree in _trees(files, REQUESTS)]
    return Observed(
        nodes={seen.node: seen for seen in sorted(nodes, key=lambda seen: seen.node)},
        jobs={seen.job: seen for seen in sorted(jobs, key=lambda seen: seen.job)},
        provenance={seen.job: seen for seen in sorted(brought, key=lambda seen: seen.job)},
        requests={request.id: request for request in sorted(asked, key=lambda request: request.id)},
    )


# --- one file ---


def _job_bytes(document: JobKey, records: Mapping[JobKey, JobRecord]) -> bytes | None:
    """The record of a job; of an array with a table of its tasks. The two meet while a job becomes an array."""
    plain, tasks = _split(records)
    tree = _record_tree(plain) if plain is not None else {}
    if tasks:
        tree = {"job": document, **tree, "tasks": rows_of(tasks, attrgetter("digest"), _without_name, _task_tree)}
    return to_yaml(tree) if tree else None


def _split(values: Mapping[JobKey, _T]) -> tuple[_T | None, dict[int, _T]]:
    """What is of the job itself, and what is of its tasks by number."""
    tasks = {index: value for key, value in values.items() if (index := index_of(key)) is not None}
    return next((value for key, value in values.items() if index_of(key) is None), None), tasks


def _record_tree(record: JobRecord) -> dict[str, Tree]:
    tree: dict[str, Tree] = {}
    for key, value in _RECORD.tree_of(record).items():
        tree[key] = value
        if key == "reason":  # the same in words, for who reads the branch
            tree["why"] = sentence(record.reason)
    return tree


def _without_name(record: JobRecord, digest: Digest) -> JobRecord:
    return replace(record, job=_NAMELESS, digest=digest)


def _task_tree(record: JobRecord) -> dict[str, Tree]:
    tree = _record_tree(record)
    del tree["job"]
    return tree


def _read_jobs(path: str, tree: Tree) -> Iterator[JobRecord]:
    document = document_at(path)
    if not isinstance(tree, dict) or "." in document:
        raise _not_ours(path)
    plain, table = dict(tree), tree.get("tasks")
    if table is not None:
        del plain["tasks"]
        if plain.get("job") != document:
            raise _not_ours(path)
        for row in _rows(path, table):
            alike = _read_record(path, {"job": document, **row.tree})
            yield from (
                replace(alike, job=task_key(document, index), digest=digest)
                for index, digest in zip(row.tasks, row.digests, strict=True)
            )
    if table is None or plain.keys() != {"job"}:
        record = _read_record(path, plain)
        if record.job != document:
            raise _not_ours(path)
        yield record


def _read_record(path: str, tree: dict[str, Tree]) -> JobRecord:
    return _value(JobRecord, {key: value for key, value in tree.items() if key != "why"}, path)


def _rows(path: str, table: Tree) -> list[Row]:
    try:
        return list(read_rows(table))
    except (LookupError, TypeError, ValueError) as err:
        raise _not_ours(path) from err


def _tombstone_bytes(ended: Mapping[JobKey, tuple[Tombstone, ...]]) -> bytes | None:
    """How all incarnations of a job ended, oldest first; of an array first those of each task that came first."""
    plain, tasks = _split(ended)
    tree: dict[str, Tree] = {}
    if plain:
        tree["incarnations"] = [_RECORD.tree_of(stone) for stone in plain]
    rows: list[Tree] = []
    for turn in range(max(map(len, tasks.values()), default=0)):
        turns = {index: stones[turn] for index, stones in tasks.items() if len(stones) > turn}
        rows += rows_of(turns, attrgetter("digest"), _unnamed, _stone_tree)
    if rows:
        tree["tasks"] = rows
    return to_yaml(tree) if tree else None


def _unnamed(stone: Tombstone, digest: Digest) -> Tombstone:
    return replace(stone, job=_NAMELESS, digest=digest)


def _stone_tree(stone: Tombstone) -> dict[str, Tree]:
    tree = _RECORD.tree_of(stone)
    del tree["job"]
    return tree


def _read_tombstones(path: str, tree: Tree) -> dict[JobKey, tuple[Tombstone, ...]]:
    document = document_at(path)
    if not isinstance(tree, dict) or not tree or tree.keys() - {"incarnations", "tasks"} or "." in document:
        raise _not_ours(path)
    if path != tombstone_path(document):
        raise _not_ours(path)
    found: dict[JobKey, list[Tombstone]] = {}
    plain = tree.get("incarnations", [])
    for stone in plain if isinstance(plain, list) else []:
        found.setdefault(document, []).append(_value(Tombstone, stone, path))
    for row in _rows(path, tree["tasks"]) if "tasks" in tree else []:
        alike = _value(Tombstone, {"job": document, **row.tree}, path)
        for index, digest in zip(row.tasks, row.digests, strict=True):
            key = task_key(document, index)
            found.setdefault(key, []).append(replace(alike, job=key, digest=digest))
    if not found or any(stone.job != key for key, stones in found.items() for stone in stones):
        raise _not_ours(path)
    return {key: tuple(stones) for key, stones in found.items()}


def _read_request(path: str, tree: Tree) -> Request:
    request = _value(Request, tree, path)
    if path != f"{REQUESTS}{request.id}.yaml":
        raise _not_ours(path)
    return request


def _reason_tree(why: Reason) -> Tree:
    return {"code": why.code.value, **dict(why.numbers)}


def _read_reason(tree: Tree) -> Reason:
    if not isinstance(tree, dict):
        raise TypeError("a reason is a mapping")
    numbers: list[tuple[str, Number]] = []
    for name, value in tree.items():
        if type(value) is not int and type(value) is not str:
            raise TypeError(f"{name} is neither a number nor text")
        numbers.append((name, value))
    (first, code), *told = numbers
    if first != "code":
        raise ValueError("a reason begins with its code")
    return Reason(code=ReasonCode(str(code)), numbers=tuple(told))


_people: dict[str, Person] = {}
_MOST_PEOPLE = 4096


def _read_person(tree: Tree) -> Person:
    """The same object for the same person: a few people bring ten thousand jobs."""
    written = repr(tree)
    found = _people.get(written)
    if found is None:
        if len(_people) >= _MOST_PEOPLE:
            _people.clear()
        found = _people[written] = value_of(Person, tree)
    return found


_RECORD = Codec(
    {
        Placement: PLACEMENT_FORM,
        Reason: Form(_reason_tree, _read_reason),
        Person: Form(tree_of, _read_person),
    }
)


def _value(kind: type[_T], tree: Tree, path: str) -> _T:
    try:
        return _RECORD.value_of(kind, tree)
    except StoreError as err:
        raise StoreError(f"{path}: {err.message}", code=err.code, remedy=err.remedy) from err


def _trees(files: Files, prefix: str) -> Iterator[tuple[str, Tree]]:
    for path in sorted(path for path in files if path.startswith(prefix)):
        yield path, _tree(path, files[path])


def _tree(path: str, content: bytes) -> Tree:
    loaded = load(content, path, STATE_LIMITS)
    if len(loaded.documents) != 1 or any(d.is_error for d in loaded.diagnostics):
        raise _not_ours(path)
    return loaded.documents[0].value


def _not_ours(path: str) -> StoreError:
    return StoreError(
        f"{path} in the state branch is not a record of ours",
        code="BadRecord",
        remedy="the state branch was changed by something else; run `gangops audit verify`",
    )
