"""Does a plan keep the eight rules that hold in every case? Rules 1, 2 and 5 to 8: places, and what stays.

Judged from the scenario and the plan alone. Rules 3 and 4, about those who make room, are in `harm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from reconciler.documents.scenario import JobRow
from reconciler.model.counting import counted
from reconciler.runtime.scenario.fits import fits, fits_fewer
from reconciler.runtime.scenario.harm import free_first, victims
from reconciler.runtime.scenario.ledger import Ledger, add
from reconciler.runtime.scenario.plan import Plan
from reconciler.runtime.scenario.quotas import Quotas
from reconciler.runtime.scenario.world import (
    TIERS,
    Seats,
    World,
    gpus_of,
    resized,
    roles_of,
    seats_by_node,
    smallest,
    workers_of,
)


def broken_rules(world: World, plan: Plan) -> list[str]:
    """One sentence for each breach, beginning with the number of the rule."""
    ledger = Ledger(world, plan)
    return [f"rule {number}: {sentence}" for number, rule in _RULES for sentence in rule(ledger)]


# --- 1 and 2: the gang itself ---


def _all_or_nothing(ledger: Ledger) -> Iterator[str]:
    """All workers, at least `min_workers`, or none; who waits holds nothing."""
    for job, row, seats in ledger.placed():
        least, most = gpus_of(smallest(row)), gpus_of(roles_of(row))
        if not least <= len(seats) <= most or gpus_of(resized(row, len(seats))) != len(seats):
            yield f"{job} gets {counted(len(seats), 'GPU')}; its workers need {least if least == most else f'{least} to {most}'}"
    for job, waiting in ledger.plan.waiting.items():
        if waiting.holds and job in ledger.world.pending:
            yield f"{job} waits and holds {counted(waiting.holds, 'GPU')}"


def _hard_rules(ledger: Ledger) -> Iterator[str]:
    """`required`, `groups`, `same_gpu_type`, and the types of each role."""
    world = ledger.world
    for job, row, seats in ledger.placed():
        rule, workers = row.rule, workers_of(row, seats)
        if rule.required is not None and (used := _spread(world, rule.required, seats)) > 1:
            yield f"{job} requires one {rule.required} and is in {used}"
        for group in rule.groups:
            for first in range(0, len(workers), group.size):
                nodes = [node for worker in workers[first : first + group.size] for node in worker]
                if _spread(world, group.one, nodes) > 1:
                    yield f"workers {first} to {first + group.size - 1} of {job} are not in one {group.one}"
        types = {world.nodes[node].row.type for node in seats}
        if rule.same_gpu_type and len(types) > 1:
            yield f"{job} uses {', '.join(sorted(types))} and wants one GPU type"
        yield from _wrong_types(world, row, seats)


def _wrong_types(world: World, row: JobRow, seats: Seats) -> Iterator[str]:
    allowed = [role.gpu_types for role in resized(row, len(seats)) for _ in range(role.workers)]
    for worker, kinds in zip(workers_of(row, seats), allowed, strict=False):
        wrong = {world.nodes[node].row.type for node in worker} - set(kinds or world.types)
        if wrong:
            yield f"{row.job} may not use {', '.join(sorted(wrong))}"
            return


def _preferences(ledger: Ledger) -> Iterator[str]:
    """`preferred` is widened no further than needed, and with the fewest domains. Starts from free capacity alone."""
    world = ledger.world
    for job, started in ledger.plan.started.items():
        row = world.jobs[job]
        preferred = row.rule.preferred
        if preferred is None or started.outcome != "start" or ledger.may_be_reserved:
            continue
        types = {world.nodes[node].row.type for node in started.seats}  # which of its types goes first is its order
        free = {node: gpus for node, gpus in ledger.free_for(job).items() if world.nodes[node].row.type in types}
        roles = resized(row, len(started.seats))
        reached = next(tier for tier in TIERS if _spread(world, tier, started.seats) == 1)
        between = TIERS[TIERS.index(preferred) : TIERS.index(reached)]
        narrower = next((tier for tier in between if fits(world, roles, row.rule, free, inside=tier)), None)
        used = _spread(world, preferred, started.seats)
        if narrower is not None:
            yield f"{job} fits one {narrower} and is spread over a {reached}"
        elif used > 1 and fits_fewer(world, roles, row.rule, free, inside=reached, domains=used):
            yield f"{job} uses {counted(used, 'domain')} of {preferred} where fewer suffice"


def _spread(world: World, tier: str, nodes: Iterable[str]) -> int:
    return len({world.domain(tier, node) for node in nodes})


# --- 5 and 6: what stays, and what is not to be had ---


def _stays(ledger: Ledger) -> Iterator[str]:
    """Running jobs that the plan does not name keep exactly their nodes."""
    plan, world = ledger.plan, ledger.world
    for job, row in world.running.items():
        if world.is_broken(job) or ledger.leaves(job):
            continue
        if job in plan.kept and seats_by_node(plan.kept[job]) != row.placement:
            yield f"{job} keeps running, and not on the same GPUs"
        elif plan.outcome(job) not in {"keep", "evict", "move", "shrink"}:
            yield f"{job} ran and no longer does"


def _ready(ledger: Ledger) -> Iterator[str]:
    """No new work on nodes that are not ready, or that have maintenance before the work would end."""
    for job, row, seats in ledger.placed():
        gained = ledger.gained(job, seats)
        for node in gained:
            state = ledger.world.nodes[node].row.state
            if state == "down" or (gained[node] and state != "ready"):
                yield f"{job} is put on {node}, which is {state}"
            elif gained[node] and not ledger.takes(node, row):
                yield f"{job} is put on {node}, which has maintenance before it ends"


def _promised(ledger: Ledger) -> Iterator[str]:
    """Capacity that was promised is nobody else's."""
    after: dict[str, int] = {}
    for seats in ledger.afterwards().values():
        add(after, seats_by_node(seats))
    for node, gpus in ledger.open_promises().items():
        if gpus and after.get(node, 0) + gpus > ledger.world.nodes[node].row.gpus:
            yield f"{counted(gpus, 'GPU')} of {node}: promised to one, and given to others"


def _held(ledger: Ledger) -> Iterator[str]:
    """Nothing without an end starts behind a starved job on capacity without which that one can never start."""
    world, plan = ledger.world, ledger.plan
    limit, now = world.scenario.policy.hold_for_starved_after, world.scenario.now
    waiting = [row for row in world.scenario.pending if row.job in plan.waiting]
    for first in waiting:
        if limit is None or now - first.submitted < limit:
            continue
        for job, started in plan.started.items():
            row = world.pending.get(job)
            if row is None or row.time_limit is not None or _line(row) < _line(first):
                continue
            taken = seats_by_node(started.seats)
            rest = {
                node: world.nodes[node].row.gpus - taken.get(node, 0)
                for node in world.nodes
                if ledger.takes(node, first)
            }
            whole = {node: world.nodes[node].row.gpus for node in rest}
            roles = smallest(first)
            if fits(world, roles, first.rule, whole) and not fits(world, roles, first.rule, rest):
                yield f"{job} starts on capacity that is held for {first.job}"


def _line(row: JobRow) -> tuple[int, int]:
    return (-row.priority, getattr(row, "submitted", 0))


# --- 7 and 8: numbers ---


def _quotas(ledger: Ledger) -> Iterator[str]:
    """Within the limits of each queue; what nobody is guaranteed is for all within theirs."""
    accounts = Quotas(ledger)
    yield from accounts.exceeded()
    for job, waiting in ledger.plan.waiting.items():
        row = ledger.world.pending.get(job)
        asks = row is not None and row.preemptible and waiting.reason_class == "quota"
        if row is not None and asks and accounts.room(row.queue) >= gpus_of(smallest(row)):
            yield f"{job} waits for quota, and {row.queue} has room for it"


def _overfull(ledger: Ledger) -> Iterator[str]:
    """No node gives more than it has, now or when the plan is done; the GPUs of a worker are on one node."""
    now, after = dict(ledger.used), dict[str, int]()
    for job, row, seats in ledger.placed():
        if ledger.plan.outcome(job) in {"start", "repair", "restart", "move"}:
            add(now, ledger.gained(job, seats))
        if any(len(set(worker)) > 1 for worker in workers_of(row, seats)):
            yield f"a worker of {job} is on more than one node"
    for seats in ledger.afterwards().values():
        add(after, seats_by_node(seats))
    for node, spot in ledger.world.nodes.items():
        most = max(now.get(node, 0), after.get(node, 0))
        if most > spot.row.gpus:
            yield f"{node} has {counted(spot.row.gpus, 'GPU')} and gives {most}"


_RULES: Final[tuple[tuple[int, Callable[[Ledger], Iterator[str]]], ...]] = (
    (1, _all_or_nothing),
    (2, _hard_rules),
    (2, _preferences),
    (3, free_first),
    (4, victims),
    (5, _stays),
    (6, _ready),
    (6, _promised),
    (6, _held),
    (7, _quotas),
    (8, _overfull),
)
