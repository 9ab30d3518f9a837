"""Which generation may nodes act on, and which node still has to hear of it?

An `Applied` is a pushed generation with what the server asks of it at every poll worked out once: the digest of
each orders file, the lease it needs, the attempts it names. Pure; sending is left to `server`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from reconciler.engines.reports import AttemptKey
from reconciler.errors import BrokenInvariant
from reconciler.model.job import Fence
from reconciler.model.units import JobKey, NodeName
from reconciler.ports import Committed
from reconciler.wire import Report, decode_orders


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """One node's orders file: its sha256, the leases (seconds) its attempts live by, ascending, and the attempts."""

    digest: str
    leases: tuple[int, ...]
    attempts: frozenset[AttemptKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The generation nodes are to act on, and each node's file in it."""

    committed: Committed
    files: Mapping[NodeName, NodeFile]

    @property
    def order(self) -> tuple[int, int]:
        """What a later generation is greater than."""
        return (self.committed.epoch, self.committed.generation)

    def lease_seconds(self, node: NodeName) -> int:
        """The longest lease any attempt on the node lives by, 0 when none does."""
        found = self.files.get(node)
        return found.leases[-1] if found and found.leases else 0

    def shortest_lease(self, node: NodeName) -> int:
        """The lease that has to be renewed most often, 0 when there is none."""
        found = self.files.get(node)
        return found.leases[0] if found and found.leases else 0


class Standing(StrEnum):
    """How a node stands to the applied generation."""

    HOLDS = "Holds"  # its file is the one it has
    DUE = "Due"  # it has to be given its file
    AHEAD = "Ahead"  # it obeys a newer generation than ours: a newer reconciler speaks to it


def next_applied(committed: Committed, before: Applied | None) -> Applied:
    """The generation to act on from now: `before` itself when `committed` is the same or an older one.

    Raises: BrokenInvariant, when two commits claim one generation; BadMessage, when a file holds no orders.
    """
    if before is not None:
        offered = (committed.epoch, committed.generation)
        if offered == before.order and committed.commit != before.committed.commit:
            raise BrokenInvariant(f"two commits claim generation {committed.generation} of epoch {committed.epoch}")
        if offered <= before.order:
            return before
    known = {file.digest: file for file in before.files.values()} if before else {}
    files = {node: _node_file(content, known) for node, content in committed.orders.items()}
    return Applied(committed=committed, files=files)


def standing(applied: Applied | None, report: Report) -> Standing:
    """Where a node stands, by the last order its journal says it accepted.

    An equal generation is due as well when the commit is the same and the file is not: the node lost its copy.
    """
    if applied is None:
        return Standing.HOLDS
    accepted = (report.epoch, report.generation)
    if accepted > applied.order:
        return Standing.AHEAD
    file = applied.files.get(NodeName(report.node))
    if file is None or file.digest == report.fileDigest:
        return Standing.HOLDS
    if accepted == applied.order and report.commit not in ("", applied.committed.commit):
        return Standing.AHEAD
    return Standing.DUE


def _node_file(content: bytes, known: Mapping[str, NodeFile]) -> NodeFile:
    digest = hashlib.sha256(content).hexdigest()
    if digest in known:
        return known[digest]
    attempts = decode_orders(content).attempts
    leases = sorted(order.leaseSeconds for order in attempts if order.fence == Fence.LEASE)
    named = frozenset((JobKey(order.job), order.attempt) for order in attempts)
    return NodeFile(digest=digest, leases=tuple(leases), attempts=named)
