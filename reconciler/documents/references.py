"""Complaints that several parts of the lint have to make in the same words: names that nobody declares, and circles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from reconciler.documents.check import Item
from reconciler.documents.similar import did_you_mean, listed
from reconciler.errors import Diagnostic


def unknown_queue(item: Item, name: str, known: Iterable[str], *path: str | int) -> Diagnostic:
    """A queue is named that no document declares."""
    guess = did_you_mean(name, known)
    return item.problem(
        "UnknownQueue",
        "Queue does not exist",
        f'{item.kind} "{item.name}" names queue "{name}"; no document of kind Queue has that name.',
        *path,
        remedy=f"{guess} Or add it under cluster-state/queues/." if guess else "Add it under cluster-state/queues/.",
    )


def unknown_class(item: Item, name: str, known: Iterable[str], *path: str | int) -> Diagnostic:
    """A priority class is named that no document declares."""
    return item.problem(
        "UnknownPriorityClass",
        "Priority class does not exist",
        f'There is no "{name}"; there are {listed(known)}.',
        *path,
        remedy=did_you_mean(name, known),
    )


def unknown_gpu_type(item: Item, name: str, known: Iterable[str], *path: str | int, of_key: bool = False) -> Diagnostic:
    """A GPU type is named that no profile has."""
    return item.problem(
        "UnknownGpuType",
        "GPU type does not exist",
        f'No NodeProfile has gpuType "{name}"; there are {listed(known)}.',
        *path,
        remedy=did_you_mean(name, known),
        of_key=of_key,
    )


def cycles_of(edges: Mapping[str, Sequence[str | None]] | Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """One cycle of each knot, starting at its first name; sorted."""
    try:
        TopologicalSorter({a: [b for b in targets if b in edges] for a, targets in edges.items()}).prepare()
    except CycleError:
        return sorted(_cycles(edges))
    return []


def _cycles(edges: Mapping[str, Sequence[str | None]] | Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    import networkx as nx  # slow to import, and there hardly ever is a cycle

    graph: Any = nx.DiGraph()
    graph.add_nodes_from(sorted(edges))
    graph.add_edges_from(sorted((a, b) for a, targets in edges.items() for b in targets if b in edges))
    for knot in nx.strongly_connected_components(graph):
        start = min(knot)
        if len(knot) > 1 or graph.has_edge(start, start):
            # Shortest way back, by breadth first over sorted neighbours: the same on every machine.
            yield _way_back(graph, start, frozenset(knot))


def _way_back(graph: Any, start: str, knot: frozenset[str]) -> tuple[str, ...]:
    ways: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    for way in ways:
        for target in sorted(graph.successors(way[-1])):
            if target == start:
                return way
            if target in knot and target not in seen:
                seen.add(target)
                ways.append((*way, target))
    return (start,)
