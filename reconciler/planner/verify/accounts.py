"""Are the accounts of past use right, and the record of how long attempts ran?

Rule book §4. Accounts move only when a decision is committed, to the whole second; what was used above the guarantee
halves every half-life. Worked out with decimal fractions, where the planner counts in fixed point. §11: each end is
counted once, in the sixteenth of its limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import SECOND, GpuType
from reconciler.planner.verify.case import FINAL, Breach, Case, Violation
from reconciler.planner.verify.quotas import LOST, TOP, bound, tree_of

_EXACT: Final = Context(prec=50)
_TOLERANCE: Final = Decimal("1e-8")


def accounts(case: Case) -> Iterator[Violation]:
    """The accounts follow from those before, and the rates from who holds what now."""
    old, new = case.previous, case.next
    if new.jobs == old.jobs or not case.changed:
        if (new.usage, new.usage_as_of) != (old.usage, old.usage_as_of):
            yield Violation(code=Breach.WRONG_USAGE, detail="advanced although nothing was decided")
        return
    span = max(0, new.decided_at - old.usage_as_of) // SECOND
    if new.usage_as_of != old.usage_as_of + span * SECOND:
        yield Violation(code=Breach.WRONG_USAGE, detail=f"as of {new.usage_as_of}")
        return
    before = {(str(row.queue), row.gpu_type): row for row in old.usage}
    after = {(str(row.queue), row.gpu_type): row for row in new.usage}
    rates = _rates(case)
    half = Decimal(max(1, case.desired.scheduling.half_life // SECOND))
    left = _EXACT.power(Decimal(2), _EXACT.divide(Decimal(-span), half))
    grown = _EXACT.multiply(_EXACT.divide(half, _EXACT.ln(Decimal(2))), 1 - left)
    for key in sorted({*before, *after, *rates}):
        row, was = after.get(key), before.get(key)
        acc, rate = (row.acc, row.rate) if row else (0, 0)
        due = _EXACT.multiply(Decimal(was.acc), left) + _EXACT.multiply(Decimal(was.rate), grown) if was else Decimal(0)
        if rate != rates.get(key, 0) or abs(acc - due) > 2 + due * _TOLERANCE:
            yield Violation(
                code=Breach.WRONG_USAGE,
                detail=f"{key[0]}, {key[1]}: {acc} at {rate}, not {due:.0f} at {rates.get(key, 0)}",
            )


_COUNTED: Final = 128  # ends of a queue at which its counts are halved


def run_lengths(case: Case) -> Iterator[Violation]:
    """Each incarnation that ended now is counted in its queue, and nothing else is."""
    old, new = case.previous.run_lengths, case.next.run_lengths
    due = {str(row.queue): list(row.sixteenths) for row in old}
    for before, after in case.changed:
        part = _part_run(case, before, after)
        if before is None or part is None:
            continue
        row = due.setdefault(str(before.queue), [0] * 16)
        if sum(row) >= _COUNTED:
            row[:] = [count // 2 for count in row]
        row[part] += 1
    queues = case.desired.quotas.queues
    rows = {queue: row for queue, row in due.items() if not queues or not case.changed or queue in queues}
    if {str(row.queue): list(row.sixteenths) for row in new} != rows:
        yield Violation(code=Breach.WRONG_RUN_LENGTHS, detail=f"not {rows}")


def _part_run(case: Case, before: JobRecord | None, after: JobRecord | None) -> int | None:
    """The sixteenth of its limit in which an incarnation ended, if it did and has one."""
    job = case.desired.jobs.get(after.job) if after is not None else None
    if before is None or after is None or job is None or len({before.digest, after.digest, job.digest}) > 1:
        return None
    limit, ends = case.limit(job), after.state is JobState.FINISHED and after.outcome in FINAL
    if not ends or not before.state.holds_gpus or not limit:
        return None
    if after.outcome is Outcome.TIMED_OUT:
        return 15
    end = before.since if before.state is JobState.STOPPING else case.now
    ran = end - before.started if before.started is not None else 0
    return sum(16 * ran >= limit * part for part in range(1, 16))


def _rates(case: Case) -> dict[tuple[str, GpuType], int]:
    """Milli-GPUs that count from now on, by queue and type: what is held above the guarantee, scaled by class."""
    found: dict[tuple[str, GpuType], int] = {}
    for kind in sorted({node.shape.gpu_type for node in case.nodes.values()}):
        tree = tree_of(case, kind)
        held = tree.now.under
        weighted: Counter[str] = Counter()
        for record in case.next.jobs.values():
            gpus = bound(case, kind, record)
            job = case.desired.jobs.get(record.job)
            rank = case.priority(job) if job is not None else None
            for name in tree.path(record.queue) if gpus else ():
                weighted[name] += gpus * (rank.usage_permille if rank is not None else 1000)
        for name in weighted:
            has = held[name]
            excess = max(0, has - tree.guaranteed(name))
            if name != tree.top and excess and excess * weighted[name] // has:
                found[_label(name), kind] = excess * weighted[name] // has
    return found


def _label(name: str) -> str:
    """How the queue is called in the record."""
    return "orphaned" if name == LOST else name.removeprefix(TOP)
