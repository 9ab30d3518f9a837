"""What should people know of this node that no decision reads? Room on disks, the certificate's end, and ranks that are
not bound to the CPUs and memory they were ordered to.

Looked at now and then by a thread of its own, for a disk may hang. Only what differs from an order is told of
bindings: a healthy node says next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reconciler.agent import proc
from reconciler.agent.conf import Conf
from reconciler.agent.identity import NotEnrolled, lifetime_of
from reconciler.agent.rank import bindable
from reconciler.wire import MAX_MISBOUND

LOOK_SECONDS = 30
_MOST_DESCENDANTS = 64  # of one rank: a data loader may have more, and they are all alike


@dataclass(frozen=True)
class Bound:
    """A living rank and what it was ordered to be bound to: numbers of CPUs and NUMA nodes, and its memory in bytes."""

    job: str
    rank: int
    pid: int
    cpus: Sequence[int]
    memory_nodes: Sequence[int]
    memory: int


class Vitals(threading.Thread):
    """Keeps `last` fresh."""

    def __init__(self, conf: Conf, ranks: Callable[[], Iterable[Bound]]) -> None:
        super().__init__(name="vitals", daemon=True)
        self._conf = conf
        self._ranks = ranks
        self.last: dict[str, Any] = {}

    def run(self) -> None:
        while True:
            self.last = self.look()
            time.sleep(LOOK_SECONDS)

    def look(self) -> dict[str, Any]:
        """All of it, as a report carries it; what cannot be found out is left out."""
        paths = dict.fromkeys((str(self._conf.state_dir), str(self._conf.logs_dir)))
        found: dict[str, Any] = {"disks": [disk for path in paths if (disk := disk_of(path))]}
        with contextlib.suppress(NotEnrolled):
            found["certificateEnds"] = lifetime_of(self._conf.cert)[1]
        wrong = [told for rank in self._ranks() for told in misbound(rank)]
        return {**found, "misbound": wrong[:MAX_MISBOUND]}


def disk_of(path: str) -> dict[str, Any] | None:
    """Bytes left for us of how many, on the file system of a path; None when it does not say."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return {"path": path, "free": found.f_bavail * found.f_frsize, "size": found.f_blocks * found.f_frsize}


def misbound(rank: Bound) -> list[dict[str, Any]]:
    """Where a rank, or what it started, is bound otherwise than ordered: one row for CPUs and one for memory at most."""
    pids = [rank.pid, *proc.descendants_of(rank.pid)[:_MOST_DESCENDANTS]]
    rows = []
    # A pretended node names CPUs this machine does not have; a narrower binding within the ordered one is the job's own.
    wanted = set(rank.cpus) & _present()
    for pid in pids if wanted else ():
        seen = _cpus_of(pid)
        if seen and not seen <= wanted:
            rows.append(_row(rank, pid, "cpus", sorted(wanted), ",".join(_ranges(sorted(seen)))))
            break
    nodes = bindable(rank.memory_nodes, rank.memory)
    for pid in pids if nodes else ():
        policy = _policy_of(pid)
        if policy and policy != "bind:" + ",".join(_ranges(sorted(nodes))):
            rows.append(_row(rank, pid, "memory", sorted(nodes), policy))
            break
    return rows


def _row(rank: Bound, pid: int, what: str, ordered: Sequence[int], seen: str) -> dict[str, Any]:
    told = {"ordered": ",".join(_ranges(ordered)), "seen": seen[:200]}
    return {"job": rank.job, "rank": rank.rank, "pid": pid, "what": what, **told}


def _present() -> set[int]:
    """The CPUs an agent can give out: those it may use itself."""
    return os.sched_getaffinity(0)


def _cpus_of(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except OSError:  # gone
        return set()


def _policy_of(pid: int) -> str:
    """The memory policy of a process, as `bind:0`; "" where the kernel does not tell.

    Only the first line is read: the kernel walks through all pages of a mapping to write its line, and the first
    one, the program's own, is small and follows the policy of the whole process.
    """
    try:
        with open(f"/proc/{pid}/numa_maps", "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered, one read
            words = file.read(512).split(b"\n")[0].split()
    except OSError:
        return ""
    return words[1].decode("ascii", "replace") if len(words) > 1 else ""


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Sorted numbers in Linux list syntax, as `0-3`, `8`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]
