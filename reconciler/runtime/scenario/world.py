"""A scenario's cluster as it is looked up: nodes and the domains around them, jobs and how their workers are cut.

Counts of GPUs on nodes, never which GPU: a scenario does not say, and no rule of its format asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Final

from reconciler.documents.scenario import JobRow, NodeRow, Pending, QueueRow, Role, Running, Scenario

CLUSTER: Final = "cluster"
TIERS: Final = ("node", "rack", "spine", CLUSTER)
"""From the narrowest to the widest."""

Seats = tuple[str, ...]
"""The node of each GPU of a gang, in the order of its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One node: what it is, and the rack and spine it is in."""

    row: NodeRow
    rack: str
    spine: str


@dataclass(frozen=True)
class World:
    """One scenario, looked up by name."""

    scenario: Scenario

    @cached_property
    def nodes(self) -> Mapping[str, Spot]:
        """Every node, in the order written."""
        return {
            name: Spot(row=row, rack=rack.name, spine=spine.name)
            for spine, rack, row, name in self.scenario.cluster.rows()
        }

    @cached_property
    def types(self) -> tuple[str, ...]:
        """GPU types in code point order."""
        return tuple(sorted({spot.row.type for spot in self.nodes.values()}))

    @cached_property
    def jobs(self) -> Mapping[str, JobRow]:
        return {row.job: row for row in self.scenario.rows}

    @cached_property
    def running(self) -> Mapping[str, Running]:
        return {row.job: row for row in self.scenario.running}

    @cached_property
    def pending(self) -> Mapping[str, Pending]:
        return {row.job: row for row in self.scenario.pending}

    @cached_property
    def queues(self) -> Mapping[str, QueueRow]:
        """Queues by name; a scenario without any has one that may use all there is."""
        rows = self.scenario.queues or (QueueRow.model_validate({"name": "default", "guaranteed": self.capacity}),)
        return {row.name: row for row in rows}

    @cached_property
    def capacity(self) -> int:
        """All GPUs, whatever state their nodes are in."""
        return sum(spot.row.gpus for spot in self.nodes.values())

    def domain(self, tier: str, node: str) -> str:
        """The domain of a tier around a node."""
        spot = self.nodes[node]
        return {"node": node, "rack": spot.rack, "spine": spot.spine}.get(tier, CLUSTER)

    def by_domain(self, tier: str, nodes: Iterable[str]) -> dict[str, list[str]]:
        """These nodes by their domain of a tier."""
        found: dict[str, list[str]] = {}
        for node in nodes:
            found.setdefault(self.domain(tier, node), []).append(node)
        return found

    def is_broken(self, job: str) -> bool:
        """It runs, and part of it is gone."""
        row = self.running.get(job)
        if row is None or row.stopping_until is not None:
            return False
        return row.missing_workers > 0 or any(self.nodes[node].row.state == "down" for node in row.placement)


# --- gangs ---


def roles_of(row: JobRow) -> tuple[Role, ...]:
    """Its roles; for a running job that names none, workers as large as divides all its nodes evenly."""
    if row.roles or not isinstance(row, Running):
        return row.roles
    held = sum(row.placement.values())
    each = max(1, held // len(row.ranks)) if row.ranks else gcd(*row.placement.values())
    return (Role(role="worker", workers=held // each, gpus_each=each),)


def resized(row: JobRow, gpus: int) -> tuple[Role, ...]:
    """Its roles when it holds so many GPUs: an elastic role has the workers that are left for it."""
    roles = roles_of(row)
    fixed = gpus_of(role for role in roles if role.min_workers is None)
    return tuple(
        role
        if role.min_workers is None
        else role.model_copy(update={"workers": max(0, gpus - fixed) // role.gpus_each})
        for role in roles
    )


def sizes_of(row: JobRow, gpus: int) -> list[int]:
    """GPUs of each worker when it holds so many, roles in their order."""
    return [role.gpus_each for role in resized(row, gpus) for _ in range(role.workers)]


def workers_of(row: JobRow, seats: Seats) -> list[Seats]:
    """The nodes of each worker's GPUs: one name many times, when all is well. What is left over is one more worker."""
    found, first = [], 0
    for size in sizes_of(row, len(seats)):
        found.append(seats[first : first + size])
        first += size
    return [*found, seats[first:]] if first < len(seats) else found


def smallest(row: JobRow) -> tuple[Role, ...]:
    """Its roles with as few workers as it can run with."""
    return tuple(role.model_copy(update={"workers": role.min_workers or role.workers}) for role in roles_of(row))


def gpus_of(roles: Iterable[Role]) -> int:
    """GPUs of all their workers."""
    return sum(role.workers * role.gpus_each for role in roles)


def seats_by_node(seats: Iterable[str]) -> dict[str, int]:
    """GPUs by node, in the order of ranks."""
    found: dict[str, int] = {}
    for node in seats:
        found[node] = found.get(node, 0) + 1
    return found


def seats_of(row: Running) -> Seats:
    """The node of each GPU of a running job: as `ranks` says, else workers go to the nodes in the order written."""
    sizes = sizes_of(row, sum(row.placement.values()) + row.missing_workers * roles_of(row)[0].gpus_each)
    if row.ranks:
        return tuple(node for node, size in zip(row.ranks, sizes, strict=False) for _ in range(size))
    if len(set(sizes)) == 1:
        return tuple(node for node, gpus in row.placement.items() for _ in range(gpus))
    left, home = dict(row.placement), {}
    for worker in sorted(range(len(sizes)), key=lambda number: -sizes[number]):  # the large ones have least choice
        node = next((node for node, free in left.items() if free >= sizes[worker]), next(iter(left)))
        left[node] -= sizes[worker]
        home[worker] = node
    return tuple(home[worker] for worker, size in enumerate(sizes) for _ in range(size))
