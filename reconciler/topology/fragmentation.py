"""How broken up the idle GPUs are.

Phi = 1 - sum(floor(U_k / g_k) * g_k) / sum(U_k) over NVLink domains k with U_k idle of g_k own GPUs: 0 when every idle
domain is whole, 1 when none is. It says nothing when little is idle, so show the stranded GPUs beside it. All
shares are exact pairs (numerator, denominator); division is for display. Idle GPUs of excluded nodes are not counted.
The engine keeps the sums, so the first two answers are O(1).
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.topology.capacity import Capacity


def phi(capacity: Capacity) -> tuple[int, int]:
    """Phi of the pool as (stranded, idle); (0, 1) when nothing is idle."""
    idle = capacity.free_gpus()
    return (idle - capacity.idle_unbroken, idle) if idle else (0, 1)


def stranded_gpus(capacity: Capacity) -> int:
    """Idle GPUs in NVLink domains that are not wholly idle."""
    return capacity.free_gpus() - capacity.idle_unbroken


def phi_of(domains: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Phi from scratch, from (idle, own GPUs) of each NVLink domain; for several pools together, and for checks."""
    idle = whole = 0
    for free, size in domains:
        idle += free
        whole += free // size * size
    return (idle - whole, idle) if idle else (0, 1)


def nvlink_domains(capacity: Capacity) -> list[tuple[int, int]]:
    """(idle, own GPUs) of each NVLink domain of the pool, by going through all nodes."""
    tree = capacity.tree
    blocks: dict[tuple[int, int], tuple[int, int]] = {}
    for node in range(len(tree.nodes)):
        if not capacity.size_of(node):
            continue
        free = 0 if node in capacity.excluded else capacity.free_mask(node)
        for number, island in enumerate(tree.shapes[tree.shape_of[node]].nvlink):
            block = (node, number)
            if capacity.block_level is not None:
                block = (tree.domain_of(node, capacity.block_level), 0)
            idle, size = blocks.get(block, (0, 0))
            blocks[block] = (idle + (free & island).bit_count(), size + island.bit_count())
    return [blocks[block] for block in sorted(blocks)]
