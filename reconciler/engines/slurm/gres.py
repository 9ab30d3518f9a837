"""Which GPUs do Slurm's GRES texts name, and how does one ask for some of them?

`gpu:h100:8(S:0-1)` is what a node has, `gpu:h100:2(IDX:0-1)` what a job holds, `gpu:g2:1(IDX:2),gpu:g5:1(IDX:5)` the
same where each slot has a type of its own. Everything but GPUs is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from reconciler.engines.slurm.seen import GpuSlots

MAX_GPUS: Final = 64
_PART: Final = re.compile(
    r"(?:gres[:/])?gpu(?::(?P<kind>[A-Za-z][A-Za-z0-9_.-]*))?(?:[:=](?P<count>[0-9]{1,6}))?"
    r"(?:\((?P<note>[^()]*)\))?"
)
_RANGES: Final = re.compile(r"[0-9]{1,2}(?:-[0-9]{1,2})?(?:,[0-9]{1,2}(?:-[0-9]{1,2})?)*")


def slots_of(text: str) -> GpuSlots:
    """The GPUs of a node's GRES text, in Slurm's order, which is that of their indexes."""
    parts = [(kind, count) for kind, count, _ in _parts(text) if count]
    total = min(MAX_GPUS, sum(count for _, count in parts))
    kinds = [kind for kind, _ in parts]
    if len(parts) > 1 and all(count == 1 for _, count in parts) and len(set(kinds)) == len(parts) and all(kinds):
        return GpuSlots(count=total, slots=tuple(kinds[:MAX_GPUS]))
    return GpuSlots(count=total, kind=kinds[0] if len(set(kinds)) == 1 else "")


def held_of(text: str) -> tuple[int, int]:
    """Of what a job holds on one node: the mask of the indexes told, and how many GPUs have none."""
    mask = unknown = 0
    for _, count, note in _parts(text):
        found = _indexes(note.removeprefix("IDX:")) if note.startswith("IDX:") else 0
        mask |= found
        unknown += max(0, count - found.bit_count())
    return mask, unknown


def asked_of(text: str) -> int:
    """How many GPUs a request names: `gres:gpu:8`, `gres/gpu:h100=8`, `gres:gpu:g2:1,gres:gpu:g5:1`."""
    return sum(count for _, count, _ in _parts(text))


def types_in(text: str) -> tuple[str, ...]:
    """The GPU types that a request names."""
    return tuple(dict.fromkeys(kind for kind, _, _ in _parts(text) if kind))


def slots_in(text: str, slots: GpuSlots) -> int:
    """The GPUs that a request names one by one, by the types of their slots."""
    kinds = {kind for kind, _, _ in _parts(text)}
    return sum(1 << index for index, kind in enumerate(slots.slots) if kind in kinds)


def request_of(slots: GpuSlots, mask: int, *, pinned: bool) -> str:
    """The `--gres` that asks a node for these GPUs: by slot where slots have types and it is wanted, else by number."""
    if pinned and slots.slots:
        return ",".join(f"gpu:{slots.slots[i]}:1" for i in range(slots.count) if mask >> i & 1)
    return f"gpu:{slots.kind}:{mask.bit_count()}" if slots.kind else f"gpu:{mask.bit_count()}"


def _parts(text: str) -> Iterator[tuple[str, int, str]]:
    """(type, count, what stands in parentheses) of each GPU part; a count left out is 1."""
    for part in _split(text):
        found = _PART.fullmatch(part.strip())
        if found:
            yield found["kind"] or "", int(found["count"] or 1), found["note"] or ""


def _split(text: str) -> Iterator[str]:
    """At the commas outside parentheses."""
    depth = start = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _indexes(text: str) -> int:
    if not _RANGES.fullmatch(text):
        return 0
    mask = 0
    for part in text.split(","):
        low, _, high = part.partition("-")
        for index in range(int(low), int(high or low) + 1):
            mask |= 1 << index
    return mask & ((1 << MAX_GPUS) - 1)
