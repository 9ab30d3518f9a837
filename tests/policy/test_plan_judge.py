"""What a decision would do, as policies over plans see it; and what becomes of it when they do not want it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.allocation import Allocation
from reconciler.model.decision import Decision, Denial
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import JobObservation, Observed
from reconciler.model.reasons import ReasonCode, sentence
from reconciler.model.units import SECOND, Instant, JobKey
from reconciler.planner.decide import decide
from reconciler.planner.verify import violations
from reconciler.planner.veto import VETO_ROUNDS
from reconciler.policy.plan import judge_of, plan_value
from tests.planner.worlds import START, allocation, job, pending, ready, running, world
from tests.policy.house import policies, policy_text, rule

HOUR = 3600 * SECOND
NOW = Instant(START + HOUR)
DENIED = Denial(policy="house", rule="No", message="not today")


Inputs = tuple[Desired, Observed, Allocation, Instant]


def starts(count: int) -> Inputs:
    """Four nodes of 8 GPUs, idle, and so many jobs of 8 that wait."""
    desired = world(jobs=[job(f"nlp/j{n}", 8) for n in range(count)])
    return desired, ready(desired), allocation(desired, *(pending(desired, f"nlp/j{n}") for n in range(count))), NOW


def full() -> Inputs:
    """Four nodes, each with a job of low priority, and two urgent jobs of 16 that wait."""
    spots = {f"nlp/low{n}": {f"gpu-00{n}": 8} for n in range(1, 5)}
    desired = world(jobs=[*(job(key, 8, "low") for key in spots), job("nlp/a", 16), job("nlp/b", 16)])
    records = [running(desired, key, place) for key, place in spots.items()]
    observed = ready(desired, *records)
    saved = {JobKey(k): JobObservation(job=JobKey(k), attempt=1, checkpoint=START) for k in spots}
    waiting = [pending(desired, "nlp/a"), pending(desired, "nlp/b")]
    return desired, replace(observed, jobs=saved), allocation(desired, *records, *waiting), NOW


def states(decision: Decision) -> dict[str, str]:
    return {str(key): record.state.value for key, record in decision.allocation.jobs.items()}


def test_a_judge_that_wants_everything_changes_nothing() -> None:
    for inputs in (starts(3), full()):
        assert decide(*inputs, lambda _: ()) == decide(*inputs)


def test_the_last_that_disturbs_others_is_held_first() -> None:
    inputs = full()
    free = decide(*inputs)
    assert sum(r.preemptor is not None for r in free.allocation.jobs.values()) == 4
    text = policy_text(rule("plan.preemptions.size() <= 2", reason="Few"), match="kinds: [Plan]")
    made = decide(*inputs, judge_of(policies(text), inputs[0], inputs[2]))
    held = made.allocation.jobs[JobKey("nlp/b")]
    assert (states(made)["nlp/a"], held.state) == ("Promised", JobState.HELD)
    assert held.reason.code is ReasonCode.POLICY_PLAN
    assert sentence(held.reason) == "policy house denies what its start would do (Few): no"
    assert sum(r.preemptor is not None for r in made.allocation.jobs.values()) == 2
    assert violations(inputs[0], inputs[1], inputs[2], made.allocation) == ()


def test_without_side_effects_the_last_that_started_is_held() -> None:
    asked: list[int] = []

    def two_at_most(decision: Decision) -> tuple[Denial, ...]:
        placed = sum(r.state is JobState.STARTING for r in decision.allocation.jobs.values())
        asked.append(placed)
        return (DENIED,) if placed > 2 else ()

    made = decide(*starts(4), two_at_most)
    assert asked == [4, 3, 2]
    assert states(made) == {"nlp/j0": "Starting", "nlp/j1": "Starting", "nlp/j2": "Held", "nlp/j3": "Held"}


def test_a_judge_that_wants_nothing_ends_with_nothing_started_and_is_bounded() -> None:
    asked: list[int] = []

    def never(decision: Decision) -> tuple[Denial, ...]:
        asked.append(1)
        return (DENIED,)

    desired = world(jobs=[job(f"nlp/j{n}", 1) for n in range(30)])
    records = [pending(desired, f"nlp/j{n}") for n in range(30)]
    made = decide(desired, ready(desired), allocation(desired, *records), NOW, never)
    assert len(asked) <= VETO_ROUNDS + 2
    assert {r.state for r in made.allocation.jobs.values()} == {JobState.HELD}
    assert {r.reason.code for r in made.allocation.jobs.values()} == {ReasonCode.POLICY_PLAN}


def test_stops_cannot_be_vetoed() -> None:
    desired = world(jobs=[])
    gone = running(world(jobs=[job("nlp/x", 8)]), "nlp/x", {"gpu-001": 8})
    asked: list[Decision] = []

    def never(decision: Decision) -> tuple[Denial, ...]:
        asked.append(decision)
        return (DENIED,)

    made = decide(desired, ready(desired, gone), allocation(desired, gone), NOW, never)
    assert states(made) == {"nlp/x": "Stopping"}
    assert asked == []


def test_a_hold_is_looked_at_anew_and_costs_no_commit_while_it_stands() -> None:
    desired, observed, before, now = starts(1)
    first = decide(desired, observed, before, now, lambda _: (DENIED,))
    again = decide(desired, observed, first.allocation, Instant(NOW + SECOND), lambda _: (DENIED,))
    assert not again.changed
    free = decide(desired, observed, first.allocation, Instant(NOW + SECOND))
    assert states(free) == {"nlp/j0": "Starting"}


def test_the_plan_has_its_numbers() -> None:
    desired, observed, before, now = full()
    plan = plan_value(decide(desired, observed, before, now), before, desired)
    assert [row["job"] for row in plan["preemptions"]] == ["nlp/low1", "nlp/low2", "nlp/low3", "nlp/low4"]
    assert {row["preemptor"] for row in plan["preemptions"]} == {"nlp/a", "nlp/b"}
    assert [(row["job"], row["gpus"], row["queue"]) for row in plan["placed"]] == [
        ("nlp/a", 16, "nlp"),
        ("nlp/b", 16, "nlp"),
    ]
    assert plan["lostGpuHours"] == 32.0
    assert plan["gpus"]["capacity"] == {"before": before.metrics.capacity, "after": 32}


@pytest.mark.parametrize(
    ("expression", "denied"),
    [
        ("plan.preemptions.size() <= 3", True),
        ("plan.preemptions.size() <= 4", False),
        ("plan.lostGpuHours < 20.0", True),
        ("plan.lostGpuHours <= 32.0", False),
        ("plan.phi.after < 0.2", False),
        ("plan.preemptions.all(p, p.queue == 'nlp' && p.lostGpuHours <= 8.0)", False),
        ("plan.preemptions.exists(p, p.job == 'nlp/low3')", False),
        ("plan.nope == 1", True),
    ],
)
def test_rules_over_plans(expression: str, *, denied: bool) -> None:
    desired, observed, before, now = full()
    judge = judge_of(policies(policy_text(rule(expression), match="kinds: [Plan]")), desired, before)
    assert judge is not None
    assert bool(judge(decide(desired, observed, before, now))) is denied


def test_a_warning_denies_no_plan() -> None:
    desired, observed, before, now = full()
    judge = judge_of(policies(policy_text(rule("false", action="Warn"), match="kinds: [Plan]")), desired, before)
    assert judge is not None
    assert judge(decide(desired, observed, before, now)) == ()
