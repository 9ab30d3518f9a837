"""A git server over HTTP on this machine that wants a token, and looks whether anyone shows it around."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from tests.store.world import Repository, git


@dataclass
class HttpRemote:
    """A served repository. `reading` and `writing` are the tokens taken; `forbidden` answers 403 to all."""

    repository: Repository
    reading: str
    writing: str
    forbidden: bool = False
    port: int = 0
    seen_in_processes: list[str] = field(default_factory=list)
    asked_without_token: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.repository.path.name}"

    def tokens(self) -> tuple[str, str]:
        return self.reading, self.writing

    def look_at_processes(self) -> None:
        """Notes every process that carries a token in its arguments or environment."""
        for entry in Path("/proc").iterdir():
            for name in ("cmdline", "environ"):
                try:
                    content = (entry / name).read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if any(token in content for token in self.tokens()):
                    self.seen_in_processes.append(content[:200])


@contextmanager
def served(repository: Repository, *, token: str) -> Iterator[HttpRemote]:
    """Serves a repository for the length of the block."""
    git(repository.path, "config", "http.receivepack", "true")
    remote = HttpRemote(repository, reading=token, writing=token)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            """Silent."""

        def do_GET(self) -> None:
            self.answer(b"")

        def do_POST(self) -> None:
            self.answer(self.body())

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def answer(self, body: bytes) -> None:
            remote.look_at_processes()
            if remote.forbidden:
                self.send_error(403)
                return
            offered = self.headers.get("Authorization", "")
            wanted = remote.writing if "receive-pack" in self.path else remote.reading
            if offered != "Basic " + base64.b64encode(f"bot:{wanted}".encode()).decode():
                remote.asked_without_token += 1
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            head, _, content = self.backend(body).partition(b"\r\n\r\n")
            lines = [line.decode().partition(": ") for line in head.split(b"\r\n")]
            status = next((int(value.split()[0]) for key, _, value in lines if key == "Status"), 200)
            self.send_response(status)
            for key, _, value in lines:
                if key != "Status":
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def backend(self, body: bytes) -> bytes:
            address = urlsplit(self.path)
            environment = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(repository.path.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_GLOBAL": os.devnull,
                "REMOTE_USER": "bot",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": address.path,
                "QUERY_STRING": address.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(
                ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
            )
            return done.stdout

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    remote.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield remote
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
