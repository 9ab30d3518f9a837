"""A cluster without machines: nodes that obey at once unless told otherwise, an engine over them, a clock that jumps.

`FakeCluster` outlives the engines over it, as nodes outlive a reconciler: start a second `FakeEngine` on the same
cluster to test a restart or a takeover. Everything is deterministic and in one thread. A node that is ordered to use
a GPU which another attempt still uses fails the test at once: that is promise 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.engines.applied import Applied, Standing, next_applied, standing
from reconciler.engines.known import Hearing
from reconciler.engines.sessions import Sessions
from reconciler.model.anomaly import NodeVitals
from reconciler.model.desired import Desired
from reconciler.model.observed import AttemptState, Observed
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import Committed, LiveAttempt
from reconciler.wire import AttemptOrder, AttemptStatus, Refusal, Report, decode_orders

Key = tuple[str, int]

NEW_YEAR = Instant(1_767_225_600 * SECOND)
"""2026-01-01T00:00:00Z, where fake clocks begin."""


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self, now: int = NEW_YEAR, monotonic: int = 1000 * SECOND) -> None:
        self._now, self._monotonic = now, monotonic

    def now(self) -> Instant:
        return Instant(self._now)

    def monotonic(self) -> Nanoseconds:
        return Nanoseconds(self._monotonic)

    def advance(self, span: int) -> None:
        """Both clocks move on by so many nanoseconds."""
        assert span >= 0
        self._now += span
        self._monotonic += span

    def jump(self, span: int) -> None:
        """Only the wall clock jumps, perhaps back."""
        self._now += span


@dataclass
class FakeNode:
    """One node's agent and ranks. Its script is set through the fields and methods; `report` and `take` are its wire.

    `reachable` False: nothing goes in or out, ranks go on. `powered` False: no ranks either. `hung`: it reports, and
    obeys nothing. `late`: it obeys, and its reports are kept back in `undelivered`.
    """

    name: str
    clock: FakeClock
    gpus: int = 8
    gpu_type: str = "h100"
    address: str = "127.0.1.1"
    reachable: bool = True
    powered: bool = True
    hung: bool = False
    late: bool = False
    refuses: str = ""
    refuses_job: str = ""
    unhealthy: str = ""
    boot: int = 1
    session: int = 1
    sequence: int = 0
    accepted: tuple[int, int, str] = (0, 0, "")
    file: bytes = b""
    attempts: dict[Key, AttemptStatus] = field(default_factory=dict)
    orders: dict[Key, AttemptOrder] = field(default_factory=dict)
    broken_gpus: dict[int, str] = field(default_factory=dict)
    foreign_gpus: dict[int, str] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    undelivered: list[Report] = field(default_factory=list)
    last_answer: int = 0

    @property
    def speaks(self) -> bool:
        return self.reachable and self.powered

    def report(self) -> Report:
        """What it says now; each report has the next sequence number."""
        self.sequence += 1
        epoch, generation, commit = self.accepted
        return Report(
            node=self.name,
            bootId=f"boot-{self.name}-{self.boot}",
            session=f"session-{self.name}-{self.session}",
            sequence=self.sequence,
            address=self.address,
            epoch=epoch,
            generation=generation,
            commit=commit,
            fileDigest=hashlib.sha256(self.file).hexdigest() if self.file else "",
            unhealthy=self.unhealthy,
            hardware=self.hardware(),
            attempts=[self.attempts[key] for key in sorted(self.attempts)],
            refusals=list(self.refusals),
            waitSeconds=0,
            agentVersion="fake",
        )

    def hardware(self) -> dict[str, Any]:
        gpus = [
            {
                "index": i,
                "uuid": f"GPU-{self.name}-{i}",
                "healthy": i not in self.broken_gpus,
                "reason": self.broken_gpus.get(i, ""),
                "foreign": self.foreign_gpus.get(i, ""),
            }
            for i in range(self.gpus)
        ]
        return {"gpuType": self.gpu_type, "gpus": gpus}

    def take(self, epoch: int, generation: int, commit: str, file: bytes) -> None:
        """Accept an orders file and obey it. An older one is a broken fence and fails the test."""
        assert (epoch, generation) >= self.accepted[:2], f"{self.name} was handed an older generation"
        self.accepted, self.file = (epoch, generation, commit), file
        self.orders = {(o.job, o.attempt): o for o in decode_orders(file).attempts}
        self.obey()

    def obey(self) -> None:
        """Do what the present orders say, as far as the script lets it."""
        for key, order in sorted(self.orders.items()):
            before = self.attempts.get(key)
            if before is None or not AttemptState(before.state).released:
                self._obey(key, order, before)
        for key in [k for k in self.attempts if k not in self.orders and AttemptState(self.attempts[k].state).released]:
            del self.attempts[key]
        for key in [k for k in self.attempts if k not in self.orders]:  # what nobody orders any more is stopped
            self._enter(key, AttemptState.STOPPING if self.hung else AttemptState.GONE)

    def _obey(self, key: Key, order: AttemptOrder, before: AttemptStatus | None) -> None:
        state = None if before is None else AttemptState(before.state)
        if order.phase == "prepare" and state in (None, AttemptState.PREPARING):
            self._prepare(key, order)
        elif order.phase == "run" and state is None:
            self._enter(key, AttemptState.GONE, reason="NotPrepared")
        elif order.phase == "run" and state is AttemptState.PREPARED and not self.hung:
            self._enter(key, AttemptState.RUNNING)
        elif order.phase in ("checkpoint", "stop") and state is not AttemptState.KILL_FAILED:
            self._stop(key, order, state)

    def _prepare(self, key: Key, order: AttemptOrder) -> None:
        self._check_gpus_free(key, order)
        if self.refuses and self.refuses_job in ("", order.job):
            self._enter(key, AttemptState.REFUSED, reason=self.refuses)
        else:
            self._enter(key, AttemptState.PREPARING if self.hung else AttemptState.PREPARED)

    def _stop(self, key: Key, order: AttemptOrder, state: AttemptState | None) -> None:
        if self.hung and state is not None:
            self._enter(key, AttemptState.STOPPING)
            return
        running = state in (AttemptState.RUNNING, AttemptState.STOPPING)
        if running and order.phase == "checkpoint" and order.checkpoint is not None:
            self.attempts[key] = replace(self.attempts[key], checkpoint=self.clock.now())
        self._enter(key, AttemptState.GONE)

    def _enter(self, key: Key, state: AttemptState, *, reason: str = "", exit_code: int | None = None) -> None:
        before = self.attempts.get(key)
        if before is not None and before.state == state:
            return
        entered = AttemptStatus(
            job=key[0],
            attempt=key[1],
            state=state,
            at=self.clock.now(),
            generation=self.accepted[1],
            commit=self.accepted[2],
            exitCode=exit_code,
            reason=reason,
            checkpoint=before.checkpoint if before else None,
            progress=before.progress if before else {},
        )
        self.attempts[key] = entered

    def _check_gpus_free(self, key: Key, order: AttemptOrder) -> None:
        wanted = {rank.gpu for rank in order.ranks}
        for other, status in self.attempts.items():
            held = {rank.gpu for rank in self.orders[other].ranks} if other in self.orders else set()
            shared = wanted & held
            assert other == key or AttemptState(status.state).released or not shared, (
                f"{self.name}: {key} is to use GPUs {sorted(shared)}, which {other} still has"
            )

    def end(self, key: Key, exit_code: int) -> None:
        """The attempt's processes end by themselves."""
        self._enter(key, AttemptState.EXITED, exit_code=exit_code)

    def reboot(self) -> None:
        """Power on again: another boot, no ranks, an agent that knows its journal and nothing of the attempts."""
        self.boot += 1
        self.session += 1
        self.sequence = 0
        self.attempts.clear()
        self.powered = self.reachable = True

    def restart_agent(self) -> None:
        """The agent alone starts anew: another session, the same ranks."""
        self.session += 1
        self.sequence = 0

    def expire_leases(self) -> None:
        """Shims whose lease ran out without an answer have killed their ranks, whoever sees it."""
        for key, order in self.orders.items():
            status = self.attempts.get(key)
            if status is None or order.fence != "lease" or AttemptState(status.state).released:
                continue
            if self.clock.monotonic() > self.last_answer + order.leaseSeconds * SECOND:
                self._enter(key, AttemptState.GONE, reason="LeaseExpired")


class FakeCluster:
    """The nodes, and the verbs of a test's script. A node appears when an engine starts on an inventory with it."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.nodes: dict[str, FakeNode] = {}
        self._listeners = 0

    def declare(self, desired: Desired) -> None:
        """Make the nodes of the inventory that do not exist yet."""
        for number, node in enumerate(desired.inventory.nodes, start=len(self.nodes) + 1):
            if node.name not in self.nodes:
                self.nodes[node.name] = FakeNode(
                    name=node.name,
                    clock=self.clock,
                    gpus=len(node.shape.gpus),
                    gpu_type=node.shape.gpu_type,
                    address=f"127.0.1.{number}",
                )

    def listened(self) -> None:
        """An engine begins to answer. Leases ran on while none did."""
        for node in self.nodes.values():
            if self._listeners == 0 and node.speaks:
                node.expire_leases()
        self._listeners += 1

    def unlistened(self) -> None:
        """An engine answers no more."""
        self._listeners -= 1
        for node in self.nodes.values():
            self._last_answered(node)

    def _last_answered(self, node: FakeNode) -> None:
        """A node that can be heard was answered until this moment, however far a test moved the clock at once."""
        if node.speaks:
            node.last_answer = self.clock.monotonic()

    def running(self, job: str) -> dict[str, Key]:
        """The attempt of the job that runs (or is stopping), by node."""
        busy = (AttemptState.RUNNING, AttemptState.STOPPING)
        return {
            name: key
            for name, node in sorted(self.nodes.items())
            for key, status in node.attempts.items()
            if key[0] == job and status.state in busy
        }

    def finish(self, job: str, exit_code: int = 0, *, node: str = "") -> None:
        """The job's processes end by themselves, on one node or on all."""
        found = self.running(job)
        assert found, f"{job} does not run"
        for name, key in found.items():
            if node in ("", name):
                self.nodes[name].end(key, exit_code)

    def checkpoint(self, job: str) -> None:
        """The job writes a checkpoint now."""
        self._change(job, lambda status: replace(status, checkpoint=self.clock.now()))

    def beat(self, job: str, **progress: Any) -> None:
        """The job writes a heartbeat line."""
        self._change(job, lambda status: replace(status, progress=progress))

    def lose(self, node: str) -> None:
        """The node falls silent; its ranks go on (until their lease ends, if they have one)."""
        if self._listeners:
            self._last_answered(self.nodes[node])
        self.nodes[node].reachable = False

    def restore(self, node: str) -> None:
        """The node can be heard again."""
        if not self.nodes[node].speaks:
            self.nodes[node].expire_leases()
        self.nodes[node].reachable = True

    def power_off(self, node: str) -> None:
        """The machine is gone, with everything that ran on it."""
        self.nodes[node].powered = False

    def reboot(self, node: str) -> None:
        """The machine is back with another boot id."""
        self.nodes[node].reboot()

    def refuse(self, node: str, reason: str, *, job: str = "") -> None:
        """The node will not prepare (this job, or any); "" lets it again."""
        self.nodes[node].refuses, self.nodes[node].refuses_job = reason, job

    def distrust(self, node: str, *refusals: Refusal) -> None:
        """What the node says of orders it does not believe; it accepts them nevertheless."""
        self.nodes[node].refusals = list(refusals)

    def hang(self, node: str) -> None:
        """The node reports and obeys nothing more: no prepare ends, no stop ends."""
        self.nodes[node].hung = True

    def unhang(self, node: str) -> None:
        """The node obeys again."""
        self.nodes[node].hung = False

    def kill_fails(self, node: str, job: str) -> None:
        """The job's processes on the node cannot be killed."""
        key = self.running(job)[node]
        self.nodes[node]._enter(key, AttemptState.KILL_FAILED, reason="KillFailed")

    def delay(self, node: str) -> None:
        """The node's reports are on their way for long; it obeys meanwhile."""
        self.nodes[node].late = True

    def deliver(self, node: str) -> None:
        """The delayed reports arrive, in order."""
        self.nodes[node].late = False

    def break_gpu(self, node: str, index: int, reason: str = "Xid 79") -> None:
        self.nodes[node].broken_gpus[index] = reason

    def _change(self, job: str, change: Callable[[AttemptStatus], AttemptStatus]) -> None:
        found = self.running(job)
        assert found, f"{job} does not run"
        for name, key in found.items():
            self.nodes[name].attempts[key] = change(self.nodes[name].attempts[key])


class FakeEngine:
    """`ports.Engine` over a `FakeCluster`. Nodes call in at every `apply`, `observe` and `wait`.

    `wait` without news moves the clock on by its whole timeout. `calls` names what the loop asked for, in order.
    """

    def __init__(self, clock: FakeClock, cluster: FakeCluster | None = None) -> None:
        self.clock = clock
        self.cluster = cluster or FakeCluster(clock)
        self.calls: list[str] = []
        self._sessions = Sessions(clock)
        self._applied: Applied | None = None
        self._news = False
        self._listening = False
        self.deaf = False
        """No call reaches this engine: its link is down, or all nodes call another reconciler."""

    @property
    def applied_generation(self) -> int:
        """The generation nodes are to act on, -1 before the first."""
        return self._applied.committed.generation if self._applied else -1

    def start(self, desired: Desired, observed: Observed) -> None:
        self.calls.append("start")
        self.cluster.declare(desired)
        self._sessions.begin(desired, observed)
        self.cluster.listened()
        self._listening = True
        self._all_call()

    def apply(self, committed: Committed) -> None:
        self.calls.append(f"apply {committed.generation}")
        applied = next_applied(committed, self._applied)
        if applied is not self._applied:
            self._applied = applied
            self._sessions.apply(applied)
        self._all_call()

    def follow(self, observed: Observed) -> None:
        self.calls.append("follow")
        self._sessions.follow(observed)

    def leads(self) -> bool:
        self._all_call()
        return self._sessions.leads

    def observe(self, desired: Desired, now: Instant) -> Observed:
        self.calls.append("observe")
        self.cluster.declare(desired)
        self._all_call()
        return self._sessions.observe(desired, now)

    def live(self) -> Mapping[JobKey, LiveAttempt]:
        return self._sessions.live()

    def visits(self) -> Mapping[str, int]:
        return {}

    def rejected(self) -> Mapping[str, int]:
        return {}

    def vitals(self) -> Mapping[NodeName, NodeVitals]:
        return self._sessions.vitals()

    def wait(self, timeout: Nanoseconds) -> bool:
        self._all_call()
        if not self._news:
            self.clock.advance(timeout)
            return False
        self._news = False
        return True

    def wake(self) -> None:
        self._news = True

    def stop(self) -> None:
        self.calls.append("stop")
        if self._listening:
            self.cluster.unlistened()
        self._listening = False

    def _all_call(self) -> None:
        for name in sorted(self.cluster.nodes):
            if self._listening and not self.deaf and self._sessions.admits(NodeName(name)):
                self._call(self.cluster.nodes[name])

    def _call(self, node: FakeNode) -> None:
        """One node's calls until it has nothing new to say: report, take orders, obey, report."""
        if not node.speaks:
            return
        node.obey()
        for _ in range(2):
            report = node.report()
            node.undelivered.append(report)
            if not node.late:
                for waiting in node.undelivered:
                    self._news |= self._sessions.hear(waiting) is Hearing.NEWS
                node.undelivered.clear()
            self._answer(node, report)

    def _answer(self, node: FakeNode, report: Report) -> None:
        where = standing(self._applied, report)
        if self._applied is None or where is Standing.AHEAD or self._sessions.withholds(NodeName(node.name)):
            return
        committed = self._applied.committed
        if where is Standing.DUE:
            proof = committed.proof_of(NodeName(node.name))
            node.take(committed.epoch, committed.generation, committed.commit, proof.file)
        node.last_answer = self.clock.monotonic()
        self._sessions.grant(NodeName(node.name), self._applied.lease_seconds(NodeName(node.name)))
