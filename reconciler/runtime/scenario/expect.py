"""Is this plan the answer that the scenario expects? Each difference as one sentence, with both sides.

`reason.names` is a measure of how useful an explanation is, and is counted apart: it never fails a case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Final, TypeVar

from reconciler.documents.quantities import print_instant
from reconciler.documents.scenario import Answer, Where
from reconciler.model.counting import counted
from reconciler.runtime.scenario.ledger import Ledger
from reconciler.runtime.scenario.numbers import ALIASES, numbers_of
from reconciler.runtime.scenario.plan import Plan, given_up
from reconciler.runtime.scenario.world import Seats, World, seats_by_node, workers_of

_CLOSE: Final = Fraction(1, 1000)
_T = TypeVar("_T")


def differences(world: World, plan: Plan) -> list[str]:
    """What the plan has that the scenario does not expect, or the other way round."""
    found = [*_displaced(world, plan)]
    for job, answer in world.scenario.expect.jobs.items():
        found += (f"{job}: {sentence}" for sentence in _one_job(world, plan, job, answer))
    return [*found, *_numbers(Ledger(world, plan))]


def missing_words(world: World, plan: Plan) -> dict[str, tuple[str, ...]]:
    """For each job whose reason is asked for: the words that its explanation should have and has not."""
    found = {}
    for job, answer in world.scenario.expect.jobs.items():
        if answer.reason is not None and answer.reason.names:
            text = plan.waiting[job].text.lower() if job in plan.waiting else ""
            found[job] = tuple(word for word in answer.reason.names if word.lower() not in text)
    return found


# --- the plan as a whole ---


def _displaced(world: World, plan: Plan) -> Iterator[str]:
    expect = world.scenario.expect
    if (evict := expect.evict) is not None:
        accepted = [sorted(names) for names in _choices(evict.none, evict.exactly, evict.one_of, ())]
        if sorted(plan.evicted) not in accepted:
            yield f"evict: expected {_either(accepted)}, got {sorted(plan.evicted)}"
    if (move := expect.moves) is not None:
        moves = {job: seats_by_node(one.seats) for job, one in plan.moved.items()}
        if moves not in (places := _choices(move.none, move.exactly, move.one_of, {})):
            yield f"moves: expected {_either(places)}, got {moves}"
    if (shrink := expect.shrink) is not None:
        workers = given_up(world, plan)
        if workers not in (sizes := _choices(shrink.none, shrink.exactly, shrink.one_of, {})):
            yield f"shrink: expected {_either(sizes)}, got {workers}"


def _choices(none: bool, exactly: _T | None, one_of: Sequence[_T] | None, nothing: _T) -> list[_T]:
    """All answers that are right: nobody, exactly these, or one of several."""
    found = [nothing] if none else []
    found += [] if exactly is None else [exactly]
    return [*found, *(one_of or ())]


def _either(choices: Iterable[object]) -> str:
    return " or ".join(str(choice) for choice in choices)


# --- one job ---


def _one_job(world: World, plan: Plan, job: str, answer: Answer) -> Iterator[str]:
    waiting, seats = plan.waiting.get(job), plan.seats(job)
    if (got := plan.outcome(job)) != answer.outcome:
        why = f" ({waiting.text})" if waiting is not None and waiting.text else ""
        yield f"expected {answer.outcome}, got {got}{why}"
    if answer.where and seats is None:
        yield "has no place to compare"
    for where in answer.where if seats is not None else ():
        yield from _place(world, job, seats or (), where)
    if (
        answer.holds is not None
        and (held := waiting.holds if waiting is not None else len(seats or ())) != answer.holds
    ):
        yield f"expected to hold {counted(answer.holds, 'GPU')}, holds {held}"
    if answer.reason is not None and waiting is not None and waiting.reason_class not in answer.reason.class_:
        classes = " or ".join(answer.reason.class_)
        yield f"expected a reason of class {classes}, got {waiting.reason_class or 'none'} ({waiting.text})"
    if answer.earliest_start is not None:
        earliest = waiting.earliest if waiting is not None else None
        if earliest != answer.earliest_start:
            got = "none" if earliest is None else print_instant(earliest)
            yield f"expected the earliest start {print_instant(answer.earliest_start)}, got {got}"


def _place(world: World, job: str, seats: Seats, where: Where) -> Iterator[str]:
    """Every statement of one entry that the place does not keep."""
    used = {tier: {world.domain(tier, node) for node in seats} for tier in ("node", "rack", "spine")}
    gpus = seats_by_node(seats)
    if where.nodes is not None and gpus != where.nodes:
        yield f"expected {where.nodes}, is on {gpus}"
    for tier, names in (where.exactly or {}).items():
        if used[tier] != set(names):
            yield f"expected exactly the {tier} {', '.join(names)}, uses {_listed(used[tier])}"
    for tier, names in (where.within or {}).items():
        if not used[tier] <= set(names):
            yield f"expected within the {tier} {', '.join(names)}, uses {_listed(used[tier])}"
    for tier, count in (where.count or {}).items():
        if len(used[tier]) != count:
            yield f"expected {counted(count, f'{tier} domain')}, uses {_listed(used[tier])}"
    if where.one is not None and len(used[where.one]) != 1:
        yield f"expected one {where.one}, uses {_listed(used[where.one])}"
    if where.avoids is not None and (met := used["node"] & set(where.avoids)):
        yield f"expected to avoid {_listed(met)}"
    yield from _ranks(world, workers_of(world.jobs[job], seats), where)


def _ranks(world: World, workers: list[Seats], where: Where) -> Iterator[str]:
    """Statements about which worker is where."""
    homes = [worker[0] for worker in workers]
    for tier, wanted in (where.per or {}).items():
        counts = seats_by_node(world.domain(tier, home) for home in homes)
        if counts != wanted:
            yield f"expected workers by {tier} {wanted}, has {counts}"
    if where.groups is not None:
        size, tier = where.groups.size, where.groups.one
        for first in range(0, len(homes), size):
            domains = {world.domain(tier, home) for home in homes[first : first + size]}
            if len(domains) > 1:
                yield f"expected workers {first} to {first + size - 1} in one {tier}, they are in {_listed(domains)}"
    if where.ranks_contiguous is not None:
        run = [world.domain(where.ranks_contiguous, home) for home in homes]
        if sum(a != b for a, b in pairwise(run)) >= len(set(run)):
            yield f"expected unbroken runs of ranks in each {where.ranks_contiguous}, has {' '.join(run)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


# --- numbers ---


def _numbers(ledger: Ledger) -> Iterator[str]:
    known = numbers_of(ledger)
    for name, wanted in ledger.world.scenario.expect.numbers.items():
        got = known.get(ALIASES.get(name, name))
        if got is None:
            yield f"numbers: {name} is none that is computed; there are {', '.join(sorted(known))}"
        elif isinstance(wanted, dict) != isinstance(got, dict):
            yield f"numbers: {name} is {'given by queue' if isinstance(got, dict) else 'one number'}"
        elif isinstance(wanted, dict) and isinstance(got, dict):
            for queue, number in wanted.items():
                yield from _compared(f"{name}.{queue}", Fraction(number), got.get(queue))
        elif not isinstance(wanted, dict) and not isinstance(got, dict):
            yield from _compared(name, Fraction(wanted), got)


def _compared(name: str, wanted: Fraction, got: Fraction | None) -> Iterator[str]:
    if got is None:
        yield f"numbers: {name} is not known"
    elif abs(wanted - got) > _CLOSE:
        yield f"numbers: expected {name} {float(wanted):g}, got {float(got):.4f}"
