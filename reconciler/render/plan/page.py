"""A plan as one page that needs nothing else: no script, no font, no picture from anywhere; light and dark.

Jinja escapes all text; nothing of a plan reaches an attribute but through the same escaping.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from reconciler.documents.hostlist import expand
from reconciler.model.counting import counted
from reconciler.render.names import one_line, when
from reconciler.render.plan import words
from reconciler.render.plan.model import LEGEND, Plan, QuotaLine, Rack, Row
from reconciler.render.tidying import hop_line, tidying_line

_ROWS = 2_000
_RACKS = 400
_CELL = 26
"""Pixels from one node to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """One node of the picture."""

    x: int
    sign: str
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RackPicture:
    """One rack as a row of nodes, with the width of its picture in pixels."""

    group: str
    rack: str
    width: int
    cells: tuple[_Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """One queue as a bar: widths and positions in thousandths of it."""

    line: QuotaLine
    own: int
    borrowed: int
    mark: int
    told: str


def plan_page(plan: Plan) -> str:
    """The whole page as HTML."""
    rows = [row for row in plan.rows if not row.is_victim]
    shown = sorted(rows, key=lambda row: not row.own)[:_ROWS]
    victims = plan.victims[:_ROWS]
    return _template().render(
        plan=plan,
        headline=words.headline(plan),
        verdict=words.verdict(plan),
        total=words.total(plan),
        over=words.over_ceilings(plan),
        figures=words.figures(plan) if plan.rows or plan.before != plan.after else [],
        tables=[
            ("Who pays", victims, len(plan.victims) - len(victims)),
            ("Jobs", shown, len(rows) - len(shown)),
        ],
        slips=[(slip.job, *words.slip(slip, plan.basis.at)) for slip in plan.slips[:_ROWS]],
        racks=list(_pictures(plan.racks[:_RACKS])),
        racks_left_out=len(plan.racks) - len(plan.racks[:_RACKS]),
        legend=_legend(plan),
        quotas=[_bar(line) for line in plan.quotas],
        several_types=len({line.gpu_type for line in plan.quotas}) > 1,
        tidying=tidying_line(plan.tidying),
        hops=[hop_line(hop) for one in plan.tidying for hop in one.hops][:_ROWS],
        ranked=[row for row in plan.rows if row.ranks],
        at=when(plan.basis.at),
        age=words.age(plan.basis.at - plan.basis.state_at),
        again=" ".join(plan.basis.command),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("reconciler.render.plan", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["line"] = one_line
    environment.globals.update(notes=_notes, edits=words.edits, where=words.where, count=counted)
    return environment.get_template("page.html.j2")


def _notes(row: Row, plan: Plan) -> str:
    told = "; ".join(words.notes(row, plan.basis.at))
    return one_line(f"{told[:1].upper()}{told[1:]}.") if told else ""


def _pictures(racks: tuple[Rack, ...]) -> Iterator[_RackPicture]:
    for rack in racks:
        names = _names(rack)
        cells = tuple(
            _Cell(
                x=number * _CELL,
                sign=sign,
                kind=_KINDS.get(sign, "free"),
                title=f"{names[number] if number < len(names) else rack.rack}: {_meaning(sign)}",
            )
            for number, sign in enumerate(rack.cells)
        )
        yield _RackPicture(group=rack.group, rack=rack.rack, width=max(1, len(cells)) * _CELL, cells=cells)


_KINDS = {"N": "new", "P": "gone", "R": "turn", "#": "busy", "x": "down", "d": "shut"}


def _names(rack: Rack) -> tuple[str, ...]:
    try:
        return tuple(sorted(expand(rack.nodes)))
    except ValueError:
        return ()


def _meaning(sign: str) -> str:
    return LEGEND.get(sign) or ("10 or more GPUs free" if sign == "+" else f"{counted(int(sign), 'GPU')} free")


def _legend(plan: Plan) -> list[tuple[str, str, str]]:
    seen = {sign for rack in plan.racks for sign in rack.cells}
    told = [(sign, _KINDS[sign], word) for sign, word in LEGEND.items() if sign in seen]
    return [*told, *([("8", "free", "free GPUs")] if any(sign.isdigit() for sign in seen) else [])]


def _bar(line: QuotaLine) -> _Bar:
    top = max(line.ceiling or 0, line.guaranteed, line.after, 1)
    return _Bar(
        line=line,
        own=min(line.after, line.guaranteed) * 1000 // top,
        borrowed=max(0, line.after - line.guaranteed) * 1000 // top,
        mark=line.guaranteed * 1000 // top,
        told=words.quota(line),
    )
