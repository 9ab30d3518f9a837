"""What does `rocm-smi --showtopo` say about the links between a node's AMD GPUs?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from reconciler.discovery.groups import joined
from reconciler.discovery.parsed import LONGEST_LINE, Kind, Notes, Parsed, failure, listed, shortened
from reconciler.documents.loader import Tree

_MOST_GPUS: Final = 256
_TITLE: Final = re.compile(r"^=+\s*([^=]*?)\s*=+$")
_GPU: Final = re.compile(r"GPU([0-9]{1,4})")
_NUMA: Final = re.compile(r"GPU(?:\[| )([0-9]{1,4})\]?\s*:\s*\(Topology\)\s*Numa Node\s*:\s*(-?[0-9]{1,5})\s*$")
_INTEGER: Final = re.compile(r"-?[0-9]{1,9}")
_SECTIONS: Final = (("weight between", "weight"), ("hops between", "hops"), ("link type between", "link_type"))

_Matrix = dict[str, list[str]]


def parse(text: str) -> Parsed:
    """Link types, hops and weights between GPUs in the order of the header, NUMA nodes, and XGMI domains."""
    notes = Notes()
    headers, matrices, numa = _sections(text, notes)
    if not headers:
        return failure(Kind.ROCM_TOPO, "NO_MATRIX", "no matrix of links, hops or weights between GPUs was found")
    gpus = next(iter(headers.values()))
    if any(header != gpus for header in headers.values()) or len(set(gpus)) < len(gpus) or len(gpus) > _MOST_GPUS:
        notes.fail("BAD_HEADER", "the matrices name different GPUs, a GPU twice, or too many")
        return notes.parsed(Kind.ROCM_TOPO, {})
    for name, matrix in matrices.items():
        _check(name, gpus, matrix, notes)
    if notes.errors:
        return notes.parsed(Kind.ROCM_TOPO, {})
    for _, name in _SECTIONS:
        if name not in matrices:
            notes.gap("MISSING_SECTION", f"no matrix of {name.replace('_', ' ')}s")
    unknown = [gpu for gpu in gpus if gpu not in numa]
    if unknown:
        notes.gap("NO_NUMA", f"no NUMA node for {listed(unknown)}")
    links = matrices.get("link_type")
    indices = [*range(len(gpus))]
    pairs = [(i, j) for i in indices for j in indices if links and links[gpus[i]][j] == "XGMI"]
    content: dict[str, Tree] = {
        "gpu_count": len(gpus),
        "link_type": [[*links[gpu]] for gpu in gpus] if links else None,
        "hops": _numbers("hops", gpus, matrices.get("hops"), notes),
        "weight": _numbers("weight", gpus, matrices.get("weight"), notes),
        "numa_node": [numa.get(gpu) for gpu in gpus],
        "link_domains": [[*group] for group in joined(indices, pairs)] if links else None,
    }
    return notes.parsed(Kind.ROCM_TOPO, content)


def _sections(text: str, notes: Notes) -> tuple[dict[str, list[str]], dict[str, _Matrix], dict[str, int]]:
    """Header and rows of each matrix, and the NUMA node of each GPU."""
    headers: dict[str, list[str]] = {}
    matrices: dict[str, _Matrix] = {}
    numa: dict[str, int] = {}
    current = ""
    for line in (whole[:LONGEST_LINE] for whole in text.split("\n")):
        words = line.split()
        if title := _TITLE.match(line.strip()):
            current = next((name for words_of, name in _SECTIONS if words_of in title[1].lower()), "")
            if current in headers:
                notes.fail("EXTRA_OUTPUT", "the text holds more than one output")
        elif found := _NUMA.match(line.strip()):
            if numa.setdefault(f"GPU{found[1]}", int(found[2])) != int(found[2]):
                notes.fail("CONTRADICTION", f"GPU{found[1]} has two NUMA nodes")
        elif current and words and all(_GPU.fullmatch(word) for word in words):
            if current not in headers:
                headers[current] = words
                matrices[current] = {}
            elif len(words) == 1:  # a row cut after its name
                matrices[current][words[0]] = []
        elif current in headers and words and _GPU.fullmatch(words[0]):
            if words[0] in matrices[current]:
                notes.fail("DUPLICATE_ROW", f"two rows for {words[0]} in {current}")
            matrices[current][words[0]] = words[1:]
    return headers, matrices, numa


def _check(name: str, gpus: Sequence[str], matrix: _Matrix, notes: Notes) -> None:
    """Every row is there and whole, and both directions agree."""
    short = [gpu for gpu in gpus if len(matrix.get(gpu, ())) != len(gpus)]
    if short or len(matrix) != len(gpus):
        notes.fail("TRUNCATED", f"{name}: rows of {listed(short) or 'other GPUs'} missing, too short or too long")
        return
    for i, one in enumerate(gpus):
        for j, other in enumerate(gpus[:i]):
            if matrix[one][j] != matrix[other][i]:
                there, back = shortened(matrix[one][j], 20), shortened(matrix[other][i], 20)
                notes.fail("ASYMMETRIC", f"{name}: {one}-{other} is {there} but {other}-{one} is {back}")


def _numbers(name: str, gpus: Sequence[str], matrix: _Matrix | None, notes: Notes) -> Tree:
    if matrix is None:
        return None
    rows: list[Tree] = []
    for gpu in gpus:
        cells = [int(word) if _INTEGER.fullmatch(word) else None for word in matrix[gpu]]
        if None in cells:
            notes.gap("BAD_CELL", f"{name}: a cell of {gpu} is no number")
        rows.append([*cells])
    return rows
