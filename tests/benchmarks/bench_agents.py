"""How soon does a decision reach the agents it concerns, and what do idle ones cost? One real reconciler over real git.

Run: `./dev run python -m tests.benchmarks.bench_agents [AGENTS] [IDLE_SECONDS]`. The agents are simulated in one process
of their own: they call over TLS, obey at once and run nothing. Prints how long after its push a generation had reached
each node, and the CPU of the reconciler (its git included) while nothing happens.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp

from reconciler.engines.agents import AgentEngine, AgentSettings
from reconciler.engines.certificates import issue_node, issue_server, make_ca
from reconciler.model.lifecycle import JobState
from reconciler.model.units import Instant, NodeName
from reconciler.ports import Committed
from reconciler.runtime.clock import SystemClock
from reconciler.runtime.loop import Reconciler
from reconciler.runtime.reading import DesiredReader
from reconciler.store.publish import PublishedMark
from reconciler.store.signatures import make_key
from reconciler.store.statecommit import Writer
from reconciler.wire import SYNC_PATH, decode_answer, encode
from tests.engines.fake import FakeClock, FakeNode
from tests.runtime.lab import CLUSTER, FABRIC, Lab, job_file, job_text
from tests.store.world import new_repository

_A_RACK = 8


def main(agents: int, idle: float) -> None:
    names = [f"gpu-{number:03}" for number in range(1, agents + 1)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        signer = make_key(folder / "signing", "bench")
        lab = Lab(
            folder=folder,
            remote=new_repository(folder / "remote.git"),
            writer=Writer(identity="gangops <gangops@lab>", signer=signer),
        )
        lab.begin(**inventory(agents))
        reconciler, engine, published = reconciler_of(lab, names)
        stop = threading.Event()
        loop = threading.Thread(target=reconciler.run, args=(stop,))
        loop.start()
        _until("the engine listens", lambda: engine.address[1] != 0)
        ours, theirs = multiprocessing.Pipe()
        clients = multiprocessing.get_context("spawn").Process(
            target=_clients, args=(theirs, engine.address[1], str(folder), names)
        )
        clients.start()
        ours.recv()
        _until("all agents are seen", lambda: len(lab.generation().observed.nodes) == agents)
        begun = lab.generation().summary.generation
        play(lab, reconciler, agents)
        used, spent = _idle(idle)
        ours.send("stop")
        arrivals: dict[int, dict[str, float]] = ours.recv()
        clients.join()
        stop.set()
        reconciler.wake()
        loop.join()
    tell(agents, published, {number: at for number, at in arrivals.items() if number > begun}, used / spent)


def inventory(agents: int) -> dict[str, str]:
    racks = [f"r{number:02}" for number in range(1, -(-agents // _A_RACK) + 1)]
    sets = []
    for at, rack in enumerate(racks):
        first, last = at * _A_RACK + 1, min((at + 1) * _A_RACK, agents)
        sets.append(
            f"apiVersion: gangops/v1\nkind: NodeSet\nmetadata: {{name: {rack}}}\n"
            f'spec: {{nodes: "gpu-[{first:03}-{last:03}]", profile: small, rack: {rack}}}\n'
        )
    fabric = FABRIC.replace("{name: r01}, {name: r02}", ", ".join(f"{{name: {rack}}}" for rack in racks))
    return {"cluster-state/fabric/clos.yaml": fabric, "cluster-state/inventory/nodes.yaml": "---\n".join(sets)}


def reconciler_of(lab: Lab, names: list[str]) -> tuple[Reconciler, AgentEngine, dict[int, float]]:
    """A reconciler over TLS, and when it had published each generation."""
    folder, clock, published = lab.folder, SystemClock(), dict[int, float]()
    make_ca(folder / "ca", "bench", clock.now())
    server = issue_server(folder / "ca", ["127.0.0.1"], folder / "server", clock.now())
    for name in names:
        issue_node(folder / "ca", NodeName(name), folder / "nodes", clock.now())
    engine = AgentEngine(
        AgentSettings(certificate=server.certificate, key=server.key, node_ca=server.authority, port=0), clock
    )
    mirror = lab.mirror("one")

    def report(event: str, fields: Mapping[str, object]) -> None:
        if event == "published":
            published[int(str(fields["generation"]))] = time.monotonic()

    reconciler = Reconciler(
        mirror=mirror,
        mark=PublishedMark(folder=folder / "one"),
        writer=lab.writer,
        reader=DesiredReader(mirror.git),
        engine=engine,
        clock=clock,
        cluster_id=CLUSTER,
        report=report,
    )
    apply = engine.apply

    def witness(committed: Committed) -> None:
        published.setdefault(committed.generation, time.monotonic())  # the push is over
        apply(committed)

    engine.apply = witness  # type: ignore[method-assign]  # a witness in front of the real one
    return reconciler, engine, published


def _all_are(lab: Lab, wanted: JobState | None) -> bool:
    return _states(lab) == ({wanted} if wanted else set())


def play(lab: Lab, reconciler: Reconciler, agents: int) -> None:
    """A gang over every node comes and goes, then many small ones."""
    whole = job_file("whole")
    for change, state in (({whole: job_text("whole", 8 * agents)}, JobState.RUNNING), ({whole: None}, None)):
        lab.desire(change)
        reconciler.wake()
        _until("the gang over every node", partial(_all_are, lab, state))
    small = {job_file(f"j{number}"): job_text(f"j{number}", 16) for number in range(agents // 2)}
    lab.desire(small)
    reconciler.wake()
    _until("the small gangs", lambda: _states(lab) == {JobState.RUNNING})


def _states(lab: Lab) -> set[JobState]:
    return {record.state for record in lab.generation().allocation.jobs.values()}


def _until(what: str, reached: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)


def _idle(seconds: float) -> tuple[float, float]:
    """CPU of this process and its git, and how long it really was."""
    time.sleep(5)
    before, began = _cpu(), time.monotonic()
    time.sleep(seconds)
    return _cpu() - before, time.monotonic() - began


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def tell(agents: int, published: dict[int, float], arrivals: dict[int, dict[str, float]], idle: float) -> None:
    taken = []
    for generation, reached in sorted(arrivals.items()):
        if generation in published:
            spans = sorted(at - published[generation] for at in reached.values())
            taken += spans
            print(f"generation {generation:>3}: {len(spans):>4} nodes, the last after {spans[-1]:.2f} s")
    cuts = statistics.quantiles(taken, n=100)
    print(
        f"{agents} agents, {len(taken)} orders: median {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, last {max(taken):.2f} s"
    )
    print(f"idle: {idle:.1%} of a core")


def _clients(pipe: Connection, port: int, folder: str, names: list[str]) -> None:
    asyncio.run(_run_clients(pipe, f"https://127.0.0.1:{port}{SYNC_PATH}", Path(folder), names))


async def _run_clients(pipe: Connection, url: str, folder: Path, names: list[str]) -> None:
    arrivals: dict[int, dict[str, float]] = {}
    gate = asyncio.Semaphore(50)
    tasks = [asyncio.create_task(_agent(url, folder, name, gate, arrivals)) for name in names]
    pipe.send("ready")
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pipe.send(arrivals)


async def _agent(
    url: str, folder: Path, name: str, gate: asyncio.Semaphore, arrivals: dict[int, dict[str, float]]
) -> None:
    context = ssl.create_default_context(cafile=str(folder / "server" / "ca.crt"))
    context.load_cert_chain(folder / "nodes" / f"{name}.crt", folder / "nodes" / f"{name}.key")
    clock = FakeClock(now=Instant(time.time_ns()))
    node = FakeNode(name=name, clock=clock, gpu_type="H100")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        wait = 0
        while True:
            report = replace(node.report(), waitSeconds=wait)
            async with gate if wait == 0 else nullcontext(), session.post(url, data=encode(report)) as response:
                body = await response.read()
                if response.status != 200:
                    await asyncio.sleep(0.5)
                    continue
            answer = decode_answer(body)
            if answer.proof is not None:
                arrivals.setdefault(answer.generation, {})[name] = time.monotonic()
                clock.jump(time.time_ns() - clock.now())
                node.take(1, answer.generation, answer.proof.commitId, answer.proof.file)
            wait = 10


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, float(sys.argv[2]) if len(sys.argv) > 2 else 30)
