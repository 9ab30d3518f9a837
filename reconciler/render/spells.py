"""The timeline as a table: one row for each time a gang held its GPUs, all tasks of an array in one row a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reconciler.documents.hostlist import fold
from reconciler.model.counting import counted
from reconciler.model.units import Instant, JobKey, document_of, index_of
from reconciler.render.page_values import Bar, Share

_MOST_NODES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Who held how much, where and when. `tasks` is how many tasks of an array share the row, 0 for a job."""

    job: str
    queue: str
    state: str
    gpus: int
    where: str
    since: Instant
    until: Instant
    tasks: int = 0


def spells(bars: Sequence[Bar]) -> tuple[Spell, ...]:
    """Newest first."""
    found: dict[tuple[str, str, int, int], list[Bar]] = {}
    for bar in bars:
        own = (bar.since, bar.until) if index_of(JobKey(bar.job)) is None else (0, 0)
        found.setdefault((document_of(JobKey(bar.job)), bar.state, *own), []).append(bar)
    rows = [_spell(name, state, together) for (name, state, _, _), together in found.items()]
    return tuple(sorted(rows, key=lambda one: (-one.since, one.job, one.state)))


def _spell(name: str, state: str, bars: Sequence[Bar]) -> Spell:
    tasks = {bar.job for bar in bars} if bars[0].job != name else set()
    nodes = sorted({bar.node for bar in bars})
    return Spell(
        job=name, queue=bars[0].queue, state=state, gpus=sum(bar.count for bar in bars), tasks=len(tasks),
        where=fold(nodes) if len(nodes) <= _MOST_NODES else counted(len(nodes), "node"),
        since=min(bar.since for bar in bars), until=max(bar.until for bar in bars),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RackUse:
    """A rack over the whole time: the mean share that each queue held, in millionths, and their sum."""

    rack: str
    held: int
    parts: tuple[tuple[str, int], ...]


def rack_uses(shares: Sequence[Share], since: Instant, until: Instant) -> tuple[RackUse, ...]:
    """In the order of the racks; the queue that held most first."""
    sums: dict[str, dict[str, int]] = {}
    for one in shares:
        rack = sums.setdefault(one.rack, {})
        for queue, ppm in one.parts:
            rack[queue] = rack.get(queue, 0) + ppm * (one.until - one.since)
    whole = max(1, until - since)
    return tuple(
        RackUse(
            rack=rack, held=sum(parts.values()) // whole,
            parts=tuple((queue, part // whole) for queue, part in sorted(parts.items(), key=lambda p: (-p[1], p[0]))),
        )
        for rack, parts in sums.items()
    )  # fmt: skip
