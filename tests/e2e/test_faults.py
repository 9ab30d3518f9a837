"""Faults of nodes, end to end: agents that hang, links that are cut, ranks that are killed, all of them processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NodeCondition
from reconciler.model.units import NodeName
from reconciler.runtime.demo.stage import Stage
from reconciler.runtime.generation import Generation
from reconciler.runtime.settings import read_settings, settings_text

from .test_cluster import LOW, check_record, state, submit, training

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]


class Cable:
    """A network namespace, and the one link between it and this machine."""

    def __init__(self) -> None:
        self.name = f"gangops{os.getpid() % 100_000}"
        self.here, self.there = f"gh{os.getpid() % 100_000}", f"gn{os.getpid() % 100_000}"
        network = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.our_address, self.its_address = f"{network}.1", f"{network}.2"

    def lay(self) -> bool:
        """Whether this machine lets us."""
        if os.geteuid() != 0 or shutil.which("ip") is None or not self._ip("netns", "add", self.name):
            return False
        return (
            self._ip("link", "add", self.here, "type", "veth", "peer", "name", self.there, "netns", self.name)
            and self._ip("addr", "add", f"{self.our_address}/30", "dev", self.here)
            and self._ip("link", "set", self.here, "up")
            and self._ip("-n", self.name, "addr", "add", f"{self.its_address}/30", "dev", self.there)
            and self._ip("-n", self.name, "link", "set", self.there, "up")
            and self._ip("-n", self.name, "link", "set", "lo", "up")
        )

    def cut(self, how: str) -> None:
        assert self._ip(*self._way(how, "down", "add"))

    def mend(self, how: str) -> None:
        assert self._ip(*self._way(how, "up", "del"))

    def _way(self, how: str, link: str, route: str) -> tuple[str, ...]:
        """The link, or what is sent in one direction."""
        return {
            "both ways": ("link", "set", self.here, link),
            "to the node": ("route", route, "blackhole", f"{self.its_address}/32"),
            "from the node": ("-n", self.name, "route", route, "blackhole", f"{self.our_address}/32"),
        }[how]

    def remove(self) -> None:
        self._ip("netns", "del", self.name)

    def _ip(self, *words: str) -> bool:
        return subprocess.run(["ip", *words], check=False, capture_output=True).returncode == 0


class Wired(Stage):
    """A stage whose first node is in a network namespace of its own."""

    def __init__(self, folder: Path, cable: Cable) -> None:
        super().__init__(folder, racks=1)
        self.cable = cable

    def lay(self) -> None:
        settings = read_settings(self.settings_file)
        port = settings.listen.rpartition(":")[2]
        wide = replace(settings, listen=f"0.0.0.0:{port}", server_names=("127.0.0.1", self.cable.our_address))
        self.settings_file.write_text(settings_text(wide))
        conf = self.folder / "nodes" / self.nodes[0] / "agent.conf"
        text = conf.read_text().replace(f"https://{settings.listen}", f"https://{self.cable.our_address}:{port}")
        conf.write_text(text.replace(f"address = {self.network}.1\n", f"address = {self.cable.its_address}\n"))

    def start_agent(self, node: str) -> None:
        within = ("ip", "netns", "exec", self.cable.name) if node == self.nodes[0] else ()
        self._start_agent(node, *within)


def begun(stage: Stage) -> None:
    stage.start_reconciler()
    stage.start_agents()
    stage.until("agents connect", 120, lambda g: len(g.observed.nodes) == len(stage.nodes))


@pytest.fixture
def stage() -> Iterator[Stage]:
    folder = Path(f"/tmp/gangops-faults-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with Stage(folder, racks=1) as made:
        made.build()
        begun(made)
        yield made
    check_record(made)
    shutil.rmtree(folder)


@pytest.fixture
def wired() -> Iterator[Wired]:
    cable = Cable()
    folder = Path(f"/tmp/gangops-wired-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        if not cable.lay():
            pytest.skip("no network namespaces here")
        folder.mkdir()
        with Wired(folder, cable) as made:
            made.build()
            made.lay()
            begun(made)
            yield made
        check_record(made)
        shutil.rmtree(folder)
    finally:
        cable.remove()


def condition(node: str, wanted: NodeCondition) -> Callable[[Generation], bool]:
    return lambda g: g.observed.nodes[NodeName(node)].condition is wanted


def check_lost_and_found(stage: Stage, node: str, fail: Callable[[], None], heal: Callable[[], None]) -> None:
    """While the node is away its ranks run on and no other attempt begins; then the same ranks are taken up again."""
    ranks = stage.ranks_on(node)
    assert ranks
    fail()
    stage.until("the node is lost", 120, condition(node, NodeCondition.LOST))
    away = stage.until("the gang is not known", 120, state(LOW, JobState.LOST))
    assert away.allocation.jobs[LOW].attempt == 1
    assert stage.ranks_on(node) == ranks
    assert not list(stage.logs.glob(f"{LOW}/2"))
    heal()
    back = stage.until("the gang runs", 120, state(LOW, JobState.RUNNING))
    assert back.allocation.jobs[LOW].attempt == 1
    assert stage.ranks_on(node) == ranks


def test_an_agent_that_hangs_loses_its_node_and_none_of_its_ranks(stage: Stage) -> None:
    submit(stage, LOW, text=training(stage, gpus=32, priority="research"))
    stage.until("low runs", 120, state(LOW, JobState.RUNNING))
    node = stage.nodes[1]
    agent = stage._agents[node].pid
    check_lost_and_found(stage, node, lambda: os.kill(agent, signal.SIGSTOP), lambda: os.kill(agent, signal.SIGCONT))


@pytest.mark.root
def test_a_node_whose_link_is_cut_either_way_keeps_its_ranks_and_nothing_starts_elsewhere(wired: Wired) -> None:
    submit(wired, LOW, text=training(wired, gpus=32, priority="research"))
    wired.until("low runs", 120, state(LOW, JobState.RUNNING))
    for how in ("both ways", "to the node", "from the node"):
        check_lost_and_found(wired, wired.nodes[0], partial(wired.cable.cut, how), partial(wired.cable.mend, how))


def test_a_killed_rank_ends_the_gang_everywhere_and_it_resumes_from_its_checkpoint(stage: Stage) -> None:
    submit(stage, LOW, text=training(stage, gpus=16, priority="research"))
    stage.until("low runs", 120, state(LOW, JobState.RUNNING))
    first = {pid for node in stage.nodes for pid in stage.ranks_on(node)}
    assert len(first) == 2
    os.kill(min(first), signal.SIGKILL)
    again = stage.until(
        "low runs again", 240, lambda g: state(LOW, JobState.RUNNING)(g) and g.allocation.jobs[LOW].attempt == 2
    )
    record = again.allocation.jobs[LOW]
    assert record.failures == 1
    assert not first & {pid for node in stage.nodes for pid in stage.ranks_on(node)}
