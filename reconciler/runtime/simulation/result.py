"""What was found in a simulation, whole or cut short? What the run counted, as the values that are shown."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.model.reasons import sentence
from reconciler.model.units import SECOND
from reconciler.render.simulation import Counts, Idler, Simulated
from reconciler.runtime.simulation.agents import Pace
from reconciler.runtime.simulation.run import Run, Watch
from reconciler.runtime.simulation.setting import BEGIN, Setting, Submission
from reconciler.runtime.simulation.tally import (
    crossings,
    held_time,
    lost_work,
    mean_phi,
    ppm,
    stops,
    turnaround,
    useful_work,
    utilisation,
    waits,
    while_queued,
)


def simulate(setting: Setting, jobs: Sequence[Submission], pace: Pace, watch: Watch = lambda _: True) -> Simulated:
    """Run all jobs to their end, or until nothing can happen any more, or the watch has seen enough."""
    run = Run(setting, jobs, pace)
    whole = run.go(watch)
    return found_in(run, partial=not whole)


def found_in(run: Run, *, partial: bool) -> Simulated:
    """All that a run counted so far. Of a partial one, what still runs is in `allocated` alone."""
    tally, setting, jobs = run.tally, run.setting, run.jobs
    last = jobs[-1].row.submit if jobs else 0
    return Simulated(
        at=setting.name, nodes=len(setting.desired.inventory.nodes), gpus=setting.gpus, span=last // SECOND,
        lasted=tally.lasted // SECOND, counts=_counts(run), waits=waits(tally, jobs, BEGIN),
        turnaround=turnaround(tally, jobs, BEGIN), allocated=tally.held // SECOND,
        useful=sum(map(useful_work, tally.spells)) // SECOND, lost=sum(map(lost_work, tally.spells)) // SECOND,
        idle=sum(held_time(one) - one.gpus * one.ran for one in tally.spells) // SECOND,
        utilisation_ppm=utilisation(tally), queued_ppm=while_queued(tally), phi_ppm=mean_phi(tally),
        crossings=crossings(tally), stops=stops(tally),
        never_fit=tuple(_idler(one, run.never[one.key]) for one in jobs if one.key in run.never),
        waiting=() if partial else _left(run),
        decisions=tally.decisions, refused=tally.refused, load_ppm=_load(run, last), partial=partial,
    )  # fmt: skip


def _counts(run: Run) -> Counts:
    waiting, limited = len(run.waiting), run.tally.timed_out
    return Counts(
        submitted=sum(BEGIN + one.row.submit <= run.now for one in run.jobs),
        finished=len(run.tally.ends) - limited,
        timed_out=limited,
        running=len(run.records) - waiting,
        waiting=waiting,
        never_fit=len(run.never),
    )


def _left(run: Run) -> tuple[Idler, ...]:
    """Who waits still when nothing happens any more."""
    why = {record.job: sentence(record.reason) for record in run.waiting}
    return tuple(_idler(one, why[one.key]) for one in run.jobs if one.key in why)


def _idler(one: Submission, why: str) -> Idler:
    return Idler(job=one.row.name, line=one.row.line, gpus=one.row.gpus, why=why)


def _load(run: Run, span: int) -> int | None:
    capacity = span * run.setting.gpus
    return ppm(sum(one.row.gpus * one.row.duration for one in run.jobs), capacity) if capacity else None
