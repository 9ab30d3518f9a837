"""The record as one page: a picture of who held what, with a table under each. HTML and SVG, no script, nothing loaded.

Values come in, one file goes out: light and dark by what the reader prefers, queues told apart by pattern as well as
colour, and a content policy that allows this page's own style and nothing else. Where values come from is for the
runtime, how the pictures are drawn for `pictures`.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reconciler.model.units import SECOND
from reconciler.render.names import share, span, when
from reconciler.render.page_values import Page
from reconciler.render.pictures import fragmentation, heat_map, quota_bars, timeline
from reconciler.render.usage import hours

_TEMPLATES = Path(__file__).parent / "templates"
_COLOURS = 8


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
    colours = {queue.name: number % _COLOURS for number, queue in enumerate(page.queues)}
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            page=page, live=live, style=Markup(style()),  # noqa: S704  our own file
            policy=policy(), colours=colours,
            timeline=timeline(page, colours), heat=heat_map(page, colours), fragments=fragmentation(page),
            quota=quota_bars(page, colours), by_rack=not page.bars and bool(page.shares),
        )
    )  # fmt: skip


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
        hours=hours,
        span=span,
        share=lambda ppm: share(ppm, 1_000_000),
        gpu_hours=lambda s: hours(s * SECOND),
    )
    return made
