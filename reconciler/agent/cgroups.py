"""Which cgroups hold the processes of a rank together, and what do they limit? v2, v1, or none: what is there.

A hierarchy is a folder of ours in one mounted cgroup file system; a rank has the same path below each. With none of
them, process groups and descent must do. Shared by agent and shims, so it imports next to nothing.

v1 closes the GPUs of others by its devices controller. v2 has none but programs in the kernel's own language, which
is more than a standard library can load; there a container runtime or bubblewrap has to.
"""

# Not pathlib: it would double what a shim imports, and there is one shim for each rank.
# ruff: noqa: PTH103, PTH106, PTH112, PTH118, PTH120, PTH123

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence

NAME = "gangops"
"""Our folder at the top of a hierarchy that was found; one that was configured is used as it is."""
MOST_PROCESSES = 65536
"""Processes and threads of one rank: more is a fork bomb."""

_MOST_TRIES = 100
_V1 = ("memory", "pids", "devices")
Hierarchy = dict[str, str]
"""`kind` (v2, or the controller of v1), `root`, and for v2 the `controllers` to pass on to ranks, from `above` on."""
Controls = dict[str, list[list[str]]]
"""Pairs of file and text to write for a rank, by kind of hierarchy."""


def find_hierarchies(asked: str, mounts: str, *, may_make: bool) -> list[Hierarchy]:
    """Where ranks can be held: as `asked` (a v2 folder, `none`), else what is mounted, if we `may_make` folders there.

    `mounts` is the text of /proc/mounts. v2 is taken when it limits memory, or when there is nothing else.
    """
    if asked == "none" or not (asked or may_make):
        return []
    if asked:
        return [_v2(asked, os.path.dirname(asked.rstrip("/")))]
    # Read-only in a container, for instance: better no limits than no ranks.
    rows = [row for row in map(str.split, mounts.splitlines()) if len(row) > 3 and os.access(row[1], os.W_OK)]
    unified = next((row[1] for row in rows if row[2] == "cgroup2"), "")
    old = {name: row[1] for row in rows if row[2] == "cgroup" for name in row[3].split(",")}
    if unified and ("memory" in _words(os.path.join(unified, "cgroup.controllers")) or not set(_V1) & set(old)):
        return [{**_v2(os.path.join(unified, NAME), unified), "above": unified}]
    return [{"kind": name, "root": os.path.join(old[name], NAME)} for name in _V1 if name in old]


def _v2(root: str, above: str) -> Hierarchy:
    """`above` tells which controllers can be had below it."""
    offered = _words(os.path.join(root if os.path.isdir(root) else above, "cgroup.controllers"))
    return {"kind": "v2", "root": root, "controllers": " ".join(c for c in ("memory", "pids") if c in offered)}


def said_of(found: Sequence[Hierarchy]) -> str:
    """The hierarchies in a few words, for a person."""
    if not found:
        return "none: process groups are used, and nothing is limited"
    if found[0]["kind"] == "v2":
        limits = found[0]["controllers"].replace(" ", ", ") or "nothing, for no controller is delegated"
        return f"v2 limits {limits}; other GPUs are closed by bubblewrap or containers alone"
    kinds = [hierarchy["kind"] for hierarchy in found]
    closed = "closed" if "devices" in kinds else "not closed"
    return f"v1 limits {', '.join(kind for kind in kinds if kind != 'devices') or 'nothing'}; other GPUs are {closed}"


def controls_of(memory: int, foreign_gpus: Sequence[str]) -> Controls:
    """What to write for a rank with so many bytes of memory (0: no limit). Devices are `c MAJOR:MINOR`."""
    most, pids = [str(memory or "max"), str(memory or -1)], ["pids.max", str(MOST_PROCESSES)]
    return {
        "v2": [["memory.max", most[0]], pids],
        "memory": [["memory.limit_in_bytes", most[1]]],
        "pids": [pids],
        # A folder that a killed shim left may have closed what is this rank's own now.
        "devices": [["devices.allow", "a"], *(["devices.deny", f"{device} rwm"] for device in foreign_gpus)],
    }


def join(hierarchies: Sequence[Hierarchy], path: str, controls: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Put the calling process into its cgroups, limited. Raises OSError when one cannot be joined.

    A limit of v2 needs a controller, and which ones are delegated is the site's choice; a device that cannot be
    closed fails, for nothing else would close it.
    """
    for hierarchy in hierarchies:
        folder = os.path.join(hierarchy["root"], path)
        _make(folder)
        if hierarchy.get("controllers"):
            wanted = " ".join(f"+{name}" for name in hierarchy["controllers"].split())
            top = [hierarchy[name] for name in ("root", "above") if name in hierarchy]
            for above in reversed([*_between(hierarchy["root"], os.path.dirname(folder)), *top]):
                with contextlib.suppress(OSError):
                    _write(os.path.join(above, "cgroup.subtree_control"), wanted)
        for file, text in controls.get(hierarchy["kind"], ()):
            with contextlib.nullcontext() if file == "devices.deny" else contextlib.suppress(OSError):
                _write(os.path.join(folder, file), text)
        _write(os.path.join(folder, "cgroup.procs"), "0")


def adopt(hierarchies: Sequence[Hierarchy], path: str, pid: int) -> None:
    """Put a process, and what it starts from now on, into a rank's cgroups as they are. Raises OSError."""
    for hierarchy in hierarchies:
        _write(os.path.join(hierarchy["root"], path, "cgroup.procs"), str(pid))


def members(hierarchies: Sequence[Hierarchy], path: str) -> list[int]:
    """Pids in any of a rank's cgroups."""
    found: set[int] = set()
    for hierarchy in hierarchies:
        found.update(int(word) for word in _words(os.path.join(hierarchy["root"], path, "cgroup.procs")))
    return sorted(found)


def kill(hierarchies: Sequence[Hierarchy], path: str) -> None:
    """SIGKILL to all of a rank: at once where the kernel can, else to each in turn, to be repeated."""
    for hierarchy in hierarchies:
        if hierarchy["kind"] == "v2":
            with contextlib.suppress(OSError):
                _write(os.path.join(hierarchy["root"], path, "cgroup.kill"), "1")
    for pid in members(hierarchies, path):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def leave(hierarchies: Sequence[Hierarchy], path: str) -> None:
    """Remove a rank's cgroups, and the attempt's, the job's and the queue's as long as they are empty."""
    for hierarchy in hierarchies:
        for folder in _between(hierarchy["root"], os.path.join(hierarchy["root"], path)):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _make(folder: str) -> None:
    """The folder and those above it. A rank of the same queue that leaves may take one of them away, empty as it still is."""
    for left in reversed(range(_MOST_TRIES)):
        try:
            os.makedirs(folder, exist_ok=True)
        except FileNotFoundError:  # noqa: PERF203 - it is the reason to try again
            if not left:
                raise
        else:
            return


def _between(root: str, folder: str) -> Iterator[str]:
    """The folder and those above it, up to the root and without it."""
    while folder.startswith(root.rstrip("/") + "/"):
        yield folder
        folder = os.path.dirname(folder)


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
