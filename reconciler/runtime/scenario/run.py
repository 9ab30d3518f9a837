"""Does the planner answer this scenario file as it should? One file, one decision, one result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from reconciler.documents.scenario_sense import read_scenario
from reconciler.errors import BrokenInvariant, NotFound
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.reasons import sentence
from reconciler.planner.decide import decide
from reconciler.planner.explain import blockers_of
from reconciler.planner.verify import violations
from reconciler.runtime.scenario.build import Inputs, inputs_of
from reconciler.runtime.scenario.expect import differences, missing_words
from reconciler.runtime.scenario.plan import Plan, plan_of
from reconciler.runtime.scenario.rules import broken_rules
from reconciler.runtime.scenario.world import World


class Verdict(StrEnum):
    """What became of a case. Error: the file cannot be read, or nothing could be decided."""

    PASSED = "pass"
    FAILED = "fail"
    ERROR = "error"


_SUFFIXES: Final = frozenset({".yaml", ".yml"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One scenario: its verdict, what differs, and the plan when there is one.

    `words` counts those a useful explanation has, and those asked for.
    """

    id: str
    file: str
    verdict: Verdict
    failures: tuple[str, ...] = ()
    world: World | None = None
    plan: Plan | None = None
    words: tuple[int, int] = (0, 0)


def scenario_files(paths: Iterable[Path]) -> list[Path]:
    """The files named, and all YAML files in the folders named, in order. Raises NotFound."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise NotFound(
                f"{path} does not exist", code="PathNotFound", remedy="name scenario files, or a folder of them: *.yaml"
            )
        inside = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise NotFound(f"{path} has no scenario files", code="NoScenarios", remedy="they end in .yaml")
        found += inside
    return list(dict.fromkeys(found))


def run_files(files: Iterable[Path]) -> Iterator[Result]:
    """Each file's result, as soon as it is known. A file whose id another had before is an error."""
    seen: dict[str, Path] = {}
    for file in files:
        result = run_scenario(file.read_bytes(), str(file))
        first = seen.setdefault(result.id, file)
        if first != file:
            yield Result(id=result.id, file=str(file), verdict=Verdict.ERROR, failures=(f"{first} has the same id",))
        else:
            yield result


def run_scenario(content: bytes, file: str) -> Result:
    """Decide once at the scenario's moment, and judge the plan."""
    scenario, problems = read_scenario(content, file)
    if scenario is None:
        return Result(
            id=Path(file).stem, file=file, verdict=Verdict.ERROR, failures=tuple(str(problem) for problem in problems)
        )
    world = World(scenario)
    inputs = inputs_of(world)
    try:
        after = decide(inputs.desired, inputs.observed, inputs.previous, inputs.now).allocation
    except BrokenInvariant as err:
        return Result(
            id=scenario.id, file=file, verdict=Verdict.ERROR, failures=(f"nothing was decided: {err}",), world=world
        )
    plan = plan_of(world, inputs.previous, after, partial(_explanation, inputs, after))
    refused = violations(inputs.desired, inputs.observed, inputs.previous, after)
    failures = (
        *differences(world, plan),
        *broken_rules(world, plan),
        *(f"the judge refuses the plan: {breach}" for breach in refused),
    )
    missing = missing_words(world, plan)
    asked = sum(len(answer.reason.names) for answer in scenario.expect.jobs.values() if answer.reason is not None)
    told = asked - sum(len(words) for words in missing.values())
    return Result(
        id=scenario.id, file=file, verdict=Verdict.FAILED if failures else Verdict.PASSED, failures=failures, world=world, plan=plan,
        words=(told, asked),
    )  # fmt: skip


def _explanation(inputs: Inputs, after: Allocation, record: JobRecord) -> str:
    """The committed reason, and all else that stands in the job's way, as `gangops explain job` tells it."""
    blockers = blockers_of(inputs.desired, inputs.observed, after, record.job, inputs.now)
    told = (
        sentence(record.reason),
        *(sentence(blocker) for blocker in blockers if blocker.code is not record.reason.code),
    )
    return "; ".join(dict.fromkeys(told))
