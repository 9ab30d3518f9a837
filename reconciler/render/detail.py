"""The page of one job, array or node: how it stands now, and what was decided about it. HTML, no script, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from reconciler.model.units import Instant
from reconciler.render.page import environment, policy, style

_KINDS: Final = {"Why": "why", "Note": "why", "How": "why", "Job": "name", "Held by": "name", "Where": "place"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One line of what holds now."""

    name: str
    told: str


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell says, and the page it leads to, "" for none."""

    told: str
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table under a title; `right` are the headings of numbers, `empty` is said where there is no row."""

    id: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[str] = frozenset()
    empty: str = "None."


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One decision about it."""

    generation: int
    at: Instant
    commit: str
    action: str
    gpus: int
    job: str
    by: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """All of the page. `kind` is `Job`, `Array` or `Node`; `word` says in short how it stands, `mood` good, warn, bad or ""."""

    kind: str
    name: str
    cluster: str
    generation: int
    commit: str
    word: str
    mood: str
    why: str
    facts: tuple[Fact, ...]
    tables: tuple[Listing, ...]
    steps: tuple[Step, ...]
    more_steps: bool


def detail_page(detail: Detail) -> str:
    """The whole page."""
    return (
        environment()
        .get_template("detail.html.j2")
        .render(page=detail, style=Markup(style()), policy=policy(), kinds=_KINDS)  # noqa: S704  our own file
    )


def job_cell(job: str) -> Cell:
    """A job's name that leads to its page."""
    return Cell(job, f"/jobs/{quote(job)}")


def node_cell(node: str) -> Cell:
    """A node's name that leads to its page."""
    return Cell(node, f"/nodes/{quote(node)}")


def headings(header: Sequence[str]) -> tuple[str, ...]:
    """A table's header for a page: `HELD BY` as `Held by`; short ones such as GPU and NIC stay."""
    return tuple(word if word in _ACRONYMS else word.capitalize() for word in header)


_ACRONYMS: Final = frozenset({"GPU", "UUID", "NUMA", "NIC", "MFU"})


def cells(rows: Iterable[Sequence[str]]) -> tuple[tuple[Cell, ...], ...]:
    """Rows of a text table; what is `-` there is empty here."""
    return tuple(tuple(Cell("" if text == "-" else text) for text in row) for row in rows)
