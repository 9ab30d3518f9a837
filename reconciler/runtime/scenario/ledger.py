"""What is used, what is given and what is left, node by node, under one plan: the facts that the rules judge by.

What a job could have used is taken as what was free at the beginning and that nobody else was given: whatever order
the planner went in, the job had at least that. So a rule that accuses by these numbers can prove it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property

from reconciler.documents.scenario import JobRow, Running
from reconciler.model.units import DAY
from reconciler.runtime.scenario.plan import Plan
from reconciler.runtime.scenario.world import Seats, World, seats_by_node

UNLIMITED = 7 * DAY
"""The length taken for a job without time limit where a maintenance window has to be judged."""


@dataclass(frozen=True)
class Ledger:
    """One plan against its scenario."""

    world: World
    plan: Plan

    def placed(self) -> Iterator[tuple[str, JobRow, Seats]]:
        """Every job that gets a place, or goes on elsewhere or smaller."""
        for job, started in self.plan.started.items():
            yield job, self.world.jobs[job], started.seats
        for displaced in (self.plan.moved, self.plan.shrunk):
            for job, one in displaced.items():
                yield job, self.world.jobs[job], one.seats

    def own(self, job: str) -> dict[str, int]:
        """GPUs by node that a job holds as long as the plan has not been carried out."""
        row = self.world.running.get(job)
        waiting = self.plan.waiting.get(job)
        if row is None or (self.world.is_broken(job) and not (waiting is not None and waiting.holds)):
            return {}  # what is left of a broken gang was stopped, and is free
        return row.placement

    @cached_property
    def used(self) -> dict[str, int]:
        """GPUs by node that running jobs hold now, those on their way out too."""
        found: dict[str, int] = {}
        for job in self.world.running:
            add(found, self.own(job))
        return found

    def gained(self, job: str, seats: Seats) -> dict[str, int]:
        """GPUs by node that a place has beyond what the job holds already."""
        own = self.own(job)
        return {node: max(0, gpus - own.get(node, 0)) for node, gpus in seats_by_node(seats).items()}

    def given_up(self, job: str) -> dict[str, int]:
        """GPUs by node that a displaced job leaves."""
        kept = seats_by_node(self.plan.seats(job) or ())
        return {node: max(0, gpus - kept.get(node, 0)) for node, gpus in self.own(job).items()}

    def free_for(self, job: str, staying: Container[str] = ()) -> dict[str, int]:
        """GPUs by node that the job could have had with nobody making room.

        Nodes that take it alone. Those `staying` are taken to be where they are, not where the plan puts them.
        """
        given = dict(self.used)
        for other, _, seats in self.placed():
            if other != job and other not in staying:
                add(given, self.gained(other, seats))
        add(given, self.open_promises(job))
        row = self.world.jobs[job]
        return {
            node: max(0, spot.row.gpus - given.get(node, 0))
            for node, spot in self.world.nodes.items()
            if self.takes(node, row)
        }

    @property
    def may_be_reserved(self) -> bool:
        """Some free capacity may be kept for a job that waits, so that who starts cannot have all that is free."""
        policy = self.world.scenario.policy
        keeps = policy.backfill != "none" or policy.hold_for_starved_after is not None
        return keeps and any(job in self.world.pending for job in self.plan.waiting)

    def open_promises(self, job: str = "") -> dict[str, int]:
        """GPUs by node promised to others than this job, beyond what is still held by those they wait for.

        A promise that the plan turns into a start is a start; one whose target is not ready binds nobody.
        """
        found: dict[str, int] = {}
        for promise in self.world.scenario.promises:
            sound = all(self.world.nodes[node].row.state == "ready" for node in promise.nodes)
            if promise.job != job and promise.job not in self.plan.started and sound:
                leaving: dict[str, int] = {}
                for name in promise.waiting_for:
                    add(leaving, self.own(name))
                add(found, {node: max(0, gpus - leaving.get(node, 0)) for node, gpus in promise.nodes.items()})
        return found

    def takes(self, node: str, row: JobRow) -> bool:
        """The node takes new work of this length."""
        spot, now = self.world.nodes[node], self.world.scenario.now
        end = now + (row.time_limit if row.time_limit is not None else UNLIMITED)
        return spot.row.state == "ready" and all(out.from_ >= end or out.to <= now for out in spot.row.maintenance)

    def leaves(self, job: str) -> bool:
        """It is on its way out already, so at the end of the plan it is gone."""
        row = self.world.running.get(job)
        return isinstance(row, Running) and row.stopping_until is not None

    def afterwards(self) -> dict[str, Seats]:
        """Where each job is once the plan has been carried out."""
        places = {job: self.plan.seats(job) for job in self.world.jobs if not self.leaves(job)}
        return {job: seats for job, seats in places.items() if seats}


def add(to: dict[str, int], more: dict[str, int]) -> None:
    """Add these counts."""
    for node, gpus in more.items():
        to[node] = to.get(node, 0) + gpus
