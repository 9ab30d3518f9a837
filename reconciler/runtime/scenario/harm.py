"""Does anybody make room without need or right? Rules 3 and 4 of those that hold in every case."""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.documents.scenario import JobRow, Running
from reconciler.runtime.scenario.fits import fits
from reconciler.runtime.scenario.ledger import Ledger, add
from reconciler.runtime.scenario.quotas import Quotas
from reconciler.runtime.scenario.world import gpus_of, smallest


def free_first(ledger: Ledger) -> Iterator[str]:
    """If a job fits free capacity, nobody is evicted, moved or shrunk for it."""
    for job in ledger.plan.started if not ledger.may_be_reserved else ():
        harmed = ledger.plan.displaced_for(job)
        if harmed and _starts(ledger, ledger.world.jobs[job], dict(harmed), set()):
            yield f"{job} fits free capacity, and {', '.join(harmed)} made room for it"


def victims(ledger: Ledger) -> Iterator[str]:
    """Only those the policy allows, each of them needed, and nobody for a job that does not start."""
    plan, world = ledger.plan, ledger.world
    owners = dict(plan.evicted)
    owners |= {job: one.owner for displaced in (plan.moved, plan.shrunk) for job, one in displaced.items()}
    for victim, owner in owners.items():
        way = plan.outcome(victim)
        if owner not in plan.started:
            yield f"{way} {victim}: for {owner or 'nobody'}, which does not start"
            continue
        for why in _unlawful(ledger, victim, world.jobs[owner], way):
            yield f"{way} {victim} for {owner}: {why}"
        others = plan.displaced_for(owner).keys() - {victim}
        if others and _starts(ledger, world.jobs[owner], {victim: way}, others):
            yield f"{way} {victim} for {owner}: it starts without that"


def _starts(ledger: Ledger, row: JobRow, staying: dict[str, str], making_room: set[str]) -> bool:
    """Whether the job, at its smallest, could start with these staying and those making room as the plan says."""
    free = ledger.free_for(row.job, staying)
    for other in making_room:
        gains = ledger.given_up(other)
        add(free, {node: gpus for node, gpus in gains.items() if ledger.takes(node, row)})
    roles = smallest(row)
    gone = [ledger.world.jobs[job] for job in making_room if job in ledger.plan.evicted]
    return fits(ledger.world, roles, row.rule, free) and Quotas(ledger).allow(row, gpus_of(roles), gone)


def _unlawful(ledger: Ledger, victim: str, owner: JobRow, way: str) -> Iterator[str]:
    """Why this job may not be made to leave for that one."""
    policy, row = ledger.world.scenario.policy, ledger.world.running.get(victim)
    if row is None or row.stopping_until is not None:
        yield "it is not running"
        return
    if not row.preemptible:
        yield "it is not preemptible"
    if policy.min_runtime is not None and ledger.world.scenario.now < row.started + policy.min_runtime:
        yield "it is younger than min_runtime"
    if way == "shrink" and all(role.min_workers is None for role in row.roles):
        yield "it is not elastic"
    if way == "move":
        if policy.move_running_jobs == "never":
            yield "running jobs are not moved"
    elif row.queue != owner.queue:
        yield from Quotas(ledger).unlawful(row.queue, owner)
    else:
        yield from _same_queue(ledger, row, owner)


def _same_queue(ledger: Ledger, row: Running, owner: JobRow) -> Iterator[str]:
    if ledger.world.scenario.policy.preempt_same_queue == "never":
        yield "nobody gives way inside a queue"
    elif row.priority >= owner.priority:
        yield "its priority is not lower"
