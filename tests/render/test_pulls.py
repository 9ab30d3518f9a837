"""Pull requests of every kind, as people see them: read on 80 columns, as a comment, and some as a page."""

from __future__ import annotations

import json

import jsonschema
import pytest

from reconciler.errors import ExitStatus
from reconciler.render.plan import Plan, plan_markdown, plan_text
from reconciler.render.plan.forms import exit_status
from reconciler.render.plan.machine import plan_from_json, plan_schema, plan_text_json
from reconciler.render.plan.page import plan_page
from tests.render.conftest import Golden
from tests.render.pulls import PULLS, Site

PAGES = ("mass-removal", "preemption-chain", "invalid-file")
STATUS = {
    "mass-removal": ExitStatus.MASS_REMOVAL,
    "invalid-file": ExitStatus.INVALID,
    "invalid-cluster": ExitStatus.INVALID,
    "denied-by-policy": ExitStatus.INVALID,
    "no-cluster": ExitStatus.INVALID,
}
HEADLINES = {
    "new-job": "1 placed",
    "new-job-reclaims": "1 preempted, 1 placed after victims",
    "priority-raised": "1 preempted, 1 placed after victims",
    "mass-removal": "stops 7 of 7 running jobs",
    "nothing-changes": "no job changes",
    "sweep": "1 preempted, 8 placed, 16 placed after victims, 176 waiting",
    "replaced": "1 replaced, 2 placed after victims",
    "cancelled": "1 stopped, 1 placed after victims",
    "never-fits": "1 held",
    "rack-removed": "1 stopped",
    "no-cluster": "no decision: 1 error",
}


@pytest.fixture(scope="module")
def plans(site: Site) -> dict[str, Plan]:
    return {name: site.plan(pull()) for name, pull in PULLS.items()}


@pytest.mark.parametrize("name", PULLS)
def test_a_pull_request_reads_as_it_was_approved_to(name: str, plans: dict[str, Plan], golden: Golden) -> None:
    told = plan_text(plans[name])
    assert max(map(len, told.splitlines())) <= 80
    golden(f"{name}.txt", f"{told}\n")
    comment = plan_markdown(plans[name])
    assert len(comment) < 60_000
    golden(f"{name}.md", comment)
    if name in PAGES:
        golden(f"{name}.html", plan_page(plans[name]))


@pytest.mark.parametrize("name", PULLS)
def test_the_machine_form_is_as_its_schema_says_and_comes_back_whole(name: str, plans: dict[str, Plan]) -> None:
    told = plan_text_json(plans[name])
    jsonschema.validate(json.loads(told), json.loads(plan_schema()), jsonschema.Draft202012Validator)
    assert plan_from_json(told.encode()) == plans[name]


@pytest.mark.parametrize("name", PULLS)
def test_the_exit_status_says_whether_it_may_be_merged(name: str, plans: dict[str, Plan]) -> None:
    assert exit_status(plans[name]) is STATUS.get(name, ExitStatus.OK)


@pytest.mark.parametrize(("name", "told"), HEADLINES.items())
def test_the_headline_names_the_biggest_consequence(name: str, told: str, plans: dict[str, Plan]) -> None:
    assert (
        plan_markdown(plans[name])
        .splitlines()[2]
        .startswith(f"### gangops plan: `{plans[name].basis.cluster}` — {told} ·")
    )


def test_who_pays_stands_above_every_fold(plans: dict[str, Plan]) -> None:
    for name, plan in plans.items():
        comment = plan_markdown(plan)
        above = comment.partition("<details>")[0]
        for row in plan.victims[:5]:
            assert f"`{row.job}`" in above, name
