"""What is wrong with nodes: silent, ill, refusing, failing gangs, with a wrong clock, a full disk, strangers on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.documents.quantities import print_instant
from reconciler.model.anomaly import SKEW_GRAVE, SKEW_TOLD, Anomaly, AnomalyCode, NodeVitals
from reconciler.model.counting import counted
from reconciler.model.observed import AttemptState, NodeCondition, NodeObservation
from reconciler.model.units import DAY, SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.runtime.anomalies.control import ending, full_disks
from reconciler.runtime.anomalies.situation import Situation

FAILED_GANGS: Final = 2
"""Different jobs that failed on a node: one may be the job's own fault."""
CERTIFICATE_SPARE: Final = Nanoseconds(7 * DAY)
"""An agent renews when 10 of 30 days are left; three days later it is failing to."""


def node_anomalies(at: Situation) -> Iterator[Anomaly]:
    """Every node in the order of names; those nobody declares any more are left out."""
    failed = _failed_gangs(at)
    holders = at.allocation.holders() if any(map(_is_away, at.observed.nodes.values())) else {}
    for node in at.desired.inventory.nodes:
        seen = at.observed.nodes.get(node.name)
        if seen is not None:
            yield from _seen(seen, holders.get(node.name, {}))
        jobs = failed.get(node.name, set())
        if len(jobs) >= FAILED_GANGS:
            told = f"{counted(len(jobs), 'job')} failed there lately: {', '.join(sorted(jobs)[:4])}"
            yield Anomaly(code=AnomalyCode.NODE_FAILS_GANGS, on=node.name, evidence=told)
        if (vitals := at.vitals.get(node.name)) is not None:
            yield from _vitals(vitals, at.now)


def _is_away(seen: NodeObservation) -> bool:
    return seen.condition is not NodeCondition.READY


def _seen(seen: NodeObservation, holders: dict[JobKey, int]) -> Iterator[Anomaly]:
    if _is_away(seen):
        since = print_instant(seen.condition_since // SECOND * SECOND)
        work = f"; it has ranks of {', '.join(sorted(holders))}" if holders else "; nothing runs there"
        told = f"{seen.condition} since {since}{work}"
        grave = seen.condition is NodeCondition.LOST or bool(holders)
        yield Anomaly(code=AnomalyCode.NODE_LOST, on=seen.node, evidence=told, grave=grave)
    if seen.unhealthy:
        yield Anomaly(code=AnomalyCode.NODE_UNHEALTHY, on=seen.node, evidence=seen.unhealthy)
    if seen.refused:
        yield Anomaly(code=AnomalyCode.NODE_REFUSES, on=seen.node, evidence=seen.refused)
    strangers: dict[str, list[int]] = {}
    for gpu in seen.gpus:
        if gpu.foreign:
            strangers.setdefault(gpu.foreign, []).append(gpu.index)
    for who, gpus in sorted(strangers.items()):
        told = f"GPU {', '.join(map(str, gpus))} used by {who}"
        yield Anomaly(code=AnomalyCode.GPU_FOREIGN, on=seen.node, evidence=told)


def _failed_gangs(at: Situation) -> dict[NodeName, set[JobKey]]:
    """Jobs that are kept away from a node since they failed there, and those it refused or could not start."""
    found: dict[NodeName, set[JobKey]] = {}
    for record in at.allocation.jobs.values():
        for avoid in record.avoid:
            if avoid.until > at.now:
                found.setdefault(avoid.node, set()).add(record.job)
    for name, seen in at.observed.nodes.items():
        for receipt in seen.attempts:
            if receipt.state is AttemptState.REFUSED or receipt.reason.startswith("LaunchFailed"):
                found.setdefault(name, set()).add(receipt.job)
    return found


def _vitals(vitals: NodeVitals, now: Instant) -> Iterator[Anomaly]:
    if abs(vitals.skew) >= SKEW_TOLD:
        way = "ahead of" if vitals.skew > 0 else "behind"
        told = f"its clock is {_seconds(abs(vitals.skew))} {way} the reconciler's"
        grave = abs(vitals.skew) >= SKEW_GRAVE
        yield Anomaly(code=AnomalyCode.CLOCK_SKEWED, on=vitals.node, evidence=told, grave=grave)
    yield from full_disks(vitals.node, vitals.disks)
    ends = vitals.certificate_ends
    if ends is not None and ends - now < CERTIFICATE_SPARE:
        yield Anomaly(code=AnomalyCode.CERTIFICATE_EXPIRES, on=vitals.node, evidence=ending(ends, now))


def _seconds(span: int) -> str:
    return f"{span // SECOND}.{span % SECOND // 100_000_000} s"
