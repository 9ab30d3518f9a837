"""Which jobs does a trace have? A CSV file as rows, in the order of their submission, with everything wrong in it.

Only `submit_s`, `duration_s` and `gpus` are needed; columns that nobody knows are passed over. Times are seconds from any
origin, and become nanoseconds from the first submission. What a queue or a class is, the cluster says (`setting`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final

from reconciler.errors import Diagnostic, InvalidInput, Place, Severity
from reconciler.model.counting import counted
from reconciler.model.units import SECOND, GpuSeconds, Nanoseconds
from reconciler.render.names import one_line

NEEDED: Final = ("submit_s", "duration_s", "gpus")
KNOWN: Final = (*NEEDED, "job_id", "queue", "priority", "gpu_type", "user", "time_limit_s")
_MOST_TOLD: Final = 20
"""Problems that are told; a file of a million rows may be wrong in each."""
_LONGEST: Final = 10**10
"""Seconds that anything in a trace may last: three hundred years is a mistake, and so is what overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job as the trace has it. `line` is where; "" and None stand for what the trace does not say.

    `submit` counts from the first submission. `limit` is the time limit it was submitted with.
    """

    line: int
    name: str
    submit: Nanoseconds
    duration: Nanoseconds
    gpus: int
    queue: str = ""
    priority: str = ""
    gpu_types: tuple[str, ...] = ()
    user: str = ""
    limit: Nanoseconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Rows in the order of submission, ties as written. `without_gpus`: rows left out because they ask for no GPU."""

    file: str
    rows: tuple[Row, ...]
    without_gpus: int = 0

    @property
    def span(self) -> Nanoseconds:
        """From the first submission to the last."""
        return self.rows[-1].submit if self.rows else Nanoseconds(0)

    @property
    def work(self) -> GpuSeconds:
        """GPU-seconds of all rows, rounded down."""
        return GpuSeconds(sum(row.gpus * row.duration for row in self.rows) // SECOND)

    def load(self, gpus: int) -> Fraction | None:
        """GPU-seconds asked for by GPU-seconds there were; None when all came at once, or there are no GPUs."""
        return Fraction(self.work * SECOND, self.span * gpus) if self.span and gpus else None

    def first(self, count: int) -> Trace:
        """The first so many jobs."""
        return replace(self, rows=self.rows[:count])

    def stretched(self, load: Fraction, gpus: int) -> Trace:
        """The same jobs, coming slower or faster, so that so many GPUs have this load. Needs a load to begin with."""
        now = self.load(gpus)
        if now is None:
            return self
        rows = (replace(row, submit=Nanoseconds(int(row.submit * now / load))) for row in self.rows)
        return replace(self, rows=tuple(rows))


def read_trace(content: bytes, file: str) -> Trace:
    """The rows of a CSV file with a line of column names. Raises InvalidInput with every problem, up to a number."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        at = Place(file, content.count(b"\n", 0, err.start) + 1, 1)
        raise InvalidInput(
            [Diagnostic("NotUtf8", "File is not UTF-8", f"{err.reason}.", at, "Save it as UTF-8.")]
        ) from err
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(table, [])]
        if wrong := list(_header_problems(header, file)):
            raise InvalidInput(wrong)
        return _rows_of(table, header, file)
    except csv.Error as err:
        at = Place(file, table.line_num, 1)
        raise InvalidInput(
            [Diagnostic("NotCsv", "File is no CSV", f"{err}.", at, "Quote fields that have quotes.")]
        ) from err


def _header_problems(header: Sequence[str], file: str) -> Iterator[Diagnostic]:
    if missing := [name for name in NEEDED if name not in header]:
        detail = f"The first line names: {one_line(', '.join(header))[:200] or 'nothing'}; there is no {', no '.join(missing)}."
        remedy = f"Name {', '.join(NEEDED)} in the first line; {', '.join(KNOWN[3:])} are optional."
        if len(header) == 1 and set(header[0]) & set(";\t|"):
            remedy = "Put commas between the fields."
        yield Diagnostic("MissingColumn", "A column is missing", detail, Place(file, 1, 1), remedy)
    for name in sorted({name for name in header if name in KNOWN and header.count(name) > 1}):
        detail = f'The first line names "{name}" more than once.'
        yield Diagnostic("RepeatedColumn", "A column is there twice", detail, Place(file, 1, 1), "Rename one of them.")


def _rows_of(table: Iterator[list[str]], header: Sequence[str], file: str) -> Trace:
    problems: list[Diagnostic] = []
    rows: list[Row] = []
    without = 0
    ended = table.line_num  # type: ignore[attr-defined]  # a csv.reader has it, its protocol is not public
    for cells in table:
        line, ended = ended + 1, table.line_num  # type: ignore[attr-defined]
        if not any(map(str.strip, cells)):
            continue
        row = _row(dict(zip(header, cells, strict=False)), len(cells), len(header), Place(file, line, 1), problems)
        if row is not None and row.gpus:
            rows.append(row)
        without += row is not None and not row.gpus
    if problems:
        raise InvalidInput(_told(problems))
    if not rows:
        detail = (
            f"{without} rows ask for no GPU; there is no other." if without else "There is no row below the first line."
        )
        raise InvalidInput(
            [Diagnostic("EmptyTrace", "Trace has no jobs", detail, Place(file), "Name a trace of GPU jobs.")]
        )
    begins = min(row.submit for row in rows)
    ordered = sorted(
        (replace(row, submit=Nanoseconds(row.submit - begins)) for row in rows), key=lambda r: (r.submit, r.line)
    )
    return Trace(file=file, rows=tuple(ordered), without_gpus=without)


def _row(
    said: Mapping[str, str], cells: int, columns: int, at: Place, problems: list[Diagnostic]
) -> Row | None:  # fmt: skip
    """The row; None when something is wrong with it, which is added to the problems."""
    if cells != columns:
        detail = f"The row has {counted(cells, 'field')}, the first line {columns}."
        problems.append(
            Diagnostic("RaggedRow", "Row has another number of fields", detail, at, "Add or remove commas.")
        )
        return None
    before = len(problems)
    submit = _seconds(said, "submit_s", at, problems, negative=True)
    duration = _seconds(said, "duration_s", at, problems)
    limit = _seconds(said, "time_limit_s", at, problems) if said.get("time_limit_s", "").strip() else None
    gpus = _gpus(said, at, problems)
    if len(problems) > before or submit is None or duration is None or gpus is None:
        return None
    kinds = tuple(kind.strip() for kind in said.get("gpu_type", "").split("|") if kind.strip())
    name, queue, priority, user = (said.get(key, "").strip() for key in ("job_id", "queue", "priority", "user"))
    return Row(
        line=at.line, name=name or f"line {at.line}", submit=submit, duration=duration, gpus=gpus, queue=queue,
        priority=priority, gpu_types=kinds, user=user, limit=limit,
    )  # fmt: skip


def _seconds(
    said: Mapping[str, str], column: str, at: Place, problems: list[Diagnostic], *, negative: bool = False
) -> Nanoseconds | None:
    text = said[column].strip()
    try:
        found = Decimal(text)
    except InvalidOperation:
        found = Decimal("NaN")
    if found.is_finite() and abs(found) <= _LONGEST and (negative or found >= 0):
        return Nanoseconds(int(found * SECOND))
    what = f"a number of seconds, {-_LONGEST if negative else 0:,} to {_LONGEST:,}"
    problems.append(_bad(column, text, what, at))
    return None


def _gpus(said: Mapping[str, str], at: Place, problems: list[Diagnostic]) -> int | None:
    text = said["gpus"].strip()
    whole = text.removesuffix(".0")
    if whole.isascii() and whole.isdecimal() and len(whole) < 10:
        return int(whole)
    problems.append(_bad("gpus", text, "a whole number of GPUs, below a billion", at))
    return None


def _bad(column: str, text: str, wanted: str, at: Place) -> Diagnostic:
    shown = f'"{one_line(text)[:40]}"' if text else "empty"
    place = replace(at, path=column)
    return Diagnostic("BadField", "A field cannot be read", f"{column} is {shown}; it has to be {wanted}.", place,
                      "Correct the row, or take it out.")  # fmt: skip


def _told(problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The first of them, and how many more there are."""
    told = list(problems[:_MOST_TOLD])
    if (more := len(problems) - len(told)) > 0:
        last = problems[_MOST_TOLD].place
        told.append(Diagnostic("MoreProblems", "There are more problems like these", f"{more} more, from this row on.",
                               last, "Correct the ones above first.", Severity.ERROR))  # fmt: skip
    return told
