"""Pull requests of every kind, as people see them: read on 80 columns, as a comment, and some as a page."""

from __future__ import annotations

import json

import jsonschema
import pytest

from reconciler.errors import ExitStatus
from reconciler.render.plan import Plan, plan_markdown, plan_text
from reconciler.render.plan.cluster import _over
from reconciler.render.plan.forms import exit_status
from reconciler.render.plan.machine import plan_from_json, plan_schema, plan_text_json
from reconciler.render.plan.page import plan_page
from reconciler.render.plan.text import plan_brief
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


def test_a_ceiling_below_what_runs_says_so_in_every_form(plans: dict[str, Plan]) -> None:
    plan = plans["quota-cut"]  # vision holds 176 and gets a ceiling of 96
    told = "Queue vision holds 176 H100 of at most 96 now: nobody is stopped for it, and nothing of it starts"
    brief, comment, page = plan_brief(plan), plan_markdown(plan), plan_page(plan)
    for form in (plan_text(plan), brief, comment, page):
        assert told in " ".join(form.split())
        assert form.count("holds 176") == 1  # nlp holds less than its ceiling
    quotas = json.loads(plan_text_json(plan))["quotas"]
    assert {one["queue"]: one.get("overCeiling") for one in quotas if one["queue"] in ("nlp", "vision")} == {
        "nlp": None,
        "vision": 176 - 96,
    }


@pytest.mark.parametrize(
    ("used", "was", "ceiling", "over"),
    [(80, None, 48, 32), (80, 96, 48, 32), (80, 40, 48, 0), (80, 48, 48, 0), (48, 96, 48, 0), (80, 48, None, 0)],
)
def test_only_a_ceiling_that_is_new_or_lower_is_news(
    used: int, was: int | None, ceiling: int | None, over: int
) -> None:
    assert _over(used, was, ceiling) == over


def test_who_pays_stands_above_every_fold(plans: dict[str, Plan]) -> None:
    for name, plan in plans.items():
        comment = plan_markdown(plan)
        above = comment.partition("<details>")[0]
        for row in plan.victims[:5]:
            assert f"`{row.job}`" in above, name
