"""Can somebody who would be evicted, or moved, only become smaller instead?

Rule book §6d and e, "maybe with shrinks". Shrinking alone was tried before and is not enough. Here each elastic gang
among the victims of a search is let off with as few groups as will do; and where moving a few small gangs does not help
either, it is tried with the elastic gangs shrunk, each again by no more than is needed. Bounded: `TRIES` trials a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause
from reconciler.model.units import GpuType, JobKey, NodeName
from reconciler.planner.draft import Draft
from reconciler.planner.masks import gang_masks
from reconciler.planner.placement import Spot
from reconciler.planner.preemption import Victims
from reconciler.planner.protection import Shields
from reconciler.planner.rights import Claim
from reconciler.planner.shrink import Shrunk, giving, is_shielded, made_smaller, most_given
from reconciler.planner.victims import Candidate

TRIES: Final = 200  # trials, for one job


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """Who leaves, who only becomes smaller, and the spot the gang then gets."""

    victims: Victims
    shrunk: tuple[Shrunk, ...]


def with_shrinks(
    draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, claim: Claim, found: Victims
) -> Blend:  # fmt: skip
    """The victims, as many of them as possible only made smaller: the dearest are let off first."""
    trial = _Trial(draft, record, job, gpu_type, claim)
    able = {one.record.job: one for one in claim.able}
    leaves = [able[key] for key in found.jobs]
    shields, shrunk, best = Shields(draft), list[Shrunk](), None
    with draft.charges.without(draft.releasing(gpu_type), gpu_type):
        for one in sorted(leaves, key=lambda c: (-c.priority, -c.lost, -c.gpus, c.record.job)):
            if is_shielded(draft, shields, one):
                continue
            others = [c for c in leaves if c is not one]
            for groups in range(1, most_given(draft, one) + 1):
                made = made_smaller(draft, one, groups)
                told = trial.starts(others, [*shrunk, made]) if made is not None else None
                if made is not None and told is not None:
                    leaves, best = others, told
                    shrunk.append(made)
                    break
    if best is None:
        return Blend(victims=found, shrunk=())
    spot, causes = best
    jobs = tuple(sorted(one.record.job for one in leaves))
    fewer = replace(found, jobs=jobs, spot=spot, causes={key: causes[key] for key in jobs})
    return Blend(victims=fewer, shrunk=tuple(shrunk))


class _Trial:
    """The one question: does the gang start when these leave and those become smaller?"""

    __slots__ = ("_claim", "_draft", "_job", "_kind", "_left", "_record")

    def __init__(self, draft: Draft, record: JobRecord, job: Job, gpu_type: GpuType, claim: Claim) -> None:
        self._draft, self._record, self._job, self._kind, self._claim = draft, record, job, gpu_type, claim
        self._left = TRIES

    def starts(
        self, leaves: Sequence[Candidate], shrunk: Sequence[Shrunk]
    ) -> tuple[Spot, Mapping[JobKey, Cause]] | None:
        """Where, and by what right each is asked; None when it does not, or not all of them may be asked together."""
        draft, kind, asked = self._draft, self._kind, [*leaves, *(giving(gang) for gang in shrunk)]
        if self._left <= 0 or not self._claim.may_go(asked):
            return None
        self._left -= 1
        with ExitStack() as gone:
            gone.enter_context(draft.charges.without([one.record for one in leaves], kind))
            gone.enter_context(draft.charges.without_parts(list(given(shrunk)), kind))
            spot = draft.look(self._record, self._job, kind)
            if not isinstance(spot, Spot) or draft.breach(self._job, kind, promised=True, spot=spot) is not None:
                return None
            nodes = [draft.ground.nodes[index].name for index, _ in spot.rows]
            causes = self._claim.causes(asked, nodes)
        return (spot, causes) if causes is not None else None


def given(shrunk: Sequence[Shrunk]) -> Iterator[tuple[JobRecord, Mapping[NodeName, int]]]:
    """What each shrunk gang gives up, by node."""
    for gang in shrunk:
        kept, held = gang.place.masks, gang_masks(gang.candidate.record)
        yield gang.candidate.record, {n: m & ~kept.get(n, 0) for n, m in held.items() if m & ~kept.get(n, 0)}
