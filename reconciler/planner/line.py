"""The candidates of one pass in their order: made from a draft and what the queues have used so far.

The order itself is `order`'s; what each shares is `usage`'s.
"""

from __future__ import annotations

from reconciler.model.allocation import Allocation
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.units import GpuType, Instant
from reconciler.planner.draft import Draft
from reconciler.planner.order import FairLine, FixedLine, Line, pass_order, starved_before
from reconciler.planner.quota import Quotas
from reconciler.planner.usage import Accounts, FairShares, Standings, brought_to


def standings_of(
    desired: Desired, previous: Allocation, quotas: Quotas, kinds: tuple[GpuType, ...], at: Instant
) -> Standings:
    """How the queues stand to each other at an instant; nothing where shares play no part in the order."""
    rules = desired.scheduling
    if rules.order != "fairShare":
        return ()
    accounts, _ = brought_to(previous.usage, previous.usage_as_of, at, rules.half_life)
    return FairShares(quotas, accounts, kinds, rules.charge_ahead).standings()


def line_of(draft: Draft, accounts: Accounts) -> Line:
    """Pending jobs in the order of the pass; none while admissions are frozen."""
    pending = []
    for record in draft.records.values():
        if record.state is JobState.PENDING and not draft.desired.blocked:
            job = draft.job(record)
            if job is not None:
                pending.append((record, job))
    rules = draft.desired.scheduling
    if rules.order != "fairShare" or not pending:
        return FixedLine(pass_order(pending, draft.desired.classes, rules, draft.now))
    shares = FairShares(draft.quotas, accounts, draft.ground.types, rules.charge_ahead)
    return FairLine(pending, draft.quotas, shares, draft.line, draft.access.types_for, starved_before(rules, draft.now))
