"""The arithmetic of queues: worked examples, and the formulas of the rule book over random trees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.job import OnPreempt
from reconciler.model.lifecycle import JobState
from reconciler.model.queue import Queue, QuotaTree
from reconciler.model.reasons import Reason, ReasonCode
from reconciler.model.units import Gpus, GpuType, JobKey, QueueName
from reconciler.planner.decide import decide
from reconciler.planner.quota import Quotas
from tests.planner.worlds import H100, START, allocation, job, pending, queue, ready, running, with_jobs, world

KIND = GpuType(H100)
NEW = JobKey("nlp/new")


def q(
    name: str,
    parent: str | None = "root",
    guaranteed: int | None = None,
    ceiling: int | None = None,
    lend: int | None = None,
) -> Queue:
    own = {} if guaranteed is None else {KIND: Gpus(guaranteed)}
    lent = None if lend is None else {KIND: Gpus(lend)}
    return replace(queue(name, parent, ceiling), guaranteed=own, lend=lent)


def quotas(*rows: Queue, total: int = 32, **use: int) -> Quotas:
    made = Quotas(QuotaTree(queues={row.name: row for row in rows}), {KIND: total})
    for name, gpus in use.items():
        made.hold(QueueName(name), KIND, gpus)
    return made


def room(made: Quotas, name: str) -> int:
    return made.room(QueueName(name), KIND)


ROOT = q("root", None)


@pytest.mark.parametrize(
    ("made", "rooms"),
    [
        pytest.param(quotas(ROOT, q("a"), q("b")), {"a": 32, "b": 32}, id="nobody is guaranteed anything"),
        pytest.param(quotas(ROOT, q("a", guaranteed=8), q("b"), b=20), {"a": 12, "b": 12}, id="all is lent: who comes first"),
        pytest.param(quotas(ROOT, q("a", guaranteed=8, lend=0), q("b"), b=20), {"a": 12, "b": 4}, id="kept back"),
        pytest.param(quotas(ROOT, q("a", guaranteed=8, lend=2), q("b")), {"a": 32, "b": 26}, id="lent in part"),
        pytest.param(quotas(ROOT, q("a", guaranteed=8, lend=0), q("b"), a=6), {"a": 26, "b": 24}, id="its own first"),
        pytest.param(quotas(ROOT, q("a", ceiling=10), q("b"), a=4), {"a": 6, "b": 28}, id="a ceiling"),
        pytest.param(quotas(q("root", None, ceiling=16), q("a"), q("b"), a=4), {"a": 12, "b": 12}, id="a ceiling above"),
        pytest.param(quotas(ROOT, q("a", ceiling=4), a=8), {"a": 0}, id="cut below its use"),
        pytest.param(quotas(ROOT, q("org", guaranteed=16, lend=0), q("t", "org", 4, lend=0), q("u", "org"), q("x")),
                     {"t": 32, "u": 28, "x": 16}, id="kept back inside what is kept back"),
        pytest.param(quotas(ROOT, q("org", guaranteed=16), q("t", "org", 4), org=10), {"org": 22, "t": 22}, id="jobs of an inner queue"),
        pytest.param(quotas(), {"any": 32}, id="no queues at all"),
        pytest.param(quotas(total=8, one=5, other=2), {"third": 1}, id="without queues all share one"),
        pytest.param(quotas(ROOT, q("a"), gone=12), {"a": 20}, id="a queue that is gone still uses GPUs"),
    ],
)  # fmt: skip
def test_room(made: Quotas, rooms: dict[str, int]) -> None:
    assert {name: room(made, name) for name in rooms} == rooms


def test_what_can_never_be_passed() -> None:
    made = quotas(ROOT, q("a", guaranteed=8, ceiling=12), q("b", guaranteed=10, lend=4), q("c"))
    most = {name: made.most(QueueName(name), KIND) for name in "abc"}
    assert most == {"a": 12, "b": None, "c": 26}
    assert made.most(QueueName("a"), KIND, fixed=True) == 8


def test_promises_count_and_what_stops_counts_until_it_is_gone() -> None:
    made = quotas(ROOT, q("a", ceiling=16), q("b"))
    a = QueueName("a")
    made.hold(a, KIND, 8, goes_on=False)
    made.keep(a, KIND, 12)
    assert room(made, "a") == 4
    assert made.breach(a, KIND, 4) is None
    assert made.breach(a, KIND, 5) is not None
    made.keep(a, KIND, -12)
    assert room(made, "a") == 8
    assert made.breach(a, KIND, 16) is not None
    assert made.breach(a, KIND, 16, promised=True) is None


def test_the_implicit_leaf_is_guaranteed_what_its_siblings_are_not() -> None:
    made = quotas(ROOT, q("org", guaranteed=16), q("t", "org", 4))
    leaf = made.branches.leaf(QueueName("org"))
    assert (made.branches.labels[leaf], made.branches.shares(KIND).guaranteed[leaf]) == ("org/", 12)


def test_guarantees_in_whole_nodes_are_judged_by_nodes_touched() -> None:
    row = replace(q("a", guaranteed=16), guaranteed_shape="node")
    sizes = dict.fromkeys(("n1", "n2", "n3"), 8)
    made = Quotas(QuotaTree(queues={r.name: r for r in (ROOT, row)}), {KIND: 32}, sizes)  # type: ignore[arg-type]  # names
    number = made.branches.leaf(row.name)
    for node in ("n1", "n2", "n3"):
        made.hold(row.name, KIND, 2, [node])  # type: ignore[list-item]  # a name
    assert made.is_above(number, KIND)
    assert (made.excess(number, KIND), made.spare(number, KIND)) == (0, -10)
    assert not made.within(number, KIND, 1)
    made.leave(row.name, KIND, 2, ["n3"])  # type: ignore[list-item]  # a name
    assert made.within(number, KIND, 8, ["n1"])  # type: ignore[list-item]  # a name
    assert not made.within(number, KIND, 8, ["n3"])  # type: ignore[list-item]  # a name


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Queue], list[tuple[str, int]]]:
    """A root of two or three queues, some with queues inside; guarantees that add up; how much each leaf wants to use."""
    rows, leaves = [ROOT], []
    for number in range(draw(st.integers(2, 3))):
        name, inside = f"q{number}", draw(st.integers(0, 2))
        own = [draw(st.integers(0, 5)) for _ in range(inside)]
        rows.append(q(name, "root", sum(own) + draw(st.integers(0, 4)), lend=draw(st.none() | st.integers(0, 8))))
        for child, gpus in enumerate(own):
            rows.append(q(f"{name}c{child}", name, gpus, lend=draw(st.none() | st.integers(0, 4))))
            leaves.append(f"{name}c{child}")
        leaves.append(name)
    asks = draw(st.lists(st.tuples(st.sampled_from(leaves), st.integers(1, 6)), max_size=12))
    return rows, asks


@settings(derandomize=True, deadline=None, database=None, max_examples=300)
@given(trees())
def test_whoever_is_within_room_leaves_everyone_what_is_kept_back(
    made: tuple[list[Queue], list[tuple[str, int]]],
) -> None:
    """Starts that stay within `room` never take more than there is, and what a queue does not lend is there for it."""
    rows, asks = made
    book = quotas(*rows, total=32)
    for name, gpus in asks:
        if gpus <= room(book, name):
            book.hold(QueueName(name), KIND, gpus)
        else:
            assert book.breach(QueueName(name), KIND, gpus) is not None
    shares, total = book.branches.shares(KIND), book.now.under(0, KIND)
    assert total <= 32
    for number in range(1, len(book.branches.names)):
        kept = shares.local[number] - book.now.under(number, KIND)
        if kept > 0 and not book.branches.children[number]:
            assert book.now.left(number, KIND) >= kept
            assert 32 - total >= kept


# --- as reasons ---


def waits(
    rows: list[Queue], gpus: int, *records: tuple[str, dict[str, int]], on_preempt: OnPreempt = OnPreempt.REQUEUE
) -> Reason:
    """Why nlp/new waits on 32 GPUs of which these jobs hold some."""
    new = job(NEW, gpus, on_preempt=on_preempt)
    desired = world(jobs=[new, *(job(key, sum(spot.values())) for key, spot in records)], queues=rows)
    held = [running(desired, key, spot) for key, spot in records]
    after = decide(desired, ready(desired, *held), allocation(desired, pending(desired, NEW), *held), START).allocation
    assert after.jobs[NEW].state in (JobState.PENDING, JobState.HELD), after.jobs[NEW]
    return after.jobs[NEW].reason


OLD = ("vision/old", {"gpu-001": 8})


@pytest.mark.parametrize(
    ("rows", "gpus", "code", "numbers"),
    [
        pytest.param([ROOT, q("nlp", ceiling=12), q("vision")], 16, ReasonCode.NEVER_FITS_QUOTA, {"need": 16, "most": 12}, id="never"),
        pytest.param([ROOT, q("nlp"), q("vision", guaranteed=24, lend=0)], 16, ReasonCode.NEVER_FITS_QUOTA, {"most": 8}, id="never, for another keeps it"),
        pytest.param([q("root", None, ceiling=16), q("nlp"), q("vision")], 16, ReasonCode.QUOTA_CEILING,
                     {"queue": "root", "wouldBe": 24, "ceiling": 16}, id="a ceiling above"),
        pytest.param([ROOT, q("nlp"), q("vision", guaranteed=24, lend=8)], 16, ReasonCode.LEND_LIMIT,
                     {"need": 16, "lender": "vision", "lend": 8}, id="what the lender keeps"),
        pytest.param([q("root", None, guaranteed=20), q("nlp"), q("vision")], 16, ReasonCode.QUOTA_EXHAUSTED,
                     {"need": 16, "room": 12}, id="the root has less than there is"),
    ],
)  # fmt: skip
def test_reasons(rows: list[Queue], gpus: int, code: ReasonCode, numbers: dict[str, object]) -> None:
    more = [("nlp/old", {"gpu-002": 8})] if code is ReasonCode.LEND_LIMIT else []
    why = waits(rows, gpus, OLD, *more)
    assert why.code is code
    assert {name: why.number(name) for name in numbers} == numbers


def test_a_job_that_is_not_preemptible_uses_only_guarantees() -> None:
    rows = [ROOT, q("nlp", guaranteed=16), q("vision")]
    why = waits(rows, 16, ("nlp/old", {"gpu-001": 8}), on_preempt=OnPreempt.NEVER)
    assert why.code is ReasonCode.NON_PREEMPTIBLE_OVER_GUARANTEE
    assert {name: why.number(name) for name in ("queue", "used", "need", "guaranteed")} == {
        "queue": "nlp",
        "used": 8,
        "need": 16,
        "guaranteed": 16,
    }
    desired = world(jobs=[job(NEW, 16, on_preempt=OnPreempt.NEVER)], queues=rows)
    after = decide(desired, ready(desired), allocation(desired, pending(desired, NEW)), START).allocation
    assert after.jobs[NEW].state is JobState.STARTING


def test_a_full_cluster_is_no_matter_of_quota() -> None:
    rows = [ROOT, q("nlp"), q("vision")]
    why = waits(rows, 16, ("vision/a", {"gpu-001": 8, "gpu-002": 8, "gpu-003": 8}))
    assert why.code is ReasonCode.CAPACITY


def test_lowering_a_ceiling_below_use_stops_nobody() -> None:
    desired = world(jobs=[job("nlp/old", 16)], queues=[ROOT, q("nlp", ceiling=8), q("vision")])
    held = running(desired, "nlp/old", {"gpu-001": 8, "gpu-002": 8})
    before = allocation(desired, held)
    assert not decide(with_jobs(desired), ready(desired, held), before, START).changed
