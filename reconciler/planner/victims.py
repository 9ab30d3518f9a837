"""What does it cost at least to free enough? Lower bounds for the victim search, and a first guess from each.

A bound looks at candidates numbered in the order in which the search decides about them; those before `at` that were
not chosen are spared. `by_gpus` covers missing GPUs by fractions of gangs; `by_nodes` covers missing whole nodes,
each node costing its share of the gangs on it, which is far sharper when every node has to be emptied.
Searching with them is for `preemption`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Final, Protocol

from reconciler.model.allocation import JobRecord
from reconciler.model.units import GpuSeconds

_SCALE: Final = 1 << 32  # shares of a node are kept in fractions of this, rounded down: still a lower bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A running gang that may be asked to give way."""

    record: JobRecord
    priority: int
    lost: GpuSeconds
    gpus: int


class Bound(Protocol):
    """A lower bound over the candidates of one domain."""

    @property
    def order(self) -> Sequence[Candidate]:
        """Candidates in the order of deciding."""

    def of(self, at: int, chosen: Sequence[int]) -> tuple[int, int] | None:
        """(GPU-seconds, jobs) still to be paid at least; (0, 0) when the numbers suffice; None when they cannot."""

    def guess(self) -> Sequence[int]:
        """A cheap choice that may already be enough."""


class ByGpus:
    """So many GPUs are missing; each gang frees some."""

    __slots__ = ("_freed", "_gpus", "_largest", "_lost", "_missing", "order")

    def __init__(self, rows: Sequence[tuple[Candidate, int]], missing: int) -> None:
        """`rows`: candidates and the GPUs each frees where they are needed."""
        rows = sorted(
            rows, key=lambda row: (Fraction(row[0].lost, row[1]), -(row[0].record.started or 0), row[0].record.job)
        )
        self.order = [candidate for candidate, _ in rows]
        self._freed = [gpus for _, gpus in rows]
        self._missing = missing
        self._gpus = [0, *accumulate(self._freed)]
        self._lost = [0, *accumulate(candidate.lost for candidate in self.order)]
        largest = [0]
        for gpus in reversed(self._freed):
            largest.append(max(largest[-1], gpus))
        self._largest = largest[::-1]

    def of(self, at: int, chosen: Sequence[int]) -> tuple[int, int] | None:
        missing = self._missing - sum(self._freed[i] for i in chosen)
        if missing <= 0:
            return 0, 0
        goal = self._gpus[at] + missing
        end = bisect_left(self._gpus, goal)
        if end >= len(self._gpus):
            return None
        part = self.order[end - 1].lost * (goal - self._gpus[end - 1]) // self._freed[end - 1]
        return self._lost[end - 1] - self._lost[at] + part, -(-missing // self._largest[at])

    def guess(self) -> Sequence[int]:
        return range(min(bisect_left(self._gpus, self._missing), len(self.order)))


class ByNodes:
    """So many whole nodes are missing; a node is free when every gang on it is gone."""

    __slots__ = ("_jobs", "_lost", "_missing", "_nodes", "order")

    def __init__(self, nodes: Sequence[Sequence[Candidate]], missing: int) -> None:
        """`nodes`: for each node that candidates alone keep from being free, those candidates."""
        spread: dict[str, int] = {}
        for members in nodes:
            for candidate in members:
                spread[candidate.record.job] = spread.get(candidate.record.job, 0) + 1
        cheapest: dict[str, tuple[int, int, int, str]] = {}
        by_key: dict[str, Candidate] = {}
        for number, members in enumerate(nodes):
            share = sum(c.lost * _SCALE // spread[c.record.job] for c in members)
            for candidate in members:
                key = (share, number, -(candidate.record.started or 0), candidate.record.job)
                by_key[candidate.record.job] = candidate
                cheapest[candidate.record.job] = min(key, cheapest.get(candidate.record.job, key))
        keys = sorted(cheapest, key=cheapest.__getitem__)
        number_of = {key: number for number, key in enumerate(keys)}
        self.order = [by_key[key] for key in keys]
        self._nodes = [sorted(number_of[c.record.job] for c in members) for members in nodes]
        self._lost = [c.lost * _SCALE // spread[c.record.job] for c in self.order]
        self._jobs = [_SCALE // spread[c.record.job] for c in self.order]
        self._missing = missing

    def of(self, at: int, chosen: Sequence[int]) -> tuple[int, int] | None:
        if self._missing <= 0:
            return 0, 0
        gone = set(chosen)
        lost, jobs = [], []
        for members in self._nodes:
            node_lost = node_jobs = 0
            for number in members:
                if number in gone:
                    continue
                if number < at:  # spared: this node will not be free
                    break
                node_lost += self._lost[number]
                node_jobs += self._jobs[number]
            else:
                lost.append(node_lost)
                jobs.append(node_jobs)
        if len(lost) < self._missing:
            return None
        lost.sort()
        jobs.sort()
        return sum(lost[: self._missing]) // _SCALE, -(-sum(jobs[: self._missing]) // _SCALE)

    def guess(self) -> Sequence[int]:
        shares = sorted((sum(self._lost[i] for i in members), members) for members in self._nodes)
        return sorted({number for _, members in shares[: self._missing] for number in members})
