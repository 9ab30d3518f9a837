"""The state tree as files: where each value of a generation lies, and its canonical bytes.

The layout is DESIGN §4. Only what differs from the previous generation is written, so a generation costs what it
changes. Reading gives back values equal to those written; replay and audit stand on that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from reconciler.documents.canonical import to_yaml
from reconciler.documents.loader import STATE_LIMITS, Tree, bulk, load
from reconciler.documents.places import PLACEMENT_FORM
from reconciler.documents.values import Codec, Form
from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation, JobRecord, Metrics, Placement, RunLengths, Tombstone, Usage
from reconciler.model.decision import Difference
from reconciler.model.inventory import Inventory
from reconciler.model.observed import JobObservation, NodeObservation, Observed, Provenance
from reconciler.model.reasons import Number, Reason, ReasonCode, sentence
from reconciler.model.units import CommitId, Instant, JobKey, NodeName

SUMMARY = "allocation/summary.yaml"
JOBS = "allocation/jobs/"
NODES = "allocation/nodes/"
TOMBSTONES = "finished/"
OBSERVED_NODES = "observed/nodes/"
OBSERVED_JOBS = "observed/jobs/"
OBSERVED_PROVENANCE = "observed/provenance/"
FROZEN = "frozen/"

_T = TypeVar("_T")
Files = Mapping[str, bytes]
Changes = dict[str, bytes | None]
NO_FILES: Files = MappingProxyType({})
NOTHING_SEEN = Observed()


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
    """Where a job's record lies."""
    return f"{JOBS}{job}.yaml"


def racks_of(inventory: Inventory) -> dict[NodeName, str]:
    """The folder of each declared node. One that left the inventory lies in `unknown`."""
    return {node.name: node.rack for node in inventory.nodes}


def orders_path(node: NodeName, racks: Mapping[NodeName, str]) -> str:
    """Where a node's orders lie."""
    return f"{NODES}{racks.get(node, 'unknown')}/{node}.json"


def changed_jobs(previous: Allocation, current: Allocation) -> Changes:
    """Files of job records and tombstones that differ between two allocations; None removes one."""
    changes: Changes = {}
    for key in sorted({*previous.jobs, *current.jobs}):
        before, after = previous.jobs.get(key), current.jobs.get(key)
        if before is not after and before != after:
            changes[job_path(key)] = _job_bytes(after) if after else None
    for key in sorted({*previous.tombstones, *current.tombstones}):
        if previous.tombstones.get(key) != current.tombstones.get(key):
            changes[f"{TOMBSTONES}{key}.yaml"] = _tombstone_bytes(current.tombstones.get(key, ()))
    return changes


def observed_files(
    observed: Observed, inventory: Inventory, before: Observed = NOTHING_SEEN, files: Files = NO_FILES
) -> dict[str, bytes]:
    """All files under `observed/`. What is equal in `before` keeps its bytes from `files`, the files made of that."""
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
        jobs = dict(_read_job(path, tree) for path, tree in _trees(files, JOBS))
        stones = dict(_read_tombstones(path, tree) for path, tree in _trees(files, TOMBSTONES))
    return Allocation(
        generation=summary.generation,
        epoch=summary.epoch,
        cluster_id=summary.cluster_id,
        decided_at=summary.decided_at,
        desired_commit=summary.desired_commit,
        # By key: the order of paths is another one, `a/b-c.yaml` comes before `a/b.yaml`.
        jobs=dict(sorted(jobs.items())),
        tombstones=dict(sorted(stones.items())),
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
    return Observed(
        nodes={seen.node: seen for seen in sorted(nodes, key=lambda seen: seen.node)},
        jobs={seen.job: seen for seen in sorted(jobs, key=lambda seen: seen.job)},
        provenance={seen.job: seen for seen in sorted(brought, key=lambda seen: seen.job)},
    )


# --- one file ---


def _job_bytes(record: JobRecord) -> bytes:
    tree: dict[str, Tree] = {}
    for key, value in _RECORD.tree_of(record).items():
        tree[key] = value
        if key == "reason":  # the same in words, for who reads the branch
            tree["why"] = sentence(record.reason)
    return to_yaml(tree)


def _read_job(path: str, tree: Tree) -> tuple[JobKey, JobRecord]:
    if isinstance(tree, dict):
        tree.pop("why", None)
    record = _value(JobRecord, tree, path)
    if path != job_path(record.job):
        raise _not_ours(path)
    return record.job, record


def _tombstone_bytes(stones: tuple[Tombstone, ...]) -> bytes | None:
    return to_yaml({"incarnations": [_RECORD.tree_of(stone) for stone in stones]}) if stones else None


def _read_tombstones(path: str, tree: Tree) -> tuple[JobKey, tuple[Tombstone, ...]]:
    rows = tree.get("incarnations") if isinstance(tree, dict) else None
    stones = tuple(_value(Tombstone, row, path) for row in (rows if isinstance(rows, list) else []))
    if not stones or any(path != f"{TOMBSTONES}{stone.job}.yaml" for stone in stones):
        raise _not_ours(path)
    return stones[0].job, stones


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


_RECORD = Codec({Placement: PLACEMENT_FORM, Reason: Form(_reason_tree, _read_reason)})


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
