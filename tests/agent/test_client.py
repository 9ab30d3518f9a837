"""What an agent takes for an answer, and whom it takes for a reconciler."""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path

import pytest
import trustme

from reconciler.agent.client import Line, LinkDown, _body_of, tls_context
from reconciler.wire import MAX_MESSAGE, Report, encode

from .conftest import NODE, Hub

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


@pytest.mark.parametrize(
    ("received", "body"),
    [
        (b"", None),
        (b"HTTP/1.1 200 OK\r\nContent-Le", None),
        (OK, None),
        (OK + b"abc", None),
        (OK + b"abcd", b"abcd"),
        (b"HTTP/1.1 200 OK\r\nX: y\r\ncontent-length:4\r\nZ: w\r\n\r\nabcd", b"abcd"),
    ],
)
def test_an_answer_is_taken_once_it_is_whole(received: bytes, body: bytes | None) -> None:
    assert _body_of(received) == body


@pytest.mark.parametrize(
    ("received", "code"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "LinkDown"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "LinkDown"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd", "LinkDown"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nabcd", "LinkDown"),
        (f"HTTP/1.1 200 OK\r\nContent-Length: {MAX_MESSAGE + 1}\r\n\r\n".encode(), "LinkDown"),
        (b"x" * 70_000, "LinkDown"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", "LinkDown"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 4\r\n\r\nwho?", "AgentRejected"),
    ],
)
def test_anything_else_ends_the_link(received: bytes, code: str) -> None:
    with pytest.raises(LinkDown) as caught:
        _body_of(received)
    assert caught.value.code == code


def test_a_server_of_another_ca_is_not_spoken_to(hub: Hub, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    with pytest.raises(LinkDown, match="CERTIFICATE_VERIFY_FAILED"):
        Line(hub.url, tls_context(tmp_path / "other.pem", tmp_path / "node.pem", tmp_path / "node.key"))
    assert hub.reports == []


def test_the_line_is_tls_1_3_and_waiting_can_be_broken_off(hub: Hub, tmp_path: Path) -> None:
    context = tls_context(tmp_path / "ca.pem", tmp_path / "node.pem", tmp_path / "node.key")
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    line = Line(hub.url, context)
    wake, wake_out = os.pipe()
    try:
        line.send(encode(Report(NODE, "b", "s", 1, "127.0.0.1", 0, 0, "")))
        os.write(wake_out, b".")
        began = time.monotonic()
        assert line.receive(began + 600, lambda: True, wake) is None
        assert time.monotonic() - began < 300
        assert line.own_address == "127.0.0.1"
    finally:
        line.close()
        os.close(wake)
        os.close(wake_out)
