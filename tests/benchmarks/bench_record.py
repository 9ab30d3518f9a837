"""What do the record and a quiet round cost at 10,000 nodes, on one core?

Run: ./dev run python tests/benchmarks/bench_record.py [NODES]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from reconciler.model.observed import GpuReport, NodeCondition, NodeObservation, Observed
from reconciler.model.units import SECOND, CommitId, Instant
from reconciler.runtime.generation import (
    Generation,
    Inputs,
    NextGeneration,
    first_generation,
    generation_of,
    next_generation,
)
from tests.planner.worlds import START, job, world

T = TypeVar("T")


def main() -> None:
    """Print a line a measurement: what, how many files, seconds of processor time."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    racks = [[f"gpu-{rack:03}{node:02}" for node in range(20)] for rack in range(count // 20)]
    spines = {
        f"sg{s:03}": {f"r{s + i:04}": racks[s + i] for i in range(min(10, len(racks) - s))}
        for s in range(0, len(racks), 10)
    }
    desired = world(spines, jobs=[job(f"nlp/j{n:05}", 16) for n in range(count // 4)])
    seen = Observed(nodes={node.name: _seen(node.name) for node in desired.inventory.nodes})

    def following(previous: Generation, observed: Observed, second: int) -> NextGeneration:
        return next_generation(
            Inputs(
                desired=desired,
                read=tuple((f"cluster-state/jobs/{key}.yaml", "a" * 40) for key in desired.jobs),
                frozen={},
                observed=observed,
                previous=previous,
                now=Instant(START + second * SECOND),
                trigger="observed",
            )
        )

    _, files = first_generation("test", 1, "c" * 40, START)
    first = measured("decide, place and write all", lambda: following(generation_of("a" * 40, files), seen, 1))
    written = {**files, **{path: content for path, content in first.changes.items() if content is not None}}
    print(f"{'':34} {len(written):7} files")
    placed = first.committed_as(CommitId("b" * 40))
    measured("read all", lambda: generation_of("b" * 40, written))
    measured("a round without a change", lambda: following(placed, seen, 2))
    equal = replace(seen, nodes={name: replace(at) for name, at in seen.nodes.items()})
    measured("the same, from equal reports", lambda: following(placed, equal, 3))


def _seen(name: str) -> NodeObservation:
    return NodeObservation(
        node=name,  # type: ignore[arg-type]  # a NodeName
        boot_id=f"boot-{name}",
        address="10.0.0.1",
        condition=NodeCondition.READY,
        condition_since=START,
        gpu_type="H100",
        gpus=tuple(GpuReport(index=i, uuid=f"GPU-{name}-{i}") for i in range(8)),
    )


def measured(what: str, work: Callable[[], T]) -> T:
    started = time.process_time()
    result = work()
    print(f"{what:34} {time.process_time() - started:7.2f} s")
    return result


if __name__ == "__main__":
    main()
