"""How anomalies are shown: each with its evidence, cause and the command that mends it, or as a tree."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.documents.loader import Tree
from reconciler.model.anomaly import Anomaly
from reconciler.model.counting import counted
from reconciler.render.table import below

_WIDTH = 80


def anomalies_page(anomalies: Sequence[Anomaly], looked: Sequence[str], width: int | None) -> str:
    """A paragraph each, grave ones marked `!`; then how many there are. `looked` names what was looked at."""
    lines: list[str] = []
    for one in anomalies:
        lines.append(f"{'!' if one.grave else '-'} {one.code}  {one.on}")
        for label, text in (("seen", one.evidence), ("why", one.cause)):
            lines += below(f"{label:<6}{text}", width or _WIDTH)
        # Never broken: it is there to be copied.
        lines += [f"    {'mend':<6}{one.mend}", ""]
    grave = sum(one.grave for one in anomalies)
    told = f"{counted(len(anomalies), 'anomaly', 'anomalies')}, {grave} grave" if anomalies else "no anomalies"
    return "\n".join([*lines, f"{told}; looked at {', '.join(looked)}"])


def anomalies_tree(anomalies: Sequence[Anomaly]) -> list[dict[str, Tree]]:
    """The same for machines."""
    return [
        {
            "code": str(one.code),
            "on": one.on,
            "grave": one.grave,
            "evidence": one.evidence,
            "cause": one.cause,
            "mend": one.mend,
        }
        for one in anomalies
    ]
