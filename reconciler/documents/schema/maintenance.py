"""Maintenance: nodes that are taken out for a while. Reservation: nodes kept for some queues for a while."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from reconciler.documents.schema.base import Document, Line, Listed, Name, NodeList, Strict, Time, refuse


class _Window(Strict):
    nodes: NodeList
    """In Slurm's hostlist syntax, quoted."""
    from_: Annotated[Time, Field(alias="from")]
    """When it begins."""
    to: Time
    """When it ends."""
    reason: Annotated[Line, Field(min_length=1)]
    """For people."""

    @model_validator(mode="after")
    def _in_order(self) -> _Window:
        if self.to <= self.from_:
            refuse("BadWindow", "`to` is not after `from`.")
        return self


class MaintenanceSpec(_Window):
    """Which nodes, when, and what becomes of work on them."""

    drain: Literal["checkpoint", "wait", "kill"] = "checkpoint"
    """checkpoint: jobs are stopped through their checkpoint; wait: they end by themselves; kill: at once."""


class Maintenance(Document):
    """Nodes that are taken out for a while."""

    kind: Literal["Maintenance"]
    """The kind of document."""
    spec: MaintenanceSpec
    """Which nodes, and when."""


class ReservationSpec(_Window):
    """Which nodes, when, and for whom."""

    queues: Annotated[Listed[Name], Field(min_length=1)]
    """Whose jobs may use them meanwhile; others only until `from`."""


class Reservation(Document):
    """Nodes kept for some queues for a while."""

    kind: Literal["Reservation"]
    """The kind of document."""
    spec: ReservationSpec
    """Which nodes, when, and for whom."""
