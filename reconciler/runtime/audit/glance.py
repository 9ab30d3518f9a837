"""What does a job's record say in short? Read from the canonical bytes by their layout, without loading them.

Hundreds of thousands of records are looked at to build an index; the strict loader would take minutes. So nothing
here is evidence: `verify` reads with the loader, and a record in another layout only leaves facts out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from reconciler.documents.places import from_spans
from reconciler.documents.quantities import parse_instant
from reconciler.errors import GangOpsError
from reconciler.model.units import SECOND

_PART = re.compile(rb"^([A-Za-z]+):(?: (.*))?\n((?: .*\n)*)", re.MULTILINE)
_NODE = re.compile(rb'- node: "?([^"\n]+)"?\n +ranks: [^\n]*\n +gpus: "?([^"\n]*)"?')
_SPARE = re.compile(rb'- node: "?([^"\n]+)"?\n +mask: (\d+)')
_TABLE = b"\ntasks:\n"
_ROW = re.compile(rb"^  - tasks: .*\n(?:    .*\n)*", re.MULTILINE)
_CODE = re.compile(rb"^  code: (\w+)$", re.MULTILINE)
_ASKED = re.compile(rb'^  code: (?:Requested|Frozen)\n(?:  .*\n)*?  by: ("(?:[^"\\]|\\.)*"|\S+)$', re.MULTILINE)
_NUMBER = re.compile(rb"^  ([A-Za-z]+): (\d+)$", re.MULTILINE)
_LINE = re.compile(rb"^(generation|decidedAt|decisionVersion|trigger|desiredCommit): (.*)$", re.MULTILINE)
_IDLE = re.compile(rb"^  idleByType:\n((?:    .*\n)*)", re.MULTILINE)
_PAIR = re.compile(rb"    - - (.*)\n      - (\d+)\n")
_METRICS_BLOCK = re.compile(rb"^metrics:\n((?: .*\n)*)", re.MULTILINE)
_WHOLE_SECONDS = len("2026-01-01T00:00:00+00:00")
_METRICS = (b"declared", b"capacity", b"held", b"promised", b"idle", b"stranded", b"phiWhole")


@dataclass(frozen=True, slots=True)
class JobGlance:
    """One record in short. `by` asked for what holds it, in a request. `place`, `reserved` and `spares` are texts of `node:mask` words,
    masks in hexadecimal."""

    queue: str
    state: str
    phase: str
    code: str
    why: str
    cause: str
    outcome: str
    attempt: int
    place: str
    reserved: str
    lost: int
    started: int
    preemptor: str
    by: str = ""
    spares: str = ""


@dataclass(frozen=True, slots=True)
class SummaryGlance:
    """A summary in short; `metrics` are declared, capacity, held, promised, idle, stranded, whole-domain idle GPUs.

    `idle_by_type` is `TYPE:GPUS` words, "" where the record says none: then there is one type, or it is not known.
    """

    generation: int
    at: int
    version: int
    trigger: str
    desired: str
    metrics: tuple[int, ...]
    idle_by_type: str


def job_glance(content: bytes) -> JobGlance:
    """The facts of one record; what is not there is "" or 0. Of an array: those of one task, see `record_texts`."""
    part = {key: block or line for key, line, block in _PART.findall(content)}.get
    reason, spares = part(b"reason", b""), part(b"spares", b"")
    code = _CODE.search(reason)
    asked = _ASKED.search(reason) if b"  by: " in reason else None
    return JobGlance(
        queue=_plain(part(b"queue", b"")),
        state=_plain(part(b"state", b"")),
        phase=_plain(part(b"phase", b"")),
        code=code[1].decode() if code else "",
        why=_plain(part(b"why", b"")),
        cause=_plain(part(b"cause", b"")),
        outcome=_plain(part(b"outcome", b"")),
        attempt=_whole(part(b"attempt", b"")),
        place=place_words(part(b"placement", b"")),
        reserved=place_words(part(b"promise", b"")),
        lost=_whole(part(b"lostWork", b"")),
        started=instant(_plain(part(b"started", b""))),
        preemptor=_plain(part(b"preemptor", b"")),
        by=_plain(asked[1]) if asked else "",
        spares=" ".join(f"{node.decode()}:{int(mask):x}" for node, mask in _SPARE.findall(spares)) if spares else "",
    )


RecordTexts = Mapping[int | None, tuple[bytes, bytes]]
"""The records of one file: by task, None for a job that is none."""


def record_texts(content: bytes) -> RecordTexts:
    """The records of a file: of each task of an array by its number, and of the job itself as None.

    Each in the layout of a job's record, with what is its own beside it. Two are equal when nothing happened in between.
    """
    plain, mark, table = content.partition(_TABLE)
    found: dict[int | None, tuple[bytes, bytes]] = {}
    if plain and (not mark or b"\n" in plain):
        found[None] = (plain + mark[:1], b"")
    for row in _ROW.findall(table) if mark else ():
        tasks, own, rest = _row_parts(row)
        ends = own.split(b",") if b"," in own else [own] * len(tasks)
        found.update({index: (rest, end) for index, end in zip(tasks, ends, strict=False)})
    return found


def _row_parts(row: bytes) -> tuple[tuple[int, ...], bytes, bytes]:
    first, second, rest = row[4:].replace(b"\n    ", b"\n").split(b"\n", 2)
    try:
        tasks = tuple(from_spans(_plain(first.partition(b": ")[2])))
    except ValueError:
        tasks = ()
    return tasks, _plain(second.partition(b": ")[2]).encode(), rest


def summary_glance(content: bytes) -> SummaryGlance:
    """The facts of `allocation/summary.yaml`."""
    lines = dict(_LINE.findall(content))
    metrics = _METRICS_BLOCK.search(content)
    told = dict(_NUMBER.findall(metrics[1])) if metrics else {}
    return SummaryGlance(
        generation=_whole(lines.get(b"generation", b"")),
        at=instant(_plain(lines.get(b"decidedAt", b""))),
        version=_whole(lines.get(b"decisionVersion", b"")),
        trigger=_plain(lines.get(b"trigger", b"")),
        desired=_plain(lines.get(b"desiredCommit", b"")),
        metrics=tuple(_whole(told.get(name, b"")) for name in _METRICS),
        idle_by_type=_idle_by_type(metrics[1]) if metrics else "",
    )


def _idle_by_type(block: bytes) -> str:
    found = _IDLE.search(block)
    return " ".join(f"{_plain(kind)}:{gpus.decode()}" for kind, gpus in _PAIR.findall(found[1])) if found else ""


@lru_cache(maxsize=4096)
def place_words(block: bytes) -> str:
    """`gpu-001:ff gpu-002:f` of a placement as written; "" for none."""
    return " ".join(f"{node.decode()}:{_mask(gpus):x}" for node, gpus in _NODE.findall(block))


def masks(words: str) -> dict[str, int]:
    """GPU bit masks by node of such a text."""
    rows = (word.rpartition(":") for word in words.split())
    return {node: int(mask, 16) for node, _, mask in rows}


@lru_cache(maxsize=4096)
def instant(text: str) -> int:
    """Nanoseconds; 0 for what is no instant."""
    try:
        # What we write ourselves, nearly always: whole seconds, UTC. The general parser costs ten times as much.
        if len(text) == _WHOLE_SECONDS and text.endswith("+00:00") and (day := _midnight(text[:10])):
            return day + ((int(text[11:13]) * 60 + int(text[14:16])) * 60 + int(text[17:19])) * SECOND
        return parse_instant(text) if text else 0
    except (GangOpsError, ValueError):
        return 0


@lru_cache(maxsize=64)
def _midnight(day: str) -> int:
    """The first instant of a day, 0 for what is no day: nearly all instants of a stretch are of one."""
    try:
        return parse_instant(f"{day}T00:00:00+00:00")
    except (GangOpsError, ValueError):
        return 0


@lru_cache(maxsize=4096)
def _mask(gpus: bytes) -> int:
    try:
        return sum(1 << gpu for gpu in set(from_spans(gpus.decode())) if 0 <= gpu < 1024)
    except ValueError:
        return 0


def _whole(digits: bytes) -> int:
    return int(digits) if digits.isdigit() else 0


def _plain(scalar: bytes) -> str:
    if not scalar.startswith(b'"'):
        return scalar.decode("utf-8", "replace")
    text = scalar.decode("utf-8", "replace")
    if "\\" not in text:
        return text[1:-1]
    try:
        return str(json.loads(text))  # quoted text is written as JSON writes it
    except ValueError:
        return text
