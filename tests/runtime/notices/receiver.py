"""Somebody who wants to be told, on this machine: remembers what came, and fails in the ways it is told to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jsonschema import Draft202012Validator

from reconciler.runtime.notices.content import notification_schema

SCHEMA = json.loads(notification_schema())
SCHEMA["additionalProperties"] = SCHEMA["properties"]["details"]["additionalProperties"] = False
VALID = Draft202012Validator(SCHEMA)
"""Stricter than what is published: no key may go undescribed."""
SECRET = b"a secret of more than sixteen bytes"
HANGS = 0
"""In a script: take the request and answer nothing, until the test is over."""


@dataclass
class Receiver:
    """`script`: statuses answered first, one a request. `taken`: notices that were answered with 204, in order."""

    script: list[int] = field(default_factory=list)
    taken: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/s3cret-path"

    def of(self, job: str) -> list[str]:
        """What was taken of one job, in order."""
        return [one["event"] for one in self.taken if one.get("job") == job]


def is_signed(heads: dict[str, str], body: bytes) -> bool:
    """Checked as a receiver would, from the published scheme."""
    content = heads["webhook-id"].encode() + b"." + heads["webhook-timestamp"].encode() + b"." + body
    made = base64.b64encode(hmac.new(SECRET, content, hashlib.sha256).digest()).decode()
    return heads["webhook-signature"] == "v1," + made


@contextmanager
def served(receiver: Receiver, port: int = 0) -> Iterator[Receiver]:
    """Listening while inside."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            heads = {key.lower(): value for key, value in self.headers.items()}
            receiver.heads.append(heads)
            receiver.asked.append(json.loads(body))
            status = receiver.script.pop(0) if receiver.script else 204
            if status == HANGS:
                receiver.over.wait(300)
                return
            if status == 204:
                assert is_signed(heads, body)
                VALID.validate(json.loads(body))
                receiver.taken.append(json.loads(body))
            self.send_response(status)
            if status in (301, 302, 307, 308):
                self.send_header("location", "http://127.0.0.1:1/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
