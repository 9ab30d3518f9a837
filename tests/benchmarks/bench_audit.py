"""How long does `audit verify` take? `python -m tests.benchmarks.bench_audit [DECISIONS] [NODES] [FOLDER]`.

A record made by the real reconciler over pretended nodes, signed commit by commit; then verified with one process and
with two. With FOLDER the record is made there once and kept.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from reconciler.model.units import SECOND
from reconciler.runtime.audit.verify import verify
from reconciler.store.runner import Git
from reconciler.store.signatures import Signer, allowed_signers_line, make_key
from reconciler.store.statecommit import Writer
from tests.runtime.lab import BASE, Lab, job_file, job_text
from tests.store.world import STATE, git, new_repository


def files(nodes: int) -> dict[str, str]:
    """A cluster of racks of ten nodes."""
    racks = range((nodes + 9) // 10)
    sets = (
        f"apiVersion: gangops/v1\nkind: NodeSet\nmetadata: {{name: r{n:02}}}\n"
        f'spec: {{nodes: "gpu-[{n * 10 + 1:03}-{min(nodes, n * 10 + 10):03}]", profile: small, rack: r{n:02}}}\n'
        for n in racks
    )
    fabric = BASE["cluster-state/fabric/clos.yaml"]
    named = ", ".join(f"{{name: r{n:02}}}" for n in racks)
    return {
        **BASE,
        "cluster-state/inventory/nodes.yaml": "---\n".join(sets),
        "cluster-state/fabric/clos.yaml": fabric.replace("racks: [{name: r01}, {name: r02}]", f"racks: [{named}]"),
    }


def make(folder: Path, decisions: int, nodes: int) -> None:
    """The record."""
    writer = Writer(identity="gangops <gangops@lab>", signer=make_key(folder / "key", "lab"))
    lab = Lab(folder=folder, remote=new_repository(folder / "record.git"), writer=writer, files=files(nodes))
    lab.begin(
        **{"cluster-state/trust/allowed_signers": allowed_signers_line("gangops@lab", writer.signer.public_key())}
    )
    desk, rng, live, number = lab.desk(), random.Random(6), list[str](), 0
    while True:
        fresh = {}
        for _ in range(rng.randint(0, 2)):
            number += 1
            fresh[job_file(f"job-{number:04}")] = job_text(f"job-{number:04}", rng.choice((8, 8, 16, 32, 64)))
        gone: dict[str, str | None] = {}
        for name in [name for name in live if rng.random() < 0.1][:3]:
            if desk.engine.cluster.running(f"nlp/{name}"):
                desk.engine.cluster.finish(f"nlp/{name}")
                live.remove(name)
        if number > 150:
            gone = dict.fromkeys([path for path in lab.files if "/jobs/nlp/" in path][: len(fresh)])
        lab.desire({**fresh, **gone})
        live += [path.rpartition("/")[2].removesuffix(".yaml") for path in fresh]
        lab.clock.advance(rng.randint(5, 300) * SECOND)
        for _ in range(4):
            done = desk.round()
            if done.committed is None:
                break
            if done.generation.summary.generation >= decisions:
                return


def main(decisions: int, nodes: int, folder: Path) -> None:
    """Make, verify, print."""
    repository = folder / "record.git"
    if not repository.exists():
        start = time.perf_counter()
        make(folder, decisions, nodes)
        print(f"made {decisions} decisions at {nodes} nodes in {time.perf_counter() - start:.1f} s", flush=True)
    access = Git(folder=repository, bare=True, protocols=frozenset())
    tip = git(repository, "rev-parse", STATE).decode().strip()
    signers = allowed_signers_line("gangops@lab", Signer(key=folder / "key").public_key()).encode()
    for processes in (1, 2):
        start = time.perf_counter()
        result = verify(access, tip, signers=signers, processes=processes)
        spent = time.perf_counter() - start
        print(
            f"verify, {processes} processes: {len(result.judged)} generations, {result.receipts} receipts, {len(result.findings)} findings: {spent:.1f} s"
        )


if __name__ == "__main__":
    wanted, size = (*map(int, sys.argv[1:3]), *(1000, 100)[len(sys.argv[1:3]) :])
    if len(sys.argv) > 3:
        Path(sys.argv[3]).mkdir(parents=True, exist_ok=True)
        main(wanted, size, Path(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory(prefix="gangops-bench-") as made:
            main(wanted, size, Path(made))
