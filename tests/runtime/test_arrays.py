"""Arrays through the whole loop and the auditor's side: one file each, every decision replayed, one story by two ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.model.allocation import Allocation
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import JobKey, task_key
from reconciler.runtime.audit.answers import Question, answers, explained, holders_at
from reconciler.runtime.audit.history import Entry, asked_by, by_path
from reconciler.runtime.audit.index import Index, index_file, indexed
from reconciler.runtime.audit.reel import frames
from reconciler.runtime.audit.scenes import labelled, scenes
from reconciler.runtime.audit.usage import usage
from reconciler.runtime.generation import read_generation
from reconciler.runtime.reading import DesiredReader
from reconciler.store.statecommit import Writer
from reconciler.store.walk import first_parents
from tests.policy.house import policy_text, rule
from tests.runtime.lab import Desk, Lab, job_file, job_text, jobs
from tests.runtime.test_audit_history import plain
from tests.store.world import git, new_repository

SWEEP = JobKey("nlp/sweep")
GRID = "  restart: {onFailure: 0}\n  array: {matrix: {lr: [1, 2, 3], seed: [7, 8]}, maxParallel: 2}\n"


def sweep(more: str = GRID, gpus: int = 4) -> dict[str, str]:
    return {job_file("sweep"): job_text("sweep", gpus, more=more)}


def running(desk: Desk) -> list[int]:
    jobs_ = desk.lab.generation().allocation.jobs.values()
    return sorted(int(r.job.partition(".")[2]) for r in jobs_ if r.state.holds_gpus and "." in r.job)


def finish(desk: Desk, index: int, code: int = 0) -> None:
    desk.engine.cluster.finish(task_key(SWEEP, index), code)
    desk.settle()


def state_paths(lab: Lab, folder: str) -> list[str]:
    return git(lab.remote.path, "ls-tree", "-r", "--name-only", lab.tip, folder).decode().split()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Lab:
    """Six tasks, two at once; one fails and is run again, one is cancelled, and a plain job runs beside them."""
    folder = tmp_path_factory.mktemp("sweep")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**sweep(), **jobs("plain", gpus=2))
    desk = lab.desk()
    desk.settle()
    finish(desk, 0)
    finish(desk, 1, code=1)
    lab.desire(sweep(GRID.replace("maxParallel: 2", 'maxParallel: 3, cancelled: "5"')))
    desk.settle()
    finish(desk, 3)
    lab.desire(sweep(GRID.replace("maxParallel: 2", 'maxParallel: 3, cancelled: "5", rerun: ["1"]')))
    desk.settle()
    for index in (2, 4, 1):
        finish(desk, index)
    lab.desire({job_file("sweep"): None})
    desk.settle()
    return lab


# --- one file, replayed -------------------------------------------------------------------------------------------


def test_every_decision_is_recomputed_to_the_same_bytes(told: Lab) -> None:
    told.check_chain()
    results = told.replayed()
    assert len(results) > 12
    assert [r.generation for r in results if not r.identical] == []


def test_the_record_never_had_a_file_of_a_task(told: Lab) -> None:
    found = {path for meta in told.log() for path in _paths(told, meta.id)}
    assert found == {"allocation/jobs/nlp/sweep.yaml", "allocation/jobs/nlp/plain.yaml", "finished/nlp/df/sweep.yaml"}
    assert state_paths(told, "finished") == ["finished/nlp/df/sweep.yaml"]
    assert state_paths(told, "allocation/jobs") == ["allocation/jobs/nlp/plain.yaml"]


def _paths(lab: Lab, commit: str) -> list[str]:
    listed = git(lab.remote.path, "ls-tree", "-r", "--name-only", commit, "allocation/jobs/", "finished/")
    return [path for path in listed.decode().split() if not path.endswith(".gitkeep")]


def test_a_generation_read_step_by_step_is_the_one_read_at_once(told: Lab) -> None:
    """The audit reads only what changed; tasks that are gone from a file are gone."""
    links = first_parents(told.remote.git, told.tip)
    found: list[Allocation] = []
    for frame in frames(told.remote.git, links):
        assert frame.generation is not None, frame.problem
        assert frame.generation.allocation == read_generation(told.remote.git, frame.meta.id).allocation
        found.append(frame.generation.allocation)
    assert max(len(a.jobs) for a in found) == 7
    assert list(found[-1].jobs) == ["nlp/plain"]
    stones = found[-1].tombstones
    assert [[str(s.outcome) for s in stones[task_key(SWEEP, i)]] for i in (0, 1, 2)] == [
        ["Succeeded"], ["Failed", "Succeeded"], ["Succeeded"],
    ]  # fmt: skip
    assert task_key(SWEEP, 5) not in stones  # it never ran


# --- who had what -------------------------------------------------------------------------------------------------


def index_of(lab: Lab, tip: str = "") -> Index:
    return indexed(lab.remote.git, tip or lab.tip)


def bare(entries: list[Entry]) -> list[Entry]:
    return [replace(entry, asked="", person="", request="", place="", why="") for entry in entries]


@pytest.mark.parametrize("job", ["nlp/sweep", "nlp/sweep.1", "nlp/sweep.5", "nlp/plain"])
def test_by_its_path_and_by_the_index_it_is_the_same_story(told: Lab, job: str) -> None:
    walked = list(by_path(told.remote.git, told.tip, job))
    asked = explained(told.remote.git, list(answers(index_of(told), Question(job=job))))
    assert bare(asked) == bare(walked)
    assert [entry.why for entry in asked] == [entry.why for entry in walked]


def test_what_happened_to_several_tasks_at_once_is_one_line(told: Lab) -> None:
    story = list(reversed(list(by_path(told.remote.git, told.tip, SWEEP))))
    first = [(e.action, e.job, e.gpus, e.code) for e in story if e.generation == 1]
    assert sorted(first) == [
        ("place", "nlp/sweep.0-1", 8, "Placed"), ("wait", "nlp/sweep.2-5", 0, "MaxParallel"),
    ]  # fmt: skip
    assert {(e.job, e.attempt) for e in story if e.action == "drop"} == {
        ("nlp/sweep.0,2-4", 1), ("nlp/sweep.1", 2), ("nlp/sweep.5", 0),
    }  # fmt: skip


def test_a_task_has_a_history_of_its_own_attempts(told: Lab) -> None:
    again = list(reversed(list(by_path(told.remote.git, told.tip, "nlp/sweep.1"))))
    actions = [(e.action, e.attempt) for e in again if e.action in ("place", "running", "finish", "drop")]
    assert actions == [
        ("place", 1),
        ("running", 1),
        ("finish", 1),
        ("place", 2),
        ("running", 2),
        ("finish", 2),
        ("drop", 2),
    ]
    assert {e.job for e in again} == {"nlp/sweep.1"}
    (person,) = {e.person for e in asked_by(told.remote.git, again[:1], "nlp/sweep.1")}
    assert "@" in person


def test_an_index_that_was_extended_is_one_made_anew(told: Lab) -> None:
    tips = [meta.id for meta in reversed(told.log())]
    access = told.remote.git
    index_file(access).unlink(missing_ok=True)
    whole = plain(index_of(told))
    for stop in range(1, len(tips), 3):
        index_file(access).unlink(missing_ok=True)
        index_of(told, tips[stop])
        assert plain(index_of(told)) == whole, stop


def test_usage_adds_up_by_task_by_array_and_by_queue(told: Lab) -> None:
    index = index_of(told)
    world = scenes(told.remote.git, index)
    sums = {by: usage(index, world, by=by) for by in ("task", "job", "queue", "total")}
    allocated = {by: sum(row.hours.allocated for row in found.rows) for by, found in sums.items()}
    assert len(set(allocated.values())) == 1
    assert allocated["task"] > 0
    assert {row.key for row in sums["job"].rows} == {"nlp/sweep", "nlp/plain"}
    assert {row.key for row in sums["task"].rows} == {"nlp/plain", *(f"nlp/sweep.{i}" for i in range(5))}
    for total in sums["job"].totals:
        assert total.hours.allocated + total.hours.reserved + total.idle + total.unavailable == total.capacity
    key_of = labelled(told.remote.git, index, "team")
    assert {key_of(event) for event in range(len(index.events["job"]))} == {""}


def test_who_held_a_gpu_is_a_task(told: Lab) -> None:
    index = index_of(told)
    held = holders_at(
        index, read_generation(told.remote.git, told.log()[-2].id).summary.decided_at, Question(queue="nlp")
    )
    assert {one.job for one in held if "sweep" in one.job} == {"nlp/sweep.0", "nlp/sweep.1"}


# --- in the loop --------------------------------------------------------------------------------------------------


def test_changed_fields_of_an_array_move_only_the_tasks_they_are_about(lab: Lab) -> None:
    lab.begin(**sweep("  array: {values: [{lr: 1}, {lr: 2}, {lr: 3}]}\n"))
    desk = lab.desk()
    desk.settle()
    assert running(desk) == [0, 1, 2]
    lab.desire(sweep("  array: {values: [{lr: 1}, {lr: 9}, {lr: 3}, {lr: 4}]}\n"))
    desk.settle()
    assert running(desk) == [0, 1, 2, 3]
    records = lab.generation().allocation.jobs
    assert [records[task_key(SWEEP, i)].attempt for i in range(4)] == [1, 2, 1, 1]
    assert records[task_key(SWEEP, 0)].submitted < records[task_key(SWEEP, 3)].submitted


def test_a_job_that_becomes_an_array_stops_and_its_tasks_run(lab: Lab) -> None:
    lab.begin(**sweep(""))
    desk = lab.desk()
    desk.settle()
    lab.desire(sweep("  array: {count: 2}\n"))
    desk.settle()
    assert running(desk) == [0, 1]
    lab.desire(sweep(""))
    desk.settle()
    assert [(key, r.state, r.attempt) for key, r in lab.generation().allocation.jobs.items()] == [
        (SWEEP, JobState.RUNNING, 2)
    ]
    assert all(r.identical for r in lab.replayed())
    lab.check_chain()


def test_a_reconciler_that_starts_anew_goes_on_with_the_tasks(lab: Lab) -> None:
    lab.begin(**sweep())
    desk = lab.desk()
    desk.settle()
    other = lab.desk("two", desk.engine.cluster)
    assert other.settle() == []
    finish(other, 0)
    assert running(other) == [1, 2]


def test_a_policy_holds_the_whole_array_and_says_so_of_each_task(lab: Lab) -> None:
    policy = policy_text(rule("!has(object.spec.array) || size(object.spec.array.matrix.lr) < 3", reason="Sweeps"))
    lab.begin(**sweep(), **{"policies/house.yaml": policy})
    desk = lab.desk()
    desk.settle()
    records = lab.generation().allocation.jobs
    assert len(records) == 6
    assert {(r.state, r.reason.code) for r in records.values()} == {(JobState.HELD, ReasonCode.POLICY)}
    assert state_paths(lab, "observed/provenance") == ["observed/provenance/nlp/sweep.yaml"]
    assert all(r.identical for r in lab.replayed())


def test_taking_out_one_array_is_taking_out_one_job(lab: Lab) -> None:
    lab.begin(**sweep("  array: {count: 6}\n"), **jobs("a", "b", gpus=1))
    desk = lab.desk()
    desk.settle()
    lab.desire({job_file("sweep"): None})
    desk.settle()
    assert running(desk) == []
    assert not desk.reconciler.condition.stalled


def test_a_failure_stops_what_was_not_started_and_it_is_told_in_the_record(lab: Lab) -> None:
    lab.begin(**sweep(GRID.replace("maxParallel: 2", "maxParallel: 2, onTaskFailure: stop")))
    desk = lab.desk()
    desk.settle()
    finish(desk, 1, code=1)
    records = lab.generation().allocation.jobs
    outcomes = [records[task_key(SWEEP, i)].outcome for i in range(6)]
    assert outcomes == [None, Outcome.FAILED, *[Outcome.CANCELLED] * 4]
    content = lab.remote.git.run("show", f"{lab.tip}:allocation/jobs/nlp/sweep.yaml").stdout.decode()
    assert '  - tasks: "2-5"\n' in content
    assert "not started: nlp/sweep.1 failed, and its array stops then" in content


def test_the_commit_tells_an_array_in_a_line_for_each_thing_that_happens(lab: Lab) -> None:
    lab.begin(**sweep("  array: {count: 40}\n", gpus=1))
    lab.desk().settle()
    meta = next(meta for meta in lab.log() if meta.only_trailer("Generation") == "1")
    assert meta.subject == "Place 32 tasks of nlp/sweep; 8 tasks of nlp/sweep wait"
    lines = [line.split()[:2] for line in meta.message.splitlines() if "nlp/sweep." in line]
    assert lines == [["place", "nlp/sweep.0-31"], ["wait", "nlp/sweep.32-39"]]


def test_the_tree_that_was_read_again_has_the_same_tasks(lab: Lab) -> None:
    lab.begin(**sweep())
    desk = lab.desk()
    desk.settle()
    generation = lab.generation()
    read = DesiredReader(lab.remote.git).recorded(generation.commit, generation.summary.desired_commit, {})
    assert read.desired is not None
    assert list(read.desired.jobs) == list(generation.allocation.jobs)
    assert {key: job.digest for key, job in read.desired.jobs.items()} == {
        key: record.digest for key, record in generation.allocation.jobs.items()
    }
