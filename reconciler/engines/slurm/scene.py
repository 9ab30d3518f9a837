"""What does one look at Slurm show, sorted by whose it is, and what follows for each of our gangs?

Our submissions are put beside the orders of the applied generation; everyone else's jobs, and those of ours that no
order names any more, are foreign: they have what they have. Pure but for asking who we are.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.engines.applied import Applied
from reconciler.engines.reports import AttemptKey
from reconciler.engines.slurm.gres import slots_in
from reconciler.engines.slurm.judge import Case, Do, Standing, Submitted, Verdict, judge, submissions
from reconciler.engines.slurm.naming import Tag, find_tag
from reconciler.engines.slurm.receipts import NOTHING_LEFT, Gang, Left
from reconciler.engines.slurm.seen import Sight, SlurmJob
from reconciler.model.observed import AttemptState
from reconciler.model.units import SECOND, Instant, JobKey, NodeName
from reconciler.wire import AttemptOrder, decode_orders

Gangs = Mapping[AttemptKey, Gang]
_UNSEEN: Final = 20 * SECOND
"""After so long a shared file system would have shown the receipt of a gang that runs."""
Verdicts = Mapping[AttemptKey, Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One look, sorted. `newest` is the greatest generation that any of our jobs was submitted for."""

    sight: Sight
    ours: Mapping[AttemptKey, tuple[Submitted, ...]]
    foreign: tuple[SlurmJob, ...]
    gangs: Gangs
    left: Mapping[tuple[str, int], Left]
    newest: tuple[int, int]

    def alive(self, key: AttemptKey) -> tuple[Submitted, ...]:
        """The submissions of an attempt that are not over."""
        return tuple(s for s in self.ours.get(key, ()) if s.standing is not Standing.OVER)


def gangs_of(applied: Applied | None) -> dict[AttemptKey, dict[NodeName, AttemptOrder]]:
    """The orders of a generation by attempt: each with its order on every node. Raises: BadMessage."""
    found: dict[AttemptKey, dict[NodeName, AttemptOrder]] = {}
    for node, content in sorted(applied.committed.orders.items()) if applied else ():
        for order in decode_orders(content).attempts:
            found.setdefault((JobKey(order.job), order.attempt), {})[node] = order
    return found


def leader_of(gang: Gang) -> AttemptOrder:
    """The order that speaks for the whole gang: all say the same of what is run."""
    return min(gang.values(), key=lambda order: order.nodeRank)


def scene_of(sight: Sight, cluster: str, gangs: Gangs) -> Scene:
    """The look, sorted; what gangs left is not looked at yet. `cluster` is the id that marks our jobs."""
    tagged: list[tuple[Tag, SlurmJob]] = []
    foreign: list[SlurmJob] = []
    for job in sight.jobs:
        tag = find_tag(job.name, job.comment, cluster)
        if tag is not None:
            tagged.append((tag, job))
        elif job.holds:
            foreign.append(job)
    ours: dict[AttemptKey, list[Submitted]] = {}
    for submitted in submissions(tagged):
        ours.setdefault(submitted.tag.key, []).append(submitted)
    foreign += [job for key in sorted(ours.keys() - gangs.keys()) for s in ours[key] for job in s.jobs if job.holds]
    return Scene(
        sight=sight,
        ours={key: tuple(found) for key, found in ours.items()},
        foreign=tuple(foreign),
        gangs=gangs,
        left={},
        newest=max((tag.order for tag, _ in tagged), default=(0, 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """What keeps gangs out of Slurm: those it refused, with its words; nodes that nothing may start on yet; and jobs
    that would run as root, unless that was allowed (where all is simulated)."""

    refused: Mapping[AttemptKey, str]
    withheld: Callable[[NodeName], bool]
    root_may_run: bool = False


def verdicts_of(scene: Scene, bars: Bars, now: Instant) -> Verdicts:
    """What follows for every attempt that orders name, and for those of ours in Slurm that none does."""
    found = {key: judge(_case(key, gang, scene, bars, now)) for key, gang in scene.gangs.items()}
    stray = [key for key in scene.ours if key not in scene.gangs and scene.alive(key)]
    return found | {key: judge(Case(phase="", submitted=scene.ours[key])) for key in stray}


def is_moving(verdict: Verdict, gang: Gang | None) -> bool:
    """Something is starting or stopping: worth looking again soon."""
    if verdict.do is not Do.NOTHING or verdict.state in {AttemptState.PREPARING, AttemptState.STOPPING}:
        return True
    return gang is not None and leader_of(gang).phase == "run" and verdict.state is AttemptState.PREPARED


def own_user() -> str:
    """The account that submits."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _case(key: AttemptKey, gang: Gang, scene: Scene, bars: Bars, now: Instant) -> Case:
    order, left = leader_of(gang), scene.left.get(key, NOTHING_LEFT)
    submitted = tuple(s for s in scene.ours.get(key, ()) if s.tag.digest == order.digest)
    absent = all(s.standing is Standing.OVER for s in submitted)
    return Case(
        phase=order.phase,
        submitted=submitted,
        receipt=left.receipt,
        refusal=(bars.refused.get(key, "") or _refusal(gang, scene, bars)) if absent else "",
        busy=absent and (left.held or any(map(bars.withheld, gang)) or _is_busy(key, gang, scene)),
        up=left.up or _is_hidden(submitted, left, now),
        checkpoint=order.checkpoint,
        marker=left.marker,
        now=now,
    )


def _is_hidden(submitted: tuple[Submitted, ...], left: Left, now: Instant) -> bool:
    """Whether what the gang writes cannot be seen from here: then Slurm's word for its start has to do."""
    started = max((job.started for s in submitted for job in s.jobs if job.holds), default=0)
    return not left.receipt.begun and bool(started) and now > started * SECOND + _UNSEEN


def _refusal(gang: Gang, scene: Scene, bars: Bars) -> str:
    """Why Slurm cannot have this gang; "" when it can."""
    run = leader_of(gang).run
    if run.image:
        return "RuntimeNotOffered: images are not run through Slurm; start the container in `command`"
    user = own_user() if run.user == "self" else run.user
    if user == "root" and not bars.root_may_run:
        return "NotAllowed: nothing runs as root; give the queue an account in `runAs`"
    if os.geteuid() and user != own_user():
        return f"NotAllowed: only root may submit as {user}"
    unknown = [node for node in gang if node not in scene.sight.nodes]
    return f"UnknownNode: Slurm has no {', '.join(unknown)}" if unknown else ""


def _is_busy(key: AttemptKey, gang: Gang, scene: Scene) -> bool:
    """Whether an earlier submission of ours still has something that the gang needs.

    With pins the index counts; without them only whether there is room, and Slurm sees to that.
    """
    for other in scene.ours:
        if other == key:
            continue
        for job in (job for s in scene.alive(other) for job in s.jobs if job.holds):
            if other[0] == key[0] and any(node in job.nodes for node in gang):
                return True
            if any(_overlaps(order, job, node, scene) for node, order in gang.items()):
                return True
    return False


def _overlaps(order: AttemptOrder, job: SlurmJob, node: NodeName, scene: Scene) -> bool:
    there = scene.sight.nodes.get(node)
    if there is None or not there.gpus.slots or node not in job.nodes:
        return False
    return bool(mask_of(order) & (job.gpus.get(node, 0) or slots_in(job.per_node, there.gpus)))


def mask_of(order: AttemptOrder) -> int:
    """The GPUs that an order names."""
    mask = 0
    for rank in order.ranks:
        mask |= 1 << rank.gpu
    return mask
