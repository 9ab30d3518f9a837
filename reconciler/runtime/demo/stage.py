"""The stage of the demo: its folders, its processes, and how all of them end.

Every process is a child of the demo, or becomes one when its parent dies (the demo is a subreaper), so that nothing
is left behind however it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from reconciler.agent.zipapp import build_zipapp
from reconciler.engines.certificates import issue_node, make_ca
from reconciler.errors import GangOpsError, NotFound
from reconciler.model.units import NodeName
from reconciler.runtime.clock import SystemClock
from reconciler.runtime.clone import Clone, open_clone
from reconciler.runtime.demo.files import GPU_TYPE, cluster_files, node_names
from reconciler.runtime.generation import Generation
from reconciler.runtime.service import begin_record
from reconciler.runtime.settings import Remote, Settings, settings_text
from reconciler.store.signatures import allowed_signers_line, make_key

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
_PORTS = range(20_000, 29_000)
PRINCIPAL = "reconciler@demo"
_IDENTITY = {"NAME": "Ada", "EMAIL": "ada@example.org"}


class Stage:
    """Folders and processes of one demo. Use as a context manager: leaving it ends every process."""

    def __init__(self, folder: Path, *, racks: int = 4) -> None:
        self.folder = folder
        self.racks = racks
        self.nodes = node_names(racks)
        # Loopback addresses of our own: two demos on one machine must not meet each other's ranks.
        self.network = f"127.{1 + os.getpid() % 250}.{os.getpid() // 250 % 250}"
        self.remote = folder / "remote.git"
        self.people = folder / "clone"
        self.logs = folder / "logs"
        self.checkpoints = folder / "ckpt"
        self.settings_file = folder / "reconciler" / "reconciler.toml"
        self.status = f"127.0.0.1:{free_port()}"
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._reconciler: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._reaper = threading.Thread(target=self._reap, daemon=True)
        self._before: frozenset[int] = frozenset()
        """Processes of whoever opens the stage: neither they nor what they start are the stage's to end."""

    def __enter__(self) -> Self:
        self._before = frozenset(descendants(os.getpid()))
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._reaper.start()
        return self

    def __exit__(self, *_: object) -> None:
        with _deaf():
            self._ending.set()
            self._reaper.join()
            self._end_all()
            # They have ended, and were collected with the orphans: Popen asks once more, and knows it too.
            for started in (*self._agents.values(), *([self._reconciler] if self._reconciler is not None else [])):
                started.poll()
        ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)

    # -- setting up

    def build(self) -> None:
        """Remote, people's clone, keys, certificates, settings and agent configurations."""
        reconciler = self.folder / "reconciler"
        clock = SystemClock()
        make_ca(reconciler / "ca", "demo", clock.now())
        signer = make_key(reconciler / "signing.key", PRINCIPAL)
        signers = allowed_signers_line(PRINCIPAL, signer.public_key())
        (self.folder / "allowed_signers").write_text(signers)
        self._make_remote(signers)
        listen = f"127.0.0.1:{free_port()}"
        settings = Settings(
            cluster_id="demo",
            desired=Remote(url=str(self.remote), branch="main"),
            state=Remote(url=str(self.remote), branch="allocations"),
            folder=reconciler / "state",
            signing_key=signer.key,
            identity=f"gangops <{PRINCIPAL}>",
            listen=listen,
            ca=reconciler / "ca",
            server_names=("127.0.0.1",),
            status=self.status,
        )
        self.settings_file.write_text(settings_text(settings))
        begin_record(settings)
        build_zipapp(self.folder / "agent.pyz")
        for number, node in enumerate(self.nodes, 1):
            self._configure(node, number, listen, clock)

    def _make_remote(self, signers: str) -> None:
        self.remote.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", "--initial-branch=main", str(self.remote), at=self.folder)
        self.git("clone", "--quiet", str(self.remote), str(self.people), at=self.folder)
        for path, text in cluster_files(self.racks).items():
            self.write(path, text)
        self.write("cluster-state/trust/allowed_signers", signers)
        self.commit("A cluster of four racks, two queues", branch="main")

    def _configure(self, node: str, number: int, listen: str, clock: SystemClock) -> None:
        home = self.folder / "nodes" / node
        issue_node(self.folder / "reconciler" / "ca", NodeName(node), home, clock.now())
        lines = [
            "[agent]",
            f"node = {node}",
            "cluster = demo",
            f"servers = https://{listen}",
            f"address = {self.network}.{number}",
            "stateDir = state",
            "runAs = self",
            "[tls]",
            "ca = ca.crt",
            f"cert = {node}.crt",
            f"key = {node}.key",
            "[trust]",
            f"allowedSigners = {self.folder / 'allowed_signers'}",
            f"principal = {PRINCIPAL}",
            "[logs]",
            f"dir = {self.logs}",
            "[simulate]",
            "gpus = 8",
            f"type = {GPU_TYPE}",
        ]
        (home / "agent.conf").write_text("\n".join(lines) + "\n")
        (home / "agent.conf").chmod(0o600)

    # -- processes

    def start_reconciler(self, **environment: str) -> None:
        """`environment` is added to our own, for tests that make it die at a certain line."""
        command = [sys.executable, "-m", "reconciler.cli", "reconcile", "--settings", str(self.settings_file)]
        with (self.folder / "reconciler.log").open("ab") as log:
            self._reconciler = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}
            )

    def reconciler_ended(self, seconds: float) -> int:
        """The exit status of the reconciler, once it ends by itself. Raises TimeoutExpired."""
        assert self._reconciler is not None
        status = self._reconciler.wait(timeout=seconds)
        self._reconciler = None
        return status

    def kill_reconciler(self) -> None:
        assert self._reconciler is not None
        self._reconciler.kill()
        self.reconciler_ended(10)

    def kill_agent(self, node: str) -> None:
        """The agent alone, as by kill -9; its shims and ranks go on."""
        agent = self._agents.pop(node)
        agent.kill()
        agent.wait()

    def ranks_on(self, node: str) -> list[int]:
        """Process ids of the training processes on a node: those below its shims."""
        home, script = str(self.folder / "nodes" / node), str(self.folder / "train.py")
        shims = [pid for pid in descendants(os.getpid()) if home in command_line(pid)]
        return sorted({pid for shim in shims for pid in descendants(shim) if script in command_line(pid)})

    def start_agents(self) -> None:
        for node in self.nodes:
            self.start_agent(node)

    def start_agent(self, node: str) -> None:
        self._start_agent(node)

    def _start_agent(self, node: str, *within: str) -> None:
        """`within`: a command that runs the agent somewhere else, such as in a network namespace."""
        home = self.folder / "nodes" / node
        agent = str(self.folder / "agent.pyz")
        command = [*within, sys.executable, "-I", "-S", agent, "run", "--conf", str(home / "agent.conf")]
        with (home / "agent.log").open("ab") as log:
            self._agents[node] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def fail_node(self, node: str) -> int:
        """Everything on a node dies at once, as when its power goes: how many processes that were."""
        home = str(self.folder / "nodes" / node)
        agent = self._agents.pop(node)
        doomed = {agent.pid, *(pid for pid in descendants(os.getpid()) if home in command_line(pid))}
        for pid in sorted(doomed):
            doomed.update(descendants(pid))
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()
        return len(doomed)

    def count_processes(self) -> int:
        return len(self._below())

    def alive(self) -> list[int]:
        """Processes of the stage that have not ended."""
        return [pid for pid in self._below() if not is_zombie(pid)]

    def _below(self) -> list[int]:
        return descendants(os.getpid(), besides=self._before)

    def _end_all(self) -> None:
        """Ask every process of the stage to end, then make it; until none is left."""
        for wanted, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            end = time.monotonic() + seconds
            while time.monotonic() < end and (left := self.alive()):
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, wanted)
                time.sleep(0.1)
        for pid in children(os.getpid()):
            if pid not in self._before:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _reap(self) -> None:
        while not self._ending.wait(0.05):
            collect_orphans(besides=self._before)

    # -- people

    def git(self, *arguments: str, at: Path | None = None) -> str:
        """One git command of a person, isolated from this machine's own git configuration."""
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _IDENTITY.items()},
        }
        done = subprocess.run(
            ["git", *arguments], cwd=at or self.people, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise GangOpsError(f"git {' '.join(arguments)}: {done.stderr.strip()}", code="DemoFailed")
        return done.stdout

    def write(self, path: str, text: str) -> None:
        file = self.people / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def commit(self, subject: str, *, branch: str) -> None:
        """Commit all changes; on `main` push them, else leave them on a branch of that name."""
        if branch != "main":
            self.git("checkout", "--quiet", "-B", branch)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", subject)
        if branch == "main":
            self.git("push", "--quiet", "origin", "HEAD:main")

    def merge(self, branch: str, subject: str) -> None:
        """What a forge does when a pull request is merged."""
        self.git("checkout", "--quiet", "main")
        self.git("merge", "--quiet", "--no-ff", "-m", subject, branch)
        self.git("push", "--quiet", "origin", "main")

    # -- watching

    @property
    def clone(self) -> Clone:
        return open_clone(self.remote)

    def until(self, what: str, seconds: float, holds: Callable[[Generation], bool]) -> Generation:
        """The first generation for which `holds`. Raises NotFound (TimedOut) with the end of the reconciler's log."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check_alive()
            generation = self.clone.generation()
            if holds(generation):
                return generation
            time.sleep(0.2)
        tail = "\n".join((self.folder / "reconciler.log").read_text("utf-8", "replace").splitlines()[-15:])
        raise NotFound(
            f"{what}: not within {seconds:.0f} s\n{tail}", code="TimedOut", remedy=f"look into {self.folder}"
        )

    def _check_alive(self) -> None:
        if self._reconciler is not None and self._reconciler.poll() is not None:
            tail = "\n".join((self.folder / "reconciler.log").read_text("utf-8", "replace").splitlines()[-15:])
            raise GangOpsError(f"the reconciler ended\n{tail}", code="DemoFailed")


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A second Ctrl-C must not leave processes behind: ending them takes a few seconds, and is not interrupted."""
    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in asked}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago.

    It is none that kernels give to outgoing connections (32768 and up on Linux), nor one that jobs are given: until its
    server listens, only another stage could take it, and would have to draw the same one.
    """
    while True:
        port = secrets.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def descendants(root: int, *, besides: frozenset[int] = frozenset()) -> list[int]:
    """Process ids below one, nearest first, without those `besides` and what is below them."""
    parents = _parents()
    found = [root]
    for pid in found:
        found += sorted(child for child, parent in parents.items() if parent == pid and child not in besides)
    return found[1:]


def children(root: int) -> list[int]:
    """Process ids directly below one."""
    return sorted(child for child, parent in _parents().items() if parent == root)


def _parents() -> dict[int, int]:
    return {pid: int(stat[1]) for pid, stat in _stats()}


def _stats() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


def is_zombie(pid: int) -> bool:
    """It ended and waits for its parent; one that is gone altogether is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def command_line(pid: int) -> str:
    """Its arguments joined by blanks, "" when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""


def collect_orphans(*, besides: frozenset[int] = frozenset()) -> None:
    """Collect shims and ranks that became ours and have ended, so that none stays a zombie.

    Shims begin sessions of their own. Whom we started ourselves is in ours, and left to whoever waits for it: a status
    that was collected here would be lost, and be taken for 0 there.
    """
    for pid in children(os.getpid()):
        if pid in besides:
            continue
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if is_zombie(pid) and os.getsid(pid) != os.getsid(0):
                os.waitpid(pid, os.WNOHANG)
