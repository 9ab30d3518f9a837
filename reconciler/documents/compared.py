"""Which of the cluster's own documents say something else than before? Compared by value, wherever their files are.

A comment, an order of keys, a default written out or a document moved to another file is no difference. What the
difference means is for others; jobs are compared as the gangs they come to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reconciler.documents.lint import Documents


class Turn(StrEnum):
    """What became of a document."""

    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChange:
    """One document that came, went or says something else."""

    turn: Turn
    kind: str
    name: str


def documents_between(before: Documents, after: Documents) -> tuple[DocumentChange, ...]:
    """A row for each document that differs, by kind and name."""
    found = []
    for kind in sorted({*before.by_kind, *after.by_kind}):
        old, new = before.named(kind), after.named(kind)
        for name in sorted({*old, *new}):
            one, other = old.get(name), new.get(name)
            if one is None or other is None:
                turn = Turn.ADD if one is None else Turn.REMOVE
            elif one.read is other.read or one.content == other.content or one.model == other.model:
                continue
            else:
                turn = Turn.CHANGE
            found.append(DocumentChange(turn=turn, kind=kind, name=name))
    return tuple(found)
