"""What a program says on its terminal arrives, also what it says in the instant of its end."""

from __future__ import annotations

import os
import pty
import socket
from collections.abc import Iterator

import pytest

from reconciler.agent.terminal import Terminal


class Line:
    """A person who listens."""

    def __init__(self) -> None:
        self.heard = b""
        self._ours, self._theirs = socket.socketpair()

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self) -> list[tuple[int, bytes]]:
        return []

    def send(self, content: bytes, kind: int) -> None:
        del kind
        self.heard += content

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


class LastWords(Terminal):
    """A program that says something and ends whenever its terminal next looks whether it has, and leaves behind a
    child that holds the terminal."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        self.over = False

    @property
    def exit_code(self) -> int | None:
        if not self.over:
            self.over = True
            os.write(self.slave, b"bye")
        return 7


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def test_last_words_are_not_lost(line: Line) -> None:
    terminal = LastWords()
    try:
        assert terminal.serve(line) == 7  # type: ignore[arg-type]  # as far as it is used
        assert line.heard == b"bye"
    finally:
        os.close(terminal.slave)
        os.close(terminal._master)
