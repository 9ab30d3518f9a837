"""A terminal inside a job: real keys, a real server, agent, shim and pseudo terminal, driven by the verb as people do."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
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
        until_when = time.monotonic() + PATIENCE
        while text.encode() not in self.shown:
            assert time.monotonic() < until_when, (text, self.shown)
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.master, 65536)
                except OSError:
                    raise AssertionError((text, self.shown)) from None

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
    assert shells(agents) == 1
    ioctl(person.master, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 77, 0, 0))
    os.kill(child.pid, signal.SIGWINCH)
    person.types("until [ \"$(stty size)\" = '41 77' ]; do :; done; echo resi''zed\n")
    person.sees("resized")
    person.types("echo go''ne; sleep 600\n")
    person.sees("gone\r\n")
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
    person.sees("the pid is ")
    person.sees(".\r\n")
    inside = int(person.shown.split(b"the pid is ")[1].split(b".")[0])
    assert proc.start_time(inside)
    before = agents.facts()[0]["pid"]
    session.kill()
    session.wait()
    assert person.ends(child) == 7
    until(lambda: not proc.start_time(inside), "the shell is gone")
    agents.start()
    until(lambda: "adopted, 1 alive" in agents.log(), "the session is taken up")
    assert agents.facts()[0]["pid"] == before
    until(lambda: agents.log().count("linked to") == 2, "the new agent is there")
    assert person.runs("--", "/bin/echo", "back").stdout == "back\n"


@pytest.mark.usefixtures("session")
def test_who_is_cut_off_leaves_nothing_behind(person: Person, agents: Agents) -> None:
    child = person.sits_down("--", "/bin/sh", "-i")
    person.types("sleep 600\n")
    until(lambda: shells(agents) == 1, "somebody is in it")
    child.kill()
    child.wait()
    until(lambda: shells(agents) == 0, "the shell is gone")
    assert len(proc.descendants_of(int(agents.facts()[0]["shim"]))) == 1, "the session itself"


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


@pytest.mark.skipif(not shutil.which("bwrap") or not shutil.which("nsenter"), reason="needs bubblewrap and nsenter")
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
