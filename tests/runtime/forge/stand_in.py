"""A forge's comment interface on this machine: remembers comments, and fails in the ways it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BOT = "github-actions[bot]"


@dataclass
class Forge:
    """`pulls` by number, `comments` in order, `script`: (status, headers) answered first, one a request; `asked`: all."""

    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: list[dict[str, Any]] = field(default_factory=list)
    script: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    longest: int = 65_536
    may_write: bool = True
    base: str = ""

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, str], Any]:
        self.asked.append((method, path))
        if self.script:
            status, headers = self.script.pop(0)
            if status:
                return status, headers, {"message": "as told"}
        parts = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        steps = parts.path.strip("/").split("/")
        if method == "GET":
            return self._get(steps, query)
        if not self.may_write:
            return 403, {}, {"message": "Resource not accessible by integration"}
        if len(body["body"]) > self.longest:
            return 422, {}, {"message": "body is too long"}
        if method == "POST":
            self.add(body["body"], BOT)
            return 201, {}, self.comments[-1]
        found = next(one for one in self.comments if one["id"] == int(steps[-1]))
        found["body"] = body["body"]
        return 200, {}, found

    def _get(self, steps: list[str], query: dict[str, str]) -> tuple[int, dict[str, str], Any]:
        if steps[-1] == "comments":
            return 200, {}, page(self.comments, query)
        if steps[-1] == "pulls":
            owner, _, branch = query["head"].partition(":")
            rows = [p for p in self.pulls.values() if (p["head"]["label"], p["state"]) == (f"{owner}:{branch}", "open")]
            return 200, {}, page(rows, query)
        if steps[-1] == "reviews":
            return 200, {}, page([{"user": {"login": "grace"}, "state": "APPROVED", "commit_id": "a" * 40}], query)
        number = int(steps[-1])
        return (200, {}, self.pulls[number]) if number in self.pulls else (404, {}, {"message": "Not Found"})

    def add(self, body: str, login: str) -> None:
        self.comments.append({"id": 500 + len(self.comments), "body": body, "user": {"login": login}})

    @property
    def own(self) -> list[str]:
        return [one["body"] for one in self.comments if one["user"]["login"] == BOT]


def page(rows: list[Any], query: dict[str, str]) -> list[Any]:
    size, number = int(query.get("per_page", 30)), int(query.get("page", 1))
    return rows[(number - 1) * size : number * size]


@contextmanager
def served(forge: Forge) -> Iterator[str]:
    """The address of a server for it."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            forge.tokens.append(self.headers.get("authorization", ""))
            status, headers, told = forge.answer(self.command, self.path, body)
            content = json.dumps(told).encode()
            self.send_response(status)
            for key, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = _serve  # noqa: N815  the base class's names

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
