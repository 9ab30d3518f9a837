"""The auditor's questions asked of a long record by the real planner: 5,000 generations of 200 nodes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.model.units import SECOND, Instant
from reconciler.runtime.audit.answers import Question, answers, holders_at
from reconciler.runtime.audit.findings import Bounds
from reconciler.runtime.audit.history import by_path
from reconciler.runtime.audit.index import Index, index_file, indexed
from reconciler.runtime.audit.scenes import scenes
from reconciler.runtime.audit.usage import usage
from reconciler.runtime.audit.verify import verify
from reconciler.runtime.generation import read_generation
from reconciler.runtime.replay import replay_part
from reconciler.store.runner import Git
from reconciler.store.walk import first_parents, write_commit_graph
from tests.generated import generate
from tests.store.world import STATE, git

GENERATIONS, NODES = 5000, 200
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("generated")]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated") / "record.git"
    assert generate(folder, GENERATIONS, NODES) == []  # no decision was refused by its own judge
    return folder


@pytest.fixture(scope="module")
def access(record: Path) -> Git:
    return Git(folder=record, bare=True, protocols=frozenset())


@pytest.fixture(scope="module")
def tip(record: Path) -> str:
    return git(record, "rev-parse", STATE).decode().strip()


@pytest.fixture(scope="module")
def index(access: Git, tip: str) -> Index:
    return indexed(access, tip)


def test_the_stream_is_one_record_with_something_to_ask_about(index: Index) -> None:
    assert list(index.commits["generation"]) == list(range(GENERATIONS))
    assert all(then <= now for then, now in pairwise(index.commits["at"]))
    states = {index.text("state", event) for event in range(len(index.events["commit"]))}
    assert {"Pending", "Starting", "Running", "Stopping", "Finished"} <= states
    assert len({*index.events["person"]}) >= 4
    assert max(index.commits["held"]) > NODES * 8 * 9 // 10  # the cluster was full


def test_a_job_by_its_path_is_what_the_index_says(access: Git, tip: str, index: Index) -> None:
    jobs = {index.text("job", event) for event in range(len(index.events["job"]))}
    for job in sorted(jobs)[:: len(jobs) // 5]:
        walked = [(one.generation, one.action, one.gpus) for one in by_path(access, tip, job)]
        assert walked == [(one.generation, one.action, one.gpus) for one in answers(index, Question(job=job))]
        assert walked[-1][1] in {"place", "wait", "promise"}  # from its first decision on


def test_who_held_a_node_is_what_the_generation_says(access: Git, index: Index) -> None:
    for position in range(250, GENERATIONS, 1187):
        allocation = read_generation(access, index.ids[position]).allocation
        expected = {
            (str(node), mask, str(job)) for node, held in allocation.holders().items() for job, mask in held.items()
        }
        found = holders_at(index, Instant(index.commits["at"][position]))
        assert {(one.node, one.mask, one.job) for one in found} == expected
        assert all(one.given.generation <= position for one in found)


def test_usage_adds_up_and_counts_what_ran(access: Git, index: Index) -> None:
    for period in ("all", "day"):
        used = usage(index, scenes(access, index), period=period)
        assert sum(t.capacity for t in used.totals) == NODES * 8 * (index.commits["at"][-1] - index.commits["at"][0])
        for total in used.totals:
            assert total.capacity == total.hours.allocated + total.hours.reserved + total.idle + total.unavailable
        assert sum(row.hours.running for row in used.rows) == sum(t.hours.running for t in used.totals)
    ran = 0
    open_at: dict[int, tuple[int, int]] = {}
    for event, job in enumerate(index.events["job"]):
        at = index.commits["at"][index.events["commit"][event]]
        if job in open_at:
            since, gpus = open_at.pop(job)
            ran += gpus * (at - since)
        if index.text("state", event) == JobState.RUNNING:
            words = index.text("place", event).split()
            open_at[job] = (at, sum(int(word.rpartition(":")[2], 16).bit_count() for word in words))
    ran += sum(gpus * (index.commits["at"][-1] - since) for since, gpus in open_at.values())
    assert sum(row.hours.running for row in usage(index, scenes(access, index)).rows) == ran


def test_parts_of_it_replay_and_verify(access: Git, tip: str) -> None:
    assert [one.identical for one in replay_part(access, tip, 4200, 4215)] == [True] * 16
    verdict = verify(access, tip, bounds=Bounds(since=3000, until=3040))
    assert {one.check for one in verdict.findings} == {"signatures"}  # fast-import cannot sign
    assert [one.identical for one in verdict.judged] == [True] * 41


def test_filters_of_changed_paths_spare_the_trees(access: Git, tip: str, record: Path, index: Index) -> None:
    """Counted, not timed: with filters git loads next to no tree to walk one job's path."""
    job = index.text("job", len(index.events["job"]) // 2)
    path = f"allocation/jobs/{job}.yaml"

    def looked_at() -> int:
        done = subprocess.run(
            ["git", "-c", "core.commitGraph=true", "rev-list", "--first-parent", tip, "--", path],
            cwd=record, capture_output=True, check=True, env={"PATH": "/usr/bin:/bin", "GIT_TRACE2_PERF": "1"}, text=True,
        )  # fmt: skip
        found = [line for line in done.stderr.splitlines() if "bloom" in line]
        return int(found[-1].partition('"definitely_not":')[2].partition(",")[0].strip("}")) if found else 0

    before = [one.generation for one in by_path(access, tip, job)]
    assert looked_at() == 0
    write_commit_graph(access)
    assert looked_at() > GENERATIONS * 9 // 10
    assert [one.generation for one in by_path(access, tip, job)] == before


def timed(run: Callable[[], object]) -> float:
    """Seconds by the clock on the wall."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(folder: Path) -> None:
    """The questions with their times, for a person: `python -m tests.runtime.test_generated FOLDER`."""
    access = Git(folder=folder, bare=True, protocols=frozenset())
    (folder / "objects/info/commit-graph").unlink(missing_ok=True)
    index_file(access).unlink(missing_ok=True)
    at = git(folder, "rev-parse", STATE).decode().strip()
    count = len(first_parents(access, at))
    late = git(folder, "ls-tree", "-r", "--name-only", STATE, "allocation/jobs/nlp/").decode().split()[-1]
    job = late.removeprefix("allocation/jobs/").removesuffix(".yaml")

    def say(what: str, run: Callable[[], object]) -> None:
        print(f"{what:<48} {timed(run):7.2f} s", flush=True)

    print(f"{count} generations")
    for state in ("fresh clone", "after gc"):
        say(f"{state}: a job's first line", lambda: next(iter(by_path(access, at, job))))
        say(f"{state}: a job's whole history", lambda: list(by_path(access, at, job)))
        if state == "fresh clone":
            say("gc: filters of changed paths", lambda: write_commit_graph(access))
    say("index: made once", lambda: indexed(access, at))
    middle = Instant(indexed(access, at).commits["at"][count // 2] + SECOND)
    say("who held a node at T, warm", lambda: holders_at(indexed(access, at), middle, Question(node="gpu-017")))
    index = indexed(access, at)
    say("history of a node", lambda: list(answers(index, Question(node="gpu-017"))))
    say("usage by queue, the whole record", lambda: usage(index, scenes(access, index)))


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
