"""How does the agent carry a visit's bytes both ways? A WebSocket (RFC 6455) dialled out over the agent's own TLS.

Only the client's half, for messages that are not split in pieces; the server is ours. Nothing here blocks on reading.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import select
import socket
import ssl
import struct
import time
from urllib.parse import urlsplit

from reconciler.agent.client import CONNECT_SECONDS, LinkDown

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MOST = 1 << 20
"""Bytes of one message that are taken in."""
_SEND_SECONDS = 600
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_ACCEPT = re.compile(rb"\r\nsec-websocket-accept:[ \t]*([^\r]+?)[ \t]*(?=\r\n|$)", re.IGNORECASE)


class WebSocket:
    """One connection, open when made. Raises LinkDown, from every call, when it is none any more."""

    def __init__(self, url: str, path: str, context: ssl.SSLContext) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
        self._buffer = b""
        try:
            raw = socket.create_connection((host, port), CONNECT_SECONDS)
        except OSError as err:
            raise LinkDown(str(err)) from err
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            self._socket = context.wrap_socket(raw, server_hostname=host)
        except OSError as err:
            raw.close()  # nothing is left to close where TLS has taken it over
            raise LinkDown(str(err)) from err
        try:
            self._shake_hands(f"{host}:{port}", path)
            self._socket.setblocking(False)
        except OSError as err:
            self.close()
            raise LinkDown(str(err)) from err
        except LinkDown:
            self.close()
            raise

    def _shake_hands(self, host: str, path: str) -> None:
        key = base64.b64encode(os.urandom(16))
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n".encode()
        self._socket.sendall(head + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n")
        while b"\r\n\r\n" not in self._buffer:
            found = self._socket.recv(65536)
            if not found or len(self._buffer) > MOST:
                raise LinkDown("the server does not take the visit")
            self._buffer += found
        answer, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        expected = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        accepted = _ACCEPT.search(answer)
        if not answer.startswith(b"HTTP/1.1 101") or accepted is None or accepted[1] != expected:
            raise LinkDown(f"the server does not take the visit: {answer[:40].decode('latin-1')}")

    def fileno(self) -> int:
        """For select; `receive` may have more than that shows."""
        return self._socket.fileno()

    def send(self, content: bytes, kind: int = BINARY) -> None:
        """One message; waits until it is on its way."""
        size = len(content)
        length = bytes([0x80 | size]) if size < 126 else struct.pack("!BH", 0xFE, size)
        if size > 0xFFFF:
            length = struct.pack("!BQ", 0xFF, size)
        mask = os.urandom(4)
        self._send(bytes([0x80 | kind]) + length + mask + _masked(content, mask))

    def _send(self, content: bytes) -> None:
        view, until = memoryview(content), time.monotonic() + _SEND_SECONDS
        while view:
            if sent := self._send_some(view):
                view = view[sent:]
            elif not select.select([], [self._socket], [], max(0, until - time.monotonic()))[1]:
                raise LinkDown("nobody reads")

    def _send_some(self, content: memoryview) -> int:
        try:
            return self._socket.send(content)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except OSError as err:
            raise LinkDown(str(err)) from err

    def receive(self) -> list[tuple[int, bytes]]:
        """The text and binary messages that are there."""
        found: list[tuple[int, bytes]] = []
        while self._fill():
            while (frame := self._frame()) is not None:
                kind, content = frame
                if kind == PING:
                    self.send(content, PONG)
                elif kind == CLOSE:
                    raise LinkDown("the visit is over")
                elif kind in (TEXT, BINARY):
                    found.append((kind, content))
        return found

    def _fill(self) -> bool:
        """Take in what has arrived; False when nothing had."""
        try:
            found = self._socket.recv(65536)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            fresh, self._fresh = self._fresh, False
            return fresh
        except OSError as err:
            raise LinkDown(str(err)) from err
        if not found:
            raise LinkDown("the connection was closed")
        self._buffer += found
        return True

    _fresh = True  # what came behind the handshake is looked at once

    def _frame(self) -> tuple[int, bytes] | None:
        if len(self._buffer) < 2:
            return None
        first, size = self._buffer[0], self._buffer[1]
        at = 2
        if size == 126 and len(self._buffer) >= 4:
            size, at = struct.unpack_from("!H", self._buffer, 2)[0], 4
        elif size == 127 and len(self._buffer) >= 10:
            size, at = struct.unpack_from("!Q", self._buffer, 2)[0], 10
        elif size > 125:
            if size > 127:
                raise LinkDown("the server masks its messages")
            return None
        if size > MOST or not first & 0x80:
            raise LinkDown("a message is too long, or in pieces")
        if len(self._buffer) < at + size:
            return None
        content, self._buffer = self._buffer[at : at + size], self._buffer[at + size :]
        return first & 0x0F, content

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _masked(content: bytes, mask: bytes) -> bytes:
    size = len(content)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(content, "big") ^ key).to_bytes(size, "big")
