"""Three hosts in one: network, mount, process and host name namespaces, with a bridge between them and no way out.

Each host sees this machine's own files through an overlay, so that what is written to /etc or /var/lib stays with it
and is gone afterwards. Stand-ins are there for what namespaces do not have: a service manager that starts units by
their own text, and a forge behind `ssh` whose repositories are in a folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
_SECONDS = 120

# The first process of a host: prepares its files, says so, and collects whatever is orphaned.
_INIT = """
import os, signal, socket, subprocess, sys
folder, name, *binds = sys.argv[1:]
def sh(*words):
    subprocess.run(words, check=True)
sh("mount", "-t", "tmpfs", "tmpfs", folder)
upper, work, root = (os.path.join(folder, part) for part in ("upper", "work", "root"))
for path in (upper, work, root):
    os.mkdir(path)
os.chmod(upper, 0o755)
sh("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root)
for source, target, way in (bind.split(":") for bind in binds):
    os.makedirs(root + target, exist_ok=True)
    sh("mount", "--rbind", source, root + target)
    if way == "ro":
        sh("mount", "-o", "remount,ro,bind", root + target)
for path in ("/dev", "/sys"):
    sh("mount", "--rbind", path, root + path)
sh("mount", "-t", "proc", "proc", root + "/proc")
sh("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", root + "/run")
socket.sethostname(name)
os.chroot(root)
os.chdir("/")
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("up", flush=True)
while True:
    signal.sigwait({signal.SIGCHLD})
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""

_SYSTEMCTL = '''#!/usr/bin/python3
"""daemon-reload, enable --now, start, stop, restart: as far as our units need them, by their own text."""
import os, pwd, shlex, signal, sys, time

def unit(name):
    found = {}
    for line in open(f"/etc/systemd/system/{name}.service"):
        key, equals, value = line.strip().partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, value)
    return found

def mark(name):
    return f"/run/{name}.pid"

def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

def others():
    """All of the host but its first process and whoever called us: what the one unit of a host has started."""
    mine, pid = {1}, os.getpid()
    while pid > 1:
        mine.add(pid)
        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in mine]

def stop(name):
    try:
        pid = int(open(mark(name)).read())
    except FileNotFoundError:
        return
    whole = unit(name).get("KillMode", "control-group") != "process"
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in others() if whole else [pid]:
            try:
                os.kill(one, number)
            except ProcessLookupError:
                pass
        end = time.monotonic() + 20
        while alive(pid) and time.monotonic() < end:
            time.sleep(0.05)
    os.unlink(mark(name))

def start(name):
    told = unit(name)
    person = pwd.getpwnam(told.get("User", "root"))
    for folder in told.get("StateDirectory", "").split():
        os.makedirs(f"/var/lib/{folder}", exist_ok=True)
        os.chmod(f"/var/lib/{folder}", int(told.get("StateDirectoryMode", "0755"), 8))
        os.chown(f"/var/lib/{folder}", person.pw_uid, person.pw_gid)
    log = os.open(f"/var/log/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    words = shlex.split(told["ExecStart"])
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.umask(int(told.get("UMask", "0022"), 8))
        os.initgroups(person.pw_name, person.pw_gid)
        os.setgid(person.pw_gid)
        os.setuid(person.pw_uid)
        os.execve(words[0], words, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": person.pw_dir, "LANG": "C.UTF-8"})
    open(mark(name), "w").write(str(pid))

verb, *names = [word for word in sys.argv[1:] if word != "--now"]
for name in names:
    name = name.removesuffix(".service")
    if verb in ("stop", "restart"):
        stop(name)
    if verb in ("start", "restart", "enable"):
        start(name)
'''

_SSH = """#!/bin/sh
# What git calls to reach the forge: its repositories are in /srv/git.
while :; do
  case "$1" in
    -o) shift 2 ;;
    -*) shift ;;
    *) break ;;
  esac
done
[ "$1" = git@git.example.org ] || { echo "ssh: no host $1" >&2; exit 255; }
shift
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
umask 0
cd /srv/git && exec sh -c "$*"
"""

_GANGOPS = f"""#!/bin/sh
exec {sys.executable} -m reconciler.cli "$@"
"""


@dataclass
class Host:
    """One host: `pid` is its first process as this machine sees it."""

    name: str
    pid: int
    process: subprocess.Popen[str]

    def enter(self, *words: str) -> list[str]:
        """The command line that runs these words in the host."""
        namespaces = ("--mount", "--net", "--uts", "--pid", "--root", "--wd")
        return ["nsenter", "--target", str(self.pid), *namespaces, "--", *words]

    def sh(self, script: str, *, check: bool = True) -> str:
        """What a script of root's prints. Raises AssertionError with everything it said when it fails."""
        done = subprocess.run(
            self.enter("/bin/bash", "-euo", "pipefail", "-c", script), env=_environment(), capture_output=True, text=True,
            timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"on {self.name}:\n{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str, *, mode: str = "0644") -> None:
        """Write a file there."""
        subprocess.run(
            self.enter("/bin/sh", "-c", f"cat > '{path}' && chmod {mode} '{path}'"), input=text, text=True, check=True,
            env=_environment(), timeout=_SECONDS,
        )  # fmt: skip

    def pids(self, pattern: str) -> list[int]:
        """Processes of the host whose command line matches, by the numbers they have there."""
        return [int(line) for line in self.sh(f"pgrep -f -- '{pattern}' || true").split()]


@dataclass
class Hosts:
    """A folder of shared files, and the hosts around it. A context manager: leaving it ends all of their processes."""

    folder: Path
    names: Sequence[str]
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def forge(self) -> Path:
        """The forge's repositories."""
        return self.folder / "srv"

    def __enter__(self) -> Self:
        try:
            for part in ("fs", "srv"):
                (self.folder / part).mkdir()
            (self.folder / "fs" / "logs").mkdir()
            for name in self.names:
                self._start(name)
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(host.pid, 9)  # the first process of a process namespace takes all others along
            host.process.wait(30)
            assert host.process.stdout is not None
            host.process.stdout.close()

    def _start(self, name: str) -> None:
        home = self.folder / name
        home.mkdir()
        binds = [f"{self.folder}/fs:/fs:rw", f"{self.folder}/srv:/srv/git:rw", f"{ROOT}:{ROOT}:ro"]
        with (self.folder / f"{name}.err").open("w") as errors:
            started = subprocess.Popen(
            ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private",
             "/usr/bin/python3", "-I", "-c", _INIT, str(home), name, *binds],
            stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        assert started.stdout is not None
        said = started.stdout.readline()
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        assert said == "up\n", (self.folder / f"{name}.err").read_text()
        assert len(children) == 1, children
        self.hosts[name] = host = Host(name=name, pid=int(children[0]), process=started)
        host.write("/usr/local/bin/systemctl", _SYSTEMCTL, mode="0755")
        host.write("/usr/local/bin/ssh", _SSH, mode="0755")

    def _connect(self) -> None:
        """A bridge on the first host; the others have one cable each to it."""
        first, *others = self.hosts.values()
        first.sh("ip link set lo up; ip link add br0 type bridge; ip addr add 10.77.0.1/24 dev br0; ip link set br0 up")
        known = ["127.0.0.1 localhost", f"10.77.0.1 {first.name} gangops.example.org git.example.org"]
        for number, host in enumerate(others, 11):
            # Made on the first host, which has its namespace by pid only outside: so from here, in its network alone.
            subprocess.run(
                ["nsenter", "--target", str(first.pid), "--net", "ip", "link", "add", f"to-{number}", "type", "veth", "peer",
                 "name", "eth0", "netns", str(host.pid)],
                check=True,
            )  # fmt: skip
            first.sh(f"ip link set to-{number} master br0 up")
            host.sh(f"ip link set lo up; ip addr add 10.77.0.{number}/24 dev eth0; ip link set eth0 up")
            known.append(f"10.77.0.{number} {host.name}")
        for host in self.hosts.values():
            host.write("/etc/hosts", "\n".join(known) + "\n")

    def install_package(self, name: str) -> None:
        """What `pip install gangops` leaves on a host: a command that every account may run.

        The Python and the tree it runs from may be where only root gets in: such folders are opened on this host alone.
        """
        used = (ROOT, Path(sys.executable).resolve())
        folders = " ".join(sorted({shlex.quote(str(folder)) for path in used for folder in path.parents}))
        self.hosts[name].sh(f"chmod o+x {folders}; mkdir -p /opt/gangops/bin")
        self.hosts[name].write("/opt/gangops/bin/gangops", _GANGOPS, mode="0755")

    def make_repository(self, path: str) -> Path:
        """An empty repository at the forge, that everyone who gets there may write."""
        made = self.forge / path
        made.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["git", "init", "--quiet", "--bare", "--initial-branch=main", "--shared=0666", str(made)],
            check=True,
            env=_environment(),
        )
        return made


def _environment() -> dict[str, str]:
    """That of an administrator who has logged in."""
    person = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _PERSON.items()}
    return {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **person}


_PERSON: Mapping[str, str] = {"NAME": "Ada", "EMAIL": "ada@example.org"}


# --- a page whose blocks are run ---


@dataclass(frozen=True)
class Block:
    """One fenced block: a script for hosts, or a file of one host. `step` is "" for the installation itself."""

    kind: str
    hosts: tuple[str, ...]
    text: str
    path: str = ""
    step: str = ""


_BLOCK = re.compile(
    r"^<!-- (?P<kind>on|file): (?P<what>[^;\n]*?)(?:; step: (?P<step>[\w-]+))? -->\n```\w+\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page that say where they are to be run or written, in order."""
    found = []
    for match in _BLOCK.finditer(page):
        words, kind = match["what"].split(), match["kind"]
        hosts, path = (words, "") if kind == "on" else (words[:1], words[1])
        found.append(Block(kind=kind, hosts=tuple(hosts), text=match["text"], path=path, step=match["step"] or ""))
    return found


def carry_out(block: Block, hosts: Mapping[str, Host]) -> None:
    """Do what a block says, word by word."""
    for name in block.hosts:
        if block.kind == "on":
            hosts[name].sh(block.text)
        else:
            hosts[name].write(block.path, block.text)


def why_not() -> str:
    """Why hosts cannot be made on this machine; "" when they can."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    others = [path for path in (ROOT, *ROOT.parents) if not path.stat().st_mode & 0o001]
    if others:
        return f"needs files that other users may read, not {others[0]}"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "needs to make network, mount and process namespaces"
