"""The record as one page: a picture of who held what, with a table under each. HTML and SVG, no script, nothing loaded.

Values come in, one file goes out: light and dark by what the reader prefers, queues told apart by pattern as well as
colour, and a content policy that allows this page's own style and nothing else. Where values come from is for the
runtime, how the pictures are drawn for `pictures` and `heat`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reconciler.model.counting import counted
from reconciler.model.units import SECOND
from reconciler.render.heat import heat_map
from reconciler.render.names import share, span, when
from reconciler.render.page_values import Page, QueueShown
from reconciler.render.palette import OTHER, Palette, palette
from reconciler.render.pictures import fragmentation, timeline
from reconciler.render.spells import rack_uses, spells
from reconciler.render.usage import hours
from reconciler.render.verdict import concerns

_TEMPLATES = Path(__file__).parent / "templates"
_AT_ONCE: Final = 15
"""Rows of the long lists that are in view; the others are there to be opened."""
_CODE = re.compile("`([^`]+)`")


@cache
def style() -> str:
    """The one style of all pages."""
    return (_TEMPLATES / "page.css").read_text("utf-8")


def policy() -> str:
    """What a page may do: wear that style, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style().encode()).digest()).decode("ascii")
    return f"default-src 'none'; style-src 'sha256-{digest}'"


def html_page(page: Page, *, live: bool = False) -> str:
    """The whole file. `live`: jobs and nodes are links to pages of their own."""
    looks = palette(page.queues)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            page=page, live=live, style=Markup(style()),  # noqa: S704  our own file
            policy=policy(), looks=looks, other=OTHER, concerns=concerns(page), shown=_AT_ONCE,
            timeline=timeline(page, looks), heat=heat_map(page, looks), fragments=fragmentation(page),
            quota=tuple(_quota(page, looks)), by_rack=not page.bars and bool(page.shares),
            spells=spells(page.bars), rack_uses=rack_uses(page.shares, page.since, page.until),
            states={bar.state for bar in page.bars}, down=any("!" in node.cells for node in page.nodes),
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _QuotaBar:
    """A queue's bar: widths and marks as percentages of the room, "" for a mark that is not on it."""

    name: str
    look: int
    held: str
    guaranteed: str
    ceiling: str
    told: str


def _quota(page: Page, looks: Palette) -> Iterator[_QuotaBar]:
    most = max([page.capacity, 1, *(queue.held for queue in page.queues)])

    def at(gpus: int | None) -> str:
        return f"{gpus * 100 / most:.2f}%" if gpus is not None and gpus <= most else ""

    for queue in page.queues:
        yield _QuotaBar(
            name=queue.name, look=looks.of(queue.name), held=at(queue.held), guaranteed=at(queue.guaranteed),
            ceiling=at(queue.ceiling), told=_quota_told(queue),
        )  # fmt: skip


def _quota_told(queue: QueueShown) -> str:
    if queue.guaranteed is not None:
        return f"{queue.held:,} held of {queue.guaranteed:,} guaranteed"
    return f"{queue.held:,} held" + (f" of at most {queue.ceiling:,}" if queue.ceiling is not None else "")


@cache
def environment() -> Environment:
    """Where the templates of all pages are."""
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        when=when,
        hours=_hours,
        span=span,
        number=lambda number: f"{number:,}",
        counted=counted,
        quoted=_quoted,
        percent=lambda ppm: f"{ppm // 10_000} %",
        share=lambda ppm: share(ppm, 1_000_000),
        gpu_hours=lambda s: _hours(s * SECOND),
    )
    return made


def _hours(nanoseconds: int) -> str:
    """GPU-hours as `usage` has them, thousands apart."""
    whole, _, rest = hours(nanoseconds).partition(".")
    return f"{int(whole):,}.{rest}"


def _quoted(text: str) -> Markup:
    """What stands between backticks as code."""
    return Markup(_CODE.sub(lambda found: f"<code>{found[1]}</code>", str(escape(text))))  # noqa: S704  escaped first
