"""A real server with its door for people, a real agent process on one node, and people with keys."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from reconciler.engines.agents import AgentEngine, AgentSettings
from reconciler.engines.certificates import issue_node, issue_server, make_ca
from reconciler.model.observed import Observed
from reconciler.model.units import CommitId, JobKey, Nanoseconds, NodeName
from reconciler.ports import Committed
from reconciler.runtime.admitting import house_of
from reconciler.runtime.clock import SystemClock
from reconciler.runtime.visiting import Door
from reconciler.wire import AttemptOrder, NodeOrders
from tests.engines.builders import desired_of

from .conftest import CLUSTER, NODE, PATIENCE, Agents, StateRepo, make_key

JOB = JobKey("nlp/train")


def holder(user: str, key: Path) -> str:
    """The line that says that this user holds a job."""
    algorithm, content = key.with_suffix(".pub").read_text().split()[:2]
    return f"{user} {algorithm} {content}"


@dataclass
class HouseLab:
    """`told` is what the server put on record. Ada holds the job, Bob has a key and holds nothing."""

    folder: Path
    repo: StateRepo
    agents: Agents
    told: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    generation: int = 0

    def __post_init__(self) -> None:
        clock = SystemClock()
        ca = self.folder / "ca"
        authority = make_ca(ca, "test", clock.now())
        server = issue_server(ca, ["127.0.0.1"], self.folder / "server", clock.now())
        node = issue_node(ca, NodeName(NODE), self.folder / "nodes", clock.now())
        self.ada, self.bob = make_key(self.folder, "ada"), make_key(self.folder, "bob")
        self.holders = [holder("ada", self.ada)]
        self.engine = AgentEngine(
            AgentSettings(
                certificate=server.certificate,
                key=server.key,
                node_ca=server.authority,
                port=0,
                visits=("127.0.0.1", 0),
                house=house_of(CLUSTER, lambda event, fields: self.told.append((event, fields))),
            ),
            clock,
        )
        self.engine.start(desired_of([NODE]), Observed())
        self.authority = authority
        conf = self.agents.conf.read_text()
        for name, path in (("ca.pem", authority), ("node.pem", node.certificate), ("node.key", node.key)):
            conf = conf.replace(name, str(path))
        lines = [
            f"servers = https://127.0.0.1:{self.engine.address[1]}" if line.startswith("servers") else line
            for line in conf.splitlines()
        ]
        self.agents.conf.write_text("\n".join(lines) + "\n")

    def door(self, key: Path | None = None) -> Door:
        assert self.engine.visits_address is not None
        port = self.engine.visits_address[1]
        return Door(server=f"https://127.0.0.1:{port}", authority=self.authority, key=key or self.ada)

    def order(self, *attempts: AttemptOrder, holders: list[str] | None = None) -> None:
        """The next generation, with what the node is to do in it."""
        self.generation += 1
        held = self.holders if holders is None else holders
        orders = NodeOrders(node=NODE, attempts=[replace(a, holders=held) for a in attempts])
        content = json.dumps(asdict(orders), sort_keys=True).encode()
        proof = self.repo.proof(content, self.generation)
        self.engine.apply(
            Committed(
                commit=CommitId(proof.commitId),
                generation=self.generation,
                epoch=1,
                orders={NodeName(NODE): content},
                proof_of=lambda _: proof,
                holders_of=lambda job: self.holders if job == JOB else None,
            )
        )

    def wait_for(self, state: str, attempt: int = 1) -> None:
        """Until the node has said that an attempt is in this state."""
        clock, ends = SystemClock(), time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            seen = self.engine.observe(desired_of([NODE]), clock.now()).nodes.get(NodeName(NODE))
            said = seen.attempt(JOB, attempt) if seen else None
            if said is not None and said.state == state:
                return
            self.engine.wait(Nanoseconds(100_000_000))
        raise AssertionError(f"never {state}: {self.agents.log()}")

    def run(self, order: AttemptOrder) -> None:
        """From nothing to running."""
        self.order(replace(order, phase="prepare"))
        self.wait_for("Prepared", order.attempt)
        self.order(replace(order, phase="run"))
        self.wait_for("Running", order.attempt)

    def close(self) -> None:
        self.engine.stop()
