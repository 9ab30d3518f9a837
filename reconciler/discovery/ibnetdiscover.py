"""Which hosts hang on which InfiniBand switch, and which switches are above it, by `ibnetdiscover`?

Up is away from the hosts: a switch's level is its distance to the nearest of them. Names are the node descriptions;
where two switches share one, the GUID tells them apart.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from reconciler.discovery.parsed import MAX_NAMES, Kind, Notes, Parsed, failure, listed
from reconciler.documents.loader import Tree

_ID: Final = r'"([SHR]-[0-9a-fA-F]{1,16})"'
_SECTION: Final = re.compile(rf'^(Switch|Ca|Rt)\s+[0-9]{{1,5}}\s+{_ID}\s*(?:#\s*"([^"]{{0,256}})")?')
_PORT: Final = re.compile(
    rf"^\[[0-9]{{1,5}}\](?:\[[^\]]{{0,40}}\])?(?:\([0-9a-fA-F]{{1,16}}\))?\s*{_ID}\[([0-9]{{1,5}})\]"
    rf'(?:\([0-9a-fA-F]{{1,16}}\))?\s*(?:#\s*"([^"]{{0,256}})")?'
)
_PORT_LIKE: Final = re.compile(r"^\[[0-9]")
_MANAGED: Final = re.compile(r"^[A-Z]{2}[0-9]{0,2};([^:;]{1,253}):")
_AGGREGATION: Final = "Aggregation Node"  # a switch's own SHARP endpoint, which shows up as a host


@dataclass(slots=True, kw_only=True)
class _Fabric:
    descriptions: dict[str, str] = field(default_factory=dict)  # by id, S-... or H-...
    sections: dict[str, None] = field(default_factory=dict)
    edges: dict[tuple[str, str], None] = field(default_factory=dict)  # from a section's node to what its port shows


def parse(text: str) -> Parsed:
    """Switches by name in the order of the text: GUID, hosts and uplinks, both in name order."""
    notes = Notes()
    fabric = _read(text, notes)
    switches = [i for i in dict.fromkeys([*fabric.sections, *(i for e in fabric.edges for i in e)]) if i[0] == "S"]
    if not switches:
        return failure(Kind.IBNETDISCOVER, "NO_SWITCHES", 'no line such as `Switch 41 "S-..." # "name"` was found')
    neighbours: dict[str, set[str]] = {switch: set() for switch in switches}
    hosts: dict[str, set[str]] = {switch: set() for switch in switches}
    _join(fabric, neighbours, hosts, notes)
    levels = _levels(switches, neighbours, hosts)
    names = _names(switches, fabric, notes)
    _report(fabric, switches, neighbours, levels, names, notes)
    content: dict[str, Tree] = {
        names[switch]: {
            "guid": switch[2:],
            "hosts": [*_sorted(hosts[switch])],
            "uplinks": [*_sorted(names[n] for n in neighbours[switch] if levels.get(n, 0) > levels.get(switch, 0))],
        }
        for switch in switches
    }
    return notes.parsed(Kind.IBNETDISCOVER, {"switches": content})


def _read(text: str, notes: Notes) -> _Fabric:
    fabric = _Fabric()
    current = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t>")
        if section := _SECTION.match(line):
            current = section[2]
            if current in fabric.sections:
                notes.gap("EXTRA_SECTION", f"line {number}: {current} comes again")
            fabric.sections[current] = None
            fabric.descriptions[current] = section[3] or ""
        elif port := _PORT.match(line):
            if current:
                fabric.edges[current, port[1]] = None
                fabric.descriptions.setdefault(port[1], port[3] or "")
        elif _PORT_LIKE.match(line) or line.startswith(("Switch\t", "Ca\t")):
            notes.gap("UNREADABLE_LINE", f"line {number} is not of the form that ibnetdiscover prints")
        if len(fabric.descriptions) > MAX_NAMES:
            notes.fail("TOO_MANY_NODES", f"more than {MAX_NAMES} switches and hosts")
            break
    return fabric


def _join(fabric: _Fabric, neighbours: dict[str, set[str]], hosts: dict[str, set[str]], notes: Notes) -> None:
    """Puts each edge into the tables of the switches it touches."""
    passed_over = False
    unnamed: dict[str, None] = {}
    for edge in fabric.edges:
        for one, other in (edge, edge[::-1]):
            if one[0] != "S":
                continue
            if other[0] == "S" and other != one:
                neighbours[one].add(other)
            elif other[0] == "H" and _AGGREGATION in fabric.descriptions[other]:
                passed_over = True
            elif other[0] == "H":
                name = _host(fabric.descriptions[other])
                hosts[one].add(name or other)
                unnamed |= {} if name else {other: None}
    if passed_over:
        notes.warn("AGGREGATION_NODES", "SHARP aggregation nodes of switches are not counted as hosts")
    if unnamed:
        notes.gap("HOSTS_WITHOUT_NAME", f"adapters that do not say their host go by their id: {listed(unnamed)}")


def _host(description: str) -> str:
    """`node01` of "node01 mlx5_0"; "" for none, and for a maker's text such as "MT25408 ConnectX Mellanox ..."."""
    words = description.split()
    return words[0] if 1 <= len(words) <= 2 else ""


def _levels(switches: list[str], neighbours: dict[str, set[str]], hosts: dict[str, set[str]]) -> dict[str, int]:
    """Distance of each switch from the nearest host, 0 beside one; absent when no host can be reached."""
    levels = {switch: 0 for switch in switches if hosts[switch]}
    waiting = deque(levels)
    while waiting:
        switch = waiting.popleft()
        for other in neighbours[switch]:
            if other not in levels:
                levels[other] = levels[switch] + 1
                waiting.append(other)
    return levels


def _names(switches: list[str], fabric: _Fabric, notes: Notes) -> dict[str, str]:
    plain = {}
    for switch in switches:
        description = fabric.descriptions[switch].strip()
        managed = _MANAGED.match(description)
        plain[switch] = managed[1] if managed else description
    uses: dict[str, int] = {}
    for name in plain.values():
        uses[name] = uses.get(name, 0) + 1
    shared = {switch: None for switch in switches if not plain[switch] or uses[plain[switch]] > 1}
    if shared:
        notes.warn("NAMES_NOT_UNIQUE", f"switches without a name of their own go by their id: {listed(shared)}")
    return {switch: switch if switch in shared else plain[switch] for switch in switches}


def _report(
    fabric: _Fabric,
    switches: list[str],
    neighbours: dict[str, set[str]],
    levels: dict[str, int],
    names: dict[str, str],
    notes: Notes,
) -> None:
    """What the text leaves open: sections cut off, links told by one end only, switches without hosts below."""
    missing = [names[switch] for switch in switches if switch not in fabric.sections]
    if missing:
        notes.gap("MISSING_SECTIONS", f"switches seen from others only: {listed(missing)}")
    one_sided = [
        f"{names[one]}-{names[other]}"
        for one, other in fabric.edges
        if one[0] == other[0] == "S" and other in fabric.sections and (other, one) not in fabric.edges
    ]
    if one_sided:
        notes.gap("ONE_SIDED_LINKS", f"only one end tells of {listed(one_sided)}: the text is incomplete")
    lost = [names[switch] for switch in switches if switch not in levels]
    if lost:
        notes.gap("NO_HOSTS_BELOW", f"no host is reached from {listed(lost)}: what is above them is unknown")
    level_with = [names[s] for s in switches if any(levels.get(n) == levels.get(s) for n in neighbours[s])]
    if level_with:
        notes.warn(
            "LINKS_ON_A_LEVEL", f"links between switches of one level, neither up nor down: {listed(level_with)}"
        )


def _sorted(names: Iterable[str]) -> list[str]:
    """Names, each once, with numbers in numeric order."""
    return sorted(set(names), key=_numeric)


def _numeric(name: str) -> tuple[list[tuple[str, int]], str]:
    return [(word, int(digits[:18] or "0")) for word, digits in re.findall(r"([^0-9]*)([0-9]*)", name)], name
