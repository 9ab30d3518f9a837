"""The page's pictures as SVG: timeline, heat map, fragmentation and quota. What fits where on the canvas is decided here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reconciler.model.units import SECOND, Instant
from reconciler.render.names import share, when
from reconciler.render.page_values import Bar, NodeShown, Page

WIDTH, LEFT, RIGHT = 1120, 96, 8
_ROW, _GAP, _RACK_GAP = 15, 2, 9
_MANY_RACKS = 24
MOST_ROWS = 96
"""Nodes drawn one by one; a larger cluster is drawn by rack."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG's inside and its size."""

    body: Markup
    height: int
    width: int = WIDTH


def timeline(page: Page, colours: dict[str, int]) -> Drawing:
    """Who held which GPUs, over time: a row a node, or a row a rack where there are too many."""
    if not page.bars and page.shares:
        return _rack_timeline(page, colours)
    tops: dict[str, int] = {}
    parts: list[Markup] = []
    y, rack = 22, ""
    for node in page.nodes:
        if node.rack != rack:
            y += _RACK_GAP if rack else 0
            parts.append(_svg('<text class="rack" x="0" y="{}">{}</text>', y + 11, node.rack))
            rack = node.rack
        tops[node.name] = y
        parts.append(_svg('<text class="node" x="{}" y="{}">{}</text>', LEFT - 8, y + 11, node.name))
        parts.append(
            _svg('<rect class="lane" x="{}" y="{}" width="{}" height="{}"/>', LEFT, y, WIDTH - LEFT - RIGHT, _ROW)
        )
        y += _ROW + _GAP
    sizes = {node.name: node.gpus for node in page.nodes}
    axis = _Axis(page.since, page.until)
    parts += axis.grid(y)
    for bar in page.bars:
        if bar.node in tops:
            parts += _bar(bar, axis, tops[bar.node], sizes[bar.node], colours)
    return Drawing(Markup("").join(parts), y + 6)


def _bar(bar: Bar, axis: _Axis, top: int, gpus: int, colours: dict[str, int]) -> Iterator[Markup]:
    x, end = axis.x(bar.since), axis.x(bar.until)
    y, height = top + _ROW * bar.first / gpus, _ROW * bar.count / gpus
    wide = max(end - x, 1.2)
    yield _svg(
        '<g class="q{} {}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="2"/>'
        '<rect class="over" x="{}" y="{}" width="{}" height="{}" rx="2"/></g>',
        colours.get(bar.queue, 7), bar.state, bar.told, _n(x), _n(y), _n(wide), _n(height), _n(x), _n(y), _n(wide), _n(height),
    )  # fmt: skip
    if bar.state == "running" and height > 11 and wide > 7 * len(bar.job) * 0.82 + 10:
        yield _svg('<text class="label" x="{}" y="{}">{}</text>', _n(x + 5), _n(y + height / 2 + 3.6), bar.job)


def _rack_timeline(page: Page, colours: dict[str, int]) -> Drawing:
    axis = _Axis(page.since, page.until)
    racks = list(dict.fromkeys(one.rack for one in page.shares))
    room, gap = (30, 6) if len(racks) <= _MANY_RACKS else (14, 3)
    tops = {rack: 22 + number * (room + gap) for number, rack in enumerate(racks)}
    bottom = 22 + len(racks) * (room + gap)
    parts = list(axis.grid(bottom))
    for rack, top in tops.items():
        parts.append(_svg('<text class="rack" x="0" y="{}">{}</text>', top + room / 2 + 4, rack))
        parts.append(
            _svg('<rect class="lane" x="{}" y="{}" width="{}" height="{}"/>', LEFT, top, WIDTH - LEFT - RIGHT, room)
        )
    # All of a queue is one path, drawn twice: in its colour, then in its pattern. A rectangle each would be megabytes.
    strokes: dict[int, list[str]] = {}
    for one in page.shares:
        y = float(tops[one.rack] + room)
        for queue, ppm in one.parts:
            height = room * ppm / 1_000_000
            y -= height
            x, end = axis.x(one.since), axis.x(one.until)
            strokes.setdefault(colours.get(queue, 7), []).append(
                f"M{_n(x)} {_n(y)}h{_n(end - x)}v{_n(height)}h{_n(x - end)}z"
            )
    for number, strokes_of in sorted(strokes.items()):
        parts.append(_svg('<defs><path id="s{}" d="{}"/></defs>', number, "".join(strokes_of)))
        parts.append(_svg('<use href="#s{0}" class="q{0}"/><use href="#s{0}" class="over o{0}"/>', number))
    return Drawing(Markup("").join(parts), bottom + 6)


def heat_map(page: Page, colours: dict[str, int]) -> Drawing:
    """Every GPU now: spine group, rack, node, GPU. Empty is idle, a cross is out of work."""
    cell, gap = (_roomy(page), 2) if len(page.nodes) <= MOST_ROWS else (4, 1)
    parts: list[Markup] = []
    x, y, top, deepest, group, rack = 0.0, 0.0, 38.0, 0.0, "", ""
    column = max((node.gpus for node in page.nodes), default=8) * (cell + gap) + (66 if cell > 4 else 12)
    for node in page.nodes:
        if node.rack != rack:
            x = x + column if rack else 0.0
            if x + column > WIDTH or (group and node.group != group):
                x, top = 0.0, deepest + 46
            y = top
            if node.group != group or x == 0.0:
                parts.append(_svg('<text class="group" x="{}" y="{}">{}</text>', _n(x), _n(y - 22), node.group))
            parts.append(_svg('<text class="rack" x="{}" y="{}">{}</text>', _n(x), _n(y - 5), node.rack))
            group, rack = node.group, node.rack
        parts += _node_cells(node, x, y, cell, gap, colours)
        y += cell + gap + (2 if cell > 4 else 0)
        deepest = max(deepest, y)
        if y > top + 20 * (cell + gap + 2) and cell == 4:
            y, x = top, x + column
    return Drawing(Markup("").join(parts), int(deepest) + 8)


def _roomy(page: Page) -> int:
    """As large as the racks side by side let a GPU be, between readable and silly."""
    racks = len({node.rack for node in page.nodes})
    gpus = max((node.gpus for node in page.nodes), default=8)
    return min(18, max(11, (WIDTH // max(1, racks) - 74) // max(1, gpus) - 2))


def _node_cells(node: NodeShown, x: float, y: float, cell: int, gap: int, colours: dict[str, int]) -> Iterator[Markup]:
    label = 58 if cell > 4 else 0
    cells = []
    for index, word in enumerate(node.cells):
        kind = "down" if word == "!" else "free" if not word else f"q{colours.get(word, 7)}"
        at = x + label + index * (cell + gap)
        cells.append(
            _svg('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="1.5"/>', kind, _n(at), _n(y), cell, cell)
        )
        if cell > 4 and (word == "!" or word):
            over = "cross" if word == "!" else f"over o{colours.get(word, 7)}"
            cells.append(
                _svg(
                    '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="1.5"/>', over, _n(at), _n(y), cell, cell
                )
            )
    if label:
        cells.append(_svg('<text class="node left" x="{}" y="{}">{}</text>', _n(x), _n(y + cell / 2 + 4), node.name))
    told = f"{node.name}: {sum(bool(w) and w != '!' for w in node.cells)} of {node.gpus} GPUs held{', ' + node.note if node.note else ''}"
    yield _svg("<g><title>{}</title>{}</g>", told, Markup("").join(cells))


def fragmentation(page: Page) -> Drawing:
    """Phi and the idle share over time, with the limit."""
    height, top = 150, 14
    axis = _Axis(page.since, page.until)

    def y(ppm: int) -> float:
        return top + (height - top) * (1 - ppm / 1_000_000)

    parts = list(axis.grid(height, labels_at=height + 14))
    for percent in (0, 25, 50, 75, 100):
        parts.append(
            _svg(
                '<text class="node" x="{}" y="{}">{}</text>',
                LEFT - 8,
                _n(y(percent * 10_000) + 4),
                f"{percent / 100:.2f}",
            )
        )
        parts.append(
            _svg(
                '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>',
                LEFT,
                WIDTH - RIGHT,
                _n(y(percent * 10_000)),
                _n(y(percent * 10_000)),
            )
        )
    if page.samples:
        parts.append(
            _svg(
                '<path class="idle" d="{}L{} {}L{} {}Z"/>',
                _steps(page, axis, [(s.at, y(s.idle)) for s in page.samples]),
                _n(axis.x(page.until)),
                _n(y(0)),
                _n(axis.x(page.samples[0].at)),
                _n(y(0)),
            )
        )
        parts.append(_svg('<path class="phi" d="{}"/>', _steps(page, axis, [(s.at, y(s.phi)) for s in page.samples])))
    limit = y(page.threshold)
    parts.append(
        _svg('<line class="limit" x1="{}" x2="{}" y1="{}" y2="{}"/>', LEFT, WIDTH - RIGHT, _n(limit), _n(limit))
    )
    parts.append(
        _svg(
            '<text class="limit-told" x="{}" y="{}">limit {}</text>',
            WIDTH - RIGHT - 4,
            _n(limit - 5),
            share(page.threshold, 1_000_000, 2),
        )
    )
    return Drawing(Markup("").join(parts), height + 22)


def _steps(page: Page, axis: _Axis, points: Sequence[tuple[Instant, float]]) -> str:
    words, last = [], None
    for at, y in points:
        x = axis.x(at)
        words.append(f"M{_n(x)} {_n(y)}" if last is None else f"H{_n(x)}V{_n(y)}")
        last = y
    return "".join([*words, f"H{_n(axis.x(page.until))}"])


def quota_bars(page: Page, colours: dict[str, int]) -> Drawing:
    """Each queue's GPUs now, with its guarantee and its ceiling as marks."""
    most = max([page.capacity, 1, *(q.held for q in page.queues)])
    start, room = 150, WIDTH - 150 - 190
    parts: list[Markup] = []
    for number, queue in enumerate(page.queues):
        y = 8 + number * 34
        wide = room * queue.held / most
        parts.append(_svg('<text class="rack" x="0" y="{}">{}</text>', y + 14, queue.name))
        parts.append(_svg('<rect class="lane" x="{}" y="{}" width="{}" height="18" rx="3"/>', start, y, room))
        parts.append(
            _svg(
                '<g class="q{0}"><rect x="{1}" y="{2}" width="{3}" height="18" rx="3"/><rect class="over" x="{1}" y="{2}" width="{3}" height="18" rx="3"/></g>',
                colours[queue.name],
                start,
                y,
                _n(wide),
            )
        )
        for mark, kind in ((queue.guaranteed, "guarantee"), (queue.ceiling, "ceiling")):
            if mark is not None and mark <= most:
                x = _n(start + room * mark / most)
                parts.append(_svg('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>', kind, x, x, y - 4, y + 22))
        told = f"{queue.held} held" + (f" of {queue.guaranteed} guaranteed" if queue.guaranteed is not None else "")
        parts.append(_svg('<text class="told" x="{}" y="{}">{}</text>', start + room + 12, y + 13, told))
    return Drawing(Markup("").join(parts), 8 + 34 * len(page.queues) + 4)


class _Axis:
    """Time to the horizontal."""

    def __init__(self, since: Instant, until: Instant) -> None:
        self._since, self._span = since, max(1, until - since)
        self._until = until

    def x(self, at: int) -> float:
        inside = min(max(at, self._since), self._until)
        return LEFT + (WIDTH - LEFT - RIGHT) * (inside - self._since) / self._span

    def grid(self, bottom: int, labels_at: int = 10) -> Iterator[Markup]:
        """Lines and labels at round times, as many as have room."""
        hour = 3600 * SECOND
        step = next(
            (s * hour for s in (1, 2, 6, 12, 24, 48, 168, 336, 672) if self._span <= 9 * s * hour), self._span // 8 + 1
        )
        step = step if self._span > 2 * hour else 600 * SECOND
        at = (self._since // step + 1) * step
        while at < self._until:
            x = self.x(at)
            text = when(Instant(at))
            label = (
                text[5:10]
                if step >= 24 * hour
                else f"{text[5:10]} {text[11:16]}"
                if at % (24 * hour) == 0
                else text[11:16]
            )
            yield _svg('<line class="grid" x1="{}" x2="{}" y1="16" y2="{}"/>', _n(x), _n(x), bottom)
            yield _svg('<text class="tick" x="{}" y="{}">{}</text>', _n(x), labels_at, label)
            at += step


def _svg(template: str, *values: object) -> Markup:
    return Markup(template).format(*values)  # noqa: S704  templates are literals of this module; values are escaped


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
