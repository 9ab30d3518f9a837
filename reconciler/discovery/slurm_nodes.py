"""Which nodes and partitions do the lines of a `slurm.conf` declare, with which CPUs, memory and devices?

Only NodeName, NodeSet and PartitionName lines are read; the many other settings of the file say nothing about nodes.
"""

from __future__ import annotations

import re
from typing import Final

from reconciler.discovery.parsed import Kind, Notes, Parsed, listed, shortened
from reconciler.discovery.slurm_gres import count_of
from reconciler.discovery.slurm_text import Line, Names, lines_of
from reconciler.documents.loader import Tree

_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_TIME: Final = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,8})(?::([0-9]{1,8}))?(?::([0-9]{1,2}))?")
_UNLIMITED: Final = frozenset({"INFINITE", "UNLIMITED"})
_PARENTHESES: Final = re.compile(r"\([^()]*\)")  # sockets: (S:0-1)
_WORD: Final = re.compile(r"[A-Za-z0-9_./-]{1,64}")
_DAY: Final = 86_400


def parse(text: str) -> Parsed:
    """Node groups in order with their defaults applied, and partitions with their nodes expanded."""
    notes = Notes()
    names = Names(notes)
    node_defaults: dict[str, str] = {}
    partition_defaults: dict[str, str] = {}
    nodes: list[Tree] = []
    sets: dict[str, list[str]] = {}
    partitions: list[Line] = []
    for line in lines_of(text, notes):
        if "nodename" in line.values:
            if line.values["nodename"].upper() == "DEFAULT":
                node_defaults |= line.values
            else:
                nodes.append(_node(Line(number=line.number, values={**node_defaults, **line.values}), names, notes))
        elif "nodeset" in line.values:
            sets[line.values["nodeset"]] = names.of(line.get("nodes"), f"line {line.number}")
            if line.get("feature"):
                notes.gap("NODESET_FEATURE", f"line {line.number}: a node set by feature is not expanded")
        elif "partitionname" in line.values:
            if line.values["partitionname"].upper() == "DEFAULT":
                partition_defaults |= line.values
            else:
                partitions.append(Line(number=line.number, values={**partition_defaults, **line.values}))
    if not nodes and not partitions:
        notes.fail("NO_NODES", "no line such as NodeName=gpu[1-8] CPUs=96")
    everywhere = _all_names(nodes, notes)
    shown: list[Tree] = [_partition(line, names, sets, everywhere, notes) for line in partitions]
    content: dict[str, Tree] = {"nodes": nodes, **({"partitions": shown} if shown else {})}
    return notes.parsed(Kind.SLURM_NODES, {} if notes.errors else content)


def _node(line: Line, names: Names, notes: Notes) -> dict[str, Tree]:
    where = f"line {line.number}"
    return {
        "names": [*names.of(line.values["nodename"], where)],
        "cpus": _cpus(line, where, notes),
        "real_memory_mb": _number(line, "realmemory", where, notes),
        "gres": _gres(line.get("gres"), where, notes),
        "state": line.get("state"),
    }


def _number(line: Line, key: str, where: str, notes: Notes) -> int | None:
    text = line.get(key)
    if text is None:
        return None
    if _NUMBER.fullmatch(text):
        return int(text)
    notes.gap("BAD_NUMBER", f"{where}: {key}={shortened(text, 40)} is no whole number")
    return None


def _cpus(line: Line, where: str, notes: Notes) -> int | None:
    """CPUs, or the product of sockets (per board), cores and threads; None when neither is given."""
    if line.get("cpus", "procs"):
        return _number(line, "cpus" if line.get("cpus") else "procs", where, notes)
    sockets = "sockets" if line.get("sockets") else "socketsperboard"
    keys = [sockets, "corespersocket", "threadspercore", *(["boards"] if sockets == "socketsperboard" else [])]
    if not any(line.get(key) for key in keys):
        return None
    product = 1
    for key in keys:
        product *= 1 if (number := _number(line, key, where, notes)) is None else number
    return product


def _gres(text: str | None, where: str, notes: Notes) -> list[Tree]:
    """Devices of `gpu:a100:8(S:0-1),shard:32`; a name alone is one of it."""
    found: list[Tree] = []
    for item in _PARENTHESES.sub("", text).split(",") if text else ():
        words = [word for word in item.split(":") if word != "no_consume"]
        count = count_of(words[-1]) if len(words) > 1 else None
        middle = words[1:-1] if count is not None else words[1:]
        if not _WORD.fullmatch(words[0]) or len(middle) > 1:
            notes.gap("BAD_GRES", f"{where}: {shortened(item, 40)} is not NAME[:TYPE][:COUNT]")
            continue
        found.append({"name": words[0], "type": middle[0] if middle else None, "count": 1 if count is None else count})
    return found


def _all_names(nodes: list[Tree], notes: Notes) -> list[str]:
    """Every declared node once; one that two lines declare is an error, as it is to Slurm."""
    seen: dict[str, None] = {}
    twice: dict[str, None] = {}
    for group in nodes:
        assert isinstance(group, dict)
        assert isinstance(group["names"], list)
        for name in group["names"]:
            (twice if name in seen else seen)[str(name)] = None
    if twice:
        notes.fail("DUPLICATE_NODES", f"{listed(twice)} declared more than once")
    return [*seen]


def _partition(
    line: Line, names: Names, sets: dict[str, list[str]], everywhere: list[str], notes: Notes
) -> dict[str, Tree]:
    where = f"line {line.number}"
    text = line.get("nodes")
    if text and text.upper() == "ALL":
        nodes = names.take(everywhere, where)
    else:
        nodes = [
            node
            for name in names.of(text, where)
            for node in (names.take(sets[name], where) if name in sets else [name])
        ]
    return {
        "name": line.values["partitionname"],
        "nodes": [*nodes],
        "default": (line.get("default") or "").upper() == "YES",
        "max_time_s": _seconds(line.get("maxtime"), where, notes),
    }


def _seconds(text: str | None, where: str, notes: Notes) -> int | None:
    """Seconds of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None when unlimited or not given."""
    if text is None or text.upper() in _UNLIMITED:
        return None
    found = _TIME.fullmatch(text)
    if not found:
        notes.gap("BAD_TIME", f"{where}: MaxTime={shortened(text, 40)} is no time")
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return int(days) * _DAY + hours * 3600 + minutes * 60 + seconds
    if len(numbers) == 1:
        return numbers[0] * 60
    return sum(number * unit for number, unit in zip(reversed(numbers), (1, 60, 3600), strict=False))
