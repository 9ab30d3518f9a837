"""`new`, `submit`, `prioritize`, `suspend`, `resume`, `cancel`, `rerun`, `tidy`: jobs, by pull request."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli import completing
from reconciler.cli.propose import Wishes, is_terminal, propose, proposing, reason_option
from reconciler.cli.requesting import at_once
from reconciler.cli.show import cache_file, now, opened
from reconciler.errors import GangOpsError, InvalidInput, NotFound, UsageError

if TYPE_CHECKING:
    from reconciler.runtime.proposals.change import Change
    from reconciler.runtime.proposals.desk import Desk
    from reconciler.runtime.proposals.requesting import Asking
    from reconciler.runtime.proposals.submit import Answers

job_argument = click.argument("job", shell_complete=completing.jobs)


@click.command()
@job_argument
@click.option("--class", "priority_class", shell_complete=completing.classes, help="Its priority class.")
@click.option("--nice", type=int, help="Its place inside the class, -100 to 100: lower goes first.")
@reason_option
@proposing
@click.pass_obj
def prioritize(repo: Path, job: str, priority_class: str | None, nice: int | None, why: str, *, wishes: Wishes) -> int:
    """Propose another priority for JOB (queue/name, or the name alone)."""
    from reconciler.runtime.proposals import jobs

    return propose(repo, wishes, lambda desk: jobs.prioritize(desk, job, priority_class, nice, why))


@click.command()
@job_argument
@at_once()
@reason_option
@proposing
@click.pass_obj
def suspend(repo: Path, job: str, why: str, *, now_as: Callable[..., Asking | None], wishes: Wishes) -> int:
    """Propose that JOB stops through its checkpoint and waits for `resume`; with --now it stops at once."""
    from reconciler.runtime.proposals import jobs

    return propose(repo, wishes, lambda desk: jobs.suspend(desk, job, why), now_as("suspend", why, job=job))


@click.command()
@job_argument
@reason_option
@proposing
@click.pass_obj
def resume(repo: Path, job: str, why: str, *, wishes: Wishes) -> int:
    """Propose that JOB, which is suspended, may start again."""
    from reconciler.runtime.proposals import jobs

    return propose(repo, wishes, lambda desk: jobs.resume(desk, job, why))


@click.command()
@job_argument
@click.option("--tasks", default="", help="Only these tasks of an array, such as 3,7-9; its file stays.")
@at_once()
@reason_option
@proposing
@click.pass_obj
def cancel(
    repo: Path, job: str, tasks: str, why: str, *, now_as: Callable[..., Asking | None], wishes: Wishes
) -> int:  # fmt: skip
    """Propose to remove the file of JOB: it stops through its checkpoint, for good; with --now it stops at once."""
    from reconciler.runtime.proposals import jobs

    asking = now_as("cancel", why, job=job, tasks=tasks)
    if tasks:
        return propose(repo, wishes, lambda desk: jobs.cancel_some(desk, job, tasks, why), asking)
    return propose(repo, wishes, lambda desk: jobs.cancel(desk, job, why), asking)


@click.command()
@job_argument
@click.option("--tasks", default="", help="Only these tasks of an array, such as 3,7-9.")
@click.option("--replace", is_flag=True, help="Also one that has not ended: the new run takes its place.")
@reason_option
@proposing
@click.pass_obj
def rerun(repo: Path, job: str, tasks: str, why: str, *, replace: bool, wishes: Wishes) -> int:
    """Propose to run JOB, which has ended, once more."""
    from reconciler.runtime.proposals import jobs

    if tasks:
        return propose(repo, wishes, lambda desk: jobs.rerun_some(desk, job, tasks, why, replace=replace))
    return propose(repo, wishes, lambda desk: jobs.rerun(desk, job, why, replace=replace))


@click.command()
@click.option("--older-than", default="14d", help="Of jobs that ended this long ago.", show_default=True)
@click.option("--queue", default="", shell_complete=completing.queues, help="Only of this queue.")
@proposing
@click.pass_obj
def tidy(repo: Path, older_than: str, queue: str, *, wishes: Wishes) -> int:
    """Propose to remove the files of jobs that ended long ago; the record keeps them from ever running again."""
    from reconciler.documents.quantities import parse_duration
    from reconciler.model.units import Nanoseconds
    from reconciler.runtime.proposals.tidy import tidy as tidied
    from reconciler.runtime.reading import DesiredReader

    try:
        older = Nanoseconds(parse_duration(older_than))
    except ValueError as err:
        raise UsageError(f"--older-than: {err}", code="BadDuration", remedy="such as 30d") from err

    def make(desk: Desk) -> Change:
        reader = DesiredReader(desk.clone.git, cache_file("documents.cache"))
        return tidied(desk, reader, now(), older, queue)

    return propose(repo, wishes, make)


# --- submit ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--from-sbatch", "script", type=click.Path(path_type=Path, allow_dash=True), help="Make the Job of this script."
)
@click.option("--queue", help="With --from-sbatch: the queue to charge, whatever the script says.")
@click.option(
    "--map", "map_file", type=click.Path(path_type=Path), help="With --from-sbatch: what names are called here."
)
@click.option("--working-dir/--no-working-dir", "here", default=True,
              help="Start it where you stand unless the file says otherwise (default), or at home.")  # fmt: skip
@reason_option
@proposing
@click.pass_obj
def submit(
    repo: Path, file: Path | None, script: Path | None, queue: str | None, map_file: Path | None, why: str, *,
    here: bool, wishes: Wishes,
) -> int:  # fmt: skip
    """Propose the Job in FILE (- for standard input), or the one an sbatch script comes to.

    The file goes to cluster-state/jobs/QUEUE/NAME.yaml of the cluster repository, wherever it is now.
    """
    from reconciler.runtime.proposals import submit as submitting

    if (file is None) == (script is None):
        raise UsageError("submit what?", code="NothingAsked", remedy="name one FILE, or --from-sbatch SCRIPT")
    if script is None and (queue or map_file):
        raise UsageError("--queue and --map go with --from-sbatch", remedy="the file itself names its queue")
    working_dir = submitting.standing_in(_here()) if here else ""

    def make(desk: Desk) -> Change:
        if file is not None:
            return submitting.submit(desk, _content(file), str(file), working_dir, why)
        assert script is not None
        imported = submitting.from_sbatch(desk, script, queue, map_file, working_dir)
        for note in imported.notes:
            click.echo(f"{note}\n", err=True)
        return submitting.submit(desk, submitting.imported_text(imported, script), str(script), working_dir, why)

    return propose(repo, wishes, make)


def _content(file: Path) -> bytes:
    """What is in the file. Raises NotFound, which names the file of that name in the cluster repository around us."""
    from reconciler.documents.layout import ROOT
    from reconciler.runtime.translating import read_bytes

    try:
        return read_bytes(file)
    except NotFound as err:
        folder = next((one / ROOT / "jobs" for one in (Path.cwd(), *Path.cwd().parents) if (one / ROOT).is_dir()), None)
        named = sorted(folder.glob(f"*/{file.name}")) if folder is not None and file.parent == Path() else []
        if named:
            err.remedy = f"gangops submit {' or '.join(str(_near(one)) for one in named)}"
        raise


def _here() -> Path:
    """Where the person stands, by the name they know it under: links to a shared file system stay links."""
    named = Path(os.environ.get("PWD", ""))
    return named if named.is_absolute() and named.exists() and named.samefile(Path.cwd()) else Path.cwd()


# --- new job --------------------------------------------------------------------------------------------------------


@click.group()
def new() -> None:
    """Write a new document."""


@new.command("job", context_settings={"ignore_unknown_options": False})
@click.argument("name", required=False, default="")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--queue", default="", shell_complete=completing.queues, help="The queue to charge.")
@click.option("--gpus", type=click.IntRange(1), help="All GPUs of the gang.")
@click.option("--gpu-type", default="", help="Only this type.")
@click.option("--time-limit", default="", help="Such as 12h.")
@click.option("--class", "priority_class", default="", help="Its priority class (default: the cluster's).")
@click.option("--checkpoint", "checkpoint_dir", default="", help="Folder of its checkpoints.")
@click.option("--image", default="", help="Container image.")
@click.option("--session", is_flag=True, help="Run nothing and hold the GPUs, for interactive work.")
@click.option("--into", type=click.Path(path_type=Path, allow_dash=True), help="Write here (- for standard output).")
@click.pass_obj
def new_job(
    repo: Path, name: str, command: tuple[str, ...], queue: str, gpus: int | None, gpu_type: str, time_limit: str,
    priority_class: str, checkpoint_dir: str, image: str, into: Path | None, *, session: bool,
) -> None:  # fmt: skip
    """Write the file of a Job NAME that runs COMMAND (after --). What was not said is asked for on a terminal.

    The file goes into the cluster repository around you, else into this folder: then `gangops submit` proposes it.
    """
    from reconciler.runtime.proposals import submit as submitting

    desk = _desk_or_none(repo)
    said: dict[str, object] = {
        "name": name, "queue": queue, "gpus": gpus, "gpu_type": gpu_type, "time_limit": time_limit,
        "priority_class": priority_class, "checkpoint_dir": checkpoint_dir, "image": image, "command": command,
    }  # fmt: skip
    answers = _asked(desk, said, session=session) if is_terminal() else _answered(said, session=session)
    content = submitting.new_job(answers)
    problems = submitting.problems_of(desk, content, answers.key)
    if any(problem.is_error for problem in problems):
        raise InvalidInput(problem for problem in problems if problem.is_error)
    for problem in problems:
        click.echo(f"{problem}\n", err=True)
    if str(into) == "-":
        click.echo(content.decode(), nl=False)
        return
    file = into or _near(submitting.place_for(Path.cwd(), answers.key))
    submitting.check_free(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    click.echo(file)
    click.echo(f"\nNext: look at it, then `gangops submit {file}`", err=True)


def _near(file: Path) -> Path:
    """The file's path from here, when it is below here: short enough to type."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


def _desk_or_none(repo: Path) -> Desk | None:
    """The cluster to check against; None where no clone of one is at hand: then the file is checked by itself."""
    from reconciler.runtime.proposals.desk import Desk

    try:
        return Desk(opened(repo, fetch=True))
    except GangOpsError as err:
        click.echo(f"warning: not checked against a cluster: {err.message}", err=True)
        return None


def _answered(said: dict[str, object], *, session: bool) -> Answers:
    from reconciler.runtime.proposals.submit import Answers

    missing = [flag for field, flag in (("name", "NAME"), ("queue", "--queue"), ("gpus", "--gpus")) if not said[field]]
    missing += [] if said["command"] or session else ["-- COMMAND"]
    if missing:
        raise UsageError(
            f"there is no terminal to ask on, and this was not said: {', '.join(missing)}",
            code="NothingAsked",
            remedy="gangops new job sft --queue nlp --gpus 16 --time-limit 12h -- torchrun train.py",
        )
    return Answers(**said)  # type: ignore[arg-type]  # click made them


def _asked(desk: Desk | None, said: dict[str, object], *, session: bool) -> Answers:
    """What was not said on the command line, asked one by one with what the cluster knows as choices."""
    import shlex

    from reconciler.runtime.proposals.submit import Answers

    queues = sorted(found.name for found in desk.documents("Queue")) if desk is not None else []
    classes = [found.name for found in desk.documents("PriorityClass")] if desk is not None else []
    types = desk.gpu_types() if desk is not None else []
    if not said["name"]:
        said["name"] = click.prompt("Name", err=True)
    if not said["queue"]:
        said["queue"] = _choice("Queue", queues)
    if not said["gpus"]:
        said["gpus"] = click.prompt("GPUs, all in all", type=click.IntRange(1), err=True)
    if not said["gpu_type"] and len(types) > 1:
        said["gpu_type"] = _choice("GPU type", types, empty="any")
    if not said["time_limit"]:
        said["time_limit"] = click.prompt("Time limit, such as 12h", default="", show_default=False, err=True)
    if not said["priority_class"] and len(classes) > 1:
        said["priority_class"] = _choice("Priority class", classes, empty="the default")
    if not said["checkpoint_dir"] and not session:
        told = "Folder of its checkpoints (none: it starts anew)"
        said["checkpoint_dir"] = click.prompt(told, default="", show_default=False, err=True)
    if not said["command"] and not session:
        said["command"] = tuple(shlex.split(click.prompt("Command", err=True)))
    return Answers(**said)  # type: ignore[arg-type]  # click made them


def _choice(question: str, choices: list[str], empty: str = "") -> str:
    """One of the choices; with `empty`, Enter is none of them."""
    told = f"{question} ({', '.join(choices)}{f'; Enter: {empty}' if empty else ''})" if choices else question
    while True:
        answer: str = click.prompt(told, default="" if empty else None, show_default=False, err=True)
        if not choices or answer in choices or (empty and not answer):
            return answer
        click.echo(f"There is no {answer}.", err=True)
