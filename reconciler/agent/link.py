"""Who keeps the conversation with the reconcilers going? One thread: report, wait, take the answer, report again.

The first server that answers is kept until it fails, then the next is tried, with a growing pause once none answers.
A report that was not answered is built anew and sent again; what is in it is always all that is known.
"""

from __future__ import annotations

import contextlib
import os
import select
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reconciler import __version__
from reconciler.agent import proc
from reconciler.agent.client import ANSWER_SECONDS, Line, LinkDown, tls_context
from reconciler.agent.conf import Conf
from reconciler.agent.runtime import Keeper
from reconciler.agent.say import Voice
from reconciler.agent.verify import RefusedOrder, verify
from reconciler.agent.visits import Visits
from reconciler.agent.vitals import Vitals
from reconciler.wire import BadMessage, Proof, Refusal, Report, Visit, decode_answer, encode

WAIT_SECONDS = 10
"""A server that hangs is given up this and ANSWER_SECONDS after it was asked: the standby leads within 30 s."""
LONGEST_PAUSE = 10.0
"""Seconds between two rounds over all servers, at most."""
GATHER_SECONDS = 0.02
"""What changes within this time goes into one report."""
MAX_REFUSALS = 16


@dataclass(frozen=True)
class Sent:
    """A report under way, and at which boottime it left."""

    line: Line
    report: Report
    at: int


class Link(threading.Thread):
    """The conversation. `changed()` may be called from any thread: it brings the next report forward."""

    def __init__(self, conf: Conf, say: Voice) -> None:
        super().__init__(name="link", daemon=True)
        self.conf = conf
        self.say = say
        self.keeper: Keeper | None = None
        self.vitals: Vitals | None = None
        self.visits: Visits | None = None
        self.refusals: list[Refusal] = []
        self._session = os.urandom(16).hex()
        self._sequence = 0
        self._hardware_known: object = None
        self._dirty = threading.Event()
        self._stale = threading.Event()
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def changed(self) -> None:
        """Something worth a report happened."""
        self._dirty.set()
        with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
            os.write(self._wake_out, b".")

    def redial(self) -> None:
        """The certificate is another one: dial anew with it, soon."""
        self._stale.set()
        self.changed()

    def run(self) -> None:
        failures, at = 0, 0
        while True:
            server = self.conf.servers[at % len(self.conf.servers)]
            before = self._sequence
            try:
                self._talk(server)
            except LinkDown as err:
                self.say(f"no link to {server}: {err.message}")
            self._hardware_known = None  # another server, or the same one anew, may not know it
            failures = 0 if self._sequence > before + 1 else failures + 1
            at += 1
            if failures >= len(self.conf.servers):
                self._pause(failures // len(self.conf.servers))

    def _pause(self, rounds: int) -> None:
        lease = self._keeper.leases.shortest()
        cap = min(LONGEST_PAUSE, lease / 5) if lease else LONGEST_PAUSE
        jitter = 0.5 + os.urandom(1)[0] / 512  # agents must not come back all at once
        time.sleep(min(cap, 0.2 * 2 ** min(rounds, 8)) * jitter)

    @property
    def _keeper(self) -> Keeper:
        if self.keeper is None:
            raise RuntimeError("the link was started before the keeper was known")
        return self.keeper

    # --- one server ----------------------------------------------------------------------------------------------

    def _talk(self, server: str) -> None:
        """Converse until the link fails. Raises LinkDown, always in the end."""
        context, lines = self._context(), list[Line]()

        def dial() -> Line:
            nonlocal context
            if self._stale.is_set():
                self._stale.clear()
                context = self._context()
            return _dial(server, context, lines)

        try:
            self._converse(dial, lambda visit: self._meet(visit, server, context))
        finally:
            for line in lines:
                line.close()

    def _context(self) -> ssl.SSLContext:
        try:
            return tls_context(self.conf.ca, self.conf.cert, self.conf.key)
        except OSError as err:
            raise LinkDown(f"certificate or key cannot be used: {err}") from err

    def _meet(self, visit: Visit, server: str, context: ssl.SSLContext) -> None:
        if self.visits is not None:
            self.visits.begin(visit, server, context)

    def _converse(self, dial: Callable[[], Line], meet: Callable[[Visit], None]) -> None:
        line, greeted = dial(), False
        while True:
            if self._stale.is_set():
                line, greeted = dial(), False
            sent = self._send(line)
            began = time.monotonic()
            until = began + sent.report.waitSeconds + ANSWER_SECONDS
            body = line.receive(until, self._dirty.is_set, self._wake_in)
            if body is None:
                # Something changed while the report is held: say so over a new line. Nothing is lost with the
                # answer to the old report, since the new one tells the server what has arrived here.
                time.sleep(GATHER_SECONDS)
                if not self._stale.is_set():
                    line = dial()
                continue
            if not greeted:
                greeted = True
                self.say(f"linked to {line.host}:{line.port}")
            news = self._take(body, sent, meet)
            if not news and time.monotonic() - began < 0.05 and not self._dirty.is_set():
                self._rest(0.25)  # a server that does not hold reports must not be asked in a tight loop

    def _rest(self, seconds: float) -> None:
        select.select([self._wake_in], [], [], seconds)

    # --- out -----------------------------------------------------------------------------------------------------

    def _send(self, line: Line) -> Sent:
        self._dirty.clear()
        while select.select([self._wake_in], [], [], 0)[0]:
            os.read(self._wake_in, 4096)
        report = self._report(line.own_address)
        at = proc.boottime()
        line.send(encode(report))
        return Sent(line, report, at)

    def _report(self, seen_address: str) -> Report:
        keeper = self._keeper
        held = keeper.roster.journal.accepted
        hardware = keeper.checkup.hardware
        lease = keeper.leases.shortest()
        self._sequence += 1
        return Report(
            node=self.conf.node,
            bootId=keeper.roster.boot,
            session=self._session,
            sequence=self._sequence,
            address=self.conf.address or seen_address,
            epoch=held.epoch,
            generation=held.generation,
            commit=held.commit,
            fileDigest=held.digest if held.commit else "",
            unhealthy=keeper.checkup.unhealthy,
            hardware={} if hardware == self._hardware_known else hardware,
            attempts=keeper.statuses(),
            refusals=list(self.refusals),
            # Several answers within one lease, which runs from the sending: a single slow one must not end it.
            waitSeconds=min(WAIT_SECONDS, lease // 4) if lease else WAIT_SECONDS,
            vitals={**(self.vitals.last if self.vitals else {}), "clock": time.time_ns()},
            agentVersion=__version__,
        )

    # --- in ------------------------------------------------------------------------------------------------------

    def _take(self, body: bytes, sent: Sent, meet: Callable[[Visit], None]) -> bool:
        """Act on an answer; True when it brought orders or visits. Raises LinkDown when it is none."""
        try:
            answer = decode_answer(body)
        except BadMessage as err:
            raise LinkDown(err.message) from err
        self.refusals = [refusal for refusal in self.refusals if refusal not in sent.report.refusals]
        if sent.report.hardware:
            self._hardware_known = sent.report.hardware
        if answer.leaseSeconds > 0:
            self._keeper.leases.renew(sent.at, answer.leaseSeconds)
        news = answer.proof is not None and self._consider(answer.proof)
        for visit in answer.visits:
            meet(visit)
        return news or bool(answer.visits)

    def _consider(self, proof: Proof) -> bool:
        held = self._keeper.roster.journal.accepted
        try:
            order, orders = verify(proof, self.conf.trust, held)
            self._keeper.accept(order, orders)
        except RefusedOrder as err:
            self.say(f"refused {proof.commitId[:8]}: {err.message} [{err.code}]")
            refusal = Refusal(proof.commitId[:64], err.code, err.message[:400], time.time_ns())
            self.refusals = [*self.refusals, refusal][-MAX_REFUSALS:]
            time.sleep(0.5)  # the same will be offered again; hold back, but say so soon
            return False
        self.changed()
        return True


def _dial(server: str, context: ssl.SSLContext, lines: list[Line]) -> Line:
    """A line in place of those before. The old one ends after the new one stands: no moment without any."""
    line = Line(server, context)
    for old in lines:
        old.close()
    lines[:] = [line]
    return line


def state_folder(path: Path) -> Path:
    """The agent's own folder, made for root's (or the agent's) eyes only."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path
