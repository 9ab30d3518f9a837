"""How long does the preview of a one-job change take on 1,000 nodes with 5,000 jobs, cold and with the parse cache?

Each measurement is a process of its own, from the shell's point of view: `gangops plan --base main --head pull`.
Run: ./dev run python tests/benchmarks/bench_plan.py [NODES JOBS [FOLDER]]; a FOLDER keeps the repository for next time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reconciler.model.units import HOUR  # noqa: E402  after the path is set
from reconciler.store.signatures import make_key  # noqa: E402  after the path is set
from reconciler.store.statecommit import Writer  # noqa: E402  after the path is set
from tests.render.pulls import BASE, NODES_FILE, path, text  # noqa: E402  after the path is set
from tests.runtime.lab import Lab  # noqa: E402  after the path is set
from tests.store.world import new_repository  # noqa: E402  after the path is set

RACK = 32
SIZES = (1, 1, 1, 2, 2, 1, 8, 1)


def main() -> None:
    """Build the cluster, unless it is there; then one line a measurement."""
    nodes, jobs = (int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else (1000, 5000)
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp())
    remote = folder / "remote.git"
    if not remote.exists():
        build(folder, nodes, jobs)
    cache = folder / "cache"
    for attempt in ("cold", "with the parse cache", "with the parse cache", "with the parse cache"):
        measured(attempt, remote, cache)


def build(folder: Path, nodes: int, jobs: int) -> None:
    """Racks of 32 nodes, jobs of 1 to 8 GPUs that fill them and wait, all of it decided and committed."""
    started = time.time()
    racks = -(-nodes // RACK)
    files = {name: content for name, content in BASE.items() if not name.startswith("cluster-state/jobs/")}
    groups = [f"{{name: sg{g}, racks: [{', '.join(f'{{name: r{r:03}}}' for r in range(g * 8, min(racks, g * 8 + 8)))}]}}"
              for g in range(-(-racks // 8))]  # fmt: skip
    fabric = BASE["cluster-state/fabric/clos.yaml"].partition("  spineGroups:")[0]
    files["cluster-state/fabric/clos.yaml"] = fabric + "  spineGroups:\n" + "".join(f"    - {g}\n" for g in groups)
    files[NODES_FILE] = "---\n".join(
        f"apiVersion: gangops/v1\nkind: NodeSet\nmetadata: {{name: r{r:03}}}\nspec: {{nodes: "
        f'"gpu-[{r * RACK + 1:04}-{min(nodes, r * RACK + RACK):04}]", profile: hgx, rack: r{r:03}}}\n'
        for r in range(racks)
    )
    files["cluster-state/queues/tree.yaml"] = (
        BASE["cluster-state/queues/tree.yaml"]
        .replace("guaranteed: {H100: 128}, ceiling: {H100: 224}", "guaranteed: {H100: 4000}")
        .replace("guaranteed: {H100: 64}, ceiling: {H100: 192}", "guaranteed: {H100: 2000}")
    )
    for number in range(jobs):
        name = f"{'nlp' if number % 2 else 'vision'}/job-{number:05}"
        files[path(name)] = text(name, SIZES[number % len(SIZES)], limit=f"{1 + number % 72}h")
    (folder / "key").mkdir(parents=True)
    writer = Writer(identity="gangops <gangops@bench>", signer=make_key(folder / "key/signing", "bench"))
    lab = Lab(folder=folder, remote=new_repository(folder / "remote.git"), writer=writer)
    lab.files = dict(files)
    lab.begin()
    desk = lab.desk()
    desk.settle(40)
    lab.clock.advance(HOUR)
    base = lab.remote.tip("refs/heads/main")
    changed = {**files, path("nlp/one-more"): text("nlp/one-more", 16)}
    lab.remote.commit({p: c.encode() for p, c in changed.items()}, ref="refs/heads/pull", parent=base)
    records = lab.generation().allocation.jobs.values()
    running = sum(record.state.holds_gpus for record in records)
    print(f"built {nodes} nodes, {running} running of {len(records)} jobs in {time.time() - started:.0f} s")


def measured(what: str, remote: Path, cache: Path) -> None:
    """One preview in a process of its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.devnull,
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "reconciler.cli", "-C", str(remote), "plan", "--no-fetch", "--base", "main", "--head",
               "pull", "--at", "2026-01-01T02:00:00Z"]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = after.ru_maxrss // 1024
    closing = next((line for line in done.stdout.splitlines() if line.startswith(("Plan:", "No "))), done.stderr[-300:])
    print(f"{what:22} {spent:5.2f} s, of which {worked:5.2f} s of processor time  {peak:4} MB so far  {closing}")


if __name__ == "__main__":
    main()
