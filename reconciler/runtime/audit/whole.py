"""Over the whole chain: what agents said they did, in the order of generations, and every object under all of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from reconciler.errors import GangOpsError
from reconciler.runtime.audit.findings import Finding, Verdict
from reconciler.runtime.audit.form import folder_fault
from reconciler.runtime.audit.parts import object_fault
from reconciler.store.names import object_id
from reconciler.store.objects import objects
from reconciler.store.runner import Git
from reconciler.store.walk import Link, streamed

_HASHED = 2000
"""Objects hashed at a stretch."""


def receipt_faults(verdict: Verdict, *, complete: bool) -> Iterator[Finding]:
    """Receipts that obey a generation before it was committed, or one that never ordered the attempt there.

    Ordered by generation alone: nodes' clocks prove nothing. `complete`: all orders ever given are known.
    """
    ordered: dict[tuple[str, str, int], int] = {}
    committed = verdict.judged[0].generation - 1 if verdict.judged else 0
    for one in verdict.judged:
        for receipt in one.receipts:
            verdict.receipts += 1
            first = ordered.get((receipt.node, receipt.job, receipt.attempt))
            what = f"{receipt.node} says {receipt.state} of {receipt.job} attempt {receipt.attempt}"
            code = told = ""
            if receipt.generation > committed:
                code, told = (
                    "ReceiptTooEarly",
                    f"{what}, obeying generation {receipt.generation}, which was not committed yet",
                )
            elif first is None and complete:
                code, told = "ReceiptUnknown", f"{what}, which was never ordered there"
            elif first is not None and 0 < receipt.generation < first:
                code, told = (
                    "ReceiptTooEarly",
                    f"{what}, obeying generation {receipt.generation}, before generation {first} ordered it",
                )
            if code:
                yield Finding(
                    position=one.position,
                    generation=one.generation,
                    commit=one.commit,
                    check="receipts",
                    code=code,
                    told=told,
                )
        for place in one.ordered:
            ordered.setdefault(place, one.generation)
        committed = max(committed, one.generation)


def object_faults(git: Git, part: list[Link], first: int) -> Iterator[Finding]:
    """Everything reachable in the part, hashed once: folders and people's files are hashed by nothing else."""
    older = [f"^{part[0].parent}"] if part[0].parent else []
    ends = [part[-1].id, *(link.parent for link in part[1:] if link.carried)]
    bad: dict[str, str] = {}
    try:
        listed = streamed(git, "rev-list", "--objects", "--no-object-names", *ends, *older)
        while chunk := [line.decode("ascii") for line in islice(listed, _HASHED)]:
            for oid, kind, content in objects(git, chunk):
                if object_id(kind, content) != oid:
                    bad[oid] = "is not what its id says"
                elif kind == "tree" and (wrong := folder_fault(content)):
                    bad[oid] = f"is a folder that {wrong}"
    except GangOpsError as err:
        yield object_fault(git, part, first, len(part) - 1, f"an object below it is missing or damaged: {err.message}")
    for oid, told in bad.items():
        holder = next(
            (i for i, link in enumerate(part) if oid == link.id or oid in _below(git, link.id)), len(part) - 1
        )
        yield object_fault(git, part, first, holder, f"object {oid[:12]} {told}")


def _below(git: Git, commit: str) -> set[str]:
    told = git.run("ls-tree", "-r", "-t", "--full-tree", commit, accept=(0, 128)).stdout.decode("utf-8", "replace")
    return {line.split()[2] for line in told.splitlines()}
