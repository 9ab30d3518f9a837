"""How does a person's program get into the container that a rank runs in? By joining the namespaces of the work there.

Whatever started the container: the kernel lets the user who made its user namespace in, and nobody asks the runtime. The
program that joins is our own until it executes what the person asked for, so nothing of the container's environment
has a say before that. It has no capability there and cannot get any. Imports next to nothing: shims do this.
"""

# Not pathlib: it would double what a shim imports, and there is one shim for each rank.
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Collection

from reconciler.agent import proc

_OURS = b"GANGOPS_JOB="
"""In the environment of the work, and of nothing that starts it."""
_KINDS = {"user": 0x10000000, "mnt": 0x00020000, "pid": 0x20000000, "ipc": 0x08000000, "uts": 0x04000000}
"""Namespaces that are joined where the work has its own, in this order: the first gives the right to the others."""
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_MOST_CAPABILITIES = 64
_libc = ctypes.CDLL(None, use_errno=True)


def work_behind(wrappers: Collection[str], apart: Collection[int]) -> int:
    """The topmost process below us that is the work and not what wraps it; 0 when nothing runs there yet.

    `apart` are children of ours that are no part of it. Where a runtime has left its parent, its orphans are ours.
    """
    waiting = [pid for pid in proc.children_of(os.getpid()) if pid not in apart]
    for pid in waiting:
        if proc.start_time(pid) and proc.name_of(pid) not in wrappers and _is_told(pid):
            return pid
        waiting.extend(proc.children_of(pid))
    return 0


def _is_told(pid: int) -> bool:
    return any(line.startswith(_OURS) for line in _environ(pid))


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def environment_in(work: int) -> dict[str, str]:
    """What the work was started with."""
    pairs = (line.decode("utf-8", "replace").partition("=") for line in _environ(work))
    return {name: value for name, sign, value in pairs if sign}


def enter(work: int) -> None:
    """Be where `work` is: its namespaces, its root, its folder. The caller is single-threaded and already its user.

    Raises OSError. May return in a child: then the caller's process waits for it and ends as it does.
    """
    if not work:
        raise OSError(errno.ESRCH, "nothing runs in the container yet")
    held = {kind: os.open(f"/proc/{work}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _own_kinds(work)}
    root = os.open(f"/proc/{work}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    folder = os.open(f"/proc/{work}/cwd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for kind, fd in held.items():
        if _libc.setns(fd, _KINDS[kind]) != 0:
            raise OSError(ctypes.get_errno(), f"the container's {kind} namespace cannot be joined")
    if not os.path.samestat(os.fstat(root), os.stat("/")):  # noqa: PTH116 - no pathlib here
        os.fchdir(root)
        os.chroot(".")
    with contextlib.suppress(OSError):
        os.fchdir(folder)
    if "user" in held:
        _give_up_capabilities()
    if "pid" in held:
        _go_on_in_a_child()


def _own_kinds(work: int) -> list[str]:
    """The kinds of which the work has a namespace of its own."""
    return [kind for kind in _KINDS if not os.path.samestat(_namespace(str(work), kind), _namespace("self", kind))]


def _namespace(pid: str, kind: str) -> os.stat_result:
    return os.stat(f"/proc/{pid}/ns/{kind}")  # noqa: PTH116 - no pathlib here


def _give_up_capabilities() -> None:
    """Who joins a user namespace has every capability in it until a program is executed, as its root even after that."""
    for capability in range(_MOST_CAPABILITIES):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def _go_on_in_a_child() -> None:
    """Only children are in the process ids that were joined."""
    child = os.fork()
    if child == 0:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        return
    for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):  # keys of the terminal are for what runs there
        signal.signal(signum, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(128 - code if code < 0 else code)
