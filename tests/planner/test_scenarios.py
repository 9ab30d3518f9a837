"""The handed scheduling scenarios that this planner already answers: outcome, victims, places, reasons, Phi.

Each file is a small cluster with one clear right answer. Those about borrowing, reclaim, backfill, strict order, holds,
moves, elastic gangs and repair by spares are not in the list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.job import Dimension, Job, OnPreempt
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.observed import JobObservation, NodeCondition, Observed
from reconciler.model.queue import Queue, Scheduling
from reconciler.model.units import SECOND, DomainName, Gpus, GpuType, Instant, JobKey, Nanoseconds, NodeName, QueueName
from reconciler.planner.decide import decide
from reconciler.planner.verify import violations
from tests.planner.worlds import (
    allocation,
    inventory,
    job,
    localities,
    pending,
    priority,
    ready,
    running,
    saw,
    shape,
    with_node,
    world,
)

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "scenarios"

ANSWERED = ("s01", "s02", "s03", "s04", "s05", "s06", "s07", "s08", "s09", "s10", "s11", "s12", "s13", "s17", "s18",
            "s19", "s20", "s21", "s22", "s27")  # fmt: skip

LEVELS = {"node": "node", "rack": "rack", "spine": "spineGroup"}
VICTIMS = {"lowest_priority": "lowestPriority", "least_lost_work": "leastLostWork", "fewest_jobs": "fewestJobs"}
CLASSES = {
    "NeverFits": "never_fits", "NeverFitsQuota": "quota", "QuotaCeiling": "quota", "Capacity": "capacity",
    "NoDomainFits": "fragmented", "GroupsDoNotFit": "fragmented", "Protected": "protected", "NodeState": "node_state",
    "GpuTypeMissing": "gpu_type", "GpuTypeSplit": "gpu_type", "HeldFor": "held_for", "WaitingForVictims": "stopping",
    "AfterPreemptor": "held_for",
}  # fmt: skip

Tree = Mapping[str, Any]


def at(text: str) -> Instant:
    return Instant(int(datetime.fromisoformat(text).timestamp()) * SECOND)


def names(text: str) -> list[str]:
    """`x[01-18]` is eighteen names."""
    found = re.fullmatch(r"(.*)\[(\d+)-(\d+)\](.*)", text)
    if not found:
        return [text]
    head, low, high, tail = found.groups()
    return [f"{head}{number:0{len(low)}}{tail}" for number in range(int(low), int(high) + 1)]


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]]


class Scenario:
    """One file as the four inputs of `decide`."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.now = tree, at(tree["now"])
        self.nodes, self.states = self._nodes()
        self.desired = self._desired()
        self.records = [self._record(row) for row in tree.get("running", ())]
        self.records += [pending(self.desired, self._key(row), at(row["submitted"])) for row in tree.get("pending", ())]

    def _nodes(self) -> tuple[list[Node], dict[str, str]]:
        nodes, states = [], {}
        for spine in self.tree["cluster"]["spines"]:
            for rack in spine["racks"]:
                for row in rack["nodes"]:
                    for name in names(row.get("name") or row["names"]):
                        path = (DomainName(spine["name"]), DomainName(rack["name"]))
                        made = shape(row["gpus"], row["type"])
                        nodes.append(Node(name=NodeName(name), shape=made, path=path, labels={}))
                        states[name] = row.get("state", "ready")
        return sorted(nodes, key=lambda node: node.name), states

    def _desired(self) -> Desired:
        rows = [*self.tree.get("running", ()), *self.tree.get("pending", ())]
        values = sorted({(row["priority"], row["preemptible"]) for row in rows})
        classes = [priority(f"p{value}-{safe}".lower(), value, preemptible=safe) for value, safe in values]
        policy = self.tree.get("policy", {})
        order = policy.get("victim_order", ("lowest_priority", "fewest_jobs", "least_lost_work"))
        lower = policy.get("preempt_same_queue") == "lower_priority"
        rules = Scheduling(
            order="priorityThenAge", preempt_same_queue="lowerPriority" if lower else "never",
            victim_order=tuple(VICTIMS[name] for name in order), cooldown=Nanoseconds(0), backfill="none",
            min_runtime=Nanoseconds(seconds(policy.get("min_runtime", "0s")) * SECOND),
            move_to_start=policy.get("move_running_jobs", "never"), defragment_action="never",
        )  # fmt: skip
        queues = [self._queue(row) for row in self.tree.get("queues", ({"name": "default"},))]
        made = world(jobs=[self._job(row) for row in rows], queues=queues, classes=classes, rules=rules)
        made = replace(made, inventory=replace(inventory(), nodes=tuple(self.nodes)))
        for name, state in self.states.items():
            made = with_node(made, name, cordoned="asked" if state == "cordoned" else "")
        return made

    def _queue(self, row: Tree) -> Queue:
        limit = row.get("borrow_limit")
        ceiling = {} if limit is None else {kind: Gpus(row["guaranteed"] + limit) for kind in self._types()}
        return Queue(name=QueueName(row["name"]), parent=None, guaranteed={}, ceiling=ceiling)

    def _types(self) -> list[GpuType]:
        return sorted({node.shape.gpu_type for node in self.nodes})

    def _key(self, row: Tree) -> str:
        return f"{row['queue']}/{row['job']}"

    def _job(self, row: Tree) -> Job:
        """Workers become a tensor group inside a node; a group of workers, one dimension more."""
        roles, rule = row.get("roles") or self._roles_of_running(row), row.get("rule", {})
        total = sum(role["workers"] * role["gpus_each"] for role in roles)
        name = f"p{row['priority']}-{row['preemptible']}".lower()
        required = {"job": LEVELS[rule["required"]]} if "required" in rule else {}
        preferred = {"job": LEVELS[rule["preferred"]]} if "preferred" in rule else {}
        made = job(self._key(row), total, name, preferred=preferred, required=required)
        types = roles[0].get("gpu_types") or self._types()
        made = replace(made, gpu_types=tuple(GpuType(kind) for kind in types), on_preempt=OnPreempt.REQUEUE)
        if len(roles) > 1:
            return replace(
                made,
                dimensions=(),
                roles=job("q/r", 1, roles=[(r["role"], r["workers"], r["gpus_each"]) for r in roles]).roles,
            )
        workers, each = roles[0]["workers"], roles[0]["gpus_each"]
        sizes = {"tensor": each}
        required["tensor"] = "node"
        for group in rule.get("groups", ()):
            sizes["pipeline"] = group["size"]
            required["pipeline"] = LEVELS[group["one"]]
        sizes["data"] = workers // sizes.get("pipeline", 1)
        dimensions = tuple(Dimension(name=name, size=size) for name, size in sizes.items())
        return replace(made, dimensions=dimensions, required=localities(required))

    def _roles_of_running(self, row: Tree) -> list[dict[str, Any]]:
        return [{"role": "rank", "workers": sum(self._placed(row).values()), "gpus_each": 1}]

    def _placed(self, row: Tree) -> dict[str, int]:
        return {name: gpus for text, gpus in row["placement"].items() for name in names(text)}

    def _record(self, row: Tree) -> JobRecord:
        began = at(row["started"])
        taken: dict[str, int] = {}
        for other in self.tree["running"]:
            if other is row:
                break
            for name, gpus in self._placed(other).items():
                taken[name] = taken.get(name, 0) + gpus
        spots = {name: range(taken.get(name, 0), taken.get(name, 0) + n) for name, n in self._placed(row).items()}
        return replace(running(self.desired, self._key(row), spots, started=began), submitted=began)

    def observed(self) -> Observed:
        seen = ready(self.desired, *self.records, at=self.now)
        for name, state in self.states.items():
            if state == "down":
                seen = saw(seen, name, condition=NodeCondition.LOST)
        saves = {
            record.job: JobObservation(job=record.job, attempt=1, checkpoint=at(row["last_checkpoint"]))
            for record, row in zip(self.records, self.tree.get("running", ()), strict=False)
            if "last_checkpoint" in row
        }
        return replace(seen, jobs=saves)

    def decide(self) -> Allocation:
        """The answer; the judge must accept it."""
        before = allocation(self.desired, *self.records, at=Instant(self.now - SECOND))
        after = decide(self.desired, self.observed(), before, self.now).allocation
        assert violations(self.desired, self.observed(), before, after) == ()
        return after

    def domain(self, tier: str, node: str) -> str:
        found = next(one for one in self.nodes if one.name == node)
        return {"node": found.name, "rack": found.path[1], "spine": found.path[0]}[tier]


def outcome(record: JobRecord) -> str:
    if record.state is JobState.STARTING:
        return "start"
    if record.state is JobState.PROMISED:
        return "start_after_evictions"
    if record.reason.code == "NeverFits":
        return "impossible"
    return "keep" if record.state is JobState.RUNNING else "wait"


def check_place(scenario: Scenario, record: JobRecord, rule: Tree) -> None:
    place = record.placement or (record.promise and record.promise.placement)
    assert place
    gpus = {str(node): mask.bit_count() for node, mask in place.masks.items()}
    each = max(1, len(place.ranks) // sum(r["workers"] for r in scenario_row(scenario, record)["roles"]))
    for kind, wanted in rule.items():
        if kind == "nodes":
            assert gpus == {name: n for text, n in wanted.items() for name in names(text)}
        elif kind in ("exactly", "within", "count"):
            for tier, domains in wanted.items():
                used = {scenario.domain(tier, node) for node in gpus}
                fits = {
                    "exactly": lambda u, d: u == set(d),
                    "within": lambda u, d: u <= set(d),
                    "count": lambda u, d: len(u) == d,
                }
                assert fits[kind](used, domains), (kind, used, domains)
        elif kind == "one":
            assert len({scenario.domain(wanted, node) for node in gpus}) == 1
        elif kind == "per":
            for tier, workers in wanted.items():
                counts: dict[str, int] = {}
                for node, n in gpus.items():
                    counts[scenario.domain(tier, node)] = counts.get(scenario.domain(tier, node), 0) + n
                assert counts == {name: n * each for name, n in workers.items()}
        elif kind == "groups":
            size = wanted["size"] * each
            for first in range(0, len(place.ranks), size):
                assert len({scenario.domain(wanted["one"], r.node) for r in place.ranks[first : first + size]}) == 1
        elif kind == "ranks_contiguous":
            runs = [scenario.domain(wanted, rank.node) for rank in place.ranks]
            assert sum(a != b for a, b in pairwise(runs)) == len(set(runs)) - 1
        else:
            assert kind == "avoids", kind
            assert not set(gpus) & {name for text in wanted for name in names(text)}


def scenario_row(scenario: Scenario, record: JobRecord) -> Tree:
    return next(row for row in scenario.tree["pending"] if scenario._key(row) == record.job)


@pytest.mark.parametrize("number", ANSWERED)
def test_scenario(number: str) -> None:
    if not CORPUS.is_dir():
        pytest.skip("the corpus of scenarios is not beside this repository")
    scenario = Scenario(YAML(typ="safe").load(next(CORPUS.glob(f"{number}-*.yaml"))))
    expected = scenario.tree["expect"]
    after = scenario.decide()
    evicted = sorted(r.job.split("/")[1] for r in after.jobs.values() if r.cause is Cause.PREEMPTED)
    wanted = expected.get("evict", {"none": True})
    assert evicted in (wanted.get("one_of") or [wanted.get("exactly", [])])
    by_name = {key.split("/")[1]: record for key, record in after.jobs.items()}
    for name, answer in expected["jobs"].items():
        record = by_name[name]
        assert outcome(record) == answer["outcome"], (name, record.state, record.reason)
        for rule in answer.get("where", ()):
            check_place(scenario, record, rule)
        if "reason" in answer:
            classes = answer["reason"]["class"]
            assert CLASSES[record.reason.code] in ([classes] if isinstance(classes, str) else classes), record.reason
    if "phi_frag_after" in expected.get("numbers", {}):
        assert abs(after.metrics.phi_ppm / 1e6 - expected["numbers"]["phi_frag_after"]) < 1e-3
    assert JobKey("") not in after.jobs
