"""One reconciler put together from its settings, and the first commit of a new record."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from reconciler.documents.record import Summary
from reconciler.engines.agents import AgentEngine, AgentSettings
from reconciler.engines.certificates import issue_server
from reconciler.engines.routed import RoutedEngine
from reconciler.engines.slurm.engine import SlurmEngine
from reconciler.errors import InvalidInput, UsageError
from reconciler.model.allocation import Metrics
from reconciler.model.anomaly import NodeVitals
from reconciler.model.inventory import AGENTS, SLURM
from reconciler.model.units import NodeName
from reconciler.ports import Engine
from reconciler.runtime.admitting import house_of
from reconciler.runtime.anomalies import anomalies_of
from reconciler.runtime.anomalies.situation import Situation
from reconciler.runtime.bell import Bell, BellServer
from reconciler.runtime.clock import SystemClock
from reconciler.runtime.gathering import Gathering
from reconciler.runtime.generation import first_generation, trailers
from reconciler.runtime.live import LivePages
from reconciler.runtime.loop import Reconciler, Round
from reconciler.runtime.notices.courier import Desk
from reconciler.runtime.notices.hooks import Command, Hook, Webhook, key_in
from reconciler.runtime.notices.pulls import PullRequests
from reconciler.runtime.notices.tail import tail_of
from reconciler.runtime.notices.teller import Teller
from reconciler.runtime.paces import Paces
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.seeding import seeded_usage
from reconciler.runtime.settings import Remote as RemoteSetting
from reconciler.runtime.settings import Settings, host_port
from reconciler.runtime.status_server import LoopMetrics, StatusServer, StatusSnapshot
from reconciler.store.credentials import Credentials
from reconciler.store.mirror import Branches, Mirror, Remote
from reconciler.store.publish import PublishedMark, publish
from reconciler.store.runner import DEFAULT_PROTOCOLS
from reconciler.store.signatures import Signer
from reconciler.store.statecommit import Message, Writer, build
from reconciler.topology.drift import drift_of

Report = Callable[[str, Mapping[str, object]], None]


def mirror_of(settings: Settings) -> Mirror:
    """Our own bare clone, opened (made or repaired when needed)."""
    source = _remote(settings, settings.desired, "origin")
    same = settings.state.url == settings.desired.url and settings.state.credentials == settings.desired.credentials
    local = any(remote.url.startswith(("/", "file://")) for remote in (settings.desired, settings.state))
    mirror = Mirror(
        settings.folder / "clone.git",
        Branches(
            source=source,
            record=source if same else _remote(settings, settings.state, "state"),
            desired=f"refs/heads/{settings.desired.branch}",
            state=f"refs/heads/{settings.state.branch}",
        ),
        protocols=DEFAULT_PROTOCOLS | {"file"} if local else DEFAULT_PROTOCOLS,
    )
    mirror.open()
    return mirror


def _remote(settings: Settings, remote: RemoteSetting, name: str) -> Remote:
    credentials = None
    if remote.credentials is not None:
        credentials = Credentials.for_url(remote.url, token_file=remote.credentials, folder=settings.folder)
    return Remote(url=remote.url, name=name, credentials=credentials)


def engine_of(settings: Settings, report: Report) -> Engine:
    """The engines that documents may name, each made when the first node needs it. Raises UsageError."""
    news = threading.Event()
    # What is configured is checked now; whether the documents name agents at all is known with the first round.
    agents = agent_engine(settings, news, report) if settings.ca is not None and settings.listen else None

    def with_slurm() -> Engine:
        return SlurmEngine(settings.cluster_id, SystemClock(), tell=report, news=news)

    return RoutedEngine({AGENTS: lambda: agents or agent_engine(settings, news, report), SLURM: with_slurm}, news)


def agent_engine(settings: Settings, news: threading.Event, tell: Report) -> AgentEngine:
    """The engine of `[agents]`, with a server certificate issued anew by the node CA; `tell` hears of visits.

    Raises UsageError.
    """
    if settings.ca is None or not settings.listen:
        raise UsageError(
            "reconciler.toml has no [agents] section with `listen` and `ca`",
            code="SettingsInvalid",
            remedy='nodes whose engine is agents need it: add [agents] with listen = "HOST:PORT" and ca = "FOLDER", '
            "a folder that `gangops ca init FOLDER --cluster NAME` makes",
        )
    clock, ca, names = SystemClock(), settings.ca, settings.server_names
    tls = settings.folder / "tls"
    made = issue_server(ca, names, tls, clock.now())

    def renew() -> None:
        issue_server(ca, names, tls, clock.now())

    host, port = host_port(settings.listen, "agents.listen")
    return AgentEngine(
        AgentSettings(
            certificate=made.certificate,
            key=made.key,
            node_ca=made.authority,
            host=host,
            port=port,
            authority=ca,
            gate=host_port(settings.enroll, "agents.enroll") if settings.enroll else None,
            renew=renew,
            visits=host_port(settings.visits, "agents.visits") if settings.visits else None,
            house=house_of(settings.cluster_id, tell) if settings.visits else None,
        ),
        clock,
        news,
    )


def reconciler_of(settings: Settings, engine: Engine, report: Report) -> Reconciler:
    """A reconciler over the settings' branches and an engine, with a teller where somebody is to be told."""
    mirror, metrics = mirror_of(settings), LoopMetrics()
    return Reconciler(
        mirror=mirror,
        mark=PublishedMark(folder=settings.folder),
        writer=Writer(identity=settings.identity, signer=Signer(key=settings.signing_key)),
        reader=DesiredReader(mirror.git, settings.folder / "documents.cache"),
        engine=engine,
        clock=SystemClock(),
        cluster_id=settings.cluster_id,
        report=report,
        teller=teller_of(settings, mirror, report, metrics),
        metrics=metrics,
        gathering=Gathering(),
    )


def teller_of(settings: Settings, mirror: Mirror, report: Report, metrics: LoopMetrics) -> Teller | None:
    """Who tells people of decisions; None where nobody is to be told. Raises UsageError (SecretMissing)."""
    hooks = list(_hooks(settings))
    if not hooks:
        return None
    desk = Desk(git=mirror.git, clock=SystemClock(), report=report, count=metrics.notified)
    return Teller(settings.folder / "notices", hooks, DesiredReader(mirror.git), desk)


def _hooks(settings: Settings) -> Iterator[Hook]:
    tail = tail_of(settings.logs)
    if (webhook := settings.webhook) is not None:
        key_in(webhook.secret)  # a typing error is found at the start, not at the first failure of the night
        yield Webhook(
            url=webhook.url, secret=webhook.secret, now=SystemClock().now, events=webhook.events, tail=tail
        )  # fmt: skip
    if (command := settings.command) is not None:
        yield Command(run=command.run, events=command.events, tail=tail)
    if (forge := settings.forge) is not None:
        yield PullRequests(url=forge.url, repository=forge.repository, token=forge.token, login=forge.login)


def status_server(settings: Settings, reconciler: Reconciler, engine: Engine, paces: Paces) -> StatusServer:
    """`/healthz`, `/metrics`, `/live` and the pages of a reconciler, not started yet. Raises UsageError."""
    host, port = host_port(settings.status, "status.listen")
    pages = LivePages(
        settings.folder / "clone.git", lambda: str(reconciler.last.generation.commit) if reconciler.last else ""
    )
    return StatusServer(
        lambda: snapshot(reconciler, engine, paces), reconciler.metrics, host=host, port=port, pages=pages
    )


def bell_server(settings: Settings, reconciler: Reconciler) -> BellServer | None:
    """What the forge's webhook wakes the reconciler by, not started yet; None where none is set. Raises UsageError."""
    if settings.bell is None:
        return None
    bell = Bell(settings.bell.secret, settings.desired.branch, reconciler.wake, reconciler.metrics.rung)
    return BellServer(settings.bell, bell)


def snapshot(reconciler: Reconciler, engine: Engine, paces: Paces) -> StatusSnapshot:
    """What the status page says now: the last round's numbers and what agents report."""
    condition, last = reconciler.condition, reconciler.last
    allocation = last.generation.allocation if last else None
    metrics = allocation.metrics if allocation else Metrics()
    agents: dict[str, int] = {}
    refusing: Counter[str] = Counter()
    for seen in last.generation.observed.nodes.values() if last else ():
        agents[seen.condition.value] = agents.get(seen.condition.value, 0) + 1
        refusing.update([seen.refused.partition(":")[0]] if seen.refused else [])
    live = engine.live()
    paces.note(live, SystemClock().now())
    mfu = {job: at.progress.get("mfu") for job, at in live.items()}
    return StatusSnapshot(
        ready=condition.ready,
        stalled=condition.stalled,
        reason=condition.reason,
        message=condition.message,
        remedy=condition.remedy,
        since=condition.since,
        generation=allocation.generation if allocation else 0,
        fragmentation_ppm=metrics.phi_ppm,
        gpus={"held": metrics.held, "idle": metrics.idle, "promised": metrics.promised, "stranded": metrics.stranded},
        agents=agents,
        drift=_drift_counts(last) if last else {},
        rejected=engine.rejected(),
        visits=engine.visits(),
        refusing=refusing,
        mfu={job: float(value) for job, value in mfu.items() if isinstance(value, int | float)},
        live=live,
        paces=paces.of(),
        vitals=(vitals := engine.vitals()),
        anomalies=_anomaly_counts(last, vitals) if last else {},
    )


_counted: list[tuple[Round, dict[str, int]]] = []  # of the last round: a page is read more often than rounds end


def _drift_counts(last: Round) -> dict[str, int]:
    """Differences between declared and observed hardware, by code."""
    if not _counted or _counted[0][0] is not last:
        desired = last.desired.desired
        found = drift_of(desired.inventory, last.generation.observed) if desired else ()
        _counted[:] = [(last, dict(Counter(str(drift.code) for drift in found)))]
    return _counted[0][1]


def _anomaly_counts(last: Round, vitals: Mapping[NodeName, NodeVitals]) -> dict[str, int]:
    """What is wrong as far as this reconciler can tell, by code."""
    if last.desired.desired is None:
        return {}
    situation = Situation(
        desired=last.desired.desired,
        allocation=last.generation.allocation,
        observed=last.generation.observed,
        now=SystemClock().now(),
        vitals=vitals,
    )
    return dict(Counter(str(anomaly.code) for anomaly in anomalies_of(situation)))


def begin_record(settings: Settings, *, epoch: int = 1, usage_file: Path | None = None) -> tuple[Summary, str]:
    """Make the state branch, once: generation 0 on the desired tip. The summary and its commit.

    `usage_file` says what queues used under another scheduler, as `gangops import slurm-cluster` writes it.

    Raises UsageError (StateExists) when the branch is there already, StoreError (PathNotFound) or InvalidInput when
    there is no cluster to decide about.
    """
    mirror = mirror_of(settings)
    fetched = mirror.fetch()
    if fetched.state is not None:
        raise UsageError(
            f"branch {settings.state.branch} exists already ({fetched.state[:12]})",
            code="StateExists",
            remedy="nothing to do: `gangops reconcile` continues from it",
        )
    read = DesiredReader(mirror.git).read(fetched.desired, None)
    if read.desired is None:
        raise InvalidInput(read.diagnostics)
    now = SystemClock().now()
    usage = seeded_usage(usage_file, read.desired) if usage_file is not None else ()
    summary, files = first_generation(settings.cluster_id, epoch, fetched.desired, now, usage)
    message = Message(subject="Begin the record: nothing is held", body="", trailers=trailers(summary))
    writer = Writer(identity=settings.identity, signer=Signer(key=settings.signing_key))
    commit = build(mirror.git, files, parent=None, desired=fetched.desired, message=message, at=now, writer=writer)
    publish(mirror, commit, expected=None).raise_for_result()
    PublishedMark(folder=settings.folder).write(commit)
    return summary, commit
