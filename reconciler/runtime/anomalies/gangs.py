"""What is wrong with gangs: stuck while starting or stopping, bound away from their GPUs, with rings that leave NVLink,
or waiting because idle GPUs lie in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.anomaly import Anomaly, AnomalyCode
from reconciler.model.counting import counted
from reconciler.model.lifecycle import JobState, Phase
from reconciler.model.observed import AttemptState, NodeCondition
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import SECOND, JobKey, NodeName
from reconciler.runtime.anomalies.situation import Situation

FAILED_STARTS: Final = 2
"""In a row, before a gang's starts are told even when it is not starting now."""
_NAMED: Final = 4
_BROKEN_UP: Final = frozenset({ReasonCode.NO_DOMAIN_FITS, ReasonCode.GROUPS_DO_NOT_FIT})
_NEAR: Final = ("P2P", "NV")
"""NCCL says P2P (over NVLink, on nodes that have it) or NVLS; nvidia-smi says NV and a number."""
_READY: Final = {
    Phase.PREPARE: frozenset({AttemptState.PREPARED, AttemptState.RUNNING}),
    Phase.RUN: frozenset({AttemptState.RUNNING, AttemptState.EXITED}),
}


def gang_anomalies(at: Situation) -> Iterator[Anomaly]:
    """Gangs in the order of their keys, then bindings, rings, and the cluster's fragmentation."""
    for record in at.allocation.jobs.values():
        yield from _starting(record, at)
        yield from _stopping(record, at)
    yield from _bindings(at)
    yield from _rings(at)
    yield from _fragmented(at)


def _starting(record: JobRecord, at: Situation) -> Iterator[Anomaly]:
    """Half of the time a start may take is over; or starts failed in a row."""
    waited, most = at.now - record.since, at.desired.scheduling.gang_start_timeout
    if record.state is JobState.STARTING and waited * 2 > most:
        late = [f"{node} {why}" for node in _nodes(record) if (why := _not_ready(record, node, at))]
        told = f"ordered to {record.phase} {waited // SECOND} s ago, of {most // SECOND} s at most: "
        told += _first(late) or "every node is ready, the next order is due"
        yield Anomaly(code=AnomalyCode.GANG_NOT_STARTING, on=record.job, evidence=told)
    elif record.failed_starts >= FAILED_STARTS:
        avoided = sorted({avoid.node for avoid in record.avoid if avoid.until > at.now})
        told = f"{record.failed_starts} starts failed in a row"
        told += f"; it avoids {', '.join(avoided)}" if avoided else ""
        yield Anomaly(code=AnomalyCode.GANG_NOT_STARTING, on=record.job, evidence=told)


def _nodes(record: JobRecord) -> tuple[NodeName, ...]:
    return record.placement.nodes if record.placement else ()


def _not_ready(record: JobRecord, node: NodeName, at: Situation) -> str:
    """Why a node keeps its gang from starting; "" when it does not."""
    seen = at.observed.nodes.get(node)
    if seen is None or seen.condition is not NodeCondition.READY:
        return "is silent" if seen is None else f"is {seen.condition}"
    receipt = seen.attempt(record.job, record.attempt)
    if receipt is None:
        return "has not taken the order" + (f" ({seen.refused})" if seen.refused else "")
    if record.phase is not None and receipt.state in _READY.get(record.phase, frozenset()):
        return ""
    return f"is {receipt.state}" + (f" ({receipt.reason})" if receipt.reason else "")


def _stopping(record: JobRecord, at: Situation) -> Iterator[Anomaly]:
    """Past its grace and its kill, and still not gone."""
    if record.state is not JobState.STOPPING:
        return
    late = record.deadline is not None and at.now > record.deadline + at.desired.scheduling.kill_after
    left = []
    for node in _nodes(record):
        seen = at.observed.nodes.get(node)
        receipt = seen.attempt(record.job, record.attempt) if seen else None
        if receipt is not None and (receipt.state is AttemptState.KILL_FAILED or (late and not receipt.state.released)):
            left.append(f"{node} {receipt.state}" + (f" ({receipt.reason})" if receipt.reason else ""))
    if left:
        yield Anomaly(code=AnomalyCode.GANG_NOT_STOPPING, on=record.job, evidence=f"not gone: {_first(left)}")


def _bindings(at: Situation) -> Iterator[Anomaly]:
    wrong: dict[JobKey, list[str]] = {}
    for node, vitals in sorted(at.vitals.items()):
        for one in vitals.misbound:
            told = f"rank {one.rank} on {node} (pid {one.pid}) has {one.what} {one.seen}, not {one.ordered}"
            wrong.setdefault(one.job, []).append(told)
    for job, told_of in sorted(wrong.items()):
        yield Anomaly(code=AnomalyCode.BINDING_DIFFERS, on=job, evidence=_first(told_of), grave=False)


def _rings(at: Situation) -> Iterator[Anomaly]:
    """Neighbours on one node that do not speak over NVLink although its GPUs have some; neighbours on two that speak
    over sockets."""
    linked = {
        node.name for node in at.desired.inventory.nodes if any(island.bit_count() > 1 for island in node.shape.nvlink)
    }
    declared = {node.name for node in at.desired.inventory.nodes}
    found: dict[tuple[AnomalyCode, str], list[str]] = {}
    for hop in at.hops:
        has_none = hop.node in declared and hop.node not in linked
        if hop.is_inside and not hop.via.startswith(_NEAR) and not has_none:
            told = f"GPU {hop.gpu} to {hop.peer} via {hop.via}"
            found.setdefault((AnomalyCode.RING_LEAVES_NVLINK, hop.node), []).append(told)
        elif not hop.is_inside and hop.via.startswith("NET/Socket"):
            told = f"GPU {hop.gpu} to {hop.peer_node} via {hop.via}"
            found.setdefault((AnomalyCode.RING_OVER_SOCKETS, hop.node), []).append(told)
    for (code, node), told_of in found.items():
        yield Anomaly(code=code, on=node, evidence=_first(told_of))


def _fragmented(at: Situation) -> Iterator[Anomaly]:
    """Phi over the threshold; grave where jobs wait that the idle GPUs would hold, were they in one piece."""
    metrics, threshold = at.allocation.metrics, at.desired.scheduling.defragment_threshold_ppm
    if metrics.phi_ppm <= threshold:
        return
    blocked = []
    for record in at.allocation.jobs.values():
        wanted = at.desired.jobs.get(record.job)
        waits = record.state is JobState.PENDING and record.reason.code in _BROKEN_UP
        if waits and wanted is not None and wanted.gpus <= metrics.idle:
            blocked.append(f"{record.job} ({counted(wanted.gpus, 'GPU')}, {record.reason.code})")
    told = (
        f"Phi {metrics.phi_ppm // 10_000} % is over {threshold // 10_000} %: {metrics.stranded} of "
        f"{counted(metrics.idle, 'idle GPU')} stranded; "
        + (f"waiting for a whole domain: {_first(blocked)}" if blocked else "no job waits for a whole domain now")
    )
    yield Anomaly(code=AnomalyCode.FRAGMENTED, on="cluster", evidence=told, grave=bool(blocked))


def _first(told: list[str]) -> str:
    more = len(told) - _NAMED
    return "; ".join(told[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
