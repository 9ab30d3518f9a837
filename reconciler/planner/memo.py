"""What was worked out from a value that is still the same object needs no second working out.

Between two rounds nearly all jobs, placements and reports are the very objects of the round before. A `Memo` keeps
the answer of a pure function beside the value itself, found by identity; holding the value keeps its identity from
being used again. It changes how fast an answer comes, never the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from reconciler.model.allocation import Placement
from reconciler.model.units import NodeName

V = TypeVar("V")
R = TypeVar("R")

LIMIT: Final = 200_000  # values kept; then it starts over


class Memo(Generic[V, R]):
    """A pure function of a frozen value, with a memory."""

    __slots__ = ("_known", "_make")

    def __init__(self, make: Callable[[V], R]) -> None:
        self._make = make
        self._known: dict[int, tuple[V, R]] = {}

    def __call__(self, value: V) -> R:
        found = self._known.get(id(value))
        if found is not None:
            return found[1]
        made = self._make(value)
        if len(self._known) >= LIMIT:
            self._known.clear()
        self._known[id(value)] = (value, made)
        return made


def _masks(placement: Placement) -> Mapping[NodeName, int]:
    return placement.masks


masks_of: Final = Memo(_masks)
"""GPU bit mask by node, nodes in rank order (`Placement.masks`)."""
