"""What a simulation found, as a page, as JSON, and the schema of that. Shares are in millionths, times in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.documents.values import tree_of
from reconciler.model.counting import counted
from reconciler.model.units import SECOND
from reconciler.render.names import one_line, share, span
from reconciler.render.plan.machine import schema_head, schema_of
from reconciler.render.table import below, table

_NEVER_TOLD: Final = 10
"""Jobs that cannot run that are told one by one; the rest is a number."""
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long the jobs of one group waited until they ran first. `group` is all, queue or size; `most` the longest."""

    group: str
    name: str
    jobs: int
    mean: int
    p50: int
    p95: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """GPU-hours of gangs of several nodes that lay in more than one domain of a level, as a share of all of theirs."""

    level: str
    share_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """How often running gangs were stopped for one cause, and the GPU-seconds of work that this threw away."""

    cause: str
    times: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Idler:
    """A job of the trace that never ran, where it stands there, and why."""

    job: str
    line: int
    gpus: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the jobs that were submitted. `timed_out` ended at a limit shorter than their work."""

    submitted: int
    finished: int
    timed_out: int
    running: int
    waiting: int
    never_fit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One trace on one cluster. GPU-seconds: `allocated` is `useful`, `lost` and `idle` (starting and stopping) together.

    Shares: of capacity from the first submission to the last end (`utilisation`), of it while somebody waited, and Phi
    over that time, which is 0 while nothing is idle. `load` None: all jobs came at once. `refused` decisions were not
    let pass by their own judge, a defect; as the loop does, a later one stood in. `partial`: it was interrupted.
    """

    at: str
    nodes: int
    gpus: int
    span: int
    lasted: int
    counts: Counts
    waits: tuple[Waits, ...]
    turnaround: int
    allocated: int
    useful: int
    lost: int
    idle: int
    utilisation_ppm: int
    queued_ppm: int
    phi_ppm: int
    crossings: tuple[Crossing, ...]
    stops: tuple[Stops, ...]
    never_fit: tuple[Idler, ...]
    waiting: tuple[Idler, ...]
    decisions: int
    refused: int
    load_ppm: int | None = None
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One trace on one or several clusters. `assumed` says what the trace leaves open, and how it was taken."""

    trace: str
    jobs: int
    without_gpus: int
    assumed: tuple[str, ...]
    runs: tuple[Simulated, ...]


def simulation_tree(found: Simulation) -> Mapping[str, object]:
    """The content of the object for machines."""
    tree = tree_of(found)
    assert isinstance(tree, dict)
    return tree


def simulation_schema() -> bytes:
    """`schemas/simulation.schema.json`: what `gangops simulate -o json` prints."""
    said = "What `gangops simulate -o json` prints: times in seconds, work in GPU-seconds, shares in millionths."
    schema = json.loads(schema_of(Simulation, "Simulation", f"{said} A field with its default is left out."))
    head = schema_head("Simulation")
    schema["properties"] = {**head, **schema["properties"]}
    schema["required"] = [*head, *schema["required"]]
    return (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode()


def simulation_text(found: Simulation, width: int | None) -> str:
    """The page: a column for each cluster, then waits, and who never ran."""
    left = f"; {counted(found.without_gpus, 'row')} without GPUs left out" if found.without_gpus else ""
    head = [f"{counted(found.jobs, 'job')} of {found.trace}{left}", *(f"  {line}" for line in found.assumed)]
    parts = [
        "\n".join(row for line in head for row in below(line.strip(), width, line[: len(line) - len(line.lstrip())]))
    ]
    partial = [run for run in found.runs if run.partial]
    if partial:
        parts.append("INTERRUPTED: what follows counts only what had happened by then.")
    parts += [_numbers(found.runs, width), *(_waits(run, found.runs, width) for run in found.runs)]
    parts += [text for run in found.runs if (text := _idlers(run, found.runs, width))]
    return "\n\n".join(parts)


# --- numbers, a column a cluster ---


def _numbers(runs: Sequence[Simulated], width: int | None) -> str:
    rows = [(label, *(cell(run) for run in runs)) for label, cell in _lines(runs)]
    names = [run.at for run in runs]
    return table(["", *names], rows, width=width, right=" ".join(names))


def _lines(runs: Sequence[Simulated]) -> Iterator[tuple[str, Callable[[Simulated], str]]]:
    """Labels and what stands behind them; rows that say nothing of any run are left out."""
    yield "nodes, GPUs", lambda r: f"{r.nodes:,}, {r.gpus:,}"
    yield "jobs submitted, ended", lambda r: f"{r.counts.submitted:,}, {r.counts.finished + r.counts.timed_out:,}"
    if any(r.counts.timed_out for r in runs):
        yield "  of them at their time limit", lambda r: f"{r.counts.timed_out:,}"
    if any(r.counts.running or r.counts.waiting for r in runs):
        yield "  still running, waiting", lambda r: f"{r.counts.running:,}, {r.counts.waiting:,}"
    if any(r.counts.never_fit for r in runs):
        yield "  that could never run", lambda r: f"{r.counts.never_fit:,}"
    yield "submitted over, ended after", lambda r: f"{_span(r.span)}, {_span(r.lasted)}"
    yield "load", lambda r: "-" if r.load_ppm is None else f"{r.load_ppm / _MILLION:.3f}"
    yield "mean turnaround", lambda r: _span(r.turnaround)
    yield "GPU-hours allocated", lambda r: _hours(r.allocated)
    yield "  share of capacity", lambda r: _share(r.utilisation_ppm)
    yield "  while somebody waits", lambda r: _share(r.queued_ppm)
    if any(r.idle for r in runs):
        yield "  in starts and stops", lambda r: _hours(r.idle)
    yield "mean Phi", lambda r: _share(r.phi_ppm)
    for level in dict.fromkeys(c.level for r in runs for c in r.crossings):
        yield f"gangs across {_domains(level)}", _crossing(level)
    yield "stopped for others, GPU-h lost", lambda r: f"{sum(s.times for s in r.stops):,}, {_hours(r.lost)}"
    for cause in dict.fromkeys(s.cause for r in runs for s in r.stops):
        yield f"  {cause}", _stops(cause)
    yield "decisions", lambda r: f"{r.decisions:,}"
    if any(r.refused for r in runs):
        yield "  refused by their judge", lambda r: f"{r.refused:,}"


def _crossing(level: str) -> Callable[[Simulated], str]:
    return lambda run: next((_share(one.share_ppm) for one in run.crossings if one.level == level), "-")


def _stops(cause: str) -> Callable[[Simulated], str]:
    return lambda run: next((f"{s.times:,}, {_hours(s.lost)}" for s in run.stops if s.cause == cause), "-")


def _domains(level: str) -> str:
    return {"rack": "racks", "spineGroup": "spine groups"}.get(level, f"domains of {level}")


# --- waits and who never ran ---


def _waits(run: Simulated, runs: Sequence[Simulated], width: int | None) -> str:
    head = "Waited until it ran first" + (f", at {run.at}" if len(runs) > 1 else "")
    rows = [
        (_group(one), f"{one.jobs:,}", _span(one.mean), _span(one.p50), _span(one.p95), _span(one.most))
        for one in run.waits
    ]
    return f"{head}:\n\n" + table(
        ("", "JOBS", "MEAN", "P50", "P95", "MOST"), rows, width=width, right="JOBS MEAN P50 P95 MOST"
    )


def _group(one: Waits) -> str:
    return {"all": "all", "queue": f"queue {one.name}", "size": f"{one.name} GPU{'' if one.name == '1' else 's'}"}[
        one.group
    ]


def _idlers(run: Simulated, runs: Sequence[Simulated], width: int | None) -> str:
    at = f" at {run.at}" if len(runs) > 1 else ""
    lines: list[str] = []
    for idle, head in ((run.never_fit, "Could never run"), (run.waiting, "Still waiting")):
        if idle:
            lines += ["", f"{head}{at}:"]
            for one in idle[:_NEVER_TOLD]:
                lines += below(
                    f"{one_line(one.job)} (line {one.line}, {counted(one.gpus, 'GPU')}): {one.why}", width, "  "
                )
            if len(idle) > _NEVER_TOLD:
                lines.append(f"  and {counted(len(idle) - _NEVER_TOLD, 'more job', 'more jobs')}; -o json has all")
    return "\n".join(lines[1:])


def _span(seconds: int) -> str:
    return span(seconds * SECOND)


def _hours(gpu_seconds: int) -> str:
    return f"{gpu_seconds / 3600:,.1f}"


def _share(ppm: int) -> str:
    return share(ppm, _MILLION)
