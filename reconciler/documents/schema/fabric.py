"""Fabric: the levels of locality, what a transfer costs across each, and which rack is under which spines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from reconciler.documents.schema.base import (
    Bandwidth,
    Document,
    Duration,
    LevelName,
    Line,
    Listed,
    Name,
    Strict,
    kind_of,
    refuse,
)


def _ratio(written: object) -> int:
    """Thousandths of `2`, `1.5` or `"2:1"`."""
    whole, _, decimals = str(written).removesuffix(":1").partition(".")
    if (
        type(written) in (bool, list, dict)
        or not (whole + decimals).isascii()
        or not (whole + (decimals or "0")).isdigit()
    ):
        refuse(
            "BadRatio",
            f"Expected how many times the links below exceed those above, such as 2 or 1.5; found {kind_of(written)}.",
        )
    found = int(whole) * 1000 + int(decimals[:3].ljust(3, "0"))
    if len(decimals) > 3 or not 1000 <= found <= 1_000_000:
        refuse("BadRatio", "Expected a number from 1 to 1000 with at most three decimals.")
    return found


class Level(Strict):
    """One level of locality and its link model."""

    name: LevelName
    """What jobs say in `topology`: nvlinkDomain, node, rack, spineGroup, cluster, or a level of your own."""
    latency: Duration
    """Of one message across this level."""
    bandwidth: Bandwidth
    """For each GPU, in one direction."""
    oversubscription: Annotated[
        int,
        PlainValidator(_ratio),
        WithJsonSchema(
            {"anyOf": [{"type": "number", "minimum": 1}, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?:1$"}]}
        ),
    ] = 1000
    """How many times the links below exceed those above: 2 means 2:1."""


class Rack(Strict):
    """The nodes under one set of top-of-rack switches."""

    name: Name
    """Unique among all racks."""
    tors: Listed[Line] = ()
    """Its switches, for people and drift reports."""


class SpineGroup(Strict):
    """Racks that meet at the same spines."""

    name: Name
    """Unique among spine groups."""
    spines: Listed[Line] = ()
    """Its switches, for people and drift reports."""
    racks: Annotated[Listed[Rack], Field(min_length=1)]
    """The racks below it."""


class FabricSpec(Strict):
    """Levels from the inside out, then the switches."""

    levels: Annotated[Listed[Level], Field(min_length=2, max_length=16)]
    """From the inside out; `node` is one of them, `cluster` the last."""
    spine_groups: Listed[SpineGroup] = ()
    """Spine groups with their racks."""
    racks: Listed[Rack] = ()
    """Racks of a fabric that has no level spineGroup."""


class Fabric(Document):
    """The levels of locality, what a transfer costs across each, and which rack is under which spines."""

    kind: Literal["Fabric"]
    """The kind of document."""
    spec: FabricSpec
    """Levels and switches."""
