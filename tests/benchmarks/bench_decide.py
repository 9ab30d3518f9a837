"""How long a whole decision takes: 10,000 nodes, 5,000 running jobs, 10,000 pending ones, rule by rule up to all.

Not a test: `python -m tests.benchmarks.bench_decide [NODES]` prints a line for each set of rules: the first decision,
the next ones, one from memory, and how often the costliest questions were asked. No garbage is collected meanwhile, as
in the loop. Target: 1.0 s; when nothing changed since the last round 50 ms.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from reconciler.model.allocation import Allocation
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.units import Gpus, Instant
from reconciler.planner import admit, explain
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.rights import Rights
from reconciler.planner.still import Decider
from tests.benchmarks.bench_pass import made
from tests.planner.worlds import START, ready

RULES = (
    ("none", "never", "priorityThenAge", False),
    ("conservative", "never", "priorityThenAge", False),
    ("conservative", "reclaim", "priorityThenAge", True),
    ("conservative", "reclaim", "fairShare", False),
    ("conservative", "reclaim", "fairShare", True),
)
ROUNDS = 3
MOST = 60  # rounds until nothing changes any more


def guaranteed(desired: Desired, nodes: int) -> Desired:
    """The same queues, of which a third each are guaranteed nothing, a little, and more than they use."""
    kind, known, rows = desired.inventory.nodes[0].shape.gpu_type, desired.quotas.queues, {}
    for number, name in enumerate(sorted(known)):
        is_team = (known[name].parent or "").startswith("org")
        share = Gpus(nodes * 8 // 300 * (number % 3))
        rows[name] = replace(known[name], guaranteed={kind: share}) if is_team else known[name]
    return replace(desired, quotas=replace(desired.quotas, queues=rows))


def from_memory(desired: Desired, seen: Observed, known: Allocation) -> str:
    """What the loop's rounds cost once nothing changes any more: the first of them, and each one after it."""
    decider, began = Decider(), Instant(START + ROUNDS)
    for number in range(MOST):
        known, before = decider.decide(desired, seen, known, Instant(began + number)).allocation, known
        if known.generation == before.generation:
            known = before
            break
    spent = []
    for number in range(100):
        at = time.process_time()
        decider.decide(desired, seen, known, Instant(began + MOST + number))
        spent.append(time.process_time() - at)
    spent.sort()
    rest = f"p50 {spent[50] * 1000:.2f} ms, p99 {spent[98] * 1000:.2f} ms"
    return f"{rest} (still after {number_of(known)} generations)"


def number_of(known: Allocation) -> int:
    """Generations since the first of `made`."""
    return known.generation - 7


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Counts, inside the block, searches for a place and for victims, claims, and explanations."""
    counts: dict[str, int] = {}
    places = ((Draft, "look"), (Rights, "claim"), (admit, "find_victims"), (explain.Explainer, "blockers"))
    before = [(owner, name, getattr(owner, name)) for owner, name in places]
    for owner, name, asked in before:
        setattr(owner, name, _counting(counts, name, asked))
    try:
        yield counts
    finally:
        for owner, name, asked in before:
            setattr(owner, name, asked)


def _counting(counts: dict[str, int], name: str, asked: Callable[..., object]) -> Callable[..., object]:
    def ask(*args: object, **named: object) -> object:
        counts[name] = counts.get(name, 0) + 1
        return asked(*args, **named)

    return ask


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for mode, others, order, has_guarantees in RULES:
        desired, known = made(nodes, mode, others)
        desired = replace(desired, scheduling=replace(desired.scheduling, order=order))
        desired = guaranteed(desired, nodes) if has_guarantees else desired
        seen = ready(desired, *(r for r in known.jobs.values() if r.placement))
        gc.collect()
        gc.freeze()
        gc.disable()
        told = []
        for number in range(ROUNDS):
            began = time.process_time()
            decision = decide(desired, seen, known, Instant(START + number))
            told.append(f"{(time.process_time() - began) * 1000:.0f} ms ({len(decision.changes)} changes)")
            known = decision.allocation
        told.append(f"from memory {from_memory(desired, seen, known)}")
        with counted() as counts:
            decide(desired, seen, known, Instant(START + ROUNDS))
        asked = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
        rules = f"{mode}, from other queues {others}, {order}, {'with' if has_guarantees else 'no'} guarantees"
        print(f"{nodes} nodes, {rules}: {', '.join(told)}; last round: {asked}", flush=True)
        gc.enable()
        gc.unfreeze()


if __name__ == "__main__":
    main()
