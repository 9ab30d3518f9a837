"""Which GPUs of one node a worker gets: the tightest NVLink island, in it the tightest NUMA part, lowest numbers first.

Pure function of the node's shape and its free GPUs; answers are remembered by the engine, so in a steady state this
is one look-up in a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.topology.capacity import Capacity
from reconciler.topology.tree import GpuMask, NodeIndex, NodeShape, lowest_bits


def choose(capacity: Capacity, node: NodeIndex, count: int, share: int = 1) -> GpuMask:
    """`count` of the free GPUs of a node. `share` > 1: in pieces of `share` GPUs that each share NVLink.

    The caller knows that they fit (`UnitIndex.units_of`).
    """
    free = capacity.partly.get(node) or capacity.free_mask(node)
    shape = capacity.tree.shape_of[node]
    key = (shape, free, count, share)
    chosen = capacity.chosen.get(key)
    if chosen is None:
        chosen = capacity.chosen[key] = tightest_gpus(capacity.tree.shapes[shape], free, count, share)
    return chosen


def tightest_gpus(shape: NodeShape, free: GpuMask, count: int, share: int = 1) -> GpuMask:
    """See `choose`, without the memory."""
    mask = 0
    for island, amount in _split([free & island for island in shape.nvlink], count, share):
        for numa, part in _split([island & numa for numa in shape.numa], amount, 1):
            mask |= lowest_bits(numa, part)
    return mask


def _split(regions: Sequence[GpuMask], count: int, step: int) -> list[tuple[GpuMask, int]]:
    """Cut `count` GPUs into few regions, in multiples of `step`: one that fits tightest, else largest first."""
    cuts, left = [], count
    room = {index: region.bit_count() // step * step for index, region in enumerate(regions)}
    while left:
        fitting = [(size, index) for index, size in room.items() if size >= left]
        _, index = min(fitting) if fitting else max((size, -index) for index, size in room.items())
        index = abs(index)
        amount = min(left, room.pop(index))
        cuts.append((regions[index], amount))
        left -= amount
    return cuts
