"""How is the reconciler? One answer at a time: for the log, for `/healthz`, and for who is called at night."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from reconciler.errors import Fenced, GangOpsError, Unreachable
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.counting import counted
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import Instant
from reconciler.policy.previewed import RULE as PLAN_DIFFERS
from reconciler.runtime.reading import ReadDesired

STANDBY: Final = "Standby"
_TOLD = 3
"""Changes and jobs that a condition names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the reconciler says of itself. `stalled` needs a person, `remedy` tells them what to do; `since` is when
    this reason began."""

    ready: bool
    stalled: bool = False
    reason: str = "Applied"
    message: str = ""
    remedy: str = ""
    since: Instant = Instant(0)


def condition_of(read: ReadDesired, allocation: Allocation) -> Condition:
    """After a round that went well: what of the desired tree is not acted on, and who was kept from starting."""
    surprises = list(surprises_in(allocation))
    if surprises:
        told = "; ".join(f"{one.job} {one.reason.number('message')}" for one in surprises[:_TOLD])
        return Condition(
            ready=False, stalled=True, reason=PLAN_DIFFERS, message=told,
            remedy="Look at `gangops plan`; a merge whose commit has the new plan's trailers (`-o trailers`) goes on.",
        )  # fmt: skip
    if read.withheld:
        told = "; ".join(f"{one.path}, {one.brought}" for one in read.withheld[:_TOLD])
        message = f"{counted(len(read.withheld), 'change waits', 'changes wait')} for somebody with authority: {told}"
        remedy = f"For the first, {read.withheld[0].remedy}."
        return Condition(ready=True, reason="AuthorityMissing", message=message, remedy=remedy)
    if invalid := sum(one.is_error for one in read.diagnostics):
        message = f"{counted(invalid, 'problem')} in the desired tree; `gangops validate` names them"
        return Condition(ready=True, reason="InvalidDocuments", message=message)
    return Condition(ready=True)


def condition_after(err: GangOpsError) -> Condition:
    """After a round that failed; what heals by itself is no stall."""
    stalled = not isinstance(err, Unreachable | Fenced)
    return Condition(ready=False, stalled=stalled, reason=err.code, message=err.message, remedy=err.remedy)


def standing_by(generation: int) -> Condition:
    """Another reconciler leads, as far as nodes tell."""
    return Condition(
        ready=False, reason=STANDBY,
        message=f"follows generation {generation}: too few nodes call here to decide for them",
        remedy="Normal beside another reconciler. If this is the only one, look at the agents' links.",
    )  # fmt: skip


def surprises_in(allocation: Allocation) -> Iterator[JobRecord]:
    """Jobs kept from starting because somebody would pay whom no preview has shown."""
    for record in allocation.jobs.values():
        if record.reason.code is ReasonCode.POLICY_PLAN and record.reason.number("rule") == PLAN_DIFFERS:
            yield record
