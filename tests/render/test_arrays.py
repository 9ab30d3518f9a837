"""An array as people read it: tally, one line among jobs, a table in which tasks that are alike share a line."""

from __future__ import annotations

from dataclasses import replace

from reconciler.model.job import Array
from reconciler.model.lifecycle import JobState
from reconciler.model.units import MINUTE, SECOND, Instant, JobKey, task_key
from reconciler.render.arrays import array_head, by_array, leading, tally, task_table
from reconciler.render.view import job_table
from tests.planner.test_arrays import sweeping, tasks
from tests.planner.worlds import Cluster, job

SWEEP = JobKey("nlp/sweep")


def cluster() -> Cluster:
    """Twelve tasks of eight GPUs, three at once; one is done, one failed, one was cancelled before it ran."""
    desired = sweeping(12, job(SWEEP, 8), job("nlp/zeta", 8), most=3, cancelled=frozenset({11}))
    jobs = dict(desired.jobs)
    for one in tasks(12, job(SWEEP, 8), most=3, cancelled=frozenset({11})):
        assert one.task is not None
        jobs[one.key] = replace(one, task=replace(one.task, parameters={"lr": "0.1", "seed": str(one.task.index)}))
    made = Cluster(replace(desired, jobs=jobs))
    made.settle()
    made.end("nlp/sweep.0")
    made.end("nlp/sweep.1", 1)
    made.settle()
    return made


def test_tasks_are_counted_in_the_order_people_want() -> None:
    records = by_array(cluster().allocation.jobs)[SWEEP]
    assert [record.job for record in records] == [task_key(SWEEP, index) for index in range(12)]
    assert tally(records) == "3 Running, 6 Pending, 1 Succeeded, 1 Failed, 1 Cancelled"
    assert leading(records).job == "nlp/sweep.5"
    assert leading([r for r in records if r.state is JobState.FINISHED]).job == "nlp/sweep.0"


def test_the_head_says_size_and_limit() -> None:
    made = cluster()
    records = by_array(made.allocation.jobs)[SWEEP]
    assert array_head(SWEEP, records, made.desired).splitlines() == [
        "nlp/sweep   12 tasks of 8 GPUs each, at most 3 at once",
        "3 Running, 6 Pending, 1 Succeeded, 1 Failed, 1 Cancelled",
    ]
    job_of = made.desired.arrays[SWEEP]
    one = replace(job_of, gpus=1, array=Array(tasks=({},), max_parallel=None, stop_on_failure=False))  # type: ignore[arg-type]  # a number
    assert array_head(SWEEP, records[:1], replace(made.desired, arrays={SWEEP: one})).startswith(
        "nlp/sweep   1 task of 1 GPU each\n"
    )


def test_the_table_has_a_line_for_each_task_that_ran_and_one_for_all_that_wait() -> None:
    made = cluster()
    now = Instant(made.now + MINUTE)
    told = task_table(by_array(made.allocation.jobs)[SWEEP], made.desired, now, 80).splitlines()
    assert max(map(len, told)) <= 80
    firsts = [line.split()[:2] for line in told if not line.startswith(" ")]
    assert firsts == [
        ["TASK", "STATE"], ["0", "Succeeded"], ["1", "Failed"], ["2", "Running"], ["3", "Running"], ["4", "Running"],
        ["5-10", "Pending"], ["11", "Cancelled"],
    ]  # fmt: skip
    assert [line.split("lr=")[1] for line in told if "lr=" in line] == [
        "0.1 seed=0", "0.1 seed=1", "0.1 seed=2", "0.1 seed=3", "0.1 seed=4", "0.1 seed=11",
    ]  # fmt: skip
    assert "    3 tasks of nlp/sweep hold GPUs, as many as it allows at once" in told


def test_tasks_without_parameters_that_ended_alike_share_a_line_whenever_they_ended() -> None:
    made = cluster()
    done = by_array(made.allocation.jobs)[SWEEP][0]
    records = [replace(done, job=task_key(SWEEP, 20 + n), since=Instant(made.now - n * MINUTE)) for n in range(3)]
    again = replace(records[0], job=task_key(SWEEP, 23), attempt=2)
    told = task_table([*records, again], made.desired, made.now, 200).splitlines()
    assert [line.split()[:3] for line in told[1:]] == [["20-22", "Succeeded", "1"], ["23", "Succeeded", "2"]]


def test_among_jobs_it_is_one_line() -> None:
    made = cluster()
    told = job_table(made.desired, made.allocation.jobs, Instant(made.now + SECOND), 200, wide=False).splitlines()
    assert len(told) == 3
    assert told[1].startswith("nlp/sweep  12 tasks    24")
    assert told[1].endswith(
        "3 Running, 6 Pending, 1 Succeeded, 1 Failed, 1 Cancelled: "
        "3 tasks of nlp/sweep hold GPUs, as many as it allows at once"
    )
    assert told[2].startswith("nlp/zeta   Running")
    wide = job_table(made.desired, made.allocation.jobs, Instant(made.now + SECOND), 250, wide=True).splitlines()
    assert len({line.index("WHY") if "WHY" in line else 0 for line in wide}) == 2
