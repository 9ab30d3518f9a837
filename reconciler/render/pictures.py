"""The page's pictures over time as SVG: who held what, and fragmentation. What fits where on the canvas is decided here.

A picture is as wide as a page on a desk; on a narrower one it is scrolled while its labels stay in view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup

from reconciler.model.units import SECOND, Instant
from reconciler.render.names import share, shortened, when
from reconciler.render.page_values import Bar, Page
from reconciler.render.palette import Palette
from reconciler.render.svg import GLYPH, Drawing, mark, n, rectangle, room_for

WIDTH: Final = 1116
MOST_ROWS: Final = 96
"""Nodes drawn one by one; a larger cluster is drawn by rack."""
_TOP, _GAP, _RACK_GAP, _EDGE = 22, 2, 20, 10
_FEW, _MANY_RACKS = 12, 24
_LABELS: Final = (84, 230)
_BOLD: Final = 7.4
"""Pixels of a letter on a bar."""
_SHORTEST: Final = 6
"""Letters of a job's name that still tell it from another."""
_HOUR: Final = 3600 * SECOND
_DAY: Final = 24 * _HOUR
_STEPS: Final = (
    *(SECOND * seconds for seconds in (5, 15, 30)),
    *(60 * SECOND * minutes for minutes in (1, 2, 5, 10, 20)),
    *(_HOUR * hours for hours in (1, 2, 3, 6, 12, 24, 48, 72, 168, 336, 672)),
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def timeline(page: Page, looks: Palette) -> Drawing:
    """Who held which GPUs, over time: a row a node, or a row a rack where there are too many."""
    if not page.bars and page.shares:
        return _rack_timeline(page, looks)
    row = 22 if len(page.nodes) <= _FEW else 15
    left = room_for([node.name for node in page.nodes], *_LABELS)
    axis = _Axis(page.since, page.until, WIDTH - left)
    tops: dict[str, int] = {}
    side: list[Markup] = []
    lanes: list[str] = []
    y, rack = _TOP, ""
    for node in page.nodes:
        if node.rack != rack:
            y += _RACK_GAP if rack else 16
            side.append(mark('<text class="rack" x="0" y="{}">{}</text>', y - 5, _label(node.rack, left)))
            rack = node.rack
        tops[node.name] = y
        side.append(_row_label(node.name, left, y + row / 2 + 4))
        lanes.append(rectangle(0, y, axis.width, row))
        y += row + _GAP
    parts = [mark('<path class="lane" d="{}"/>', "".join(lanes)), *axis.grid(y)]
    sizes = {node.name: node.gpus for node in page.nodes}
    for bar in page.bars:
        if bar.node in tops:
            parts += _bar(bar, axis, tops[bar.node], row, sizes[bar.node], looks.of(bar.queue))
    return Drawing(Markup("").join(parts), WIDTH - left, y + 4, Markup("").join(side), left)


def _row_label(name: str, left: int, y: float) -> Markup:
    return mark('<text class="node" x="{}" y="{}">{}</text>', left - 8, y, _label(name, left))


def _label(name: str, left: int) -> Markup:
    """A name cut to the column, and whole where it is pointed at."""
    short = shortened(name, int((left - 12) / GLYPH))
    return Markup("{}").format(name) if short == name else mark("{}<title>{}</title>", short, name)


def _bar(bar: Bar, axis: _Axis, top: int, row: int, gpus: int, look: int) -> Iterator[Markup]:
    x = axis.x(bar.since)
    wide = max(axis.x(bar.until) - x, 1.2)
    y, height = top + row * bar.first / gpus, row * bar.count / gpus
    box = mark('x="{}" y="{}" width="{}" height="{}" rx="2"', x, y, wide, height)
    inside = Markup("")
    if bar.state == "running" and height > 11 and (text := _fitting(bar.job, wide - 8)):
        inside = mark('<text class="label" x="{}" y="{}">{}</text>', x + 4.0, y + height / 2 + 3.6, text)
    yield mark(
        '<g class="q{} {}"><title>{}</title><rect {}/><rect class="over" {}/>{}</g>',
        look, bar.state, bar.told, box, box, inside,
    )  # fmt: skip


def _fitting(job: str, room: float) -> str:
    """As much of the job's name as has room, "" where too little has."""
    most = int(room / _BOLD)
    name = job.rpartition("/")[2]
    if len(job) <= most:
        return job
    return name if len(name) <= most else shortened(name, most) if most >= _SHORTEST else ""


def _rack_timeline(page: Page, looks: Palette) -> Drawing:
    racks = list(dict.fromkeys(one.rack for one in page.shares))
    room, gap = (30, 6) if len(racks) <= _MANY_RACKS else (14, 3)
    left = room_for(racks, *_LABELS)
    axis = _Axis(page.since, page.until, WIDTH - left)
    tops = {rack: _TOP + number * (room + gap) for number, rack in enumerate(racks)}
    bottom = _TOP + len(racks) * (room + gap)
    side = [
        mark('<text class="rack" x="0" y="{}">{}</text>', top + room / 2 + 4, _label(rack, left))
        for rack, top in tops.items()
    ]
    lanes = "".join(rectangle(0, top, axis.width, room) for top in tops.values())
    parts = [mark('<path class="lane" d="{}"/>', lanes), *axis.grid(bottom)]
    # All of a queue is one path, drawn twice: in its colour, then in its pattern.
    strokes: dict[int, list[str]] = {}
    for one in page.shares:
        y = float(tops[one.rack] + room)
        x, end = round(axis.x(one.since)), round(axis.x(one.until))
        for queue, ppm in one.parts:
            height = room * ppm / 1_000_000
            y -= height
            strokes.setdefault(looks.of(queue), []).append(rectangle(x, y, end - x, height))
    for number, strokes_of in sorted(strokes.items()):
        parts.append(mark('<defs><path id="s{}" d="{}"/></defs>', number, "".join(strokes_of)))
        parts.append(mark('<use href="#s{0}" class="q{0}"/><use href="#s{0}" class="over o{0}"/>', number))
    return Drawing(Markup("").join(parts), WIDTH - left, bottom + 4, Markup("").join(side), left)


def fragmentation(page: Page) -> Drawing:
    """Phi and the idle share over time, with the limit."""
    height, top, left = 160, 12, 44
    axis = _Axis(page.since, page.until, WIDTH - left)

    def y(ppm: int) -> float:
        return top + (height - top) * (1 - ppm / 1_000_000)

    parts = list(axis.grid(height, labels_at=height + 16))
    side = []
    for percent in (0, 25, 50, 75, 100):
        at = y(percent * 10_000)
        side.append(mark('<text class="node" x="{}" y="{}">{}</text>', left - 8, at + 4, f"{percent / 100:.2f}"))
        parts.append(mark('<line class="grid" x1="0" x2="{}" y1="{}" y2="{}"/>', axis.width, at, at))
    if page.samples:
        idle = _steps(page, axis, [(s.at, y(s.idle)) for s in page.samples])
        first, last = axis.x(page.samples[0].at), axis.x(page.until)
        parts.append(mark('<path class="idle" d="{}L{} {}L{} {}Z"/>', idle, last, y(0), first, y(0)))
        phi = _steps(page, axis, [(s.at, y(s.phi)) for s in page.samples])
        parts.append(mark('<path class="phi" d="{}"/>', phi))
    limit = y(page.threshold)
    parts.append(mark('<line class="limit" x1="0" x2="{}" y1="{}" y2="{}"/>', axis.width, limit, limit))
    told = f"limit {share(page.threshold, 1_000_000, 2)}"
    parts.append(mark('<text class="limit-told" x="{}" y="{}">{}</text>', axis.width - 4, limit - 5, told))
    return Drawing(Markup("").join(parts), WIDTH - left, height + 24, Markup("").join(side), left)


def _steps(page: Page, axis: _Axis, points: Sequence[tuple[Instant, float]]) -> str:
    words = [
        f"H{n(axis.x(at))}V{n(y)}" if number else f"M{n(axis.x(at))} {n(y)}" for number, (at, y) in enumerate(points)
    ]
    return "".join([*words, f"H{n(axis.x(page.until))}"])


class _Axis:
    """Time to the horizontal, with a margin at the end."""

    def __init__(self, since: Instant, until: Instant, width: int) -> None:
        self._since, self._span = since, max(1, until - since)
        self._until, self.width = until, width - _EDGE

    def x(self, at: int) -> float:
        """Where an instant is; one outside is at the edge."""
        inside = min(max(at, self._since), self._until)
        return self.width * (inside - self._since) / self._span

    def grid(self, bottom: int, labels_at: int = 12) -> Iterator[Markup]:
        """Lines and labels at round times, as many as have room; the first one and each midnight say the day."""
        step = next((step for step in _STEPS if self._span <= 11 * step), self._span // 8 + 1)
        at = (self._since // step + 1) * step
        first = True
        while at < self._until:
            x, midnight = self.x(at), at % _DAY == 0
            day, hour = _day_of(at), when(Instant(at))[11 : 16 if step % (60 * SECOND) == 0 else 19]
            yield mark(
                '<line class="grid{}" x1="{}" x2="{}" y1="16" y2="{}"/>', " day" if midnight else "", x, x, bottom
            )
            label = day if midnight else f"{day} {hour}" if first else hour
            if first and not midnight and x < _half(label):
                label = hour  # the day is said where it has room
            if _half(label) < x < self.width + _EDGE - _half(label):
                first = first and day not in label
                yield mark(
                    '<text class="tick{}" x="{}" y="{}">{}</text>', " day" if midnight else "", x, labels_at, label
                )
            at += step


def _half(label: str) -> float:
    """Half of the room a label takes."""
    return len(label) * GLYPH / 2


def _day_of(at: int) -> str:
    text = when(Instant(at))
    return f"{int(text[8:10])} {_MONTHS[int(text[5:7]) - 1]}"
