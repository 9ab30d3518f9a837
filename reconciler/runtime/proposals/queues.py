"""How is a queue's quota edited? GPUs by type that are guaranteed, and those it may hold at most."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from reconciler.documents.similar import did_you_mean
from reconciler.errors import NotFound, UsageError
from reconciler.runtime.proposals.change import Change, unchanged
from reconciler.runtime.proposals.desk import Desk, Found

_ASKED = re.compile(r"(?P<type>[A-Za-z0-9][A-Za-z0-9._-]*)=(?P<count>\d{1,7}|none)")
Counts = Mapping[str, int | None]


def counts(written: Iterable[str]) -> Counts:
    """`H100=64` and `H100=none`, by type; None takes the entry out. Raises UsageError (BadQuota)."""
    found: dict[str, int | None] = {}
    for text in written:
        match = _ASKED.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} is no quota", code="BadQuota", remedy="such as H100-SXM5-80GB=64, or H100-SXM5-80GB=none"
            )
        found[match["type"]] = None if match["count"] == "none" else int(match["count"])
    return found


def set_quota(desk: Desk, name: str, guaranteed: Counts, ceiling: Counts, why: str = "") -> Change:
    """Another guarantee or ceiling. Raises: UsageError; NotFound (UnknownQueue, UnknownGpuType)."""
    if not guaranteed and not ceiling:
        raise UsageError("set what?", code="NothingAsked", remedy="such as H100=64, or --ceiling H100=96")
    queue = desk.document("Queue", name)
    known = desk.gpu_types()
    content, told = queue.content, list[str]()
    for field, asked, now in (
        ("guaranteed", guaranteed, queue.spec.guaranteed or {}),
        ("ceiling", ceiling, queue.spec.ceiling),
    ):
        for gpu_type, count in asked.items():
            _check_type(gpu_type, {*known, *now})
            if now.get(gpu_type) != count:
                content = _set(content, queue, field, gpu_type, count)
                told.append(f"{field} {gpu_type} {_shown(now.get(gpu_type))} -> {_shown(count)}")
    if not told:
        return unchanged("quota", name, f"queue {name} has that quota already")
    remarks: tuple[str, ...] = ()
    if guaranteed and queue.spec.guaranteed is None:
        remarks = ("Its guarantee was what its children are guaranteed; from now on it is what its file says.",)
    return Change(
        verb="quota", name=name, title=f"Quota of {name}: {', '.join(told)}", files={queue.path: content}, body=why,
        remarks=remarks,
    )  # fmt: skip


def _check_type(gpu_type: str, known: set[str]) -> None:
    if gpu_type not in known:
        raise NotFound(
            f"no node profile has GPUs of type {gpu_type}",
            code="UnknownGpuType",
            remedy=did_you_mean(gpu_type, known) or f"there are: {', '.join(sorted(known)) or 'none'}",
        )


def _set(content: bytes, queue: Found, field: str, gpu_type: str, count: int | None) -> bytes:
    where = ("spec", field, gpu_type)
    return queue.take(content, where) if count is None else queue.put(content, where, count)


def _shown(count: int | None) -> str:
    return "none" if count is None else str(count)
