"""What would start a waiting job: each offer, written into its YAML file, really does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from reconciler.documents.desired import load_desired
from reconciler.documents.edit import remove_value, set_value
from reconciler.documents.quantities import print_duration, print_instant
from reconciler.model.allocation import Allocation
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.units import DAY, HOUR, SECOND, CommitId, Instant, JobKey, Nanoseconds, document_of, task_key
from reconciler.planner.counterfactual import TRIALS, Change, Counterfactual, counterfactuals
from reconciler.planner.decide import decide
from tests.documents.trees import CONFIG, HELLO, QUEUES, job, sources, starter
from tests.planner.worlds import START, allocation, pending, ready, running

X = JobKey("research/x")
X_FILE = "cluster-state/jobs/research/x.yaml"


@dataclass(frozen=True)
class Case:
    """A tree of files, who runs where, who has waited for how long, and why x waits."""

    x: str
    code: str
    others: Mapping[str, str] | None = None
    runs: Mapping[str, Mapping[str, int]] | None = None
    config: str = ""
    ceiling: str = ""
    windows: str = ""
    waits_since: int = 60
    key: JobKey = X

    def tree(self) -> dict[str, str]:
        found = starter()
        del found[HELLO]
        found[X_FILE] = self.x
        for name, text in (self.others or {}).items():
            found[f"cluster-state/jobs/research/{name}.yaml"] = text
        if self.config:
            found[CONFIG] = found[CONFIG].replace("spec: {}", f"spec: {{scheduling: {self.config}}}")
        if self.ceiling:
            found[QUEUES] = found[QUEUES].replace("  parent: root\n", f"  parent: root\n  ceiling: {self.ceiling}\n")
        if self.windows:
            found["cluster-state/maintenance/works.yaml"] = self.windows
        return found


def at(seconds: int) -> str:
    return print_instant(Instant(START + seconds * SECOND))


def loaded(tree: Mapping[str, str]) -> Desired:
    found = load_desired(sources(tree), CommitId("c" * 40))
    assert found.desired is not None
    assert not found.desired.invalid, found.desired.invalid
    return found.desired


def state(case: Case) -> tuple[Desired, Observed, Allocation]:
    """The allocation after one round: x waits for its reason."""
    desired, runs = loaded(case.tree()), case.runs or {}
    records = [running(desired, key, gpus) for key, gpus in runs.items()]
    waiting = [key for key in desired.jobs if key not in runs]
    ages = {key: case.waits_since if document_of(key) != X else 30 for key in waiting}
    records += [pending(desired, key, Instant(START - ages[key] * SECOND)) for key in waiting]
    seen = ready(desired, *(r for r in records if r.placement))
    known = allocation(desired, *records)
    return desired, seen, decide(desired, seen, known, START).allocation


def applied(tree: Mapping[str, str], offer: Counterfactual) -> dict[str, str]:
    """The files with the offer written into them, as a person or `gangops` would."""
    changed = dict(tree)
    for change in offer.changes:
        file, index = (X_FILE, 0) if not change.queue else (QUEUES, 1)
        content = changed[file].encode()
        if change.value is None:
            content = remove_value(content, change.path, index=index)
        else:
            content = set_value(content, change.path, written(change), index=index)
        changed[file] = content.decode()
    return changed


def written(change: Change) -> str | int:
    assert change.value is not None
    return print_duration(Nanoseconds(int(change.value))) if change.path[-1] == "timeLimit" else change.value


FULL = {"research/a": {"gpu-01": 8}, "research/b": {"gpu-02": 8}, "research/c": {"gpu-03": 8}}
ABC = {name: job(name=name) for name in "abc"}
MAINTENANCE = f"""apiVersion: gangops/v1
kind: Maintenance
metadata: {{name: works}}
spec: {{nodes: "gpu-[01-04]", from: "{at(2 * 3600)}", to: "{at(9 * 3600)}", reason: new switches}}
"""
CASES = {
    "too few GPUs": Case(x=job(gpus=16), code="Capacity", others=ABC, runs=FULL),
    "over the ceiling": Case(
        x=job(gpus=16), code="QuotaCeiling", others={"a": job(name="a")}, runs={"research/a": {"gpu-01": 8}},
        ceiling="{H100-SXM5-80GB: 16}",
    ),
    "the ceiling can never hold it": Case(x=job(gpus=24), code="NeverFitsQuota", ceiling="{H100-SXM5-80GB: 16}"),
    "enough, but in no rack": Case(
        x=job("topology: {required: {job: rack}}", gpus=16), code="NoDomainFits",
        others={"a": job(name="a"), "c": job(name="c")},
        runs={"research/a": {"gpu-01": 8}, "research/c": {"gpu-03": 8}}, config="{moveToStart: never}",
    ),
    "larger than any rack": Case(x=job("topology: {required: {job: rack}}", gpus=32), code="NeverFits"),
    "suspended": Case(x=job("suspend: true"), code="Suspended"),
    "after another": Case(
        x=job("after: [{job: research/a}]"), code="After", others={"a": job(name="a")},
        runs={"research/a": {"gpu-01": 8}},
    ),
    "maintenance ahead": Case(x=job("timeLimit: 10h"), code="Maintenance", windows=MAINTENANCE),
    "would delay another": Case(
        x=job("timeLimit: 6h"), code="WouldDelay", waits_since=3600,
        others={"a": job("timeLimit: 4h", name="a", gpus=16), "big": job("timeLimit: 8h", name="big", gpus=32)},
        runs={"research/a": {"gpu-03": 8, "gpu-04": 8}},
    ),
    "held for one who starves": Case(
        x=job("timeLimit: 6h"), code="HeldFor", waits_since=2 * DAY // SECOND, config="{backfill: {mode: none}}",
        others={"a": job("timeLimit: 4h", name="a", gpus=16), "big": job("timeLimit: 8h", name="big", gpus=32)},
        runs={"research/a": {"gpu-03": 8, "gpu-04": 8}},
    ),
    "behind another": Case(
        x=job(), code="BlockedByEarlier", config="{backfill: {mode: none}, jobsMayPass: never}", waits_since=3600,
        others={"a": job(name="a"), "big": job(name="big", gpus=32)}, runs={"research/a": {"gpu-03": 8}},
    ),
    "as many tasks at once as may be": Case(
        x=job("array: {count: 6, maxParallel: 2}"), code="MaxParallel", key=JobKey("research/x.3"),
    ),
    "a task of an array beside others": Case(
        x=job("array: {count: 3}"), code="Capacity", others=ABC, runs=FULL, key=JobKey("research/x.1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_offer_written_into_the_file_starts_the_job(name: str) -> None:
    case = CASES[name]
    desired, seen, known = state(case)
    assert known.jobs[case.key].reason.code == case.code, known.jobs[case.key].reason
    now = Instant(START + SECOND)
    offers = counterfactuals(desired, seen, known, case.key, now)
    assert offers, "nothing is offered"
    for offer in offers:
        after = decide(loaded(applied(case.tree(), offer)), seen, known, now).allocation.jobs
        assert after[case.key].state in (JobState.STARTING, JobState.PROMISED), (offer, after[case.key].reason)
        stopped = {key for key, r in after.items() if r.state is JobState.STOPPING and r.preemptor == case.key}
        assert stopped == set(offer.disturbs)
        assert (offer.when == now) == (after[case.key].state is JobState.STARTING)


def test_what_is_offered_is_the_smallest_change_of_its_kind() -> None:
    desired, seen, known = state(CASES["too few GPUs"])
    offers = {offer.changes[0].path: offer for offer in counterfactuals(desired, seen, known, X, START)}
    fewer = offers["spec", "gpus"]
    assert [(change.path[-1], change.value) for change in fewer.changes] == [("gpus", 8), ("tensor", 8), ("data", 1)]
    urgent = offers["spec", "priorityClass"]
    assert (urgent.changes[0].value, len(urgent.disturbs)) == ("urgent", 1)


def test_the_price_is_what_the_victims_lose() -> None:
    desired, seen, known = state(CASES["too few GPUs"])
    later = Instant(START + HOUR // 2)
    urgent = next(o for o in counterfactuals(desired, seen, known, X, later) if o.disturbs)
    assert urgent.lost == 8 * 1800
    assert urgent.when == later + desired.scheduling.kill_after


def test_more_tasks_at_once_are_as_many_as_those_before_it_need() -> None:
    case = CASES["as many tasks at once as may be"]
    desired, seen, known = state(case)
    assert [str(r.state) for r in known.jobs.values()] == ["Starting", "Starting", *["Pending"] * 4]
    values = {}
    for index in (2, 3):
        first = counterfactuals(desired, seen, known, task_key(X, index), START)[0]
        values[index] = [(change.path, change.value) for change in first.changes]
    assert values == {2: [(("spec", "array", "maxParallel"), 3)], 3: [(("spec", "array", "maxParallel"), 4)]}


def test_a_running_job_needs_nothing() -> None:
    desired, seen, known = state(CASES["too few GPUs"])
    assert counterfactuals(desired, seen, known, JobKey("research/a"), START) == ()


def test_the_number_of_trials_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    desired, seen, known = state(CASES["enough, but in no rack"])
    calls = []

    def counted(*args: object) -> object:
        calls.append(args)
        return decide(*args)  # type: ignore[arg-type]  # handed through

    monkeypatch.setattr("reconciler.planner.counterfactual.decide", counted)
    full = replace(known, jobs={**known.jobs})
    counterfactuals(desired, seen, full, X, START)
    assert 0 < len(calls) <= TRIALS
