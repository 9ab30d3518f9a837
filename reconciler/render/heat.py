"""Every GPU now, as SVG: a picture a rack, so that racks flow into whatever width there is.

Cells are as large as the number of nodes lets them be. A hollow cell is idle, one with a core is held for a repair,
a crossed one is out of work, all others have their queue's colour and pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from markupsafe import Markup

from reconciler.model.counting import counted
from reconciler.render.names import shortened
from reconciler.render.page_values import NodeShown, Page
from reconciler.render.palette import Palette
from reconciler.render.svg import GLYPH, Drawing, mark, rectangle, room_for

_CELLS: Final = ((24, 17), (96, 13), (320, 9), (1200, 6))
_SMALLEST: Final = 4
_NAMED: Final = 11
"""Cells below this size have no room for a node's name beside them."""


@dataclass(frozen=True, slots=True)
class RackShown:
    """A rack's picture, with what is held of it."""

    name: str
    held: int
    gpus: int
    drawing: Drawing


@dataclass(frozen=True, slots=True)
class GroupShown:
    """Racks side by side, under the name of what they are in."""

    name: str
    racks: tuple[RackShown, ...]


def heat_map(page: Page, looks: Palette) -> tuple[GroupShown, ...]:
    """Spine group, rack, node, GPU, in the order of the page's nodes."""
    cell = next((size for most, size in _CELLS if len(page.nodes) <= most), _SMALLEST)
    left = room_for([node.name for node in page.nodes], 0, 130) if cell >= _NAMED else 0
    return tuple(
        GroupShown(
            group, tuple(_rack(name, list(nodes), cell, left, looks) for name, nodes in groupby(of_group, lambda one: one.rack))
        )
        for group, of_group in groupby(page.nodes, lambda one: one.group)
    )  # fmt: skip


def _rack(name: str, nodes: Sequence[NodeShown], cell: int, left: int, looks: Palette) -> RackShown:
    gap = 1 if cell < _NAMED else 2
    pitch = cell + gap
    width = left + max(node.gpus for node in nodes) * pitch
    solid: dict[str, list[str]] = {}
    labels: list[Markup] = []
    for number, node in enumerate(nodes):
        y = float(number * pitch)
        for kind, x in _cells(node, looks):
            solid.setdefault(kind, []).append(_shape(kind, left + x * pitch, y, cell))
        if left:
            short = shortened(node.name, int((left - 8) / GLYPH))
            labels.append(mark('<text class="node left" x="0" y="{}">{}</text>', y + cell / 2 + 4, short))
        labels.append(
            mark('<rect class="hit" x="0" y="{}" width="{}" height="{}"><title>{}</title></rect>', y, width, pitch, told(node))
        )  # fmt: skip
    parts = [_layer(kind, "".join(shapes)) for kind, shapes in sorted(solid.items())]
    body = Markup("").join([*parts, *labels])
    return RackShown(
        name,
        sum(node.held for node in nodes),
        sum(node.gpus for node in nodes),
        Drawing(body, width, len(nodes) * pitch),
    )


def _cells(node: NodeShown, looks: Palette) -> list[tuple[str, int]]:
    """(kind, position) of each GPU."""
    found = []
    for index, word in enumerate(node.cells):
        own = f"q{looks.of(word)}"
        kind = "down" if word == "!" else "free" if not word else f"{own} spare" if index in node.spares else own
        found.append((kind, index))
    return found


def _shape(kind: str, x: float, y: float, cell: int) -> str:
    """Lines lie on the middle of pixels, areas between them."""
    if kind == "free":
        return rectangle(x + 0.5, y + 0.5, cell - 1, cell - 1)
    if kind.endswith("spare"):
        core = cell / 4
        return rectangle(x + 0.5, y + 0.5, cell - 1, cell - 1) + rectangle(
            x + cell / 2 - core / 2, y + cell / 2 - core / 2, core, core
        )
    return rectangle(x, y, cell, cell)


def _layer(kind: str, path: str) -> Markup:
    """All cells of a kind, and over them what tells them apart without colour."""
    over = "cross" if kind == "down" else "over" if kind.startswith("q") and not kind.endswith("spare") else ""
    again = mark('<path class="{}" d="{}"/>', over, path) if over else Markup("")
    return mark('<g class="{}"><path class="cell" d="{}"/>{}</g>', kind, path, again)


def told(node: NodeShown) -> str:
    """A node's line: how much is held, by whom, and what is wrong with it."""
    held = "; ".join(f"{job} {gpus}" for job, gpus in node.held_by)
    parts = [f"{node.name}: {node.held} of {counted(node.gpus, 'GPU')} held", held, node.note]
    return ", ".join(filter(None, parts))
