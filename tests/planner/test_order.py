"""The order of the pass: one line over all queues, or down the tree of queues again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import JobRecord, Usage
from reconciler.model.job import Job
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.units import DAY, HOUR, SECOND, Gpus, GpuType, Instant, JobKey, QueueName
from reconciler.planner.decide import decide
from reconciler.planner.order import FairLine, line_key, starved_before
from reconciler.planner.quota import Quotas
from reconciler.planner.usage import FairShares, brought_to
from tests.planner.worlds import CLASSES, H100, START, allocation, job, pending, queue, ready, world

KIND = GpuType(H100)
NOW = Instant(START + 2 * DAY)
TOTAL = 32
VALUES = {str(known.name): known.value for known in CLASSES}


def q(name: str, guaranteed: int = 0, parent: str | None = "root", weight: int = 1) -> Queue:
    return replace(queue(name, parent), guaranteed={KIND: Gpus(guaranteed)}, weight=weight)


ROOT = queue("root", None)
Waiting = Mapping[str, tuple[int, str, int]]
"""By key: GPUs, class, and hours ago it was submitted."""


def line(
    queues: Sequence[Queue],
    waiting: Waiting,
    held: Mapping[str, int] | None = None,
    hours: Mapping[str, int] | None = None,
) -> list[str]:
    """All keys in order, when each starts as soon as it is next."""
    rules = Scheduling()
    desired = world(
        jobs=[job(key, gpus, rank) for key, (gpus, rank, _) in waiting.items()], queues=[ROOT, *queues], rules=rules
    )
    quotas = Quotas(desired.quotas, {KIND: TOTAL})
    for name, gpus in (held or {}).items():
        quotas.hold(QueueName(name), KIND, gpus)
    used = [Usage(queue=QueueName(name), gpu_type=KIND, acc=n * 3_600_000) for name, n in (hours or {}).items()]
    accounts, _ = brought_to(used, NOW, NOW, rules.half_life)
    records = [
        (pending(desired, key, Instant(NOW - ago * HOUR)), desired.jobs[JobKey(key)])
        for key, (_, _, ago) in waiting.items()
    ]
    starved = starved_before(rules, NOW)

    def key_of(record: JobRecord, asked: Job) -> tuple[int, int, int, int, int, str, int]:
        return line_key(record, asked, VALUES[str(asked.priority_class)], starved)

    made = FairLine(
        records, quotas, FairShares(quotas, accounts, [KIND], rules.charge_ahead), key_of, lambda _: (KIND,), starved
    )
    found = []
    for record, asked in made:
        found.append(str(record.job))
        quotas.hold(asked.queue, KIND, asked.gpus)
        made.renew([asked.queue])
    return found


@pytest.mark.parametrize(
    ("queues", "waiting", "held", "hours", "expected"),
    [
        pytest.param([q("a"), q("b", 8)], {"a/x": (8, "high", 9), "b/x": (8, "low", 1)}, {}, {}, ["b/x", "a/x"], id="guarantees first"),
        pytest.param([q("a"), q("b")], {"a/x": (8, "low", 30), "b/x": (8, "high", 1)}, {}, {"a": 90}, ["a/x", "b/x"], id="then the starved"),
        pytest.param([q("a"), q("b")], {"a/x": (8, "low", 30), "b/x": (8, "low", 40)}, {}, {}, ["b/x", "a/x"], id="the longest starved"),
        pytest.param([q("a"), q("b")], {"a/x": (8, "high", 9), "b/x": (8, "low", 1)}, {}, {"a": 1}, ["b/x", "a/x"], id="then the least share"),
        pytest.param([q("a"), q("b")], {"a/x": (8, "low", 9), "b/x": (8, "high", 1)}, {}, {}, ["b/x", "a/x"], id="priority breaks ties"),
        pytest.param([q("a"), q("b")], {"a/x": (8, "low", 1), "a/y": (8, "high", 1), "b/x": (8, "low", 9)}, {}, {"b": 20}, ["a/y", "a/x", "b/x"],
                     id="priority inside a queue"),
        pytest.param([q("a"), q("b")], {f"{h}/{n}": (4, "low", 5) for h in "ab" for n in (1, 2, 3)}, {}, {}, ["a/1", "b/1", "a/2", "b/2", "a/3", "b/3"],
                     id="what starts now counts at once"),
        pytest.param([q("a", weight=2), q("b")], {f"{h}/{n}": (4, "low", 5) for h in "ab" for n in (1, 2, 3)}, {}, {}, ["a/1", "b/1", "a/2", "a/3", "b/2", "b/3"],
                     id="by weight"),
        pytest.param([q("o", 8), q("t", 0, "o"), q("u", 8, "o"), q("b")], {"t/x": (8, "low", 1), "b/x": (8, "high", 9)}, {}, {}, ["t/x", "b/x"],
                     id="within the guarantee of the organisation"),
        pytest.param([q("o", 8), q("t", 0, "o"), q("u", 8, "o")], {"t/x": (8, "high", 9), "u/x": (8, "low", 1)}, {}, {}, ["u/x", "t/x"], id="and in it of the team"),
        pytest.param([q("a", 8), q("b")], {"a/x": (8, "low", 1), "b/x": (8, "normal", 1)}, {"a": 8}, {}, ["b/x", "a/x"], id="a guarantee used up is no right"),
    ],
)  # fmt: skip
def test_fair_line(
    queues: list[Queue], waiting: Waiting, held: dict[str, int], hours: dict[str, int], expected: list[str]
) -> None:
    assert line(queues, waiting, held, hours) == expected


# --- the definition, step by step and without heaps ---


def by_definition(
    queues: Sequence[Queue], waiting: Waiting, held: Mapping[str, int], hours: Mapping[str, int]
) -> list[str]:
    """Repeatedly from the root downwards the child with the smallest key, then its head."""
    rows = {str(row.name): row for row in queues}
    use = dict(held)
    left = dict(waiting)

    def inside(name: str) -> list[str]:
        return [key for key in left if name in chain(key.split("/")[0])]

    def chain(name: str) -> list[str]:
        found = [name]
        while str(rows[found[-1]].parent) in rows:
            found.append(str(rows[found[-1]].parent))
        return found

    def has(name: str) -> int:
        return sum(gpus for leaf, gpus in use.items() if name in chain(leaf))

    def place(key: str) -> tuple[object, ...]:
        _, rank, ago = left[key]
        return -VALUES[rank], 0 if ago >= 24 else 1, -ago, key

    def share(name: str) -> int:
        excess = max(0, has(name) - rows[name].guaranteed[KIND])
        return (hours.get(name, 0) * 3_600_000 + 1000 * excess * 3600) * 10**6 // TOTAL // rows[name].weight

    def head(name: str) -> str:
        below = [child for child in rows if str(rows[child].parent) == name and inside(child)]
        return (
            head(min(below, key=key_of))
            if below
            else min((key for key in left if key.split("/")[0] == name), key=place)
        )

    def key_of(name: str) -> tuple[object, ...]:
        first = head(name)
        gpus, _, ago = left[first]
        within = has(name) + gpus <= rows[name].guaranteed[KIND]
        return 0 if within else 1, 0 if ago >= 24 else 1, -ago if ago >= 24 else share(name), place(first)

    found = []
    while left:
        first = head("root")
        found.append(first)
        gpus, _, _ = left.pop(first)
        use[first.split("/")[0]] = use.get(first.split("/")[0], 0) + gpus
    return found


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.data())
def test_the_heaps_keep_to_the_definition(data: st.DataObject) -> None:
    inner = [data.draw(st.integers(0, 8)) for _ in "tu"]
    weights = [data.draw(st.integers(1, 3)) for _ in range(5)]
    queues = [q("a", data.draw(st.integers(0, 8)), weight=weights[0]), q("b", 0, weight=weights[1]), q("o", sum(inner), weight=weights[2]),
              q("t", inner[0], "o", weights[3]), q("u", inner[1], "o", weights[4])]  # fmt: skip
    leaves = st.sampled_from("abtu")
    waiting = {
        f"{data.draw(leaves)}/j{n}": (
            data.draw(st.integers(1, 6)),
            data.draw(st.sampled_from(("low", "normal"))),
            data.draw(st.sampled_from((1, 2, 30, 40))),
        )
        for n in range(data.draw(st.integers(1, 9)))
    }
    held = data.draw(st.dictionaries(leaves, st.integers(0, 8), max_size=3))
    hours = data.draw(st.dictionaries(st.sampled_from("abotu"), st.integers(0, 5), max_size=3))
    assert line(queues, waiting, held, hours) == by_definition(queues, waiting, held, hours)


# --- who may pass whom ---


@pytest.mark.parametrize(
    ("rule", "starts"),
    [
        pytest.param("always", {"nlp/small", "nlp/other"}, id="always"),
        pytest.param("otherGpuTypes", {"nlp/other"}, id="only those of other types"),
        pytest.param("never", set(), id="never"),
    ],
)
def test_who_may_pass_one_who_waits(rule: str, starts: set[str]) -> None:
    """nlp/big needs more H100 than are free; one small job wants H100 as well, another one L40S."""
    from tests.planner.worlds import shape, with_node

    jobs = [job("nlp/big", 32), job("nlp/small", 8), replace(job("nlp/other", 8), gpu_types=(GpuType("L40S"),))]
    rules = Scheduling(order="priorityThenAge", jobs_may_pass=rule, backfill="none")
    desired = with_node(
        world({"sg0": {"r1": ["n1", "n2", "n3", "n4", "n5"]}}, jobs=jobs, rules=rules), "n5", shape=shape(8, "L40S")
    )
    desired = with_node(desired, "n4", cordoned="asked")
    waits = [pending(desired, str(one.key), Instant(START + at * SECOND)) for at, one in enumerate(jobs)]
    after = decide(desired, ready(desired), allocation(desired, *waits), NOW).allocation
    assert {str(r.job) for r in after.jobs.values() if r.state == "Starting"} == starts
