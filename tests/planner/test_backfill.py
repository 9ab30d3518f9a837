"""Reservations and backfill: who may start in the gap before a blocked gang, and who may not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.units import HOUR, SECOND, Gpus, GpuType, Instant, JobKey, Nanoseconds
from reconciler.planner.admit import Sweep
from reconciler.planner.backfill import PER_QUEUE
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.ground import ground_of
from reconciler.planner.line import line_of
from reconciler.planner.reservation import Reservation
from reconciler.planner.verify import violations
from tests.planner.worlds import (
    QUEUES,
    START,
    Spines,
    allocation,
    inventory,
    job,
    pending,
    queue,
    ready,
    running,
    shape,
    with_node,
    world,
)

H = 3600
ONE_RACK: Spines = {"sg0": {"r01": ["n1", "n2", "n3", "n4"]}}
CONSERVATIVE = Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0), preempt_same_queue="never")

Held = Mapping[str, tuple[Job, Mapping[str, int | Sequence[int]]]]


def before(desired: Desired, runs: Mapping[str, Mapping[str, int | Sequence[int]]]) -> tuple[Allocation, Desired]:
    """These jobs run since START; all others wait, in the order of their names."""
    records = [running(desired, key, gpus) for key, gpus in runs.items()]
    waits = [key for key in desired.jobs if key not in runs]
    records += [pending(desired, key, Instant(START + n)) for n, key in enumerate(waits)]
    return allocation(desired, *records), desired


def decided(
    desired: Desired, runs: Mapping[str, Mapping[str, int | Sequence[int]]], after: int = 0
) -> Mapping[JobKey, JobRecord]:
    """The records after one decision, `after` seconds after START; the judge must agree."""
    known, _ = before(desired, runs)
    seen = ready(desired, *(r for r in known.jobs.values() if r.placement))
    now = Instant(START + after * SECOND)
    following = decide(desired, seen, known, now).allocation
    found = [v for v in violations(desired, seen, known, following) if v.code != "WrongUsage"]
    assert not found
    return following.jobs


def first_seen(desired: Desired, runs: Mapping[str, Mapping[str, int | Sequence[int]]]) -> Allocation:
    """The same, with jobs that nobody has seen before."""
    records = [running(desired, key, gpus) for key, gpus in runs.items()]
    return decide(desired, ready(desired, *records), allocation(desired, *records), START).allocation


def reservations(
    desired: Desired, runs: Mapping[str, Mapping[str, int | Sequence[int]]], after: int = 0
) -> Mapping[JobKey, Reservation]:
    known, _ = before(desired, runs)
    seen = ready(desired, *(r for r in known.jobs.values() if r.placement))
    draft = Draft(desired, seen, ground_of(desired.inventory), dict(known.jobs), Instant(START + after * SECOND))
    sweep = Sweep(draft)
    sweep.run(line_of(draft, {}))
    return sweep.bookings.reservations


def outcome(record: JobRecord) -> str:
    return "start" if record.state is JobState.STARTING else record.reason.code


# --- one reservation, one gap ---

GAP = {"nlp/run": (job("nlp/run", 16, limit=4 * H), {"n3": 8, "n4": 8})}


def gap(*jobs: Job, mode: str = "conservative", **changes: object) -> Desired:
    """Two nodes idle for four hours, two busy: a gang of four nodes can start when these end."""
    rules = replace(CONSERVATIVE, backfill=mode, **changes)  # type: ignore[arg-type]  # fields by name
    big = job("nlp/big", 32, "high", limit=8 * H)
    return world(ONE_RACK, jobs=[GAP["nlp/run"][0], big, *jobs], rules=rules)


RUN: Mapping[str, Mapping[str, int | Sequence[int]]] = {"nlp/run": {"n3": 8, "n4": 8}}


@pytest.mark.parametrize(
    ("limit", "mode", "expected"),
    [
        (1 * H, "conservative", "start"),
        (4 * H, "conservative", "start"),  # ends exactly when the big one starts
        (4 * H + 1, "conservative", "WouldDelay"),
        (None, "conservative", "WouldDelay"),  # no limit: it never ends
        (4 * H + 1, "easy", "WouldDelay"),
        (None, "none", "start"),
    ],
)
def test_who_may_use_the_gap(limit: int | None, mode: str, expected: str) -> None:
    found = decided(gap(job("nlp/small", 8, limit=limit), mode=mode), RUN)
    assert outcome(found[JobKey("nlp/small")]) == expected
    assert outcome(found[JobKey("nlp/big")]) == "Capacity"


def test_a_reservation_says_when_and_where() -> None:
    made = reservations(gap(), RUN)[JobKey("nlp/big")]
    assert (made.starts, made.ends) == (START + 4 * HOUR, START + 12 * HOUR)
    assert sum(mask.bit_count() for mask in made.masks.values()) == 32


def test_the_reason_names_whose_start_and_from_when_to_when() -> None:
    small = decided(gap(job("nlp/small", 8, limit=6 * H)), RUN)[JobKey("nlp/small")]
    said = {"owner": "nlp/big", "from": START + 4 * HOUR, "to": START + 6 * HOUR, "earliestStart": START + 12 * HOUR}
    assert dict(small.reason.numbers) == said


def test_a_waiting_job_says_when_it_starts() -> None:
    big = first_seen(gap(), RUN).jobs[JobKey("nlp/big")]
    assert big.reason.number("earliestStart") == START + 4 * HOUR


def test_an_overrun_counts_as_ending_a_grace_from_now() -> None:
    desired = gap()
    overrun = replace(desired.jobs[JobKey("nlp/run")], time_limit=Nanoseconds(1 * HOUR))
    desired = replace(desired, jobs={**desired.jobs, JobKey("nlp/run"): overrun})
    known, _ = before(desired, RUN)
    late = replace(known.jobs[JobKey("nlp/run")], grace=Nanoseconds(60 * SECOND))
    draft = Draft(desired, ready(desired, late), ground_of(desired.inventory),
                  {**known.jobs, late.job: late}, Instant(START + 2 * HOUR))  # fmt: skip
    sweep = Sweep(draft)
    sweep.run(line_of(draft, {}))
    assert sweep.bookings.reservations[JobKey("nlp/big")].starts == START + 2 * HOUR + 60 * SECOND


def test_a_gang_behind_one_without_limit_has_no_reservation_and_binds_nobody() -> None:
    endless = replace(GAP["nlp/run"][0], time_limit=None)
    desired = gap(job("nlp/small", 8, limit=100 * H))
    desired = replace(desired, jobs={**desired.jobs, endless.key: endless})
    assert not reservations(desired, RUN)
    assert outcome(decided(desired, RUN)[JobKey("nlp/small")]) == "start"


def test_the_default_time_limit_makes_ends_known() -> None:
    endless = replace(GAP["nlp/run"][0], time_limit=None)
    desired = gap(default_time_limit=Nanoseconds(10 * HOUR))
    desired = replace(desired, jobs={**desired.jobs, endless.key: endless})
    assert reservations(desired, RUN)[JobKey("nlp/big")].starts == START + 10 * HOUR


def test_what_comes_earlier_in_line_is_not_bound() -> None:
    first = job("nlp/first", 8, "high", limit=None)
    desired = gap(first)
    known, _ = before(desired, RUN)
    old = replace(known.jobs[first.key], submitted=Instant(START - 1))
    known = replace(known, jobs={**known.jobs, first.key: old})
    following = decide(desired, ready(desired, known.jobs[JobKey("nlp/run")]), known, START).allocation.jobs
    assert outcome(following[first.key]) == "start"


def test_a_reservation_stops_nobody_who_could_evict_its_owner() -> None:
    lower, higher = job("nlp/low", 32, "low", limit=8 * H), job("nlp/x", 8, "normal", limit=None)
    rules = replace(CONSERVATIVE, preempt_same_queue="lowerPriority", order="fairShare")
    desired = world(ONE_RACK, jobs=[GAP["nlp/run"][0], lower, higher], rules=rules)
    assert outcome(decided(desired, RUN)[JobKey("nlp/x")]) == "start"


# --- the latest nodes, several reservations ---


def test_the_nodes_that_come_last_are_reserved_so_that_early_ones_stay_useful() -> None:
    jobs = [job("nlp/a", 8, limit=1 * H), job("nlp/b", 8, limit=4 * H), job("nlp/c", 8, limit=4 * H),
            job("nlp/d", 8, limit=4 * H), job("nlp/big", 16, "high", limit=8 * H), job("nlp/long", 8, limit=9 * H)]  # fmt: skip
    desired = world(ONE_RACK, jobs=jobs, rules=CONSERVATIVE)
    runs = {"nlp/a": {"n1": 8}, "nlp/b": {"n2": 8}, "nlp/c": {"n3": 8}, "nlp/d": {"n4": 8}}
    made = reservations(desired, runs)
    tree = ground_of(desired.inventory).tree
    assert {tree.nodes[node] for node in made[JobKey("nlp/big")].masks} <= {"n2", "n3", "n4"}
    assert {tree.nodes[node] for node in made[JobKey("nlp/long")].masks} == {"n1"}
    assert made[JobKey("nlp/long")].starts == START + HOUR


def test_later_reservations_stand_behind_earlier_ones() -> None:
    jobs = [job(f"nlp/w{n}", 32, limit=2 * H) for n in range(3)]
    made = reservations(world(ONE_RACK, jobs=[GAP["nlp/run"][0], *jobs], rules=CONSERVATIVE), RUN)
    assert [made[one.key].starts - START for one in jobs] == [4 * HOUR, 6 * HOUR, 8 * HOUR]


@pytest.mark.parametrize(
    ("mode", "most", "made"), [("easy", 64, 1), ("conservative", 2, 2), ("conservative", 64, PER_QUEUE)]
)
def test_how_many_are_reserved_for(mode: str, most: int, made: int) -> None:
    jobs = [job(f"nlp/w{n:02}", 32, limit=2 * H) for n in range(PER_QUEUE + 2)]
    rules = replace(CONSERVATIVE, backfill=mode, reservations=most)
    assert len(reservations(world(ONE_RACK, jobs=[GAP["nlp/run"][0], *jobs], rules=rules), RUN)) == made


# --- shapes ---


@pytest.mark.parametrize(
    ("asked", "starts"),
    [
        (job("nlp/w", 8, limit=H, dims={"tensor": 8}, required={"tensor": "node"}), 1 * H),
        (job("nlp/w", 16, limit=H, required={"job": "rack"}), 3 * H),  # r02 is whole at 3 h, r01 at 4 h
        (job("nlp/w", 16, limit=H), 2 * H),  # one node of each rack
        (job("nlp/w", 32, limit=H, dims={"data": 16, "pipeline": 2}, required={"data": "rack"}), 4 * H),
        (job("nlp/w", 4, limit=H, dims={"tensor": 4}, required={"tensor": "node"}), 1 * H),
        (job("nlp/w", 9, limit=H, required={"job": "rack"}, roles=[("leader", 1, 1), ("worker", 1, 8)]), 3 * H),
    ],
)  # fmt: skip
def test_the_earliest_start_minds_the_shape(asked: Job, starts: int) -> None:
    jobs = [job(f"nlp/r{n}", 8, limit=n * H) for n in range(1, 5)]
    spines: Spines = {"sg0": {"r01": ["n1", "n4"], "r02": ["n2", "n3"]}}
    desired = world(spines, jobs=[*jobs, asked], rules=CONSERVATIVE)
    made = reservations(desired, {f"nlp/r{n}": {f"n{n}": 8} for n in range(1, 5)})
    assert made[asked.key].starts - START == starts * SECOND


def test_parts_of_a_node_come_back_one_by_one() -> None:
    jobs = [job("nlp/a", 4, limit=1 * H), job("nlp/b", 4, limit=2 * H), job("nlp/w", 6, limit=H)]
    desired = world({"s": {"r": ["n1"]}}, jobs=jobs, rules=CONSERVATIVE)
    made = reservations(desired, {"nlp/a": {"n1": [0, 1, 2, 3]}, "nlp/b": {"n1": [4, 5, 6, 7]}})
    assert made[JobKey("nlp/w")].starts == START + 2 * HOUR


# --- quota ---


def limited(ceiling: int) -> tuple[Queue, ...]:
    return (queue("nlp", ceiling=ceiling), *(q for q in QUEUES if q.name != "nlp"))


def test_a_job_blocked_by_its_own_ceiling_is_reserved_for_when_the_queue_comes_down() -> None:
    jobs = [job("nlp/a", 8, limit=3 * H), job("nlp/w", 16, limit=H)]
    desired = world(ONE_RACK, jobs=jobs, queues=limited(16), rules=CONSERVATIVE)
    assert reservations(desired, {"nlp/a": {"n1": 8}})[JobKey("nlp/w")].starts == START + 3 * HOUR


@pytest.mark.parametrize(("limit", "expected"), [(3 * H, "start"), (4 * H, "WouldDelay")])
def test_nobody_of_its_queue_may_fill_the_quota_a_reservation_needs(limit: int, expected: str) -> None:
    jobs = [job("nlp/a", 8, limit=3 * H), job("nlp/big", 16, "high", limit=H), job("nlp/x", 8, limit=limit)]
    spines: Spines = {"sg0": {"r01": [f"n{n}" for n in range(1, 8)]}}
    desired = world(spines, jobs=jobs, queues=limited(16), rules=CONSERVATIVE)
    found = decided(desired, {"nlp/a": {"n1": 8}})
    assert outcome(found[JobKey("nlp/x")]) == expected


@pytest.mark.parametrize(
    ("lend", "limit", "starts"),
    [
        (0, 3 * H, 3),  # vision keeps all of its two nodes: nlp has to come down by itself
        (8, 3 * H, 0),  # one node is lent
        (0, None, None),  # nobody knows when nlp comes down
    ],
)
def test_a_job_that_waits_for_what_others_lend_is_reserved_for_when_it_is_lent(
    lend: int, limit: int | None, starts: int | None
) -> None:
    """The GPUs are idle all the while: it is quota that comes back."""
    nodes = {GpuType("H100"): Gpus(16)}
    owner = replace(queue("vision"), guaranteed=nodes, lend={GpuType("H100"): Gpus(lend)})
    queues = (queue("root", None), replace(queue("nlp"), guaranteed=nodes), owner)
    jobs = [job("nlp/a", 16, limit=limit), job("nlp/w", 8, limit=H)]
    desired = world(ONE_RACK, jobs=jobs, queues=queues, rules=CONSERVATIVE)
    runs = {"nlp/a": {"n1": 8, "n2": 8}}
    record = decided(desired, runs)[JobKey("nlp/w")]
    assert (record.state is JobState.STARTING) == (starts == 0)
    if starts != 0:
        made = reservations(desired, runs).get(JobKey("nlp/w"))
        assert (made and made.starts) == (None if starts is None else START + starts * HOUR)
        assert record.reason.code == "LendLimit"


# --- strict order ---


@pytest.mark.parametrize(
    ("passing", "same", "other"),
    [
        ("never", "BlockedByEarlier", "BlockedByEarlier"),
        ("otherGpuTypes", "BlockedByEarlier", "start"),
        ("always", "start", "start"),
    ],
)
def test_who_may_pass_one_who_waits(passing: str, same: str, other: str) -> None:
    made = inventory({"s": {"r": ["n1"]}})
    l40s = inventory({"s": {"r": ["n2"]}}, of=shape(8, "L40S"))
    rules = Scheduling(order="priorityThenAge", backfill="none", jobs_may_pass=passing)
    jobs = [job("nlp/a", 4), job("nlp/first", 8, "high"), job("nlp/same", 4),
            replace(job("nlp/x", 8), gpu_types=(GpuType("L40S"),))]  # fmt: skip
    desired = world(jobs=jobs, rules=rules)
    desired = replace(desired, inventory=replace(made, nodes=(*made.nodes, *l40s.nodes)))
    desired = replace(desired, scheduling=replace(desired.scheduling, preempt_same_queue="never"))
    found = decided(desired, {"nlp/a": {"n1": 4}})
    assert outcome(found[JobKey("nlp/same")]) == same
    assert outcome(found[JobKey("nlp/x")]) == other


# --- nothing moves: an oracle that knows no profile ---


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Desired, dict[str, dict[str, int]]]:
    """Up to four nodes, running jobs with limits, and a few that wait, all of whole nodes."""
    nodes = draw(st.integers(1, 4))
    busy = draw(st.lists(st.integers(1, 6), min_size=0, max_size=nodes))
    jobs = [job(f"nlp/r{n}", 8, limit=hours * H) for n, hours in enumerate(busy)]
    sizes = draw(st.lists(st.tuples(st.integers(1, nodes), st.integers(1, 6)), min_size=1, max_size=6))
    jobs += [job(f"nlp/w{n}", 8 * size, limit=hours * H) for n, (size, hours) in enumerate(sizes)]
    names = [f"n{n}" for n in range(nodes)]
    desired = world({"s": {"r": names}}, jobs=jobs, rules=CONSERVATIVE)
    return desired, {f"nlp/r{n}": {names[n]: 8} for n in range(len(busy))}


def first_start(nodes: int, ends: list[tuple[int, int]], size: int) -> int:
    """Hours until so many nodes are free, when these (hours, nodes) end and nobody else comes."""
    free = nodes - sum(count for _, count in ends)
    for at, count in [(0, 0), *sorted(ends)]:
        free += count
        if free >= size:
            return at
    raise AssertionError("never")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(crowds())
def test_nobody_moves_the_first_in_line(crowd: tuple[Desired, dict[str, dict[str, int]]]) -> None:
    """Whoever starts now, the first waiting job could start no later than if it alone had been waiting."""
    desired, runs = crowd
    found = decided(desired, runs)
    waits = [key for key in desired.jobs if key not in runs and found[key].state is JobState.PENDING]
    if not waits:
        return
    head, nodes = waits[0], len(desired.inventory.nodes)

    def hours(key: str) -> tuple[int, int]:
        one = desired.jobs[JobKey(key)]
        return ((one.time_limit or 0) // HOUR, one.gpus // 8)

    size = desired.jobs[head].gpus // 8
    earlier = [hours(key) for key in desired.jobs if key in runs or (key < head and key not in waits)]
    all_started = [hours(key) for key in desired.jobs if key not in waits]
    assert first_start(nodes, all_started, size) <= first_start(nodes, earlier, size)


# --- the judge ---


def judged_as_conservative(desired: Desired, runs: Mapping[str, Mapping[str, int | Sequence[int]]]) -> set[str]:
    """What the judge says of a decision made without backfill, as if it had been made with it."""
    known, _ = before(desired, runs)
    seen = ready(desired, *(r for r in known.jobs.values() if r.placement))
    made = decide(replace(desired, scheduling=replace(desired.scheduling, backfill="none")), seen, known, START)
    found = violations(desired, seen, known, made.allocation)
    return {one.code for one in found if one.code != "WrongUsage"}


@pytest.mark.parametrize(
    ("limit", "delays"), [(1 * H, False), (4 * H, False), (4 * H + 1, True), (8 * H, True), (None, True)]
)
def test_the_judge_sees_a_start_that_puts_off_the_head_of_the_line(limit: int | None, delays: bool) -> None:
    desired = gap(job("nlp/small", 8, limit=limit))
    assert judged_as_conservative(desired, RUN) == ({"ReservationDelayed"} if delays else set())


def test_the_judge_minds_the_rack_that_the_head_wants() -> None:
    """Two nodes of r02 come back in an hour, those of r01 in two: the small job in r01 puts nobody off."""
    spines: Spines = {"sg0": {"r01": ["n1", "n2", "n3"], "r02": ["n4", "n5", "n6"]}}
    rack = {"job": "rack", "data": "node"}
    big = job("nlp/big", 24, "high", limit=H, required=rack, dims={"data": 8, "more": 3})
    jobs = [job("nlp/a", 16, limit=2 * H), job("nlp/b", 16, limit=H), big]
    runs = {"nlp/a": {"n1": 8, "n2": 8}, "nlp/b": {"n4": 8, "n5": 8}}
    for small, codes in (
        (job("nlp/s", 8, limit=9 * H), set()),
        (job("nlp/s", 16, limit=9 * H), {"ReservationDelayed"}),
    ):
        assert judged_as_conservative(world(spines, jobs=[*jobs, small], rules=CONSERVATIVE), runs) == codes


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(crowds())
def test_the_judge_accuses_exactly_when_the_head_starts_later(
    crowd: tuple[Desired, dict[str, dict[str, int]]],
) -> None:
    """Against the oracle above. Who is behind the head is behind it for certain: all are of one queue and priority."""
    desired, runs = crowd
    known, _ = before(desired, runs)
    seen = ready(desired, *(r for r in known.jobs.values() if r.placement))
    loose = replace(desired, scheduling=replace(desired.scheduling, backfill="none"))
    found = decide(loose, seen, known, START).allocation.jobs
    waits = [key for key in desired.jobs if key not in runs and found[key].state is JobState.PENDING]
    late = False
    if waits and found[waits[0]].reason.code == "Capacity":
        rows = {key: ((job.time_limit or 0) // HOUR, job.gpus // 8) for key, job in desired.jobs.items()}
        size, nodes = rows[waits[0]][1], len(desired.inventory.nodes)
        earlier = [rows[key] for key in desired.jobs if key in runs or (key < waits[0] and key not in waits)]
        every = [rows[key] for key in desired.jobs if key not in waits]
        late = first_start(nodes, every, size) > first_start(nodes, earlier, size)
    assert judged_as_conservative(desired, runs) == ({"ReservationDelayed"} if late else set())


def test_a_round_in_which_nothing_changed_is_no_commit() -> None:
    desired = gap(job("nlp/small", 8, limit=6 * H))
    known, _ = before(desired, RUN)
    seen = ready(desired, known.jobs[JobKey("nlp/run")])
    first = decide(desired, seen, known, START).allocation
    again = decide(desired, seen, first, Instant(START + 60 * SECOND))
    assert not again.changed
    assert again.allocation.jobs == first.jobs


def test_reserved_gpus_are_idle_all_the_same() -> None:
    assert first_seen(gap(), RUN).metrics.idle == 16


def test_a_closed_node_is_not_reserved() -> None:
    desired = with_node(gap(), "n1", cordoned="asked")
    assert not reservations(desired, RUN)
