"""What does Slurm's `topology.yaml` say: several topologies by name, each a tree, blocks, rings or flat?

Read by the same strict loader as our own documents: one YAML reader, one meaning. Anchors, merge keys and `yes` for
true, which Slurm takes, are refused by name rather than read differently; only `True` and `False`, which Slurm's own
examples have, are put in the loader's spelling first, and only where Slurm expects a boolean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from reconciler.discovery.parsed import MAX_BYTES, Kind, Notes, Parsed, failure, shortened
from reconciler.discovery.slurm_text import Names
from reconciler.discovery.slurm_topology import grouped
from reconciler.discovery.switch_graph import Switch, describe
from reconciler.documents.loader import Limits, Tree, load

_LIMITS: Final = Limits(max_bytes=MAX_BYTES, max_nodes=400_000, max_documents=1)


_CAPITALISED: Final = re.compile(r"^([ -]*(?:cluster_default|flat):[ ]+)(True|TRUE|False|FALSE)(?=[ ]*$)", re.MULTILINE)


def parse(text: str) -> Parsed:
    """The topologies in order: name, whether the cluster's default, then what topology.conf would say."""
    text = _CAPITALISED.sub(lambda found: found[1] + found[2].lower(), text)
    loaded = load(text.encode(), "topology.yaml", _LIMITS)
    notes = Notes()
    for diagnostic in loaded.diagnostics:
        say = notes.fail if diagnostic.is_error else notes.warn
        say("YAML_REFUSED", f"{diagnostic.code} at line {diagnostic.place.line}: {shortened(diagnostic.detail)}")
    if notes.errors:
        return notes.parsed(Kind.SLURM_TOPOLOGY_YAML, {})
    root = loaded.documents[0].value if loaded.documents else None
    if not isinstance(root, list) or not root:
        return failure(Kind.SLURM_TOPOLOGY_YAML, "NO_TOPOLOGY", "no list of topologies")
    names = Names(notes)
    topologies: list[Tree] = []
    for index, entry in enumerate(root, 1):
        if isinstance(entry, dict) and isinstance(entry.get("topology"), str):
            topologies.append(_topology(entry, names, notes))
        else:
            notes.fail("BAD_TOPOLOGY", f"entry {index} has no `topology: NAME`")
    content: dict[str, Tree] = {} if notes.errors and not topologies else {"topologies": topologies}
    return notes.parsed(Kind.SLURM_TOPOLOGY_YAML, content)


def _topology(entry: Mapping[str, Tree], names: Names, notes: Notes) -> dict[str, Tree]:
    name = entry["topology"]
    found = [key for key in entry if key not in {"topology", "cluster_default"}]
    head: dict[str, Tree] = {"name": name, "cluster_default": entry.get("cluster_default") is True}
    if len(found) != 1:
        notes.fail("BAD_TOPOLOGY", f"{shortened(str(name))}: one of tree, block, ring, flat is expected")
        return head
    reader = _PLUGINS.get(found[0])
    body = entry[found[0]]
    if found[0] == "flat":
        return {**head, "plugin": "flat"}
    if reader and not isinstance(body, dict):
        notes.fail("BAD_TOPOLOGY", f"{shortened(str(name))}: {found[0]} is not a mapping")
        return head
    if reader is None or not isinstance(body, dict):
        notes.gap("UNKNOWN_PLUGIN", f"{shortened(str(name))}: {shortened(found[0])} is not read")
        return {**head, "plugin": found[0]}
    return {**head, **reader(body, names, notes)}


def _tree(body: Mapping[str, Tree], names: Names, notes: Notes) -> dict[str, Tree]:
    switches = [
        Switch(
            name=name,
            nodes=tuple(names.of(_text(entry, "nodes", notes), name)),
            children=tuple(names.of(_text(entry, "children", notes), name)),
        )
        for name, entry in _entries(body, "switches", "switch", notes)
    ]
    return describe(switches, notes)


def _block(body: Mapping[str, Tree], names: Names, notes: Notes) -> dict[str, Tree]:
    sizes = body.get("block_sizes", [])
    numbers = [size for size in sizes if type(size) is int] if isinstance(sizes, list) else []
    if not isinstance(sizes, list) or len(numbers) < len(sizes):
        notes.fail("BAD_BLOCK_SIZES", "block_sizes is no list of whole numbers")
    return grouped("block", _groups(body, "blocks", "block", names, notes), numbers, notes)


def _ring(body: Mapping[str, Tree], names: Names, notes: Notes) -> dict[str, Tree]:
    return grouped("ring", _groups(body, "rings", "ring", names, notes), None, notes)


_PLUGINS: Final[dict[str, Callable[[Mapping[str, Tree], Names, Notes], dict[str, Tree]]]] = {
    "tree": _tree,
    "block": _block,
    "ring": _ring,
}


def _groups(body: Mapping[str, Tree], plural: str, one: str, names: Names, notes: Notes) -> list[tuple[str, list[str]]]:
    return [(name, names.of(_text(entry, "nodes", notes), name)) for name, entry in _entries(body, plural, one, notes)]


def _entries(body: Mapping[str, Tree], plural: str, one: str, notes: Notes) -> list[tuple[str, Mapping[str, Tree]]]:
    """Named entries of a list; others are errors."""
    listed = body.get(plural)
    found: list[tuple[str, Mapping[str, Tree]]] = []
    for entry in listed if isinstance(listed, list) else [None]:
        name = entry.get(one) if isinstance(entry, dict) else None
        if isinstance(entry, dict) and isinstance(name, str):
            found.append((name, entry))
            odd = set(entry) - {one, "nodes", "children"}
            if odd:
                notes.gap("UNKNOWN_KEY", f"{shortened(name)}: {shortened(min(odd))} not understood")
        else:
            notes.fail("BAD_TOPOLOGY", f"`{plural}` is a list of entries with `{one}: NAME`")
    return found


def _text(entry: Mapping[str, Tree], key: str, notes: Notes) -> str | None:
    value = entry.get(key)
    if value is None or isinstance(value, str):
        return value
    notes.fail("BAD_TOPOLOGY", f"`{key}` is not a host list")
    return None
