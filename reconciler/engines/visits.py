"""How do a person and a job's node meet? Each of them calls in; here they are let through, named and joined.

A person asks for a challenge (`POST /v1/challenge`), signs what they want (`POST /v1/visits`) and comes in
(`GET /v1/visits/ID`, a WebSocket). The node is told with the answer it is waiting for, asks the same questions itself,
and comes in at the door where its certificate counts. What they say to each other is carried, not read. Whether a
signature is good enough is told by who made this. All of it runs in the event loop that answers nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from aiohttp import WSMsgType, web

from reconciler.engines.applied import Applied
from reconciler.errors import GangOpsError
from reconciler.model.units import JobKey, NodeName
from reconciler.ports import Clock
from reconciler.wire import (
    CHALLENGE_PATH,
    VISITS_PATH,
    BadMessage,
    Visit,
    VisitRequest,
    decode_orders,
    decode_visit,
)

MEETING_SECONDS: Final = 20.0
"""How long a person waits for the node."""
_TELL_AGAIN_SECONDS: Final = 4.0
_MOST: Final = 256
_MOST_BYTES: Final = 65536
_MOST_KNOWN: Final = 100_000
_MESSAGE: Final = 16 * 1024 * 1024


class Admission(Protocol):
    """Who may look into what; `reconciler.agent.admission` on the side of the server."""

    def challenge(self, now: int) -> str:
        """A new one."""

    def admit(self, visit: Visit, now: int, holders: Callable[[str], Sequence[str]]) -> tuple[VisitRequest, str]:
        """The request and the User who made it. Raises GangOpsError, its code saying why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """Who judges requests, for which cluster, and who is told of visits and refusals."""

    admission: Admission
    cluster: str
    tell: Callable[[str, Mapping[str, object]], None]


@dataclass(slots=True, eq=False)
class _Open:
    """A visit that was let in. `node_side` is the node's connection once it has come."""

    visit: Visit
    asked: VisitRequest
    user: str
    until: float
    node_side: asyncio.Future[web.WebSocketResponse]
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Visiting:
    """The visits of one server. `ring` lets the held call of every node look again."""

    def __init__(self, house: House, clock: Clock, ring: Callable[[], None]) -> None:
        self.house, self._clock, self._ring = house, clock, ring
        self.counted: Counter[str] = Counter()
        self._open: dict[str, _Open] = {}
        self._waiting: dict[str, list[Visit]] = {}
        self._applied: Applied | None = None
        self._last: dict[JobKey, NodeName] = {}

    def people_application(self) -> web.Application:
        """For people, over TLS with the server's certificate."""
        application = web.Application(client_max_size=_MOST_BYTES)
        application.router.add_post(CHALLENGE_PATH, self.challenge)
        application.router.add_post(VISITS_PATH, self.let_in)
        application.router.add_get(VISITS_PATH + "/{id}", self.come_in)
        application.on_shutdown.append(self._on_shutdown)
        return application

    def apply(self, applied: Applied) -> None:
        """From now these nodes hold these attempts. Where a job was last is remembered, for its logs."""
        before = self._applied.files if self._applied else {}
        for node, file in applied.files.items():
            if before.get(node) is not file:
                for job, _ in file.attempts:
                    self._last.pop(job, None)
                    self._last[job] = node
        while len(self._last) > _MOST_KNOWN:
            del self._last[next(iter(self._last))]
        self._applied = applied

    # --- nodes ---------------------------------------------------------------------------------------------------

    def is_wanted(self, node: NodeName) -> bool:
        """Whether somebody waits for the node."""
        return node in self._waiting

    def take(self, node: NodeName) -> list[Visit]:
        """Those the node is to be told of now."""
        return [visit for visit in self._waiting.pop(node, []) if visit.id in self._open]

    async def meet(self, node: NodeName, request: web.Request) -> web.StreamResponse:
        """The node comes to a visit it was told of."""
        found = self._open.get(request.match_info["id"])
        if found is None or found.asked.node != node or found.node_side.done():
            return _refusal(404, "NoVisit", "nobody waits here for this node")
        socket = web.WebSocketResponse(max_msg_size=_MESSAGE, compress=False)
        await socket.prepare(request)
        found.node_side.set_result(socket)
        await found.over.wait()
        return socket

    # --- people --------------------------------------------------------------------------------------------------

    async def challenge(self, request: web.Request) -> web.Response:
        """Which node a request has to be for, and what makes it good for this moment."""
        try:
            asked = await request.json()
            job, rank, attempt = JobKey(str(asked["job"])), int(asked.get("rank", -1)), int(asked.get("attempt", 0))
            node = str(asked.get("node", "")) or self._node_of(job, rank, attempt)
        except (ValueError, KeyError, TypeError, AttributeError):
            return _refusal(400, "BadRequest", "say which job")
        if not node:
            self.counted["UnknownJob"] += 1
            return _refusal(404, "UnknownJob", f"{job} is on no node, and none is known where it last was", _OF_ARRAY)
        made = self.house.admission.challenge(self._clock.now())
        return web.json_response({"challenge": made, "node": node, "cluster": self.house.cluster})

    async def let_in(self, request: web.Request) -> web.Response:
        """A signed request: an id to come in with, or 403 with the reason, counted and told."""
        try:
            visit = decode_visit(await request.read())
        except BadMessage as err:
            self.counted[err.code] += 1
            return _refusal(400, err.code, err.message)
        admit = partial(self.house.admission.admit, visit, self._clock.now(), self._holders)
        try:
            asked, user = await asyncio.get_running_loop().run_in_executor(None, admit)
        except GangOpsError as err:
            self.counted[err.code] += 1
            self.house.tell("visit-refused", {"code": err.code, "peer": request.remote, "asked": _shown(visit)})
            return _refusal(403, err.code, err.message, err.remedy)
        self._forget_late()
        if len(self._open) >= _MOST:
            self.counted["TooMany"] += 1
            return _refusal(503, "TooMany", f"{_MOST} visits are open")
        made = Visit(secrets.token_hex(16), visit.request, visit.signature)
        until = time.monotonic() + MEETING_SECONDS
        self._open[made.id] = _Open(made, asked, user, until, asyncio.get_running_loop().create_future())
        self.counted[f"{asked.kind}"] += 1
        told = {"kind": asked.kind, "user": user, "job": asked.job, "node": asked.node, "peer": request.remote}
        self.house.tell("visit", told)
        return web.json_response({"id": made.id}, status=201)

    async def come_in(self, request: web.Request) -> web.StreamResponse:
        """The person's connection, joined to the node's until either of them leaves."""
        found = self._open.get(request.match_info["id"])
        if found is None or found.until == 0:
            return _refusal(404, "NoVisit", "there is no such visit")
        found.until = 0  # nobody else comes in with the same id
        socket = web.WebSocketResponse(max_msg_size=_MESSAGE, compress=False)
        try:
            await socket.prepare(request)
            other = await self._called(found)
            if other is None:
                message = f"{found.asked.node} did not answer within {MEETING_SECONDS:.0f} s"
                await socket.send_json({"refused": "NodeSilent", "message": message, "remedy": "gangops get nodes"})
            else:
                await _join(socket, other)
        finally:
            self._open.pop(found.visit.id, None)
            found.over.set()
            with contextlib.suppress(ConnectionError):
                await socket.close()
        return socket

    async def _called(self, found: _Open) -> web.WebSocketResponse | None:
        """The node's connection; it is told again while it does not come, for an answer may have been lost."""
        until = time.monotonic() + MEETING_SECONDS
        while time.monotonic() < until:
            self._waiting.setdefault(found.asked.node, []).append(found.visit)
            self._ring()
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(found.node_side), _TELL_AGAIN_SECONDS)
        return None

    def _holders(self, job: str) -> Sequence[str]:
        """As the desired tree says now; for a job whose file is gone, as its orders say."""
        known = self._applied.committed.holders_of(JobKey(job)) if self._applied else None
        return known if known is not None else self._ordered_holders(JobKey(job))

    def _ordered_holders(self, job: JobKey) -> Sequence[str]:
        node = self._last.get(job)
        content = self._applied.committed.orders.get(node) if self._applied and node else None
        orders = decode_orders(content).attempts if content is not None else []
        return next((order.holders for order in orders if order.job == job), [])

    def _node_of(self, job: JobKey, rank: int, attempt: int) -> str:
        """Where the rank is now, else where the job was last; "" when that is not known."""
        if self._applied is None:
            return ""
        here = [n for n, file in self._applied.files.items() if any(j == job for j, _ in file.attempts)]
        orders = [
            (n, o) for n in here for o in decode_orders(self._applied.committed.orders[n]).attempts if o.job == job
        ]
        for node, order in sorted(orders, key=lambda found: (-found[1].attempt, found[1].nodeRank)):
            if attempt in (0, order.attempt) and (rank < 0 or any(r.rank == rank for r in order.ranks)):
                return node
        return next(iter(sorted(here)), self._last.get(job, ""))

    def _forget_late(self) -> None:
        now = time.monotonic()
        for found in [one for one in self._open.values() if 0 < one.until < now]:
            del self._open[found.visit.id]

    async def _on_shutdown(self, application: web.Application) -> None:
        del application
        for found in list(self._open.values()):
            found.over.set()
            if found.node_side.done():
                await found.node_side.result().close()


async def _join(person: web.WebSocketResponse, node: web.WebSocketResponse) -> None:
    """Carry messages both ways until one side has left, then let the other one go."""
    ways = [asyncio.ensure_future(_carry(*pair)) for pair in ((person, node), (node, person))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            await node.close()


async def _carry(source: web.WebSocketResponse, target: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        async for message in source:
            if message.type is WSMsgType.TEXT:
                await target.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await target.send_bytes(message.data)


def _shown(visit: Visit) -> str:
    """What was asked, cut for a log: it was not let in, so it may be anything."""
    return visit.request[:200].decode("utf-8", "replace")


_OF_ARRAY = "gangops describe JOB; of an array name one task: QUEUE/NAME.3"


def _refusal(status: int, code: str, message: str, remedy: str = "") -> web.Response:
    body: dict[str, Any] = {"code": code, "message": message, "remedy": remedy}
    return web.Response(status=status, text=json.dumps(body), content_type="application/json")
