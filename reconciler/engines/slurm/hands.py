"""Doing what was judged: submitting a gang, asking it for a checkpoint, ending it, and letting Slurm end it in time."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from reconciler.engines.applied import Applied
from reconciler.engines.reports import AttemptKey
from reconciler.engines.slurm.commands import Commands
from reconciler.engines.slurm.judge import Do, Standing, Submitted
from reconciler.engines.slurm.naming import Tag
from reconciler.engines.slurm.receipts import NOTHING_LEFT
from reconciler.engines.slurm.scene import Scene, Verdicts, leader_of, own_user
from reconciler.engines.slurm.seen import Partition
from reconciler.engines.slurm.submit import end_minutes, submission_of
from reconciler.errors import EngineRefused
from reconciler.model.desired import SlurmRules
from reconciler.model.units import Instant
from reconciler.wire import AttemptOrder

Tell = Callable[[str, Mapping[str, object]], None]


class Hands:
    """Acts for one cluster. What Slurm refused is remembered until no order names it any more."""

    def __init__(self, cluster: str, tell: Tell) -> None:
        self._cluster = cluster
        self._tell = tell
        self.refused: dict[AttemptKey, str] = {}

    def act(
        self, commands: Commands, scene: Scene, verdicts: Verdicts, applied: Applied, rules: SlurmRules, now: Instant
    ) -> bool:
        """Do what the verdicts say; True when anything was done. Raises: EngineUnavailable, with the rest undone."""
        partitions: tuple[Partition, ...] | None = None
        acted = False
        for key, verdict in sorted(verdicts.items()):
            for extra in verdict.extra:
                self._cancel(commands, key, extra)
            if verdict.do is Do.SUBMIT:
                partitions = commands.partitions() if partitions is None else partitions
                self._submit(commands, key, scene, applied, rules, partitions)
            elif verdict.do is Do.ASK and verdict.target is not None:
                self._ask(commands, key, verdict.target, scene, now)
            elif verdict.do is Do.CANCEL and verdict.target is not None:
                self._cancel(commands, key, verdict.target)
            elif verdict.target is not None and key in scene.gangs:
                _limit(commands, leader_of(scene.gangs[key]), verdict.target)
            acted = acted or bool(verdict.extra) or verdict.do is not Do.NOTHING
        return acted

    def _submit(
        self,
        commands: Commands,
        key: AttemptKey,
        scene: Scene,
        applied: Applied,
        rules: SlurmRules,
        partitions: tuple[Partition, ...],
    ) -> None:
        gang = scene.gangs[key]
        order = leader_of(gang)
        epoch, generation = applied.order
        tag = Tag(
            cluster=self._cluster, job=key[0], attempt=key[1], digest=order.digest, epoch=epoch, generation=generation
        )
        chosen = next((p for p in partitions if (p.name == rules.partition if rules.partition else p.default)), None)
        about: dict[str, object] = {"job": key[0], "attempt": key[1]}
        try:
            account = _account_of(order)
            given = submission_of(tag, gang, scene.sight.nodes, rules, chosen, account)
            _make_folder(given.folder, rules.folder, account)
            number = commands.submit(given.options, given.script)
        except EngineRefused as err:
            self.refused[key] = f"{err.code}: {err.message}"
            self._tell("slurm-refused", {**about, "message": err.message})
            return
        self._tell("slurm-submitted", {**about, "slurmJob": number})

    def _ask(self, commands: Commands, key: AttemptKey, target: Submitted, scene: Scene, now: Instant) -> None:
        """Ask for a checkpoint. When that was is written down first, or a restart would ask and wait once more."""
        checkpoint = leader_of(scene.gangs[key]).checkpoint
        marker = scene.left.get(key, NOTHING_LEFT).marker or 0
        asked = target.tag.asked_at(now, marker)
        for job in target.jobs:
            with suppress(EngineRefused):  # it ended meanwhile
                commands.update(job.id, Comment=asked.comment())
        if checkpoint is not None and checkpoint.signal:
            for job in target.jobs:
                commands.signal(checkpoint.signal, job.id)
        self._tell("slurm-checkpoint-asked", {"job": key[0], "attempt": key[1], "slurmJob": target.id})

    def _cancel(self, commands: Commands, key: AttemptKey, target: Submitted) -> None:
        commands.cancel(target.id)
        self._tell("slurm-cancelled", {"job": key[0], "attempt": key[1], "slurmJob": target.id})


def _limit(commands: Commands, order: AttemptOrder, target: Submitted) -> None:
    """Slurm ends a gang soon after its deadline, even if we are gone by then."""
    first = target.jobs[0]
    if order.deadline is None or order.phase != "run" or target.standing is not Standing.RUNS or not first.started:
        return
    minutes = end_minutes(Instant(order.deadline), first.started, order.killSeconds)
    if first.limit == minutes:
        return
    for job in target.jobs:
        with suppress(EngineRefused):  # beyond the partition's own limit: then that one holds
            commands.update(job.id, TimeLimit=str(minutes))


def _account_of(order: AttemptOrder) -> tuple[str, str] | None:
    """User and group to submit as; None for our own. Raises: EngineRefused (UnknownAccount)."""
    if order.run.user in {"self", own_user()}:
        return None
    try:
        group = order.run.group or str(pwd.getpwnam(order.run.user).pw_gid)
    except KeyError as err:
        raise EngineRefused(f"there is no account {order.run.user} here", code="UnknownAccount") from err
    return order.run.user, group


def _make_folder(folder: str, root: str, account: tuple[str, str] | None) -> None:
    """The attempt's folder, owned by its user, as far as it can be made from here: the job's script makes it else."""
    with suppress(OSError, KeyError, LookupError):
        Path(folder).mkdir(parents=True, exist_ok=True)
        if account is None or os.geteuid():
            return
        at = Path(folder)
        while at != Path(root) and at.is_relative_to(root):
            shutil.chown(at, account[0])
            at = at.parent
