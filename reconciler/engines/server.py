"""What does a node get when it calls? `POST /v1/sync`, held while nothing is due, and `POST /v1/renew`.

Who calls is told by the certificate of its connection alone. The route runs in one event loop thread; what is
committed comes in through `applied`, what nodes say goes to `Sessions`, and proofs are read (from git) by an executor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import web

from reconciler.engines.applied import Applied, Standing, standing
from reconciler.engines.certificates import CA_CERTIFICATE, RequestRefused, sign_request
from reconciler.engines.enrolment import Revocations
from reconciler.engines.known import Hearing
from reconciler.engines.sessions import Sessions
from reconciler.engines.visits import House, Visiting
from reconciler.errors import StoreError
from reconciler.model.units import SECOND, CommitId, NodeName
from reconciler.ports import Clock, Committed
from reconciler.wire import (
    MAX_MESSAGE,
    RENEW_PATH,
    SYNC_PATH,
    VISITS_PATH,
    Answer,
    BadMessage,
    Identity,
    Proof,
    Report,
    decode_application,
    decode_report,
    encode,
)

log = logging.getLogger(__name__)

LONGEST_HOLD: Final = 30.0
"""Seconds an answer is held back at most, whatever anyone asks for."""
_BODY_SECONDS: Final = 10.0
_OFFER_AGAIN_SECONDS: Final = 1.0
_STANDBY_SECONDS: Final = 5.0
"""How long a call waits for enough others before it is sent to the reconciler that leads."""


class Rejected(Exception):
    """A call that gets an error instead of an answer: HTTP status, stable code, and a sentence for a person."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass(slots=True, eq=False)
class _Poll:
    """A call being held: what the node said, until when it is held, and what ends it early."""

    report: Report
    until: float
    look_again: asyncio.Event
    over: bool = False

    def end(self) -> None:
        self.over = True
        self.look_again.set()


class SyncRoute:
    """Answers nodes. `applied` may be set from any thread; `released` then runs in the event loop's."""

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        on_news: Callable[[], None],
        authority: Path | None = None,
        house: House | None = None,
    ) -> None:
        self._sessions, self._clock, self._on_news = sessions, clock, on_news
        self._authority = authority
        self._revocations = Revocations(authority) if authority else None
        self.visiting = Visiting(house, clock, self.released) if house else None
        self.applied: Applied | None = None
        self.rejected: Counter[str] = Counter()
        self._polls: dict[NodeName, _Poll] = {}
        self._proofs: dict[NodeName, tuple[CommitId, Proof]] = {}
        self._offers: dict[NodeName, tuple[CommitId, float]] = {}
        self._refused: dict[NodeName, CommitId] = {}

    def application(self) -> web.Application:
        """The application to serve; nothing in it is public."""
        application = web.Application(client_max_size=MAX_MESSAGE)
        application.router.add_post(SYNC_PATH, self.sync)
        application.router.add_post(RENEW_PATH, self.renew)
        if self.visiting is not None:
            application.router.add_get(VISITS_PATH + "/{id}", self.meet)
        application.on_shutdown.append(self._on_shutdown)
        return application

    def released(self) -> None:
        """Let every held call look again for what is due."""
        for poll in self._polls.values():
            poll.look_again.set()

    def sent_away(self) -> None:
        """Another reconciler leads: whoever is held here has to ask there."""
        for poll in self._polls.values():
            poll.end()

    async def sync(self, request: web.Request) -> web.Response:
        """One call of a node: who is it, what does it say, what is it to do."""
        try:
            node = self._caller(request)
            answer = await self._answer(node, await _report(request, node))
        except Rejected as err:
            return rejection(err, self.rejected)
        return web.Response(body=encode(answer), content_type="application/json")

    async def meet(self, request: web.Request) -> web.StreamResponse:
        """A node comes to a visit it was told of."""
        assert self.visiting is not None  # there is no such route otherwise
        try:
            return await self.visiting.meet(self._caller(request), request)
        except Rejected as err:
            return rejection(err, self.rejected)

    async def renew(self, request: web.Request) -> web.Response:
        """A node asks for its next certificate, showing the present one; it gets one for its own name alone."""
        try:
            made = await self._renewed(request)
        except BadMessage as err:
            return rejection(Rejected(400, err.code, err.message), self.rejected)
        except RequestRefused as err:
            return rejection(Rejected(403, err.code, err.message), self.rejected)
        except Rejected as err:
            return rejection(err, self.rejected)
        return web.Response(body=encode(made), content_type="application/json")

    async def _renewed(self, request: web.Request) -> Identity:
        node = self._caller(request)
        if self._authority is None:
            raise Rejected(404, "NoAuthority", "this server does not issue certificates")
        asked = decode_application(await body_of(request))
        sign = partial(sign_request, self._authority, node, asked.request.encode(), self._clock.now())
        made = await asyncio.get_running_loop().run_in_executor(None, sign)
        return Identity((self._authority / CA_CERTIFICATE).read_text(encoding="ascii"), made.decode("ascii"))

    def _caller(self, request: web.Request) -> NodeName:
        """The node the connection's certificate names. Raises: Rejected."""
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        names = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
        if certificate is None or len(names) != 1:
            raise Rejected(403, "NoIdentity", "the certificate has to name exactly one node")
        # A connection may outlive the certificate it was made with.
        if self._clock.now() > ssl.cert_time_to_seconds(certificate["notAfter"]) * SECOND:
            raise Rejected(403, "CertificateExpired", "the certificate of this connection has expired")
        node = NodeName(names[0])
        try:
            revoked = self._revocations and self._revocations.is_revoked(int(str(certificate["serialNumber"]), 16))
        except (OSError, ValueError) as err:
            log.warning("the list of revoked certificates cannot be read", extra={"reason": str(err)})
            raise Rejected(503, "RevocationsUnreadable", "the list of revoked certificates cannot be read") from err
        if revoked:
            raise Rejected(403, "CertificateRevoked", "the certificate of this connection was revoked")
        if not self._sessions.admits(node):
            raise Rejected(403, "UnknownNode", f"{node} is in no inventory")
        return node

    async def _answer(self, node: NodeName, report: Report) -> Answer:
        """Orders as soon as any are due, else nothing new after a while; a renewed lease in any case."""
        # 1. Take the report in.
        led = self._sessions.leads
        try:
            hearing = self._sessions.hear(report)
        except BadMessage as err:
            raise Rejected(400, "BadMessage", err.message) from err
        if hearing is Hearing.STALE:
            raise Rejected(409, "StaleReport", "a newer report or session of this node was heard already")
        if hearing is Hearing.NEWS:
            self._on_news()
        if self._sessions.leads and not led:
            self.released()
        # 2. Hold the call until something is due. Who does not lead has nothing to say.
        proof = await self._held(node, report)
        if not self._sessions.leads:
            raise Rejected(503, "Standby", "this reconciler stands by: ask the one that leads")
        # 3. What this or a newer reconciler may think dead must not be kept alive.
        applied = self.applied
        barred = standing(applied, report) is Standing.AHEAD or self._sessions.withholds(node)
        lease = 0 if applied is None or barred else applied.lease_seconds(node)
        if lease and not self._sessions.renews():
            lease = 0
        if lease:
            self._sessions.grant(node, lease)
        generation = applied.committed.generation if applied else 0
        visits = self.visiting.take(node) if self.visiting else []
        return Answer(generation=generation, leaseSeconds=lease, proof=proof, visits=visits)

    async def _held(self, node: NodeName, report: Report) -> Proof | None:
        """Orders for the node as soon as any are due; None when none were in time, or its next call came in."""
        came = asyncio.get_running_loop().time()
        until = came + self._hold_seconds(node, report)
        poll = _Poll(report=report, until=until, look_again=asyncio.Event())
        if (earlier := self._polls.get(node)) is not None:
            earlier.end()
        self._polls[node] = poll
        try:
            while True:
                poll.look_again.clear()
                now = asyncio.get_running_loop().time()
                led = self._sessions.leads
                applied, due = self.applied, self._due_at(node, poll) if led else math.inf
                if applied is not None and due <= now:
                    if (proof := await self._proof(node, applied.committed, now)) is not None:
                        return proof
                    due = now + _OFFER_AGAIN_SECONDS
                ends = until if led else min(until, came + _STANDBY_SECONDS)
                if poll.over or now >= ends or (self.visiting and self.visiting.is_wanted(node)):
                    return None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(poll.look_again.wait(), min(ends, due) - now)
        finally:
            if self._polls.get(node) is poll:
                del self._polls[node]

    def _hold_seconds(self, node: NodeName, report: Report) -> float:
        """How long an answer may wait: a held call keeps the node silent, and its leases unrenewed."""
        longest = min(LONGEST_HOLD, self._sessions.rules.report_interval / SECOND)
        lease = self.applied.shortest_lease(node) if self.applied else 0
        return max(min(report.waitSeconds, longest, lease / 3 if lease else longest), 0)

    def _due_at(self, node: NodeName, poll: _Poll) -> float:
        """When to hand the node its orders, in the loop's time: 0 for now, infinity for not at all.

        A node that was offered this commit and still is without it gets a moment, one that refused it the whole
        hold: neither may turn into a storm of calls.
        """
        applied = self.applied
        if applied is None or standing(applied, poll.report) is not Standing.DUE:
            self._proofs.pop(node, None)
            return math.inf
        if self._sessions.withholds(node):
            return math.inf
        commit = applied.committed.commit
        if any(refusal.commitId == commit for refusal in poll.report.refusals):
            self._refused[node] = commit
        if self._refused.get(node) == commit:
            return poll.until
        offered, at = self._offers.get(node, ("", 0.0))
        return at + _OFFER_AGAIN_SECONDS if offered == commit else 0

    async def _proof(self, node: NodeName, committed: Committed, now: float) -> Proof | None:
        """The node's orders and their proof, read once a commit; None when git does not give them now."""
        self._offers[node] = (committed.commit, now)
        found = self._proofs.get(node)
        if found is not None and found[0] == committed.commit:
            return found[1]
        try:
            proof = await asyncio.get_running_loop().run_in_executor(None, committed.proof_of, node)
        except StoreError as err:
            log.warning("proof not available", extra={"node": node, "commit": committed.commit, "code": err.code})
            return None
        self._proofs[node] = (committed.commit, proof)
        return proof

    async def _on_shutdown(self, application: web.Application) -> None:
        del application
        for poll in list(self._polls.values()):
            poll.end()


def rejection(err: Rejected, counted: Counter[str]) -> web.Response:
    """The answer that says so, counted."""
    counted[err.code] += 1
    body = json.dumps({"code": err.code, "message": err.message})
    return web.Response(status=err.status, text=body, content_type="application/json")


async def body_of(request: web.Request) -> bytes:
    """What was sent, within the limits. Raises: Rejected."""
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge as err:
        raise Rejected(413, "TooLarge", f"a report has at most {MAX_MESSAGE} bytes") from err
    except TimeoutError as err:
        raise Rejected(408, "TooSlow", "the report did not arrive in time") from err


async def _report(request: web.Request, node: NodeName) -> Report:
    """The report in a node's call, which has to be about itself. Raises: Rejected."""
    try:
        report = decode_report(await body_of(request))
    except BadMessage as err:
        raise Rejected(400, "BadMessage", err.message) from err
    if report.node != node:
        raise Rejected(403, "NotYourNode", f"the certificate is for {node}; a node speaks of itself alone")
    return report
