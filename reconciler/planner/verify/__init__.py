"""May this decision be committed? A second judge that shares no code with the search it judges.

It compares the next allocation with the previous one and reports what the decision makes or worsens; what it merely
inherits (a ceiling lowered below use, a cordon under running work) is nobody's fault and passes. Records that did not
change are only looked at as neighbours.

case      the rules that can be broken, and the inputs with what is looked up in them
lifetime  records and their states: moves, phases, attempts, releases
places    one new place: wanted, whole, on fit nodes, inside the required levels
between   several jobs: GPUs, ports, CPUs and memory, ceilings
spares    what a gang holds beside itself for its repair
reservations  who starts in front of the head of the line, and puts it off
holds     who gathers GPUs without having them, and who may use them meanwhile
victims   who is evicted, by what right, and for what
displaced who goes on elsewhere or with another size, and for what
quotas    guarantees, lending, ceilings, and what may only use guarantees
tasks     how many tasks of an array are at work, and which of them are not to run
accounts  what each queue is charged for what it used beyond its guarantee, and how long its attempts ran

Belongs here: rules checked from scratch. Does not belong here: anything imported from the rest of the planner, or
whether a better placement or a cheaper victim exists.
"""

from __future__ import annotations

from reconciler.model.allocation import Allocation
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.planner.verify.accounts import accounts, run_lengths
from reconciler.planner.verify.between import neighbours, overlaps
from reconciler.planner.verify.case import Breach, Case, Violation, new_places
from reconciler.planner.verify.displaced import displaced
from reconciler.planner.verify.holds import broken_holds, holds
from reconciler.planner.verify.lifetime import back_off, blame, census, life, release, stop_cause, succession
from reconciler.planner.verify.people import accounts_known, within_user_limits
from reconciler.planner.verify.places import admission, eligible, gang, levels
from reconciler.planner.verify.quotas import borrows_soon, within_quota
from reconciler.planner.verify.reservations import delays
from reconciler.planner.verify.spares import spares
from reconciler.planner.verify.tasks import arrays, ended_task, unwanted_task
from reconciler.planner.verify.victims import victim

__all__ = ["Breach", "Violation", "violations"]


def violations(
    desired: Desired, observed: Observed, previous: Allocation, following: Allocation
) -> tuple[Violation, ...]:
    """Everything this decision makes or worsens, by job and code; empty when it may be committed.

    Costs one pass over the records, and a look at the GPUs only of those that changed and of their neighbours.
    """
    case = Case(desired, observed, previous, following)
    # 1. The allocation as a whole follows from the previous one.
    found = [*succession(case), *census(case)]
    # 2. Each record that changed goes where it may, and what it gave up was seen released.
    for before, after in case.changed:
        found += release(case, before, after)
        if after is not None:
            for rule in (life, stop_cause, blame, back_off, victim, displaced, ended_task):
                found += rule(case, before, after)
    # 3. Each new place is wanted, whole, fit and inside its levels.
    for before, after in case.started:
        found += admission(case, before, after)
        found += unwanted_task(case, before, after)
        if (job := desired.jobs.get(after.job)) is not None:
            for place in new_places(before, after):
                sized = job.resized(len(place.ranks)) or job
                for check in (gang, eligible, levels):
                    found += check(case, sized, place)
    # 4. Together they take nothing twice and pass no ceiling, nor what one person may have.
    for together in (
        overlaps,
        neighbours,
        within_quota,
        borrows_soon,
        accounts,
        run_lengths,
        holds,
        broken_holds,
        spares,
        delays,
        arrays,
        accounts_known,
        within_user_limits,
    ):
        found += together(case)
    return tuple(sorted(dict.fromkeys(found), key=lambda one: (one.job, one.code, one.detail)))
