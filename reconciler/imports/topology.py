"""Which Fabric do the cables make? Switches and nodes as tools list them, turned into racks, spine groups and levels.

A Clos fabric is a graph, not a tree: several spines above each leaf are its normal state. A rack is the nodes below
one set of leaf switches, a spine group the racks whose leaves share spines. What does not add up (sources that
contradict each other, unequal spines, nodes in two places) is reported by name and never smoothed over.

Takes the neutral formats of captured output (`discovery`), by source; levels get usual speeds, to be corrected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import networkx as nx

from reconciler.documents.hostlist import fold
from reconciler.documents.loader import Tree
from reconciler.documents.schema.base import API_VERSION, NAME_PATTERN
from reconciler.errors import Diagnostic, Place, Severity, sorted_by_place

_SPEEDS: Final[Mapping[str, dict[str, Tree]]] = {
    "nvlinkDomain": {"latency": "0.7us", "bandwidth": "450GBps"},
    "node": {"latency": "1.2us", "bandwidth": "64GBps"},
    "rack": {"latency": "3us", "bandwidth": "400Gbps"},
    "spineGroup": {"latency": "5us", "bandwidth": "400Gbps"},
    "cluster": {"latency": "8us", "bandwidth": "400Gbps"},
}


@dataclass(slots=True, kw_only=True)
class Cabling:
    """What one or all sources say. Sets of names: leaf switches of a node, switches above a switch, nodes of a block."""

    source: str = ""
    leaves: dict[str, set[str]] = field(default_factory=dict)
    above: dict[str, set[str]] = field(default_factory=dict)
    blocks: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedFabric:
    """The Fabric, None when nothing usable was said; comments to stand above it; what does not add up, by name.

    `racks` are the nodes of each, `blocks` those of each NVLink block where blocks are a level.
    """

    document: dict[str, Tree] | None
    comments: tuple[str, ...]
    findings: tuple[Diagnostic, ...]
    racks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blocks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rack:
    name: str
    leaves: tuple[str, ...]
    spines: tuple[str, ...]
    nodes: tuple[str, ...]


def fabric_of(sources: Mapping[str, Mapping[str, Tree]], name: str) -> ImportedFabric:
    """The Fabric `name` of all sources together; each is a neutral format by the name of its file.

    The file of a node's LLDP neighbours carries the node's name.
    """
    findings: list[Diagnostic] = []
    cablings = [_cabling(source, tree, findings) for source, tree in sources.items()]
    findings += _contradictions(cablings)
    merged = _merged(cablings)
    findings += _cycles(merged)
    if not merged.leaves and not merged.blocks:
        return ImportedFabric(document=None, comments=(), findings=sorted_by_place(findings))
    racks = _racks(merged, findings)
    groups = _groups(racks, findings)
    blocks = _blocks_fit(merged, racks, findings)
    levels, comments = _levels(racks, groups, blocks, merged)
    spec: dict[str, Tree] = {"levels": [{"name": level, **_SPEEDS[level]} for level in levels]}
    if groups:
        spec["spineGroups"] = [_group_tree(group, number) for number, group in enumerate(groups)]
    else:
        spec["racks"] = [_rack_tree(rack) for rack in racks]
    comments += [f"rack {rack.name}: {fold(rack.nodes)}" for rack in racks]
    comments += [f"NVLink block {block}: {fold(sorted(nodes))}" for block, nodes in sorted(merged.blocks.items())]
    document: dict[str, Tree] = {"apiVersion": API_VERSION, "kind": "Fabric", "metadata": {"name": name}, "spec": spec}
    return ImportedFabric(
        document=document,
        comments=tuple(comments),
        findings=sorted_by_place(findings),
        racks={rack.name: rack.nodes for rack in racks},
        blocks={_slug(block): _ordered(nodes) for block, nodes in sorted(merged.blocks.items())} if blocks else {},
    )


# --- what the sources say ---------------------------------------------------------------------------------------------


def _cabling(source: str, tree: Mapping[str, Tree], findings: list[Diagnostic]) -> Cabling:
    found = Cabling(source=source)
    kind = str(tree.get("format")).partition("/")[0]
    if kind == "slurm-topology-conf":
        _take_slurm(found, tree, findings)
    elif kind == "slurm-topology-yaml":
        for topology in _mappings(tree.get("topologies")):
            _take_slurm(found, topology, findings)
    elif kind == "ibnetdiscover":
        switches = tree.get("switches")
        for name, switch in switches.items() if isinstance(switches, dict) else ():
            if isinstance(switch, dict):
                found.above.setdefault(name, set()).update(_names(switch.get("uplinks")))
                for node in _names(switch.get("hosts")):
                    found.leaves.setdefault(node, set()).add(name)
    elif kind == "lldpctl-json":
        neighbours = tree.get("neighbors")
        node = source.rpartition("/")[2].partition(".")[0]
        for port in neighbours.values() if isinstance(neighbours, dict) else ():
            if isinstance(port, dict) and isinstance(port.get("switch"), str):
                found.leaves.setdefault(node, set()).add(str(port["switch"]))
    else:
        findings.append(_finding("NoTopology", "File says nothing about switches", f"It is {kind}.", source))
    return found


_NOWHERE: Final = "no-topology"
"""The switch that topograph makes up for nodes it could not place."""


def _take_slurm(found: Cabling, tree: Mapping[str, Tree], findings: list[Diagnostic]) -> None:
    for switch in _mappings(tree.get("switches")):
        name = str(switch["name"])
        if name == _NOWHERE:
            told = f"{_listed(_names(switch.get('nodes')))} could not be placed by topograph: no rack is made of them."
            remedy = "Find out which switches they hang at, with lldpctl or ibnetdiscover."
            findings.append(_finding("PlaceUnknown", "Nodes without a place", told, found.source, remedy))
            continue
        found.above.setdefault(name, set()).update(_names(switch.get("parents")))
        for node in _names(switch.get("nodes")):
            found.leaves.setdefault(node, set()).add(name)
    for block in _mappings(tree.get("blocks")):
        found.blocks.setdefault(str(block["name"]), set()).update(_names(block.get("nodes")))


def _mappings(value: Tree) -> list[dict[str, Tree]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _names(value: Tree) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _merged(cablings: Sequence[Cabling]) -> Cabling:
    found = Cabling()
    for cabling in cablings:
        for part, whole in (
            (cabling.leaves, found.leaves),
            (cabling.above, found.above),
            (cabling.blocks, found.blocks),
        ):
            for name, others in part.items():
                whole.setdefault(name, set()).update(others)
    return found


def _finding(code: str, summary: str, detail: str, source: str, remedy: str = "") -> Diagnostic:
    return Diagnostic(code, summary, detail, Place(source), remedy, Severity.WARNING)


# --- what does not add up ---------------------------------------------------------------------------------------------


def _contradictions(cablings: Sequence[Cabling]) -> Iterator[Diagnostic]:
    """Two sources that both know a switch or a node, and say something else of it."""
    for later, cabling in enumerate(cablings):
        for other in cablings[:later]:
            for what, mine, theirs in (
                ("Switch {} is below", cabling.above, other.above),
                ("Node {} is below", cabling.leaves, other.leaves),
                ("NVLink block {} is", cabling.blocks, other.blocks),
            ):
                for name in sorted(mine.keys() & theirs.keys()):
                    if mine[name] != theirs[name]:
                        told = f"{what.format(name)} {_listed(mine[name])} here, {_listed(theirs[name])} in {other.source}."
                        yield _finding("CablingContradicts", "Sources contradict each other", told, cabling.source)


def _cycles(cabling: Cabling) -> Iterator[Diagnostic]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((low, high) for low, above in sorted(cabling.above.items()) for high in sorted(above))
    for component in nx.strongly_connected_components(graph):
        if len(component) > 1 or any(graph.has_edge(name, name) for name in component):
            told = f"{_listed(component)} are above each other."
            yield _finding("SwitchCycle", "Switches form a cycle", told, "", "Correct what is above what.")


def _racks(cabling: Cabling, findings: list[Diagnostic]) -> list[_Rack]:
    """Nodes by their set of leaves, in the order of names. Fewer leaves than a whole rack has are a missing cable."""
    sets: dict[frozenset[str], list[str]] = {}
    for node, below in sorted(cabling.leaves.items()):
        sets.setdefault(frozenset(below), []).append(node)
    for leaves in sorted(sets, key=lambda s: (len(s), sorted(s))):
        larger = [other for other in sets if leaves < other]
        if len(larger) == 1:
            missing = larger[0] - leaves
            nodes = sets.pop(leaves)
            sets[larger[0]] = sorted([*sets[larger[0]], *nodes])
            told = f"{_listed(nodes)} not seen at {_listed(missing)}, where the others of its rack are."
            findings.append(_finding("LeafMissing", "Node lacks a cable", told, ""))
    shared = {leaf for one in sets for other in sets if one != other for leaf in one & other}
    for leaf in sorted(shared):
        nodes = sorted(node for rack, members in sets.items() if leaf in rack for node in members)
        told = f"Switch {leaf} serves {_listed(nodes)}, whose other leaf switches differ."
        findings.append(_finding("NodeInTwoPlaces", "Racks overlap", told, ""))
    taken: set[str] = set()
    found = []
    for leaves, nodes in sorted(sets.items(), key=lambda item: _natural(item[1][0])):
        spines = {high for leaf in leaves for high in cabling.above.get(leaf, ())}
        rack = _unused(_rack_name(leaves), taken)
        found.append(_Rack(name=rack, leaves=_ordered(leaves), spines=_ordered(spines), nodes=_ordered(nodes)))
    if found:
        return found
    return [  # blocks alone: each is a place of its own
        _Rack(name=_unused(_slug(block), taken), leaves=(), spines=(), nodes=_ordered(members))
        for block, members in sorted(cabling.blocks.items())
    ]


def _groups(racks: Sequence[_Rack], findings: list[Diagnostic]) -> list[list[_Rack]]:
    """Racks that share a spine; in a group where not all have the same spines traffic is hashed unevenly."""
    if not any(rack.spines for rack in racks):
        return []
    graph: nx.Graph[tuple[str, str]] = nx.Graph()
    for rack in racks:
        graph.add_node(("rack", rack.name))
        graph.add_edges_from((("rack", rack.name), ("spine", spine)) for spine in rack.spines)
    part_of: dict[str, int] = {}
    for number, component in enumerate(nx.connected_components(graph)):
        part_of |= {name: number for kind, name in component if kind == "rack"}
    groups: dict[int, list[_Rack]] = {}
    for rack in racks:  # in the order of racks, whatever the order of components
        groups.setdefault(part_of[rack.name], []).append(rack)
    for group in groups.values():
        spines = {spine for rack in group for spine in rack.spines}
        for rack in group:
            missing = spines - set(rack.spines)
            if missing:
                told = f"Rack {rack.name} does not reach {_listed(missing)}, which others of its group do."
                findings.append(
                    _finding(
                        "SpineSetsDiffer",
                        "Racks of a spine group have unequal spines",
                        told,
                        "",
                        "Flows hash unevenly over the links that are left: cable them alike, or split the group.",
                    )
                )
    return list(groups.values())


def _blocks_fit(cabling: Cabling, racks: Sequence[_Rack], findings: list[Diagnostic]) -> bool:
    """Whether NVLink blocks are a level between node and rack."""
    rack_of = {node: rack.name for rack in racks for node in rack.nodes}
    owner: dict[str, str] = {}
    fits = bool(cabling.blocks)
    for block, nodes in sorted(cabling.blocks.items()):
        twice = sorted(node for node in nodes if owner.setdefault(node, block) != block)
        if twice:
            told = f"{_listed(twice)} in {block} and in {_listed({owner[node] for node in twice})}."
            findings.append(_finding("NodeInTwoPlaces", "Node is in two NVLink blocks", told, ""))
        places = {rack_of[node] for node in nodes if node in rack_of}
        if len(places) > 1:
            fits = False
            told = f"{block} spans racks {_listed(places)}: levels are nested, a block lies inside one rack."
            findings.append(_finding("BlockSpansRacks", "NVLink block is wider than a rack", told, ""))
    return fits


# --- the document -----------------------------------------------------------------------------------------------------


def _levels(
    racks: Sequence[_Rack], groups: Sequence[object], blocks: bool, cabling: Cabling
) -> tuple[list[str], list[str]]:
    """Levels from the inside out, and a comment with the reason for each."""
    reasons = ["levels, and why each is there; latency and bandwidth are usual values: put in yours"]
    levels = ["node", "nvlinkDomain"] if blocks else ["nvlinkDomain", "node"]
    if blocks:
        reasons.append(
            f"  node, nvlinkDomain: {len(cabling.blocks)} NVLink blocks of several nodes, each inside one rack"
        )
    else:
        reasons.append("  nvlinkDomain, node: NVLink ends at the node, as far as these files say")
    leaves = sorted({len(rack.leaves) for rack in racks})
    counts = " or ".join(map(str, leaves))
    told = (
        f"below the same leaf switches (each has {counts})" if leaves != [0] else "as NVLink blocks: no switch is named"
    )
    reasons.append(f"  rack: nodes that hang together, {told}; found: {len(racks)}")
    levels.append("rack")
    if groups:
        reasons.append(f"  spineGroup: racks whose leaf switches share spines; found: {len(groups)}")
        levels.append("spineGroup")
    higher = _above_spines(racks, cabling)
    named = f", joined by {_listed(higher)}" if higher else ""
    reasons.append(f"  cluster: everything{named}")
    return [*levels, "cluster"], reasons


def _above_spines(racks: Sequence[_Rack], cabling: Cabling) -> set[str]:
    """Switches above the spines; `above` may have cycles, so each is visited once."""
    spines = {spine for rack in racks for spine in rack.spines}
    waiting, found = sorted(spines), set[str]()
    while waiting:
        for high in sorted(cabling.above.get(waiting.pop(), ())):
            if high not in found and high not in spines:
                found.add(high)
                waiting.append(high)
    return found


def _group_tree(group: Sequence[_Rack], number: int) -> dict[str, Tree]:
    spines = _ordered({spine for rack in group for spine in rack.spines})
    head: dict[str, Tree] = {"name": f"sg{number}"}
    return head | ({"spines": [*spines]} if spines else {}) | {"racks": [_rack_tree(rack) for rack in group]}


def _rack_tree(rack: _Rack) -> dict[str, Tree]:
    head: dict[str, Tree] = {"name": rack.name}
    return head | ({"tors": [*rack.leaves]} if rack.leaves else {})


def _rack_name(leaves: Iterable[str]) -> str:
    """The name of the only leaf; of several what they begin with alike, less a trailing word such as `rail`."""
    names = _ordered(leaves)
    if len(names) == 1:
        return _slug(names[0])
    common = names[0]
    while common and not all(name.startswith(common) for name in names):
        common = common[:-1]
    common = re.sub(r"[-_.]?(rail|leaf|tor|plane)?[-_.]?$", "", common, flags=re.IGNORECASE)
    return _slug(common) if len(common) > 1 else "rack"


def _slug(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:56].rstrip("-")
    return name if re.match(NAME_PATTERN, name) else "rack"


def _unused(name: str, taken: set[str]) -> str:
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=_natural))


_NAMED: Final = 6


def _listed(names: Iterable[str]) -> str:
    ordered = _ordered(set(names))
    rest = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return (", ".join(ordered[:_NAMED]) or "nothing") + rest
