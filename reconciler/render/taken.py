"""What a desired tree says otherwise than the one before, a line each, for the commit that takes it in.

`cordon gpu-017: fan`, `change Queue nlp`. A tree that differs in comments or layout alone has no line: that is how the
loop knows that there is nothing to record. What was decided because of it is for `story`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from reconciler.documents.compared import DocumentChange, Turn
from reconciler.documents.hostlist import fold
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.inventory import Inventory
from reconciler.model.units import JobKey, document_of
from reconciler.render.names import one_line

_HARDWARE = frozenset({"Fabric", "NodeProfile", "NodeSet"})
_IN_SUBJECT = 2
_MOST_LINES = 40


def taken_lines(
    before: Desired,
    after: Desired,
    documents: Sequence[DocumentChange],
    trust: Sequence[str],
    told: AbstractSet[JobKey],
) -> tuple[str, ...]:
    """A line for each thing that `after` says otherwise; () when both say the same.

    `documents` are the cluster's own that differ, `trust` the files of keys that do. `told` are jobs whose change is
    told already.
    """
    return (
        *_cordons(before.inventory, after.inventory),
        *_documents(before.inventory, after.inventory, documents),
        *(f"change {one_line(path)}" for path in trust),
        *_admissions(before, after),
        *_jobs(before, after, {document_of(key) for key in told}),
    )


def taken_subject(lines: Sequence[str]) -> str:
    """The first lines as the subject of a commit: `Cordon gpu-017: fan; change Queue nlp; and 3 more changes`."""
    more = len(lines) - _IN_SUBJECT
    shown = [*lines[:_IN_SUBJECT], *([f"and {counted(more, 'more change')}"] if more > 0 else [])]
    text = "; ".join(shown)
    begins_with_job = "/" in text.partition(" ")[0]
    return text if begins_with_job else text[0].upper() + text[1:]


def taken_body(lines: Sequence[str]) -> list[str]:
    """Lines for the body of a commit; of many, how many were left out."""
    left = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"and {left} more"] if left > 0 else [])]


def _cordons(before: Inventory, after: Inventory) -> Iterator[str]:
    """Nodes that were cordoned or opened again, together where the reason is the same."""
    if before is after:
        return
    old = {node.name: node.cordoned for node in before.nodes}
    why: dict[str, list[str]] = {}
    for node in after.nodes:
        if node.cordoned != old.get(node.name, ""):
            why.setdefault(node.cordoned, []).append(node.name)
    for reason, names in sorted(why.items()):
        yield f"cordon {fold(names)}: {one_line(reason)}" if reason else f"uncordon {fold(names)}"


def _documents(before: Inventory, after: Inventory, documents: Sequence[DocumentChange]) -> Iterator[str]:
    """Of those that declare hardware only when it differs in more than cordons."""
    asked = any(one.kind in _HARDWARE for one in documents)
    same_hardware = not asked or before is after or _all_open(before) == _all_open(after)
    for one in documents:
        if not (same_hardware and one.kind in _HARDWARE):
            yield f"{one.turn} {one.kind} {one.name}"


def _all_open(inventory: Inventory) -> Inventory:
    nodes = tuple(replace(node, cordoned="") if node.cordoned else node for node in inventory.nodes)
    return replace(inventory, nodes=nodes)


def _admissions(before: Desired, after: Desired) -> Iterator[str]:
    if after.blocked != before.blocked:
        yield f"admit nothing, because of {one_line(after.blocked)}" if after.blocked else "admit jobs again"


def _jobs(before: Desired, after: Desired, told: AbstractSet[JobKey]) -> Iterator[str]:
    """Jobs whose files say something else, that became invalid, or that are valid again."""
    changed = {document_of(key) for key in _differing(before.jobs, after.jobs)} | _differing(
        before.arrays, after.arrays
    )
    for key in sorted(changed - told):
        turn = Turn.ADD if before.job_of(key) is None else Turn.REMOVE if after.job_of(key) is None else Turn.CHANGE
        yield f"{turn} {key}"
    invalid, was_invalid = after.frozen | after.invalid.keys(), before.frozen | before.invalid.keys()
    for key in sorted(invalid - was_invalid - told):
        yield f"{key} has an invalid file{', and stands as it was before' if key in after.frozen else ''}"
    for key in sorted(was_invalid - invalid - changed - told):
        yield f"{key} has a valid file again" if after.job_of(key) else f"remove {key}"


def _differing(before: Mapping[JobKey, object], after: Mapping[JobKey, object]) -> set[JobKey]:
    if before is after:
        return set()
    return {
        key
        for key in before.keys() | after.keys()
        if (old := before.get(key)) is not (new := after.get(key)) and old != new
    }
