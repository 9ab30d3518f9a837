"""What can people and their monitoring ask a running reconciler? `/healthz`, `/metrics`, `/live` and the pages of
`live`, read-only, in plain HTTP.

Gauges are read from a snapshot when someone asks; only what has to be counted as it happens is kept in
`LoopMetrics`. What the numbers are is the loop's business. Binds to loopback unless told otherwise: nothing here is
secret, and nothing here is for the whole network either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from reconciler.documents.values import tree_of
from reconciler.engines.serving import Listener
from reconciler.model.anomaly import NodeVitals
from reconciler.model.units import SECOND, GpuSeconds, Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import LiveAttempt
from reconciler.render.life import Pace
from reconciler.runtime.live import LivePages
from reconciler.runtime.paces import pace_tree

_PPM: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """The reconciler at one moment. `stalled`: a person is needed; `reason` is CamelCase, "" when all is well;
    `message` and `remedy` say more to that person.

    `since` is when the present reason began. `gpus` and `agents` count by state and condition, `rejected` counts
    calls of agents by code since the start, `anomalies` what `doctor` would tell by code, `refusing` nodes that accept
    no orders by code, `mfu` is each running job's last reported share of peak FLOP/s, `paces` what the attempts of jobs
    last reported of their pace.
    """

    ready: bool
    stalled: bool
    reason: str
    since: Instant | None
    generation: int
    message: str = ""
    remedy: str = ""
    desired_lag: Nanoseconds = Nanoseconds(0)
    fragmentation_ppm: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    agents: Mapping[str, int] = field(default_factory=dict)
    drift: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    refusing: Mapping[str, int] = field(default_factory=dict)
    visits: Mapping[str, int] = field(default_factory=dict)
    mfu: Mapping[JobKey, float] = field(default_factory=dict)
    live: Mapping[JobKey, LiveAttempt] = field(default_factory=dict)
    paces: Mapping[JobKey, tuple[Pace, ...]] = field(default_factory=dict)
    vitals: Mapping[NodeName, NodeVitals] = field(default_factory=dict)
    anomalies: Mapping[str, int] = field(default_factory=dict)


class LoopMetrics:
    """Counts that grow as the loop goes round."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.pushes: dict[str, int] = {}
        self._duration = Histogram("gangops_reconcile_duration_seconds", "Time of one round", registry=self.registry)
        self._rounds = Counter("gangops_reconcile", "Rounds by result", ["result"], registry=self.registry)
        self._pushes = Counter(
            "gangops_push", "Pushes of the state branch by result", ["result"], registry=self.registry
        )
        self._preemptions = Counter("gangops_preemptions", "Gangs evicted for another", registry=self.registry)
        self._lost = Counter(
            "gangops_lost_gpu_seconds", "GPU-seconds since the last checkpoint, lost", registry=self.registry
        )
        self._notices = Counter(
            "gangops_notifications", "Notices by hook and what came of them", ["hook", "result"], registry=self.registry
        )

        self._rings = Counter("gangops_bell", "Deliveries of the forge's webhook", ["result"], registry=self.registry)

    def round_ended(self, result: str, duration: Nanoseconds) -> None:
        """One round of the loop; `result` is a small closed set of words."""
        self._rounds.labels(result).inc()
        self._duration.observe(duration / SECOND)

    def pushed(self, result: str) -> None:
        """One push: ok, lost_race, rejected, auth or error."""
        self._pushes.labels(result).inc()
        self.pushes[result] = self.pushes.get(result, 0) + 1

    def preempted(self, gangs: int, lost: GpuSeconds) -> None:
        """Gangs evicted by a committed decision, and the work they lost."""
        self._preemptions.inc(gangs)
        self._lost.inc(lost)

    def notified(self, hook: str, result: str) -> None:
        """One notice: told, late (to be tried again), refused, dropped or failed."""
        self._notices.labels(hook, result).inc()

    def rung(self, result: str) -> None:
        """One delivery of the forge's webhook: rung, ignored, refused or failed."""
        self._rings.labels(result).inc()


class _SnapshotCollector(Collector):
    """Turns the snapshot of the moment into gauges."""

    def __init__(self, snapshot: Callable[[], StatusSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not take a snapshot."""
        return ()

    def collect(self) -> Iterable[Metric]:
        now = self._snapshot()
        yield GaugeMetricFamily("gangops_generation", "Generation applied", value=now.generation)
        yield GaugeMetricFamily(
            "gangops_desired_lag_seconds",
            "Age of the oldest desired commit not decided on",
            value=now.desired_lag / SECOND,
        )
        yield GaugeMetricFamily(
            "gangops_fragmentation_ratio",
            "Phi: idle GPUs not usable as whole domains",
            value=now.fragmentation_ppm / _PPM,
        )
        yield _labelled(GaugeMetricFamily("gangops_gpus", "GPUs by state", labels=["state"]), now.gpus)
        yield _labelled(GaugeMetricFamily("gangops_agents", "Nodes by condition", labels=["condition"]), now.agents)
        yield _labelled(
            GaugeMetricFamily("gangops_drift", "Declared against observed hardware", labels=["code"]), now.drift
        )
        yield _labelled(GaugeMetricFamily("gangops_job_mfu", "Model FLOP/s utilisation", labels=["job"]), now.mfu)
        refused = CounterMetricFamily("gangops_agent_rejected", "Calls of agents that got an error", labels=["reason"])
        yield _labelled(refused, now.rejected)
        refusing = GaugeMetricFamily("gangops_nodes_refusing", "Nodes that do not accept our orders", labels=["code"])
        yield _labelled(refusing, now.refusing)
        wrong = GaugeMetricFamily("gangops_anomalies", "What is wrong, as doctor --cluster tells it", labels=["code"])
        yield _labelled(wrong, now.anomalies)
        visits = CounterMetricFamily("gangops_visits", "People's logs and shells through agents", labels=["result"])
        yield _labelled(visits, now.visits)


def snapshot_metrics(snapshot: Callable[[], StatusSnapshot]) -> CollectorRegistry:
    """The gauges of a snapshot that is taken whenever somebody asks."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    return registry


def status_app(
    snapshot: Callable[[], StatusSnapshot], metrics: LoopMetrics, pages: LivePages | None = None
) -> web.Application:
    """The application. `snapshot` is called in the server's thread at every request: it has to be quick."""
    registry = snapshot_metrics(snapshot)

    async def show_metrics(_: web.Request) -> web.Response:
        body = generate_latest(metrics.registry) + generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_health(_: web.Request) -> web.Response:
        now = snapshot()
        answer = {
            "ready": now.ready,
            "stalled": now.stalled,
            "reason": now.reason,
            "message": now.message,
            "remedy": now.remedy,
            "since": now.since,
            "generation": now.generation,
        }
        return web.json_response(answer, status=200 if now.ready and not now.stalled else 503)

    async def show_live(_: web.Request) -> web.Response:
        now = snapshot()
        jobs: dict[str, dict[str, object]] = {
            job: {"paces": list(map(pace_tree, paces))} for job, paces in now.paces.items()
        }
        for job, at in now.live.items():
            jobs[job] = {
                "attempt": at.attempt,
                "progress": dict(at.progress),
                "ranks": {n: list(r) for n, r in at.ranks.items()},
                **jobs.get(job, {}),
            }
        nodes = {node: tree_of(vitals) for node, vitals in sorted(now.vitals.items())}
        pushes = dict(sorted(metrics.pushes.items()))
        return web.json_response(
            {"formatVersion": "1.1", "jobs": dict(sorted(jobs.items())), "nodes": nodes, "pushes": pushes}
        )

    application = web.Application()
    application.router.add_get("/healthz", show_health)
    application.router.add_get("/metrics", show_metrics)
    application.router.add_get("/live", show_live)
    if pages is not None:
        pages.add_to(application)
    return application


class StatusServer(Listener):
    """`status_app` in a thread of its own."""

    def __init__(
        self,
        snapshot: Callable[[], StatusSnapshot],
        metrics: LoopMetrics,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        pages: LivePages | None = None,
    ) -> None:
        super().__init__(
            lambda: status_app(snapshot, metrics, pages),
            name="gangops-status", host=host, port=port, awaits="status requests", setting="status address",
        )  # fmt: skip


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily,
    values: Mapping[str, int] | Mapping[str, float] | Mapping[JobKey, float],
) -> Metric:
    for label, value in sorted(values.items()):
        family.add_metric([label], value)
    return family
