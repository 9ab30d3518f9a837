"""How does a person get a terminal inside a job? A pseudo terminal whose other end the rank's shim gives a program.

The program is the shim's child, so that it is bound, counted and ended like everything else of the rank, and dies of
a hang-up when this agent does. Here bytes go to and fro between the terminal and the person.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import struct
import termios
import time
from pathlib import Path
from typing import Any

from reconciler.agent.admission import VisitRefused
from reconciler.agent.folder import AttemptFolder
from reconciler.agent.websocket import BINARY, TEXT, WebSocket
from reconciler.wire import VisitRequest

_START_SECONDS = 10
_EXIT_SECONDS = 5
_CHUNK = 65536
_SIZE_LIMIT = 4096


class Terminal:
    """One terminal in one rank. Made, it runs; to be closed."""

    def __init__(self, folder: AttemptFolder, rank: int, asked: VisitRequest) -> None:
        """Raises VisitRefused(NotRunning)."""
        self._name = os.urandom(16).hex()
        self._request = folder.path / f"shell-{self._name}"
        self._master, slave = pty.openpty()
        try:
            self.resize(asked.rows, asked.columns)
            if not asked.terminal:
                _make_raw(slave)
            self._ask(folder, rank, asked, os.ttyname(slave))
            self._await_start()
        except BaseException:
            os.close(self._master)
            self._request.unlink(missing_ok=True)
            raise
        finally:
            os.close(slave)

    def _ask(self, folder: AttemptFolder, rank: int, asked: VisitRequest, tty: str) -> None:
        told = {"argv": asked.argv, "term": asked.terminal, "tty": tty}
        fd = os.open(self._request, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(told, file)
        if not folder.command(rank, f"shell {self._name}"):
            raise VisitRefused(f"rank {rank} does not run", code="NotRunning")

    def _await_start(self) -> None:
        """The shim takes the request away; then a moment is left for its child to open the terminal."""
        until = time.monotonic() + _START_SECONDS
        while self._request.exists():
            if time.monotonic() > until:
                raise VisitRefused(
                    "the rank's shim does not answer: was it started by an older agent?", code="NotRunning"
                )
            time.sleep(0.02)
        while time.monotonic() < until and not self._is_taken() and self.exit_code is None:
            time.sleep(0.02)

    def _is_taken(self) -> bool:
        """Whether a session leads the terminal: its child has opened it."""
        try:
            return fcntl.ioctl(self._master, termios.TIOCGPGRP, b"\0" * 4) != b"\0" * 4
        except OSError:
            return False

    def resize(self, rows: int, columns: int) -> None:
        """The person's window has this size now."""
        size = struct.pack("HHHH", *(min(max(one, 1), _SIZE_LIMIT) for one in (rows, columns)), 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    @property
    def exit_code(self) -> int | None:
        """How the program ended; None while it runs."""
        with contextlib.suppress(OSError, ValueError):
            return int(Path(f"{self._request}.exit").read_text(encoding="ascii"))
        return None

    def serve(self, line: WebSocket) -> int | None:
        """Carry bytes until the program has ended; its exit status. Raises LinkDown when the person has left."""
        poller = select.poll()
        poller.register(self._master, select.POLLIN)
        poller.register(line, select.POLLIN)
        while True:
            for kind, content in line.receive():
                self._obey(kind, content)
            code = self.exit_code  # before we look for output: what it said last came before its end
            if dict(poller.poll(1000)).get(self._master):
                output = self._read()
                if output is None:
                    return self._ended()
                line.send(output, BINARY)
            elif code is not None:  # what it left behind may hold the terminal open for ever
                return code

    def _obey(self, kind: int, content: bytes) -> None:
        if kind == BINARY:
            while content:
                content = content[os.write(self._master, content) :]
            return
        with contextlib.suppress(ValueError, TypeError, KeyError):
            told: dict[str, Any] = json.loads(content)
            if "size" in told:
                self.resize(int(told["size"][0]), int(told["size"][1]))
            elif told.get("eof"):
                os.write(self._master, b"\x04")

    def _read(self) -> bytes | None:
        """Output; None when nobody has the terminal open any more."""
        try:
            return os.read(self._master, _CHUNK) or None
        except OSError as err:
            if err.errno == errno.EIO:
                return None
            raise

    def _ended(self) -> int | None:
        until = time.monotonic() + _EXIT_SECONDS
        while (code := self.exit_code) is None and time.monotonic() < until:
            time.sleep(0.02)
        return code

    def close(self) -> None:
        """Hang up: the program and what it has in the foreground get SIGHUP."""
        os.close(self._master)
        Path(f"{self._request}.exit").unlink(missing_ok=True)


def _make_raw(terminal: int) -> None:
    """For who has no terminal: nothing is echoed or turned into something else."""
    mode = termios.tcgetattr(terminal)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, mode)


def tell_exit(line: WebSocket, code: int | None) -> None:
    """The last message of a shell."""
    line.send(json.dumps({"exit": code}).encode(), TEXT)
