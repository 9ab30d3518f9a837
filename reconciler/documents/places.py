"""How a gang's place reads in the record: a row a node, its ranks and their GPUs as folded lists.

A gang of a thousand ranks is a thousand values and would be nine thousand lines; by node it is a screenful, and
`git diff` shows which node changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from reconciler.documents.loader import Tree
from reconciler.documents.values import Form, tree_of, value_of
from reconciler.model.allocation import Placement, RankPlace
from reconciler.model.units import NodeName

_MOST_RANKS = 1 << 20
_T = TypeVar("_T", int, str)


def spans(numbers: Iterable[int], *, shortest: int = 3) -> str:
    """Integers in their order as text, three and more that count up folded: 0,1,2,5 is `0-2,5`; -1 (none) is `x`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1 >= 0:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(_run(run, shortest) for run in runs)


def _run(run: list[int], shortest: int) -> str:
    if len(run) >= shortest:
        return f"{run[0]}-{run[-1]}"
    return ",".join("x" if number < 0 else str(number) for number in run)


def from_spans(text: str) -> list[int]:
    """The integers that `spans` wrote. Raises ValueError for any other text."""
    numbers: list[int] = []
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        start, end = (-1, -1) if part == "x" else (int(first), int(last) if dash else int(first))
        if not start <= end < start + _MOST_RANKS - len(numbers):
            raise ValueError(f"{part[:40]} is no list of ranks")
        numbers.extend(range(start, end + 1))
    return numbers


def _placement_tree(placement: Placement) -> Tree:
    """By node in rank order: the i-th entry of each list belongs to the node's i-th rank, a single one to all."""
    by_node: dict[NodeName, list[RankPlace]] = {}
    for place in placement.ranks:
        by_node.setdefault(place.node, []).append(place)
    tree = tree_of(replace(placement, ranks=()))
    del tree["ranks"]
    tree["nodes"] = [_row(node, places) for node, places in by_node.items()]
    return tree


def _row(node: NodeName, places: list[RankPlace]) -> Tree:
    row: dict[str, Tree] = {
        "node": node,
        "ranks": spans(place.rank for place in places),
        "gpus": spans(place.gpu for place in places),
        "numa": spans(_once([place.numa for place in places])),
        "nics": ",".join(_once([place.nic for place in places])),
        "rails": spans(_once([place.rail for place in places])),
    }
    locals_ = [place.local_rank for place in places]
    if locals_ != list(range(len(places))):
        row["localRanks"] = spans(locals_)
    return row


def _once(values: list[_T]) -> list[_T]:
    return values[:1] if len(set(values)) == 1 else values


def _for_each(values: list[_T], count: int) -> list[_T]:
    return values * count if len(values) == 1 else values


def _read_placement(tree: Tree) -> Placement:
    if not isinstance(tree, dict):
        raise TypeError("a placement is a mapping")
    rows = tree["nodes"]
    if not isinstance(rows, list):
        raise TypeError("the nodes of a placement are a list")
    ranks = sorted((place for row in rows for place in _rank_places(row)), key=lambda place: place.rank)
    bare = value_of(Placement, {**{key: value for key, value in tree.items() if key != "nodes"}, "ranks": []})
    return replace(bare, ranks=tuple(ranks))


def _rank_places(row: Tree) -> Iterator[RankPlace]:
    if not isinstance(row, dict):
        raise TypeError("a node of a placement is a mapping")
    texts = {key: str(value) for key, value in row.items()}
    ranks, gpus = from_spans(texts["ranks"]), from_spans(texts["gpus"])
    numa, rails = (_for_each(from_spans(texts[name]), len(ranks)) for name in ("numa", "rails"))
    nics = _for_each(texts["nics"].split(","), len(ranks))
    locals_ = from_spans(texts["localRanks"]) if "localRanks" in texts else range(len(ranks))
    for rank, gpu, on, nic, rail, local in zip(ranks, gpus, numa, nics, rails, locals_, strict=True):
        yield RankPlace(rank=rank, node=NodeName(texts["node"]), local_rank=local, gpu=gpu, numa=on, nic=nic, rail=rail)


PLACEMENT_FORM = Form(_placement_tree, _read_placement)
