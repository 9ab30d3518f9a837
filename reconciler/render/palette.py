"""Which look has a queue on the pages: a colour with a pattern of its own, so that no meaning rests on colour alone.

A dozen looks are told apart by most eyes; beyond them the queues that used least share one look, named as what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reconciler.render.page_values import QueueShown

LOOKS = 12
OTHER = LOOKS
"""The number of the look that all further queues share."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Look numbers by queue name; a queue without a look of its own has `OTHER`."""

    looks: Mapping[str, int]
    others: tuple[str, ...]

    def of(self, queue: str) -> int:
        """The look of any queue, known or not."""
        return self.looks.get(queue, OTHER)


def palette(queues: Sequence[QueueShown]) -> Palette:
    """A look for each queue where there are enough; else for those that used most, in the order they are listed in."""
    most = sorted(queues, key=lambda queue: (-queue.allocated, -queue.held, queue.name))[:LOOKS]
    chosen = {queue.name for queue in most}
    own = [queue.name for queue in queues if queue.name in chosen]
    others = tuple(queue.name for queue in queues if queue.name not in chosen)
    return Palette({name: number for number, name in enumerate(own)}, others)
