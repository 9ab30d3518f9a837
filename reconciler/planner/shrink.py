"""Can elastic gangs make room by becoming smaller, before anyone has to leave?

Rule book §6c: as few as possible, by `victimOrder`, give up their highest groups, whole, down to their least size.
The rights are those of an eviction (`rights`), and so are the protections. A shrunk gang loses what all its ranks
did since the checkpoint, as it restarts; it goes on in what is left of its own place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord, Placement
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import GpuType, JobKey, NodeName
from reconciler.planner import elastic, steps
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks
from reconciler.planner.mildest import mildest_first
from reconciler.planner.moment import unsure
from reconciler.planner.placement import Spot
from reconciler.planner.protection import Shields
from reconciler.planner.ranks import obeys, placement_at, seats_of
from reconciler.planner.replacement import usable_part
from reconciler.planner.rights import Claim
from reconciler.planner.victims import Candidate

SETS: Final = 500  # sets of gangs looked at, for one job


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """One gang made smaller: the job at its new size, and where it goes on."""

    candidate: Candidate
    job: Job
    place: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrinks:
    """Who becomes smaller so that the gang starts, and the spot it then gets."""

    gangs: tuple[Shrunk, ...]
    spot: Spot

    @property
    def jobs(self) -> tuple[JobKey, ...]:
        """The gangs, in code point order."""
        return tuple(sorted(gang.candidate.record.job for gang in self.gangs))


def find_shrinks(
    draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, claim: Claim, cuts: MutableMapping[str, int]
) -> Shrinks | None:
    """The mildest set of elastic gangs whose shrinking starts this one, each no more than needed; None: there is none.

    `cuts`: where it is told that not all sets were looked at; then all become smaller but those who can be spared.
    """
    shields = Shields(draft)
    able = [one for one in claim.able if most_given(draft, one) and not is_shielded(draft, shields, one)]
    if not able:
        return None
    if 1 << len(able) > SETS:  # not all are looked at, and prices say which
        unsure(draft.now)
    with draft.charges.without(draft.releasing(gpu_type), gpu_type):
        search = _Search(draft, record, job, gpu_type, claim)
        if search.starts([(one, most_given(draft, one)) for one in able]) is None and not claim.caps:
            return None
        for seen, chosen in enumerate(
            mildest_first([(one,) for one in able], draft.desired.scheduling.victim_order, len(able), SETS), 1
        ):
            groups = {one.record.job: most_given(draft, one) for one in chosen}
            if search.starts([(one, groups[one.record.job]) for one in chosen]) is not None:
                return search.least(chosen, groups)
            if seen == SETS:
                cuts["shrinksTried"] = seen
                return search.spared(able)
    return None


def shrink(draft: Draft, shrunk: Shrunk, owner: JobKey | None) -> None:
    """Tell the gang to save its work, stop, and go on smaller."""
    record = shrunk.candidate.record
    lost = steps.lost_gpu_seconds(record, draft.observed, draft.now)
    purpose = f" to make room for {owner}" if owner is not None else ""
    why = reason(ReasonCode.RESIZED, gpus=shrunk.job.gpus, held=record.gpus_held, purpose=purpose, lost=lost)
    draft.displace(record, Cause.RESIZED, shrunk.place, why, owner)


def is_shielded(draft: Draft, shields: Shields, candidate: Candidate) -> bool:
    """An owner may evict whom a cooldown keeps from being shrunk; and an orphan has no place to go on in."""
    job = draft.job(candidate.record)
    return job is None or not draft.is_queue(candidate.record.queue) or bool(shields.of(candidate.record, job).by)


def most_given(draft: Draft, candidate: Candidate) -> int:
    """Groups that a running gang can give up at most."""
    job = draft.job(candidate.record)
    if job is None or job.elastic is None:
        return 0
    return max(0, elastic.steps_of(elastic.at_size(job, candidate.record.gpus_held)) - job.elastic.least)


def made_smaller(draft: Draft, candidate: Candidate, groups: int) -> Shrunk | None:
    """The gang without its highest groups, in what is left of its place."""
    record, job = candidate.record, draft.job(candidate.record)
    if job is None or record.placement is None:
        return None
    left = elastic.highest_gone(elastic.at_size(job, record.gpus_held), groups)
    if left is None:
        return None
    smaller, kept = left
    seats = seats_of(draft.ground, record.placement.ranks)
    if not all(rank in seats for rank in kept):
        return None
    place = placement_at(draft.ground, smaller, [seats[rank] for rank in kept])
    shut = draft.access.refused(smaller) | draft.access.drained(smaller)
    if len(usable_part(draft, place.ranks, shut)) < smaller.gpus or not obeys(draft.ground, smaller, place):
        return None  # it could not start again where it is
    return Shrunk(candidate=candidate, job=smaller, place=place)


def giving(gang: Shrunk) -> Candidate:
    """The gang as one that only gives up the difference."""
    of = gang.candidate
    return Candidate(
        record=of.record, priority=of.priority, lost=of.lost, gpus=of.record.gpus_held - gang.job.gpus, leaf=of.leaf
    )


class _Search:
    """The one question: does the gang start when these give up so many groups?"""

    __slots__ = ("_claim", "_draft", "_job", "_kind", "_known", "_record")

    def __init__(self, draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, claim: Claim) -> None:
        self._draft, self._record, self._job, self._kind, self._claim = draft, record, job, gpu_type, claim
        self._known: dict[tuple[JobKey, int], Shrunk | None] = {}

    def _shrunk(self, candidate: Candidate, groups: int) -> Shrunk | None:
        key = (candidate.record.job, groups)
        if key not in self._known:
            self._known[key] = made_smaller(self._draft, candidate, groups)
        return self._known[key]

    def starts(self, chosen: Sequence[tuple[Candidate, int]]) -> Shrinks | None:
        """The answer in full, when it starts, and when all of them may be asked together."""
        gangs = [made for one, groups in chosen if (made := self._shrunk(one, groups)) is not None]
        givers = [giving(gang) for gang in gangs]
        if len(gangs) < len(chosen) or not self._claim.may_go(givers):
            return None
        draft, kind = self._draft, self._kind
        with draft.charges.without_parts(list(self._given(gangs)), kind):
            spot = draft.look(self._record, self._job, kind)
            if not isinstance(spot, Spot) or draft.breach(self._job, kind, promised=True, spot=spot):
                return None
            nodes = [draft.ground.nodes[index].name for index, _ in spot.rows]
            lawful = self._claim.causes(givers, nodes) is not None
        return Shrinks(gangs=tuple(gangs), spot=spot) if lawful else None

    def _given(self, gangs: Sequence[Shrunk]) -> Iterator[tuple[JobRecord, Mapping[NodeName, int]]]:
        for gang in gangs:
            kept = gang.place.masks
            held = gang_masks(gang.candidate.record)
            yield gang.candidate.record, {n: m & ~kept.get(n, 0) for n, m in held.items() if m & ~kept.get(n, 0)}

    def spared(self, able: Sequence[Candidate]) -> Shrinks | None:
        """All of them but those without whom it starts as well, the dearest first; None when all are not enough."""
        most = {one.record.job: most_given(self._draft, one) for one in able}
        chosen = list(able)
        if self.starts([(one, most[one.record.job]) for one in chosen]) is None:
            return None
        for one in sorted(able, key=lambda c: (-c.priority, -c.lost, -c.gpus, c.record.job)):
            fewer = [c for c in chosen if c is not one]
            if fewer and self.starts([(c, most[c.record.job]) for c in fewer]) is not None:
                chosen = fewer
        return self.least(chosen, most)

    def least(self, chosen: Sequence[Candidate], groups: dict[JobKey, int]) -> Shrinks | None:
        """Each of them gives up only as much as is needed, the last to have started first."""
        best = self.starts([(one, groups[one.record.job]) for one in chosen])
        for candidate in chosen:
            for fewer in range(1, groups[candidate.record.job]):
                tried = {**groups, candidate.record.job: fewer}
                found = self.starts([(one, tried[one.record.job]) for one in chosen])
                if found is not None:
                    best, groups = found, tried
                    break
        return best
