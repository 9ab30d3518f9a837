"""What does the kernel say about a process: is it alive, is it still the same one, who descends from it?

A pid alone proves nothing, because pids come round again; a process is known by boot id, pid and start time.
Shared by agent and shim, so it imports next to nothing.
"""

# Not pathlib: it would double what a shim imports, and there is one shim for each rank.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import time

MARK = "GANGOPS_SHIM"
"""Set in the environment of everything launched: pid and start time of its shim, `PID.START`."""


def boot_id() -> str:
    """The kernel's name for this boot; another one means that nothing from before is left."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def boottime() -> int:
    """Nanoseconds since boot, suspend included; never jumps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def on_boottime(instant: int | None) -> int | None:
    """A wall-clock instant (ns) on the clock that never jumps."""
    return None if instant is None else boottime() + instant - time.time_ns()


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on (the second may hold anything); [] when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (OSError, ValueError):
        return []


def start_time(pid: int) -> int:
    """Clock ticks between boot and the start of `pid`; 0 when it is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else 0


def is_alive(pid: int, start: int) -> bool:
    """Whether exactly this process still runs. A zombie holds nothing and counts as gone."""
    return pid > 0 and start > 0 and start_time(pid) == start


def cpu_time(pid: int) -> int:
    """CPU time of a process and of its children that ended, in ns; 0 when it is gone."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if len(fields) > 15 else 0


def parent_of(pid: int) -> int:
    """The parent's pid; 0 when there is none or `pid` is gone."""
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def marked(shim: int, start: int) -> list[int]:
    """Living processes that a shim's process started: known by a mark in their environment, wherever they went."""
    mark, found = f"{MARK}={shim}.{start}".encode(), []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and start_time(int(entry)):
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(int(entry))
    return found


def children_of(pid: int) -> list[int]:
    """Pids of the direct children, zombies included."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found.extend(int(child) for child in file.read().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """Pids of all descendants, parents before children."""
    found = children_of(pid)
    for child in found:
        found.extend(children_of(child))
    return found


def name_of(pid: int) -> str:
    """The name of what it executes, as the kernel cuts it (15 bytes); "" when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().rstrip("\n")
    return ""


def listens_to(pid: int, signum: int) -> bool:
    """Whether the process would act on the signal: it has a handler for it, or waits for it with it blocked."""
    mask = 0
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            if line.startswith(("SigCgt:", "SigBlk:")):
                mask |= int(line.split()[1], 16)
    return bool(mask >> (signum - 1) & 1)
