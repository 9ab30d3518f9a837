"""The engine whose hands are node agents: they call in over mutual TLS 1.3, and nothing is ever dialled out.

Joins the parts behind `ports.Engine`: `Sessions` knows what was said, `SyncRoute` answers, `ServingThread` keeps
both away from the thread that decides.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconciler.engines.applied import next_applied
from reconciler.engines.certificates import LEAF_VALIDITY
from reconciler.engines.gate import Gate
from reconciler.engines.news import Newsworthy
from reconciler.engines.server import SyncRoute
from reconciler.engines.serving import ServingThread
from reconciler.engines.sessions import Sessions
from reconciler.engines.visits import House
from reconciler.errors import EngineUnavailable, GangOpsError, UsageError
from reconciler.model.anomaly import NodeVitals
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.units import Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import Clock, Committed, LiveAttempt
from reconciler.wire import Refusal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Where agents call and how each side proves itself: PEM files of the server and of the CA of nodes.

    With `authority`, the CA's own folder, nodes renew certificates and revoked ones are refused; at `gate`, a port,
    nodes enrol with a token. `renew` is called when two thirds of the server certificate's life are over. With `house`,
    people look into jobs at `visits`, an address.
    """

    certificate: Path
    key: Path
    node_ca: Path
    host: str = "127.0.0.1"
    port: int = 7443
    authority: Path | None = None
    gate: tuple[str, int] | None = None
    renew: Callable[[], None] | None = None
    visits: tuple[str, int] | None = None
    house: House | None = None


class AgentEngine(Newsworthy):
    """`ports.Engine` over node agents. Every method may be called from any thread. `news` is set when there is some."""

    def __init__(self, settings: AgentSettings, clock: Clock, news: threading.Event | None = None) -> None:
        self._settings = settings
        self._sessions = Sessions(clock)
        self._news = news or threading.Event()
        self._applying = threading.Lock()
        self._route = SyncRoute(self._sessions, clock, self._news.set, settings.authority, settings.house)
        self._clock = clock
        self._tls: ssl.SSLContext | None = None
        self._open_to_all: list[ssl.SSLContext] = []
        self._renewed = Nanoseconds(0)
        self._serving: ServingThread | None = None
        self._gate: ServingThread | None = None

    def start(self, desired: Desired, observed: Observed) -> None:
        """Listen. Raises: EngineUnavailable (ListenFailed), UsageError (BadCertificate)."""
        self._tls = server_context(self._settings)
        self._renewed = self._clock.monotonic()
        self._sessions.begin(desired, observed)
        route, where = self._route.application, (self._settings.host, self._settings.port)
        serving = ServingThread(route, name="gangops-agents", host=where[0], port=where[1], tls=self._tls)
        if self._route.visiting is not None and self._settings.visits is not None:
            open_to_all = server_context(self._settings, ask=False)
            self._open_to_all.append(open_to_all)
            serving.beside(self._route.visiting.people_application, *self._settings.visits, open_to_all)
        self._serving = _listening(serving)
        if self._settings.gate and self._settings.authority:
            gate = Gate(self._settings.authority, self._clock, self._route.rejected)
            tls, (host, port) = server_context(self._settings, ask=False), self._settings.gate
            self._open_to_all.append(tls)
            try:
                self._gate = _listening(
                    ServingThread(gate.application, name="gangops-gate", host=host, port=port, tls=tls)
                )
            except EngineUnavailable:
                self.stop()
                raise

    @property
    def address(self) -> tuple[str, int]:
        """Host and port agents reach, after `start`."""
        return self._serving.address if self._serving else (self._settings.host, self._settings.port)

    @property
    def visits_address(self) -> tuple[str, int] | None:
        """Host and port at which people look into jobs, after `start`; None when they cannot."""
        return self._serving.address_beside if self._serving and self._settings.visits else None

    @property
    def gate_address(self) -> tuple[str, int] | None:
        """Host and port at which nodes enrol, after `start`; None when they do not."""
        return self._gate.address if self._gate else None

    def apply(self, committed: Committed) -> None:
        """Hand out a pushed generation. Raises: BrokenInvariant, BadMessage (see `next_applied`)."""
        with self._applying:
            applied = next_applied(committed, self._route.applied)
            if applied is self._route.applied:
                return
            self._sessions.apply(applied)
            self._route.applied = applied
            if self._route.visiting is not None:
                self._route.visiting.apply(applied)
        if self._serving is not None:
            self._serving.call(self._route.released)

    def follow(self, observed: Observed) -> None:
        """Another reconciler committed this: stand by until most nodes call here."""
        self._sessions.follow(observed)
        if self._serving is not None:
            self._serving.call(self._route.sent_away)

    def leads(self) -> bool:
        """Whether enough nodes call here to decide for them."""
        return self._sessions.leads

    def observe(self, desired: Desired, now: Instant) -> Observed:
        """Everything seen, as of `now`. Raises: EngineUnavailable (OwnLinkSuspected)."""
        self._renew_in_time()
        return self._sessions.observe(desired, now)

    def live(self) -> Mapping[JobKey, LiveAttempt]:
        """Progress of running attempts, as last reported."""
        return self._sessions.live()

    def vitals(self) -> Mapping[NodeName, NodeVitals]:
        """What nodes last said of themselves for people: no input of a decision."""
        return self._sessions.vitals()

    def refusals(self) -> Mapping[NodeName, tuple[Refusal, ...]]:
        """Orders that nodes did not accept, by node."""
        return self._sessions.refusals()

    def visits(self) -> Mapping[str, int]:
        """Visits of people to jobs, counted since the start: by kind those let in, by code those refused."""
        return dict(self._route.visiting.counted) if self._route.visiting else {}

    def rejected(self) -> Mapping[str, int]:
        """Calls that got an error, counted by code since the start."""
        return dict(self._route.rejected)

    def stop(self) -> None:
        """Stop listening; held calls are answered. Idempotent."""
        for serving in (self._gate, self._serving):
            if serving is not None:
                serving.stop()
        self._gate = self._serving = None

    def _renew_in_time(self) -> None:
        """Replace the server's certificate long before it ends; connections made from then on see the new one."""
        if self._settings.renew is None or self._tls is None:
            return
        if self._clock.monotonic() - self._renewed < LEAF_VALIDITY * 2 // 3:
            return
        try:
            self._settings.renew()
            for tls in (self._tls, *self._open_to_all):
                tls.load_cert_chain(self._settings.certificate, self._settings.key)
        except (GangOpsError, OSError) as err:  # a third of its life is left to try again
            log.warning("the server's certificate cannot be renewed", extra={"reason": str(err)})
            return
        self._renewed = self._clock.monotonic()


def _listening(serving: ServingThread) -> ServingThread:
    """Started. Raises: EngineUnavailable (ListenFailed)."""
    host, port = serving.address
    try:
        serving.start()
    except OSError as err:
        raise EngineUnavailable(
            f"cannot listen for agents on {host}:{port}: {err.strerror or err}",
            code="ListenFailed",
            remedy="Another reconciler may be running here; else choose another listen address.",
        ) from err
    return serving


def server_context(settings: AgentSettings, *, ask: bool = True) -> ssl.SSLContext:
    """TLS 1.3 alone, and a certificate of the node CA from everyone who is to be asked. Raises: UsageError
    (BadCertificate)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED if ask else ssl.CERT_NONE
    # No resumption: every connection shows its certificate anew.
    context.num_tickets = 0
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        context.load_verify_locations(settings.node_ca)
    except OSError as err:  # ssl.SSLError is one
        raise UsageError(
            f"the server's certificate, its key or the node CA cannot be used: {err.strerror or err}",
            code="BadCertificate",
            remedy="Check the files named in reconciler.toml; `gangops ca init FOLDER --cluster NAME` makes a CA.",
        ) from err
    return context
