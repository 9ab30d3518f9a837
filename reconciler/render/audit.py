"""The verdict of an audit as text: a line a check, the first bad generation by name, and what the proof leaves open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reconciler.render.names import one_line
from reconciler.render.table import continued

_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One check: how much of how much is right, and a word on it."""

    check: str
    told: str
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One finding as it is shown."""

    generation: int
    commit: str
    check: str
    code: str
    told: str


def verdict_page(
    lines: Sequence[AuditLine], faults: Sequence[Fault], notices: Sequence[str], end: str, columns: int | None = None
) -> str:  # fmt: skip
    """Everything, for a terminal. Right or wrong is a word, never a colour alone."""
    width = max(len(line.check) for line in lines)
    room = max(len(line.told) for line in lines)
    told = [
        f"{line.check:<{width}}  {line.told:<{room}}  {'ok' if not line.wrong else f'{line.wrong} WRONG'}"
        for line in lines
    ]
    told += (
        f"  #{fault.generation} {fault.commit[:7]}  {fault.code}: {one_line(fault.told)}" for fault in faults[:_MOST]
    )
    if len(faults) > _MOST:
        counts = Counter(fault.code for fault in faults[_MOST:])
        told.append(
            f"  and {len(faults) - _MOST} more: "
            + ", ".join(f"{count} {code}" for code, count in sorted(counts.items()))
        )
    noted = [line for notice in notices for line in continued(f"note: {notice}", columns, hang=6)]
    return "\n".join([*told, *noted, end])
