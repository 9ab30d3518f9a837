"""What has each queue used beyond its guarantee, and how much of that still counts? Fair share without floats.

Rule book §4. State carries for each queue and GPU type an accumulator `acc` in milli-GPU-seconds that halves every
half-life, and the `rate` at which it has grown since, in milli-GPUs; both as of one instant, advanced only by a
committed decision, so that replay needs no history. Only what is above the guarantee is charged. The arithmetic is in
fixed point with 64 bits after the point. In which order queues are asked is for `order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import isqrt
from typing import Final

from reconciler.model.allocation import JobRecord, Usage
from reconciler.model.desired import Desired
from reconciler.model.units import SECOND, GpuType, Instant, JobKey, Nanoseconds, QueueName, seconds
from reconciler.planner.quota import Quotas

_BITS: Final = 64
ONE: Final = 1 << _BITS
INVERSE_LN2: Final = 26613026195688644983
"""floor(2^64 / ln 2): turns halving into the integral of an exponential."""
SHARE_UNIT: Final = 10**6
MILLI: Final = 1000

Held = Callable[[JobRecord], Iterable[tuple[GpuType, int, object]]]
"""GPUs that a gang holds, by type."""

Accounts = Mapping[tuple[QueueName, GpuType], tuple[int, int]]
"""(acc, rate) by queue and type, as of one instant."""


def _roots() -> tuple[int, ...]:
    """2^-1, 2^-1/2, 2^-1/4 ... in 64 bits after the point."""
    found = [1 << _BITS - 1]
    for _ in range(_BITS):
        found.append(isqrt(found[-1] << _BITS))
    return tuple(found)


_ROOTS: Final = _roots()


@lru_cache(maxsize=256)
def decay(span: int, half_life: int) -> int:
    """2^(-span/half_life) in 64 bits after the point, rounded down; both in whole seconds."""
    halvings, rest = divmod(span, half_life)
    if halvings >= _BITS:
        return 0
    fraction = (rest << _BITS) // half_life
    found = ONE
    for number in range(1, _BITS + 1):
        if fraction >> _BITS - number & 1:
            found = found * _ROOTS[number] >> _BITS
    return found >> halvings


def advanced(acc: int, rate: int, span: int, half_life: int) -> int:
    """The accumulator `span` seconds later, having grown at `rate` all the while."""
    left = decay(span, half_life)
    return (acc * left >> _BITS) + (rate * half_life * INVERSE_LN2 * (ONE - left) >> 2 * _BITS)


def brought_to(
    usage: Iterable[Usage], as_of: Instant, now: Instant, half_life: Nanoseconds
) -> tuple[Accounts, Instant]:
    """All accounts at `now`, to the whole second, and the instant they are as of."""
    span = max(0, seconds(int(now) - as_of))
    half = max(1, seconds(half_life))
    found = {(one.queue, one.gpu_type): (advanced(one.acc, one.rate, span, half), one.rate) for one in usage}
    return found, Instant(as_of + span * SECOND)


def usage_after(
    accounts: Accounts, quotas: Quotas, desired: Desired, jobs: Mapping[JobKey, JobRecord], held: Held
) -> tuple[Usage, ...]:
    """The accounts to commit: what was used until now, and the rate from now on. Those that are nil are dropped.

    `held`: GPUs of a gang by type. A queue that is gone keeps what it used until that has decayed: re-creating it launders nothing.
    """
    branches = quotas.branches
    charged = _charged(quotas, desired, jobs, held)
    rows = {key: (acc, 0) for key, (acc, _) in accounts.items()}
    for (number, kind), permille in charged.items():
        excess, used = quotas.excess(number, kind, ahead=False), quotas.now.under(number, kind)
        if excess and used:
            key = (branches.labels[number], kind)
            rows[key] = (rows.get(key, (0, 0))[0], excess * permille // used)
    return tuple(
        Usage(queue=queue, gpu_type=kind, acc=acc, rate=rate)
        for (queue, kind), (acc, rate) in sorted(rows.items())
        if acc or rate
    )


def _charged(
    quotas: Quotas, desired: Desired, jobs: Mapping[JobKey, JobRecord], held: Held
) -> dict[tuple[int, GpuType], int]:
    """GPUs in thousandths by queue (not the root) and type, each gang's scaled as its class says."""
    worth = {name: one.usage_permille for name, one in desired.classes.items()}
    found: dict[tuple[int, GpuType], int] = {}
    for record in jobs.values():
        if not record.state.holds_gpus:
            continue
        job = desired.jobs.get(record.job)
        permille = worth.get(job.priority_class, MILLI) if job is not None else MILLI
        path = quotas.branches.path(quotas.branches.leaf(record.queue))[:-1]
        for kind, gpus, _ in held(record):
            for number in path:
                found[number, kind] = found.get((number, kind), 0) + gpus * permille
    return found


Standings = tuple[tuple[int, ...], ...]
"""For each queue the places of the queues below it by share; those with equal shares have equal places."""


class FairShares:
    """Which queue has had the least of what is shared, as things stand in this very pass."""

    __slots__ = ("_accounts", "_ahead", "_kinds", "_known", "_quotas")

    def __init__(self, quotas: Quotas, accounts: Accounts, kinds: Iterable[GpuType], charge_ahead: Nanoseconds) -> None:
        self._quotas, self._accounts = quotas, accounts
        self._kinds = [kind for kind in kinds if quotas.branches.shares(kind).total]
        self._ahead = seconds(charge_ahead) * MILLI
        self._known: dict[int, int] = {}

    def of(self, number: int) -> int:
        """The share of a queue: its dominant GPU type's use above guarantee, in millionths of the cluster, by weight.

        What it holds above its guarantee now counts as if it had been held for `chargeAhead` already.
        """
        found = self._known.get(number)
        if found is None:
            found = self._known[number] = max((self._of_kind(number, kind) for kind in self._kinds), default=0)
        return found

    def _of_kind(self, number: int, kind: GpuType) -> int:
        branches = self._quotas.branches
        acc, _ = self._accounts.get((branches.labels[number], kind), (0, 0))
        charged = acc + self._quotas.excess(number, kind) * self._ahead
        return charged * SHARE_UNIT // branches.shares(kind).total // branches.weights[number]

    def standings(self) -> Standings:
        """How all queues stand to their siblings."""
        found = []
        for children in self._quotas.branches.children:
            shares = [self.of(number) for number in children]
            place = {share: number for number, share in enumerate(sorted(set(shares)))}
            found.append(tuple(place[share] for share in shares))
        return tuple(found)

    def renew(self, numbers: Iterable[int]) -> None:
        """The use of these queues has changed."""
        for number in numbers:
            self._known.pop(number, None)
