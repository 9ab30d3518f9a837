"""Results of scenarios as text, a line a case and what differs, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from reconciler.model.counting import counted
from reconciler.runtime.scenario.ledger import Ledger
from reconciler.runtime.scenario.numbers import Numbers, numbers_of
from reconciler.runtime.scenario.plan import Plan, given_up
from reconciler.runtime.scenario.run import Result, Verdict
from reconciler.runtime.scenario.world import World, seats_by_node, workers_of

FORMAT_VERSION = "1.0"


def result_lines(result: Result) -> str:
    """One line, and below it what differs."""
    lines = [f"{result.verdict:5}  {result.id}"]
    for failure in result.failures:
        lines += [f"       {line}".rstrip() for line in failure.splitlines()]
    return "\n".join(lines)


def closing_line(results: Iterable[Result]) -> str:
    """How many of each, and how many of the words asked for the explanations have."""
    rows = list(results)
    counts = {verdict: sum(row.verdict is verdict for row in rows) for verdict in Verdict}
    words = {Verdict.PASSED: "passed", Verdict.FAILED: "failed", Verdict.ERROR: "in error"}
    parts = [f"{count} {words[verdict]}" for verdict, count in counts.items() if count or verdict is Verdict.PASSED]
    told, asked = (sum(row.words[i] for row in rows) for i in (0, 1))
    return f"{counted(len(rows), 'scenario')}: {', '.join(parts)}" + (
        f"; explanations have {told} of {asked} words asked for" if asked else ""
    )


def results_tree(results: Iterable[Result]) -> dict[str, object]:
    """All results, for `-o json`."""
    return {"formatVersion": FORMAT_VERSION, "scenarios": [_result_tree(result) for result in results]}


def _result_tree(result: Result) -> dict[str, object]:
    tree: dict[str, object] = {"id": result.id, "result": str(result.verdict), "failures": list(result.failures)}
    if result.world is not None and result.plan is not None:
        tree["plan"] = plan_tree(result.world, result.plan)
    return tree


def plan_tree(world: World, plan: Plan) -> dict[str, object]:
    """The plan by job names and node names. `ranks` has the node of each worker."""
    return {
        "start": {
            job: {
                "outcome": started.outcome,
                "placement": seats_by_node(started.seats),
                "ranks": [worker[0] for worker in workers_of(world.jobs[job], started.seats)],
            }
            for job, started in plan.started.items()
        },
        "evict": sorted(plan.evicted),
        "moves": {job: seats_by_node(moved.seats) for job, moved in plan.moved.items()},
        "shrink": given_up(world, plan),
        "wait": {
            job: {"class": waiting.reason_class, "text": waiting.text} for job, waiting in plan.waiting.items()
        },
        "keep": sorted(plan.kept),
        "numbers": _rounded(numbers_of(Ledger(world, plan))),
    }  # fmt: skip


def _rounded(numbers: Numbers) -> dict[str, object]:
    return {
        name: {key: _shown(one) for key, one in value.items()} if isinstance(value, Mapping) else _shown(value)
        for name, value in numbers.items()
    }


def _shown(number: Fraction) -> int | float:
    """A whole number as one, any other to four places."""
    return int(number) if number.denominator == 1 else round(float(number), 4)
