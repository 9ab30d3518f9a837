"""How costs grow with the cluster: whole decisions, rounds in which nothing happened, and reclaims, p50, p99 and ratios.

Not a test: `python -m tests.benchmarks.bench_growth [NODES ...]` (1,000 and 10,000 unless said) prints a line for each
size and question, with its ratio to the size before. Times are of this process alone. What single placements cost is
for `bench_placement`. Targets: a reclaim of 64 GPUs in a packed cluster of 1,000 nodes 20 ms.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from reconciler.model.units import Instant
from reconciler.planner.decide import decide
from reconciler.planner.preemption import find_victims
from reconciler.planner.rights import Rights
from reconciler.planner.still import Decider
from tests.benchmarks.bench_decide import guaranteed
from tests.benchmarks.bench_pass import made
from tests.benchmarks.packed import KIND, drafted, packed
from tests.planner.worlds import START, pending, ready


def spent(times: int, ask: Callable[[int], object]) -> list[float]:
    """CPU seconds of each asking, sorted."""
    found = []
    for number in range(times):
        began = time.process_time()
        ask(number)
        found.append(time.process_time() - began)
    return sorted(found)


def decisions(nodes: int) -> dict[str, list[float]]:
    """All rules on: deciding afresh round after round, and through the loop's memory once nothing changes."""
    desired, known = made(nodes, "conservative", "reclaim")
    desired = guaranteed(replace(desired, scheduling=replace(desired.scheduling, order="fairShare")), nodes)
    seen = ready(desired, *(record for record in known.jobs.values() if record.placement))
    for number in range(60):
        decision = decide(desired, seen, known, Instant(START + number))
        if not decision.changed:
            break
        known = decision.allocation
    decider, began = Decider(), START + 100
    afresh = spent(5, lambda number: decide(desired, seen, known, Instant(began + number)))
    decider.decide(desired, seen, known, Instant(began))
    still = spent(200, lambda number: decider.decide(desired, seen, known, Instant(began + number)))
    return {"decide": afresh, "nothing happened": still}


def reclaims(nodes: int) -> dict[str, list[float]]:
    """The search for victims of a gang of 64 GPUs, by the size of the gangs that fill the cluster."""
    found = {}
    for each in (8, 4, 1):
        desired, records, asked = packed(nodes, each)
        draft, new = drafted(desired, records), pending(desired, str(asked.key))
        rights = Rights(draft)
        claim = rights.claim(asked, KIND)
        claim.could_ever_help(asked)  # once a decision, for all who ask

        def search(_: int, of: tuple[object, ...] = (draft, new, asked, claim)) -> object:
            return find_victims(of[0], of[1], of[2], KIND, of[3])  # type: ignore[arg-type]  # as they are above

        found[f"reclaim from gangs of {each}"] = spent(30, search)
    return found


def main() -> None:
    sizes = [int(size) for size in sys.argv[1:]] or [1_000, 10_000]
    before: dict[str, float] = {}
    for nodes in sizes:
        gc.collect()
        gc.freeze()
        gc.disable()
        for name, times in {**decisions(nodes), **reclaims(nodes)}.items():
            half, most = times[len(times) // 2], times[-1 - len(times) // 100]
            ratio = f"   x{half / before[name]:.1f}" if name in before else ""
            print(f"{nodes:>7} nodes  {name:<26} p50 {half * 1e3:9.2f} ms  p99 {most * 1e3:9.2f} ms{ratio}", flush=True)
            before[name] = half
        gc.enable()
        gc.unfreeze()


if __name__ == "__main__":
    main()
