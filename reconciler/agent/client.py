"""How does a report reach a reconciler, and its answer come back? Mutual TLS 1.3, long polls, any server that answers.

While a report is held by the server, waiting can be broken off at any moment. What is said is the caller's; here it
is only carried, and whatever fails is a `LinkDown`.
"""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from reconciler.errors import EngineUnavailable
from reconciler.wire import MAX_MESSAGE, SYNC_PATH

CONNECT_SECONDS = 5
ANSWER_SECONDS = 10
"""How much longer than the asked wait an answer may take before the link counts as down."""

_MAX_HEAD = 65536
# Not http.client: it brings the whole e-mail parser, 2 MB in each of many agents on one machine.
_RESPONSE = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(?=\r\n|$)", re.IGNORECASE)


class LinkDown(EngineUnavailable):
    """This server could not be spoken to; try the next one. `code` is AgentRejected when it said no to us."""

    code = "LinkDown"


def tls_context(ca: Path, cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 with our certificate; only servers of the node CA are believed. Raises OSError, ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cafile=str(ca))
    context.load_cert_chain(str(cert), str(key))
    return context


class Line:
    """One kept-alive connection to one server, with at most one request under way."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.port = parts.port or 443
        self._buffer = bytearray()
        try:
            raw = socket.create_connection((self.host, self.port), CONNECT_SECONDS)
        except OSError as err:
            raise LinkDown(str(err)) from err
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = context.wrap_socket(raw, server_hostname=self.host)
        except OSError as err:
            raw.close()
            raise LinkDown(str(err)) from err

    def send(self, body: bytes, path: str = SYNC_PATH) -> None:
        """Send one message, a report unless said otherwise. Raises LinkDown."""
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        self._buffer.clear()
        try:
            self._socket.settimeout(CONNECT_SECONDS)
            self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            self._socket.setblocking(False)
        except OSError as err:
            raise LinkDown(str(err)) from err

    def receive(self, until: float, woken: Callable[[], bool], wake: int) -> bytes | None:
        """The answer's body, or None as soon as `woken` while it is not there yet. Raises LinkDown.

        `until` is of time.monotonic(); `wake` is a descriptor that becomes readable when `woken` may have changed.
        """
        while True:
            while (chunk := self._arrived()) is not None:
                if not chunk:
                    raise LinkDown("the connection was closed")
                self._buffer += chunk
                body = _body_of(bytes(self._buffer))
                if body is not None:
                    return body
            if woken():
                return None
            left = until - time.monotonic()
            if left <= 0:
                raise LinkDown("no answer in time")
            select.select([self._socket.fileno(), wake], [], [], left)

    def _arrived(self) -> bytes | None:
        try:
            return self._socket.recv(65536)
        except ssl.SSLWantReadError:
            return None
        except OSError as err:
            raise LinkDown(str(err)) from err

    @property
    def own_address(self) -> str:
        """The address this node has on the way to the server."""
        return str(self._socket.getsockname()[0])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def ask(url: str, context: ssl.SSLContext, path: str, body: bytes) -> bytes:
    """One question over a line of its own, and its answer. Raises LinkDown."""
    line = Line(url, context)
    never, other = os.pipe2(os.O_CLOEXEC)
    try:
        line.send(body, path)
        found = line.receive(time.monotonic() + ANSWER_SECONDS, lambda: False, never)
        assert found is not None  # nothing wakes it
        return found
    finally:
        line.close()
        os.close(never)
        os.close(other)


def _body_of(received: bytes) -> bytes | None:
    """The body of a complete response; None while some is missing. Raises LinkDown for anything but a 200."""
    head, blank, rest = received.partition(b"\r\n\r\n")
    if not blank:
        if len(head) > _MAX_HEAD:
            raise LinkDown("the server's headers do not end")
        return None
    response = _RESPONSE.match(head)
    lengths = _LENGTH.findall(head)
    if response is None or len(lengths) != 1:
        raise LinkDown("the server does not speak our HTTP: no response, or not one Content-Length")
    status, length = int(response[1]), int(lengths[0])
    if length > MAX_MESSAGE:
        raise LinkDown(f"the server wants to send {length} bytes")
    if len(rest) < length:
        return None
    if status != 200:
        text = rest[:200].decode("utf-8", "replace").strip()
        code = "AgentRejected" if status in (401, 403) else "LinkDown"
        raise LinkDown(f"the server answers {status}: {text}", code=code)
    return rest[:length]
