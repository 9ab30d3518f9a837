"""May this decision be made at all? Policies over plans come in as an injected judge; what it denies is decided again.

Rule book §2.10. A denial holds back the job it names; one that names none, the last job of the pass that made others stop or move, or, if none did, the last
that started; held jobs only accumulate and reserve nothing. After VETO_ROUNDS all that disturb others are held, then
all candidates. Stops, releases and repairs are no job's start, so they cannot be vetoed, and it always ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.decision import Decision, Denial, Judge
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import Instant, JobKey
from reconciler.planner.usage import Standings

VETO_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Vetoes:
    """Jobs held back so far, each with the denial; `everyone` holds all candidates."""

    jobs: Mapping[JobKey, Denial] = field(default_factory=dict)
    everyone: Denial | None = None


NO_VETOES: Final = Vetoes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A decision, the jobs that its pass started or promised, in that order, and how the queues then stand to each
    other at an instant."""

    decision: Decision
    started: tuple[JobKey, ...]
    standings: Callable[[Instant], Standings]


def undenied(attempt: Callable[[Vetoes], Attempt], judge: Judge, previous: Allocation) -> Decision:
    """The first decision that the judge does not deny, with ever fewer jobs allowed to start."""
    vetoes = NO_VETOES
    for turn in range(VETO_ROUNDS + 2):
        made = attempt(vetoes)
        denials = judge(made.decision) if made.started else ()
        if not denials:
            return made.decision
        vetoes = _more(vetoes, turn, made, denials, previous)
    return attempt(vetoes).decision


def _more(
    vetoes: Vetoes, turn: int, made: Attempt, denials: tuple[Denial, ...], previous: Allocation
) -> Vetoes:  # fmt: skip
    denial = denials[0]
    named = {one.job: one for one in denials if one.job is not None and one.job in made.started}
    if named and turn < VETO_ROUNDS:
        return replace(vetoes, jobs={**vetoes.jobs, **named})
    if turn > VETO_ROUNDS:
        return replace(vetoes, everyone=denial)
    disturbing = _disturbing(made, previous)
    found = disturbing or made.started
    held = found if turn == VETO_ROUNDS else found[-1:]
    return replace(vetoes, jobs={**vetoes.jobs, **dict.fromkeys(held, denial)})


def _disturbing(made: Attempt, previous: Allocation) -> tuple[JobKey, ...]:
    """Those started jobs for which another gang was told to stop or move."""
    blamed = set()
    for change in made.decision.changes:
        record, before = made.decision.allocation.jobs.get(change.job), previous.jobs.get(change.job)
        if record is None or record.state is not JobState.STOPPING or record.preemptor is None:
            continue
        if before is None or before.state is not JobState.STOPPING:
            blamed.add(record.preemptor)
    return tuple(job for job in made.started if job in blamed)


def hold_vetoed(records: dict[JobKey, JobRecord], vetoes: Vetoes) -> None:
    """Take what was vetoed out of the line, with the reason."""
    everyone = records if vetoes.everyone is not None else ()
    for key in [*vetoes.jobs, *everyone]:
        record, denial = records.get(key), vetoes.jobs.get(key, vetoes.everyone)
        if record is not None and record.state is JobState.PENDING and denial is not None:
            why = reason(
                ReasonCode.POLICY_PLAN, policy=denial.policy, rule=denial.rule, message=denial.message
            )  # fmt: skip
            records[key] = replace(record, state=JobState.HELD, hold=None, reason=why)
