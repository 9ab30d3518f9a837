"""What would each node say if it could speak for itself? Slurm's view of a node, as the report an agent would send.

So everything that is true of agents' reports (facts keep their instants, silence is judged, a reboot ends what ran)
is true here, by the same code. A node that Slurm does not reach says nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from reconciler.engines.applied import Applied
from reconciler.engines.reports import AttemptKey
from reconciler.engines.slurm.gres import slots_in
from reconciler.engines.slurm.judge import Verdict
from reconciler.engines.slurm.receipts import NOTHING_LEFT
from reconciler.engines.slurm.scene import Scene, Verdicts, mask_of
from reconciler.engines.slurm.seen import SlurmJob, SlurmNode
from reconciler.model.desired import SlurmRules
from reconciler.model.observed import AttemptState
from reconciler.model.units import Instant, NodeName
from reconciler.wire import AttemptOrder, AttemptStatus, Report

BOOT_PREFIX: Final = "slurm-"
BOOT_JITTER: Final = 5
"""Seconds by which Slurm's boot time of a node wanders: it is computed from the uptime at each registration."""

_SILENT: Final = frozenset({"NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"})
_OFF: Final = {
    "DOWN": "down",
    "DRAIN": "drained",
    "FAIL": "failing",
    "ERROR": "in error",
    "INVALID_REG": "registered with too little",
    "INVALID": "registered with too little",
    "MAINTENANCE": "in maintenance",
    "MAINT": "in maintenance",
    "RESERVED": "reserved",
    "REBOOT_REQUESTED": "about to reboot",
    "REBOOT_ISSUED": "rebooting",
    "POWER_DOWN": "about to be powered down",
    "BLOCKED": "blocked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """Under which boot id, session and sequence number a node's report goes in."""

    boot: str
    session: str
    sequence: int


def report_of(
    node: SlurmNode,
    speaker: Speaker,
    scene: Scene,
    verdicts: Verdicts,
    applied: Applied | None,
    rules: SlurmRules,
    now: Instant,
) -> Report:
    """What the node would say now of itself and of the attempts it has orders for."""
    mine = {key: gang[node.name] for key, gang in scene.gangs.items() if node.name in gang}
    ours = 0
    for order in mine.values():
        ours |= mask_of(order)
    epoch, generation = applied.order if applied else (0, 0)
    commit = applied.committed.commit if applied else ""
    return Report(
        node=node.name,
        bootId=speaker.boot,
        session=speaker.session,
        sequence=speaker.sequence,
        address=node.address,
        epoch=epoch,
        generation=generation,
        commit=commit,
        unhealthy=unhealthy_of(node, rules),
        hardware=hardware_of(node, foreign_gpus(node, scene.foreign, ours)),
        attempts=[
            replace(_status(key, mine[key], node.name, verdicts[key], scene, now), generation=generation, commit=commit)
            for key in sorted(mine)
        ],
    )


def _status(
    key: AttemptKey, order: AttemptOrder, node: NodeName, verdict: Verdict, scene: Scene, now: Instant
) -> AttemptStatus:
    left, target = scene.left.get(key, NOTHING_LEFT), verdict.target
    reason = verdict.reason
    if verdict.state is AttemptState.RUNNING and target is not None:
        reason = elsewhere(order, node, target.jobs)
    return AttemptStatus(
        job=key[0],
        attempt=key[1],
        state=str(verdict.state),
        at=now,
        generation=0,
        commit="",
        exitCode=verdict.code,
        reason=reason,
        checkpoint=left.marker,
        progress=dict(left.progress),
        ranks=[{"rank": rank.rank, "slurmJob": target.id} for rank in order.ranks] if target else [],
    )


def speaks(node: SlurmNode) -> bool:
    """Whether Slurm has the node's own word: otherwise it is silent, and silence is judged elsewhere."""
    return not node.states & _SILENT


def unhealthy_of(node: SlurmNode, rules: SlurmRules) -> str:
    """Why the node takes no new work, in one line; "" when it does."""
    if rules.partition and rules.partition not in node.partitions:
        return f"Slurm: not in partition {rules.partition}"
    said = next((words for state, words in _OFF.items() if state in node.states), "")
    if not said:
        return ""
    return f"Slurm: {said}: {node.reason}" if node.reason else f"Slurm: {said}"


def boot_id(node: SlurmNode, before: str) -> str:
    """The boot id, which stays the same while Slurm's boot time only wanders."""
    known = before.removeprefix(BOOT_PREFIX)
    if known.isdecimal() and (not node.boot_time or abs(int(known) - node.boot_time) <= BOOT_JITTER):
        return before
    return f"{BOOT_PREFIX}{node.boot_time}"


def hardware_of(node: SlurmNode, foreign: Mapping[int, str]) -> dict[str, Any]:
    """The node's GPUs, those of others' jobs with their owner."""
    gpus = [
        {"index": index, "uuid": f"{node.name}/gpu{index}", "foreign": foreign.get(index, "")}
        for index in range(node.gpus.count)
    ]
    return {"gpuType": "", "gpus": gpus}


def owner_of(job: SlurmJob) -> str:
    """Whose a foreign job is, for `explain`."""
    return f"Slurm job {job.id} ({job.name}) of {job.user}" if job.user else f"Slurm job {job.id} ({job.name})"


def foreign_gpus(node: SlurmNode, jobs: Iterable[SlurmJob], ours: int) -> dict[int, str]:
    """Which GPUs of a node others use, by index, with their owner. `ours` is the mask of what our orders name.

    Without pins Slurm's indexes are not ours: others' GPUs are counted then on indexes that we have not ordered,
    their own first. A job that has the node to itself, or the last of its CPUs, has all that is left.
    """
    found: dict[int, str] = {}
    there = [job for job in sorted(jobs, key=lambda job: job.id) if node.name in job.nodes]
    for job in there:
        owner = owner_of(job)
        mask = job.gpus.get(node.name, 0)
        count = mask.bit_count() + job.counts.get(node.name, 0)
        mask = mask or slots_in(job.per_node, node.gpus)
        free = [index for index in range(node.gpus.count) if not ours >> index & 1 and index not in found]
        free.sort(key=lambda index: (not mask >> index & 1, index))
        found |= dict.fromkeys(free[:count], owner)
    last = next((job for job in there if job.whole_nodes), None)
    if last is None and there and node.cpus and node.cpus_used >= node.cpus:
        last = there[-1]
    if last is not None:
        for index in range(node.gpus.count):
            if not ours >> index & 1:
                found.setdefault(index, owner_of(last))
    return found


def elsewhere(order: AttemptOrder, node: NodeName, jobs: Iterable[SlurmJob]) -> str:
    """Which GPUs a gang was given on a node where they are not those ordered; "" where they are, or are not told."""
    ordered, mask = mask_of(order), 0
    for job in jobs:
        mask |= job.gpus.get(node, 0)
    if not mask or mask == ordered:
        return ""
    return f"Slurm gave it GPUs {_numbers(mask)} for {_numbers(ordered)}"


def _numbers(mask: int) -> str:
    return ",".join(str(index) for index in range(mask.bit_length()) if mask >> index & 1)
