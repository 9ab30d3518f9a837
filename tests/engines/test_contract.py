"""Every engine against the one contract: agents over TLS, real Slurm, and the fake the loop's tests stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.builders import desired_of
from tests.engines.calls import TlsWorld
from tests.engines.contract import NODES, AgentContract, AgentNodes, EngineContract
from tests.engines.fake import FakeClock, FakeCluster, FakeEngine, FakeNode
from tests.engines.slurm_cluster import SlurmCluster
from tests.engines.slurm_world import SlurmWorld


class FakeWorld(AgentNodes):
    """The fake's nodes call in by themselves, so `sync` only lets the engine look."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        cluster = FakeCluster(self.clock)
        cluster.declare(desired_of(NODES))
        self.engine = FakeEngine(self.clock, cluster)
        self.nodes: dict[str, FakeNode] = cluster.nodes

    def sync(self, *names: str) -> None:
        del names
        self.engine._all_call()


class TestAgentEngine(AgentContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[TlsWorld]:
        world = TlsWorld(tmp_path, NODES)
        yield world
        world.close()


class TestFakeEngine(AgentContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()


@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
class TestSlurmEngine(EngineContract):
    @pytest.fixture
    def world(self, slurm: SlurmCluster) -> Iterator[SlurmWorld]:
        world = SlurmWorld(slurm)
        yield world
        world.engine.stop()
