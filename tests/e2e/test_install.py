"""The page for operators, carried out word by word on three hosts: install, upgrade under load, back up, restore."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator

import pytest

from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.observed import NodeCondition
from reconciler.model.units import JobKey, NodeName
from reconciler.runtime.clone import open_clone
from reconciler.runtime.generation import Generation
from tests.e2e.hosts import ROOT, Host, Hosts, blocks_of, carry_out, why_not

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

PAGE = (ROOT / ".github" / "OPERATIONS.md").read_text(encoding="utf-8")
NODES = ("gpu-01", "gpu-02")
REPOSITORY = "acme/cluster.git"
# Two nodes that meet over the network between them: the leader is found by its address.
MEET = """
import os, socket, time
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["NODE_RANK"] == "0":
    with socket.create_server(where) as door:
        door.accept()[0].sendall(b"met")
else:
    while True:
        try:
            with socket.create_connection(where, 5) as line:
                assert line.recv(3) == b"met"
                break
        except ConnectionRefusedError:
            time.sleep(0.1)
"""


class Installation:
    """The hosts, and what the forge knows."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.control = hosts.hosts["control"]

    def step(self, step: str) -> None:
        """Carry out the blocks of a step of the page; there are some."""
        blocks = [block for block in blocks_of(PAGE) if block.step == step]
        assert blocks, f"the page has no step {step!r}"
        for block in blocks:
            carry_out(block, self.hosts.hosts)
            if "gangops init /root/cluster\n" in block.text:  # "edit it": a test is less patient than a cluster
                self.control.sh(
                    "sed -i 's/^spec: {}/spec: {repository: {pollInterval: 1s}, scheduling: {cycleInterval: 1s}, "
                    "agents: {reportInterval: 1s}}/' /root/cluster/cluster-state/cluster.yaml"
                )

    def submit(self, name: str, gpus: int, command: str) -> JobKey:
        text = (
            f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  queue: research\n  gpus: {gpus}\n"
            f"  timeLimit: 1h\n  run:\n    launch: perNode\n    command: {command}\n"
        )
        self.control.write(f"/root/cluster/cluster-state/jobs/research/{name}.yaml", text)
        self.control.sh(f"cd /root/cluster; git add --all; git commit --quiet -m 'Submit {name}'; git push --quiet")
        return JobKey(f"research/{name}")

    def until(self, what: str, holds: Callable[[Generation], bool], seconds: float = 180) -> Generation:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            generation = open_clone(self.hosts.forge / REPOSITORY).generation()
            if holds(generation):
                return generation
            time.sleep(0.3)
        logs = [
            f"{h.name}:\n{h.sh('tail -n 20 /var/log/gangops-*.log', check=False)}" for h in self.hosts.hosts.values()
        ]
        raise AssertionError("\n".join([f"{what}: not within {seconds} s", *logs]))

    def until_said(self, name: str, text: str) -> None:
        """Once a node's agent has logged this."""
        self.until(
            f"{name} says {text!r}", lambda _: text in self.hosts.hosts[name].sh("cat /var/log/gangops-agent.log")
        )

    def where(self, command: str) -> dict[str, list[int]]:
        """The processes of a job's command, by node."""
        return {name: pids for name in NODES if (pids := self.hosts.hosts[name].pids(f"^{command}$"))}


def is_in(job: JobKey, state: JobState, outcome: Outcome | None = None) -> Callable[[Generation], bool]:
    def holds(generation: Generation) -> bool:
        record = generation.allocation.jobs.get(job)
        return record is not None and (record.state, record.outcome) == (state, outcome)

    return holds


def agents_pid(host: Host) -> str:
    return host.sh("cat /run/gangops-agent.pid")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Everything up to the end of Install, by the page's commands and files."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("install")
    with Hosts(folder, ("control", *NODES)) as hosts:
        hosts.install_package("control")
        hosts.make_repository(REPOSITORY)
        made = Installation(hosts)
        made.step("")
        yield made


def is_ready(generation: Generation) -> bool:
    nodes = generation.observed.nodes
    return all(NodeName(n) in nodes and nodes[NodeName(n)].condition is NodeCondition.READY for n in NODES)


def is_raised(generation: Generation, gone: JobKey) -> bool:
    """The record is in its second epoch, and no node says anything of that job."""
    told = {receipt.job for node in generation.observed.nodes.values() for receipt in node.attempts}
    return generation.summary.epoch == 2 and gone not in told


def test_the_page_from_installation_to_restore(installed: Installation) -> None:
    """One story, for each part stands on the one before."""
    at = installed
    # 1. Both nodes enrolled, and the job of the scaffold ran. Their private keys were made there and stayed there.
    at.until("both nodes call in", is_ready)
    at.until("the first job is done", is_in(JobKey("research/hello"), JobState.FINISHED, Outcome.SUCCEEDED))
    at.step("check")
    nodes = json.loads(at.control.sh("curl --silent http://127.0.0.1:9465/live"))["nodes"]
    for name in NODES:
        assert [disk["path"] for disk in nodes[name]["disks"]] == ["/var/lib/gangops-agent", "/fs/logs"]
    assert all("certificateEnds" in nodes[name] for name in NODES)
    for name in NODES:
        assert at.hosts.hosts[name].sh("stat -c '%a %U' /etc/gangops/node.key").split() == ["600", "root"]
    log = at.control.sh("cat /fs/logs/research/hello/1/3.log")
    assert log == "rank 3 of 8\n"
    # 2. A gang over both hosts meets.
    at.control.write("/fs/meet.py", MEET)
    pair = at.submit("pair", 16, "[python3, /fs/meet.py]")
    at.until("the gang has met", is_in(pair, JobState.FINISHED, Outcome.SUCCEEDED))
    # 3. Upgrades leave ranks alone: the same processes, of the same attempt, adopted by other agents.
    long = at.submit("long", 8, "[sleep, '4242']")
    at.until("the long job runs", is_in(long, JobState.RUNNING))
    ranks = at.where("sleep 4242")
    assert [len(pids) for pids in ranks.values()] == [1]
    agents = {name: agents_pid(at.hosts.hosts[name]) for name in NODES}
    at.step("upgrade-reconciler")
    at.step("upgrade-agents")
    assert all(agents_pid(at.hosts.hosts[name]) != pid for name, pid in agents.items())
    (home,) = ranks
    at.until_said(home, f"long#1: adopted, 1 alive (pid {ranks[home][0]})")
    # 4. A backup; after it another job starts, of which the backup knows nothing.
    at.step("backup")
    late = at.submit("late", 8, "[sleep, '4343']")
    seen = at.until("the late job runs", is_in(late, JobState.RUNNING))
    assert seen.allocation.jobs[long].attempt == 1
    assert at.where("sleep 4242") == ranks
    assert at.where("sleep 4343")
    # 5. The forge is lost. From the backup alone the record goes on in another epoch: nodes follow it.
    at.control.sh("systemctl stop gangops-reconciler")
    shutil.rmtree(at.hosts.forge / REPOSITORY)
    at.hosts.make_repository(REPOSITORY)
    at.step("restore-1")
    assert open_clone(at.hosts.forge / REPOSITORY).generation().summary.epoch == 1
    at.step("restore-2")
    after = at.until("the late job is gone", lambda g: is_raised(g, late) and at.where("sleep 4343") == {})
    assert after.allocation.jobs[long].state is JobState.RUNNING
    assert at.where("sleep 4242") == ranks, "what the backup knows runs on"
    # 6. The whole record, over backup and restore, is one that anybody can recompute.
    at.control.sh("cd /root/cluster; git fetch --quiet; git reset --quiet --hard origin/main")
    assert "byte for byte identical" in at.control.sh("/opt/gangops/bin/gangops -C /root/cluster replay --all")
    at.control.sh("/opt/gangops/bin/gangops -C /root/cluster audit verify")
