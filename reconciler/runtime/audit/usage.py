"""How many GPU-hours went where? Every GPU of the inventory, at every instant, is in exactly one column.

    capacity x time = starting + running + stalled + stopping + reserved + idle + unavailable

Held GPUs are counted by what their gang was doing: starting, running, stalled (a node of it lost, or being replaced)
or stopping. Reserved ones are promised to a gang and not held by anybody, or kept beside it as spares. Idle is what could have been given out,
unavailable what was down, cordoned or never seen. Work that was thrown away was GPU-time before, so the two `lost`
columns lie inside `running` and are not added. Whole nanoseconds throughout; division happens when it is printed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

from reconciler.errors import UsageError
from reconciler.model.lifecycle import JobState
from reconciler.model.units import SECOND, Instant, JobKey, document_of
from reconciler.render.names import when
from reconciler.runtime.audit.glance import masks
from reconciler.runtime.audit.index import EVICTED, HOLDING, Index
from reconciler.runtime.audit.scenes import Scene

GROUPS = ("queue", "user", "type", "job", "task", "total")
PERIODS = ("all", "day", "week", "month")
_COLUMN_OF = {
    JobState.STARTING: "starting", JobState.RUNNING: "running", JobState.LOST: "stalled",
    JobState.REPAIRING: "stalled", JobState.STOPPING: "stopping",
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Hours:
    """GPU-nanoseconds by column; the last two are parts of `running`."""

    starting: int = 0
    running: int = 0
    stalled: int = 0
    stopping: int = 0
    reserved: int = 0
    lost_preempted: int = 0
    lost_failed: int = 0

    @property
    def allocated(self) -> int:
        """What was held, whatever the gang did with it."""
        return self.starting + self.running + self.stalled + self.stopping

    def add(self, other: Hours) -> None:
        """Column by column."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One group and GPU type in one period; `period` is its first instant. Quotas are GPU-nanoseconds, None: no quota."""

    period: Instant
    key: str
    gpu_type: str
    hours: Hours
    guaranteed: int | None = None
    ceiling: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeTotal:
    """One GPU type in one period: `capacity` is exactly the sum of the other four."""

    gpu_type: str
    capacity: int
    allocated: int
    reserved: int
    idle: int
    unavailable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """All of one period: `capacity` is exactly the sum of `hours.allocated`, `hours.reserved`, `idle` and `unavailable`.

    `undeclared` was held on nodes that had left the inventory, and is no part of it.
    """

    period: Instant
    until: Instant
    capacity: int
    hours: Hours
    idle: int
    unavailable: int
    undeclared: int
    types: tuple[TypeTotal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Rows by period, key and GPU type; and a total for each period."""

    by: str
    rows: tuple[Row, ...]
    totals: tuple[Total, ...]


def usage(
    index: Index,
    world: list[Scene],
    *,
    by: str = "queue",
    period: str = "all",
    since: Instant | None = None,
    until: Instant | None = None,
    key_of: Callable[[int], str] | None = None,
) -> Used:
    """GPU-time from `since` to `until` (the record's first and last instants) by group and period (UTC).

    `key_of` says which group an event counts for where `by` is a label.
    """
    if not index.ids or not world:
        return Used(by=by, rows=(), totals=())
    first, last = index.commits["at"][0], index.commits["at"][-1]
    begin, end = max(since or first, first), until if until is not None else last
    if end <= begin:
        raise UsageError(
            "the record knows no time between --since and --until", code="EmptyPeriod",
            remedy=f"it goes from {when(Instant(first))} to {when(Instant(last))}",
        )  # fmt: skip
    sweep = _Sweep(index, world, key_of or _key(index, by), Instant(begin), Instant(end), period)
    sweep.run()
    return Used(by=by, rows=tuple(sweep.rows(by)), totals=tuple(sweep.totals()))


def _key(index: Index, by: str) -> Callable[[int], str]:
    if by == "job":
        return lambda event: document_of(JobKey(index.text("job", event)))  # of an array all tasks together
    column = {"queue": "queue", "user": "person", "task": "job"}.get(by)
    if column is None:
        return lambda _event: ""
    return lambda event: index.text(column, event)


Bucket = tuple[int, str, str]
"""Period's number, key, GPU type."""
_Kind = tuple[int, str]
"""Period's number, GPU type."""


@dataclass(slots=True)
class _Open:
    """What one job has had since an instant: GPUs by type in a column, or reserved places."""

    since: int
    key: str
    column: str
    gpus: Mapping[str, int]
    undeclared: int = 0


class _Sweep:
    """One pass over the events; each job's span is closed when something about it changes."""

    def __init__(
        self, index: Index, world: list[Scene], key_of: Callable[[int], str], begin: Instant, end: Instant, period: str
    ) -> None:
        self._index, self._world, self._key_of = index, world, key_of
        self._bounds = list(_bounds(begin, end, period))
        self._begin, self._end = begin, end
        self._buckets: dict[Bucket, Hours] = defaultdict(Hours)
        self._undeclared: dict[int, int] = defaultdict(int)
        self._open: dict[int, _Open] = {}
        self._reserved: dict[int, _Open] = {}
        self._spared: dict[int, _Open] = {}
        self._standing: dict[int, int] = {}
        self._promised: dict[int, int] = {}
        self._held: dict[str, int] = defaultdict(int)
        self._scene = world[0]

    def run(self) -> None:
        """Fill the buckets."""
        events, at = self._index.events, self._index.commits["at"]
        upcoming = iter([*self._world, None])
        following = next(upcoming)
        event, count = 0, len(events["commit"])
        for position, now in enumerate(at):
            moved = following is not None and following.position <= position
            if following is not None and moved:
                self._scene, following = following, next(upcoming)
                self._reopen(now)
            begun = event
            while event < count and events["commit"][event] == position:
                event += 1
            # What is given up may be given to another job in the same generation.
            for one in range(begun, event):
                self._give_up(one, now)
            for one in range(begun, event):
                self._take(one, now)
            if moved or event > begun:
                self._reserve(now)
        for still in [*self._open.values(), *self._spared.values(), *self._reserved.values()]:
            self._close(still, self._end)

    def _reopen(self, now: int) -> None:
        """The inventory changed: what is held is counted by the new one from here on."""
        for job, event in self._standing.items():
            if job in self._open:
                self._end_span(job, now)
                self._begin_span(job, event, now)

    def _give_up(self, event: int, now: int) -> None:
        job = self._index.events["job"][event]
        before = self._standing.get(job)
        if before is not None:
            self._losses(event, before, now)
        if job in self._open:
            self._end_span(job, now)
            assert before is not None
            self._hold(before, held=False)

    def _take(self, event: int, now: int) -> None:
        job = self._index.events["job"][event]
        self._standing[job] = event
        self._promised.pop(job, None)
        if self._index.events["reserved"][event]:
            self._promised[job] = event
        if self._index.text("state", event) in HOLDING:
            self._hold(event, held=True)
            self._begin_span(job, event, now)

    def _hold(self, event: int, *, held: bool) -> None:
        for node, mask in self._index.holds(event).items():
            self._held[node] = self._held[node] | mask if held else self._held[node] & ~mask

    def _begin_span(self, job: int, event: int, now: int) -> None:
        gpus, outside = self._by_type(self._index.text("place", event), lambda _node: 0)
        column = _COLUMN_OF[JobState(self._index.text("state", event))]
        self._open[job] = _Open(now, self._key_of(event), column, gpus, outside)
        if self._index.events["spares"][event]:
            spares, beyond = self._by_type(self._index.text("spares", event), lambda _node: 0)
            self._spared[job] = _Open(now, self._key_of(event), "reserved", spares, beyond)

    def _end_span(self, job: int, now: int) -> None:
        self._close(self._open.pop(job), now)
        if job in self._spared:
            self._close(self._spared.pop(job), now)

    def _by_type(self, words: str, taken: Callable[[str], int]) -> tuple[dict[str, int], int]:
        """GPUs of a place by type, without those taken; and how many of them no inventory knows."""
        found: dict[str, int] = {}
        outside = 0
        for node, mask in masks(words).items():
            kind, declared = self._scene.nodes.get(node, ("", 0))
            free = mask & ~taken(node)
            outside += (free & ~declared).bit_count()
            if free & declared:
                found[kind] = found.get(kind, 0) + (free & declared).bit_count()
        return found, outside

    def _reserve(self, now: int) -> None:
        """Promises as they are from here on: what is promised and still held by somebody is not idle."""
        for one in self._reserved.values():
            self._close(one, now)
        self._reserved.clear()
        for job, event in self._promised.items():
            gpus, _ = self._by_type(self._index.text("reserved", event), lambda node: self._held.get(node, 0))
            self._reserved[job] = _Open(now, self._key_of(event), "reserved", gpus)

    def _losses(self, event: int, before: int, now: int) -> None:
        events = self._index.events
        # What a person stopped was nobody's loss; the record says the price of every stop.
        evicted = self._index.text("cause", event) in EVICTED
        lost = max(0, events["lost"][event] - events["lost"][before]) if evicted else 0
        failed = events["failed"][event]
        if (not lost and not failed) or not self._begin < now <= self._end:
            return
        gpus, _ = self._by_type(self._index.text("place", before), lambda _node: 0)
        kind = max(gpus, key=lambda name: (gpus[name], name), default="")
        hours = self._buckets[self._period(now - 1), self._key_of(before), kind]
        hours.lost_preempted += lost * SECOND
        hours.lost_failed += failed * SECOND

    def _close(self, one: _Open, now: int) -> None:
        start, stop = max(one.since, self._begin), min(now, self._end)
        while start < stop:
            number = self._period(start)
            span = min(stop, self._bounds[number + 1]) - start
            for kind, gpus in one.gpus.items():
                hours = self._buckets[number, one.key, kind]
                setattr(hours, one.column, getattr(hours, one.column) + gpus * span)
            self._undeclared[number] += one.undeclared * span
            start += span

    def _period(self, at: int) -> int:
        return min(bisect_right(self._bounds, max(at, self._begin)), len(self._bounds) - 1) - 1

    # -- what came out

    def rows(self, by: str) -> Iterator[Row]:
        """By period, key and type; of queues also those that used nothing and have a quota."""
        guaranteed, ceiling = (
            (self._quota(lambda s: s.guaranteed), self._quota(lambda s: s.ceiling)) if by == "queue" else ({}, {})
        )
        quotas = {key for key, hours in [*guaranteed.items(), *ceiling.items()] if hours}
        for bucket in sorted({*self._buckets, *quotas}):
            number, key, kind = bucket
            yield Row(
                period=Instant(self._bounds[number]), key=key, gpu_type=kind, hours=self._buckets.get(bucket, Hours()),
                guaranteed=guaranteed.get(bucket), ceiling=ceiling.get(bucket),
            )  # fmt: skip

    def totals(self) -> Iterator[Total]:
        """One a period."""
        capacity, idle = self._capacity()
        for number, bound in enumerate(self._bounds[:-1]):
            hours = Hours()
            for (at, _, _), one in self._buckets.items():
                if at == number:
                    hours.add(one)
            types = tuple(self._types(number, capacity, idle))
            yield Total(
                period=Instant(bound), until=Instant(self._bounds[number + 1]), hours=hours, types=types,
                capacity=sum(one.capacity for one in types), idle=sum(one.idle for one in types),
                unavailable=sum(one.unavailable for one in types), undeclared=self._undeclared[number],
            )  # fmt: skip

    def _types(self, period: int, capacity: Mapping[_Kind, int], idle: Mapping[_Kind, int]) -> Iterator[TypeTotal]:
        hours: dict[str, Hours] = defaultdict(Hours)
        for (at, _, kind), one in self._buckets.items():
            if at == period:
                hours[kind].add(one)
        for kind in sorted({kind for at, kind in capacity if at == period} | hours.keys()):
            allocated, reserved = hours[kind].allocated, hours[kind].reserved
            unused = capacity[period, kind] - allocated - reserved
            free = min(idle[period, kind], max(0, unused))
            yield TypeTotal(
                gpu_type=kind, capacity=capacity[period, kind], allocated=allocated, reserved=reserved, idle=free,
                unavailable=unused - free,
            )  # fmt: skip

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """(position, period, nanoseconds) over the whole time asked for."""
        at = self._index.commits["at"]
        for position, since in enumerate(at):
            start = max(since, self._begin)
            stop = min(at[position + 1] if position + 1 < len(at) else self._end, self._end)
            while start < stop:
                number = self._period(start)
                span = min(stop, self._bounds[number + 1]) - start
                yield position, number, span
                start += span

    def _capacity(self) -> tuple[dict[_Kind, int], dict[_Kind, int]]:
        """Declared and idle GPU-nanoseconds by period and type."""
        capacity: dict[_Kind, int] = defaultdict(int)
        idle: dict[_Kind, int] = defaultdict(int)
        starts = [scene.position for scene in self._world]
        sizes = [scene.declared() for scene in self._world]
        current = 0
        for position, number, span in self._spans():
            while current + 1 < len(starts) and starts[current + 1] <= position:
                current += 1
            for kind, gpus in sizes[current].items():
                capacity[number, kind] += gpus * span
            for kind, gpus in self._idle_at(position, sizes[current]).items():
                idle[number, kind] += gpus * span
        return capacity, idle

    def _idle_at(self, position: int, declared: Mapping[str, int]) -> dict[str, int]:
        """Idle GPUs by type as the record says; of several types whose idle GPUs it does not tell apart, none."""
        commits = self._index.commits
        words = self._index.texts[commits["idleOf"][position]].split()
        if words:
            return {kind: int(gpus) for kind, _, gpus in (word.rpartition(":") for word in words)}
        return dict.fromkeys(declared, commits["idle"][position]) if len(declared) == 1 else {}

    def _quota(self, which: Callable[[Scene], Mapping[tuple[str, str], int]]) -> dict[Bucket, int]:
        """GPU-nanoseconds of a quota by period, queue and type."""
        at = self._index.commits["at"]
        found: dict[Bucket, int] = defaultdict(int)
        ends = [*(at[scene.position] for scene in self._world[1:]), self._end]
        for number, (scene, until) in enumerate(zip(self._world, ends, strict=True)):
            start = max(at[scene.position] if number else self._begin, self._begin)
            stop = min(until, self._end)
            while start < stop:
                inside = self._period(start)
                span = min(stop, self._bounds[inside + 1]) - start
                for (queue, kind), gpus in which(scene).items():
                    found[inside, queue, kind] += gpus * span
                start += span
        return found


def _bounds(begin: Instant, end: Instant, period: str) -> Iterator[int]:
    """The first instant of each period, and the end. Days begin at midnight UTC, weeks on Monday."""
    yield begin
    if period != "all":
        at = datetime.fromtimestamp(begin // SECOND, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        at -= timedelta(days={"day": 0, "week": at.weekday(), "month": at.day - 1}[period])
        while True:
            at = (
                (at + timedelta(days=32)).replace(day=1)
                if period == "month"
                else at + timedelta(days=1 if period == "day" else 7)
            )
            bound = int(at.timestamp()) * SECOND
            if bound >= end:
                break
            yield bound
    yield end
