"""Which engine has which node? One `ports.Engine` over several, so that racks can move from one to the other.

Each engine is told of its own nodes alone: their inventory, their orders, their observation. A node whose documents
name another engine than before stays with the old one until no order names an attempt on it, and takes no new work
meanwhile. An engine is made when the first node needs it. While one of several is unreachable its nodes count as
unreachable, and the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from reconciler.engines.news import Newsworthy
from reconciler.engines.slurm.facts import BOOT_PREFIX
from reconciler.errors import EngineUnavailable
from reconciler.model.anomaly import NodeVitals
from reconciler.model.desired import Desired
from reconciler.model.inventory import AGENTS, SLURM
from reconciler.model.observed import JobObservation, NodeCondition, NodeObservation, Observed
from reconciler.model.units import Instant, JobKey, NodeName
from reconciler.ports import Committed, Engine, LiveAttempt
from reconciler.wire import decode_orders

Maker = Callable[[], Engine]


class RoutedEngine(Newsworthy):
    """`ports.Engine` over those that `makers` make, by the name that documents have for them. All of them set `news`
    when there is some."""

    def __init__(self, makers: Mapping[str, Maker], news: threading.Event) -> None:
        self._makers = makers
        self._engines: dict[str, Engine] = {}
        self._news = news
        self._owner: dict[NodeName, str] = {}
        self._last = Observed()
        self._away: dict[str, Observed] = {}
        self._committed: Committed | None = None

    def start(self, desired: Desired, observed: Observed) -> None:
        """Start every engine that has a node. Raises: EngineUnavailable, UsageError (what an engine lacks here)."""
        self._last = observed
        self._owner = {name: _who_saw(node) for name, node in observed.nodes.items()}
        self._route(desired)

    def apply(self, committed: Committed) -> None:
        """Let each engine act on its nodes' orders."""
        self._committed = committed
        for name, engine in self._engines.items():
            if name != SLURM or self.leads():  # who stands by must not submit beside the one that leads
                engine.apply(self._part(committed, name))

    def follow(self, observed: Observed) -> None:
        """Another reconciler committed this: each engine is told of its own nodes."""
        self._last = observed
        for name, engine in self._engines.items():
            mine = {n: s for n, s in observed.nodes.items() if self._owner.get(n) == name and _is_by(s, name)}
            engine.follow(replace(observed, nodes=mine))

    def leads(self) -> bool:
        """Whether every engine says so: where agents are, it is they who elect."""
        return all(engine.leads() for engine in self._engines.values())

    def observe(self, desired: Desired, now: Instant) -> Observed:
        """What all of them see. Raises: EngineUnavailable, when none of them sees anything."""
        self._route(desired)
        if self._committed is not None:
            self.apply(self._committed)  # what was kept back while we stood by; else it is known already
        parts, failures = [], []
        for name, engine in self._engines.items():
            try:
                parts.append(engine.observe(self._share(desired, name), now))
                self._away.pop(name, None)
            except EngineUnavailable as err:
                failures.append(err)
                parts.append(self._away.setdefault(name, self._unreachable(name, now)))
        if len(failures) == len(self._engines):
            raise failures[0]
        self._last = _merged(parts)
        return replace(self._last, nodes=self._held_back(desired))

    def live(self) -> Mapping[JobKey, LiveAttempt]:
        """Progress of running attempts, whoever runs them."""
        return {job: at for engine in self._engines.values() for job, at in engine.live().items()}

    def rejected(self) -> Mapping[str, int]:
        """Calls that got an error, by code, of all engines."""
        return _summed(engine.rejected() for engine in self._engines.values())

    def visits(self) -> Mapping[str, int]:
        """People's visits, by kind and code, of all engines."""
        return _summed(engine.visits() for engine in self._engines.values())

    def vitals(self) -> Mapping[NodeName, NodeVitals]:
        """What nodes say of themselves for people, whoever has them."""
        return {node: at for engine in self._engines.values() for node, at in engine.vitals().items()}

    def stop(self) -> None:
        """Stop all of them."""
        for engine in self._engines.values():
            engine.stop()

    # -- routing

    def _route(self, desired: Desired) -> None:
        """Give every node to an engine, and make the engines that are needed for the first time."""
        wanted = {node.name: node.engine for node in desired.inventory.nodes}
        for node in wanted.keys() | self._owner.keys():
            owner = self._owner.get(node)
            if owner is None or (owner != wanted.get(node, owner) and not self._is_busy(node)):
                self._owner[node] = wanted[node]
        made = [name for name in sorted({*self._owner.values()} & self._makers.keys()) if name not in self._engines]
        for name in made:
            engine = self._makers[name]()
            mine = {
                n: seen for n, seen in self._last.nodes.items() if self._owner.get(n) == name and _is_by(seen, name)
            }
            engine.start(self._share(desired, name), replace(self._last, nodes=mine))
            self._engines[name] = engine
        if self._committed is not None:
            for name in made:
                self._engines[name].apply(self._part(self._committed, name))

    def _is_busy(self, node: NodeName) -> bool:
        """Whether orders name an attempt on the node, or nobody knows its orders yet."""
        if self._committed is None:
            return True
        content = self._committed.orders.get(node)
        return content is not None and bool(decode_orders(content).attempts)

    def _share(self, desired: Desired, name: str) -> Desired:
        nodes = tuple(node for node in desired.inventory.nodes if self._owner.get(node.name, node.engine) == name)
        return replace(desired, inventory=replace(desired.inventory, nodes=nodes))

    def _part(self, committed: Committed, name: str) -> Committed:
        orders = {node: content for node, content in committed.orders.items() if self._owner.get(node, AGENTS) == name}
        return replace(committed, orders=orders)

    def _unreachable(self, name: str, now: Instant) -> Observed:
        """An engine's last observation, with every node that was ready out of reach since now."""
        nodes = {
            node: replace(seen, condition=NodeCondition.UNREACHABLE, condition_since=now)
            if seen.condition is NodeCondition.READY
            else seen
            for node, seen in self._last.nodes.items()
            if self._owner.get(node) == name
        }
        return replace(self._last, nodes=nodes)

    def _held_back(self, desired: Desired) -> dict[NodeName, NodeObservation]:
        """All nodes; one that is to move to another engine says so, and takes no new work."""
        wanted = {node.name: node.engine for node in desired.inventory.nodes}
        return {
            name: seen
            if (owner := self._owner.get(name)) == wanted.get(name, owner) or seen.unhealthy
            else replace(seen, unhealthy=f"moves from {owner} to {wanted[name]} when it is empty")
            for name, seen in self._last.nodes.items()
        }


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in counts:
        for code, count in one.items():
            found[code] = found.get(code, 0) + count
    return found


def _who_saw(node: NodeObservation) -> str:
    return SLURM if node.boot_id.startswith(BOOT_PREFIX) else AGENTS


def _is_by(node: NodeObservation, name: str) -> bool:
    """An observation made by another engine says nothing to this one."""
    return _who_saw(node) == name


def _merged(parts: list[Observed]) -> Observed:
    """Nodes of all parts; of each job the newest checkpoint that any of them knows."""
    nodes = {name: node for part in parts for name, node in part.nodes.items()}
    jobs: dict[JobKey, JobObservation] = {}
    for part in parts:
        for job, seen in part.jobs.items():
            known = jobs.get(job)
            if known is None or (known.attempt, known.checkpoint or 0) < (seen.attempt, seen.checkpoint or 0):
                jobs[job] = seen
    return Observed(nodes=dict(sorted(nodes.items())), jobs=dict(sorted(jobs.items())))
