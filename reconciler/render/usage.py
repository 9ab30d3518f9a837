"""GPU-hours as a table, Markdown, CSV and plain trees. Hours have three decimals, rounded down; JSON has seconds too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from reconciler.documents.quantities import print_instant
from reconciler.model.units import SECOND, Instant
from reconciler.render.names import share, shortened
from reconciler.render.table import table

COLUMNS = ("starting", "running", "stalled", "stopping", "reserved", "lostToPreemption", "lostToFailures")
CSV_COLUMNS = ("period", "key", "gpuType", "allocated", *COLUMNS, "guaranteed", "ceiling")
_HOUR = 3600 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """GPU-nanoseconds of one group in one period, in the order of COLUMNS; quotas None where there are none."""

    period: Instant
    key: str
    gpu_type: str
    hours: tuple[int, ...]
    guaranteed: int | None
    ceiling: int | None

    @property
    def allocated(self) -> int:
        return sum(self.hours[:4])


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeShare:
    """One GPU type in one period, in GPU-nanoseconds: the parts add up to `capacity` exactly."""

    gpu_type: str
    capacity: int
    allocated: int
    reserved: int
    idle: int
    unavailable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """One period as a whole: the parts add up to `capacity` exactly."""

    period: Instant
    until: Instant
    capacity: int
    hours: tuple[int, ...]
    idle: int
    unavailable: int
    undeclared: int
    types: tuple[TypeShare, ...] = ()


def hours(nanoseconds: int) -> str:
    """GPU-hours with three decimals, rounded down."""
    thousandths = nanoseconds * 1000 // _HOUR
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"


_HEAD = (
    "GPU", "ALLOCATED", "RUNNING", "LOST/PREEMPT", "LOST/FAIL", "RESERVED", "GUARANTEED", "USED", "CEILING"
)  # fmt: skip
_SHORT = {"LOST/PREEMPT": "PREEMPT", "LOST/FAIL": "FAIL", "GUARANTEED": "QUOTA"}


_LEAST_KEY = 12


def usage_table(
    by: str, rows: Sequence[UsageRow], totals: Sequence[UsageTotal], width: int | None, *, markdown: bool = False
) -> str:
    """A table a period: each group, then what became of the whole."""
    head = [by.upper(), *_HEAD]
    parts = []
    for total in totals:
        mine = [row for row in rows if row.period == total.period]
        told = f"{_day(total.period)} to {_day(total.until)}, GPU-hours"
        if markdown:
            parts.append(_markdown(told, head, [_cells(row, hours) for row in mine]))
        else:
            parts.append(_fitted(told, head, mine, width))
        parts.append(_whole(total, width, markdown=markdown))
        if len(total.types) > 1:
            parts.append(_types(total.types, width, markdown=markdown))
    return "\n\n".join(parts)


def _cells(row: UsageRow, said: Callable[[int], str]) -> list[str]:
    def some(value: int | None) -> str:
        return said(value) if value else "-"

    return [
        row.key or "(none)", row.gpu_type or "-", said(row.allocated), said(row.hours[1]), some(row.hours[5]),
        some(row.hours[6]), some(row.hours[4]), some(row.guaranteed), _percent(row.allocated, row.guaranteed), some(row.ceiling),
    ]  # fmt: skip


def _fitted(told: str, head: list[str], rows: Sequence[UsageRow], width: int | None) -> str:
    """The table as it is where it fits; else without what is the same in all rows, with short headings, to the tenth."""
    cells = [_cells(row, hours) for row in rows]
    whole = table(head, cells, right=" ".join(head[2:]))
    if width is None or max(map(cell_len, whole.splitlines())) <= width:
        return f"{told}\n{whole}"
    types = {row[1] for row in cells}
    one_type = f" of {types.pop()}" if len(types) == 1 and types != {"-"} else ""
    kept = [
        i for i in range(len(head)) if i == 0 or ((i > 1 or not one_type) and any(row[i] != "-" for row in cells))
    ]  # fmt: skip
    names = [_SHORT.get(head[i], head[i]) for i in kept]
    right = " ".join(name for name in names[1:] if name != "GPU")
    exact, rough = (
        table(names, [[_cells(row, said)[i] for i in kept] for row in rows], right=right) for said in (hours, _tenths)
    )
    lines = [f"{told}{one_type}"]
    if {"PREEMPT", "FAIL"} & set(names):
        lines.append("PREEMPT and FAIL are work that was thrown away")
    if max(map(cell_len, exact.splitlines())) <= width:
        return "\n".join([*lines, exact])
    over = max(map(cell_len, rough.splitlines())) - width
    if over > 0:
        room = max(_LEAST_KEY, max(len(row[0]) for row in cells) - over)
        short = [[_cells(row, _tenths)[i] for i in kept] for row in rows]
        rough = table(names, [[shortened(row[0], room), *row[1:]] for row in short], right=right)
    return "\n".join([*lines, rough])


def _tenths(nanoseconds: int) -> str:
    """GPU-hours to the tenth, rounded down."""
    return hours(nanoseconds)[:-2]


def _markdown(title: str, head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [f"### {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * 2}{'---:|' * (len(head) - 2)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in cells)])


def _whole(total: UsageTotal, width: int | None, *, markdown: bool) -> str:
    parts = {
        "running": total.hours[1], "starting": total.hours[0], "stalled": total.hours[2], "stopping": total.hours[3],
        "reserved": total.hours[4], "idle": total.idle, "unavailable": total.unavailable,
    }  # fmt: skip
    named = [(name, value) for name, value in parts.items() if value]
    if markdown:
        lines = ["| capacity x time | GPU-hours | share |", "|---|---:|---:|"]
        lines += [f"| {name} | {hours(value)} | {_percent(value, total.capacity)} |" for name, value in named]
        return "\n".join([*lines, f"| **all** | {hours(total.capacity)} | 100.0 % |"])
    told = " + ".join(f"{name} {hours(value)} ({_percent(value, total.capacity)})" for name, value in named)
    outside = f"\noutside the inventory: {hours(total.undeclared)}" if total.undeclared else ""
    line = f"capacity x time {hours(total.capacity)} = {told}"
    if width is None or len(line) <= width:
        return f"{line}{outside}"
    parts_of = [["capacity x time", hours(total.capacity), ""]]
    parts_of += [[f"  {name}", hours(value), _percent(value, total.capacity)] for name, value in named]
    sizes = [max(map(len, column)) for column in zip(*parts_of, strict=True)]
    lines = [f"{name:<{sizes[0]}}  {value:>{sizes[1]}}  {part:>{sizes[2]}}".rstrip() for name, value, part in parts_of]
    return "\n".join(lines) + outside


def _types(types: Sequence[TypeShare], width: int | None, *, markdown: bool) -> str:
    head = ["GPU", "CAPACITY X TIME", "ALLOCATED", "RESERVED", "IDLE", "UNAVAILABLE"]
    cells = [
        [one.gpu_type or "-", hours(one.capacity), _some(one.allocated), _some(one.reserved), _some(one.idle), _some(one.unavailable)]
        for one in types
    ]  # fmt: skip
    if not markdown:
        head[1] = "CAPACITY"
        return table(head, cells, width=width, right=" ".join(head[1:]))
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def _some(value: int | None) -> str:
    return hours(value) if value else "-"


def _percent(part: int, whole: int | None) -> str:
    return f"{share(part * 100, whole, 1)} %" if whole else "-"


def _day(instant: Instant) -> str:
    text = print_instant(Instant(instant // SECOND * SECOND))
    return text[:10] if text[11:19] == "00:00:00" else f"{text[:10]} {text[11:16]}Z"


def usage_row_tree(row: UsageRow) -> dict[str, str | int | None]:
    """A row for JSON: GPU-seconds as integers, rounded down."""
    spent = {name: value // SECOND for name, value in zip(COLUMNS, row.hours, strict=True)}
    quota = {"guaranteed": row.guaranteed, "ceiling": row.ceiling}
    return {
        "period": print_instant(row.period), "key": row.key, "gpuType": row.gpu_type, "allocated": row.allocated // SECOND,
        **spent, **{name: value // SECOND if value is not None else None for name, value in quota.items()},
    }  # fmt: skip


def usage_total_tree(total: UsageTotal) -> dict[str, object]:
    """A period for JSON. In GPU-nanoseconds, so that it adds up to the last digit."""
    return {
        "period": print_instant(total.period), "until": print_instant(total.until), "capacityNanoseconds": total.capacity,
        **{f"{name}Nanoseconds": value for name, value in zip(COLUMNS, total.hours, strict=True)},
        "idleNanoseconds": total.idle, "unavailableNanoseconds": total.unavailable, "undeclaredNanoseconds": total.undeclared,
        "types": [
            {
                "gpuType": one.gpu_type, "capacityNanoseconds": one.capacity, "allocatedNanoseconds": one.allocated,
                "reservedNanoseconds": one.reserved, "idleNanoseconds": one.idle, "unavailableNanoseconds": one.unavailable,
            }
            for one in total.types
        ],
    }  # fmt: skip


def usage_csv_cells(row: UsageRow) -> dict[str, str | int]:
    """A row for CSV, in GPU-hours."""
    spent = {name: hours(value) for name, value in zip(COLUMNS, row.hours, strict=True)}
    quota = {"guaranteed": row.guaranteed, "ceiling": row.ceiling}
    return {
        "period": print_instant(row.period), "key": row.key, "gpuType": row.gpu_type, "allocated": hours(row.allocated),
        **spent, **{name: hours(value) if value is not None else "" for name, value in quota.items()},
    }  # fmt: skip
