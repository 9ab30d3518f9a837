"""Who may come to a node by ssh: asked as pam_exec asks, of what shims write, with real ranks and real cgroups."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reconciler.agent import proc
from reconciler.agent.cgroups import Hierarchy
from reconciler.agent.conf import read_conf
from reconciler.agent.folder import AttemptFolder
from reconciler.agent.launch import Site, launcher_command, spec_of
from reconciler.agent.limits import Account
from reconciler.agent.pam import WAY, NotAdmitted, answer
from reconciler.agent.zipapp import build_zipapp
from reconciler.wire import AttemptOrder

from .conftest import ROOT, Agents, running
from .test_cgroups import real  # noqa: F401  a fixture
from .test_run import until

NOBODY = pwd.getpwnam("nobody").pw_uid
CGROUPS: list[Hierarchy] = [{"kind": "v2", "root": "/cg"}]


@dataclass
class Node:
    """The attempts of a node as shims leave them, and who was bound where."""

    folder: Path
    rank: subprocess.Popen[bytes]
    joined: list[tuple[str, int]]

    def has(self, job: str = "nlp/a", *, uid: int | None = NOBODY, since: int = 5, cgroup: bool = True, boot: str = "",
            **changes: str | None) -> None:  # fmt: skip
        """One attempt with one rank; `changes` are those to its status, None leaves a line out."""
        path = self.folder / job / "1"
        path.mkdir(parents=True)
        launched = {"rank": 0, "uid": uid, "cgroup": f"{job}/1/0" if cgroup else ""}
        spec = {"boot": boot or proc.boot_id(), "cgroups": CGROUPS, "processes": [launched]}
        (path / "spec.json").write_text(json.dumps(spec))
        start = str(proc.start_time(self.rank.pid))
        facts: dict[str, str | None] = {
            "rank": "0", "pid": str(self.rank.pid), "start": start, "startedAt": str(since), **changes,
        }  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in facts.items() if value is not None)
        (path / "0.status").write_text(text)

    def asked(self, phase: str, user: str = "nobody", join: Callable[..., None] | None = None) -> str:
        def note(_: list[Hierarchy], path: str, pid: int) -> None:
            self.joined.append((path, pid))

        return answer({"PAM_TYPE": phase, "PAM_USER": user}, self.folder, "gpu-001", 4711, join=join or note)

    def refused(self, phase: str, user: str = "nobody", join: Callable[..., None] | None = None) -> str:
        with pytest.raises(NotAdmitted) as caught:
            self.asked(phase, user, join)
        assert self.joined == []
        return caught.value.code


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    rank = subprocess.Popen(["sleep", "600"])
    yield Node(tmp_path / "attempts", rank, [])
    rank.kill()
    rank.wait()


def test_who_has_a_rank_here_comes_in_and_is_bound_to_the_newest(node: Node) -> None:
    node.has("nlp/old", since=5)
    node.has("nlp/new", since=7)
    node.has("nlp/unbound", since=9, cgroup=False)
    node.has("nlp/other", since=9, uid=12345)
    assert node.asked("account") == ""
    assert node.joined == [], "nobody is bound before there is a session"
    assert node.asked("open_session") == "gangops: in the bounds of nlp/new, and only as long as it runs here"
    assert node.joined == [("nlp/new/1/0", 4711)]


@pytest.mark.parametrize("phase", ["account", "open_session"])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"uid": 12345}, "NoJobHere"),
        ({"uid": None}, "NoJobHere"),
        ({"startedAt": None}, "NoJobHere"),
        ({"exit": "0"}, "NoJobHere"),
        ({"termAt": "9"}, "NoJobHere"),
        ({"gone": "1"}, "NoJobHere"),
        ({"start": "1"}, "NoJobHere"),
        ({"boot": "another"}, "NoJobHere"),
        ({"cgroup": False}, "NotBound"),
    ],
    ids=["somebody else's", "the agent's own", "not started", "exited", "being ended", "gone", "another process",
         "before a reboot", "no cgroup"],
)  # fmt: skip
def test_everybody_else_is_refused(node: Node, phase: str, changes: dict[str, Any], code: str) -> None:
    node.has(**changes)
    assert node.refused(phase) == code


def test_a_node_where_nothing_ever_ran_refuses(node: Node) -> None:
    assert node.refused("account") == "NoJobHere"


@pytest.mark.parametrize("user", ["", "no-such-user", "../nobody", "nobody\n", "x" * 5000, "65534"])
def test_a_name_that_is_no_user_is_refused(node: Node, user: str) -> None:
    node.has()
    assert node.refused("account", user) == "UnknownUser"


@pytest.mark.parametrize("phase", ["", "auth", "setcred", "password", "ACCOUNT"])
def test_where_pam_was_told_to_ask_something_else_nobody_comes_in(node: Node, phase: str) -> None:
    node.has()
    assert node.refused(phase) == "BadPamCall"


def test_root_is_sshds_to_judge_and_the_end_of_a_session_nobodys(node: Node) -> None:
    assert node.asked("account", "root") == ""
    assert node.asked("open_session", "root") == ""
    assert node.asked("close_session") == ""
    assert node.joined == []


def test_a_session_that_cannot_be_bound_is_refused(node: Node) -> None:
    def fails(*_: object) -> None:
        raise OSError(2, "No such file or directory")

    node.has()
    assert node.refused("open_session", join=fails) == "NotBound"


def test_a_job_that_ends_meanwhile_takes_nobody_in(node: Node) -> None:
    def ends(*_: object) -> None:
        with (node.folder / "nlp/a/1/0.status").open("a") as status:
            status.write("exit=0\n")

    node.has()
    assert node.refused("open_session", join=ends) == "NoJobHere"


def test_a_spec_that_cannot_be_read_is_nobodys(node: Node) -> None:
    node.has()
    (node.folder / "nlp/a/1/spec.json").write_text("{")
    assert node.refused("account") == "NoJobHere"


# --- the verb, a real shim and real cgroups, the real libpam, and somebody who does what sshd does ---

SSHD = """
import ctypes, json, os, subprocess, sys
pam, libc, told = ctypes.CDLL("libpam.so.0"), ctypes.CDLL(None), []
class Message(ctypes.Structure):
    _fields_ = [("style", ctypes.c_int), ("text", ctypes.c_char_p)]
class Response(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("code", ctypes.c_int)]
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.POINTER(Message)), ctypes.POINTER(ctypes.c_void_p),
                  ctypes.c_void_p)
def converse(count, messages, answers, _):
    told.extend(messages[i].contents.text.decode() for i in range(count))
    answers[0] = libc.calloc(count, ctypes.sizeof(Response))
    return 0
class Conversation(ctypes.Structure):
    _fields_ = [("function", type(converse)), ("about", ctypes.c_void_p)]
libc.calloc.restype = ctypes.c_void_p
user, handle, conversation = sys.argv[2], ctypes.c_void_p(), Conversation(converse, None)
folder = sys.argv[1].encode()
assert pam.pam_start_confdir(b"sshd", user.encode(), ctypes.byref(conversation), folder, ctypes.byref(handle)) == 0
for phase, ask in (("account", pam.pam_acct_mgmt), ("open_session", pam.pam_open_session)):
    code = ask(handle, 0)
    print(json.dumps([phase, code == 0, "\\n".join(told)]), flush=True)
    if code:
        sys.exit(1)
session = subprocess.Popen(["sleep", "600"], user=user)
print(json.dumps([os.getpid(), session.pid]), flush=True)
sys.exit(session.wait() and 255)
"""
"""The calls of sshd, in its order, with what `.github/OPERATIONS.md` puts into its service file."""


@pytest.fixture
def house(tmp_path: Path, agents: Agents) -> Path:
    """A folder of PAM services of our own."""
    if os.geteuid() != 0:
        pytest.skip("only root starts sessions of others")
    try:
        libpam = ctypes.CDLL("libpam.so.0")
    except OSError:
        pytest.skip("there is no libpam here")
    if not hasattr(libpam, "pam_start_confdir"):
        pytest.skip("this libpam takes no folder of services")
    build_zipapp(tmp_path / "agent.pyz")
    page = (ROOT / ".github/OPERATIONS.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith(("account  ", "session  "))]
    assert len(lines) == 4
    text = "\n".join(lines).replace("/opt/gangops/agent.pyz", str(tmp_path / "agent.pyz"))
    text = text.replace("/etc/gangops/agent.conf", str(agents.conf)).replace("/usr/bin/python3", sys.executable)
    (tmp_path / "pam.d").mkdir()
    above = "account required pam_permit.so\nsession required pam_permit.so\n"  # what a service has there anyhow
    (tmp_path / "pam.d/sshd").write_text(above + text.replace("group wheel", "group daemon") + "\n")
    return tmp_path / "pam.d"


def comes(house: Path, user: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SSHD, str(house), user], stdout=subprocess.PIPE, text=True)


def says(sshd: subprocess.Popen[str]) -> Any:
    assert sshd.stdout is not None
    return json.loads(sshd.stdout.readline())


@pytest.mark.root
@pytest.mark.usefixtures("repo")
def test_a_session_is_in_the_ranks_cgroups_and_ends_with_it(
    agents: Agents, house: Path, order: AttemptOrder, tmp_path: Path, real: list[Hierarchy]  # noqa: F811
) -> None:  # fmt: skip
    order = running(order, command=["sleep", "600"], launch="perNode", workingDir="/")
    conf = read_conf(agents.conf)
    folder = AttemptFolder(conf.state_dir / "attempts" / order.job / str(order.attempt))
    os.mkfifo(tmp_path / "events")
    nobody = Account("nobody", "/", "/bin/sh", NOBODY, pwd.getpwnam("nobody").pw_gid)
    limits = {"maxBytes": 1 << 20, "keep": 1, "bytesPerSecond": 1 << 20}
    site = Site(events=tmp_path / "events", boot=proc.boot_id(), log_limits=limits, hierarchies=real)
    (tmp_path / "logs").mkdir()
    tmp_path.chmod(0o755)
    (tmp_path / "logs").chmod(0o777)
    folder.path.mkdir(parents=True)
    spec = spec_of(order, nobody, site, folder=folder.path, logs=tmp_path / "logs", deadline=None)

    before = comes(house, "nobody")
    told = f"gangops: no job runs as nobody on {conf.node}; `gangops get jobs` says where; {WAY}"
    assert says(before) == ["account", False, told]
    page = (ROOT / ".github/COMING_FROM_SLURM.md").read_text()
    inside = f"gangops: in the bounds of {order.job}, and only as long as it runs here"
    assert f"{told}\n{inside}\n" in page, "what the page shows is what people see"
    assert before.wait(60) == 1

    subprocess.run(launcher_command(folder.write_spec(spec)), check=True)
    until(lambda: "startedAt" in folder.shims().facts.get(0, {}), "the rank runs")
    path = spec["processes"][0]["cgroup"]
    try:
        stranger = comes(house, "bin")
        assert says(stranger)[:2] == ["account", False]
        assert stranger.wait(60) == 1
        guest = comes(house, "nobody")
        assert says(guest) == ["account", True, ""]
        assert says(guest) == ["open_session", True, inside]
        sshd, session = says(guest)
        for one in real:
            assert {str(sshd), str(session)} < set(Path(one["root"], path, "cgroup.procs").read_text().split())
    finally:
        folder.command(0, "kill")
    until(lambda: "gone" in folder.shims().facts[0], "the rank is gone")
    assert guest.wait(60) == -signal.SIGKILL
    until(lambda: not proc.start_time(session), "what was started in the session is gone")
    until(lambda: not any(Path(one["root"], path).exists() for one in real), "its cgroups are removed")
    late = comes(house, "nobody")
    assert says(late)[:2] == ["account", False]
    assert late.wait(60) == 1


def test_whom_the_site_excepts_is_not_asked_about(house: Path) -> None:
    """The first line of each pair skips the second one, and nothing else."""
    staff = comes(house, "daemon")
    assert says(staff) == ["account", True, ""]
    assert says(staff) == ["open_session", True, ""]
    _, session = says(staff)
    os.kill(session, signal.SIGKILL)
    assert staff.wait(60) == 255


def test_a_configuration_that_cannot_be_read_lets_nobody_in(house: Path, agents: Agents) -> None:
    agents.conf.write_text("[agent]\n")
    guest = comes(house, "nobody")
    assert says(guest)[:2] == ["account", False]
    assert guest.wait(60) == 1
