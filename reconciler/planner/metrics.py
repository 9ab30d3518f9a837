"""The cluster's numbers after a decision: what is declared, usable, held, promised, idle, and how broken up.

Phi counts whole NVLink domains among what is idle and says nothing when nothing is; `idle` and `stranded` beside it
say how much that is. Which of them deserve a commit is for `decide`: none, alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.model.allocation import JobRecord, Metrics
from reconciler.model.units import JobKey
from reconciler.planner.capacity import Supply
from reconciler.topology.fragmentation import stranded_gpus


def metrics_of(supply: Supply, records: Mapping[JobKey, JobRecord]) -> Metrics:
    """Numbers in GPUs. Idle is usable, held by nobody and promised to nobody; promised may still be held by a victim."""
    counts: dict[str, int] = {}
    held = promised = 0
    for record in records.values():
        counts[record.state] = counts.get(record.state, 0) + 1
        held += record.gpus_bound
        promised += len(record.promise.placement.ranks) if record.promise is not None else 0
    engines = supply.engines.values()
    idle_of = {str(kind): engine.free_gpus() for kind, engine in sorted(supply.engines.items())}
    idle = sum(idle_of.values())
    stranded = sum(stranded_gpus(engine) for engine in engines)
    return Metrics(
        declared=sum(len(node.shape.gpus) for node in supply.ground.nodes),
        capacity=sum(mask.bit_count() for mask in supply.usable),
        held=held,
        promised=promised,
        idle=idle,
        stranded=stranded,
        phi_whole=idle - stranded,
        jobs=tuple((str(state), counts[state]) for state in sorted(counts)),
        idle_by_type=tuple(idle_of.items()) if len(idle_of) > 1 else (),
    )
