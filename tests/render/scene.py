"""One small decision for every page: a production job evicts a sweep, a wide job waits, an evaluation runs on."""

from __future__ import annotations

from dataclasses import replace

from reconciler.documents.record import Summary
from reconciler.model.allocation import Allocation, Metrics, Promise
from reconciler.model.decision import Action, Change, Decision
from reconciler.model.lifecycle import Cause, JobState, Phase
from reconciler.model.observed import GpuReport, NodeCondition, NodeObservation, Observed
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import SECOND, CommitId, GpuSeconds, Instant, JobKey, Nanoseconds
from tests.planner.worlds import START, allocation, job, pending, placement, running, world

BIG, SWEEP, WIDE, EVAL = JobKey("nlp/pretrain"), JobKey("vision/sweep"), JobKey("vision/dino-l"), JobKey("nlp/eval")
NOW = Instant(START + 12 * SECOND)
DESIRED = world(
    jobs=[
        job(BIG, 16, "high", dims={"tensor": 8, "data": 2}, preferred={"job": "rack"}, limit=100 * 3600),
        job(SWEEP, 4, "low", checkpoint=60),
        job(WIDE, 32, required={"job": "rack"}),
        job(EVAL, 2),
    ]
)
BEFORE_METRICS = Metrics(declared=32, capacity=32, held=6, idle=26, stranded=10, phi_whole=16)
METRICS = Metrics(declared=32, capacity=32, held=6, promised=12, idle=14, stranded=6, phi_whole=8)
BEFORE = replace(
    allocation(
        DESIRED,
        running(DESIRED, SWEEP, {"gpu-001": 4}, level="node"),
        running(DESIRED, EVAL, {"gpu-003": [2, 3]}),
        pending(DESIRED, BIG),
        pending(DESIRED, WIDE),
    ),
    metrics=BEFORE_METRICS,
)
TARGET = replace(
    placement(DESIRED, {"gpu-001": 8, "gpu-002": 8}, "rack"),
    domain="r01",
    comm_time=Nanoseconds(41_200_000),
    comm_bound=Nanoseconds(40_100_000),
)
NO_RACK = reason(ReasonCode.NO_DOMAIN_FITS, need=32, level="rack", best="r02", free=14)


def _after() -> Allocation:
    jobs = dict(BEFORE.jobs)
    jobs[BIG] = replace(
        jobs[BIG],
        state=JobState.PROMISED,
        reason=reason(ReasonCode.WAITING_FOR_VICTIMS, victims=SWEEP, released=12, needed=16),
        promise=Promise(placement=TARGET, made=START, deadline=Instant(START + 90 * SECOND), waiting_for=(SWEEP,)),
        victims=(SWEEP,),
    )
    jobs[SWEEP] = replace(
        jobs[SWEEP],
        state=JobState.STOPPING,
        phase=Phase.CHECKPOINT,
        cause=Cause.PREEMPTED,
        deadline=Instant(START + 90 * SECOND),
        preemptor=BIG,
        lost_work=GpuSeconds(3360),
        reason=reason(ReasonCode.PREEMPTED, preemptor=BIG, lost=3360),
    )
    jobs[WIDE] = replace(jobs[WIDE], reason=NO_RACK)
    return replace(BEFORE, generation=8, jobs=jobs, metrics=METRICS)


AFTER = _after()
DECISION = Decision(
    allocation=AFTER,
    changes=(
        Change(action=Action.WAIT, job=WIDE),
        Change(action=Action.PROMISE, job=BIG),
        Change(action=Action.PREEMPT, job=SWEEP),
    ),
)
SUMMARY = Summary(
    generation=8,
    epoch=1,
    cluster_id="h100-east",
    decision_id="d" * 32,
    decided_at=START,
    decision_version=1,
    package_version="0.1.0",
    desired_commit=CommitId("c" * 40),
    inputs_digest="0d4f" * 16,
    previous_commit="",
    trigger="desired",
    metrics=METRICS,
)
OBSERVED = Observed(
    nodes={
        node.name: NodeObservation(
            node=node.name,
            boot_id="b",
            address="10.0.0.1",
            condition=NodeCondition.LOST if node.name == "gpu-004" else NodeCondition.READY,
            condition_since=START,
            gpus=tuple(
                GpuReport(
                    index=i,
                    uuid=f"GPU-{node.name}-{i}",
                    healthy=(node.name, i) != ("gpu-003", 7),
                    reason="Xid 79" if (node.name, i) == ("gpu-003", 7) else "",
                    foreign="firefox" if (node.name, i) == ("gpu-002", 0) else "",
                )
                for i in range(8)
            ),
        )
        for node in DESIRED.inventory.nodes
    }
)
