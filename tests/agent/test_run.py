"""Real agents, shims and ranks against a real TLS server: what happens to processes, and what is said about them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.agent import proc
from reconciler.agent.shim import SECOND
from reconciler.agent.zipapp import build_zipapp
from reconciler.wire import AttemptOrder

from .conftest import PATIENCE, Agents, Hub, StateRepo, make_key, running

LEASE = 7
"""Seconds. With this one agents report once a second, so that on a busy machine one may be five seconds late."""
PATIENT = """
import sys
from reconciler.agent import link
from reconciler.agent.__main__ import main
link.WAIT_SECONDS = 3600
sys.exit(main(sys.argv[1:]))
"""
"""An agent whose reports are held for an hour: what it says meanwhile, it says because something happened."""

TRAINER = """
import os, pathlib, signal, sys, time
rank, folder = os.environ["RANK"], pathlib.Path(os.environ["GANGOPS_CHECKPOINT_DIR"])
folder.mkdir(exist_ok=True)
def save(*_):
    (folder / "latest").write_text("100")
signal.signal(signal.SIGUSR1, save)
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
(folder / f"ready-{rank}").touch()
while True:
    time.sleep(60)
"""


def until(reached: Callable[[], object], what: str) -> None:
    """Wait for something that only the file system or /proc tells."""
    ends = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < ends, what
        time.sleep(0.02)


def started(agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, *command: str) -> None:
    agents.start(*command)
    hub.offer(repo.orders(1, running(order, "prepare")), 1)
    hub.wait_state("Prepared")
    assert agents.facts() == {}, "no rank before the order to run"
    hub.offer(repo.orders(2, running(order, "run")), 2)
    hub.wait_state("Running")


def test_a_gang_is_prepared_run_checkpointed_and_gone(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    order = running(order, command=[sys.executable, "-c", TRAINER])
    started(agents, hub, repo, order)
    pids = [int(facts["pid"]) for facts in agents.facts().values()]
    assert len(pids) == 2
    until(lambda: (tmp_path / "ckpt" / "ready-0").exists() and (tmp_path / "ckpt" / "ready-1").exists(), "ranks ready")
    asked = time.time_ns()
    hub.offer(repo.orders(3, running(order, "checkpoint")), 3)
    gone = hub.wait_state("Gone")
    assert not [pid for pid in pids if proc.start_time(pid)]
    assert gone.generation == 3
    assert gone.exitCode == 128 + signal.SIGTERM
    hub.wait_for(lambda r: any((a.checkpoint or 0) > asked for a in r.attempts))
    assert "heardAt" in agents.facts()[0]
    assert "heardAt" not in agents.facts()[1], "only the leader is asked"
    log = (tmp_path / "logs" / "nlp" / "train" / "1" / "1.log").read_text()
    assert log == "rank 1 of 2 on GPU-0,GPU-1\n"
    hub.offer(repo.orders(4), 4)
    last = hub.wait_for(lambda r: r.generation == 4 and not r.attempts)
    assert last.hardware == {}, "unchanged hardware is not sent again"
    assert hub.reports[0].hardware["gpuType"] == "H100-SXM5-80GB"
    assert len(hub.reports[0].hardware["gpus"]) == 8


def test_a_killed_agent_leaves_ranks_alone_and_the_next_one_adopts_them(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    started(agents, hub, repo, order)
    before = agents.facts()
    agents.started[0].kill()
    agents.started[0].wait()
    first = len(hub.reports)
    agents.start()
    hub.wait_for(lambda r: r.session != hub.reports[0].session and r.attempts)
    again = next(r for r in hub.reports[first:] if r.session != hub.reports[0].session)
    assert again.generation == 2, "the journal holds the order"
    assert again.attempts[0].state == "Running"
    assert agents.facts() == before
    assert all(proc.is_alive(int(f["pid"]), int(f["start"])) for f in before.values())
    hub.offer(repo.orders(3, running(order, "stop")), 3)
    assert hub.wait_state("Gone").exitCode == 128 + signal.SIGTERM


def test_an_agent_asked_to_end_leaves_ranks_alone(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    started(agents, hub, repo, order)
    agents.started[0].terminate()
    assert agents.started[0].wait(PATIENCE) == 0
    assert all(proc.is_alive(int(f["pid"]), int(f["start"])) for f in agents.facts().values())


def test_a_failing_rank_ends_the_others_and_its_code_is_the_gangs(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    script = 'if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 300'
    agents.start()
    hub.offer(repo.orders(1, order), 1)
    hub.wait_state("Prepared")
    hub.offer(repo.orders(2, running(order, command=[], script=script)), 2)
    assert hub.wait_state("Exited").exitCode == 7
    assert agents.facts()[0]["exit"] == str(128 + signal.SIGTERM)


def test_a_gang_that_ends_well_has_exited_with_zero(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    agents.start()
    hub.offer(repo.orders(1, order), 1)
    hub.wait_state("Prepared")
    hub.offer(repo.orders(2, running(order, command=["/bin/true"])), 2)
    ended = hub.wait_state("Exited")
    assert (ended.exitCode, ended.reason) == (0, "")


def test_a_command_that_does_not_exist_is_named(agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder) -> None:
    agents.start()
    hub.offer(repo.orders(1, order), 1)
    hub.wait_state("Prepared")
    hub.offer(repo.orders(2, running(order, command=["no-such-trainer"])), 2)
    ended = hub.wait_state("Exited")
    assert ended.exitCode == 127
    assert ended.reason == "LaunchFailed: No such file or directory: no-such-trainer"
    told = {log.read_text() for log in (agents.folder / "logs").rglob("*.log")}
    # The first rank that fails ends the others, which may not have come to say anything.
    assert told - {""} == {"gangops: this rank could not be started: No such file or directory: no-such-trainer\n"}


def test_what_ignores_sigterm_or_hides_in_another_session_is_killed(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    script = f"trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >> {tmp_path}/hidden; sleep 300' & while :; do sleep 1; done"
    order = running(order, command=[], script=script, killSeconds=1)
    started(agents, hub, repo, order)
    until(lambda: (tmp_path / "hidden").exists() and len((tmp_path / "hidden").read_text().split()) == 2, "hidden")
    hub.offer(repo.orders(3, running(order, "stop")), 3)
    assert hub.wait_state("Gone").exitCode == 128 + signal.SIGKILL
    assert not [pid for pid in (tmp_path / "hidden").read_text().split() if proc.start_time(int(pid))]


def test_an_attempt_that_no_order_names_is_stopped_and_forgotten(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    started(agents, hub, repo, order)
    pids = [int(facts["pid"]) for facts in agents.facts().values()]
    hub.offer(repo.orders(3), 3)
    hub.wait_for(lambda r: r.generation == 3 and not r.attempts)
    assert not [pid for pid in pids if proc.start_time(pid)]


def test_a_lease_that_is_not_renewed_ends_the_work_without_any_agent(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    hub.lease = LEASE
    started(agents, hub, repo, running(order, fence="lease", leaseSeconds=LEASE))
    since = proc.boottime()
    hub.wait_for(lambda _: proc.boottime() > since + (LEASE + 1) * SECOND)
    assert all("exit" not in facts for facts in agents.facts().values()), "renewed by every answer"
    hub.silent = True
    agents.started[0].kill()
    until(lambda: all("gone" in facts for facts in agents.facts().values()), "lease expired")
    assert {facts["cause"] for facts in agents.facts().values()} == {"lease"}
    assert {facts["exit"] for facts in agents.facts().values()} == {str(128 + signal.SIGKILL)}


def test_the_deadline_ends_the_work_and_can_be_moved(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    started(agents, hub, repo, order)
    hub.offer(repo.orders(3, running(order, deadline=time.time_ns() + 300_000_000)), 3)
    ended = hub.wait_state("Gone")
    assert ended.reason == "DeadlinePassed"


def test_killed_shims_take_all_of_their_ranks_along_and_it_is_seen_at_once(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    script = f"setsid sh -c 'echo $$ >> {tmp_path}/hidden; sleep 300' & exec sleep 300"
    started(agents, hub, repo, running(order, command=[], script=script), sys.executable, "-c", PATIENT)
    hidden = tmp_path / "hidden"
    until(lambda: hidden.exists() and len(hidden.read_text().split()) == 2, "hidden")
    for deadly in (signal.SIGSTOP, signal.SIGKILL):  # none lives long enough to be told that another one died
        for facts in agents.facts().values():
            os.kill(int(facts["shim"]), deadly)
    ended = hub.wait_state("Exited")
    assert (ended.exitCode, ended.reason) == (137, "ShimLost")
    assert not [f["pid"] for f in agents.facts().values() if proc.is_alive(int(f["pid"]), int(f["start"]))]
    assert not [pid for pid in hidden.read_text().split() if proc.start_time(int(pid))], "nothing is free before"


def test_a_shim_that_is_killed_while_no_agent_is_there_takes_its_rank_along(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    started(agents, hub, repo, order)
    agents.started[0].kill()
    agents.started[0].wait()
    for facts in agents.facts().values():
        os.kill(int(facts["shim"]), signal.SIGKILL)
    left = [(int(facts["pid"]), int(facts["start"])) for facts in agents.facts().values()]
    until(lambda: not any(proc.is_alive(pid, start) for pid, start in left), "the ranks are gone")


def test_a_change_is_reported_at_once_though_a_report_is_held(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    started(agents, hub, repo, order, sys.executable, "-c", PATIENT)
    for generation, name in enumerate(("a", "b", "c"), 3):
        other = running(order, "prepare", job=f"nlp/{name}")
        hub.offer(repo.orders(generation, order, other), generation)
        hub.wait_for(lambda r, job=other.job: any(a.job == job and a.state == "Prepared" for a in r.attempts))  # type: ignore[misc]  # mypy infers no lambda with a default


def test_a_checkpoint_that_was_asked_for_goes_on_after_the_agent_was_killed(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    order = running(order, command=[sys.executable, "-c", TRAINER.replace("signal.signal(", "0 and signal.signal(")])
    started(agents, hub, repo, order)
    until((tmp_path / "ckpt" / "ready-0").exists, "rank ready")
    hub.offer(repo.orders(3, running(order, "checkpoint")), 3)
    hub.wait_state("Stopping")
    until(lambda: "signalledAt" in agents.facts()[0], "the leader is asked")
    agents.started[0].kill()
    agents.started[0].wait()
    assert "heardAt" not in agents.facts()[0], "whoever has no handler is not killed by the request"
    assert all(proc.is_alive(int(f["pid"]), int(f["start"])) for f in agents.facts().values())
    agents.start()
    hub.wait_for(lambda r: r.session != hub.reports[0].session)
    (tmp_path / "ckpt" / "latest").write_text("late, but there")
    hub.wait_state("Gone")


def test_hooks_of_the_site_cordon_with_their_reason(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    hook.write_text("#!/bin/sh\necho GPU 3 fell off the bus; exit 1\n")
    hook.chmod(0o755)
    agents.conf.write_text(f"{agents.conf.read_text()}[hooks]\nhealth = {hook}\nbeforePrepare = {hook}\n")
    agents.start()
    assert hub.wait_for(lambda r: r.unhealthy).unhealthy == "health: GPU 3 fell off the bus"
    hub.offer(repo.orders(1, order), 1)
    assert hub.wait_state("Refused").reason == "HookFailed: GPU 3 fell off the bus"


def test_the_next_server_is_tried(agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    agents.conf.write_text(agents.conf.read_text().replace("servers = ", f"servers = https://127.0.0.1:{port}, "))
    agents.start()
    hub.offer(repo.orders(1, order), 1)
    assert hub.wait_state("Prepared").generation == 1


def test_what_a_rank_used_is_told_with_its_end(agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder) -> None:
    program = "import os, time\nx = bytearray(64 << 20)\nwhile time.process_time() < 0.3: pass"
    agents.start()
    hub.offer(repo.orders(1, order), 1)
    hub.wait_state("Prepared")
    hub.offer(repo.orders(2, running(order, "run", command=[sys.executable, "-c", program])), 2)
    ranks = hub.wait_state("Exited").ranks
    assert [rank["rank"] for rank in ranks] == [0, 1]
    for rank in ranks:
        assert 300 <= rank["cpuMs"] < 10_000
        assert 64 << 20 <= rank["peakBytes"] < 256 << 20


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_starts_nothing_new_and_keeps_what_runs(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    disk = tmp_path / "agent"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("no mounting here")
    try:
        started(agents, hub, repo, order)
        with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * 1024)
        too_much = {"PADDING": "x" * 20_000}  # what is left of the journal's last page would take a small order
        other = running(order, "prepare", job="nlp/other", env=too_much)
        hub.offer(repo.orders(3, running(order, "stop", env=too_much), other), 3)
        report = hub.wait_for(lambda r: r.refusals)
        assert report.refusals[0].code == "LocalStorageFull"
        assert [(a.job, a.state) for a in report.attempts] == [(order.job, "Running")]
        assert all(proc.is_alive(int(f["pid"]), int(f["start"])) for f in agents.facts().values())
        (disk / "ballast").unlink()
        hub.offer(repo.orders(4, running(order, "stop")), 4)
        assert hub.wait_state("Gone").exitCode == 128 + signal.SIGTERM
    finally:
        agents.clean()
        subprocess.run(["umount", "-l", disk], check=False)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes cgroups at the top")
def test_a_rank_lives_and_dies_in_its_own_cgroup(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no cgroup v2 here")
    ours = root / f"gangops-test-{os.getpid()}"
    agents.conf.write_text(f"{agents.conf.read_text()}[cgroup]\nroot = {ours}\n")
    started(agents, hub, repo, order)
    pid = agents.facts()[1]["pid"]
    assert (ours / "nlp" / "train" / "1" / "1" / "cgroup.procs").read_text().split() == [pid]
    hub.offer(repo.orders(3, running(order, "stop")), 3)
    hub.wait_state("Gone")
    until(lambda: not (ours / "nlp").exists(), "its cgroups are removed")
    ours.rmdir()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_rank_runs_as_its_user_without_a_way_back(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as logs:
        Path(logs).chmod(0o755)
        agents.conf.write_text(agents.conf.read_text().replace("dir = logs", f"dir = {logs}"))
        script = "id -un; grep -E '^(NoNewPrivs|CapEff|Groups)' /proc/self/status; pwd"
        agents.start()
        order = running(order, "prepare", user="nobody", workingDir="/tmp", command=[], script=script)
        hub.offer(repo.orders(1, order), 1)
        hub.wait_state("Prepared")
        hub.offer(repo.orders(2, running(order, "run")), 2)
        assert hub.wait_state("Exited").exitCode == 0
        log = Path(logs, "nlp", "train", "1", "0.log")
        assert log.owner() == "nobody"
        words = log.read_text().split()
        assert (words[0], words[-1]) == ("nobody", "/tmp")
        assert words[words.index("NoNewPrivs:") + 1] == "1"
        assert int(words[words.index("CapEff:") + 1], 16) == 0
        assert "0" not in words[words.index("Groups:") + 1 : words.index("NoNewPrivs:")]


def test_a_busy_port_is_refused_at_prepare(agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder) -> None:
    port = int(hub.url.rpartition(":")[2])
    agents.start()
    hub.offer(repo.orders(1, running(order, "prepare", port=port)), 1)
    assert hub.wait_state("Refused").reason.startswith(f"PortInUse: port {port} at 127.0.0.1")


@pytest.mark.parametrize(("forgery", "code"), [("another file", "WrongBlob"), ("another key", "BadSignature")])
def test_a_forged_order_is_reported_and_nothing_of_it_is_done(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path, forgery: str, code: str
) -> None:
    agents.start()
    hub.offer(repo.orders(1, order), 1)
    hub.wait_state("Prepared")
    forged = repo.orders(2, running(order, "run"))
    if forgery == "another file":
        forged = replace(forged, file=forged.file.replace(b"/bin/sleep", b"/bin/false"))
    else:
        forged = repo.proof(forged.file, 2, key=make_key(tmp_path, "stranger"))
    hub.offer(forged, 2)
    report = hub.wait_for(lambda r: r.refusals)
    assert [refusal.code for refusal in report.refusals] == [code]
    assert (report.generation, report.attempts[0].state) == (1, "Prepared")


def test_a_replayed_order_is_reported_and_what_runs_is_not_disturbed(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    agents.start()
    first = repo.orders(1, running(order, "prepare"))
    hub.offer(first, 1)
    hub.wait_state("Prepared")
    hub.offer(repo.orders(2, running(order, "run")), 2)
    hub.wait_state("Running")
    before = agents.facts()
    hub.offer(first, 2)
    report = hub.wait_for(lambda r: r.refusals)
    (refused,) = report.refusals
    assert (refused.commitId, refused.code) == (first.commitId, "OlderOrder")
    assert refused.detail == "generation 1 of epoch 1 is older than 2 of 1, which is held"
    assert (report.generation, report.attempts[0].state) == (2, "Running")
    assert agents.facts() == before


@pytest.mark.parametrize("version", ["this", "3.10", "3.13"])
def test_the_zipapp_needs_nothing_installed_and_runs_on_other_pythons(
    version: str, agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    pythons = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    python = sys.executable if version == "this" else str(pythons[0]) if pythons else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode != 0:
        pytest.skip(f"no Python {version} here")
    target = build_zipapp(tmp_path / "gangops-agent.pyz")
    assert target.read_bytes() == build_zipapp(tmp_path / "again.pyz").read_bytes()
    started(agents, hub, repo, order, python, "-I", "-S", "-W", "error", str(target))
    hub.offer(repo.orders(3, running(order, "stop")), 3)
    hub.wait_state("Gone")
