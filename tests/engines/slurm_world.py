"""A world of a `SlurmEngine` over three nodes of a real Slurm cluster, for the contract of all engines."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

from reconciler.engines.slurm.commands import Commands
from reconciler.engines.slurm.engine import SlurmEngine
from reconciler.errors import EngineUnavailable
from reconciler.model.desired import Desired, SlurmRules
from reconciler.model.units import SECOND, Nanoseconds
from reconciler.wire import AttemptOrder, CheckpointOrder
from tests.engines.builders import attempt_order, desired_of
from tests.engines.fake import FakeClock
from tests.engines.slurm_cluster import SlurmCluster, until

WORK = """\
trap 'date +%s%N >{marker}; exit 0' USR1
while :; do sleep 0.1; done
"""


class SlurmWorld:
    """Nodes 1 and 2 can be pinned, node 5 cannot. Time is fake, and begins now; Slurm's own is not."""

    def __init__(self, slurm: SlurmCluster, *, names: tuple[str, ...] = ("node001", "node002", "node005")) -> None:
        self.slurm = slurm
        self.names = list(names)
        # Slurm remembers the jobs of earlier tests for a while.
        self.cluster = f"test-{secrets.token_hex(4)}"
        self.clock = FakeClock(now=time.time_ns())
        self.told: list[tuple[str, Mapping[str, object]]] = []
        self.engine = self.another()

    def another(self) -> SlurmEngine:
        """An engine that knows nothing: as after a restart of the reconciler."""
        commands = Commands(timeout=Nanoseconds(20 * SECOND))
        return SlurmEngine(
            self.cluster,
            self.clock,
            commands=commands,
            polling=False,
            root_may_run=True,
            tell=lambda *said: self.told.append(said),
        )

    def desired(self) -> Desired:
        return replace(desired_of(self.names), slurm=SlurmRules(folder=str(self.slurm.shared)))

    def order(
        self,
        job: str = "nlp/sft",
        *,
        phase: str = "prepare",
        attempt: int = 1,
        gpus: tuple[int, ...] = (0, 1),
        script: str = "",
        grace: int = 60,
    ) -> AttemptOrder:
        marker = self.slurm.shared / f"{job.replace('/', '-')}.marker"
        base = attempt_order(job, phase=phase, attempt=attempt, gpus=gpus)
        return replace(
            base,
            run=replace(
                base.run,
                command=[],
                script=script or WORK.format(marker=marker),
                heartbeatFile=str(self.slurm.shared / "beat"),
            ),
            checkpoint=CheckpointOrder(
                dir=str(self.slurm.shared), marker=str(marker), signal="SIGUSR1", to="leader", graceSeconds=grace
            ),
        )

    def sync(self, *names: str) -> None:
        del names

        def settled() -> bool:
            self.engine.poll()
            return not self.engine._moving

        until(settled, "nothing starts or stops any more")

    def cut(self, *names: str) -> None:
        self._cut(names, told=True)

    def crash(self, name: str) -> None:
        """The node dies, and Slurm finds out by itself."""
        self._cut((name,), told=False)

    def _cut(self, names: tuple[str, ...], *, told: bool) -> None:
        if set(names) == set(self.names):
            self.slurm.control("kill-ctld")
            return
        self.slurm.control("kill", *names)
        for name in names if told else ():
            self.slurm.run("scontrol", "update", f"nodename={name}", "state=NoResp")
        until(lambda: all(self.slurm.state_of(name).endswith("*") for name in names), "Slurm misses the nodes")

    def mend(self, *names: str) -> None:
        self.slurm.control("start", *names)
        until(lambda: all(self.slurm.state_of(name) == "idle" for name in names), "Slurm has the nodes again")

    def ail(self, name: str, reason: str) -> None:
        self.slurm.run("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")

    def beat(self, progress: Mapping[str, object]) -> None:
        (self.slurm.shared / "beat").write_text(json.dumps(progress) + "\n", encoding="utf-8")

    def look(self) -> None:
        """One look, whatever comes of it."""
        try:
            self.engine.poll()
        except EngineUnavailable as err:
            self.told.append((err.code, {}))
