"""`simulate`: a trace of jobs, replayed against a cluster in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reconciler.cli import completing
from reconciler.cli.root import fetch_option
from reconciler.cli.show import cache_file, opened, print_json, width
from reconciler.cli.simulate_screen import Screen, until_interrupted
from reconciler.cli.times import Span
from reconciler.errors import ExitStatus, NotFound, UsageError
from reconciler.model.units import SECOND, Nanoseconds

if TYPE_CHECKING:
    from reconciler.render.simulation import Simulated
    from reconciler.runtime.clone import Clone
    from reconciler.runtime.simulation.agents import Pace
    from reconciler.runtime.simulation.setting import Limits, Setting, Submission
    from reconciler.runtime.simulation.trace import Trace

    _Asked = Sequence[tuple[Setting, tuple[Submission, ...]]]

_MOST = 10**9
"""Numbers of options are below it."""
_LEAST = SECOND  # a time limit of nothing would be none that a document can have


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--at", "places", multiple=True, metavar="REF|FOLDER",
              help="The cluster: a revision of the clone, or a folder of such files (default: the desired branch). "
              "Several give a column each.")  # fmt: skip
@click.option(
    "--queue", default="", shell_complete=completing.queues, help="Stands for queues the cluster does not have."
)
@click.option("--gpu-type", default="", help="Stands for GPU types the cluster does not have.")
@click.option(
    "--time-limits",
    default="exact",
    metavar="exact|none|N",
    help="Of jobs without one: what they ran, none, or N times that.",
)
@click.option(
    "--checkpoint-every",
    type=Span(),
    default=None,
    metavar="TIME",
    help="How often running jobs save (default: never).",
)
@click.option(
    "--start-seconds", type=click.IntRange(min=0), default=0, help="What a start takes on its nodes (default 0)."
)
@click.option("--stop-seconds", type=click.IntRange(min=0), default=0, help="What a stop takes (default 0).")
@click.option(
    "--load",
    default="",
    metavar="RHO",
    help="Stretch arrivals until demand is so much of the first cluster's capacity.",
)
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Only the first so many jobs.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table",
              help="JSON is described by schemas/simulation.schema.json; the table is not an API.")  # fmt: skip
@fetch_option
@click.pass_obj
def simulate(
    repo: Path, trace: Path, places: tuple[str, ...], queue: str, gpu_type: str, time_limits: str,
    checkpoint_every: float | None, start_seconds: int, stop_seconds: int, load: str, limit: int | None, output: str, *,
    fetch: bool,
) -> int:  # fmt: skip
    """Replay TRACE, a CSV file of jobs, against a cluster: who would have waited how long, and what would have run.

    Each decision is the planner's own, judged as in the loop; nodes obey at once and never fail. TRACE needs the columns
    submit_s, duration_s and gpus, and may have job_id, queue, priority (a class), gpu_type (A|B), user, time_limit_s.
    Nothing is committed and nothing leaves this machine. Exit 130 after Ctrl-C, with what was found by then.
    """
    from reconciler.render.simulation import Simulation, simulation_text, simulation_tree
    from reconciler.runtime.simulation.agents import Pace
    from reconciler.runtime.simulation.setting import Stands, submissions
    from reconciler.runtime.simulation.trace import read_trace

    limits, told = _limits(time_limits)
    rho = _load(load)
    every = Nanoseconds(int(checkpoint_every * SECOND)) if checkpoint_every is not None else None
    if every is not None and every <= 0:
        raise UsageError(
            "--checkpoint-every has to be longer than nothing",
            code="BadOption",
            remedy="such as 30m; without it nothing is saved",
        )
    found = read_trace(_content(trace), trace.name)
    found = found.first(limit) if limit is not None else found
    settings = _settings(repo, tuple(dict.fromkeys(places)) or ("",), fetch=fetch)
    _check_paces(settings, start_seconds, stop_seconds)
    found = found.stretched(rho, _gpus(settings[0], found, rho)) if rho is not None else found
    pace = Pace(start=Nanoseconds(start_seconds * SECOND), stop=Nanoseconds(stop_seconds * SECOND), checkpoint=every)
    stands = Stands(queue=queue, gpu_type=gpu_type)
    asked = [(setting, submissions(found, setting, stands, limits)) for setting in settings]
    runs = tuple(_runs(asked, pace))
    assumed = (told, *_assumed(asked, pace, checkpoint_every, load))
    page = Simulation(
        trace=found.file, jobs=len(found.rows), without_gpus=found.without_gpus, assumed=assumed, runs=runs
    )
    if output == "json":
        print_json("Simulation", simulation_tree(page))
    else:
        click.echo(simulation_text(page, width()))
    return ExitStatus.INTERRUPTED if any(run.partial for run in runs) else ExitStatus.OK


# --- what was asked ---


def _content(trace: Path) -> bytes:
    if str(trace) == "-":
        return sys.stdin.buffer.read()
    try:
        return trace.read_bytes()
    except FileNotFoundError as err:
        raise NotFound(
            f"{trace} does not exist", code="PathNotFound", remedy="Name a CSV file, or - for standard input."
        ) from err


def _limits(said: str) -> tuple[Limits, str]:
    """The time limit of rows without one, and the sentence about it."""
    if said == "exact":
        return (lambda row: max(row.duration, _LEAST)), "time limits: what each job ran, where the trace has none"
    if said == "none":
        return (lambda _: None), "time limits: the cluster's default or none, where the trace has none"
    factor = _number(said)
    if factor is None or factor < 1:
        raise UsageError(
            f"--time-limits {said!r}: it has to be exact, none, or a number from 1 on",
            code="BadOption",
            remedy="such as 2: twice what each job ran",
        )
    said_so = f"time limits: {said} times what each job ran, where the trace has none"
    return (lambda row: max(Nanoseconds(int(row.duration * factor)), _LEAST)), said_so


def _load(said: str) -> Fraction | None:
    found = _number(said) if said else None
    if said and (found is None or found <= 0):
        raise UsageError(
            f"--load {said!r} is no load",
            code="BadOption",
            remedy="such as 0.7: seven tenths of what the cluster could do",
        )
    return found


def _number(said: str) -> Fraction | None:
    try:
        found = Fraction(said)
    except (ValueError, ZeroDivisionError):
        return None
    return found if abs(found) < _MOST else None


def _gpus(setting: Setting, trace: Trace, rho: Fraction) -> int:
    if trace.load(setting.gpus) is None:
        raise UsageError(
            f"--load {rho}: {'all jobs of the trace come at once' if setting.gpus else 'the cluster has no GPUs'}",
            code="BadOption",
            remedy="Leave --load out: there are no arrivals to stretch.",
        )
    return setting.gpus


def _settings(repo: Path, places: Sequence[str], *, fetch: bool) -> list[Setting]:
    """The clusters named, in order; the clone is opened only when one is a revision of it."""
    from reconciler.runtime.reading import DesiredReader
    from reconciler.runtime.simulation.cluster import folder_meant, setting_at, setting_in

    folders = {at: folder_meant(at) for at in places}
    clone = _clone(repo, fetch=fetch) if None in folders.values() else None
    reader = (
        DesiredReader(clone.git, cache_file("documents.cache"), partial=clone.partial) if clone is not None else None
    )
    found = []
    for at, folder in folders.items():
        if folder is not None:
            found.append(setting_in(folder, at))
        elif clone is not None and reader is not None:
            found.append(setting_at(clone, reader, at))
    return found


def _clone(repo: Path, *, fetch: bool) -> Clone:
    """The clone. Raises NotFound (NotAClone), and says that there is a way without one."""
    try:
        return opened(repo, fetch=fetch)
    except NotFound as err:
        raise NotFound(err.message, code=err.code, remedy=f"{err.remedy}; or --at FOLDER of its files") from err


def _check_paces(settings: Sequence[Setting], start: int, stop: int) -> None:
    """A start or stop that takes longer than the rules allow would fail each time, or be killed."""
    for setting in settings:
        rules = setting.desired.scheduling
        for option, seconds, most, name in (
            ("--start-seconds", start, rules.gang_start_timeout // SECOND - 1, "gangStartTimeout"),
            ("--stop-seconds", stop, rules.kill_after // SECOND, "killAfter"),
        ):
            if seconds > most:
                raise UsageError(
                    f"{option} {seconds}: more than {most} passes {name} of {setting.name}",
                    code="BadOption",
                    remedy=f"Give less, or raise {name} in its cluster.yaml.",
                )


def _assumed(asked: _Asked, pace: Pace, every: float | None, load: str) -> Iterator[str]:
    from reconciler.runtime.simulation.setting import stood_in

    yield (
        f"checkpoints: every {every:g} s of running; a stop loses what came after"
        if every is not None
        else "checkpoints: none; who is stopped for others begins anew"
    )
    yield f"nodes: never fail; a start takes {pace.start // SECOND} s, a stop {pace.stop // SECOND} s"
    if load:
        yield f"arrivals: stretched to load {load}"
    yield "left out: the repository's own jobs, requests, policies, maintenance and reservations"
    yield from dict.fromkeys(line for _, jobs in asked for line in stood_in(jobs))
    for setting, _ in asked:
        if setting.commit:
            yield f"{setting.name} is commit {setting.commit[:12]}"


# --- running ---


def _runs(asked: _Asked, pace: Pace) -> Iterator[Simulated]:
    """One after the other; after Ctrl-C the one under way is the last."""
    from reconciler.runtime.simulation.result import simulate as simulated

    with until_interrupted() as interrupt:
        for setting, jobs in asked:
            screen = Screen(setting.name, interrupt)
            found = simulated(setting, jobs, pace, screen.told)
            screen.close(found)
            yield found
            if found.partial:
                return
