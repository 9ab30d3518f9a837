"""The engine whose hands are Slurm: it looks every few seconds, and submits, asks and cancels what orders say.

One look and what follows from it is `poll`; a thread calls it until `stop`. What is known of nodes is kept by the same
`Sessions` as for agents, fed with the report that each node would send.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from reconciler.engines.applied import Applied, next_applied
from reconciler.engines.known import Hearing
from reconciler.engines.news import Newsworthy
from reconciler.engines.sessions import Sessions
from reconciler.engines.slurm.commands import Commands
from reconciler.engines.slurm.facts import BOOT_PREFIX, Speaker, boot_id, report_of, speaks
from reconciler.engines.slurm.fence import Fence, Turn
from reconciler.engines.slurm.hands import Hands, Tell
from reconciler.engines.slurm.receipts import Lookout
from reconciler.engines.slurm.scene import Bars, Scene, Verdicts, gangs_of, is_moving, scene_of, verdicts_of
from reconciler.errors import EngineUnavailable, GangOpsError
from reconciler.model.anomaly import NodeVitals
from reconciler.model.desired import Desired
from reconciler.model.observed import Observed
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import Clock, Committed, LiveAttempt

_HASTE: Final = Nanoseconds(SECOND // 2)
"""Time between two looks while something is starting or stopping."""


class SlurmEngine(Newsworthy):
    """`ports.Engine` over a Slurm cluster. Every method may be called from any thread.

    `cluster` is the cluster id that marks our jobs; `news` is set when there is some. Without `polling` only `poll`
    looks. `root_may_run` is for clusters in which all is simulated.
    """

    def __init__(
        self,
        cluster: str,
        clock: Clock,
        *,
        commands: Commands | None = None,
        polling: bool = True,
        tell: Tell | None = None,
        news: threading.Event | None = None,
        root_may_run: bool = False,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._given, self._commands = commands, commands or Commands()
        self._polling = polling
        self._root_may_run = root_may_run
        self._tell = tell or _say_nothing
        self._hands = Hands(cluster, self._tell)
        self._sessions = Sessions(clock)
        self._lookout = Lookout()
        self._fence, self._turns = Fence(cluster), Turn.OURS
        self._news = news or threading.Event()
        self._poke, self._stopped = threading.Event(), threading.Event()
        self._turn, self._applying = threading.Lock(), threading.Lock()
        self._applied: Applied | None = None
        self._acted: Applied | None = None
        self._desired: Desired | None = None
        self._thread: threading.Thread | None = None
        self._session, self._sequence = secrets.token_hex(8), 0
        self._boots: dict[NodeName, str] = {}
        self._moving = False

    # -- ports.Engine

    def start(self, desired: Desired, observed: Observed) -> None:
        """Look once and begin to look. Raises: EngineUnavailable (SlurmMissing), when its commands are not here."""
        if self._given is None:
            self._commands = Commands(timeout=desired.slurm.timeout)
        self._commands.version  # noqa: B018  # the commands are there, or this says what is missing
        self._desired = desired
        self._sessions.begin(desired, observed)
        self._boots = {n: seen.boot_id for n, seen in observed.nodes.items() if seen.boot_id.startswith(BOOT_PREFIX)}
        self._stopped.clear()
        with suppress(EngineUnavailable):  # then nobody was heard yet, which the judgement of silence knows about
            self.poll()
        if self._polling and self._thread is None:
            self._thread = threading.Thread(target=self._look_for_ever, name="gangops-slurm", daemon=True)
            self._thread.start()

    def apply(self, committed: Committed) -> None:
        """Act on a pushed generation from the next look on. Raises: BrokenInvariant, BadMessage."""
        with self._applying:
            applied = next_applied(committed, self._applied)
            if applied is self._applied:
                return
            self._sessions.apply(applied)
            self._applied = applied
        self._poke.set()

    def follow(self, observed: Observed) -> None:
        """Another reconciler committed this. Slurm tells all of us the same, so what it tells stands."""
        del observed

    def leads(self) -> bool:
        """Slurm answers whoever asks: it elects nobody, the push alone does."""
        return True

    def observe(self, desired: Desired, now: Instant) -> Observed:
        """Everything seen. Slurm knows no leases, so none is ever over. Raises: EngineUnavailable (OwnLinkSuspected)."""
        self._desired = desired
        seen = self._sessions.observe(desired, now)
        if not any(node.lease_expired for node in seen.nodes.values()):
            return seen
        return replace(seen, nodes={name: replace(node, lease_expired=False) for name, node in seen.nodes.items()})

    def live(self) -> Mapping[JobKey, LiveAttempt]:
        """Progress of running attempts, from their heartbeat files."""
        return self._sessions.live()

    def visits(self) -> Mapping[str, int]:
        """None: people go through agents."""
        return {}

    def rejected(self) -> Mapping[str, int]:
        """Nobody calls in, so nobody is turned away."""
        return {}

    def vitals(self) -> Mapping[NodeName, NodeVitals]:
        """Slurm's daemons tell nothing of that kind."""
        return {}

    def stop(self) -> None:
        """Look no more, once what was applied is acted on. Jobs go on. Idempotent."""
        self._stopped.set()
        self._poke.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._acted is not self._applied:
                with suppress(GangOpsError):
                    self.poll()

    # -- one look

    def poll(self) -> None:
        """Look once, do what follows, and take in what was seen. Raises: EngineUnavailable; nobody was heard then."""
        with self._turn:
            applied, desired = self._applied, self._desired
            if desired is None:
                return
            if applied is None:
                scene, verdicts = self._look(applied, desired)
            else:
                scene, verdicts = self._look_and_act(applied, desired)
            self._moving = any(is_moving(verdict, scene.gangs.get(key)) for key, verdict in verdicts.items())
            self._hear(scene, verdicts, applied, desired)
            self._acted = applied

    def _look_and_act(self, applied: Applied, desired: Desired) -> tuple[Scene, Verdicts]:
        """Looked at in our turn, and only then acted on: what another reconciler did is seen before anything is done."""
        with self._fence.turn(desired.slurm.folder, applied.order) as turn:
            self._tell_turn(turn, applied, desired)
            scene, verdicts = self._look(applied, desired)
            # Jobs of a newer generation are there: a newer reconciler acts, and this one only looks.
            if turn in (Turn.OURS, Turn.OPEN) and scene.newest <= applied.order:
                now = self._clock.now()
                if self._hands.act(self._commands, scene, verdicts, applied, desired.slurm, now):
                    scene, verdicts = self._look(applied, desired)
        return scene, verdicts

    def _tell_turn(self, turn: Turn, applied: Applied, desired: Desired) -> None:
        """Once each time it changes; that another one is just at it means nothing."""
        if turn is Turn.THEIRS or turn is self._turns:
            return
        self._turns = turn
        file = str(self._fence.path(desired.slurm.folder))
        self._tell("slurm-turn", {"turn": turn.value, "file": file, "generation": applied.order[1]})

    def _look(self, applied: Applied | None, desired: Desired) -> tuple[Scene, Verdicts]:
        gangs = gangs_of(applied)
        scene = scene_of(self._commands.look(), self._cluster, gangs)
        absent = frozenset(key for key in gangs if not scene.alive(key))
        scene = replace(scene, left=self._lookout.look(gangs.values(), desired.slurm, absent))
        self._hands.refused = {key: why for key, why in self._hands.refused.items() if key in gangs}
        if applied is None:  # until orders are known, nobody can say that a job has none
            return scene, {}
        bars = Bars(refused=self._hands.refused, withheld=self._sessions.withholds, root_may_run=self._root_may_run)
        return scene, verdicts_of(scene, bars, self._clock.now())

    def _hear(self, scene: Scene, verdicts: Verdicts, applied: Applied | None, desired: Desired) -> None:
        self._sequence += 1
        for name in sorted(scene.sight.nodes):
            node = scene.sight.nodes[name]
            if not speaks(node) or not self._sessions.admits(name):
                continue
            self._boots[name] = boot_id(node, self._boots.get(name, ""))
            speaker = Speaker(boot=self._boots[name], session=self._session, sequence=self._sequence)
            report = report_of(node, speaker, scene, verdicts, applied, desired.slurm, self._clock.now())
            if self._sessions.hear(report) is Hearing.NEWS:
                self._news.set()

    def _look_for_ever(self) -> None:
        trouble = ""
        while not self._stopped.is_set():
            self._poke.clear()
            try:
                self.poll()
            except GangOpsError as err:
                if err.message != trouble:
                    self._tell("slurm-unavailable", {"code": err.code, "message": err.message, "remedy": err.remedy})
                trouble = err.message
            else:
                trouble = ""
            interval = self._desired.slurm.poll_interval if self._desired else SECOND
            self._poke.wait((min(_HASTE, interval) if self._moving else interval) / SECOND)


def _say_nothing(event: str, fields: Mapping[str, object]) -> None:
    """Where nobody keeps a log."""
    del event, fields
