"""What do agents cost the server? Sessions that call every few seconds over TLS, from a process of their own.

Run: `./dev run python -m tests.benchmarks.bench_sync [SESSIONS] [SECONDS]`. Prints calls, CPU of the server's
process a call, and how long an apply that concerns every node takes to reach the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import resource
import ssl
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp

from reconciler.engines.agents import AgentEngine, AgentSettings
from reconciler.engines.certificates import issue_node, issue_server, make_ca
from reconciler.model.observed import Observed
from reconciler.model.units import Instant, Nanoseconds, NodeName
from reconciler.wire import SYNC_PATH, decode_answer, encode
from tests.engines.builders import RULES, attempt_order, committed_of, desired_of
from tests.engines.fake import FakeClock, FakeNode


class _RealClock:
    def now(self) -> Instant:
        return Instant(time.time_ns())

    def monotonic(self) -> Nanoseconds:
        return Nanoseconds(time.clock_gettime_ns(time.CLOCK_BOOTTIME))


def main(sessions: int, seconds: float) -> None:
    names = [f"n{i:04}" for i in range(sessions)]
    with tempfile.TemporaryDirectory() as temporary:
        folder, now = Path(temporary), _RealClock().now()
        make_ca(folder / "ca", "bench", now)
        server = issue_server(folder / "ca", ["127.0.0.1"], folder / "server", now)
        for name in names:
            issue_node(folder / "ca", NodeName(name), folder / "nodes", now)
        engine = AgentEngine(
            AgentSettings(certificate=server.certificate, key=server.key, node_ca=server.authority, port=0),
            _RealClock(),
        )
        desired = desired_of(names, rules=RULES)
        engine.start(desired, Observed())
        engine.apply(committed_of(1, {n: [] for n in names}))
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        clients = context.Process(target=_clients, args=(theirs, engine.address[1], str(folder), names))
        clients.start()
        ours.recv()  # all are connected and hold generation 1
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        looks = 0
        while time.monotonic() - began < seconds:
            engine.wait(RULES.report_interval)
            engine.observe(desired, _RealClock().now())
            looks += 1
        after, spent = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
        applied = time.monotonic()
        engine.apply(committed_of(2, {n: [attempt_order()] for n in names}))
        applied_cost = time.monotonic() - applied
        ours.send("stop")
        calls, last = ours.recv()
        clients.join()
        engine.stop()
    cpu = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    print(f"{sessions} sessions, {spent:.0f} s: {calls} calls ({calls / spent:.0f}/s), {looks} observations")
    print(f"server CPU {cpu:.2f} s = {cpu / spent:.1%} of a core, {cpu / max(calls, 1) * 1e3:.2f} ms a call")
    print(f"memory peak {after.ru_maxrss / 1024:.0f} MiB")
    print(
        f"apply returned in {applied_cost * 1e3:.1f} ms, the last node had its orders {last - applied:.2f} s after it"
    )


def _clients(pipe: Connection, port: int, folder: str, names: list[str]) -> None:
    asyncio.run(_run_clients(pipe, f"https://127.0.0.1:{port}{SYNC_PATH}", Path(folder), names))


async def _run_clients(pipe: Connection, url: str, folder: Path, names: list[str]) -> None:
    counted = {"calls": 0}
    ready, got_two = asyncio.Semaphore(0), asyncio.Semaphore(0)
    gate = asyncio.Semaphore(50)
    tasks = [asyncio.create_task(_client(url, folder, name, gate, ready, got_two, counted)) for name in names]
    for _ in names:
        await ready.acquire()
    counted["calls"] = 0
    pipe.send("ready")
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    calls = counted["calls"]
    for _ in names:
        await got_two.acquire()
    pipe.send((calls, time.monotonic()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _client(
    url: str,
    folder: Path,
    name: str,
    gate: asyncio.Semaphore,
    ready: asyncio.Semaphore,
    got_two: asyncio.Semaphore,
    counted: dict[str, int],
) -> None:
    context = ssl.create_default_context(cafile=str(folder / "server" / "ca.crt"))
    context.load_cert_chain(folder / "nodes" / f"{name}.crt", folder / "nodes" / f"{name}.key")
    node = FakeNode(name=name, clock=FakeClock())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        wait = 0
        while True:
            report = replace(node.report(), waitSeconds=wait)
            async with (
                gate if wait == 0 else contextlib.nullcontext(),
                session.post(url, data=encode(report)) as response,
            ):
                answer = decode_answer(await response.read())
            counted["calls"] += 1
            if answer.proof is not None:
                epoch = json.loads(answer.proof.commit)["epoch"]
                node.take(epoch, answer.generation, answer.proof.commitId, answer.proof.file)
                (ready if answer.generation == 1 else got_two).release()
            wait = 20


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, float(sys.argv[2]) if len(sys.argv) > 2 else 15)
