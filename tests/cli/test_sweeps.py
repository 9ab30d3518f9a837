"""Verbs about single tasks of an array, and about an array that is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.errors import ExitStatus
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.request import Standing
from reconciler.model.units import JobKey, task_key
from reconciler.store.signatures import make_key
from reconciler.store.statecommit import Writer
from tests.cli.people import Kept, Person, codes, person_at
from tests.runtime.lab import Desk, Lab, job_file, job_text
from tests.store.world import git, new_repository

SWEEP = JobKey("nlp/sweep")
TEXT = job_text("sweep", 4, more="  restart: {onFailure: 0}\n  array: {count: 4, maxParallel: 2}  # four\n")


def finished(desk: Desk, index: int, code: int = 0) -> None:
    desk.engine.cluster.finish(task_key(SWEEP, index), code)
    desk.settle()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Kept:
    """Task 0 is done, 1 failed, 2 and 3 run."""
    folder = tmp_path_factory.mktemp("sweep")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**{job_file("sweep"): TEXT})
    desk = lab.desk()
    desk.settle()
    finished(desk, 0)
    finished(desk, 1, code=1)
    return Kept(lab)


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> Kept:
    """All is over; 1 failed, and 3 was cancelled before it ran."""
    folder = tmp_path_factory.mktemp("over")
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.begin(**{job_file("sweep"): TEXT.replace("maxParallel: 2", 'maxParallel: 2, cancelled: "3"')})
    desk = lab.desk()
    desk.settle()
    for index in range(3):
        finished(desk, index, code=int(index == 1))
    return Kept(lab)


@pytest.fixture
def ada(running: Kept, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Person:
    return person_at(running.again(tmp_path, writer), monkeypatch)


@pytest.fixture
def late(over: Kept, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> Person:
    return person_at(over.again(tmp_path, writer), monkeypatch)


def proposed(person: Person) -> str:
    found = person.at(person.only_branch(), job_file("sweep"))
    assert found is not None
    return found


def test_some_tasks_are_cancelled_and_the_rest_goes_on(ada: Person) -> None:
    told = ada.done("cancel", "sweep", "--tasks", "2", "--yes").stdout
    assert proposed(ada) == TEXT.replace("maxParallel: 2", 'maxParallel: 2, cancelled: "2"')
    assert any(line.split()[:3] == ["-", "stop", "nlp/sweep"] for line in told.splitlines()), told
    lab = ada.lab
    git(lab.remote.path, "update-ref", "refs/heads/main", ada.only_branch())
    lab.desk("two").settle()
    records = lab.generation().allocation.jobs
    assert [str(records[task_key(SWEEP, i)].outcome) for i in (0, 1, 2)] == ["Succeeded", "Failed", "Cancelled"]
    assert records[task_key(SWEEP, 3)].state is JobState.RUNNING


def test_some_tasks_are_cancelled_at_once_by_a_request_for_them_alone(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", ada.lab.clock.now)
    key = make_key(ada.lab.folder / "ada-key", "ada")
    head, spec = "apiVersion: gangops/v1\nkind: User\nmetadata: {name: ada}\n", "emails: [ada@example.org], sshKeys: "
    ada.lab.desire({"cluster-state/users/ada.yaml": f"{head}spec: {{{spec}['{key.public_key()}']}}\n"})
    told = ada.done("cancel", "sweep", "--tasks", "2,2-2", "--now", "--yes", "--key", str(key.key)).stdout
    assert "  cancel nlp/sweep.2 until " in told
    assert 'cancelled: "2"' in told, "the lasting change is proposed beside it"
    ada.lab.desk("two").settle()
    generation = ada.lab.generation()
    (request,) = generation.observed.requests.values()
    assert (request.standing, request.target) == (Standing.IN_FORCE, "nlp/sweep.2")
    assert generation.allocation.jobs[task_key(SWEEP, 2)].outcome is Outcome.CANCELLED
    assert generation.allocation.jobs[task_key(SWEEP, 3)].state is JobState.RUNNING
    assert ada.done("get", "requests").stdout.splitlines()[1].split()[1:3] == ["cancel", "nlp/sweep.2"]


def test_tasks_that_never_ran_are_cancelled_not_finished(ada: Person) -> None:
    ada.lab.desire(
        {job_file("late"): TEXT.replace("name: sweep", "name: late").replace("maxParallel: 2", "maxParallel: 1")}
    )
    ada.lab.desk("two").settle()
    told = ada.done("cancel", "nlp/late", "--tasks", "1-3", "--yes").stdout
    assert "3 cancelled" in told
    assert "finished" not in told


def test_a_task_that_failed_runs_once_more(ada: Person) -> None:
    told = ada.done("rerun", "nlp/sweep", "--tasks", "1", "--yes").stdout
    assert proposed(ada) == TEXT.replace("maxParallel: 2", 'maxParallel: 2, rerun: ["1"]')
    assert "1 task x 4 GPUs" in told, told


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("rerun", "sweep", "--tasks", "1-2"), "JobNotFinished"),
        (("rerun", "sweep"), "JobNotFinished"),
        (("cancel", "sweep", "--tasks", "3-4"), "UnknownTask"),
        (("rerun", "sweep", "--tasks", "9"), "UnknownTask"),
    ],
)
def test_what_cannot_be_is_refused(ada: Person, arguments: tuple[str, ...], code: str) -> None:
    assert codes(ada.run(*arguments, "--yes")) == (code, ExitStatus.ERROR)
    assert ada.branches() == []


def test_a_task_nobody_decided_on_yet_is_not_run_again(ada: Person) -> None:
    ada.lab.desire({job_file("young"): TEXT.replace("name: sweep", "name: young")})
    found = ada.run("rerun", "young", "--tasks", "0", "--yes")
    assert codes(found) == ("JobNotFinished", ExitStatus.ERROR)
    assert "nlp/young.0 has not ended, so there is nothing to run again" in str(found.exception)


def test_a_wrong_list_of_tasks_is_a_usage_error(ada: Person) -> None:
    assert codes(ada.run("cancel", "sweep", "--tasks", "3-", "--yes")) == ("BadTaskList", ExitStatus.USAGE)


def test_a_running_task_is_run_anew_when_that_is_meant(ada: Person) -> None:
    ada.done("rerun", "sweep", "--tasks", "1-2", "--replace", "--yes")
    assert 'rerun: ["1-2"]' in proposed(ada)


def test_nothing_to_change_is_said(late: Person) -> None:
    assert "nlp/sweep.3 is cancelled already" in late.done("cancel", "sweep", "--tasks", "3", "--yes").stdout


def test_an_array_is_over_with_its_last_task(late: Person) -> None:
    found = late.run("suspend", "sweep", "--yes")
    assert codes(found) == ("JobFinished", ExitStatus.ERROR)
    assert "(2 Succeeded, 1 Failed, 1 Cancelled)" in str(found.exception)
    told = late.done("rerun", "sweep", "--yes").stdout
    assert "  rerun: 1\n" in proposed(late)
    assert "nlp/sweep" in told


def test_an_array_that_is_over_is_tidied_as_one_file(late: Person) -> None:
    late.done("tidy", "--older-than", "1d", "--yes")
    assert late.changed(late.only_branch()) == [f"D {job_file('sweep')}"]


def test_an_array_of_which_tasks_run_is_not_tidied(ada: Person) -> None:
    assert ada.done("tidy", "--older-than", "1d", "--yes").stdout.startswith("nothing to change")
