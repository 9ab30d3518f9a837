"""Which NUMA nodes does `numactl --hardware` list, with which CPUs, memory and distances?

Reads what mail programs fold and slides elide; CPUs that are not all shown are unknown, never the visible few.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from reconciler.discovery.parsed import LONGEST_LINE, Kind, Notes, Parsed, failure, listed, shortened
from reconciler.documents.cpulist import parse_cpus, print_cpus
from reconciler.documents.loader import Tree
from reconciler.model.counting import counted

_MOST_NODES: Final = 1024
_MOST_CPUS: Final = 8192
_SELF_DISTANCE: Final = 10  # of a node to itself, by the ACPI specification

_QUOTE: Final = re.compile(r"^(?:[ \t]*[>|])+ ?")
_AVAILABLE: Final = re.compile(r"^available:\s+([0-9]{1,5}) nodes?\s+\(([0-9,-]*)\)")
_NODE: Final = re.compile(r"^node ([0-9]{1,5}) (cpus|size|free):(.*)$")
_MEGABYTES: Final = re.compile(r"([0-9]{1,15}) MB")
_ROW: Final = re.compile(r"^([0-9]{1,5}):((?:\s+[0-9]{1,4})*)$")
_NUMBERS: Final = re.compile(r"^[0-9]{1,5}(?:\s+[0-9]{1,5})*$")


@dataclass(slots=True, kw_only=True)
class _Node:
    cpus: list[str] | None = None  # words as printed
    size_mb: int | None = None
    free_mb: int | None = None


@dataclass(slots=True, kw_only=True)
class _Output:
    declared: tuple[int, ...] | None = None
    nodes: dict[int, _Node] = field(default_factory=dict)
    columns: list[int] = field(default_factory=list)
    rows: dict[int, list[int]] = field(default_factory=dict)
    open_list: list[str] | None = None  # words of the CPU list that the next line may continue
    in_distances: bool = False


def parse(text: str) -> Parsed:
    """Nodes in the order listed, which of them lack CPUs or memory, and the distance matrix."""
    notes = Notes()
    output = _Output()
    for line in text.split("\n"):
        if len(line) > LONGEST_LINE:
            notes.fail("LINE_TOO_LONG", f"a line of {len(line)} characters")
            break
        if not _take(_QUOTE.sub("", line).strip(), output, notes):
            break
    if output.rows and not text.endswith("\n") and len(output.rows) < len(output.columns):
        output.rows.popitem()  # cut: its last number may go on
    if not output.nodes and not notes.errors:
        if "No NUMA available" in text or "no NUMA" in text.lower():
            return failure(
                Kind.NUMACTL, "NO_NUMA", "numactl says NUMA is not available (take it as one node only when asked to)"
            )
        return failure(Kind.NUMACTL, "NO_NODES", "no line such as `node 0 cpus: 0 1 2` was found")
    content = _content(output, notes)
    return notes.parsed(Kind.NUMACTL, {} if notes.errors else content)


def _take(line: str, output: _Output, notes: Notes) -> bool:
    """Reads one line; False at the start of a second output."""
    if available := _AVAILABLE.match(line):
        if output.declared is not None or output.nodes:
            notes.gap("EXTRA_OUTPUT", "the text holds more than one output; only the first is read")
            return False
        output.declared = _ids(available[2], notes)
        if output.declared is not None and len(output.declared) != int(available[1]):
            notes.gap(
                "NODE_COUNT", f"{counted(int(available[1]), 'node')} announced, {len(output.declared)} numbers given"
            )
    elif node := _NODE.match(line):
        return _take_node(int(node[1]), node[2], node[3], output, notes)
    elif line.startswith("node distances"):
        output.open_list, output.in_distances = None, True
    elif output.in_distances:
        _take_distances(line, output, notes)
    elif output.open_list is not None and line and (line[0].isdigit() or line.startswith("...")):
        if len(output.open_list) <= _MOST_CPUS:  # more is no list of CPUs, and refused as such
            output.open_list += line.split()
    elif line:
        output.open_list = None
    return True


def _ids(text: str, notes: Notes) -> tuple[int, ...] | None:
    try:
        return parse_cpus(text)
    except ValueError:
        notes.gap("BAD_NODE_LIST", f"{shortened(text)} is no list of nodes")
        return None


def _take_node(number: int, what: str, rest: str, output: _Output, notes: Notes) -> bool:
    node = output.nodes.setdefault(number, _Node())
    if len(output.nodes) > _MOST_NODES:
        notes.fail("TOO_MANY_NODES", f"more than {_MOST_NODES} nodes")
        return False
    output.open_list = None
    if what == "cpus":
        if node.cpus is not None:
            notes.fail("DUPLICATE_NODE", f"node {number} is listed twice")
            return False
        node.cpus = output.open_list = rest.split()
        return True
    amount = _MEGABYTES.search(rest)
    megabytes = int(amount[1]) if amount else None
    if what == "size":
        node.size_mb = megabytes
    else:
        node.free_mb = megabytes
    return True


def _take_distances(line: str, output: _Output, notes: Notes) -> None:
    """The header, a row, or the rest of one that a mail program folded."""
    if line.startswith("node"):
        words = line.split()[1:]
        output.columns = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) <= 5]
    elif row := _ROW.match(line):
        if int(row[1]) in output.rows:
            notes.gap("BAD_DISTANCES", f"two rows of distances for node {row[1]}")
        elif len(output.rows) < _MOST_NODES:
            output.rows[int(row[1])] = [int(word) for word in row[2].split()]
    elif _NUMBERS.match(line):
        numbers = [int(word) for word in line.split()]
        last = output.rows[next(reversed(output.rows))] if output.rows else output.columns
        if len(last) <= _MOST_NODES:
            last += numbers
    elif line and output.rows:
        output.in_distances = False


def _content(output: _Output, notes: Notes) -> dict[str, Tree]:
    cpus = {
        number: _cpus(number, node, number == [*output.nodes][-1], output, notes)
        for number, node in output.nodes.items()
    }
    _report_gaps(output, notes)
    _report_shared(cpus, notes)
    sizes = {number: node.size_mb for number, node in output.nodes.items()}
    known = [number for number in output.nodes if cpus[number] is not None and sizes[number] is not None]
    nodes: list[Tree] = [
        {
            "id": number,
            "cpus": None if (found := cpus[number]) is None else print_cpus(found),
            "cpu_count": None if found is None else len(found),
            "size_mb": node.size_mb,
            "free_mb": node.free_mb,
        }
        for number, node in output.nodes.items()
    ]
    return {
        "declared_node_ids": None if output.declared is None else [*output.declared],
        "nodes": nodes,
        "memory_only_nodes": [n for n in known if not cpus[n] and sizes[n]],
        "cpu_only_nodes": [n for n in known if cpus[n] and not sizes[n]],
        "empty_nodes": [n for n in known if not cpus[n] and not sizes[n]],
        "distances": _distances(output, notes),
    }


def _cpus(number: int, node: _Node, last: bool, output: _Output, notes: Notes) -> tuple[int, ...] | None:
    """CPUs of a node; None when the list is not there in full."""
    if node.cpus is None:
        return None
    if any("..." in word or word == "…" for word in node.cpus):
        notes.gap("ELIDED", f'"..." in the CPU list of node {number}: its CPUs are unknown')
        return None
    if len(node.cpus) > _MOST_CPUS or not all(
        word.isascii() and word.isdigit() and int(word[:6]) < _MOST_CPUS for word in node.cpus
    ):
        notes.gap("BAD_CPUS", f"the CPU list of node {number} has something that is no CPU number")
        return None
    if last and node.size_mb is None and not output.in_distances:
        notes.gap("TRUNCATED", f"the text ends with the CPU list of node {number}, which may go on")
        return None
    found = sorted({int(word) for word in node.cpus})
    return tuple(found)


def _report_gaps(output: _Output, notes: Notes) -> None:
    listed_nodes = output.nodes
    if output.declared is None:
        notes.gap("NO_DECLARATION", "no line `available: N nodes (...)`: whether all nodes are listed is unknown")
    else:
        missing = [str(n) for n in output.declared if n not in listed_nodes]
        extra = [str(n) for n in listed_nodes if n not in output.declared]
        if missing:
            notes.gap("MISSING_NODES", f"nodes {listed(missing)} declared but not listed")
        if extra:
            notes.gap("UNDECLARED_NODES", f"nodes {listed(extra)} listed but not declared")
    for code, what, lacking in (
        ("NO_CPUS", "CPU list", [str(n) for n, node in listed_nodes.items() if node.cpus is None]),
        ("NO_SIZE", "size", [str(n) for n, node in listed_nodes.items() if node.size_mb is None]),
        ("NO_FREE", "free memory", [str(n) for n, node in listed_nodes.items() if node.free_mb is None]),
    ):
        if lacking:
            notes.gap(code, f"no {what} for node {listed(lacking)}")


def _report_shared(cpus: dict[int, tuple[int, ...] | None], notes: Notes) -> None:
    seen: set[int] = set()
    for number, found in cpus.items():
        if seen.intersection(found or ()):
            notes.warn("SHARED_CPUS", f"CPUs of node {number} are listed under another node too (fake NUMA does that)")
            return
        seen.update(found or ())


def _distances(output: _Output, notes: Notes) -> Tree:
    """Rows of ids x columns; `columns` is there only when rows are missing. None without any complete row."""
    columns = output.columns
    if not columns or not output.rows:
        notes.gap("NO_DISTANCES", "no table of distances")
        return None
    if len(set(columns)) < len(columns) or len(columns) > _MOST_NODES:
        notes.gap("BAD_DISTANCES", "the table of distances names a node twice")
        return None
    good = {
        number: row
        for number, row in output.rows.items()
        if len(row) == len(columns) and number in columns and row[columns.index(number)] == _SELF_DISTANCE
    }
    bad = [str(number) for number in output.rows if number not in good]
    if bad:
        notes.gap("BAD_DISTANCES", f"the row of node {listed(bad)} is incomplete, or its distance to itself is not 10")
    if not good:
        return None
    matrix: list[Tree] = [[*row] for row in good.values()]
    if [*good] == columns:
        return {"ids": [*good], "matrix": matrix}
    if not bad:
        notes.gap("MISSING_DISTANCES", "the table of distances lacks rows")
    return {"ids": [*good], "columns": [*columns], "matrix": matrix}
