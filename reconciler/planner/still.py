"""Would deciding again say the same as last time? Then the last answer is given, at once.

Most rounds of a cluster find that nothing happened since the round before. Deciding then can come to another end only
because time has gone by, and when it could is known: the last decision was made with a watch on every question about
the time (`moment`), and the order of the queues by decayed use is compared anew. An answer is remembered only when it
changed nothing, disturbed nobody, proposed nothing and depended on no price. It is the very one that `decide` would
give; a test holds the two side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import TypeVar

from reconciler.model.allocation import Allocation, JobRecord, Placement
from reconciler.model.decision import Decision, Judge
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.units import Instant, JobKey
from reconciler.planner.decide import attempt
from reconciler.planner.moment import Moment, Watch
from reconciler.planner.usage import Standings
from reconciler.planner.veto import NO_VETOES, undenied

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A decision that changed nothing, what it was made from, and until when nothing in it turns."""

    desired: Desired
    observed: Observed
    previous: Allocation
    decision: Decision
    made: Instant
    until: Instant
    standings: Callable[[Instant], Standings]
    stood: Standings


class Decider:
    """`decide` with a memory of its last answer. `from_memory`: the last one was given without deciding.

    `next_turn`: the first instant at which a comparison with the time that the last decision made comes out otherwise.
    """

    __slots__ = ("_answer", "from_memory", "next_turn")

    def __init__(self) -> None:
        self._answer: _Answer | None = None
        self.next_turn = Instant(0)
        self.from_memory = False

    @property
    def is_sure(self) -> bool:
        """Until `next_turn` the last decision, made again of the same, is the same, but for the order of queues by decayed use."""
        return self._answer is not None

    def decide(
        self, desired: Desired, observed: Observed, previous: Allocation, now: Instant, judge: Judge | None = None
    ) -> Decision:
        """What `decide` says to the same arguments. Raises as it does."""
        at = Instant(max(now, previous.decided_at))
        known = self._answer
        self.from_memory = known is not None and _still_holds(known, desired, observed, previous, at)
        if known is not None and self.from_memory:
            same = replace(known.decision.allocation, decided_at=at, desired_commit=desired.commit)
            return replace(known.decision, allocation=same)
        self._answer = None
        watch = Watch()
        made = attempt(desired, observed, previous, Instant(Moment.of(at, watch)), NO_VETOES)
        self.next_turn = Instant(at + watch.next_turn)
        first = replace(made, decision=_unwatched(made.decision, previous))
        decision = first.decision
        if judge is not None and made.started:
            decision = undenied(
                lambda vetoes: first if vetoes is NO_VETOES else attempt(desired, observed, previous, at, vetoes),
                judge, previous,
            )  # fmt: skip
        elif watch.holds_for and not (made.started or decision.changed or decision.tidying):
            self._answer = _Answer(
                desired=desired, observed=observed, previous=previous, decision=decision, made=at,
                until=Instant(at + watch.holds_for), standings=made.standings, stood=made.standings(at),
            )  # fmt: skip
        return decision


def _still_holds(known: _Answer, desired: Desired, observed: Observed, previous: Allocation, at: Instant) -> bool:
    """Checkpoints alone (`observed.jobs`) only change prices, but idle sessions end; what policies say of provenance is
    part of `desired`, but whom a job counts for is not."""
    return (
        previous is known.previous
        and known.made <= at < known.until
        and (observed.nodes is known.observed.nodes or observed.nodes == known.observed.nodes)
        and (observed.provenance is known.observed.provenance or observed.provenance == known.observed.provenance)
        and (observed.jobs is known.observed.jobs or _idle(observed) == _idle(known.observed))
        and _is_same(desired, known.desired)
        and known.standings(at) == known.stood
    )


def _idle(observed: Observed) -> list[tuple[JobKey, Instant]]:
    return [(job, seen.idle_since) for job, seen in observed.jobs.items() if seen.idle_since is not None]


def _is_same(desired: Desired, known: Desired) -> bool:
    """Everything but the commit is the same. An inventory is compared by identity: it is large, and kept when unchanged."""
    if desired is known:
        return True
    names = [one.name for one in fields(Desired) if one.name not in ("commit", "inventory")]
    return desired.inventory is known.inventory and all(getattr(desired, n) == getattr(known, n) for n in names)


# --- plain numbers again ---


def _unwatched(decision: Decision, previous: Allocation) -> Decision:
    """The decision with plain numbers for instants; records that are those of before are so already."""
    allocation = decision.allocation
    before = previous.jobs
    jobs: Mapping[JobKey, JobRecord] = {
        key: record if before.get(key) is record else _plain(record) for key, record in allocation.jobs.items()
    }
    now, then = allocation.tombstones.apart(previous.tombstones)
    stones = allocation.tombstones.updated({k: _plain(known) for k, known in now.items() if then.get(k) is not known})
    found = replace(
        allocation, jobs=jobs, tombstones=stones, decided_at=Instant(int(allocation.decided_at)),
        usage_as_of=Instant(int(allocation.usage_as_of)), moved=_plain(allocation.moved),
    )  # fmt: skip
    return replace(decision, allocation=found)


def _plain(value: T) -> T:
    """The same value, with a number for each `Moment` in it; the very object when there is none."""
    if isinstance(value, Moment):
        return int(value)  # type: ignore[return-value]  # an int that was one all along
    if value is None or isinstance(value, str | Enum | Placement):
        return value
    if isinstance(value, tuple):
        parts = [_plain(part) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else tuple(parts)  # type: ignore[return-value]  # no named tuples in a record
    if is_dataclass(value) and not isinstance(value, type):
        known = {one.name: getattr(value, one.name) for one in fields(value)}
        changed = {name: new for name, old in known.items() if (new := _plain(old)) is not old}
        return replace(value, **changed) if changed else value
    return value
