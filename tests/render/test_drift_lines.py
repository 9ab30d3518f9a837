"""Hardware drift in a preview: told where it matters, left out where it does not, and readable in every form."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from reconciler.model.observed import NodeObservation, Observed
from reconciler.model.units import JobKey, NodeName
from reconciler.render.plan import plan_markdown, plan_text
from reconciler.render.plan.cluster import hardware_lines
from reconciler.render.plan.machine import plan_from_json, plan_text_json
from reconciler.render.plan.page import plan_page
from tests.render.pulls import PULLS, Site
from tests.topology.machines import gpus, inventory, nics, node, seen

HOT = {"throttled": "heat, by the hardware"}
HERE = "; nlp/x is placed there"
CASES: dict[str, tuple[NodeObservation, bool, list[tuple[str, str]]]] = {
    "a split domain, nobody placed": (
        seen(gpus=gpus(g5={"nvlinks": 0})),
        False,
        [("NvlinkDown", "GPU 5 with 0 of 18 NVLinks up (domain split)")],
    ),
    "a dark NIC, nobody placed": (
        seen(nics=nics(n5={"up": False})),
        False,
        [("NicDown", "mlx5_5 is down, which serves GPU 5 (rail avoided)")],
    ),
    "a hot GPU, nobody placed": (seen(gpus=gpus(g5=HOT)), False, []),
    "a hot GPU where a job is placed": (
        seen(gpus=gpus(g5=HOT)),
        True,
        [("Throttled", f"GPU 5 has been slowed down for a while: heat, by the hardware (warning only){HERE}")],
    ),
    "a narrow slot beside a split domain": (
        seen(gpus=gpus(g5={"nvlinks": 0}, g1={"pcie_width": 8})),
        False,
        [("NvlinkDown", "GPU 5 with 0 of 18 NVLinks up (domain split)")],
    ),
    "capacity that is gone is told elsewhere": (seen(gpus=gpus(g5={"xids": (79,)})), True, []),
    "a good node": (seen(), True, []),
}


@pytest.mark.parametrize(("observation", "placed", "told"), CASES.values(), ids=CASES)
def test_drift_that_matters_is_told(observation: NodeObservation, placed: bool, told: list[tuple[str, str]]) -> None:
    declared = inventory(node())
    observed = Observed(nodes={NodeName("n1"): observation})
    jobs = {NodeName("n1"): [JobKey("nlp/x")]} if placed else {}
    found = list(hardware_lines(declared, declared, observed, jobs))
    assert [(finding.code, finding.detail) for finding in found] == told
    assert {finding.summary for finding in found} <= {"n1"}


def test_what_an_edit_of_the_inventory_brings_is_new() -> None:
    before, after = inventory(node("n1")), inventory(node("n1"), node("n2"))
    broken = seen("n1", gpus=gpus(g5={"nvlinks": 0}))
    observed = Observed(nodes={NodeName("n1"): broken, NodeName("n2"): replace(broken, node=NodeName("n2"))})
    found = list(hardware_lines(after, before, observed, {}))
    assert [(finding.summary, finding.new) for finding in found] == [("n1", False), ("n2", True)]


def test_several_jobs_on_a_node_are_counted() -> None:
    declared, observed = inventory(node()), Observed(nodes={NodeName("n1"): seen(gpus=gpus(g5=HOT))})
    jobs = {NodeName("n1"): [JobKey("nlp/x"), JobKey("nlp/y")]}
    (found,) = hardware_lines(declared, declared, observed, jobs)
    assert found.detail.endswith("; 2 jobs are placed there")


def test_every_form_of_a_plan_tells_it(site: Site) -> None:
    plan = site.plan(PULLS["new-job"]())
    declared, observed = inventory(node()), Observed(nodes={NodeName("n1"): seen(gpus=gpus(g5=HOT, g6={"nvlinks": 0}))})
    rows = tuple(hardware_lines(declared, declared, observed, {NodeName("n1"): [JobKey("nlp/llama7b-sft")]}))
    plan = replace(plan, drift=rows)
    text = plan_text(plan)
    assert max(map(len, text.splitlines())) <= 80
    assert "  n1  Throttled\n      GPU 5 has been slowed down" in text
    assert "<summary>1 node with less than declared</summary>" in plan_markdown(plan)
    assert "GPU 6 with 0 of 18 NVLinks up" in plan_markdown(plan)
    assert "nlp/llama7b-sft is placed there" in plan_page(plan)
    assert [row["code"] for row in json.loads(plan_text_json(plan))["drift"]] == ["Throttled", "NvlinkDown"]
    assert plan_from_json(plan_text_json(plan).encode()) == plan
