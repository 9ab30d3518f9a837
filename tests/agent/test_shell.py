"""A terminal inside a job: real keys, a real server, agent, shim and pseudo terminal, driven by the verb as people do."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fcntl import ioctl
from pathlib import Path

import pytest

from reconciler.agent import proc
from reconciler.wire import AttemptOrder

from .conftest import PATIENCE, ROOT, Agents, StateRepo, running
from .house import JOB, HouseLab
from .test_run import until


@dataclass
class Person:
    """Somebody at a terminal of 30 by 100 who runs `gangops shell`."""

    lab: HouseLab
    shown: bytes = b""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, *arguments: str, key: Path | None = None) -> list[str]:
        door = self.lab.door(key)
        named = ["--server", door.server, "--ca", str(door.authority), "--key", str(door.key)]
        return [sys.executable, "-m", "reconciler.cli", "shell", *named, JOB, *arguments]

    def runs(self, *arguments: str, key: Path | None = None, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Without a terminal."""
        return subprocess.run(
            self.command(*arguments, key=key), capture_output=True, text=True, check=False, cwd=ROOT, input=typed,
            timeout=PATIENCE,
        )  # fmt: skip

    def sits_down(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.master, slave = pty.openpty()
        ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        child = subprocess.Popen(
            self.command(*arguments), stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, start_new_session=True,
            env={**os.environ, "TERM": "vt100"},
        )  # fmt: skip
        os.close(slave)
        self.started.append(child)
        return child

    def types(self, text: str) -> None:
        os.write(self.master, text.encode())

    def sees(self, text: str) -> None:
        """Until it is on the screen."""
        self._shows(lambda: text.encode() in self.shown, text)

    def _shows(self, found: Callable[[], object], what: str) -> None:
        until_when = time.monotonic() + PATIENCE
        while not found():
            assert time.monotonic() < until_when, (what, self.shown)
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.master, 65536)
                except OSError:
                    raise AssertionError((what, self.shown)) from None

    def reads(self, pattern: str) -> str:
        """The group of a pattern, once it is on the screen."""
        self._shows(lambda: re.search(pattern.encode(), self.shown), pattern)
        found = re.search(pattern.encode(), self.shown)
        assert found
        return found[1].decode()

    def ends(self, child: subprocess.Popen[bytes]) -> int:
        return child.wait(timeout=PATIENCE)


@pytest.fixture
def lab(tmp_path: Path, agents: Agents, repo: StateRepo) -> Iterator[HouseLab]:
    (tmp_path / "house").mkdir()
    made = HouseLab(tmp_path / "house", repo, agents)
    yield made
    made.close()


@pytest.fixture
def person(lab: HouseLab) -> Iterator[Person]:
    made = Person(lab)
    yield made
    for child in made.started:
        child.kill()
        child.wait()
        os.close(made.master)


@pytest.fixture
def session(lab: HouseLab, agents: Agents, order: AttemptOrder) -> subprocess.Popen[bytes]:
    """A session of two GPUs that runs."""
    agent = agents.start()
    lab.run(running(order, command=[], session=True, launch="perNode", idleSeconds=4, env={"WHO": "the job"}))
    return agent


def shells(agents: Agents) -> int:
    return int(agents.facts()[0].get("shells", "0"))


@pytest.mark.usefixtures("session")
def test_a_command_runs_with_what_the_job_has_and_its_status_comes_back(person: Person, agents: Agents) -> None:
    done = person.runs("--", "/bin/sh", "-c", "echo $WHO has $CUDA_VISIBLE_DEVICES in $GANGOPS_JOB; pwd; exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.splitlines() == ["the job has GPU-0,GPU-1 in nlp/train", str(agents.folder)]
    assert person.runs("--", "/no/such/program").returncode == 127
    assert person.runs("--", "/bin/sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
    until(lambda: shells(agents) == 0, "nobody is in it")
    assert not list((agents.folder / "agent").glob("**/shell-*"))
    assert person.lab.engine.visits() == {"shell": 3}


@pytest.mark.usefixtures("session")
def test_what_is_piped_in_gets_there(person: Person) -> None:
    done = person.runs("--", "/bin/sh", "-c", "read a; read b; echo $b $a", typed="one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, "two one\n")


@pytest.mark.usefixtures("session")
def test_at_a_terminal_it_is_one_with_its_size_and_keys(person: Person, agents: Agents) -> None:
    child = person.sits_down("--", "/bin/sh", "-i")
    person.types("stty size; echo $TERM $((6*7))\n")
    person.sees("30 100")
    person.sees("vt100 42")
    until(lambda: shells(agents) == 1, "its shim says so")
    ioctl(person.master, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 77, 0, 0))
    os.kill(child.pid, signal.SIGWINCH)
    person.types("until [ \"$(stty size)\" = '41 77' ]; do :; done; echo resi''zed\n")
    person.sees("resized")
    person.types("echo go''ne; sleep 600\n")
    person.sees("gone\r\n")
    until(lambda: asleep(agents), "what is to be interrupted runs")
    person.types("\x03")
    person.sees("^C")
    person.types("echo still he''re\n")
    person.sees("still here")
    person.types("exit 3\n")
    assert person.ends(child) == 3


@pytest.mark.usefixtures("session")
def test_who_does_not_hold_the_job_gets_no_shell(person: Person, agents: Agents, lab: HouseLab) -> None:
    done = person.runs("--", "/bin/echo", "in", key=lab.bob)
    assert (done.returncode, done.stdout) == (4, "")
    assert "NotHeld" in done.stderr
    assert "shells" not in agents.facts()[0]
    assert lab.engine.visits() == {"NotHeld": 1}


def test_a_job_that_does_not_run_has_none(person: Person, lab: HouseLab, agents: Agents, order: AttemptOrder) -> None:
    agents.start()
    lab.order(order)
    lab.wait_for("Prepared")
    done = person.runs("--", "/bin/true")
    assert done.returncode == 4
    assert "NotRunning" in done.stderr


def test_a_restarted_agent_ends_the_shell_and_not_the_session(
    person: Person, agents: Agents, session: subprocess.Popen[bytes]
) -> None:
    child = person.sits_down("--", "/bin/sh", "-i")
    person.types("echo the pi''d is $$.\n")
    inside = int(person.reads(r"the pid is (\d+)\."))
    assert proc.start_time(inside)
    before = agents.facts()[0]["pid"]
    session.kill()
    session.wait()
    assert person.ends(child) == 7
    until(lambda: not proc.start_time(inside), "the shell is gone")
    agents.start()
    until(lambda: "linked to" in agents.log().partition("adopted, 1 alive")[2], "it takes the session up and is there")
    assert agents.facts()[0]["pid"] == before
    assert person.runs("--", "/bin/echo", "back").stdout == "back\n"


@pytest.mark.usefixtures("session")
def test_who_is_cut_off_leaves_nothing_behind(person: Person, agents: Agents) -> None:
    child = person.sits_down("--", "/bin/sh", "-i")
    person.types("sleep 600\n")
    until(lambda: asleep(agents), "somebody is in it, and at work")
    child.kill()
    child.wait()
    until(lambda: shells(agents) == 0, "the shell is gone")
    shim = int(agents.facts()[0]["shim"])
    until(lambda: len(proc.descendants_of(shim)) == 1, "there is the session itself and nothing else")


@pytest.mark.usefixtures("session")
def test_the_end_of_the_job_is_the_end_of_the_shell(
    person: Person, lab: HouseLab, agents: Agents, order: AttemptOrder
) -> None:
    child = person.sits_down("--", "/bin/bash", "--norc", "-i")
    person.types("echo i''n\n")
    person.sees("in\r\n")
    lab.order(running(order, "stop", command=[], session=True, launch="perNode", killSeconds=60))
    lab.wait_for("Gone")
    assert person.ends(child) == 128 + signal.SIGHUP
    assert "killedAt" not in agents.facts()[0], "nobody waited for the kill"


CONTAINER = """#!{python}
import ctypes, os, sys
libc, args, env, at = ctypes.CDLL(None), sys.argv[1:], {{"PATH": "/usr/bin:/bin"}}, 1
if args[0] in ("pull", "import", "image"):
    for file in (a for a in args if a.endswith((".sif", ".sqsh"))):
        open(file, "w").close()
    sys.exit()
for name, value in os.environ.items():
    if name.startswith("APPTAINERENV_"):
        env[name.removeprefix("APPTAINERENV_")] = value
while args[at].startswith("--"):
    option, is_one, value = args[at].partition("=")
    if not is_one and option in ("--env", "--mount"):
        at, value = at + 1, args[at + 1]
    if option == "--env":
        name, told, text = value.partition("=")
        env[name] = text if told else os.environ[name]
    at += 1
ended, tell = os.pipe()
if "podman" in sys.argv[0] and os.fork():  # as conmon leaves podman, which learns from a pipe how it ended
    os.close(tell)
    sys.exit(int(os.read(ended, 9) or b"1"))
if "podman" in sys.argv[0]:
    os.setsid()
    if os.fork():
        os._exit(0)
    libc.prctl(15, b"conmon")
user = os.geteuid(), os.getegid()
if libc.unshare(0x10000000 | 0x00020000 | 0x20000000) != 0:
    sys.exit("no namespaces here")
for file, text in (("setgroups", "deny"), ("uid_map", f"0 {{user[0]}} 1"), ("gid_map", f"0 {{user[1]}} 1")):
    with open(f"/proc/self/{{file}}", "w") as where:
        where.write(text)
child = os.fork()
if child == 0:
    os.environ.clear()
    os.execvpe(args[at + 1], args[at + 1 :], env)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os.write(tell, str(code if code >= 0 else 128 - code).encode())
sys.exit(code)
"""
"""A container as the kernel sees one: namespaces of its own, made by the job's user, and a runtime that wraps it."""
RUNTIMES = ["podman", "apptainer", "enroot"]


@pytest.fixture
def containers(tmp_path: Path, agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = subprocess.run(["unshare", "--user", "--map-root-user", "true"], check=False, capture_output=True)
    if trial.returncode != 0:
        pytest.skip("no user namespaces here")
    (tmp_path / "bin").mkdir(mode=0o755)
    for name in RUNTIMES:
        (tmp_path / "bin" / name).write_text(CONTAINER.format(python=sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    limits = f"[limits]\nruntimes = {' '.join(RUNTIMES)}\nregistries = nvcr.io/nvidia\n"
    agents.conf.write_text(f"{agents.conf.read_text()}{limits}[images]\ndir = images\nrunDir = run\n")


SAVES = """
trap 'echo 7 > "$GANGOPS_CHECKPOINT_MARKER"' USR1
cd /usr && touch "$GANGOPS_CHECKPOINT_DIR/ready"
while :; do sleep 0.1; done
"""
SEEN = "for kind in user mnt pid; do readlink /proc/self/ns/$kind; done; pwd; echo $GANGOPS_JOB $MINE; grep ^CapEff /proc/self/status"


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.usefixtures("containers")
def test_a_shell_is_inside_a_container_whatever_started_it(
    runtime: str, person: Person, lab: HouseLab, agents: Agents, order: AttemptOrder, tmp_path: Path
) -> None:
    agents.start()
    told = {"runtime": runtime, "image": "nvcr.io/nvidia/pytorch:25.01-py3", "launch": "perNode", "workingDir": ""}
    order = running(order, command=[], script=SAVES, env={"MINE": "inside", "LD_PRELOAD": ""}, **told)
    (tmp_path / "ckpt").mkdir(exist_ok=True)
    lab.run(order)
    until((tmp_path / "ckpt" / "ready").exists, "the rank runs")
    shim = int(agents.facts()[0]["shim"])
    wrapper = "conmon" if runtime == "podman" else runtime
    (work,) = [pid for pid in proc.descendants_of(shim)
               if proc.name_of(pid) == "bash" and proc.name_of(proc.parent_of(pid)) == wrapper]  # fmt: skip
    done = person.runs("--", "/bin/sh", "-c", SEEN)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [str(Path(f"/proc/{work}/ns/{kind}").readlink()) for kind in ("user", "mnt", "pid")]
    assert lines[:3] != [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("user", "mnt", "pid")]
    assert lines[3:5] == ["/usr", "nlp/train inside"]
    assert lines[5].split() == ["CapEff:", "0" * 16], (
        "root of the container has no more rights in a shell than in the job"
    )
    assert person.runs("--", "/bin/sh", "-c", "exit 7").returncode == 7
    assert person.runs("--", "/bin/sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
    child = person.sits_down("--", "/bin/sh")
    person.types("stty size; trap '' HUP TERM; echo beg''un; sleep 600\r")
    person.sees("30 100")
    person.sees("begun")
    until(lambda: asleep(agents), "the program of the shell runs among the job's")
    inside = asleep(agents)
    # The job is asked to save wherever its runtime has left it, and its end is the end of what ignores a hang-up.
    lab.order(replace(order, phase="checkpoint"))
    until((tmp_path / "ckpt" / "latest").exists, "it saved")
    lab.wait_for("Gone")
    assert person.ends(child) != 0
    until(lambda: not any(proc.start_time(pid) for pid in [*inside, work]), "nothing is left")


def asleep(agents: Agents) -> list[int]:
    """What a person types to have something that runs: `sleep 600`."""
    shim = int(agents.facts()[0]["shim"])
    return [pid for pid in proc.descendants_of(shim) if proc.name_of(pid) == "sleep" and b"600" in _words(pid)]


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


@pytest.mark.usefixtures("containers")
def test_a_container_in_which_nothing_runs_yet_has_no_shell(
    person: Person, lab: HouseLab, agents: Agents, order: AttemptOrder, tmp_path: Path
) -> None:
    (tmp_path / "bin" / "podman").write_text("#!/bin/sh\ncase $1 in run) sleep 600;; esac\n")
    agents.start()
    lab.run(running(order, runtime="podman", image="nvcr.io/nvidia/pytorch:25.01-py3", launch="perNode", workingDir=""))
    done = person.runs("--", "/bin/true")
    assert done.returncode == 126
    assert "nothing runs in the container yet" in done.stdout


@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
def test_a_shell_is_inside_the_container_of_its_rank(
    person: Person, lab: HouseLab, agents: Agents, order: AttemptOrder, tmp_path: Path
) -> None:
    agents.conf.write_text(agents.conf.read_text() + "[limits]\nruntimes = process bubblewrap\n")
    inside = tmp_path / "inside"
    script = f"touch {inside}; exec sleep 600"
    (tmp_path / "ckpt").mkdir()
    mounts = [{"source": str(tmp_path), "target": str(tmp_path), "readOnly": False}]
    agents.start()
    lab.run(running(order, command=["/bin/sh", "-c", script], runtime="bubblewrap", launch="perNode", mounts=mounts))
    until(inside.exists, "the rank runs")
    done = person.runs(
        "--", "/bin/sh", "-c", "readlink /proc/self/ns/mnt; touch /usr/x || echo read only; echo $GANGOPS_JOB"
    )
    assert done.returncode == 0, done.stdout
    namespace, *said = done.stdout.splitlines()
    assert namespace != str(Path("/proc/self/ns/mnt").readlink())
    assert said[-2:] == ["read only", "nlp/train"]
