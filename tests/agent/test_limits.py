"""What a node refuses whatever git says, what a rank finds in its environment, and which agent.conf is usable."""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.agent.conf import Conf, read_conf
from reconciler.agent.hardware import hardware, pretended_uuid
from reconciler.agent.launch import Site, argv_of, cpu_list, environment_of, launched_ranks, spec_of
from reconciler.agent.limits import Account, NotAllowed, account_of, is_below, refusal
from reconciler.agent.rotate import Log
from reconciler.agent.sight import PROGRESS_LIMIT, last_line
from reconciler.errors import InvalidInput
from reconciler.wire import AttemptOrder

from .conftest import Agents, running

ME = Account("me", "/home/me", "/bin/bash")


@pytest.fixture
def conf(agents: Agents) -> Conf:
    return read_conf(agents.conf)


def code_of(order: AttemptOrder, conf: Conf) -> str:
    return refusal(order, conf).partition(":")[0]


def test_an_order_within_the_limits_is_not_refused(conf: Conf, order: AttemptOrder) -> None:
    assert refusal(order, conf) == ""
    assert (conf.logs_dir / "nlp" / "train" / "1").is_dir()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"job": "../etc"}, "BadOrder"),
        ({"job": "nlp/../../etc"}, "BadOrder"),
        ({"ranks": []}, "BadOrder"),
        ({"command": []}, "BadOrder"),
        ({"runtime": "podman"}, "RuntimeNotAllowed"),
        ({"user": "no-such-user"}, "UserNotAllowed"),
        ({"user": "root"}, "UserNotAllowed"),
        ({"mounts": [{"source": "/etc", "target": "/etc"}]}, "MountNotAllowed"),
        ({"mounts": [{"source": "/fs/../etc", "target": "/fs/../etc"}]}, "MountNotAllowed"),
        ({"mounts": [{"source": "/fs/a", "target": "/b"}]}, "MountNotAllowed"),
        ({"secretFiles": ["/etc/shadow"]}, "SecretNotAllowed"),
        ({"workingDir": "/no/such/folder"}, "FolderMissing"),
        ({"command": [], "script": "#" * 200_000}, "ScriptTooLong"),
    ],
)
def test_what_goes_beyond_the_limits_is_refused_by_name(
    changes: dict[str, Any], code: str, conf: Conf, order: AttemptOrder
) -> None:
    tight = replace(conf, limits=replace(conf.limits, mount_roots=("/fs", str(Path(order.run.workingDir)))))
    assert code_of(running(order, "prepare", **changes), tight) == code


def test_a_signal_beyond_the_limits_is_refused(conf: Conf, order: AttemptOrder) -> None:
    assert order.checkpoint
    killing = replace(order, checkpoint=replace(order.checkpoint, signal="SIGKILL"))
    assert code_of(killing, conf) == "SignalNotAllowed"


def test_self_is_nobody_on_real_hardware_under_root(agents: Agents, order: AttemptOrder) -> None:
    text = agents.conf.read_text().split("[simulate]")[0]
    agents.conf.write_text(text)
    assert not read_conf(agents.conf, root=True).limits.run_as_self
    assert read_conf(agents.conf, root=False).limits.run_as_self
    with pytest.raises(NotAllowed, match="UserNotAllowed"):
        account_of(order, read_conf(agents.conf, root=True).limits)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_user_below_the_lowest_uid_or_not_listed_is_refused(conf: Conf, order: AttemptOrder) -> None:
    nobody = pwd.getpwnam("nobody")
    account = account_of(running(order, user="nobody"), conf.limits)
    assert (account.uid, account.gid) == (nobody.pw_uid, nobody.pw_gid)
    low = next(user.pw_name for user in pwd.getpwall() if 0 < user.pw_uid < 1000)
    assert code_of(running(order, user=low), conf) == "UserNotAllowed"
    listed = replace(conf, limits=replace(conf.limits, users=("somebody",)))
    assert code_of(running(order, user="nobody"), listed) == "UserNotAllowed"


def test_only_the_leaders_node_tries_the_rendezvous_port(conf: Conf, order: AttemptOrder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert code_of(replace(order, port=port), conf) == "PortInUse"
        assert code_of(replace(order, port=port, nodeRank=1), conf) == ""
        assert code_of(replace(order, ports=[port], nodeRank=1), conf) == "PortInUse"


@pytest.mark.parametrize(
    ("path", "below"),
    [("/fs/a", True), ("/fs", True), ("/fsx", False), ("fs/a", False), ("/fs/../x", False), ("/", False)],
)
def test_beneath_a_root(path: str, below: bool) -> None:
    assert is_below(path, ("/fs",)) is below


def test_a_rank_finds_who_and_where_it_is(order: AttemptOrder) -> None:
    placed = replace(order, port=29500, ports=[7001, 7002], nodeRank=1, nodeCount=3, worldSize=6, resume=True)
    env = environment_of(running(placed, env={"RANK": "9", "MINE": "x"}), placed.ranks[1], ME)
    wanted = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "NODE_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "GANGOPS_GPU": "GPU-1",
        "GANGOPS_JOB": "nlp/train",
        "GANGOPS_ATTEMPT": "1",
        "GANGOPS_RESUME": "1",
        "GANGOPS_PORT_0": "7001",
        "GANGOPS_PORT_1": "7002",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "MINE": "x",
        "HOME": "/home/me",
    }
    assert {name: env.get(name) for name in wanted} == wanted
    assert "PET_NNODES" not in env


NEAR = ["mlx5_0", "mlx5_1"]
PLACES: dict[str, tuple[list[dict[str, Any]], str, dict[str, str]]] = {
    "a rail each": (
        [{"numa": 0, "cpus": "0-3", "near": NEAR}, {"numa": 1, "cpus": "4-7", "near": NEAR}],
        "perGpu",
        {
            "GANGOPS_NUMA": "1", "GANGOPS_CPUS": "4-7", "GANGOPS_NICS": "mlx5_1", "GANGOPS_RAIL": "1",
            "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        },
    ),
    "a rail each, one process for both": (
        [{"numa": 0, "cpus": "0-3"}, {"numa": 1, "cpus": "4-7"}],
        "perNode",
        {
            "GANGOPS_NUMA": "0,1", "GANGOPS_CPUS": "0-3,4-7", "GANGOPS_NICS": "mlx5_0,mlx5_1", "GANGOPS_RAIL": "0,1",
            "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        },
    ),
    "NICs that tie: all of them, and no rail": (
        [{"nic": "", "rail": -1, "near": NEAR}, {"nic": "", "rail": -1, "near": NEAR}],
        "perGpu",
        {"GANGOPS_NUMA": "0", "GANGOPS_NICS": "mlx5_0,mlx5_1", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"},
    ),
    "the second GPU beside one NIC shares it": (
        [{"near": NEAR[:1]}, {"nic": "", "rail": -1, "near": NEAR[:1]}],
        "perGpu",
        {"GANGOPS_NUMA": "0", "GANGOPS_NICS": "mlx5_0", "NCCL_IB_HCA": "=mlx5_0"},
    ),
    "what is near one of two is not known: no hint keeps it from its own": (
        [{}, {"nic": "", "rail": -1}],
        "perNode",
        {"GANGOPS_NUMA": "0,0"},
    ),
    "a profile that says nothing": ([{"numa": -1, "nic": "", "rail": -1}, {"numa": -1, "nic": "", "rail": -1}], "perGpu", {}),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "launch", "wanted"), PLACES.values(), ids=PLACES)
def test_a_rank_finds_what_is_near_its_gpu(
    order: AttemptOrder, ranks: list[dict[str, Any]], launch: str, wanted: dict[str, str]
) -> None:
    placed = replace(order, ranks=[replace(o, **r) for o, r in zip(order.ranks, ranks, strict=True)])
    env = environment_of(running(placed, launch=launch), placed.ranks[1 if launch == "perGpu" else 0], ME)
    names = ("GANGOPS_NUMA", "GANGOPS_CPUS", "GANGOPS_NICS", "GANGOPS_RAIL", "NCCL_IB_HCA", "NCCL_TOPO_FILE")
    assert {name: env[name] for name in names if name in env} == wanted


def test_the_profiles_topology_file_is_found_and_the_jobs_own_hints_come_first(order: AttemptOrder) -> None:
    placed = replace(order, topoFile="/etc/nccl/hgx.xml")
    assert environment_of(running(placed), placed.ranks[0], ME)["NCCL_TOPO_FILE"] == "/etc/nccl/hgx.xml"
    mine = {"NCCL_TOPO_FILE": "/fs/mine.xml", "NCCL_IB_HCA": "mlx5"}
    env = environment_of(running(placed, env=mine), placed.ranks[0], ME)
    assert {name: env[name] for name in mine} == mine


def test_torchrun_is_launched_once_a_node_and_told_by_its_own_names(order: AttemptOrder) -> None:
    placed = running(replace(order, port=29500, nodeRank=1, nodeCount=3, worldSize=6), launch="perNode")
    assert [rank.rank for rank in launched_ranks(placed)] == [0]
    env = environment_of(placed, placed.ranks[0], ME)
    assert {name: value for name, value in env.items() if name.startswith("PET_")} == {
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "29500",
        "PET_MAX_RESTARTS": "0",
    }
    assert "LOCAL_RANK" not in env


def test_a_gpu_without_uuid_is_named_by_its_index(order: AttemptOrder) -> None:
    bare = replace(order, ranks=[replace(rank, uuid="", gpu=rank.gpu + 4) for rank in order.ranks])
    assert environment_of(bare, bare.ranks[0], ME)["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_a_session_and_a_script_have_a_command_too(order: AttemptOrder) -> None:
    assert argv_of(running(order, command=[], session=True)) == ["/bin/sleep", "infinity"]
    assert argv_of(running(order, command=[], script="echo $1")) == ["/bin/bash", "-c", "echo $1", "script"]


def test_a_spec_binds_each_rank_to_its_cpus(order: AttemptOrder, tmp_path: Path) -> None:
    bound = replace(order, ranks=[replace(rank, cpus=f"{rank.gpu * 2}-{rank.gpu * 2 + 1}") for rank in order.ranks])
    site = Site(events=tmp_path, boot="b", log_limits={})
    spec = spec_of(bound, ME, site, folder=tmp_path, logs=tmp_path, deadline=None)
    assert [launched["cpus"] for launched in spec["processes"]] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("text", "cpus"), [("", []), ("3", [3]), ("0-2,8", [0, 1, 2, 8]), ("x", []), ("1-", [1]), ("5-3", [])]
)
def test_cpu_lists(text: str, cpus: list[int]) -> None:
    assert cpu_list(text) == cpus


def test_a_log_has_a_size_and_a_rate(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "0.log"), {"maxBytes": 100, "keep": 2, "bytesPerSecond": 0}, None, None)
    for number in range(10):
        log.write(b"%d" % number * 40)
    log.close()
    kept = ["0.log", "0.log.1", "0.log.2", "0.times", "0.times.1", "0.times.2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert (tmp_path / "0.log").read_bytes() == b"8" * 40 + b"9" * 40
    slow = Log(str(tmp_path / "1.log"), {"maxBytes": 0, "keep": 1, "bytesPerSecond": 10}, None, None)
    slow.write(b"x" * 1000)
    slow.close()
    assert (tmp_path / "1.log").read_bytes() == b"x" * 80 + b"\n[gangops: 920 bytes dropped here]\n"


def test_a_log_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "0.log").symlink_to(tmp_path / "target")
    log = Log(str(tmp_path / "0.log"), {"maxBytes": 0, "keep": 1, "bytesPerSecond": 0}, None, None)
    log.write(b"x")
    log.close()
    assert (tmp_path / "target").read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "progress"),
    [
        (b"", {}),
        (b'{"step": 1}\n{"step": 2}\n', {"step": 2}),
        (b'{"step": 1}\n{"st', {"step": 1}),
        (b'{"step": 3}', {"step": 3}),
        (b"[1]\n", {}),
        (b'{"step": 1}\n{"x": "' + b"y" * PROGRESS_LIMIT + b'"}\n', {}),
    ],
    ids=["empty", "last line", "half a line", "no line feed", "no object", "too long"],
)
def test_progress_is_the_heartbeats_last_line(content: bytes, progress: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "beat").write_bytes(content)
    assert last_line(str(tmp_path / "beat")) == progress
    (tmp_path / "link").symlink_to(tmp_path / "beat")
    assert last_line(str(tmp_path / "link")) == {}


def test_pretended_hardware_follows_its_profile(agents: Agents, conf: Conf, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    agents.conf.write_text(agents.conf.read_text() + "profile = profile.json\n")
    simulation = read_conf(agents.conf).simulation
    found = hardware("gpu-001", simulation, lambda _: True)
    assert [gpu["uuid"] for gpu in found["gpus"]] == [pretended_uuid("gpu-001", i) for i in range(8)]
    assert all(gpu["healthy"] for gpu in found["gpus"])
    profile.write_text('{"gpus": [{"index": 5, "healthy": false, "reason": "XID 79"}]}')
    failed = [gpu for gpu in hardware("gpu-001", simulation, lambda _: True)["gpus"] if not gpu["healthy"]]
    assert [(gpu["index"], gpu["reason"]) for gpu in failed] == [(5, "XID 79")]
    assert len(hardware("gpu-001", simulation, lambda _: True)["gpus"]) == 8


def test_every_problem_of_a_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.conf"
    path.write_text("[agent]\nnode = GPU_1\nserver = http://x\nservers = http://x\nsimulate.gpus = eight\n")
    path.chmod(0o600)
    with pytest.raises(InvalidInput) as caught:
        read_conf(path)
    found = {d.place.path: d.remedy for d in caught.value.diagnostics}
    assert found["agent.server"] == "Did you mean agent.servers?"
    assert {"agent.node", "agent.servers", "simulate.gpus", "agent.cluster", "tls.ca", "trust.principal"} <= set(found)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("token = hunter2\n", "Line 1 stands before the first section, such as [agent]."),
        ("[agent]\nhunter2\n", "Line 2 is no `key = value`."),
        ("[agent]\nnode = a\nnode = hunter2\n", "Line 3 says node a second time."),
    ],
)
def test_a_configuration_that_cannot_be_read_is_told_by_line_and_never_by_what_is_in_it(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "agent.conf"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidInput) as caught:
        read_conf(path)
    assert [d.detail for d in caught.value.diagnostics] == [told]
    assert "hunter2" not in str(caught.value)


def test_a_configuration_others_can_write_is_not_believed_by_root(agents: Agents) -> None:
    agents.conf.chmod(0o622)
    with pytest.raises(InvalidInput) as caught:
        read_conf(agents.conf, root=True)
    assert [d.code for d in caught.value.diagnostics] == ["AgentConfInvalid"]
    assert read_conf(agents.conf, root=False).node == "gpu-001"


def test_simulate_may_stand_in_the_first_section(agents: Agents) -> None:
    text = agents.conf.read_text().split("[simulate]")[0].replace("[agent]\n", "[agent]\nsimulate.gpus = 4\n")
    agents.conf.write_text(text)
    simulation = read_conf(agents.conf).simulation
    assert simulation
    assert simulation.gpus == 4


def test_a_task_sees_its_number_and_parameters_above_what_the_job_sets_itself(order: AttemptOrder) -> None:
    mine = {"GANGOPS_TASK_INDEX": "1", "GANGOPS_PARAM_LR": "2", "GANGOPS_PARAM_FREE": "3"}
    told = replace(running(order, env=mine), taskIndex=0, parameters={"lr": "it's 0.1", "Batch_Size": "8"})
    env = environment_of(told, order.ranks[0], ME)
    found = {name: value for name, value in env.items() if name.startswith(("GANGOPS_TASK", "GANGOPS_PARAM"))}
    assert found == {
        "GANGOPS_TASK_INDEX": "0", "GANGOPS_PARAM_LR": "it's 0.1", "GANGOPS_PARAM_BATCH_SIZE": "8", "GANGOPS_PARAM_FREE": "3",
    }  # fmt: skip
    assert not any(name.startswith("GANGOPS_TASK") for name in environment_of(running(order), order.ranks[0], ME))


@pytest.mark.parametrize(
    ("job", "allowed"),
    [("nlp/sweep.7", True), ("nlp/sweep.9999", True), ("nlp/..", False), ("nlp/.7", False), ("nlp/a/../b", False)],
)
def test_a_task_s_name_is_one_part_of_a_path(job: str, allowed: bool, conf: Conf, order: AttemptOrder) -> None:
    found = refusal(replace(running(order), job=job), conf)
    assert found.startswith("BadOrder: the job's name") is not allowed
