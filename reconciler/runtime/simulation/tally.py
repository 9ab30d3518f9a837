"""Who waited how long, what ran where, and what was lost? Added up as virtual time passes; exact until it is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from reconciler.model.allocation import Metrics
from reconciler.model.inventory import Inventory
from reconciler.model.lifecycle import Cause
from reconciler.model.units import CLUSTER_LEVEL, NODE_LEVEL, NVLINK_LEVEL, SECOND, Instant, JobKey, LevelName
from reconciler.render.simulation import Crossing, Stops, Waits
from reconciler.runtime.simulation.agents import Spell
from reconciler.runtime.simulation.setting import Submission

_MILLION: Final = 1_000_000
SIZES: Final = (("1", 1, 1), ("2-7", 2, 7), ("8", 8, 8), ("more than 8", 9, 1 << 60))
_ENDS: Final = (None, Cause.TIME_LIMIT)


@dataclass(slots=True)
class Tally:
    """All that is counted. Sums over time are in nanoseconds times GPUs, or times millionths."""

    inventory: Inventory
    starts: dict[JobKey, Instant] = field(default_factory=dict)
    """When each job ran first."""
    ends: dict[JobKey, Instant] = field(default_factory=dict)
    timed_out: int = 0
    decisions: int = 0
    refused: int = 0
    held: int = 0
    capacity: int = 0
    held_queued: int = 0
    capacity_queued: int = 0
    phi: int = 0
    lasted: int = 0
    spells: list[Spell] = field(default_factory=list)

    def passed(self, span: int, metrics: Metrics, waiting: int) -> None:
        """So many nanoseconds went by like this, while so many jobs waited."""
        self.lasted += span
        self.held += span * metrics.held
        self.capacity += span * metrics.capacity
        self.phi += span * metrics.phi_ppm
        if waiting:
            self.held_queued += span * metrics.held
            self.capacity_queued += span * metrics.capacity

    def ended(self, job: JobKey, at: Instant, *, at_limit: bool) -> None:
        """The job is over."""
        self.ends[job] = at
        self.timed_out += at_limit


def waits(tally: Tally, jobs: Sequence[Submission], begin: Instant) -> tuple[Waits, ...]:
    """Of all jobs that ran, of those of each queue, and of each size of gang, as far as there are any."""
    ran = [(one, tally.starts[one.key] - begin - one.row.submit) for one in jobs if one.key in tally.starts]
    queues = sorted({one.job.queue for one, _ in ran})
    found = [_waits("all", "", [wait for _, wait in ran])]
    if len(queues) > 1:
        found += [_waits("queue", queue, [wait for one, wait in ran if one.job.queue == queue]) for queue in queues]
    for name, least, most in SIZES:
        found.append(_waits("size", name, [wait for one, wait in ran if least <= one.job.gpus <= most]))
    return tuple(one for one in found if one.jobs or one.group == "all")


def _waits(group: str, name: str, spans: Iterable[int]) -> Waits:
    ordered = sorted(spans)
    mean = sum(ordered) // len(ordered) if ordered else 0
    return Waits(
        group=group, name=name, jobs=len(ordered), mean=mean // SECOND, p50=_rank(ordered, 50), p95=_rank(ordered, 95),
        most=_rank(ordered, 100),
    )  # fmt: skip


def _rank(ordered: Sequence[int], percent: int) -> int:
    """The nearest rank: the smallest value that so many in a hundred do not pass. In seconds."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] // SECOND if ordered else 0


def turnaround(tally: Tally, jobs: Sequence[Submission], begin: Instant) -> int:
    """Seconds from submission to end, the mean over all that ended."""
    spans = [tally.ends[one.key] - begin - one.row.submit for one in jobs if one.key in tally.ends]
    return sum(spans) // len(spans) // SECOND if spans else 0


def crossings(tally: Tally) -> tuple[Crossing, ...]:
    """For each level between node and cluster, from the inside out: who of several nodes lay in more than one domain."""
    names = [level.name for level in tally.inventory.levels]
    order = {name: number for number, name in enumerate(names)}
    between = [n for n in names[order[NODE_LEVEL] + 1 :] if n not in (CLUSTER_LEVEL, NVLINK_LEVEL)]
    wide = [(one.placement.level, one.gpus * (one.released - one.placed)) for one in tally.spells if _is_wide(one)]
    whole = sum(work for _, work in wide)
    return (
        tuple(Crossing(level=level, share_ppm=ppm(_beyond(level, wide, order), whole)) for level in between)
        if wide
        else ()
    )


def _is_wide(spell: Spell) -> bool:
    return len(spell.placement.masks) > 1


def _beyond(level: LevelName, wide: Iterable[tuple[LevelName, int]], order: Mapping[LevelName, int]) -> int:
    return sum(work for at, work in wide if order[at] > order[level])


def stops(tally: Tally) -> tuple[Stops, ...]:
    """Running gangs that had to go for others, by cause, in the order of the causes' names."""
    found: dict[str, list[Spell]] = {}
    for one in tally.spells:
        if one.cause not in _ENDS:
            found.setdefault(str(one.cause), []).append(one)
    return tuple(
        Stops(cause=cause, times=len(rows), lost=sum(lost_work(one) for one in rows) // SECOND)
        for cause, rows in sorted(found.items())
    )


def lost_work(spell: Spell) -> int:
    """What has to be done again, in GPU-nanoseconds."""
    return spell.gpus * (spell.ran - spell.kept)


def held_time(spell: Spell) -> int:
    """What it had from its place to its release, in GPU-nanoseconds."""
    return spell.gpus * (spell.released - spell.placed)


def useful_work(spell: Spell) -> int:
    """What was of use, in GPU-nanoseconds."""
    return spell.gpus * spell.kept


def ppm(part: int, whole: int) -> int:
    """A share in millionths; 0 of nothing."""
    return part * _MILLION // whole if whole else 0


def utilisation(tally: Tally) -> int:
    """Share of capacity that was allocated, in millionths."""
    return ppm(tally.held, tally.capacity)


def while_queued(tally: Tally) -> int:
    """The same, counting only the time in which somebody waited."""
    return ppm(tally.held_queued, tally.capacity_queued)


def mean_phi(tally: Tally) -> int:
    """Phi over time, in millionths; nothing idle counts as 0."""
    return tally.phi // tally.lasted if tally.lasted else 0
