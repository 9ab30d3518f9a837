"""How do switches that name their children stand to each other: levels, roots, cycles?

A Clos fabric is a graph: several parents and several roots are facts to report, cycles a contradiction.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

import networkx as nx

from reconciler.discovery.parsed import Notes, listed
from reconciler.documents.loader import Tree

_MOST_SWITCHES: Final = 20_000
_GUID: Final = re.compile(r"0x[0-9a-fA-F]{10,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One switch as declared; `children` are names, which need not be declared."""

    name: str
    nodes: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


def describe(switches: list[Switch], notes: Notes) -> dict[str, Tree]:
    """The tree part of a topology, switches in the order given; what is odd about it goes to the notes."""
    if len(switches) > _MOST_SWITCHES:
        notes.fail("TOO_MANY_SWITCHES", f"more than {_MOST_SWITCHES} switches")
        return {}
    by_name = {switch.name: switch for switch in switches}
    if len(by_name) < len(switches):
        twice = _repeated([switch.name for switch in switches])
        notes.fail("DUPLICATE_SWITCH", f"{listed(twice)} is declared more than once")
        return {}
    parents: dict[str, list[str]] = {switch.name: [] for switch in switches}
    undefined: dict[str, None] = {}
    for switch in switches:
        for child in dict.fromkeys(switch.children):
            if child in by_name:
                parents[child].append(switch.name)
            else:
                undefined[child] = None
    levels = _levels(switches, by_name, parents)
    cycle = _cycle_members(switches, by_name)
    roots = [switch.name for switch in switches if not parents[switch.name]]
    nodes = [node for switch in switches for node in dict.fromkeys(switch.nodes)]
    duplicates = _repeated(nodes)
    _report(parents, undefined, cycle, roots, duplicates, nodes, notes)
    shown: list[Tree] = [
        {
            "name": switch.name,
            "nodes": [*switch.nodes],
            "children": [*switch.children],
            "level": levels.get(switch.name),
            "parents": [*parents[switch.name]],
        }
        for switch in switches
    ]
    return {
        "plugin": "tree",
        "switches": shown,
        "roots": [*roots],
        "undefined_switches": [*undefined],
        **({"cycle_members": [*cycle]} if cycle else {}),
        "node_count": len(set(nodes)),
        "duplicate_nodes": [*duplicates],
    }


def _repeated(names: list[str]) -> list[str]:
    """Names that come more than once, each once, in order."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return [name for name, count in counts.items() if count > 1]


def _levels(switches: list[Switch], by_name: dict[str, Switch], parents: dict[str, list[str]]) -> dict[str, int]:
    """Level of each switch, 0 for a leaf; absent on a cycle, above one, or above an undeclared switch."""
    waits_for = {switch.name: len(set(switch.children)) for switch in switches}
    levels: dict[str, int] = {}
    ready = deque(name for name, count in waits_for.items() if not count)
    while ready:
        name = ready.popleft()
        levels[name] = max((levels[child] + 1 for child in by_name[name].children), default=0)
        for parent in parents[name]:
            waits_for[parent] -= 1
            if not waits_for[parent]:
                ready.append(parent)
    return levels


def _cycle_members(switches: list[Switch], by_name: dict[str, Switch]) -> list[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_edges_from((s.name, child) for s in switches for child in s.children if child in by_name)
    members = {
        name
        for component in nx.strongly_connected_components(graph)
        for name in component
        if len(component) > 1 or graph.has_edge(name, name)
    }
    return [switch.name for switch in switches if switch.name in members]


def _report(
    parents: dict[str, list[str]],
    undefined: dict[str, None],
    cycle: list[str],
    roots: list[str],
    duplicates: list[str],
    nodes: list[str],
    notes: Notes,
) -> None:
    if cycle:
        notes.fail("CYCLE", f"switches are above each other: {listed(cycle)}")
    if undefined:
        notes.gap("UNDEFINED_SWITCHES", f"{listed(undefined)} named as children, but not declared")
    several = [name for name, above in parents.items() if len(above) > 1]
    if several:
        notes.warn("MULTI_PARENT", f"{listed(several)} below several switches: a fat tree, not a tree")
    if len(roots) > 1:
        notes.warn("MULTIPLE_ROOTS", f"{listed(roots)} share no common switch")
    if duplicates:
        notes.warn("DUPLICATE_NODES", f"{listed(duplicates)} below more than one switch")
    if nodes and all(_GUID.fullmatch(node) for node in nodes):
        notes.warn("NODE_NAMES_ARE_GUIDS", "nodes are InfiniBand port GUIDs: they need a table of GUIDs and names")
