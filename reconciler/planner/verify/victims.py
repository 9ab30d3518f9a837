"""By what right is a running gang evicted, and does it help? Priority in the same queue is the only right there is.

Whether a cheaper set of victims exists is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.model.allocation import JobRecord
from reconciler.model.job import OnPreempt
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.units import DAY
from reconciler.planner.verify.case import RUNS, Breach, Case, Violation, held_by, is_new


def victim(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """Who is evicted is of lower standing, unprotected, running, and its GPUs are what the preemptor waits for."""
    told = before is not None and before.state is JobState.STOPPING
    if after.state is not JobState.STOPPING or after.cause is not Cause.PREEMPTED or told or before is None:
        return
    winner = case.next.jobs.get(after.preemptor) if after.preemptor else None
    if winner is None or winner.state not in (JobState.PROMISED, JobState.STARTING):
        yield Violation(code=Breach.VICTIM_IN_VAIN, job=after.job, detail=f"for {after.preemptor}")
        return
    if not _may_evict(case, winner, before):
        yield Violation(code=Breach.NO_RIGHT_TO_EVICT, job=after.job, detail=f"for {winner.job}")
    for protection in _protections(case, before):
        yield Violation(code=Breach.VICTIM_PROTECTED, job=after.job, detail=protection)
    if after.job not in winner.victims or not _new_claim(case, winner) or not _helps(case, winner, after):
        yield Violation(code=Breach.VICTIM_IN_VAIN, job=after.job, detail=f"for {winner.job}")


def _may_evict(case: Case, winner: JobRecord, victim: JobRecord) -> bool:
    """Same queue, strictly lower priority, both classes agree, and the cluster allows it at all."""
    upper, lower = case.desired.jobs.get(winner.job), case.desired.jobs.get(victim.job)
    if upper is None or lower is None or case.desired.scheduling.preempt_same_queue == "never":
        return False
    above, below = case.priority(upper), case.priority(lower)
    if above is None or below is None or winner.queue != victim.queue:
        return False
    runs = victim.state is JobState.RUNNING or (victim.phase is Phase.RUN and case.reports(victim, RUNS))
    return runs and above.preempts_lower and above.value > below.value


def _protections(case: Case, victim: JobRecord) -> Iterator[str]:
    """The protections of the rule book §6 that hold for an eviction by priority now."""
    job, rules = case.desired.jobs.get(victim.job), case.desired.scheduling
    rank = case.priority(job) if job else None
    if job is None or rank is None:
        return
    if not rank.preemptible or job.on_preempt is OnPreempt.NEVER:
        yield "nonPreemptible"
    granted = rank.min_runtime if rank.min_runtime is not None else rules.min_runtime
    least = min(granted if job.min_runtime is None else min(granted, job.min_runtime), rules.max_min_runtime)
    if least and case.now < (victim.started if victim.started is not None else case.now) + least:
        yield "minRuntime"
    if any(at + rules.cooldown > case.now for at in victim.interruptions):
        yield "cooldown"
    most = rank.max_per_day if rank.max_per_day is not None else rules.max_per_day
    most = most if job.max_per_day is None else max(most, job.max_per_day)
    if sum(at + DAY > case.now for at in victim.interruptions) >= most:
        yield "maxPerDay"


def _new_claim(case: Case, winner: JobRecord) -> bool:
    """A promise once made takes no further victims."""
    return is_new(case.previous.jobs.get(winner.job), winner)


def _helps(case: Case, winner: JobRecord, victim: JobRecord) -> bool:
    """Some of what the victim gives up, GPUs, room on a node or room below a ceiling, is what the winner takes."""
    place = winner.promise.placement if winner.promise else winner.placement
    target, given = place.masks if place else {}, held_by(victim)
    if any(mask & given.get(node, 0) for node, mask in target.items()):
        return True
    job = case.desired.jobs.get(winner.job)
    if job and (job.cpus_per_gpu or job.memory_per_gpu) and target.keys() & given.keys():
        return True
    of_type = case.gpu_type(place)
    return of_type == case.gpu_type(victim.placement) and any(
        case.use[0].get((queue, of_type), 0) + victim.gpus_held > most
        for queue, most in case.ceilings(winner.queue, of_type)
    )
