"""The candidates of one pass in their order: made from a draft and what the queues have used so far.

The order itself is `order`'s; what each shares is `usage`'s.
"""

from __future__ import annotations

from reconciler.model.lifecycle import JobState
from reconciler.planner.draft import Draft
from reconciler.planner.order import FairLine, FixedLine, Line, pass_order, starved_before
from reconciler.planner.usage import Accounts, FairShares


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
    return FairLine(pending, draft.quotas, shares, draft.line, draft.types_for, starved_before(rules, draft.now))
