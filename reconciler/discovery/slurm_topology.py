"""What does Slurm's `topology.conf` (or `scontrol show topology`) say: a tree, blocks, or rings?"""

from __future__ import annotations

import re
from typing import Final

from reconciler.discovery.parsed import Kind, Notes, Parsed, listed, shortened
from reconciler.discovery.slurm_text import Line, Names, lines_of
from reconciler.discovery.switch_graph import Switch, describe
from reconciler.documents.loader import Tree

# What else a line may have: output of scontrol, and a weight that says nothing about who is where.
_KEYS: Final = {
    "switchname": {"nodes", "switches", "level", "linkspeed"},
    "blockname": {"nodes", "blockindex", "blocksize"},
    "ringname": {"nodes"},
    "blocksizes": set[str](),
    "aggregatedblock": {"nodes", "blockindex", "blocksize"},
}
_SIZES: Final = re.compile(r"[0-9]{1,7}(?:,[0-9]{1,7})*")


def parse(text: str) -> Parsed:
    """Switches with levels and parents, or blocks with their sizes, or rings; node lists expanded."""
    notes = Notes()
    names = Names(notes)
    switches: list[Switch] = []
    blocks: list[tuple[str, list[str]]] = []
    rings: list[tuple[str, list[str]]] = []
    sizes: list[int] | None = None
    for line in lines_of(text, notes):
        where = f"line {line.number}"
        first = next(iter(line.values))
        _check_keys(line, first, notes)
        if first == "switchname":
            switches.append(_switch(line, names, where, notes))
        elif first in {"blockname", "ringname"}:
            target = blocks if first == "blockname" else rings
            target.append((line.values[first], _nodes(line, names, where, notes)))
        elif first == "blocksizes":
            sizes = _sizes(line.values[first], sizes, where, notes)
    found = [name for name, what in (("tree", switches), ("block", blocks), ("ring", rings)) if what]
    if len(found) > 1:
        notes.fail("MIXED_PLUGINS", f"one file has lines of {listed(found)}")
        return notes.parsed(Kind.SLURM_TOPOLOGY, {})
    if switches:
        return notes.parsed(Kind.SLURM_TOPOLOGY, describe(switches, notes))
    if rings:
        return notes.parsed(Kind.SLURM_TOPOLOGY, grouped("ring", rings, None, notes))
    if sizes is not None and not blocks:
        shown = ",".join(map(str, sizes))
        notes.fail("NO_BLOCKS", f"BlockSizes={shown}, but there is no BlockName line (all commented out?)")
    elif not blocks:
        notes.fail("NO_TOPOLOGY", "no SwitchName, BlockName or RingName line")
    return notes.parsed(Kind.SLURM_TOPOLOGY, grouped("block", blocks, sizes, notes))


def _check_keys(line: Line, first: str, notes: Notes) -> None:
    known = _KEYS.get(first)
    odd = [key for key in line.values if key != first and key not in (known or ())]
    if known is None:
        notes.gap("UNKNOWN_LINE", f"line {line.number}: {shortened(first)} is not of topology.conf")
    elif odd:
        notes.gap("UNKNOWN_KEY", f"line {line.number}: {listed(odd)} not understood")


def _switch(line: Line, names: Names, where: str, notes: Notes) -> Switch:
    switch = Switch(
        name=line.values["switchname"],
        nodes=tuple(_nodes(line, names, where, notes)),
        children=tuple(names.of(line.get("switches"), where)),
    )
    if not switch.name:
        notes.fail("BAD_LINE", f"{where}: SwitchName is empty")
    return switch


def _nodes(line: Line, names: Names, where: str, notes: Notes) -> list[str]:
    text = line.get("nodes")
    if text and text.upper() == "ALL":
        notes.gap("ALL_NODES", f"{where}: Nodes=ALL cannot be expanded without slurm.conf")
        return []
    return names.of(text, where)


def _sizes(text: str, before: list[int] | None, where: str, notes: Notes) -> list[int]:
    if before is not None or not _SIZES.fullmatch(text):
        notes.fail("BAD_BLOCK_SIZES", f"{where}: BlockSizes={shortened(text, 40)} is no list of sizes, or comes twice")
        return before or []
    return [int(size) for size in text.split(",")]


def grouped(plugin: str, groups: list[tuple[str, list[str]]], sizes: list[int] | None, notes: Notes) -> dict[str, Tree]:
    """The block or ring part of a topology, in the order given; `plugin` is null when there is no group."""
    group_names = [name for name, _ in groups]
    if len(set(group_names)) < len(groups) or "" in group_names:
        notes.fail("DUPLICATE_NAME", f"a {plugin} has no name, or one that another has")
    counts: dict[str, int] = {}
    for _, nodes in groups:
        for node in nodes:
            counts[node] = counts.get(node, 0) + 1
    duplicates = [node for node, count in counts.items() if count > 1]
    if duplicates:
        notes.warn("DUPLICATE_NODES", f"{listed(duplicates)} in more than one {plugin}")
    return {
        "plugin": plugin if groups else None,
        f"{plugin}s": [{"name": name, "nodes": [*nodes]} for name, nodes in groups],
        **({"block_sizes": [*(sizes or [])]} if plugin == "block" else {}),
        "node_count": len(counts),
        "duplicate_nodes": [*duplicates],
    }
