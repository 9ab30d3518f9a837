"""`gangops test`: every scenario of tests/scenarios is answered right, and a wrong answer is found wrong.

The judges are tried with plans made by hand: each kind of expectation and each standing rule accepts the right plan and
names the fault of a wrong one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reconciler.cli.root import root
from reconciler.documents.scenario_sense import read_scenario
from reconciler.errors import NotFound
from reconciler.model.allocation import JobRecord, Placement, Promise, RankPlace
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.units import HOUR, MINUTE, Instant, JobKey, LevelName, NodeName
from reconciler.runtime.scenario.build import inputs_of
from reconciler.runtime.scenario.expect import differences, missing_words
from reconciler.runtime.scenario.ledger import Ledger
from reconciler.runtime.scenario.numbers import numbers_of
from reconciler.runtime.scenario.plan import Displaced, Plan, Started, Waiting, plan_of
from reconciler.runtime.scenario.report import plan_tree
from reconciler.runtime.scenario.rules import broken_rules
from reconciler.runtime.scenario.run import Verdict, run_scenario, scenario_files
from reconciler.runtime.scenario.world import Seats, World, seats_of

SCENARIOS = Path(__file__).parents[1] / "scenarios"
FILES = sorted(SCENARIOS.glob("*.yaml"))

HEAD = """
format: gang-scenario/1
id: by-hand
now: '2026-03-02T12:00:00Z'
cluster:
  spines:
    - name: s1
      racks:
        - {name: r1, nodes: [{names: 'a[1-2]', gpus: 8, type: h100}]}
        - {name: r2, nodes: [{names: 'b[1-2]', gpus: 8, type: h100}]}
    - name: s2
      racks:
        - {name: r3, nodes: [{names: 'c[1-2]', gpus: 8, type: h100}]}
"""
PENDING = "submitted: '2026-03-02T11:00:00Z'"
STARTED = "started: '2026-03-02T02:00:00Z'"


def world(body: str, expect: str = "{}") -> World:
    """The scenario of this text; `expect` is YAML in one line."""
    scenario, problems = read_scenario(f"{HEAD}{body}\nexpect: {expect}\n".encode(), "by-hand.yaml")
    assert scenario is not None, [str(problem) for problem in problems]
    return World(scenario)


def pending(workers: int = 2, gpus_each: int = 8, job: str = "P1", more: str = "") -> str:
    role = f"{{role: worker, workers: {workers}, gpus_each: {gpus_each}}}"
    return f"  - {{job: {job}, priority: 50, {PENDING}, roles: [{role}]{more}}}\n"


def running(job: str, placement: str, more: str = "") -> str:
    return f"  - {{job: {job}, {STARTED}, placement: {{{placement}}}{more}}}\n"


def seats(*nodes: tuple[str, int]) -> Seats:
    return tuple(node for node, gpus in nodes for _ in range(gpus))


def starts(*nodes: tuple[str, int], outcome: str = "start", job: str = "P1", **more: Any) -> Plan:
    return Plan(started={job: Started(outcome=outcome, seats=seats(*nodes))}, **more)


def waits(reason_class: str = "capacity", text: str = "", job: str = "P1", **more: Any) -> Plan:
    return Plan(waiting={job: Waiting(outcome="wait", reason_class=reason_class, text=text, **more)})


# --- the scenarios ---


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_is_answered_right(file: Path) -> None:
    result = run_scenario(file.read_bytes(), str(file))
    assert "\n".join(result.failures) == ""
    assert result.verdict is Verdict.PASSED


def test_all_scenarios_are_there() -> None:
    assert len(FILES) >= 29


def test_the_example_of_the_readme_is_answered_right() -> None:
    text = (SCENARIOS / "README.md").read_text(encoding="utf-8")
    example = text.partition("```yaml\n")[2].partition("```")[0]
    assert "\n".join(run_scenario(example.encode(), "README.md").failures) == ""


# --- expectations ---

TWO = ("pending:\n" + pending(), (("a1", 8), ("a2", 8)))
ACROSS = (("a1", 8), ("b1", 8))

PLACES = [
    ("nodes", "{nodes: {'a[1-2]': 8}}", ACROSS, "is on {'a1': 8, 'b1': 8}"),
    ("exactly", "{exactly: {rack: [r1]}}", ACROSS, "exactly the rack r1, uses r1, r2"),
    ("within", "{within: {node: ['a[1-2]', b2]}}", ACROSS, "within the node a1, a2, b2, uses a1, b1"),
    ("count", "{count: {rack: 1}}", ACROSS, "expected 1 rack domain, uses r1, r2"),
    ("one", "{one: rack}", ACROSS, "expected one rack"),
    ("per", "{per: {rack: {r1: 2}}}", ACROSS, "has {'r1': 1, 'r2': 1}"),
    ("groups", "{groups: {size: 2, one: rack}}", ACROSS, "workers 0 to 1 in one rack"),
    ("avoids", "{avoids: ['b[1-2]']}", ACROSS, "avoid b1"),
]


@pytest.mark.parametrize(("where", "wrong", "fault"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES])
def test_a_place_is_compared(where: str, wrong: tuple[tuple[str, int], ...], fault: str) -> None:
    body, right = TWO
    asked = world(body, f"{{jobs: {{P1: {{outcome: start, where: [{where}]}}}}}}")
    assert differences(asked, starts(*right)) == []
    [told] = differences(asked, starts(*wrong))
    assert fault in told


def test_interleaved_ranks_are_not_contiguous() -> None:
    asked = world("pending:\n" + pending(4), "{jobs: {P1: {outcome: start, where: [{ranks_contiguous: rack}]}}}")
    assert differences(asked, starts(("b1", 8), ("b2", 8), ("a1", 8), ("a2", 8))) == []
    [told] = differences(asked, starts(("a1", 8), ("b1", 8), ("a2", 8), ("b2", 8)))
    assert "unbroken runs of ranks in each rack, has r1 r2 r1 r2" in told


def test_groups_go_by_rank_and_not_by_count() -> None:
    asked = world("pending:\n" + pending(4), "{jobs: {P1: {outcome: start, where: [{groups: {size: 2, one: rack}}]}}}")
    [first, second] = differences(asked, starts(("a1", 8), ("b1", 8), ("a2", 8), ("b2", 8)))
    assert "workers 0 to 1" in first
    assert "workers 2 to 3" in second


FULL = "running:\n" + "".join(running(f"J{node}", f"{node}: 8") for node in ("a1", "a2", "b1", "b2", "c1", "c2"))
ONE_MORE = FULL + "pending:\n" + pending(1)


def evicts(*victims: str) -> Plan:
    kept = {f"J{node}": seats((node, 8)) for node in ("a1", "a2", "b1", "b2", "c1", "c2")}
    return starts(
        (victims[0][1:] if victims else "a1", 8), outcome="start_after_evictions",
        evicted=dict.fromkeys(victims, "P1"), kept={job: held for job, held in kept.items() if job not in victims},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        ("{none: true}", (), ("Ja1",)),
        ("{exactly: [Ja1, Jb1]}", ("Jb1", "Ja1"), ("Ja1",)),
        ("{one_of: [[Ja1], [Ja2]]}", ("Ja2",), ("Jb1",)),
        ("{one_of: [[Ja1], [Ja2]]}", ("Ja1",), ("Ja1", "Ja2")),
    ],
)
def test_victims_are_compared(wanted: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    asked = world(ONE_MORE, f"{{evict: {wanted}}}")
    assert differences(asked, evicts(*right)) == []
    [told] = differences(asked, evicts(*wrong))
    assert told.startswith("evict: expected")


def test_moves_are_compared_with_their_target() -> None:
    asked = world("running:\n" + running("J1", "a1: 4"), "{moves: {one_of: [{J1: {a2: 4}}, {J1: {b1: 4}}]}}")
    assert differences(asked, Plan(moved={"J1": Displaced(seats=seats(("b1", 4)))})) == []
    assert differences(asked, Plan(moved={"J1": Displaced(seats=seats(("b2", 4)))})) == [
        "moves: expected {'J1': {'a2': 4}} or {'J1': {'b1': 4}}, got {'J1': {'b2': 4}}"
    ]


ELASTIC = "roles: [{workers: 4, gpus_each: 8, min_workers: 2}]"


def test_a_shrink_is_compared_by_the_workers_given_up() -> None:
    asked = world(
        "running:\n" + running("J1", "'a[1-2]': 8, 'b[1-2]': 8", f", {ELASTIC}"), "{shrink: {exactly: {J1: 1}}}"
    )
    assert differences(asked, Plan(shrunk={"J1": Displaced(seats=seats(("a1", 8), ("a2", 8), ("b1", 8)))})) == []
    assert differences(asked, Plan(shrunk={"J1": Displaced(seats=seats(("a1", 8), ("a2", 8)))})) == [
        "shrink: expected {'J1': 1}, got {'J1': 2}"
    ]


def test_an_outcome_is_compared_and_the_reason_told() -> None:
    asked = world(TWO[0], "{jobs: {P1: {outcome: start}}}")
    assert differences(asked, waits("quota", "queue full")) == ["P1: expected start, got wait (queue full)"]


@pytest.mark.parametrize(("classes", "is_right"), [("quota", True), ("[capacity, quota]", True), ("capacity", False)])
def test_a_reason_is_of_one_of_the_classes(classes: str, is_right: bool) -> None:
    asked = world(TWO[0], f"{{jobs: {{P1: {{outcome: wait, reason: {{class: {classes}}}}}}}}}")
    assert (differences(asked, waits("quota")) == []) is is_right


def test_words_that_an_explanation_lacks_are_counted_and_fail_nothing() -> None:
    asked = world(TWO[0], "{jobs: {P1: {outcome: wait, reason: {class: quota, names: [Vision, '24']}}}}")
    assert differences(asked, waits("quota", "queue vision is full")) == []
    assert missing_words(asked, waits("quota", "queue vision is full")) == {"P1": ("24",)}


def test_what_a_waiting_job_holds_is_compared() -> None:
    asked = world(TWO[0], "{jobs: {P1: {outcome: wait, holds: 0}}}")
    assert differences(asked, waits()) == []
    assert differences(asked, waits(holds=8)) == ["P1: expected to hold 0 GPUs, holds 8"]


def test_the_earliest_start_is_compared() -> None:
    asked = world(TWO[0], "{jobs: {P1: {outcome: wait, earliest_start: '2026-03-02T14:00:00Z'}}}")
    at_two = asked.scenario.now + 2 * HOUR
    assert differences(asked, waits(earliest=at_two)) == []
    assert "got 2026-03-02T14:01:00" in differences(asked, waits(earliest=at_two + MINUTE))[0]
    assert "got none" in differences(asked, waits())[0]


def test_numbers_are_compared_to_a_thousandth() -> None:
    body = "running:\n" + running("J1", "a1: 3") + "pending:\n" + pending(1)
    kept = {"J1": seats(("a1", 3))}
    asked = world(body, "{numbers: {phi_frag_before: 0.1111, phi_frag_after: 0.135, borrowed_gpus: {default: 0}}}")
    assert differences(asked, starts(("a2", 8), kept=kept)) == []
    off = world(body, "{numbers: {phi_frag_after: 0.137, borrowed_gpus: {default: 1}, phi: 1}}")
    [phi, borrowed, unknown] = differences(off, starts(("a2", 8), kept=kept))
    assert phi == "numbers: expected phi_frag_after 0.137, got 0.1351"
    assert borrowed == "numbers: expected borrowed_gpus.default 1, got 0.0000"
    assert unknown.startswith("numbers: phi is none that is computed; there are borrowed_gpus")


def test_lost_work_counts_from_the_last_checkpoint() -> None:
    body = "running:\n" + running("J1", "a1: 8", ", last_checkpoint: '2026-03-02T11:30:00Z'") + running("J2", "a2: 4")
    lost = Plan(evicted={"J1": ""}, moved={"J2": Displaced(seats=seats(("b1", 4)))})
    assert numbers_of(Ledger(world(body), lost))["lost_gpu_hours"] == 8 // 2 + 4 * 10


# --- the rules that hold in every case ---

ALLOWED = "policy: {preempt_same_queue: lower_priority}\n"
TOLD_RULES = [
    ("1 half a gang", TWO[0], starts(("a1", 8)), "rule 1: P1 gets 8 GPUs; its workers need 16"),
    ("1 more than a gang", TWO[0], starts(("a1", 8), ("a2", 8), ("b1", 8)), "rule 1: P1 gets 24 GPUs"),
    ("1 below the smallest size", f"pending:\n  - {{job: P1, {PENDING}, {ELASTIC}}}\n", starts(("a1", 8)),
     "rule 1: P1 gets 8 GPUs; its workers need 16 to 32"),
    ("1 waits and holds", TWO[0], waits(holds=8), "rule 1: P1 waits and holds 8 GPUs"),
    ("2 required", "pending:\n" + pending(more=", rule: {required: rack}"), starts(*ACROSS),
     "rule 2: P1 requires one rack and is in 2"),
    ("2 groups", "pending:\n" + pending(4, more=", rule: {groups: [{size: 2, one: rack}]}"),
     starts(("a1", 8), ("a2", 8), ("b1", 8), ("c1", 8)), "rule 2: workers 2 to 3 of P1 are not in one rack"),
    ("2 preferred is widened too far", "pending:\n" + pending(more=", rule: {preferred: rack}"), starts(*ACROSS),
     "rule 2: P1 fits one rack and is spread over a spine"),
    ("2 more domains than needed", "pending:\n" + pending(4, 4, more=", rule: {preferred: node}"),
     starts(("a1", 4), ("a2", 4), ("b1", 8)), "rule 2: P1 fits one rack and is spread over a spine"),
    ("2 fewest domains inside the tier", "pending:\n" + pending(3, 4, more=", rule: {preferred: node}"),
     starts(("a1", 4), ("b1", 4), ("b2", 4)), "rule 2: P1 fits one rack"),
    ("2 fewer nodes suffice", "pending:\n" + pending(6, 4, more=", rule: {preferred: node}"),
     starts(("a1", 4), ("a2", 8), ("b1", 8), ("b2", 4)), "rule 2: P1 uses 4 domains of node where fewer suffice"),
    ("3 evicted for a job that fits", ALLOWED + "running:\n" + running("J1", "a1: 8") + "pending:\n" + pending(1),
     starts(("a1", 8), outcome="start_after_evictions", evicted={"J1": "P1"}),
     "rule 3: P1 fits free capacity, and J1 made room for it"),
    ("4 in vain", ALLOWED + ONE_MORE, Plan(evicted={"Ja1": "P1"}, waiting=waits().waiting, kept=evicts("Ja1").kept),
     "rule 4: evict Ja1: for P1, which does not start"),
    ("4 not allowed at all", ONE_MORE, evicts("Ja1"), "rule 4: evict Ja1 for P1: nobody gives way inside a queue"),
    ("4 spared", ALLOWED + ONE_MORE, evicts("Ja1", "Ja2"), "rule 4: evict Ja2 for P1: it starts without that"),
    ("5 moved without a word", ONE_MORE.replace("Ja1, ", "Ja1, preemptible: false, "),
     Plan(waiting=waits().waiting, kept={**evicts().kept, "Ja1": seats(("a1", 4))}),
     "rule 5: Ja1 keeps running, and not on the same GPUs"),
    ("5 gone without a word", ONE_MORE, Plan(waiting=waits().waiting, kept=evicts("Ja1").kept),
     "rule 5: Ja1 ran and no longer does"),
    ("8 more than a node has", FULL + "pending:\n" + pending(1), starts(("a1", 8), kept=evicts().kept),
     "rule 8: a1 has 8 GPUs and gives 16"),
    ("8 a worker on two nodes", "pending:\n" + pending(1), starts(("a1", 4), ("a2", 4)),
     "rule 8: a worker of P1 is on more than one node"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "plan", "fault"), [row[1:] for row in TOLD_RULES], ids=[row[0] for row in TOLD_RULES])
def test_a_broken_rule_is_named(body: str, plan: Plan, fault: str) -> None:
    assert any(told.startswith(fault) for told in broken_rules(world(body), plan)), broken_rules(world(body), plan)


@pytest.mark.parametrize(
    ("body", "plan"),
    [
        (TWO[0], starts(*TWO[1])),
        ("pending:\n" + pending(6, 4, more=", rule: {preferred: node}"), starts(("a1", 8), ("a2", 8), ("b1", 8))),
        (ALLOWED + ONE_MORE, evicts("Ja1")),
        (ONE_MORE, Plan(waiting=waits().waiting, kept=evicts().kept)),
    ],
    ids=["start", "fewest nodes", "one victim", "wait"],
)
def test_a_sound_plan_breaks_no_rule(body: str, plan: Plan) -> None:
    assert broken_rules(world(body), plan) == []


@pytest.mark.parametrize(
    ("victim", "policy", "why"),
    [
        (", preemptible: false", "preempt_same_queue: lower_priority", "it is not preemptible"),
        (", priority: 50", "preempt_same_queue: lower_priority", "its priority is not lower"),
        ("", "preempt_same_queue: lower_priority, min_runtime: 11h", "it is younger than min_runtime"),
        (", stopping_until: '2026-03-02T12:05:00Z'", "preempt_same_queue: lower_priority", "it is not running"),
    ],
)
def test_a_victim_the_policy_protects_is_named(victim: str, policy: str, why: str) -> None:
    body = f"policy: {{{policy}}}\n" + ONE_MORE.replace("placement: {a1: 8}", "placement: {a1: 8}" + victim)
    assert f"rule 4: evict Ja1 for P1: {why}" in broken_rules(world(body), evicts("Ja1"))


@pytest.mark.parametrize(
    ("policy", "more", "why"),
    [
        ("{}", "", "running jobs are not moved"),
        ("{move_running_jobs: preemptible}", "", None),
        ("{move_running_jobs: preemptible}", ", preemptible: false", "it is not preemptible"),
    ],
)
def test_who_may_be_moved(policy: str, more: str, why: str | None) -> None:
    rest = "".join(running(f"K{node}", f"{node}: 8") for node in ("b1", "b2", "c1", "c2"))
    body = f"policy: {policy}\nrunning:\n" + running("J1", "a1: 4", more) + running("J2", "a2: 4") + rest
    moved = starts(
        ("a1", 8), outcome="start_after_moves", moved={"J1": Displaced(seats=seats(("a2", 4)), owner="P1")},
        kept={"J2": seats(("a2", 4)), **{f"K{node}": seats((node, 8)) for node in ("b1", "b2", "c1", "c2")}},
    )  # fmt: skip
    found = broken_rules(world(body + "pending:\n" + pending(1)), moved)
    assert found == ([] if why is None else [f"rule 4: move J1 for P1: {why}"])


def test_only_an_elastic_gang_is_shrunk() -> None:
    rest = running("J2", "'b[1-2]': 8, 'c[1-2]': 8")
    shrunk = starts(
        ("a2", 8), outcome="start_after_shrink", shrunk={"J1": Displaced(seats=seats(("a1", 8)), owner="P1")},
        kept={"J2": seats(("b1", 8), ("b2", 8), ("c1", 8), ("c2", 8))},
    )  # fmt: skip
    roles = "roles: [{workers: 2, gpus_each: 8, min_workers: 1}]"
    elastic = ALLOWED + "running:\n" + running("J1", "'a[1-2]': 8", f", {roles}") + rest + "pending:\n" + pending(1)
    assert broken_rules(world(elastic), shrunk) == []
    rigid = world(elastic.replace(", min_workers: 1", ""))
    assert "rule 4: shrink J1 for P1: it is not elastic" in broken_rules(rigid, shrunk)
    assert "rule 1: J1 gets 8 GPUs; its workers need 16" in broken_rules(rigid, shrunk)


QUEUES = (
    "queues:\n  - {name: A, guaranteed: 16}\n  - {name: B, guaranteed: 32}\npolicy: {preempt_other_queues: reclaim}\n"
)


def reclaim(nodes: int, taker: int) -> tuple[World, Plan]:
    """A runs on so many nodes and the rest is used by B; a job of B takes so many nodes of A's."""
    names = ("a1", "a2", "b1", "b2", "c1", "c2")
    rows = [running(f"J{n}", f"{n}: 8", f", queue: {'A' if i < nodes else 'B'}") for i, n in enumerate(names)]
    body = QUEUES + "running:\n" + "".join(rows) + "pending:\n" + pending(taker, more=", queue: B")
    victims = names[:taker]
    plan = starts(
        *((name, 8) for name in victims), outcome="start_after_evictions",
        evicted={f"J{name}": "P1" for name in victims},
        kept={f"J{name}": seats((name, 8)) for name in names[taker:]},
    )  # fmt: skip
    return world(body), plan


@pytest.mark.parametrize(
    ("nodes", "taker", "faults"),
    [
        (4, 2, set()),
        (3, 1, set()),
        (3, 2, {"A falls below its guarantee", "B does not stay within its guarantee"}),
        (2, 1, {"A falls below its guarantee", "A is not above its guarantee", "B does not stay within its guarantee"}),
    ],
)
def test_reclaim_takes_only_what_was_borrowed(nodes: int, taker: int, faults: set[str]) -> None:
    found = broken_rules(*reclaim(nodes, taker))
    assert {told.rpartition(": ")[2] for told in found if told.startswith("rule 4")} == faults


def test_nothing_is_taken_between_queues_without_a_policy() -> None:
    asked, plan = reclaim(4, 2)
    silent = World(asked.scenario.model_copy(update={"policy": world("").scenario.policy}))
    assert {told.rpartition(": ")[2] for told in broken_rules(silent, plan)} == {"queues do not take from each other"}


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("state: down", ", which is down"),
        ("state: cordoned", ", which is cordoned"),
        (
            "maintenance: [{from: '2026-03-02T13:00:00Z', to: '2026-03-02T15:00:00Z'}]",
            ", which has maintenance before it ends",
        ),
    ],
)
def test_no_new_work_where_none_is_taken(state: str, fault: str) -> None:
    body = "pending:\n" + pending(1, more=", time_limit: 2h")
    scenario = f"{HEAD.replace('gpus: 8', f'gpus: 8, {state}', 1)}{body}expect: {{}}\n"
    found, _ = read_scenario(scenario.encode(), "by-hand.yaml")
    assert found is not None
    assert broken_rules(World(found), starts(("a1", 8))) == [f"rule 6: P1 is put on a1{fault}"]
    assert broken_rules(World(found), starts(("b1", 8))) == []


def test_work_that_ends_before_the_maintenance_may_run() -> None:
    outage = "maintenance: [{from: '2026-03-02T13:00:00Z', to: '2026-03-02T15:00:00Z'}]"
    body = "pending:\n" + pending(1, more=", time_limit: 1h")
    found, _ = read_scenario(
        f"{HEAD.replace('gpus: 8', f'gpus: 8, {outage}', 1)}{body}expect: {{}}\n".encode(), "x.yaml"
    )
    assert found is not None
    assert broken_rules(World(found), starts(("a1", 8))) == []


PROMISED = (
    "promises:\n  - {job: P1, nodes: {'a[1-2]': 8}, made: '2026-03-02T11:58:00Z', waiting_for: [J1]}\n"
    "running:\n" + running("J1", "a2: 8", ", stopping_until: '2026-03-02T12:05:00Z'")
    + "pending:\n" + pending(2) + pending(1, job="P2")
)  # fmt: skip


@pytest.mark.parametrize(
    ("node", "faults"), [("b1", []), ("a1", ["rule 6: 8 GPUs of a1: promised to one, and given to others"])]
)
def test_promised_capacity_is_nobody_elses(node: str, faults: list[str]) -> None:
    plan = Plan(
        started={"P2": Started(outcome="start", seats=seats((node, 8)))}, waiting=waits("stopping").waiting,
        kept={"J1": seats(("a2", 8))},
    )  # fmt: skip
    assert broken_rules(world(PROMISED), plan) == faults


def test_nobody_without_an_end_starts_on_what_is_held_for_a_starved_job() -> None:
    starved = pending(6).replace("2026-03-02T11", "2026-03-01T06")
    body = "policy: {hold_for_starved_after: 24h}\nrunning:\n" + running("J1", "c2: 8") + "pending:\n" + starved
    plan = Plan(
        started={"P2": Started(outcome="start", seats=seats(("a1", 8)))}, waiting=waits().waiting,
        kept={"J1": seats(("c2", 8))},
    )  # fmt: skip
    assert broken_rules(world(body + pending(1, job="P2")), plan) == [
        "rule 6: P2 starts on capacity that is held for P1"
    ]
    assert broken_rules(world(body + pending(1, job="P2", more=", time_limit: 1h")), plan) == []


def test_limits_of_queues() -> None:
    queues = "queues:\n  - {name: A, guaranteed: 8, borrow_limit: 8}\n  - {name: B, guaranteed: 32, lend_limit: 0}\n"
    asked = world(queues + "pending:\n" + pending(3, more=", queue: A"))
    assert broken_rules(asked, starts(("a1", 8), ("a2", 8), ("b1", 8))) == ["rule 7: A borrows 16 GPUs of at most 8"]
    unlimited = world(queues.replace(", borrow_limit: 8", "") + "pending:\n" + pending(3, more=", queue: A"))
    assert broken_rules(unlimited, starts(("a1", 8), ("a2", 8), ("b1", 8))) == [
        "rule 7: A borrows 16 GPUs, more than the other queues lend"
    ]
    two = world(queues + "pending:\n" + pending(2, more=", queue: A"))
    assert broken_rules(two, starts(*TWO[1])) == []
    assert broken_rules(two, waits("quota")) == ["rule 7: P1 waits for quota, and A has room for it"]
    assert broken_rules(asked, waits("quota")) == []


def test_gpu_types() -> None:
    head = HEAD.replace("{names: 'b[1-2]', gpus: 8, type: h100}", "{names: 'b[1-2]', gpus: 8, type: l40s}")

    def asked(rule: str, types: str = "") -> World:
        role = f"{{workers: 2, gpus_each: 8{types}}}"
        body = f"{head}pending:\n  - {{job: P1, {PENDING}, roles: [{role}]{rule}}}\nexpect: {{}}\n"
        found, problems = read_scenario(body.encode(), "by-hand.yaml")
        assert found is not None, problems
        return World(found)

    assert broken_rules(asked(""), starts(*ACROSS)) == []
    assert broken_rules(asked(", rule: {same_gpu_type: true}"), starts(*ACROSS)) == [
        "rule 2: P1 uses h100, l40s and wants one GPU type"
    ]
    assert broken_rules(asked("", ", gpu_types: [h100]"), starts(*ACROSS)) == ["rule 2: P1 may not use l40s"]


def test_a_broken_gang_is_judged_by_what_is_left_of_it() -> None:
    head = DOWN
    row = running("J1", "'a[1-2]': 8", ", roles: [{workers: 2, gpus_each: 8}]")
    body = f"{head}running:\n{row}expect: {{}}\n"
    found, problems = read_scenario(body.encode(), "by-hand.yaml")
    assert found is not None, problems
    asked = World(found)
    assert broken_rules(asked, starts(("a1", 8), ("b1", 8), outcome="repair", job="J1")) == []
    assert broken_rules(asked, starts(("a1", 8), ("a2", 8), outcome="repair", job="J1")) == [
        "rule 6: J1 is put on a2, which is down"
    ]


# --- files ---


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("gpus_each: 8", "gpu_each: 8", "UnknownField", 15),
        ("format: gang-scenario/1", "format: gang-scenario/2", "UnknownFormat", 2),
        ("id: by-hand", "id: by-hand\nid: again", "DuplicateKey", 4),
        ("a[1-2]", "a[2-1]", "BadNodeList", 9),
        ("job: P1", "job: P1, queue: nlp", "UnknownQueue", 15),
        ("expect: {}", "expect: {jobs: {P9: {outcome: start}}}", "UnknownJob", 16),
        ("expect: {}", "expect: {jobs: {P1: {outcome: begin}}}", "UnknownValue", 16),
        ("expect: {}", "expect: {jobs: {P1: {outcome: start, where: [{avoids: [z1]}]}}}", "UnknownNode", 16),
        ("roles: [{role: worker, workers: 2", "rule: {groups: [{size: 3, one: rack}]}, roles: [{role: worker, workers: 2", "BadGroups", 15),
        ("2026-03-02T11:00", "2026-03-02T13:00", "InTheFuture", 15),
        ("names: 'b[1-2]'", "names: 'a[2-3]'", "NamedTwice", 6),
        ("pending:", "running: [{job: J, started: '2026-03-02T02:00:00Z', placement: {a1: 9}}]\npending:", "NodeOverfull", 14),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_has_its_place(old: str, new: str, code: str, line: int) -> None:
    text = f"{HEAD}{TWO[0]}expect: {{}}\n"
    assert old in text
    scenario, problems = read_scenario(text.replace(old, new, 1).encode(), "mine.yaml")
    assert scenario is None
    assert [(problem.code, problem.place.line) for problem in problems] == [(code, line)]
    assert all(problem.place.file == "mine.yaml" and problem.place.column > 0 for problem in problems)


def test_a_folder_is_looked_through_and_an_empty_one_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.yaml").write_text("x")
    (tmp_path / "a.yml").write_text("x")
    (tmp_path / "README.md").write_text("x")
    assert scenario_files([tmp_path]) == [tmp_path / "a.yml", tmp_path / "inner" / "b.yaml"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound) as empty:
        scenario_files([tmp_path / "empty"])
    assert empty.value.code == "NoScenarios"
    with pytest.raises(NotFound) as absent:
        scenario_files([tmp_path / "absent"])
    assert absent.value.code == "PathNotFound"


def test_the_verb_says_what_differs_and_ends_with_one(tmp_path: Path) -> None:
    right = f"{HEAD}{TWO[0]}expect: {{jobs: {{P1: {{outcome: start}}}}}}\n"
    (tmp_path / "1.yaml").write_text(right)
    (tmp_path / "2.yaml").write_text(
        right.replace("id: by-hand", "id: wrong").replace("outcome: start", "outcome: wait")
    )
    (tmp_path / "3.yaml").write_text("format: none\n")
    asked = CliRunner().invoke(root, ["test", str(tmp_path)], standalone_mode=False)
    lines = asked.output.splitlines()
    assert asked.return_value == 1
    assert lines[:3] == ["pass   by-hand", "fail   wrong", "       P1: expected wait, got start"]
    assert lines[-1] == "3 scenarios: 1 passed, 1 failed, 1 in error"
    alone = CliRunner().invoke(root, ["test", str(tmp_path / "1.yaml")], standalone_mode=False)
    assert alone.return_value == 0


def test_json_has_the_plan_by_plain_names(tmp_path: Path) -> None:
    body = "running:\n" + running("J1", "b1: 8") + "pending:\n" + pending(3, 4) + pending(9, job="P2")
    (tmp_path / "1.yaml").write_text(f"{HEAD}{body}expect: {{jobs: {{P2: {{outcome: impossible}}}}}}\n")
    asked = CliRunner().invoke(root, ["test", "-o", "json", str(tmp_path)], standalone_mode=False)
    tree = json.loads(asked.output)
    [case] = tree["scenarios"]
    assert (tree["formatVersion"], case["id"], case["result"], case["failures"]) == ("1.0", "by-hand", "pass", [])
    plan = case["plan"]
    assert list(plan) == ["start", "evict", "moves", "shrink", "wait", "keep", "numbers"]
    assert plan["start"]["P1"]["outcome"] == "start"
    assert sum(plan["start"]["P1"]["placement"].values()) == 12
    assert [plan["start"]["P1"]["placement"][node] for node in plan["start"]["P1"]["ranks"]]
    assert len(plan["start"]["P1"]["ranks"]) == 3
    assert plan["wait"]["P2"]["class"] == "never_fits"
    assert (plan["evict"], plan["moves"], plan["shrink"], plan["keep"]) == ([], {}, {}, ["J1"])
    assert plan["numbers"]["idle_gpus_before"] == 40


def test_json_of_moves_and_shrinks() -> None:
    body = (
        "running:\n"
        + running("J1", "a1: 4")
        + running("J2", "'b[1-2]': 8", ", roles: [{workers: 2, gpus_each: 8, min_workers: 1}]")
    )
    plan = Plan(
        moved={"J1": Displaced(seats=seats(("a2", 4)))}, shrunk={"J2": Displaced(seats=seats(("b1", 8)))}
    )  # fmt: skip
    tree = plan_tree(world(body), plan)
    assert (tree["moves"], tree["shrink"]) == ({"J1": {"a2": 4}}, {"J2": 1})


# --- what the planner decided, in the words of the format ---

GANG = "running:\n" + running("J1", "'a[1-2]': 8", ", roles: [{workers: 2, gpus_each: 8, min_workers: 1}]")


def decided(body: str, *, head: str = HEAD, **changes: JobRecord | None) -> Plan:
    """The plan when these records are what follows on the scenario."""
    scenario, problems = read_scenario(f"{head}{body}expect: {{}}\n".encode(), "by-hand.yaml")
    assert scenario is not None, problems
    inputs = inputs_of(World(scenario))
    jobs = {**inputs.previous.jobs, **{JobKey(f"default/{name}"): record for name, record in changes.items()}}
    after = replace(inputs.previous, jobs={key: record for key, record in jobs.items() if record is not None})
    return plan_of(World(scenario), inputs.previous, after, lambda record: record.reason.code)


def record(body: str, name: str, *, head: str = HEAD) -> JobRecord:
    scenario, _ = read_scenario(f"{head}{body}expect: {{}}\n".encode(), "by-hand.yaml")
    assert scenario is not None
    return inputs_of(World(scenario)).previous.jobs[JobKey(f"default/{name}")]


def placed(*nodes: tuple[str, int]) -> Placement:
    ranks = (
        RankPlace(rank=rank, node=NodeName(node), local_rank=0, gpu=0, numa=0, nic="", rail=0)
        for rank, node in enumerate(seats(*nodes))
    )
    return Placement(ranks=tuple(ranks), level=LevelName("cluster"), domain="cluster")


def promised(*nodes: tuple[str, int]) -> Promise:
    return Promise(placement=placed(*nodes), made=Instant(1), deadline=Instant(1), waiting_for=())


def leaving(cause: Cause, promise: Promise | None = None) -> JobRecord:
    before = record(GANG, "J1")
    return replace(before, state=JobState.STOPPING, cause=cause, promise=promise, preemptor=JobKey("default/P1"))


@pytest.mark.parametrize(
    ("cause", "target", "outcome", "part"),
    [
        (Cause.PREEMPTED, None, "start_after_evictions", "evicted"),
        (Cause.RECLAIMED, None, "start_after_evictions", "evicted"),
        (Cause.FAIR_SHARE, None, "start_after_evictions", "evicted"),
        (Cause.MOVED, promised(("b1", 8), ("b2", 8)), "start_after_moves", "moved"),
        (Cause.RESIZED, promised(("a2", 8)), "start_after_shrink", "shrunk"),
    ],
)
def test_a_promise_is_told_by_what_others_suffer_for_it(
    cause: Cause, target: Promise | None, outcome: str, part: str
) -> None:
    body = GANG + "pending:\n" + pending(1)
    start = replace(record(body, "P1"), state=JobState.PROMISED, promise=promised(("a1", 8)))
    plan = decided(body, J1=leaving(cause, target), P1=start)
    assert (plan.outcome("P1"), set(plan.displaced_for("P1"))) == (outcome, {"J1"})
    assert list(getattr(plan, part)) == ["J1"]
    assert plan.seats("J1") == (None if target is None else tuple(r.node for r in target.placement.ranks))


def test_a_promise_without_victims_waits_for_what_is_leaving_anyway() -> None:
    body = (
        GANG.replace("min_workers: 1}]", "min_workers: 1}], stopping_until: '2026-03-02T12:05:00Z'")
        + "pending:\n"
        + pending(1)
    )
    plan = decided(body, P1=replace(record(body, "P1"), state=JobState.PROMISED, promise=promised(("a1", 8))))
    assert (plan.outcome("P1"), plan.evicted, plan.outcome("J1")) == ("start_after_evictions", {}, "keep")


DOWN = HEAD.replace("{names: 'a[1-2]', gpus: 8, type: h100}",
                    "{name: a1, gpus: 8, type: h100}, {name: a2, gpus: 8, type: h100, state: down}")  # fmt: skip


def test_a_gang_with_a_node_down_waits_for_repair_with_what_is_left() -> None:
    broken = record(GANG, "J1", head=DOWN)
    assert broken.placement is not None
    assert (broken.state, broken.cause, broken.placement.nodes) == (JobState.REPAIRING, Cause.NODE_LOST, ("a1",))
    assert [rank.rank for rank in broken.placement.ranks] == list(range(8))
    whole = replace(broken, state=JobState.STARTING, placement=placed(("a1", 8), ("b1", 8)))
    assert decided(GANG, head=DOWN, J1=whole).outcome("J1") == "repair"
    anew = replace(broken, state=JobState.STARTING, placement=placed(("b1", 8), ("b2", 8)))
    assert decided(GANG, head=DOWN, J1=anew).outcome("J1") == "restart"
    assert decided(GANG, head=DOWN).outcome("J1") == "wait"


def test_a_gang_that_lost_all_its_nodes_is_pending_with_its_old_age() -> None:
    lost = record("running:\n" + running("J1", "a2: 8"), "J1", head=DOWN)
    assert (lost.state, lost.cause, lost.placement) == (JobState.PENDING, Cause.NODE_LOST, None)
    assert lost.submitted == lost.since - 10 * HOUR


def test_lost_workers_leave_the_last_ranks_to_be_filled() -> None:
    body = "running:\n" + running("J1", "a1: 8", ", roles: [{workers: 2, gpus_each: 8}], missing_workers: 1")
    broken = record(body, "J1")
    assert broken.placement is not None
    assert (broken.state, len(broken.placement.ranks)) == (JobState.REPAIRING, 8)


# --- what the planner is given ---


def test_a_promise_takes_what_is_free_and_what_its_victims_hold() -> None:
    [waits_for] = [record(PROMISED, "J1")]
    first = record(PROMISED, "P1")
    assert first.promise is not None
    assert (first.state, first.promise.waiting_for, first.victims) == (
        JobState.PROMISED,
        ("default/J1",),
        ("default/J1",),
    )
    assert first.promise.placement.masks == {"a1": 255, "a2": 255}
    assert (waits_for.state, waits_for.preemptor) == (JobState.STOPPING, "default/P1")
    assert waits_for.deadline == first.promise.deadline


def test_gangs_of_unlike_roles_stay_roles_and_groups_become_dimensions() -> None:
    roles = "[{role: leader, workers: 1, gpus_each: 1}, {workers: 2, gpus_each: 8}]"
    inputs = inputs_of(world(f"pending:\n  - {{job: P1, {PENDING}, roles: {roles}, rule: {{required: rack}}}}\n"))
    [unlike] = inputs.desired.jobs.values()
    assert ([(r.name, r.workers, r.gpus_each) for r in unlike.roles], unlike.dimensions, unlike.gpus) == (
        [("leader", 1, 1), ("worker", 2, 8)], (), 17,
    )  # fmt: skip
    groups = ", rule: {groups: [{size: 4, one: spine}, {size: 2, one: rack}]}"
    [nested] = inputs_of(world("pending:\n" + pending(8, 4, more=groups))).desired.jobs.values()
    assert [(one.name, one.size) for one in nested.dimensions] == [
        ("tensor", 4),
        ("pipeline", 2),
        ("pipeline2", 2),
        ("data", 2),
    ]
    assert {(one.group, one.level) for one in nested.required} == {
        ("tensor", "node"), ("pipeline", "rack"), ("pipeline2", "spineGroup"),
    }  # fmt: skip


@pytest.mark.parametrize(("more", "mixes"), [("", True), (", rule: {same_gpu_type: true}", False)])
def test_gpu_types_may_be_mixed_where_nothing_is_said(more: str, mixes: bool) -> None:
    head = HEAD.replace("{names: 'b[1-2]', gpus: 8, type: h100}", "{names: 'b[1-2]', gpus: 8, type: l40s}")
    found, _ = read_scenario(f"{head}pending:\n{pending(more=more)}expect: {{}}\n".encode(), "by-hand.yaml")
    assert found is not None
    [job] = inputs_of(World(found)).desired.jobs.values()
    assert (job.mixed_types, job.gpu_types) == (mixes, ("h100", "l40s"))


def test_ranks_say_where_each_worker_is() -> None:
    row = "roles: [{workers: 4, gpus_each: 4}], ranks: [b1, a1, b1, a1]"
    made = world("running:\n" + running("J1", "a1: 8, b1: 8", f", {row}"))
    assert seats_of(made.running["J1"]) == seats(("b1", 4), ("a1", 4), ("b1", 4), ("a1", 4))


def test_unlike_workers_are_seated_where_they_fit() -> None:
    row = "roles: [{role: leader, workers: 1, gpus_each: 1}, {workers: 2, gpus_each: 8}]"
    made = world("running:\n" + running("J1", "c1: 1, 'a[1-2]': 8", f", {row}"))
    assert seats_of(made.running["J1"]) == seats(("c1", 1), ("a1", 8), ("a2", 8))


def test_past_use_is_halved_exactly_at_each_half_life() -> None:
    usage = "usage: [{gpu_hours: 100, at: '2026-02-16T12:00:00Z'}, {gpu_hours: 0.5, at: '2026-03-02T12:00:00Z'}]"
    inputs = inputs_of(world(f"queues: [{{name: A, guaranteed: 8, {usage}}}]"))
    [account] = inputs.previous.usage
    assert (account.queue, account.gpu_type, account.acc) == ("A", "h100", 25_500 * 3600)


def test_a_policy_left_out_takes_no_part() -> None:
    rules = inputs_of(world("")).desired.scheduling
    assert (rules.preempt_same_queue, rules.preempt_other_queues, rules.jobs_may_pass) == ("never", "never", "never")
    assert (rules.backfill, rules.cooldown, rules.move_to_start, rules.reclaim_straddlers) == (
        "none",
        0,
        "never",
        False,
    )
    assert rules.hold_for_starved_after > 1000 * HOUR
    assert rules.max_per_day > 1000


def test_a_sound_elastic_gang_is_not_asked_to_grow() -> None:
    inputs = inputs_of(world("running:\n" + running("J1", "'a[1-2]': 8, b1: 8", f", {ELASTIC}")))
    [job] = inputs.desired.jobs.values()
    assert job.elastic is not None
    assert (job.gpus, job.elastic.least, job.elastic.most) == (24, 2, 3)
