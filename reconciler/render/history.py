"""Answers about the past as a table, as CSV and as plain trees for JSON. Values come in; nothing is looked up."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from reconciler.documents.quantities import print_instant
from reconciler.model.units import Instant
from reconciler.render.names import gpus_of, one_line, when
from reconciler.render.table import below, fitted, table

HISTORY_COLUMNS = (
    "generation", "at", "commit", "job", "queue", "attempt", "action", "state", "gpus", "place", "cause", "reason", "why",
    "preemptor", "person", "pullRequest", "desiredCommit",
)  # fmt: skip
HOLDING_COLUMNS = (
    "node",
    "gpus",
    "job",
    "queue",
    "attempt",
    "state",
    "generation",
    "at",
    "commit",
    "action",
    "person",
    "pullRequest",
    "why",
)
Row = dict[str, "str | int"]


def by_whom(person: str, request: str) -> str:
    """`PR #88`, or the person where no pull request is known, or `-`."""
    return f"PR #{request}" if request else person or "-"


_ENDS = "\r\n"
_ROOMY = 150
"""Columns from which on a row of the history is one line."""


def history_header(width: int | None) -> str:
    """The heading of `history_line`s."""
    start = f"{'#':<7} {'WHEN':<20}  {'COMMIT':<8} {'ACTION':<8} {'GPUS':>5}  "
    return f"{start}JOB" if _is_narrow(width) else f"{start}{'JOB':<28} {'BY':<18}  WHY"


def history_line(row: Row, width: int | None) -> str:
    """One row in columns of fixed width, so that the first can be shown before the last is known.

    On a narrow terminal who asked for it and why stand below it, indented and wrapped.
    """
    by = by_whom(str(row["person"]), str(row["pullRequest"]))
    start = (
        f"{'#' + str(row['generation']):<7} {when(Instant(int(row['_at']))):<20}  {str(row['commit'])[:7]:<8} {row['action']:<8} "
        f"{row['gpus'] or '-':>5}  "
    )
    if not _is_narrow(width):
        return f"{start}{row['job']:<28} {by:<18}  {_why(row)}".rstrip()
    why = f"{by}: {_why(row)}" if by != "-" else _why(row)
    return "\n".join([*fitted(start, str(row["job"]), width), *below(why, width)])


def _is_narrow(width: int | None) -> bool:
    return width is not None and width < _ROOMY


def _why(row: Row) -> str:
    why = str(row["why"] or row["reason"])
    by = str(row["preemptor"]) if row["action"] == "preempt" else ""
    return one_line(f"for {by}: {why}" if by and by not in why else why)


def holdings_table(rows: Sequence[Row], width: int | None) -> str:
    """Who held what: a line a node and job, and the decision that gave it.

    On a narrow terminal its commit, for whom and why stand below it.
    """
    header = ["NODE", "GPUS", "JOB", "ATTEMPT", "STATE", "GIVEN BY", "SINCE"]
    more = ["WHY"] if _is_narrow(width) else ["FOR", "WHY"]
    cells = []
    for row in rows:
        given, commit = f"#{row['generation']}", str(row["commit"])[:7]
        by, why = by_whom(str(row["person"]), str(row["pullRequest"])), one_line(str(row["why"]))
        start = [str(row["node"]), str(row["gpus"]), str(row["job"]), str(row["attempt"]), str(row["state"])]
        since = when(Instant(int(row["_at"])))
        if _is_narrow(width):
            cells.append([*start, given, since, f"{commit}  {by}: {why}" if by != "-" else f"{commit}  {why}"])
        else:
            cells.append([*start, f"{given} {commit}", since, by, why])
    return table([*header, *more], cells, width=width, right="ATTEMPT")


def as_csv(columns: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Lines of CSV with a header. A cell that a spreadsheet would take for a formula is quoted with an apostrophe."""
    yield _csv_line(columns)
    for row in rows:
        yield _csv_line([_inert(row[name]) for name in columns])


def _csv_line(cells: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator=_ENDS).writerow(cells)  # a cell with any of these is quoted
    return out.getvalue().removesuffix(_ENDS)


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"} else value


def shown_row(row: Row) -> Row:
    """A row without what is only for the table."""
    return {key: value for key, value in row.items() if not key.startswith("_")}


def instant_cell(at: Instant) -> str:
    """An instant as JSON and CSV have it."""
    return print_instant(at)


def mask_cell(mask: int) -> str:
    """GPU indexes as JSON and CSV have them: `0-3,6`."""
    return gpus_of(mask).replace("+", ",")
