"""Which sets of gangs come first, when they shall be disturbed as little as possible? All of them, mildest first.

Cost of a set, by `victimOrder`: the highest priority in it and the sums of what each gang loses and counts, in the
configured order; then the GPUs it concerns, then who started last, then names. Sets are unions of bundles, gangs that only help together; they are made one by one, so a caller
that stops at the first that serves it has the mildest, and pays only for those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from reconciler.planner.victims import Candidate

Key = tuple[tuple[int, ...], tuple[tuple[int, str], ...]]


def mildest_first(
    bundles: Sequence[tuple[Candidate, ...]], order: Sequence[str], most: int, limit: int
) -> Iterator[tuple[Candidate, ...]]:
    """Unions of bundles, of at most `most` gangs, mildest first; `limit` of them at most.

    Bundles are sorted by their own cost. Every union but the first comes from one that is no dearer: by exchanging its
    last bundle for the next one, or by adding that one.
    """
    ranked = sorted((bundle for bundle in bundles if len(bundle) <= most), key=lambda bundle: _key(bundle, order))
    heap: list[tuple[Key, tuple[int, ...]]] = []
    if ranked:
        heappush(heap, (_key(ranked[0], order), (0,)))
    for _ in range(limit):
        if not heap:
            return
        _, chosen = heappop(heap)
        members = _members(ranked, chosen)
        if len(members) <= most:
            yield members
        following = chosen[-1] + 1
        if following == len(ranked):
            continue
        exchanged = (*chosen[:-1], following)
        heappush(heap, (_key(_members(ranked, exchanged), order), exchanged))
        if len(members) < most:
            added = (*chosen, following)
            heappush(heap, (_key(_members(ranked, added), order), added))


def _members(ranked: Sequence[tuple[Candidate, ...]], chosen: Sequence[int]) -> tuple[Candidate, ...]:
    return ranked[chosen[0]] if len(chosen) == 1 else tuple(one for number in chosen for one in ranked[number])


def _key(members: Sequence[Candidate], order: Sequence[str]) -> Key:
    priority = lost = gpus = 0
    first = True
    for one in members:
        priority = one.priority if first or one.priority > priority else priority
        lost, gpus, first = lost + one.lost, gpus + one.gpus, False
    parts = {"lowestPriority": priority, "leastLostWork": lost, "fewestJobs": len(members)}
    cost = (*(parts[name] for name in order if name in parts), gpus)
    return cost, tuple((-(one.record.started or 0), one.record.job) for one in members)
