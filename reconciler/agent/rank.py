"""How does a forked child become a rank? Its cgroups, CPUs, memory, user, environment and program, in this order.

Everything that needs root is done before the user is changed, and nothing is left to get it back with. What ought to
be done is in the spec (`launch`); this only does it, or says why not.
"""

# Not pathlib: it would double what a shim imports, and there is one shim for each rank.
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import resource
import signal
import termios
from collections.abc import Sequence
from typing import Any, NoReturn

from reconciler.agent import cgroups, proc
from reconciler.agent.beneath import open_beneath
from reconciler.agent.inside import enter, environment_in

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_BIND = 2
_MOST_NODES = 1024
_libc = ctypes.CDLL(None, use_errno=True)

DEADLY = (signal.SIGTERM, signal.SIGHUP)
"""Signals that shims use to end what they started, and have handlers for themselves: blocked while they fork."""


def be_rank(spec: dict[str, Any], launched: dict[str, Any], output: int, failure: int) -> NoReturn:
    """Become the rank. Never returns; why it failed goes to the pipe `failure`, which closes when it did not."""
    status, subject = 126, ""
    try:
        parent = os.getppid()
        os.setpgid(0, 0)
        _reset_signals()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        set_oom_score(0)
        if launched["cgroup"]:
            cgroups.join(spec["cgroups"], launched["cgroup"], launched["controls"])
        _bind(launched["cpus"])
        _bind_memory(launched["memoryNodes"], launched["memory"])
        with contextlib.suppress(OSError, ValueError):  # RDMA pins memory; only root may allow it
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        argv, environment = _command(launched, {proc.MARK: f"{parent}.{proc.start_time(parent)}"})
        os.umask(0o022)
        _become(launched)
        if launched["noNewPrivs"]:
            prctl(_PR_SET_NO_NEW_PRIVS, 1)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
        if os.getppid() != parent:
            os._exit(137)
        subject = launched["cwd"]
        os.chdir(subject)
        status, subject = 127, argv[0]
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - a shell is used only when ordered
    except BaseException as err:  # noqa: BLE001 - the child must end here, whatever happened
        reason = f"{err.strerror}: {subject or err.filename}" if isinstance(err, OSError) else repr(err)
        with contextlib.suppress(OSError):
            os.write(failure, reason.encode("utf-8", "replace"))
    finally:
        os._exit(status)


def be_shell(spec: dict[str, Any], launched: dict[str, Any], asked: dict[str, Any], work: int) -> NoReturn:
    """Become what a person asked for: a program on their terminal, as the rank's user, with its environment, bounds and
    devices; inside its container where it has one, and `work` is a process there. Never returns."""
    status = 126
    try:
        parent = os.getppid()
        os.setsid()
        _reset_signals()
        terminal = os.open(asked["tty"], os.O_RDWR)
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for fd in (0, 1, 2):
            os.dup2(terminal, fd)
        set_oom_score(0)
        if launched["cgroup"]:
            cgroups.join(spec["cgroups"], launched["cgroup"], {})  # its limits stand there already
        _bind(launched["cpus"])
        mark = {proc.MARK: f"{parent}.{proc.start_time(parent)}"}
        environment = environment_in(work) if launched["wrappers"] else launched["env"]
        environment = {**environment, **secrets(launched["secretFiles"]), **mark}
        environment |= {"TERM": asked["term"]} if asked["term"] else {}
        os.umask(0o022)
        if launched["uid"] is not None:
            os.fchown(terminal, launched["uid"], -1)
        _become(launched)
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if launched["wrappers"]:
            enter(work)
        else:
            with contextlib.suppress(OSError):
                os.chdir(launched["cwd"] or "/")
        shell = "/bin/sh" if launched["wrappers"] else environment.get("SHELL") or "/bin/sh"
        argv = asked["argv"] or [shell, "-l"]
        status = 127
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - who holds the job chose it
    except BaseException as err:  # noqa: BLE001 - the child must end here, whatever happened
        reason = err.strerror or "" if isinstance(err, OSError) else repr(err)
        with contextlib.suppress(OSError):
            os.write(2, f"gangops: {reason}\r\n".encode("utf-8", "replace"))
    finally:
        os._exit(status)


def prctl(option: int, value: int) -> None:
    """Raises OSError."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def set_oom_score(score: int) -> None:
    """The rank is to be killed for want of memory, not its shim."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEADLY)  # who was told to end meanwhile ends here


def _command(launched: dict[str, Any], mark: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """What to execute in which environment, with the secrets and our mark put where this runtime takes them from.

    A container's environment is told by name alone: values would stand in the command line for everyone to read.
    """
    hidden = {**secrets(launched["secretFiles"]), **mark}
    way = launched["hidden"]
    options = [word for name in hidden for word in (way["option"], name)] if way["option"] else []
    argv = [*launched["argv"][: way["at"]], *options, *launched["argv"][way["at"] :]]
    return argv, {**launched["env"], **{way["prefix"] + name: value for name, value in hidden.items()}, **mark}


def secrets(files: Sequence[Sequence[str]]) -> dict[str, str]:
    """KEY=VALUE lines of root's files on this node, each a root folder and a path beneath it.

    Read at the last moment, kept nowhere. Raises OSError.
    """
    found = {}
    for root, path in files:
        with open(open_beneath(root, path, os.O_RDONLY), encoding="utf-8") as file:
            for line in file:
                key, separator, value = line.strip().partition("=")
                if separator and not key.startswith("#"):
                    found[key.strip()] = value.strip()
    return found


def _become(launched: dict[str, Any]) -> None:
    if launched["uid"] is None:
        return
    os.setgroups(launched["groups"])
    os.setresgid(launched["gid"], launched["gid"], launched["gid"])
    os.setresuid(launched["uid"], launched["uid"], launched["uid"])


def _bind(cpus: list[int]) -> None:
    """CPU affinity, as far as these CPUs exist here; a pretended node may name more than there are."""
    present = set(cpus) & os.sched_getaffinity(0)
    if present:
        os.sched_setaffinity(0, present)


def _bind_memory(nodes: list[int], needed: int) -> None:
    """Memory from these NUMA nodes alone, unless they have less than the rank may use: then it would be killed for it."""
    mask = sum(1 << node for node in bindable(nodes, needed))
    number = _SET_MEMPOLICY.get(platform.machine())
    if mask and number:
        words = [mask >> 64 * i & (1 << 64) - 1 for i in range(_MOST_NODES // 64)]
        # A kernel without NUMA answers that it has no such call.
        _libc.syscall(number, _MPOL_BIND, (ctypes.c_uint64 * len(words))(*words), ctypes.c_ulong(_MOST_NODES + 1))


def bindable(nodes: Sequence[int], needed: int) -> list[int]:
    """Those of the NUMA nodes that memory can be bound to; none when together they have less than is needed."""
    sizes = {node: _memory_of(node) for node in nodes if 0 <= node < _MOST_NODES}
    return [node for node, size in sizes.items() if size] if needed <= sum(sizes.values()) else []


def _memory_of(node: int) -> int:
    """Bytes of a NUMA node, 0 when it has none or is not there."""
    try:
        with open(f"/sys/devices/system/node/node{node}/meminfo", encoding="ascii") as file:
            return int(file.readline().split()[3]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
