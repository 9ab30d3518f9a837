"""How long one placement takes, and how many domains it looks at, as the cluster grows.

Not a test: `python tests/benchmarks/bench_placement.py` prints a table. Clusters are filled to about 93 %, racks of
32 nodes, spine groups of 16 racks. Targets at 10,000 nodes: placement p50 <= 5 us, p99 <= 25 us; trial and undo of a
gang of 128 nodes <= 30 us; p50 at 100,000 nodes <= 2x that at 1,000.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable

from reconciler.topology.capacity import Capacity
from reconciler.topology.find import find
from reconciler.topology.request import Placement, Request, request
from reconciler.topology.shortage import NoFit
from reconciler.topology.tree import Tree, build_tree, node_shape

SHAPE = node_shape(8, numa=(0x0F, 0xF0))
RACK, SPINE = 2, 1


def cluster(nodes: int) -> Tree:
    """`nodes` nodes of 8 GPUs in racks of 32, 16 racks a spine group."""
    return build_tree(
        ("cluster", "spineGroup", "rack"),
        [(f"n{i:06}", (f"s{i // 512:04}", f"r{i // 32:05}"), SHAPE) for i in range(nodes)],
    )


def filled(tree: Tree, seed: int = 7) -> Capacity:
    """A cluster in use: gangs and small jobs come and go until it is about 93 % full."""
    chance = random.Random(seed)
    capacity = Capacity(tree)
    sizes = [(1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8)]
    shapes = [request(tree, workers=n, gpus_each=g) for n, g in sizes]
    running = []
    while capacity.free_gpus() * 100 > capacity.gpus * 5:
        placed = find(capacity, chance.choice(shapes))
        if isinstance(placed, NoFit):
            break
        placed.bind(capacity)
        running.append(placed)
    chance.shuffle(running)
    for placed in running:
        if capacity.free_gpus() * 100 >= capacity.gpus * 7:
            break
        placed.release(capacity)
    return capacity


def measure(action: Callable[[], object], rounds: int) -> list[int]:
    """Nanoseconds of each call, sorted."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)


def churn(capacity: Capacity, shapes: list[Request], rounds: int) -> tuple[list[int], list[int], list[int]]:
    """Placement after placement on a changing cluster: times to find, times to bind, visits."""
    chance = random.Random(11)
    running: list[Placement] = []
    found_ns, bound_ns, visits = [], [], []
    for _ in range(rounds):
        asked = chance.choice(shapes)
        start = time.perf_counter_ns()
        placed = find(capacity, asked)
        found_ns.append(time.perf_counter_ns() - start)
        visits.append(capacity.visits)
        if isinstance(placed, NoFit):
            continue
        start = time.perf_counter_ns()
        placed.bind(capacity)
        bound_ns.append(time.perf_counter_ns() - start)
        running.append(placed)
        if len(running) > 20:
            running.pop(chance.randrange(len(running))).release(capacity)
    return sorted(found_ns), sorted(bound_ns), sorted(visits)


def row(name: str, times: list[int], visits: list[int] | None = None) -> str:
    """One line: p50, p99 in microseconds, visits."""
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    line = f"  {name:38} p50 {p50 / 1000:8.2f} us   p99 {p99 / 1000:8.2f} us"
    if visits:
        line += f"   visits p50 {visits[len(visits) // 2]:4} max {visits[-1]:5}"
    return line


def report(nodes: int, rounds: int) -> None:
    """All figures for one cluster size."""
    start = time.perf_counter_ns()
    tree = cluster(nodes)
    built = time.perf_counter_ns() - start
    start = time.perf_counter_ns()
    Capacity(tree)
    engine = time.perf_counter_ns() - start
    capacity = filled(tree)
    print(f"{nodes} nodes: tree {built / 1e6:.1f} ms, engine {engine / 1e6:.1f} ms, {capacity.free_gpus()} GPUs free")
    for name, sizes, preferred in (
        ("1 to 8 GPUs, one worker", [(1, 1), (1, 2), (1, 4), (1, 8)], None),
        ("2 to 8 whole nodes", [(2, 8), (4, 8), (8, 8)], None),
        ("8 to 16 nodes, prefer rack", [(8, 8), (16, 8)], RACK),
        ("32 nodes, prefer rack", [(32, 8)], RACK),
        ("groups of 2 nodes a rack, 16 nodes", [(16, 8)], RACK),
        ("4 workers of 4 GPUs", [(4, 4)], None),
        ("mixed", [(1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8)], None),
    ):
        groups = ((16, RACK),) if name.startswith("groups") else ()
        shapes = [request(tree, workers=n, gpus_each=g, preferred=preferred, groups=groups) for n, g in sizes]
        found, bound, visits = churn(filled(tree), shapes, rounds)
        print(f"{row(f'find: {name}', found, visits)}   placed {len(bound) * 100 // rounds} %")
        if bound and name == "mixed":
            print(row("bind", bound))
    empty = Capacity(tree)
    one = request(tree, workers=1, gpus_each=1)
    gang = request(tree, workers=min(128, nodes), gpus_each=8)
    placed = find(empty, gang)

    def trial_of(asked: Request) -> Callable[[], None]:
        def run() -> None:
            with empty.trial():
                found = find(empty, asked)
                if not isinstance(found, NoFit):
                    found.bind(empty)

        return run

    def undo() -> None:
        with empty.trial():
            if not isinstance(placed, NoFit):
                placed.bind(empty)

    print(row("find: 128 nodes", measure(lambda: find(empty, gang), rounds)))
    print(row("trial and undo: 128 nodes", measure(undo, rounds)))
    print(row("trial, find, undo: 128 nodes", measure(trial_of(gang), rounds)))
    print(row("trial, find, undo: 1 GPU", measure(trial_of(one), rounds)))


if __name__ == "__main__":
    gc.disable()
    for size in [int(arg) for arg in sys.argv[1:]] or [128, 1_000, 10_000, 100_000]:
        report(size, 4_000)
