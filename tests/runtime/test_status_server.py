"""What people and monitoring read from a running reconciler."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest

from reconciler.errors import UsageError
from reconciler.model.units import SECOND, GpuSeconds, Instant, JobKey, Nanoseconds
from reconciler.runtime.status_server import LoopMetrics, StatusServer, StatusSnapshot

WELL = StatusSnapshot(
    ready=True,
    stalled=False,
    reason="",
    since=Instant(7),
    generation=42,
    desired_lag=Nanoseconds(3 * SECOND // 2),
    fragmentation_ppm=250_000,
    gpus={"held": 16, "idle": 8},
    agents={"Ready": 3, "Lost": 1},
    drift={"NvlinkDown": 2},
    rejected={"NotYourNode": 2},
    refusing={"BadSignature": 1},
    anomalies={"GpuForeign": 2},
    mfu={JobKey("nlp/sft"): 0.41},
)


class Reconciler:
    def __init__(self) -> None:
        self.snapshot = WELL
        self.metrics = LoopMetrics()
        self.server = StatusServer(lambda: self.snapshot, self.metrics)

    def get(self, path: str) -> tuple[int, str]:
        host, port = self.server.address
        try:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as err:
            with err:
                return err.code, err.read().decode()


@pytest.fixture
def reconciler() -> Iterator[Reconciler]:
    found = Reconciler()
    found.server.start()
    yield found
    found.server.stop()


@pytest.mark.parametrize(
    ("ready", "stalled", "reason", "status"),
    [(True, False, "", 200), (True, True, "OwnLinkSuspected", 503), (False, False, "Starting", 503)],
)
def test_health_is_a_status_with_its_reason(
    reconciler: Reconciler, ready: bool, stalled: bool, reason: str, status: int
) -> None:
    said = {"ready": ready, "stalled": stalled, "reason": reason, "message": "too many", "remedy": "look at the link"}
    reconciler.snapshot = replace(WELL, **said)  # type: ignore[arg-type]  # fields by name
    found, body = reconciler.get("/healthz")
    assert (found, json.loads(body)) == (status, {**said, "since": 7, "generation": 42})


def test_metrics_are_the_snapshot_and_the_counts(reconciler: Reconciler) -> None:
    reconciler.metrics.round_ended("committed", Nanoseconds(SECOND // 2))
    reconciler.metrics.pushed("lost_race")
    reconciler.metrics.preempted(2, GpuSeconds(640))
    status, body = reconciler.get("/metrics")
    lines = set(body.splitlines())
    assert status == 200
    assert lines >= {
        "gangops_generation 42.0",
        "gangops_desired_lag_seconds 1.5",
        "gangops_fragmentation_ratio 0.25",
        'gangops_gpus{state="held"} 16.0',
        'gangops_agents{condition="Lost"} 1.0',
        'gangops_drift{code="NvlinkDown"} 2.0',
        'gangops_agent_rejected_total{reason="NotYourNode"} 2.0',
        'gangops_nodes_refusing{code="BadSignature"} 1.0',
        'gangops_anomalies{code="GpuForeign"} 2.0',
        'gangops_job_mfu{job="nlp/sft"} 0.41',
        'gangops_reconcile_total{result="committed"} 1.0',
        "gangops_reconcile_duration_seconds_sum 0.5",
        'gangops_push_total{result="lost_race"} 1.0',
        "gangops_preemptions_total 2.0",
        "gangops_lost_gpu_seconds_total 640.0",
    }


def test_an_address_in_use_is_a_typed_error(reconciler: Reconciler) -> None:
    second = StatusServer(lambda: WELL, LoopMetrics(), port=reconciler.server.address[1])
    with pytest.raises(UsageError) as caught:
        second.start()
    assert caught.value.code == "ListenFailed"
    second.stop()
