"""A person's half of a terminal inside a job: keys and window sizes go there, what it prints comes back."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import struct
import sys
import termios
import tty
from collections.abc import Iterator

from aiohttp import ClientWebSocketResponse, WSMsgType

from reconciler.errors import EngineUnavailable
from reconciler.runtime.visiting import Door, refusal_of, visit

_CHUNK = 65536


def run_shell(door: Door, job: str, argv: list[str], *, rank: int | None = None, node: str = "") -> int:
    """Be in the job until the program there ends; its exit status. Raises NotAdmitted, EngineUnavailable."""
    keys, shown = sys.stdin.fileno(), sys.stdout.fileno()
    has_terminal = os.isatty(keys) and os.isatty(shown)
    rows, columns = _size(shown) if has_terminal else (24, 80)
    wanted = {
        "kind": "shell",
        "rank": -1 if rank is None else rank,
        "argv": argv,
        "terminal": os.environ.get("TERM", "xterm") if has_terminal else "",
        "rows": rows,
        "columns": columns,
    }

    async def be_there() -> int:
        async with visit(door, wanted, job=job, node=node) as line:
            return await _talk(line, keys, shown, has_terminal=has_terminal)

    return asyncio.run(be_there())


async def _talk(line: ClientWebSocketResponse, keys: int, shown: int, *, has_terminal: bool) -> int:
    loop = asyncio.get_running_loop()
    typing: asyncio.Task[None] | None = None
    with contextlib.ExitStack() as held:
        try:
            async for message in line:
                if message.type is WSMsgType.BINARY:
                    _write(shown, message.data)
                    continue
                told = json.loads(message.data)
                if (refusal := refusal_of(told)) is not None:
                    raise refusal
                if "exit" in told:
                    return told["exit"] if isinstance(told["exit"], int) else 255
                if told.get("accepted"):
                    if has_terminal:
                        held.enter_context(_raw(keys))
                        loop.add_signal_handler(signal.SIGWINCH, lambda: loop.create_task(_tell_size(line, shown)))
                        held.callback(loop.remove_signal_handler, signal.SIGWINCH)
                    typing = loop.create_task(_type(line, keys))
        finally:
            if typing is not None:
                typing.cancel()
    raise EngineUnavailable("the connection to the node broke off", code="LinkDown", remedy="The job itself goes on.")


async def _type(line: ClientWebSocketResponse, keys: int) -> None:
    """Everything typed, as it comes; the end of it too."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[bytes] = asyncio.Queue()
    polled = True
    try:
        loop.add_reader(keys, lambda: ready.put_nowait(os.read(keys, _CHUNK)))
    except (OSError, PermissionError):  # a file is always ready, and epoll will not have it
        polled = False
    try:
        while content := await ready.get() if polled else os.read(keys, _CHUNK):
            await line.send_bytes(content)
        await line.send_json({"eof": True})
    finally:
        if polled:
            loop.remove_reader(keys)


async def _tell_size(line: ClientWebSocketResponse, terminal: int) -> None:
    with contextlib.suppress(ConnectionError):
        await line.send_json({"size": _size(terminal)})


def _size(terminal: int) -> tuple[int, int]:
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8))
    return rows or 24, columns or 80


@contextlib.contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the job, Ctrl-C too; the terminal is as it was afterwards."""
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal, termios.TCSADRAIN)  # what was typed meanwhile is not thrown away
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _write(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]
