"""On which ports does a gang listen, when several gangs share a node?

The first is where its ranks meet, more are as many as the job asks for. They are written into the record when it
starts, so that every reconciler and every node says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from reconciler.model.allocation import JobRecord, Placement
from reconciler.model.units import JobKey, NodeName

FIRST_PORT: Final = 29500
PORTS: Final = 2500


class Ports:
    """Ports in use by node, read from the records when first asked for."""

    __slots__ = ("_records", "_used")

    def __init__(self, records: Mapping[JobKey, JobRecord]) -> None:
        self._records = records
        self._used: dict[NodeName, set[int]] | None = None

    def free(self, place: Placement, attempt: int, more: int) -> tuple[int, ...]:
        """1 + `more` ports that nobody else uses on any of the gang's nodes; where the look begins shifts with the
        attempt. Fewer when there are no more."""
        if self._used is None:
            self._used = {}
            for record in self._records.values():
                if record.ports and record.placement is not None and record.state.holds_gpus:
                    self.take(record.placement.nodes, record.ports)
        used: set[int] = set()
        for node in place.nodes:
            used |= self._used.get(node, set())
        begin = (attempt - 1) * (more + 1)
        found: list[int] = []
        for step in range(PORTS):
            port = FIRST_PORT + (begin + step) % PORTS
            if port not in used:
                found.append(port)
                if len(found) > more:
                    break
        return tuple(found)

    def take(self, nodes: Iterable[NodeName], ports: Iterable[int]) -> None:
        """A gang that starts listens on these, on all its nodes."""
        if self._used is not None:
            for node in nodes:
                self._used.setdefault(node, set()).update(ports)

    def forget(self) -> None:
        """A gang listens elsewhere or no more: the records say where."""
        self._used = None
