"""What have the shims been told, and by which agent? Commands once and again until they are noted, deadlines once.

A shim reads commands from its FIFO, and notes them in its status file. When to tell it what is decided elsewhere.
"""

from __future__ import annotations

import contextlib

from reconciler.agent import proc
from reconciler.agent.folder import AttemptFolder, Shims
from reconciler.agent.journal import Key

SAY_AGAIN = 1_000_000_000
"""A shim that has not noted a command after this long (ns) is told again."""


class Told:
    """What this agent has told the shims of each attempt."""

    def __init__(self) -> None:
        self._commands: dict[tuple[Key, int, str], int] = {}
        self._deadlines: dict[Key, int | None] = {}

    def tell(self, key: Key, folder: AttemptFolder, rank: int, command: str) -> bool:
        """Tell a shim, unless it was told just now; whether it was told by this call."""
        now, what = proc.boottime(), (key, rank, command.partition(" ")[0])
        if now - self._commands.get(what, -SAY_AGAIN) < SAY_AGAIN or not folder.command(rank, command):
            return False
        self._commands[what] = now
        return True

    def knows_deadline(self, key: Key, deadline: int | None) -> None:
        """The shims of an attempt are started with this deadline."""
        self._deadlines[key] = deadline

    def pass_on_deadline(
        self, key: Key, folder: AttemptFolder, shims: Shims, expected: int, deadline: int | None
    ) -> None:
        """Once for each deadline, whichever agent did: when asked again, a wall clock that jumped would move it."""
        if self._deadlines.get(key, -1) == deadline or len(shims.seen) < expected:
            return
        if not folder.knows_deadline(deadline):
            end = proc.on_boottime(deadline)
            told = [folder.command(p.rank, f"deadline {end or '-'}") for p in shims.seen if p.alive]
            if not all(told):
                return
            with contextlib.suppress(OSError):  # a full disk: the next agent tells them again
                folder.note_deadline(deadline)
        self._deadlines[key] = deadline

    def forget(self, key: Key) -> None:
        """Nobody is left to be told anything."""
        self._deadlines.pop(key, None)
        self._commands = {what: at for what, at in self._commands.items() if what[0] != key}
