"""What does a running reconciler show people in a browser? The page of the record, and one of each job and node.

Each page is drawn from a commit by a process of its own, one at a time, and kept until the next generation; while
generations follow each other quickly, a page may be some seconds old. The loop is never asked, and never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from reconciler.errors import ExitStatus
from reconciler.render.page import policy

_SECONDS: Final = 60
_OLD_ENOUGH: Final = 5.0
"""Seconds before a page is drawn anew although there is a newer generation."""
_MOST: Final = 64
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _Drawn:
    commit: str
    at: float
    status: int
    body: bytes


class LivePages:
    """Pages of the newest generation. `newest` gives its state commit, "" while there is none yet."""

    def __init__(self, clone: Path, newest: Callable[[], str]) -> None:
        self._clone, self._newest = clone, newest
        self._drawn: dict[tuple[str, str], _Drawn] = {}
        self._one = asyncio.Lock()

    def add_to(self, application: web.Application) -> None:
        """The routes `/`, `/jobs/QUEUE/NAME` and `/nodes/NAME`."""
        application.router.add_get("/", self._cluster)
        application.router.add_get("/jobs/{queue}/{name}", self._job)
        application.router.add_get("/nodes/{name}", self._node)

    async def _cluster(self, request: web.Request) -> web.Response:
        return await self._answer(request, "", "")

    async def _job(self, request: web.Request) -> web.Response:
        return await self._answer(request, "job", f"{request.match_info['queue']}/{request.match_info['name']}")

    async def _node(self, request: web.Request) -> web.Response:
        return await self._answer(request, "node", request.match_info["name"])

    async def _answer(self, request: web.Request, kind: str, name: str) -> web.Response:
        commit = self._newest()
        if not commit:
            return _told(503, "The reconciler has not made its first round yet; try again soon.")
        drawn = self._kept(kind, name, commit)
        if drawn is None:
            async with self._one:
                drawn = self._kept(kind, name, commit) or await self._draw(kind, name, commit)
        if drawn.status != 200:
            return _told(drawn.status, drawn.body.decode())
        tag = f'"{drawn.commit}"'
        headers = {**_HEADERS, "Content-Security-Policy": f"{policy()}; {_FURTHER}", "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=drawn.body, content_type="text/html", charset="utf-8", headers=headers)

    def _kept(self, kind: str, name: str, commit: str) -> _Drawn | None:
        found = self._drawn.get((kind, name))
        if found is not None and (found.commit == commit or time.monotonic() - found.at < _OLD_ENOUGH):
            return found
        return None

    async def _draw(self, kind: str, name: str, commit: str) -> _Drawn:
        status, body = await self._run(commit, *((kind, name) if kind else ()))
        drawn = _Drawn(commit, time.monotonic(), status, body)
        if status == 200:
            self._drawn.pop((kind, name), None)
            self._drawn[kind, name] = drawn
            while len(self._drawn) > _MOST:
                del self._drawn[next(iter(self._drawn))]
        return drawn

    async def _run(self, *words: str) -> tuple[int, bytes]:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "reconciler.runtime.live_render", str(self._clone), *words,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            body, complaint = await asyncio.wait_for(child.communicate(), _SECONDS)
        except TimeoutError:
            return 503, b"The page took too long to draw; `gangops report` has no limit."
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        if child.returncode == ExitStatus.NOT_FOUND:
            return 404, b"The record knows no such job or node."
        if child.returncode != 0:
            return 500, b"The page could not be drawn: " + complaint[-300:]
        return 200, body


_FURTHER: Final = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _told(status: int, text: str) -> web.Response:
    headers = {**_HEADERS, "Content-Security-Policy": f"default-src 'none'; {_FURTHER}"}
    return web.Response(status=status, text=f"{text}\n", headers=headers)
