"""What GangOps would do with somebody else's cluster, as text and as JSON: who waits and why, what would start where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reconciler.model.counting import counted
from reconciler.render.table import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """One job that waits in Slurm. `nodes` "" means that it would not start now; then `why` says what it waits for.

    `waited` and times are seconds. `victims` are jobs that would be stopped for it, through their checkpoints.
    """

    id: int
    name: str
    user: str
    queue: str
    gpus: int
    waited: int
    slurm: str
    nodes: str = ""
    where: str = ""
    why: str = ""
    victims: tuple[str, ...] = ()

    @property
    def starts(self) -> bool:
        return bool(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """GPUs of the cluster; Phi is in millionths, and says nothing when nothing is idle."""

    capacity: int
    held: int
    idle: int
    stranded: int
    phi_ppm: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """The whole of it. `left_out` says what of Slurm's queue was not looked at, and why."""

    nodes: int
    off: int
    running: int
    now: Numbers
    after: Numbers
    waiting: tuple[Waiter, ...]
    stopped: tuple[str, ...] = ()
    tidying: tuple[str, ...] = ()
    left_out: tuple[str, ...] = field(default_factory=tuple)


def shadow_text(found: Shadow, width: int | None) -> str:
    """The page: numbers, what would start, who waits on, what else would be done."""
    now, starts = found.now, [one for one in found.waiting if one.starts]
    off = f", {found.off} not usable" if found.off else ""
    held = f"{now.held} held by {counted(found.running, 'job')}, {now.idle} idle, {now.stranded} stranded"
    parts = [f"{counted(found.nodes, 'node')}{off}; {counted(now.capacity, 'GPU')}: {held}; Phi {_phi(now)}"]
    if starts:
        gpus = sum(one.gpus for one in starts)
        rows = [(str(one.id), one.name, one.queue, str(one.gpus), _span(one.waited), _place(one)) for one in starts]
        parts.append(
            f"GangOps would start {len(starts)} of {counted(len(found.waiting), 'waiting job')} now ({counted(gpus, 'GPU')}):\n\n"
            + table(("JOB", "NAME", "QUEUE", "GPUS", "WAITED", "WHERE"), rows, width=width, right="JOB GPUS WAITED")
        )
    else:
        parts.append(f"GangOps would start none of {len(found.waiting)} waiting jobs now.")
    rest = [one for one in found.waiting if not one.starts]
    if rest:
        rows = [(str(one.id), one.name, one.queue, str(one.gpus), _span(one.waited), _said(one)) for one in rest]
        header = ("JOB", "NAME", "QUEUE", "GPUS", "WAITED", "WHY IT WAITS")
        parts.append(table(header, rows, width=width, right="JOB GPUS WAITED"))
    if found.stopped:
        parts.append("For that it would stop, through their checkpoints:\n  " + "\n  ".join(found.stopped))
    if found.tidying:
        parts.append("To free whole NVLink domains it would propose:\n  " + "\n  ".join(found.tidying))
    if starts:
        after = found.after
        parts.append(f"Afterwards: {after.held} held, {after.idle} idle, {after.stranded} stranded; Phi {_phi(after)}")
    if found.left_out:
        parts.append("Not looked at:\n  " + "\n  ".join(found.left_out))
    return "\n\n".join(parts)


def shadow_tree(found: Shadow) -> dict[str, Any]:
    """The same for machines."""
    return {
        "formatVersion": "1.0",
        "kind": "Shadow",
        "nodes": found.nodes,
        "nodesOff": found.off,
        "running": found.running,
        "now": _numbers_tree(found.now),
        "after": _numbers_tree(found.after),
        "waiting": [
            {
                "job": one.id,
                "name": one.name,
                "user": one.user,
                "queue": one.queue,
                "gpus": one.gpus,
                "waitedSeconds": one.waited,
                "slurmReason": one.slurm,
                "starts": one.starts,
                "nodes": one.nodes,
                "where": one.where,
                "reason": one.why,
                "victims": list(one.victims),
            }
            for one in found.waiting
        ],
        "stopped": list(found.stopped),
        "tidying": list(found.tidying),
        "leftOut": list(found.left_out),
    }


def _numbers_tree(numbers: Numbers) -> dict[str, int]:
    return {
        "capacity": numbers.capacity,
        "held": numbers.held,
        "idle": numbers.idle,
        "stranded": numbers.stranded,
        "phiPpm": numbers.phi_ppm,
    }


def _phi(numbers: Numbers) -> str:
    if not numbers.idle:
        return "- (nothing is idle)"
    share = numbers.idle * 100 // numbers.capacity if numbers.capacity else 0
    return f"{numbers.phi_ppm // 10_000 / 100:.2f} ({share} % idle)"


def _place(one: Waiter) -> str:
    after = f", after {', '.join(one.victims)}" if one.victims else ""
    return f"{one.nodes} ({one.where}){after}"


def _said(one: Waiter) -> str:
    return f"{one.why} (Slurm: {one.slurm})" if one.slurm and one.slurm != "None" else one.why


def _span(seconds: int) -> str:
    """The two largest units."""
    units: Sequence[tuple[str, int]] = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    left = max(0, seconds)
    for unit, size in units:
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2]) or "0s"
