"""Arrays as documents: the gangs they become, what makes a task another incarnation, lists of tasks, and their record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.documents.desired import load_desired, source_file
from reconciler.documents.record import JOBS, TOMBSTONES, changed_jobs, read_allocation
from reconciler.documents.tasklist import parse_tasks, print_tasks
from reconciler.errors import StoreError
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.tombstones import Tombstone, buried
from reconciler.model.units import CommitId, Digest, Instant, JobKey, QueueName, document_of, index_of, task_key
from tests.documents.test_convert import desired
from tests.documents.test_record import SUMMARY_OF_ONE, at, files_of
from tests.documents.trees import job, problems, with_job

SWEEP = JobKey("research/x")
GRID = "array: {matrix: {lr: [0.1, 0.001], seed: [7, 8]}}"


def sweep(body: str) -> Desired:
    return desired(with_job(job(body, gpus=1)))


# --- what an array becomes --------------------------------------------------------------------------------------


def test_each_task_is_a_gang_with_its_number_and_parameters() -> None:
    found = sweep(GRID + "\ncheckpoint: {dir: /c/x}")
    gangs = [found.jobs[task_key(SWEEP, index)] for index in range(4)]
    assert SWEEP not in found.jobs
    assert [one.key for one in gangs] == ["research/x.0", "research/x.1", "research/x.2", "research/x.3"]
    assert [dict(one.task.parameters) for one in gangs if one.task is not None] == [
        {"lr": "0.1", "seed": "7"}, {"lr": "0.1", "seed": "8"}, {"lr": "0.001", "seed": "7"}, {"lr": "0.001", "seed": "8"},
    ]  # fmt: skip
    assert [one.checkpoint.directory for one in gangs if one.checkpoint is not None] == [f"/c/x/{i}" for i in range(4)]
    assert {(one.task.array, one.task.size) for one in gangs if one.task is not None} == {(SWEEP, 4)}
    whole = found.job_of(SWEEP)
    assert whole is not None
    assert whole.array is not None
    assert len(whole.array.tasks) == 4
    assert (document_of(gangs[3].key), index_of(gangs[3].key), index_of(SWEEP)) == (SWEEP, 3, None)


def digests(body: str) -> list[Digest]:
    found = sweep(body)
    return [one.digest for one in found.jobs.values() if one.task is not None and one.task.array == SWEEP]


VALUES = "array: {values: [{lr: 1}, {lr: 2}, {lr: 3}]}"


@pytest.mark.parametrize(
    ("after", "others"),
    [
        ("array: {values: [{lr: 1}, {lr: 2}, {lr: 3}, {lr: 4}]}", {3}),
        ("array: {values: [{lr: 1}, {lr: 5}, {lr: 3}]}", {1}),
        ("array: {values: [{lr: 1}, {lr: 2}]}", {2}),
        ("array: {values: [{lr: 1}, {lr: 2}, {lr: 3}], maxParallel: 2, onTaskFailure: stop}", set()),
        ('array: {values: [{lr: 1}, {lr: 2}, {lr: 3}], cancelled: "0-1"}', set()),
        ('array: {values: [{lr: 1}, {lr: 2}, {lr: 3}], rerun: ["1"]}', {1}),
        ("array: {values: [{lr: 1, seed: 0}, {lr: 2}, {lr: 3}]}", {0}),
        (VALUES + "\nrerun: 1", {0, 1, 2}),
        (VALUES + "\nresources: {memoryPerGpu: 1GiB}", {0, 1, 2}),
    ],
)
def test_a_task_is_another_incarnation_when_what_it_runs_changes_and_only_then(after: str, others: set[int]) -> None:
    one, other = digests(VALUES), digests(after)
    pairs = [(a, b) for a, b in zip([*one, None], [*other, None], strict=False)]
    assert {i for i, (a, b) in enumerate(pairs) if a != b and (a or b)} == others


def test_a_task_is_run_once_more_for_each_entry_that_names_it() -> None:
    once, twice = digests('array: {count: 3, rerun: ["0-1"]}'), digests('array: {count: 3, rerun: ["0-1", "1"]}')
    never = digests("array: {count: 3}")
    assert [once[0] == twice[0], once[1] == twice[1], once[2] == twice[2] == never[2]] == [True, False, True]
    assert [one.rerun for one in sweep('array: {count: 3, rerun: ["0-1", "1"]}').jobs.values() if one.task] == [1, 2, 0]


def test_tasks_of_an_invalid_file_stay_as_they_were() -> None:
    good = with_job(job(GRID, gpus=1))
    bad = with_job(job(GRID.replace("matrix", "matirx"), gpus=1))
    files = [source_file(path, text.encode()) for path, text in bad.items()]
    older = {path: text.encode() for path, text in good.items()}
    found = load_desired(files, CommitId("c" * 40), last_valid=older).desired
    assert found is not None
    assert found.jobs == desired(good).jobs
    assert found.frozen == {SWEEP}


# --- lists of tasks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tasks", "printed"),
    [("3", (3,), "3"), ("3,7-9", (3, 7, 8, 9), "3,7-9"), ("9,0-1,1-2", (0, 1, 2, 9), "0-2,9"), ("0-1", (0, 1), "0-1")],
)
def test_a_list_of_tasks_is_read_and_written(text: str, tasks: tuple[int, ...], printed: str) -> None:
    assert (parse_tasks(text), print_tasks(tasks)) == (tasks, printed)


@pytest.mark.parametrize("text", ["", "a", "-1", "3-", "9-7", "1, 2", "10000", "1,,2", "1-2-3", "１"])
def test_a_wrong_list_of_tasks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="task"):
        parse_tasks(text)


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ('array: {count: 3, cancelled: "1-3"}', "UnknownTask", "spec.array.cancelled"),
        ('array: {count: 3, rerun: ["1", "9"]}', "UnknownTask", "spec.array.rerun[1]"),
        ('array: {count: 3, cancelled: "3-1"}', "BadTaskList", "spec.array.cancelled"),
        ("array: {count: 3, cancelled: [1]}", "WrongType", "spec.array.cancelled"),
        ("array: {matrix: {lr: [1], LR: [2]}}", "DuplicateName", "spec.array.matrix.LR"),
        ("array: {values: [{a: 1}, {lr: 1, Lr: 2}]}", "DuplicateName", "spec.array.values[1].Lr"),
        ("array: {count: 3, cancelled: 1}", "", ""),
        ('array: {count: 3, cancelled: "0-2", rerun: ["0", "0"]}', "", ""),
    ],
)
def test_what_a_person_gets_wrong_is_told_with_its_place(body: str, code: str, path: str) -> None:
    found = [(d.code, d.place.path) for d in problems(with_job(job(body, gpus=1)))]
    assert found == ([(code, path)] if code else [])


# --- the record ---------------------------------------------------------------------------------------------------


def record(index: int, **changes: object) -> JobRecord:
    base = "ab" * 20
    made = JobRecord(
        job=task_key(SWEEP, index), queue=QueueName("research"), digest=Digest(f"{base}{index:024x}"),
        state=JobState.PENDING, since=Instant(10**18), submitted=Instant(10**18),
        reason=reason(ReasonCode.CAPACITY, need=1, free=0, evictable=0, releasing=0),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]  # fields by name


def holding(*records: JobRecord, **more: object) -> Allocation:
    return at(SUMMARY_OF_ONE, jobs={one.job: one for one in sorted(records, key=lambda one: one.job)}, **more)


def test_an_array_is_one_file_in_which_equal_tasks_share_a_row() -> None:
    done = replace(record(0), state=JobState.FINISHED, outcome=Outcome.SUCCEEDED, reason=reason(ReasonCode.SUCCEEDED))
    alike = [record(index, digest=record(1).digest) for index in (1, 2, 3, 9)]
    written = changed_jobs(holding(), holding(done, *alike))
    assert {path: (content or b"").decode() for path, content in written.items()} == {
        "allocation/jobs/research/x.yaml": f"""\
job: research/x
tasks:
  - tasks: "0"
    own: "{0:024d}"
    queue: research
    digest: {"ab" * 20}
    state: Finished
    since: "2001-09-09T01:46:40+00:00"
    submitted: "2001-09-09T01:46:40+00:00"
    reason:
      code: Succeeded
    why: "every rank exited with 0"
    outcome: Succeeded
  - tasks: "1-3,9"
    own: "{1:024d}"
    queue: research
    digest: {"ab" * 20}
    state: Pending
    since: "2001-09-09T01:46:40+00:00"
    submitted: "2001-09-09T01:46:40+00:00"
    reason:
      code: Capacity
      need: 1
      free: 0
      evictable: 0
      releasing: 0
    why: "needs 1 GPU; 0 are free, 0 could be freed, 0 are being released"
"""
    }


def test_ten_thousand_waiting_tasks_are_a_short_file_that_reads_back() -> None:
    allocation = holding(*(record(index) for index in range(10_000)))
    files = files_of(allocation, SUMMARY_OF_ONE)
    content = files[f"{JOBS}research/x.yaml"]
    assert content.count(b"\n") == 16
    assert len(content) < 260_000
    assert read_allocation(files).jobs == allocation.jobs


def test_a_change_of_one_task_writes_the_file_of_its_array_and_no_other() -> None:
    other = replace(record(0), job=JobKey("research/other.0"))
    before = holding(record(0), record(1), other)
    after = holding(record(0), record(1, attempt=3), other)
    assert changed_jobs(before, after).keys() == {f"{JOBS}research/x.yaml"}
    assert changed_jobs(after, holding(record(0), record(1, attempt=3), other)) == {}


def test_a_job_that_becomes_an_array_shares_the_file_until_it_is_gone() -> None:
    plain = replace(record(0), job=SWEEP, state=JobState.STOPPING)
    both = holding(plain, record(0), record(1))
    files = files_of(both, SUMMARY_OF_ONE)
    assert list(files) == ["allocation/summary.yaml", "allocation/jobs/research/x.yaml"]
    assert read_allocation(files).jobs == both.jobs
    gone = changed_jobs(both, holding())
    assert gone == {f"{JOBS}research/x.yaml": None}


def stone(index: int, digest: str, when: int) -> Tombstone:
    return Tombstone(
        job=task_key(SWEEP, index), digest=Digest(digest), outcome=Outcome.FAILED, at=Instant(when), attempts=when % 7
    )


def test_tombstones_of_tasks_share_a_file_in_their_order() -> None:
    stones = {
        task_key(SWEEP, 0): (stone(0, "a" * 64, 5 * 10**9), stone(0, "b" * 64, 9 * 10**9)),
        task_key(SWEEP, 1): (stone(1, "a" * 64, 5 * 10**9),),
        task_key(SWEEP, 2): (stone(2, "0" * 64, 8 * 10**9),),
        SWEEP: (replace(stone(0, "e" * 64, 10**9), job=SWEEP),),
    }
    allocation = holding(tombstones=buried(stones))
    files = files_of(allocation, SUMMARY_OF_ONE)
    assert list(files) == ["allocation/summary.yaml", f"{TOMBSTONES}research/2d/x.yaml"]
    assert files[f"{TOMBSTONES}research/2d/x.yaml"].count(b"- tasks:") == 3
    assert read_allocation(files).tombstones == allocation.tombstones


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"1-3,9"', '"1-3,2"'),
        ('"1-3,9"', '"1-3,10000"'),
        ('"1-3,9"', "x"),
        ('"1-3,9"', "[]"),
        (f'own: "{1:024d}"', 'own: "1,2"'),
        (f'own: "{1:024d}"', "owns: a"),
        ("job: research/x", "job: research/y"),
        ("job: research/x\n", ""),
    ],
)
def test_a_table_that_is_not_ours_is_refused(old: str, new: str) -> None:
    alike = [record(index, digest=record(1).digest) for index in (1, 2, 3, 9)]
    files = files_of(holding(*alike), SUMMARY_OF_ONE)
    path = f"{JOBS}research/x.yaml"
    assert old.encode() in files[path]
    with pytest.raises(StoreError) as caught:
        read_allocation({**files, path: files[path].replace(old.encode(), new.encode())})
    assert caught.value.code == "BadRecord"
