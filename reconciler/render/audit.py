"""The verdict of an audit as text: a line a check, the first bad generation by name, and what the proof leaves open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

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
    runs = [list(run) for _, run in groupby(faults, key=lambda fault: (fault.check, fault.code, fault.told))]
    told += (line for run in runs[:_MOST] for line in continued(_run_line(run), columns))
    if left := [fault for run in runs[_MOST:] for fault in run]:
        counts = Counter(fault.code for fault in left)
        told.append(
            f"  and {len(left)} more: " + ", ".join(f"{count} {code}" for code, count in sorted(counts.items()))
        )
    noted = [line for notice in notices for line in continued(f"note: {notice}", columns, hang=6)]
    return "\n".join([*told, *noted, end])


def _run_line(run: Sequence[Fault]) -> str:
    """The same thing said of one generation, or of several in a row."""
    first, last = run[0], run[-1]
    which = f"#{first.generation} {first.commit[:7]}"
    if last is not first:
        which += f" to #{last.generation} {last.commit[:7]}"
    return f"  {which}  {first.code}: {one_line(first.told)}"
