"""Short forms for people: times, spans of time, shares, GPU-hours, places. Each is one line whatever it is given."""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.documents.hostlist import fold
from reconciler.documents.places import spans
from reconciler.documents.quantities import print_instant
from reconciler.model.allocation import Placement
from reconciler.model.inventory import Inventory, Node
from reconciler.model.units import Instant, NodeName

_LONGEST_LINE = 300


def one_line(text: str) -> str:
    """Any text as one printable line: a node's or a file's own words must not add lines to a page or a commit."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    flat = " ".join(shown.split())
    return flat if len(flat) <= _LONGEST_LINE else f"{flat[: _LONGEST_LINE - 1]}…"


def shortened(text: str, most: int) -> str:
    """The text, or its two ends with `…` between them: names of machines differ at their ends."""
    if len(text) <= most:
        return text
    tail = max(1, (most - 1) * 3 // 5)
    return f"{text[: max(0, most - 1 - tail)]}…{text[-tail:]}"


def when(instant: Instant) -> str:
    """`2026-11-30 03:12:05Z`, to the second."""
    text = print_instant(Instant(instant // 1_000_000_000 * 1_000_000_000))
    return f"{text[:10]} {text[11:19]}Z"


def places(placement: Placement, inventory: Inventory) -> str:
    """`r01 gpu-[001-002]`, or with GPU indexes where only part of a node is used: `r01 gpu-003:0-1`."""
    return places_among(placement, {node.name: node for node in inventory.nodes})


def places_among(placement: Placement, nodes: Mapping[NodeName, Node]) -> str:
    """The same for who has the declared nodes by name already."""
    by_rack: dict[str, tuple[list[str], list[str]]] = {}
    for name, mask in placement.masks.items():
        node = nodes.get(name)
        whole, part = by_rack.setdefault(node.rack if node else "?", ([], []))
        if node is not None and mask == node.shape.all_gpus:
            whole.append(name)
        else:
            part.append(f"{name}:{gpus_of(mask)}")
    return " ".join(f"{rack} {','.join([*_folded(whole), *part])}" for rack, (whole, part) in by_rack.items())


def _folded(names: list[str]) -> list[str]:
    return [fold(names)] if names else []


def span(nanoseconds: int) -> str:
    """The two largest units of a time span: `2d4h`, `14m`, `12s`, `6.1ms`, `0`."""
    if nanoseconds <= 0:
        return "0"
    total = nanoseconds // 1_000_000_000
    if total == 0:
        return _small(nanoseconds)
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        count, total = divmod(total, size)
        if count or parts:
            parts.append(f"{count}{name}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)


def age(nanoseconds: int) -> str:
    """How long something has been so: a span in whole seconds, `0s` below one."""
    return span(nanoseconds // 1_000_000_000 * 1_000_000_000) if nanoseconds >= 1_000_000_000 else "0s"


def _small(nanoseconds: int) -> str:
    for name, size in (("ms", 1_000_000), ("us", 1_000)):
        if nanoseconds >= size:
            return f"{nanoseconds // size}.{nanoseconds % size * 10 // size}{name}"
    return f"{nanoseconds}ns"


def share(part: int, whole: int, digits: int = 3) -> str:
    """A ratio with a fixed number of decimals, rounded down; 0 when there is no whole."""
    scale = 10**digits
    value = part * scale // whole if whole else 0
    return f"{value // scale}.{value % scale:0{digits}d}"


def gpu_hours(gpu_seconds: int) -> str:
    """`3.6 GPU-h`, one decimal, rounded down; what is less than a tenth in seconds."""
    if 0 < gpu_seconds < 360:
        return f"{gpu_seconds} GPU-s"
    tenths = gpu_seconds // 360
    return f"{tenths // 10}.{tenths % 10} GPU-h"


def gpus_of(mask: int) -> str:
    """GPU indexes of a bit mask: `0-3+6`; a comma would read as the next node."""
    indexes = (index for index in range(mask.bit_length()) if mask >> index & 1)
    return spans(indexes, shortest=2).replace(",", "+")
