"""What does it cost at least to free enough? Lower bounds for the victim search, and a first guess from each.

A cost has one number for each criterion of `victimOrder` that adds up, then the GPUs freed; they are compared from
left to right, so they are kept packed in one integer (`price`), which adds and compares the same way. A bound covers
what is missing by the cheapest parts of gangs. `Alone` counts GPUs, or nodes that one gang each keeps from being free;
`Shared` counts nodes that several gangs keep, each gang paying for a node its part. Both know how much each queue can
give up at most: a queue that has given enough is passed over. Candidates are numbered in the order in which the
search decides about them; sets of them are bit masks. Searching is for `preemption`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd, lcm
from typing import Final, NamedTuple, Protocol

from reconciler.model.allocation import JobRecord
from reconciler.model.units import GpuSeconds
from reconciler.topology.tree import GpuMask, NodeIndex

_FINEST: Final = 1 << 64
"""Parts of a gang are counted in fractions no finer than this, rounded down: still a lower bound."""

_WIDTH: Final = 128  # bits of one number of a packed cost
_FIELD: Final = (1 << _WIDTH) - 1


Cost = tuple[int, ...]
"""One number for each criterion of `victimOrder`, then the GPUs freed; the smaller tuple is the milder set."""


class Candidate(NamedTuple):
    """A running gang that may be asked to give way. `leaf` is the number of its queue, `places` its GPU masks by node
    number, where they are asked for."""

    record: JobRecord
    priority: int
    lost: GpuSeconds
    gpus: int
    leaf: int = 0
    places: tuple[tuple[NodeIndex, GpuMask], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What queues can give up: GPUs by queue (`caps`), and the queues that a candidate counts at (`side_of`)."""

    caps: Mapping[int, int]
    side_of: Callable[[Candidate], Sequence[int]]


class Bound(Protocol):
    """A lower bound over the candidates of one domain."""

    @property
    def order(self) -> Sequence[Candidate]:
        """Candidates in the order of deciding."""

    def of(self, at: int, chosen: int) -> int | None:
        """What is still to be paid at least, packed, candidates before `at` being decided; 0 when the numbers suffice;
        None when they cannot."""

    def guess(self) -> Sequence[int]:
        """A cheap choice that may already be enough: numbers of candidates."""


def price(candidate: Candidate, order: Sequence[str]) -> int:
    """What a victim adds to each criterion that adds up, in the configured order, and its GPUs; packed."""
    packed = 0
    for name in order:
        if name == "leastLostWork":
            packed = packed << _WIDTH | candidate.lost
        elif name == "fewestJobs":
            packed = packed << _WIDTH | 1
    return packed << _WIDTH | candidate.gpus


def numbers_of(order: Sequence[str]) -> int:
    """How many numbers a packed cost has."""
    return 1 + sum(name in ("leastLostWork", "fewestJobs") for name in order)


def unpacked(packed: int, count: int) -> tuple[int, ...]:
    """The numbers of a cost, first the one that is compared first."""
    return tuple(packed >> _WIDTH * place & _FIELD for place in range(count - 1, -1, -1))


def _scaled(packed: int, count: int, by: int, over: int) -> int:
    """Each number times `by` over `over`, rounded down."""
    found = 0
    for part in unpacked(packed, count):
        found = found << _WIDTH | part * by // over
    return found


def _whole(packed: int, count: int, denominator: int) -> int:
    """The least whole cost that is not below this fraction, compared from left to right."""
    if denominator == 1:
        return packed
    found = 0
    for place in range(count - 1, -1, -1):
        whole, rest = divmod(packed >> _WIDTH * place & _FIELD, denominator)
        if rest:
            return (found << _WIDTH | whole + 1) << _WIDTH * place
        found = found << _WIDTH | whole
    return found


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Room:
    """How much each queue can still give up while a bound is worked out."""

    __slots__ = ("_caps", "_sides")

    def __init__(self, limits: Limits, chosen: Iterable[Candidate]) -> None:
        self._caps = dict(limits.caps)
        for candidate in chosen:
            for number in limits.side_of(candidate):
                self._caps[number] -= candidate.gpus
        self._sides = limits.side_of

    def has(self, candidate: Candidate) -> bool:
        """Its queues can give it up whole."""
        return all(self._caps[number] >= candidate.gpus for number in self._sides(candidate))

    def take(self, candidate: Candidate, most: int) -> int:
        """As many of `most` GPUs as its queues can give up; they are taken off."""
        side = self._sides(candidate)
        for number in side:
            most = min(most, self._caps[number])
        for number in side if most > 0 else ():
            self._caps[number] -= most
        return max(0, most)


class Alone:
    """So many are missing, and each gang frees some by itself: GPUs, or whole nodes."""

    __slots__ = ("_common", "_count", "_each", "_limits", "_missing", "_uniform", "_weights", "order")

    def __init__(
        self, rows: Iterable[tuple[Candidate, int]], missing: int, victim_order: Sequence[str], limits: Limits | None
    ) -> None:
        """`rows`: candidates and how many each frees."""
        rows = list(rows)
        common = lcm(*{weight for _, weight in rows})
        keyed = [
            (
                price(candidate, victim_order) * (common // weight),
                -(candidate.record.started or 0),
                candidate.record.job,
                candidate,
                weight,
            )
            for candidate, weight in rows
        ]
        keyed.sort(key=lambda row: row[:3])
        self.order = [row[3] for row in keyed]
        self._each = [row[0] for row in keyed]  # price of one, as a numerator over `common`
        self._weights = [row[4] for row in keyed]
        self._common, self._count, self._limits = common, numbers_of(victim_order), limits
        self._uniform = len({(candidate.gpus, weight) for candidate, weight in rows}) == 1
        step = reduce(gcd, self._weights, 0) or 1
        self._missing = -(-missing // step) * step

    def of(self, at: int, chosen: int) -> int | None:
        missing = self._missing - sum(self._weights[i] for i in bits(chosen))
        if missing <= 0:
            return 0
        room = _Room(self._limits, (self.order[i] for i in bits(chosen))) if self._limits else None
        total = 0
        for i in range(at, len(self.order)):
            take = self._weights[i]
            take = min(take, missing)
            if room is not None:
                take = min(take, self._allowed(room, i, take))
            total += self._each[i] * take
            missing -= take
            if missing <= 0:
                return _whole(total, self._count, self._common)
        return None

    def _allowed(self, room: _Room, i: int, take: int) -> int:
        """How many its queues let it free; where gangs are alike each goes whole or not at all."""
        candidate, weight = self.order[i], self._weights[i]
        if self._uniform:
            return weight if room.has(candidate) and room.take(candidate, candidate.gpus) else 0
        got = room.take(candidate, -(-take * candidate.gpus // weight))
        return -(-got * weight // candidate.gpus)

    def guess(self) -> Sequence[int]:
        chosen, missing = [], self._missing
        room = _Room(self._limits, ()) if self._limits else None
        for i, candidate in enumerate(self.order):
            if missing <= 0:
                break
            if room is not None:
                if not room.has(candidate):
                    continue
                room.take(candidate, candidate.gpus)
            chosen.append(i)
            missing -= self._weights[i]
        return chosen


class Shared:
    """So many whole nodes are missing; a node is free when every gang on it is gone."""

    __slots__ = ("_count", "_known", "_limits", "_missing", "_rows", "_scale", "_shares", "order")

    def __init__(
        self, nodes: Sequence[Sequence[Candidate]], missing: int, victim_order: Sequence[str], limits: Limits | None
    ) -> None:
        """`nodes`: for each node that candidates alone keep from being free, those candidates."""
        spread: dict[str, int] = {}
        by_key: dict[str, Candidate] = {}
        for members in nodes:
            for candidate in members:
                spread[candidate.record.job] = spread.get(candidate.record.job, 0) + 1
                by_key[candidate.record.job] = candidate
        self._known: dict[int, int] = {}
        self._count = numbers_of(victim_order)
        self._scale = min(lcm(*spread.values()), _FINEST)
        share = {
            key: _scaled(price(candidate, victim_order), self._count, self._scale, spread[key])
            for key, candidate in by_key.items()
        }
        cheapest: dict[str, tuple[int, int, int, str]] = {}
        for number, members in enumerate(nodes):
            total = sum(share[candidate.record.job] for candidate in members)
            for candidate in members:
                key = (total, number, -(candidate.record.started or 0), candidate.record.job)
                cheapest[candidate.record.job] = min(key, cheapest.get(candidate.record.job, key))
        keys = sorted(cheapest, key=cheapest.__getitem__)
        number_of = {key: number for number, key in enumerate(keys)}
        self.order = [by_key[key] for key in keys]
        self._shares = [share[key] for key in keys]
        self._rows = sorted(
            (sum(share[c.record.job] for c in members), sum(1 << number_of[c.record.job] for c in members))
            for members in nodes
        )
        self._missing, self._limits = missing, limits

    def of(self, at: int, chosen: int) -> int | None:
        if self._missing <= 0:
            return 0
        spared = (1 << at) - 1 & ~chosen
        if self._limits is not None:
            return self._within_limits(self._limits, spared, chosen)
        found = []
        for total, members in self._rows:
            if members & spared:  # this node will not be free
                continue
            gone = members & chosen
            found.append(total - self._paid(gone) if gone else total)
        if len(found) < self._missing:
            return None
        found.sort()
        return _whole(sum(found[: self._missing]), self._count, self._scale)

    def _paid(self, gone: int) -> int:
        """The parts of one node that some of its gangs, chosen already, pay for."""
        known = self._known.get(gone)
        if known is None:
            known = self._known[gone] = sum(self._shares[number] for number in bits(gone))
        return known

    def _within_limits(self, limits: Limits, spared: int, chosen: int) -> int | None:
        """The cheapest nodes; each frees at least one GPU of a queue whose gangs alone are left on it."""
        found = []
        for total, members in self._rows:
            if not members & spared:
                found.append((total - self._paid(members & chosen), members & ~chosen))
        found.sort()
        room, missing, cost = _Room(limits, (self.order[i] for i in bits(chosen))), self._missing, 0
        for part, left in found:
            owners = [self.order[number] for number in bits(left)]
            if owners and len({owner.leaf for owner in owners}) == 1 and not room.take(owners[0], 1):
                continue
            cost += part
            missing -= 1
            if not missing:
                return _whole(cost, self._count, self._scale)
        return None

    def guess(self) -> Sequence[int]:
        mask = 0
        for _, members in self._rows[: self._missing]:
            mask |= members
        return list(bits(mask))
