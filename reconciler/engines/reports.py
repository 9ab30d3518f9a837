"""What facts does a node's report hold, and which reports are no reports at all?

`wire` checked that the fields have the right types; here their content is checked, because a report comes from a
machine that may be broken or hostile, and what it says ends up in a public record. Pure: no clock, no memory of
earlier reports (`sessions` has that).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reconciler.model.anomaly import Disk, Misbound, NodeVitals
from reconciler.model.observed import AttemptReport, AttemptState, GpuReport, NicReport, NumaReport
from reconciler.model.units import SECOND, BitsPerSecond, Bytes, Instant, JobKey, NodeName
from reconciler.wire import MAX_MISBOUND, AttemptStatus, BadMessage, Refusal, Report

MAX_ATTEMPTS = 512
MAX_GPUS = 128
MAX_TEXT = 240
_MAX_WHOLE = 2**63 - 1
_MAX_SCALARS = 32
_MAX_XIDS = 64
_JOB = re.compile(r"[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-a-z0-9.]{0,80}")

AttemptKey = tuple[JobKey, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What is shown of an attempt and never committed: its checkpoint as reported, heartbeat, ranks and disuse."""

    checkpoint: Instant | None
    progress: Mapping[str, Any]
    ranks: tuple[Mapping[str, Any], ...]
    idle: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a node says it is made of, by the names `NodeObservation` has for it."""

    gpu_type: str
    gpus: tuple[GpuReport, ...]
    driver: str
    clique: str
    nics: tuple[NicReport, ...]
    numa: tuple[NumaReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A report whose content was checked. `hardware` None: unchanged since this session last said.

    `accepted` is epoch, generation and commit of the last order its journal holds.
    """

    node: NodeName
    boot_id: str
    address: str
    unhealthy: str
    hardware: Hardware | None
    attempts: tuple[AttemptReport, ...]
    beats: Mapping[AttemptKey, Beat]
    refusals: tuple[Refusal, ...]
    accepted: tuple[int, int, str]
    vitals: NodeVitals


def facts_of(report: Report, now: Instant = Instant(0)) -> Facts:
    """The facts of a report that came at `now`: attempts by job and attempt, GPUs by index, text in one printable line.

    Raises: BadMessage, when a number is out of range, something is named twice or a list is absurdly long.
    """
    _whole(report.sequence, "sequence")
    if not report.session or len(report.session) > MAX_TEXT or not report.bootId:
        raise BadMessage("a report names its session and its boot")
    if len(report.attempts) > MAX_ATTEMPTS or len(report.refusals) > MAX_ATTEMPTS:
        raise BadMessage(f"more than {MAX_ATTEMPTS} attempts or refusals")
    attempts = {(JobKey(a.job), a.attempt): _receipt(a) for a in report.attempts}
    if len(attempts) != len(report.attempts):
        raise BadMessage("an attempt is reported twice")
    return Facts(
        node=NodeName(report.node),
        boot_id=one_line(report.bootId),
        address=one_line(report.address),
        unhealthy=one_line(report.unhealthy) or _unkillable(attempts),
        hardware=_hardware(report.hardware) if report.hardware else None,
        attempts=tuple(attempts[key] for key in sorted(attempts)),
        beats={(JobKey(a.job), a.attempt): _beat(a) for a in report.attempts},
        refusals=tuple(_refusal(r) for r in report.refusals),
        accepted=(_whole(report.epoch, "epoch"), _whole(report.generation, "generation"), one_line(report.commit)),
        vitals=vitals_of(NodeName(report.node), report.vitals, now),
    )


def vitals_of(node: NodeName, tree: Mapping[str, Any], now: Instant) -> NodeVitals:
    """What a node says of itself for people. Nothing in it is refused: what cannot be read was not said."""
    clock, ends = _number(tree.get("clock")), _number(tree.get("certificateEnds"))
    disks = [
        (one_line(str(row.get("path", ""))), _number(row.get("free")), _number(row.get("size")))
        for row in _rows(tree, "disks")
    ]
    return NodeVitals(
        node=node,
        skew=clock - now if clock is not None else 0,
        disks=tuple(
            Disk(path=path, free=Bytes(free), size=Bytes(size))
            for path, free, size in disks
            if free is not None and size is not None
        ),
        certificate_ends=Instant(ends * SECOND) if ends is not None and ends <= _MAX_WHOLE // SECOND else None,
        misbound=tuple(_misbound(row) for row in _rows(tree, "misbound")),
    )


def _misbound(row: Mapping[str, Any]) -> Misbound:
    return Misbound(
        job=JobKey(one_line(str(row.get("job", "")))),
        rank=_number(row.get("rank")) or 0,
        pid=_number(row.get("pid")) or 0,
        what=one_line(str(row.get("what", ""))),
        ordered=one_line(str(row.get("ordered", ""))),
        seen=one_line(str(row.get("seen", ""))),
    )


def _rows(tree: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = tree.get(name)
    return [row for row in found[:MAX_MISBOUND] if isinstance(row, dict)] if isinstance(found, list) else []


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_WHOLE else None


def one_line(value: object) -> str:
    """The value as one printable line of at most `MAX_TEXT` characters. Raises: BadMessage, when it is no text."""
    if not isinstance(value, str):
        raise BadMessage("expected text")
    return "".join(c if c.isprintable() else " " for c in value[:MAX_TEXT]).strip()


def _unkillable(attempts: Mapping[AttemptKey, AttemptReport]) -> str:
    """Why a node with a process that survives SIGKILL takes nothing new: its kernel or driver hangs. "" if it has none."""
    stuck = min((key for key, receipt in attempts.items() if receipt.state is AttemptState.KILL_FAILED), default=None)
    return f"KillFailed: ranks of {stuck[0]}, attempt {stuck[1]}, survive SIGKILL" if stuck else ""


def _receipt(status: AttemptStatus) -> AttemptReport:
    if not _JOB.fullmatch(status.job):
        raise BadMessage("an attempt names no job")
    try:
        state = AttemptState(status.state)
    except ValueError as err:
        raise BadMessage("an attempt is in no known state") from err
    if status.exitCode is not None and not -_MAX_WHOLE <= status.exitCode <= _MAX_WHOLE:
        raise BadMessage("exitCode is out of range")
    return AttemptReport(
        job=JobKey(status.job),
        attempt=_whole(status.attempt, "attempt"),
        state=state,
        at=Instant(_whole(status.at, "at")),
        generation=_whole(status.generation, "generation"),
        exit_code=status.exitCode,
        reason=one_line(status.reason),
    )


def _refusal(refusal: Refusal) -> Refusal:
    return Refusal(
        commitId=one_line(refusal.commitId),
        code=one_line(refusal.code),
        detail=one_line(refusal.detail),
        at=_whole(refusal.at, "at"),
    )


def _beat(status: AttemptStatus) -> Beat:
    checkpoint = None if status.checkpoint is None else Instant(_whole(status.checkpoint, "checkpoint"))
    ranks = tuple(_scalars(rank) for rank in status.ranks[:MAX_GPUS])
    idle = None if status.idle is None else Instant(_whole(status.idle, "idle"))
    return Beat(checkpoint=checkpoint, progress=_scalars(status.progress), ranks=ranks, idle=idle)


def _hardware(tree: Mapping[str, Any]) -> Hardware:
    gpus = {gpu.index: gpu for gpu in map(_gpu, _listed(tree, "gpus"))}
    nics = {nic.name: nic for nic in map(_nic, _listed(tree, "nics", []))}
    numa = {node.id: node for node in map(_numa, _listed(tree, "numa", []))}
    for what, found in (("gpus", gpus), ("nics", nics), ("numa", numa)):
        if len(found) != len(tree.get(what, ())):
            raise BadMessage(f"hardware.{what} names something twice")
    return Hardware(
        gpu_type=one_line(tree.get("gpuType", "")),
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        driver=one_line(tree.get("driver", "")),
        clique=one_line(tree.get("clique", "")),
        nics=tuple(nics[name] for name in sorted(nics)),
        numa=tuple(numa[number] for number in sorted(numa)),
    )


def _listed(tree: Mapping[str, Any], what: str, absent: object = None) -> list[dict[str, Any]]:
    found = tree.get(what, absent)
    if not isinstance(found, list) or len(found) > MAX_GPUS or not all(isinstance(item, dict) for item in found):
        raise BadMessage(f"hardware.{what} is no list of at most {MAX_GPUS} objects")
    return found


def _gpu(tree: Mapping[str, Any]) -> GpuReport:
    return GpuReport(
        index=_whole(tree.get("index"), "index"),
        uuid=one_line(tree.get("uuid", "")),
        healthy=_truth(tree.get("healthy", True), "healthy"),
        foreign=one_line(tree.get("foreign", "")),
        reason=one_line(tree.get("reason", "")),
        memory=Bytes(_whole(tree.get("memoryBytes", 0), "memoryBytes")),
        nvlinks=_whole_or_unknown(tree, "nvlinks"),
        pcie_width=_whole(tree.get("pcieWidth", 0), "pcieWidth"),
        pcie_most=_whole(tree.get("pcieMost", 0), "pcieMost"),
        numa=_whole_or_unknown(tree, "numa"),
        pcie_speed=_whole(tree.get("pcieSpeed", 0), "pcieSpeed"),
        pcie_fastest=_whole(tree.get("pcieFastest", 0), "pcieFastest"),
        xids=_xids(tree.get("xids", [])),
        recovery=one_line(tree.get("recovery", "")),
        throttled=one_line(tree.get("throttled", "")),
        rows_pending=_truth(tree.get("rowsPending", False), "rowsPending"),
    )


def _xids(found: object) -> tuple[int, ...]:
    if not isinstance(found, list) or len(found) > _MAX_XIDS:
        raise BadMessage(f"xids is no list of at most {_MAX_XIDS} numbers")
    return tuple(sorted({_whole(xid, "an XID") for xid in found}))


def _nic(tree: Mapping[str, Any]) -> NicReport:
    return NicReport(
        name=one_line(tree.get("name")),
        up=_truth(tree.get("up"), "up"),
        speed=BitsPerSecond(_whole(tree.get("bitsPerSecond", 0), "bitsPerSecond")),
        pcie_width=_whole(tree.get("pcieWidth", 0), "pcieWidth"),
        pcie_most=_whole(tree.get("pcieMost", 0), "pcieMost"),
        numa=_whole_or_unknown(tree, "numa"),
        switch=one_line(tree.get("switch", "")),
        pcie_speed=_whole(tree.get("pcieSpeed", 0), "pcieSpeed"),
        pcie_fastest=_whole(tree.get("pcieFastest", 0), "pcieFastest"),
    )


def _numa(tree: Mapping[str, Any]) -> NumaReport:
    return NumaReport(id=_whole(tree.get("id"), "id"), cpus=one_line(tree.get("cpus", "")))


def _truth(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise BadMessage(f"{what} is neither true nor false")
    return value


def _whole_or_unknown(tree: Mapping[str, Any], what: str) -> int:
    return -1 if tree.get(what, -1) == -1 else _whole(tree[what], what)


def _whole(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_WHOLE:
        raise BadMessage(f"{what} is no whole number in range")
    return value


def _scalars(tree: object) -> dict[str, Any]:
    """The plain numbers and short texts of a job's own JSON: a heartbeat is the job's, so nothing in it is refused."""
    if not isinstance(tree, dict):
        return {}
    kept: dict[str, Any] = {}
    for name, value in list(tree.items())[:_MAX_SCALARS]:
        if isinstance(value, str):
            kept[one_line(name)] = one_line(value)
        elif isinstance(value, (int, float)) and abs(value) <= _MAX_WHOLE:
            kept[one_line(name)] = value
    return kept
