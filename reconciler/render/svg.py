"""Small things every picture needs: marks from a template with all values escaped, numbers, and texts cut to a room."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

GLYPH = 6.8
"""Pixels of an average letter of the pages' 11-pixel type."""


_NOTHING = Markup()


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG's inside and its size in pixels; `side` are its labels, which stay in view while it is scrolled."""

    body: Markup
    width: int
    height: int
    side: Markup = _NOTHING
    side_width: int = 0


def mark(template: str, *values: object) -> Markup:
    """An element from a literal of ours; values are escaped, numbers shortened."""
    shown = (n(value) if isinstance(value, float) else value for value in values)
    return Markup(template).format(*shown)  # noqa: S704  templates are literals; values are escaped


def n(number: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{number:.1f}".removesuffix(".0")


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """A rectangle as a piece of a path: many of one look are one element, or a page would be megabytes."""
    return f"M{n(x)} {n(y)}h{n(width)}v{n(height)}h{n(-width)}z"


def room_for(names: list[str], least: int, most: int) -> int:
    """Pixels for a column of these names."""
    return min(most, max(least, int(max(map(len, names), default=0) * GLYPH) + 12))
