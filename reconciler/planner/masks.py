"""Which GPUs does a record speak of? Those its gang holds, spares included, and those it was promised.

Bit masks by node, nodes in rank order. A gang that stops and goes on elsewhere has both. Whether these GPUs are
declared, healthy or free is for `ground` and `capacity`.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.model.allocation import JobRecord
from reconciler.model.units import NodeName
from reconciler.planner.memo import masks_of


def gang_masks(record: JobRecord) -> Mapping[NodeName, int]:
    """GPU masks by node that the gang holds, spares included; of the place promised to it when it holds none."""
    if record.placement is not None and (record.state.holds_gpus or record.promise is None):
        held = masks_of(record.placement)
        return {**held, **{one.node: one.mask for one in record.spares}} if record.spares else held
    return promised_masks(record)


def promised_masks(record: JobRecord) -> Mapping[NodeName, int]:
    """GPU masks by node of the place promised to the gang; also while it still holds another."""
    return masks_of(record.promise.placement) if record.promise is not None else {}


def added_masks(record: JobRecord) -> Mapping[NodeName, int]:
    """Of the GPUs promised to the gang those that it does not hold already, while it still stops."""
    masks = promised_masks(record)
    if record.placement is None or not record.state.holds_gpus:
        return masks
    held = {**masks_of(record.placement), **{one.node: one.mask for one in record.spares}}
    rest = {node: mask & ~held.get(node, 0) for node, mask in masks.items()}
    return {node: mask for node, mask in rest.items() if mask}
