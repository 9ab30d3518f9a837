"""Who comes first? One line of candidates, the same for the same inputs on every machine.

Rule book §5. `priorityThenAge` is one line over all queues: priority of the class, starved, nice, age, name.
`fairShare` goes down the tree of queues again and again and takes the head of the child with the smallest key:
within its guarantee first, then the starved, then the least share; priority decides inside a queue and only breaks
ties between queues. Keys are renewed after every start. Age is the decision that first saw the incarnation, never a
commit's date. What a share is worth is for `usage`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Protocol

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause
from reconciler.model.queue import PriorityClass, Scheduling
from reconciler.model.units import ClassName, GpuType, Instant, QueueName
from reconciler.planner.quota import Quotas
from reconciler.planner.quota_tree import TOP
from reconciler.planner.usage import FairShares

SortKey = tuple[int, int, int, int, int, str, int]
Candidate = tuple[JobRecord, Job]
_ChildKey = tuple[int, int, int, SortKey]


class Line(Protocol):
    """Candidates one by one. What happened in between may change who is next."""

    def __iter__(self) -> Iterator[Candidate]:
        """The candidates, each once."""

    def __len__(self) -> int:
        """How many there were to begin with."""

    def renew(self, queues: Iterable[QueueName]) -> None:
        """The use of these queues has changed."""


class FixedLine:
    """Candidates in an order that nothing changes."""

    __slots__ = ("_candidates",)

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._candidates = list(candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._candidates)

    def __len__(self) -> int:
        return len(self._candidates)

    def renew(self, queues: Iterable[QueueName]) -> None:
        """Nothing to renew."""


class FairLine:
    """The line of `fairShare`: a tree of queues with a heap of children in each, best first."""

    __slots__ = (
        "_branches", "_count", "_heaps", "_key_of", "_kinds", "_quotas", "_shares", "_starved", "_stamps", "_waiting",
    )  # fmt: skip

    def __init__(
        self, candidates: Iterable[Candidate], quotas: Quotas, shares: FairShares,
        key_of: Callable[[JobRecord, Job], SortKey], kinds: Callable[[Job], tuple[GpuType, ...]], starved: Instant,
    ) -> None:  # fmt: skip
        """`key_of`: a job's place in its queue; `kinds`: the GPU types it may use; `starved`: submitted before it."""
        self._quotas, self._branches, self._shares = quotas, quotas.branches, shares
        self._key_of, self._kinds, self._starved = key_of, kinds, starved
        size = len(self._branches.names)
        self._waiting: list[list[tuple[SortKey, Candidate]]] = [[] for _ in range(size)]
        self._heaps: list[list[tuple[_ChildKey, int, int]]] = [[] for _ in range(size)]
        self._stamps = [0] * size
        for record, job in candidates:
            leaf = self._branches.leaf(job.queue)
            self._waiting[leaf].append((key_of(record, job), (record, job)))
        self._count = sum(map(len, self._waiting))
        for rows in self._waiting:
            rows.sort(key=lambda row: row[0], reverse=True)  # the head is taken from the end
        for number in reversed(range(1, size)):
            self._push(number)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Candidate]:
        while (leaf := self._best_leaf(TOP)) is not None:
            _, candidate = self._waiting[leaf].pop()
            yield candidate
            self._renew_path(leaf)

    def renew(self, queues: Iterable[QueueName]) -> None:
        """The use of these queues has changed: so have their shares and places, and those of all above them."""
        touched = {number for queue in queues for number in self._branches.path(self._branches.leaf(queue))} - {TOP}
        self._shares.renew(touched)
        for number in sorted(touched, reverse=True):  # children before their parents
            self._push(number)

    def _renew_path(self, leaf: int) -> None:
        for number in self._branches.path(leaf)[:-1]:
            self._push(number)

    def _best_leaf(self, number: int) -> int | None:
        """The leaf whose head comes next below a queue."""
        while self._branches.children[number]:
            best = self._best_child(number)
            if best is None:
                return None
            number = best
        return number if self._waiting[number] else None

    def _best_child(self, number: int) -> int | None:
        heap = self._heaps[number]
        while heap:
            _, child, stamp = heap[0]
            if stamp == self._stamps[child]:
                return child
            heappop(heap)
        return None

    def _push(self, number: int) -> None:
        """Give a queue its place among its siblings anew; older places of it are void."""
        self._stamps[number] += 1
        leaf = self._best_leaf(number)
        if leaf is not None:
            heappush(
                self._heaps[self._branches.parents[number]], (self._key(number, leaf), number, self._stamps[number])
            )

    def _key(self, number: int, leaf: int) -> _ChildKey:
        line, (record, job) = self._waiting[leaf][-1]
        within = any(self._quotas.within(number, kind, job.gpus) for kind in self._kinds(job))
        starved = record.submitted <= self._starved
        return 0 if within else 1, 0 if starved else 1, record.submitted if starved else self._shares.of(number), line


def pass_order(
    candidates: Iterable[Candidate],
    classes: Mapping[ClassName, PriorityClass],
    scheduling: Scheduling,
    now: Instant,
) -> list[Candidate]:
    """The candidates in one line over all queues. An unknown class is worth 0. A gang broken by a node's loss leads
    its equals: its work was under way."""
    values = {name: known.value for name, known in classes.items()}
    starved = starved_before(scheduling, now)
    return sorted(candidates, key=lambda one: line_key(one[0], one[1], values.get(one[1].priority_class, 0), starved))


def starved_before(scheduling: Scheduling, now: Instant) -> Instant:
    """Who was submitted at this instant or before it is starved."""
    return Instant(now - scheduling.hold_for_starved_after)


def line_key(record: JobRecord, job: Job, priority: int, starved: Instant) -> SortKey:
    """Where a job stands in the line, or in its queue; `starved` is the instant before which who was submitted is."""
    return (
        -priority,
        0 if record.cause is Cause.NODE_LOST else 1,
        0 if record.submitted <= starved else 1,
        job.nice,
        record.submitted,
        *((job.task.array, job.task.index) if job.task is not None else (record.job, 0)),
    )
