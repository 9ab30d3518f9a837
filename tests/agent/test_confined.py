"""What a rank cannot do, whatever it tries: real ranks of a real agent that is root, on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.agent.conf import Conf, read_conf
from reconciler.agent.limits import refusal
from reconciler.agent.sight import last_line
from reconciler.wire import AttemptOrder

from .conftest import PATIENCE, Agents, Hub, StateRepo, running
from .test_run import started, until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def conf(agents: Agents) -> Conf:
    return read_conf(agents.conf)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can get to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def said(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, shared: Path, script: str, **run: Any
) -> list[str]:
    """What rank 0 prints when it runs the script as nobody, to its end."""
    agents.conf.write_text(agents.conf.read_text().replace("dir = logs", f"dir = {shared}/logs"))
    agents.start()
    order = running(order, "prepare", user="nobody", workingDir="/", command=[], script=script, **run)
    hub.offer(repo.orders(1, order), 1)
    assert hub.wait_state("Prepared").reason == ""
    hub.offer(repo.orders(2, running(order, "run")), 2)
    assert hub.wait_state("Exited").exitCode == 0
    return (shared / "logs/nlp/train/1/0.log").read_text().splitlines()


@pytest.mark.root
@as_root
def test_a_setuid_program_gives_nothing(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, shared: Path
) -> None:
    probe = shared / "probe"
    shutil.copy("/usr/bin/id", probe)
    probe.chmod(0o4755)
    if os.statvfs(shared).f_flag & os.ST_NOSUID:
        pytest.skip("setuid programs mean nothing in /tmp here")
    assert said(agents, hub, repo, order, shared, f"{probe} -un") == ["nobody"]


@pytest.mark.root
@as_root
def test_a_rank_has_a_session_of_its_own_and_no_capability(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, shared: Path
) -> None:
    script = "cut -d' ' -f5,6 /proc/self/stat; cut -d' ' -f6 /proc/$PPID/stat; grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status"
    found = said(agents, hub, repo, order, shared, script)
    group, session = found[0].split()
    shim = agents.facts()[0]["shim"]
    assert (group, session) == (agents.facts()[0]["pid"], shim)
    assert os.getsid(agents.started[0].pid) != int(shim)
    assert {line.split()[1] for line in found[2:]} == {"0000000000000000"}


@pytest.mark.root
@as_root
def test_a_secret_reaches_the_job_and_its_file_does_not(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, shared: Path
) -> None:
    secrets = shared / "secrets"
    secrets.mkdir(mode=0o700)
    (secrets / "token").write_text("# a comment\nTOKEN=hush\nno line of ours\n")
    agents.conf.write_text(f"{agents.conf.read_text()}[limits]\nsecretRoots = {secrets}\n")
    script = f'echo "$TOKEN"; cat {secrets}/token 2>/dev/null || echo closed'
    assert said(agents, hub, repo, order, shared, script, secretFiles=[str(secrets / "token")]) == ["hush", "closed"]
    kept = [path for path in (agents.folder / "agent").rglob("*") if path.is_file() and b"hush" in path.read_bytes()]
    assert kept == [], "nothing of it is written down"


@pytest.mark.root
@as_root
def test_a_secret_that_became_a_link_after_prepare_is_not_followed(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "token").write_text("TOKEN=hush\n")
    agents.conf.write_text(f"{agents.conf.read_text()}[limits]\nsecretRoots = {secrets}\n")
    agents.start()
    order = running(order, "prepare", secretFiles=[str(secrets / "token")], command=["/bin/true"])
    hub.offer(repo.orders(1, order), 1)
    hub.wait_state("Prepared")
    (tmp_path / "elsewhere").write_text("TOKEN=other\n")
    (secrets / "token").unlink()
    (secrets / "token").symlink_to(tmp_path / "elsewhere")
    hub.offer(repo.orders(2, running(order, "run")), 2)
    ended = hub.wait_state("Exited")
    assert ended.exitCode == 126
    assert ended.reason.startswith("LaunchFailed: Too many levels of symbolic links")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("ROOT/real", ""),
        ("ROOT/link", "SecretNotAllowed"),
        ("ROOT/way/shadow", "SecretNotAllowed"),
        ("ROOT/../outside", "SecretNotAllowed"),
        ("/etc/shadow", "SecretNotAllowed"),
        ("ROOT/none", "SecretMissing"),
        ("ROOT/folder", "SecretMissing"),
    ],
)
def test_secrets_lie_beneath_their_roots_and_no_link_leads_there(
    file: str, code: str, conf: Conf, order: AttemptOrder, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "real").touch()
    (root / "link").symlink_to("/etc/shadow")
    (root / "way").symlink_to("/etc")
    (tmp_path / "outside").touch()
    tight = replace(conf, limits=replace(conf.limits, secret_roots=(str(root),)))
    asked = running(order, "prepare", secretFiles=[file.replace("ROOT", str(root))])
    assert refusal(asked, tight).partition(":")[0] == code


@pytest.mark.parametrize(
    ("limits", "size", "code"),
    [
        ({}, {"cpusPerGpu": 500, "memoryBytes": 1 << 50}, ""),
        ({"cpus": 8}, {"cpusPerGpu": 4}, ""),
        ({"cpus": 7}, {"cpusPerGpu": 4}, "CpusNotAllowed"),
        ({"memory": 64 << 30}, {"memoryBytes": 64 << 30}, ""),
        ({"memory": 64 << 30}, {"memoryBytes": (64 << 30) + 1}, "MemoryNotAllowed"),
    ],
)
def test_an_attempt_gets_no_more_than_the_node_lends(
    limits: dict[str, Any], size: dict[str, Any], code: str, conf: Conf, order: AttemptOrder
) -> None:
    bounded = replace(conf, limits=replace(conf.limits, **limits))
    assert refusal(replace(order, **size), bounded).partition(":")[0] == code


def test_the_bounds_are_read_in_the_units_they_are_named_by(agents: Agents) -> None:
    agents.conf.write_text(f"{agents.conf.read_text()}[limits]\ncpus = 96\nmemoryGiB = 512\n")
    limits = read_conf(agents.conf).limits
    assert (limits.cpus, limits.memory) == (96, 512 << 30)


def test_a_heartbeat_outside_of_the_mount_roots_is_refused(conf: Conf, order: AttemptOrder, tmp_path: Path) -> None:
    tight = replace(conf, limits=replace(conf.limits, mount_roots=(str(tmp_path),)))
    assert refusal(running(order, "prepare", heartbeatFile=str(tmp_path / "beat")), tight) == ""
    assert refusal(running(order, "prepare", heartbeatFile="/root/.docker/config.json"), tight).startswith(
        "HeartbeatNotAllowed"
    )


@pytest.mark.root
@as_root
def test_a_heartbeat_that_is_not_the_jobs_own_is_not_told(tmp_path: Path) -> None:
    """A link to it is not followed; a second name of it, or its own name, gives nothing either."""
    secret = tmp_path / "config.json"
    secret.write_text('{"password": "hush"}\n')
    os.link(secret, tmp_path / "beat")
    assert last_line(str(tmp_path / "beat"), owner=65534) == {}
    os.chown(secret, 65534, 65534)
    assert last_line(str(tmp_path / "beat"), owner=65534) == {"password": "hush"}


def test_a_rank_is_bound_to_the_cpus_and_the_memory_beside_its_gpu(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    cpu = min(os.sched_getaffinity(0))
    order = replace(order, ranks=[replace(rank, cpus=str(cpu), numa=0) for rank in order.ranks])
    started(agents, hub, repo, order)
    pid = agents.facts()[1]["pid"]
    assert os.sched_getaffinity(int(pid)) == {cpu}
    maps = Path(f"/proc/{pid}/numa_maps")
    if not maps.exists():
        pytest.skip("a kernel without NUMA")
    until(lambda: "sleep" in maps.read_text(), "the program is executed")
    assert {line.split()[1] for line in maps.read_text().splitlines()} == {"bind:0"}


@pytest.mark.parametrize(
    ("numa", "memory"), [(-1, 0), (0, 1 << 60), (77, 0)], ids=["not known", "too little", "not there"]
)
def test_memory_is_not_bound_where_that_would_be_wrong(
    numa: int, memory: int, agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    order = replace(order, memoryBytes=memory, ranks=[replace(rank, numa=numa) for rank in order.ranks])
    started(agents, hub, repo, order)
    maps = Path(f"/proc/{agents.facts()[1]['pid']}/numa_maps")
    if not maps.exists():
        pytest.skip("a kernel without NUMA")
    until(lambda: "sleep" in maps.read_text(), "the program is executed")
    assert {line.split()[1] for line in maps.read_text().splitlines()} == {"default"}


@pytest.mark.parametrize("name", ["health", "beforePrepare", "afterRelease"])
def test_a_failing_hook_cordons_with_its_reason_until_it_succeeds(
    name: str, agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    hook.write_text(
        f'#!/bin/sh\necho "$GANGOPS_NODE $GANGOPS_JOB" >> {tmp_path}/asked\ntest -e {tmp_path}/mended || {{ echo ECC page; exit 1; }}\n'
    )
    hook.chmod(0o755)
    agents.conf.write_text(f"{agents.conf.read_text()}[hooks]\n{name} = {hook}\nhealthSeconds = 1\n")
    agents.start()
    hub.offer(repo.orders(1, running(order, "prepare", command=["/bin/true"])), 1)
    if name == "beforePrepare":
        assert hub.wait_state("Refused").reason == "HookFailed: ECC page"
    else:
        hub.wait_state("Prepared")
        hub.offer(repo.orders(2, running(order, "run", command=["/bin/true"])), 2)
        hub.wait_state("Exited")
    assert hub.wait_for(lambda r: r.unhealthy).unhealthy == f"{name}: ECC page"
    job = "" if name == "health" else "nlp/train"
    assert (tmp_path / "asked").read_text().splitlines()[0] == f"gpu-001 {job}"
    sick = len(hub.reports)
    (tmp_path / "mended").touch()
    with hub.moved:
        assert hub.moved.wait_for(lambda: any(not r.unhealthy for r in hub.reports[sick:]), PATIENCE)
