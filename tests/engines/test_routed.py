"""Several engines as one: each has its own nodes, and a rack moves from one to the other when it is empty."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from reconciler.engines.routed import RoutedEngine
from reconciler.errors import EngineUnavailable
from reconciler.model.desired import Desired
from reconciler.model.inventory import AGENTS, SLURM
from reconciler.model.observed import AttemptState, NodeCondition, NodeObservation, Observed
from reconciler.model.units import MINUTE, SECOND, Instant, Nanoseconds, NodeName
from tests.engines.builders import attempt_order, committed_of, desired_of
from tests.engines.contract import JOB, NODES, AgentContract, AgentNodes
from tests.engines.fake import FakeClock, FakeCluster, FakeEngine, FakeNode


class SlurmLike(FakeEngine):
    """A fake whose nodes have boot ids as Slurm's have. `away`: its controller does not answer."""

    away = False

    def observe(self, desired: Desired, now: Instant) -> Observed:
        if self.away:
            raise EngineUnavailable("no controller")
        seen = super().observe(desired, now)
        nodes = {name: replace(node, boot_id="slurm-1000") for name, node in seen.nodes.items()}
        return replace(seen, nodes=nodes)


class Pair:
    """n1 and n2 have agents, n3 is Slurm's, until a test says otherwise."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.agents = FakeEngine(self.clock, FakeCluster(self.clock))
        self.slurm = SlurmLike(self.clock, FakeCluster(self.clock))
        self.made: list[str] = []
        self.engine = RoutedEngine({AGENTS: self._maker(AGENTS), SLURM: self._maker(SLURM)}, threading.Event())

    def desired(self, **engines: str) -> Desired:
        base = desired_of(NODES)
        chosen = {"n1": AGENTS, "n2": AGENTS, "n3": SLURM, **engines}
        nodes = tuple(replace(node, engine=chosen[node.name]) for node in base.inventory.nodes)
        return replace(base, inventory=replace(base.inventory, nodes=nodes))

    def see(self, desired: Desired) -> Mapping[NodeName, NodeObservation]:
        return self.engine.observe(desired, self.clock.now()).nodes

    def _maker(self, name: str) -> Callable[[], FakeEngine]:
        def make() -> FakeEngine:
            self.made.append(name)
            return self.agents if name == AGENTS else self.slurm

        return make


@pytest.fixture
def pair() -> Pair:
    return Pair()


class RoutedWorld(AgentNodes):
    """One engine alone, behind the router: it must not be noticed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        cluster = FakeCluster(self.clock)
        cluster.declare(desired_of(NODES))
        self.inner = FakeEngine(self.clock, cluster)
        self.news = threading.Event()
        self.engine = RoutedEngine({AGENTS: lambda: self.inner}, self.news)
        self.nodes: dict[str, FakeNode] = cluster.nodes

    def sync(self, *names: str) -> None:
        del names
        self.inner._all_call()
        if self.inner._news:
            self.inner._news = False
            self.news.set()


class TestRoutedEngine(AgentContract):
    @pytest.fixture
    def world(self) -> RoutedWorld:
        return RoutedWorld()


def test_each_engine_sees_and_is_told_of_its_own_nodes_alone(pair: Pair) -> None:
    desired = pair.desired()
    pair.engine.start(desired, Observed())
    orders = {"n1": [attempt_order()], "n2": [], "n3": [attempt_order("nlp/other")]}
    pair.engine.apply(committed_of(1, orders))
    seen = pair.see(desired)
    assert sorted(seen) == NODES
    assert sorted(pair.agents.cluster.nodes) == ["n1", "n2"]
    assert sorted(pair.slurm.cluster.nodes) == ["n3"]
    assert {name: [a.job for a in node.attempts] for name, node in seen.items()} == {
        "n1": [JOB], "n2": [], "n3": ["nlp/other"],
    }  # fmt: skip


def test_an_engine_is_made_when_the_first_node_needs_it(pair: Pair) -> None:
    only = pair.desired(n3=AGENTS)
    pair.engine.start(only, Observed())
    pair.engine.apply(committed_of(1, {name: [] for name in NODES}))
    pair.see(only)
    assert pair.made == [AGENTS]
    pair.see(pair.desired())
    assert pair.made == [AGENTS, SLURM]
    assert pair.slurm.applied_generation == 1


def test_a_node_moves_when_no_order_names_an_attempt_on_it(pair: Pair) -> None:
    desired = pair.desired()
    pair.engine.start(desired, Observed())
    pair.engine.apply(committed_of(1, {"n1": [attempt_order()], "n2": [], "n3": []}))
    moving = pair.desired(n1=SLURM)
    seen = pair.see(moving)[NodeName("n1")]
    assert seen.unhealthy == "moves from agents to slurm when it is empty"
    receipt = seen.attempt(JOB, 1)
    assert receipt is not None
    assert receipt.state is AttemptState.PREPARED
    pair.engine.apply(committed_of(2, {"n1": [attempt_order(phase="stop")], "n2": [], "n3": []}))
    receipt = pair.see(moving)[NodeName("n1")].attempt(JOB, 1)
    assert receipt is not None
    assert receipt.state is AttemptState.GONE
    assert "n1" not in pair.slurm.cluster.nodes
    pair.engine.apply(committed_of(3, {name: [] for name in NODES}))
    assert "n1" not in pair.see(moving)  # its new engine has not heard of it yet
    seen = pair.see(moving)[NodeName("n1")]
    assert (seen.boot_id, seen.unhealthy) == ("slurm-1000", "")


def test_after_a_restart_a_node_is_whose_it_was_seen_to_be(pair: Pair) -> None:
    desired = pair.desired()
    pair.engine.start(desired, Observed())
    orders = {"n1": [], "n2": [], "n3": [attempt_order()]}
    pair.engine.apply(committed_of(1, orders))
    committed = pair.engine.observe(desired, pair.clock.now())
    pair.engine.stop()
    moved = pair.desired(n3=AGENTS)
    again = RoutedEngine({AGENTS: lambda: pair.agents, SLURM: lambda: pair.slurm}, threading.Event())
    again.start(moved, committed)
    again.apply(committed_of(1, orders))
    seen = again.observe(moved, pair.clock.now()).nodes[NodeName("n3")]
    assert (seen.boot_id, seen.unhealthy) == ("slurm-1000", "moves from slurm to agents when it is empty")


def test_while_one_engine_is_away_its_nodes_take_nothing_new_and_the_others_go_on(pair: Pair) -> None:
    desired = pair.desired()
    pair.engine.start(desired, Observed())
    pair.see(desired)

    pair.slurm.away = True
    first = pair.see(desired)
    since = pair.clock.now()
    pair.clock.advance(MINUTE)
    assert pair.see(desired) == first
    assert (first[NodeName("n3")].condition, first[NodeName("n3")].condition_since) == (
        NodeCondition.UNREACHABLE,
        since,
    )
    assert first[NodeName("n1")].condition is NodeCondition.READY
    pair.slurm.away = False
    assert pair.see(desired)[NodeName("n3")].condition is NodeCondition.READY


def test_when_no_engine_sees_anything_nothing_is_observed(pair: Pair) -> None:
    desired = pair.desired()
    pair.engine.start(desired, Observed())
    pair.see(desired)
    for node in (*pair.agents.cluster.nodes.values(), *pair.slurm.cluster.nodes.values()):
        node.reachable = False

    pair.slurm.away = True
    pair.clock.advance(Nanoseconds(600 * SECOND))
    with pytest.raises(EngineUnavailable):
        pair.see(desired)
