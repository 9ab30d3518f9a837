"""What passes between agent and shims? The folder of an attempt: spec, lock, status files, command FIFOs, lease.

Its files are the same for every version of either side, since shims outlive their agent: `spec.json` (read once by
the launcher, under `launch.lock`), `N.status` (key=value lines, replaced as a whole), `N.ctl` (a FIFO), `lease`, and
`deadline`, which agents alone read.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reconciler.agent import proc
from reconciler.agent.attempts import LaunchedSeen

Facts = dict[str, str]


@dataclass(frozen=True)
class Shims:
    """What the status files of one attempt say now: raw by rank, and as `judge` wants to see it."""

    facts: dict[int, Facts]
    seen: tuple[LaunchedSeen, ...]


@dataclass(frozen=True)
class AttemptFolder:
    """The files of one attempt; nothing is kept here but the path."""

    path: Path

    def shims(self) -> Shims:
        """Every shim that ever wrote a status, and whether anything of its process is left."""
        facts: dict[int, Facts] = {}
        for path in self.path.glob("*.status"):
            if found := read_facts(path):
                facts[int(found["rank"])] = found
        return Shims(facts, tuple(self._seen_of(facts, rank) for rank in sorted(facts)))

    def _seen_of(self, every: dict[int, Facts], rank: int) -> LaunchedSeen:
        facts, lost = every[rank], False
        if "gone" not in facts and not proc.is_alive(int(facts["shim"]), int(facts["shimStart"])):
            # It may have ended properly between our reading and our looking.
            facts = every[rank] = read_facts(self.path / f"{rank}.status") or facts
            lost = "gone" not in facts
        return LaunchedSeen(
            rank=rank,
            started="startedAt" in facts,
            alive=bool(leftovers(facts)) if lost else "gone" not in facts,
            lost=lost,
            code=int(facts["exit"]) if "exit" in facts else None,
            ended_at=int(facts.get("exitAt", "0")),
            cause=facts.get("cause", ""),
            error=facts.get("error", ""),
            signalled="signalledAt" in facts,
            terminating="termAt" in facts,
            killed_at=int(facts["killedAt"]) if "killedAt" in facts else None,
        )

    def write_spec(self, spec: dict[str, Any]) -> Path:
        """What the launcher will read. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self.path / "spec.new"
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(spec), encoding="utf-8")
        return fresh.replace(self.path / "spec.json")

    def is_launching(self) -> bool:
        """Whether a launcher, ours or a dead agent's, is at work; its shims hold the lock until they are known."""
        with self._lock() as ours:
            return not ours

    def cancel_launch(self) -> bool:
        """Make sure that nothing is launched from now on; False when a launcher is just at it.

        A launcher reads the spec under the lock: one that comes later finds none. Without this, a launcher that a
        dead agent left behind could start ranks after they were reported gone.
        """
        with self._lock() as ours:
            if ours:
                (self.path / "spec.json").unlink(missing_ok=True)
            return ours

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Whether the lock is free; held meanwhile."""
        if not self.path.is_dir():
            yield True
            return
        fd = os.open(self.path / "launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)

    def command(self, rank: int, words: str) -> bool:
        """Tell a shim; False when none listens (yet, or any more)."""
        try:
            fd = os.open(self.path / f"{rank}.ctl", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return os.write(fd, f"{words}\n".encode()) > 0
        except OSError:
            return False
        finally:
            os.close(fd)

    def extend_lease(self, end: int) -> None:
        """To this boottime, never to an earlier one. In place and of one length: a full disk must not end a lease."""
        fd = os.open(self.path / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if end > int(os.pread(fd, 20, 0) or b"0"):
                os.pwrite(fd, b"%020d" % end, 0)
        finally:
            os.close(fd)

    def note_deadline(self, deadline: int | None) -> None:
        """Every shim knows of this instant of the wall clock, None for none. Raises OSError."""
        fresh = self.path / "deadline.new"
        fresh.write_text(f"{-1 if deadline is None else deadline}\n", encoding="ascii")
        fresh.replace(self.path / "deadline")

    def knows_deadline(self, deadline: int | None) -> bool:
        """Whether that was noted last, by whichever agent."""
        try:
            noted = int((self.path / "deadline").read_bytes())
        except (OSError, ValueError):
            return False
        return noted == (-1 if deadline is None else deadline)

    def remove(self) -> None:
        """Forget the attempt."""
        with contextlib.suppress(OSError):
            for path in self.path.iterdir():
                path.unlink(missing_ok=True)
            self.path.rmdir()
            self.path.parent.rmdir()  # unless it has other attempts


def leftovers(facts: Facts) -> list[int]:
    """What a dead shim left running: the rank itself, what carries its mark, what is in its cgroup."""
    pid, start = int(facts.get("pid", "0")), int(facts.get("start", "0"))
    found = {pid} if proc.is_alive(pid, start) else set()
    found.update(proc.marked(int(facts["shim"]), int(facts["shimStart"])))
    if facts.get("cgroup"):
        with contextlib.suppress(OSError):
            found.update(int(line) for line in Path(facts["cgroup"], "cgroup.procs").read_text("ascii").split())
    return sorted(found)


def sweep(facts: Facts) -> None:
    """Kill what a dead shim left running."""
    for pid in leftovers(facts):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def read_facts(path: Path) -> Facts:
    """A status file's lines; {} when it is not there."""
    try:
        pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines())
        return {key: value for key, _, value in pairs}
    except OSError:
        return {}
