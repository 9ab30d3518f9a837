"""A few big jobs that nobody can help must not keep the others from ever being looked at; and a world that nothing
happens in comes to rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.reasons import Reason, ReasonCode, reason, sentence
from reconciler.model.units import SECOND, Gpus, GpuType, Instant, JobKey, Nanoseconds
from reconciler.planner import effort, preemption
from reconciler.planner.decide import decide
from reconciler.planner.effort import Effort, Purse, turn_begins, was_passed_over
from tests.planner.worlds import H100, START, allocation, job, pending, queue, ready, running, world

NODES = 64
RULES = Scheduling(
    order="priorityThenAge", cooldown=Nanoseconds(0), backfill="none", preempt_other_queues="reclaim",
    reclaim_straddlers=False, move_to_start="never",
)  # fmt: skip
HOPELESS = range(2, 34)  # nodes that one of them needs


def guaranteeing(name: str, gpus: int) -> Queue:
    return replace(queue(name), guaranteed={GpuType(H100): Gpus(gpus)})


def besieged(hopeless: range = HOPELESS) -> tuple[Desired, Observed, Allocation]:
    """Every node is full of eight borrowers of eight queues; of `b0` only one may go, so one node can be emptied and no
    two. Jobs that need more come first in the line; the last wants just one node."""
    names = [f"n{number:03}" for number in range(NODES)]
    spines = {"s0": {f"r{number}": names[number * 32 : number * 32 + 32] for number in range(NODES // 32)}}
    kept = {"b0": NODES - 1}
    queues = [queue("root", None), guaranteeing("own", NODES * 4)]
    queues += [guaranteeing(f"b{number}", kept.get(f"b{number}", 0)) for number in range(8)]
    borrowers: list[tuple[Job, dict[str, list[int]]]] = [
        (job(f"b{gpu}/j{number:03}", 1), {name: [gpu]}) for number, name in enumerate(names) for gpu in range(8)
    ]
    # By name they come first: all are seen for the first time at once.
    big = [job(f"own/big{size:02}", 8 * size, dims={"tensor": 8, "data": size}, required={"tensor": "node"})
           for size in hopeless]  # fmt: skip
    small = job("own/one", 8, required={"job": "node"})
    desired = world(spines, jobs=[*(one for one, _ in borrowers), *big, small], queues=queues, rules=RULES)
    records: list[JobRecord] = [running(desired, one.key, place) for one, place in borrowers]
    return desired, ready(desired, *records), allocation(desired, *records)


def rounds(desired: Desired, seen: Observed, known: Allocation, count: int) -> Iterator[Allocation]:
    """The allocations of so many rounds, a second apart, in which nothing is seen to happen."""
    for number in range(count):
        known = decide(desired, seen, known, Instant(START + number * SECOND)).allocation
        yield known


def test_the_one_who_can_be_helped_is_helped_whoever_stands_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "_SHARE", {Purse.LINE: 20_000, Purse.PASSED_OVER: 10_000, Purse.TURN: 10_000})
    desired, seen, known = besieged()
    states = []
    for after in rounds(desired, seen, known, 40):
        states.append(after.jobs[JobKey("own/one")].state)
        if states[-1] is JobState.PROMISED:
            break
        assert after.jobs[JobKey("own/one")].reason.code is ReasonCode.SEARCH_LIMIT  # it is not hidden
    assert states[0] is JobState.PENDING, "the hopeless ones do not use up a round's steps: this proves nothing"
    assert states[-1] is JobState.PROMISED, states


def test_who_was_helped_by_nobody_gives_way_to_those_passed_over_until_all_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each round looks for some who were passed over before; then everyone has another reason and nothing changes."""
    monkeypatch.setattr(effort, "_SHARE", {Purse.LINE: 20_000, Purse.PASSED_OVER: 10_000, Purse.TURN: 10_000})
    desired, seen, known = besieged()
    untried = []
    for after in rounds(desired, seen, known, 40):
        untried.append(sum(r.reason.code is ReasonCode.SEARCH_LIMIT for r in after.jobs.values()))
        known = after
    assert untried[0] > 0
    assert all(later < earlier or not later for earlier, later in pairwise(untried)), untried
    assert untried[-1] == 0
    assert not decide(desired, seen, known, Instant(START + 3600 * SECOND)).changes


def test_a_search_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "STEPS", 1_000)
    desired, seen, known = besieged(range(8, 9))
    after = decide(desired, seen, known, START).allocation
    why = after.jobs[JobKey("own/big08")].reason
    assert why.number("proved") == "false"
    assert sentence(why).endswith("; not proved, the search ran out of steps")


def test_what_could_never_fit_costs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes with a gang that has to stay are no use to anyone: told once for all who are alike, without a step."""
    desired, seen, known = besieged(range(0))
    names = [node.name for node in desired.inventory.nodes]
    stays = [job(f"b0/j{number:03}", 1, "high") for number in range(NODES)]
    shape = {"tensor": "node", "job": "rack"}
    wide = [job(f"own/wide{size}", 8 * size, dims={"tensor": 8, "data": size}, required=shape) for size in range(2, 12)]
    jobs = {**desired.jobs, **{one.key: one for one in (*stays, *wide)}}
    desired = replace(desired, jobs=dict(sorted(jobs.items())))
    fixed = [running(desired, one.key, {str(name): [0]}) for one, name in zip(stays, names, strict=True)]
    known = allocation(desired, *(r for k, r in known.jobs.items() if not k.startswith(("b0/", "own/"))), *fixed,
                       *(pending(desired, one.key) for one in wide))  # fmt: skip
    spent: list[int] = []
    monkeypatch.setattr(Effort, "spend", lambda _, steps: spent.append(steps))
    after = decide(desired, seen, known, START).allocation
    assert {after.jobs[one.key].state for one in wide} == {JobState.PENDING}
    assert not spent


def test_purses() -> None:
    """First the line's steps, then those of who was passed over, then those of whose turn it is; and no more."""
    share = effort.ROUND // 4
    steps = Effort()
    assert steps.begin(passed_over=False, in_turn=False)
    steps.spend(2 * share)
    assert not steps.begin(passed_over=False, in_turn=False)
    assert steps.is_exhausted
    assert steps.begin(passed_over=True, in_turn=False)
    steps.spend(share + 5)
    assert not steps.begin(passed_over=True, in_turn=False)
    assert steps.begin(passed_over=True, in_turn=True)
    steps.spend(share)
    assert not steps.begin(passed_over=True, in_turn=True)
    assert steps.spent == effort.ROUND + 5


def test_everybodys_turn_comes() -> None:
    """In twice as many seconds as wait, a turn begins at every place of the line, or at most two before it."""
    for waiting in (1, 2, 7, 100, 1_000):
        begins = {turn_begins(Instant(START + second * SECOND), waiting) for second in range(2 * waiting)}
        assert all(0 <= place < waiting for place in begins)
        assert all(begins & {place, place - 1, place - 2} for place in range(waiting)), waiting


@pytest.mark.parametrize(
    ("why", "passed_over"),
    [
        pytest.param(Reason(code=ReasonCode.CAPACITY), True, id="new"),
        pytest.param(reason(ReasonCode.SEARCH_LIMIT, steps=7), True, id="nobody looked"),
        pytest.param(reason(ReasonCode.CAPACITY, need=8), False, id="looked at"),
    ],
)
def test_who_was_passed_over(why: Reason, passed_over: bool) -> None:
    desired = world(jobs=[job("nlp/a", 8)])
    assert was_passed_over(replace(pending(desired, "nlp/a"), reason=why)) is passed_over
