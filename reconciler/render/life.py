"""How a job's life reads: a table of its attempts with what was measured beside what was foretold, and its story.

Text only; values come in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reconciler.model.allocation import Placement
from reconciler.model.inventory import Inventory
from reconciler.model.units import GpuSeconds, Instant, JobKey
from reconciler.render.names import gpu_hours, one_line, places, span, when
from reconciler.render.table import below, table

_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a job. `began` is when it was placed, `started` when all ranks ran, `ended` when its GPUs were free.

    `how` is its state, or the word for its end: a cause or an outcome. `lost` is work thrown away at its end,
    `checkpoint` the last one the record knows of.
    """

    number: int
    began: Instant
    placement: Placement
    how: str
    why: str
    started: Instant | None = None
    ended: Instant | None = None
    preemptor: JobKey | None = None
    lost: GpuSeconds = GpuSeconds(0)
    checkpoint: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One decision about the job: what was done, and why. `person` and `request` (a pull request's number) changed or
    removed its file, where the decision answers to that; else ""."""

    generation: int
    at: Instant
    commit: str
    action: str
    state: str
    why: str
    person: str = ""
    request: str = ""

    @property
    def by(self) -> str:
        """`ada@acme.org, PR #12`."""
        return ", ".join(filter(None, (self.person, f"PR #{self.request}" if self.request else "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the program of an attempt last reported of itself: hints, never recorded. None: it did not say.

    `step_seconds` is the time of a step, `mfu` the share of the peak FLOP/s; `at` is when it was heard.
    """

    attempt: int
    step: int | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    at: Instant = Instant(0)


def attempts_table(
    attempts: Sequence[Attempt], paces: Mapping[int, Pace], inventory: Inventory, now: Instant, width: int | None
) -> str:
    """A line an attempt: where it was, T_comm as foretold beside step time and MFU as measured, and how it ended."""
    header, rows = attempts_rows(attempts, paces, inventory, now)
    return table(header, rows, width=width, right="# RAN T_COMM STEP MFU LOST")


def attempts_rows(
    attempts: Sequence[Attempt], paces: Mapping[int, Pace], inventory: Inventory, now: Instant
) -> tuple[list[str], list[list[str]]]:
    """The header and cells of `attempts_table`."""
    rows = []
    for one in attempts:
        pace = paces.get(one.number, Pace(attempt=one.number))
        until = one.ended if one.ended is not None else now
        rows.append(
            [
                str(one.number),
                when(one.started or one.began),
                span(until - one.started) if one.started is not None else "-",
                places(one.placement, inventory),
                span(one.placement.comm_time) if one.placement.comm_time else "-",
                span(round(pace.step_seconds * _SECOND)) if pace.step_seconds is not None else "-",
                f"{pace.mfu * 100:.1f}%" if pace.mfu is not None else "-",
                _price(one.lost),
                _how(one),
            ]
        )
    header = ["#", "SINCE", "RAN", "WHERE", "T_COMM", "STEP", "MFU", "LOST", "HOW"]
    kept = [i for i, name in enumerate(header) if name not in _SPARE or any(row[i] != "-" for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


_SPARE = frozenset({"T_COMM", "STEP", "MFU", "LOST"})
"""Columns that are left out where no attempt has anything in them."""


def _price(lost: GpuSeconds) -> str:
    return gpu_hours(lost) if lost else "-"


def _how(one: Attempt) -> str:
    by = f" by {one.preemptor}" if one.preemptor is not None and one.preemptor not in one.why else ""
    saved = f"; last checkpoint {when(one.checkpoint)}" if one.checkpoint is not None else ""
    return f"{one.how}{by}: {one_line(one.why)}{saved}"


def story_lines(steps: Sequence[Step], *, whole: bool, width: int | None) -> str:
    """Every step, oldest first: when, which generation, what was done and why; and whose change it answers to."""
    lines = [] if whole else ["(older steps: gangops history)"]
    for step in steps:
        head = f"{when(step.at)}  {'#' + str(step.generation):<7} {step.action:<8} "
        why = one_line(step.why)
        if step.by:
            why = f"{why}  ({one_line(step.by)})"
        if width is None or len(head) + len(why) <= width:
            lines.append(f"{head}{why}")
        else:
            lines += [head.rstrip(), *below(why, width)]
    return "\n".join(lines)
