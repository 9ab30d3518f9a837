"""How does each verb about a job edit its file? One function a verb: the job as it is, and the change to propose.

A job's file says what is wanted; whether and when that happens is decided after the merge.
"""

from __future__ import annotations

from reconciler.documents.edit import set_value
from reconciler.documents.edit_tasks import cancel_tasks, rerun_tasks
from reconciler.documents.loader import Tree
from reconciler.documents.tasklist import parse_tasks, print_tasks
from reconciler.errors import GangOpsError, InvalidInput, UsageError
from reconciler.model.lifecycle import JobState
from reconciler.model.units import index_of
from reconciler.runtime.proposals.change import Change, unchanged
from reconciler.runtime.proposals.desk import Desk, JobFile

_NICEST = 100


def prioritize(desk: Desk, name: str, priority_class: str | None, nice: int | None, why: str = "") -> Change:
    """Another class, or another place inside the class. Raises: UsageError; NotFound (UnknownJob, UnknownPriorityClass);
    GangOpsError (JobFinished)."""
    if priority_class is None and nice is None:
        raise UsageError("prioritize what?", code="NothingAsked", remedy="give --class CLASS, --nice N, or both")
    if nice is not None and abs(nice) > _NICEST:
        raise UsageError(f"nice goes from -{_NICEST} to {_NICEST}", code="BadNice", remedy="lower goes first")
    job = desk.job(name)
    _check_open(job, "nothing of its order can change")
    wanted: dict[str, Tree] = {}
    if priority_class is not None:
        desk.document("PriorityClass", priority_class)
        if job.spec.priority_class != priority_class:
            wanted["priorityClass"] = priority_class
    if nice is not None and job.spec.nice != nice:
        wanted["nice"] = nice
    if not wanted:
        return unchanged("prioritize", job.item.name, f"{job.key} has that priority already")
    told = ", ".join(f"{_TOLD[field]} {value}" for field, value in wanted.items())
    return _edited(job, "prioritize", f"Prioritize {job.key}: {told}", wanted, why)


_TOLD = {"priorityClass": "class", "nice": "nice"}


def suspend(desk: Desk, name: str, why: str = "") -> Change:
    """It stops through its checkpoint and waits. Raises: NotFound (UnknownJob), GangOpsError (JobFinished)."""
    job = desk.job(name)
    if job.spec.suspend:
        return unchanged("suspend", job.item.name, f"{job.key} is suspended already")
    _check_open(job, "there is nothing to suspend")
    return _edited(job, "suspend", f"Suspend {job.key}", {"suspend": True}, why)


def resume(desk: Desk, name: str, why: str = "") -> Change:
    """It may start again. Raises: NotFound (UnknownJob)."""
    job = desk.job(name)
    if not job.spec.suspend:
        return unchanged("resume", job.item.name, f"{job.key} is not suspended")
    change = _edited(job, "resume", f"Resume {job.key}", {"suspend": False}, why)
    return _followed(change, job)


def cancel(desk: Desk, name: str, why: str = "") -> Change:
    """Its file goes, and with it the job, through its checkpoint. Raises: NotFound (UnknownJob), GangOpsError (JobFinished)."""
    try:
        job = desk.job(name)
    except InvalidInput:  # a file that cannot be read can be removed all the same
        key = desk.key_named(name)
        return Change(
            verb="cancel", name=key.partition("/")[2], title=f"Cancel {key}", files={desk.jobs[key]: None}, body=why
        )
    _check_open(job, "there is nothing to cancel", remedy="`gangops tidy` removes the files of finished jobs")
    return Change(
        verb="cancel", name=job.item.name, title=f"Cancel {job.key}", files={job.path: None}, body=why,
        remarks=("A file that comes back lets the job go on from its checkpoint.",) if job.spec.checkpoint else (),
    )  # fmt: skip


def rerun(desk: Desk, name: str, why: str = "", *, replace: bool = False) -> Change:
    """A finished job runs once more. `replace`: also one that is not finished; the new run takes its place.

    Raises: NotFound (UnknownJob), GangOpsError (JobNotFinished).
    """
    job = desk.job(name)
    if not job.ended and not replace:
        state = job.record.state if job.record is not None else "not decided on yet"
        raise GangOpsError(
            f"{job.key} is {state}: to run it again would stop it first"
            if job.record is not None and job.record.state.holds_gpus
            else f"{job.key} is {state}: it has not ended, so there is nothing to run again",
            code="JobNotFinished",
            remedy="--replace does it all the same; `gangops resume` ends a suspension",
        )
    change = _edited(job, "rerun", f"Run {job.key} again", {"rerun": job.spec.rerun + 1}, why)
    return _followed(change, job)


def cancel_some(desk: Desk, name: str, tasks: str, why: str = "") -> Change:
    """Some tasks of an array stop through their checkpoints, or never start; its file stays.

    Raises: UsageError (BadTaskList), NotFound (UnknownJob), GangOpsError (NotAnArray, UnknownTask).
    """
    job, chosen = desk.job(name), _tasks(tasks)
    content = cancel_tasks(job.content, chosen, index=job.item.index, file=job.path)
    told = f"{job.key}.{print_tasks(chosen)}"
    if content == job.content:
        return unchanged("cancel", job.item.name, f"{told} is cancelled already")
    return Change(verb="cancel", name=job.item.name, title=f"Cancel {told}", files={job.path: content}, body=why)


def rerun_some(desk: Desk, name: str, tasks: str, why: str = "", *, replace: bool = False) -> Change:
    """Some tasks of an array run once more; none that has not ended, unless `replace`.

    Raises: UsageError (BadTaskList), NotFound (UnknownJob), GangOpsError (NotAnArray, UnknownTask, JobNotFinished).
    """
    job, chosen = desk.job(name), _tasks(tasks)
    content = rerun_tasks(job.content, chosen, index=job.item.index, file=job.path)
    over = {index_of(record.job) for record in job.tasks if record.state is JobState.FINISHED}
    alive = [index for index in chosen if index not in over]
    if alive and not replace:
        holds = any(record.state.holds_gpus for record in job.tasks if index_of(record.job) in alive)
        raise GangOpsError(
            f"{job.key}.{print_tasks(alive)} has not ended: to run it again would stop it first"
            if holds
            else f"{job.key}.{print_tasks(alive)} has not ended, so there is nothing to run again",
            code="JobNotFinished",
            remedy="--replace does it all the same",
        )
    title = f"Run {job.key}.{print_tasks(chosen)} again"
    return Change(verb="rerun", name=job.item.name, title=title, files={job.path: content}, body=why)


def _tasks(text: str) -> tuple[int, ...]:
    try:
        return parse_tasks(text)
    except ValueError as err:
        raise UsageError(f"--tasks: {err}", code="BadTaskList", remedy="such as --tasks 3,7-9") from err


def _check_open(job: JobFile, so: str, remedy: str = "") -> None:
    if job.ended:
        raise GangOpsError(
            f"{job.key} has ended ({job.ended}): {so}",
            code="JobFinished",
            remedy=remedy or f"`gangops rerun {job.key}` runs it once more",
        )


def _edited(job: JobFile, verb: str, title: str, fields: dict[str, Tree], why: str) -> Change:
    content = job.content
    for field, value in fields.items():
        content = set_value(content, ("spec", field), value, index=job.item.index, file=job.path)
    state = job.record.state if job.record is not None else None
    remarks = ("It holds no GPUs now.",) if verb == "suspend" and state in _IDLE else ()
    return Change(
        verb=verb, name=job.item.name, title=title, files={job.path: content}, body=why, remarks=remarks,
    )  # fmt: skip


def _followed(change: Change, job: JobFile) -> Change:
    return Change(verb=change.verb, name=change.name, title=change.title, files=change.files, body=change.body,
                  remarks=change.remarks, job=job.key)  # fmt: skip


_IDLE = frozenset({JobState.PENDING, JobState.HELD})
