"""Would the gangs that start in this decision lie better if they had been placed in another order?

Greedy placement gives the first comer the tightest place and may leave a later, larger gang one that crosses more
levels. Pairs of gangs started from free capacity are placed anew, the later one first, and keep the new places when
together they cross fewer levels, or use fewer racks at the same levels. The set of jobs stays, and no promise,
reservation or hold is touched. Bounded: `STEPS` searches a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import Final

from reconciler.model.allocation import Placement
from reconciler.model.job import Job
from reconciler.model.units import JobKey
from reconciler.planner import elastic
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks
from reconciler.planner.moves import taken
from reconciler.planner.placement import Spot
from reconciler.planner.ranks import placement_of

STEPS: Final = 5_000  # searches, in one decision

_Cost = tuple[int, int]


def improve(draft: Draft, started: Sequence[JobKey]) -> None:
    """Exchange places among the gangs that this decision started on free GPUs, as long as it helps."""
    gangs = [draft.records[key] for key in started]
    wide = [gang.job for gang in gangs if len(gang_masks(gang)) > 1 and not gang.spares]  # spares lie near them
    types, steps = draft.charges.types, 0
    improved = True
    while improved:
        improved = False
        for first, second in combinations(wide, 2):
            if types.get(first) != types.get(second) or not _could_be_better(draft, first, second):
                continue
            steps += 2
            if steps > STEPS:
                return
            improved = _exchange(draft, first, second) or improved


def _could_be_better(draft: Draft, first: JobKey, second: JobKey) -> bool:
    """One of them lies in more than one leaf."""
    return (
        max(_width(draft, first)[0], _width(draft, second)[0])
        > draft.ground.tree.island_level - draft.ground.tree.leaf_level
    )


def _width(draft: Draft, key: JobKey) -> _Cost:
    place = draft.records[key].placement
    return _cost(draft, place) if place is not None else (0, 0)


def _cost(draft: Draft, place: Placement) -> _Cost:
    """Levels crossed, and leaves used."""
    tree = draft.ground.tree
    leaves = {tree.leaf_of[tree.index_of[node]] for node in place.nodes}
    return tree.island_level - draft.ground.levels[place.level], len(leaves)


def _job_of(draft: Draft, key: JobKey) -> Job | None:
    record = draft.records[key]
    job = draft.job(record)
    return elastic.at_size(job, record.gpus_held) if job is not None else None


def _exchange(draft: Draft, first: JobKey, second: JobKey) -> bool:
    """Place the second before the first; True when the two lie better together, and then they do."""
    kind = draft.charges.types[first]
    before = tuple(a + b for a, b in zip(_width(draft, first), _width(draft, second), strict=True))
    places: dict[JobKey, Placement] = {}
    with draft.charges.without([draft.records[first], draft.records[second]], kind), ExitStack() as bound:
        for key in (second, first):
            job = _job_of(draft, key)
            spot = draft.look(draft.records[key], job, kind) if job is not None else None
            if job is None or not isinstance(spot, Spot):
                return False
            bound.enter_context(taken(draft, spot, job))
            places[key] = placement_of(draft.ground, job, spot)
    costs = [_cost(draft, place) for place in places.values()]
    if tuple(map(sum, zip(*costs, strict=True))) >= before:
        return False
    draft.place_anew(places)
    return True
