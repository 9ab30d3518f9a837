"""What did each node last say, and what is known of the cluster from that?

Reports become facts that keep their instants while nothing changes, so that equal worlds give equal values and an
idle cluster gives no commits. What one node's report changes is for `known`, silence is judged by `silence`, content
was checked by `reports`; sockets, orders and certificates are others' work. Time comes from the injected clock. Every public method holds one lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from threading import Lock

from reconciler.engines.applied import Applied
from reconciler.engines.known import (
    NEVER_JUDGED,
    Hearing,
    Known,
    followed,
    forget_rebooted,
    live_attempt,
    moved_on,
    settle_instants,
    stranger,
    take_in,
)
from reconciler.engines.reports import AttemptKey, Beat, facts_of
from reconciler.engines.silence import Silence, judged, may_lead, own_link_suspected
from reconciler.errors import EngineUnavailable
from reconciler.model.anomaly import NodeVitals
from reconciler.model.desired import AgentRules, Desired
from reconciler.model.observed import JobObservation, NodeCondition, Observed
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import Clock, LiveAttempt
from reconciler.wire import Refusal, Report


class Sessions:
    """All nodes' sessions. A node enters by the committed observation or by its first report."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._known: dict[NodeName, Known] = {}
        self._jobs: dict[JobKey, JobObservation] = {}
        self._applied: Applied | None = None
        self._declared: Mapping[NodeName, bool] = {}
        self._rules = AgentRules()
        self._started = Nanoseconds(0)
        self._suspected: Nanoseconds | None = None
        self._rivalled = False
        self._leads = False

    def begin(self, desired: Desired, observed: Observed) -> None:
        """Start listening now, from what was committed."""
        with self._lock:
            self._started = self._clock.monotonic()
            self._suspected = None
            self._declare(desired)
            self._known = {n: Known(seen=seen, leased_until=self._started) for n, seen in observed.nodes.items()}
            self._jobs = dict(observed.jobs)
            self._leads = False
            self._weigh(self._started)

    def follow(self, observed: Observed) -> None:
        """Another reconciler committed this observation: it stands until nodes speak to us again, and most have to
        before we lead. What they said before is older than the record."""
        with self._lock:
            self._started = self._clock.monotonic()
            self._suspected, self._rivalled, self._leads = None, True, False
            before = self._known
            self._known = {
                node: followed(before.get(node), seen, self._started) for node, seen in observed.nodes.items()
            }
            self._jobs = dict(observed.jobs)

    @property
    def leads(self) -> bool:
        """Whether enough nodes speak to us to decide for them; else another reconciler does, or nobody can."""
        return self._leads

    def renews(self) -> bool:
        """Whether leases may be renewed: not while our link is suspected, when another may judge them over."""
        with self._lock:
            monotonic = self._clock.monotonic()
            present = self._names() & self._known.keys()
            return not own_link_suspected([self._silence(node, monotonic) for node in present], self._rules)

    @property
    def rules(self) -> AgentRules:
        """How silence is judged, as last desired."""
        return self._rules

    def admits(self, node: NodeName) -> bool:
        """Whether the node may speak: it is declared, or still holds orders to stop what it has."""
        with self._lock:
            return node in self._declared or bool(self._attempts(node))

    def apply(self, applied: Applied) -> None:
        """From now `applied` says which attempts and leases nodes have."""
        with self._lock:
            self._applied = applied
            for node, known in self._known.items():
                # An earlier reconciler may have renewed the lease up to the moment we began.
                earlier = self._started + applied.lease_seconds(node) * SECOND
                known.leased_until = Nanoseconds(max(known.leased_until, earlier))

    def hear(self, report: Report) -> Hearing:
        """Take a report in. An older one, or one of a session that was replaced, changes nothing and is Stale.

        A repeated one only proves that the node is alive. One with which we begin to lead is News. Raises: BadMessage.
        """
        facts = facts_of(report, self._clock.now())
        with self._lock:
            known = self._known.get(facts.node)
            if known is None:
                known = self._known[facts.node] = Known(seen=stranger(facts), leased_until=self._clock.monotonic())
            if report.session in known.past or (report.session == known.session and report.sequence < known.sequence):
                return Hearing.STALE
            repeated = (report.session, report.sequence) == (known.session, known.sequence)
            if known.session and known.session != report.session:
                known.past.append(known.session)
            known.session, known.sequence, known.heard = report.session, report.sequence, self._clock.monotonic()
            hearing = Hearing.SAME if repeated else take_in(known, facts, self._attempts(facts.node))
            return Hearing.NEWS if self._weigh(known.heard) else hearing

    def grant(self, node: NodeName, lease_seconds: int) -> None:
        """An answer that renews the node's leases for so long is being sent now."""
        with self._lock:
            known = self._known.get(node)
            if known is not None:
                until = self._clock.monotonic() + lease_seconds * SECOND
                known.leased_until = Nanoseconds(max(known.leased_until, until))

    def withholds(self, node: NodeName) -> bool:
        """Whether the node was told to decisions as gone for good: until it was observed again, neither orders nor
        leases may go out, or ranks would start there that are being given to other nodes."""
        with self._lock:
            known = self._known.get(node)
            return known is not None and (known.seen.lease_expired or known.seen.confirmed_dead)

    def observe(self, desired: Desired, now: Instant) -> Observed:
        """All facts as of `now`. Raises: EngineUnavailable (OwnLinkSuspected), judging nobody."""
        with self._lock:
            self._declare(desired)
            monotonic = self._clock.monotonic()
            present = sorted(self._names() & self._known.keys())
            silences = {node: self._silence(node, monotonic) for node in present}
            self._check_own_link(list(silences.values()), monotonic)
            for node in present:
                self._settle(node, judged(silences[node], self._rules), monotonic, now)
            self._settle_jobs(present, desired, now)
            nodes = {node: self._known[node].seen for node in present}
            return Observed(nodes=nodes, jobs={job: self._jobs[job] for job in sorted(self._jobs)})

    def live(self) -> dict[JobKey, LiveAttempt]:
        """The newest attempt of each job that any node now reports as not released."""
        with self._lock:
            reports = [
                (receipt.job, receipt.attempt, node, known.beats[receipt.job, receipt.attempt])
                for node, known in sorted(self._known.items())
                for receipt in known.seen.attempts
                if not receipt.state.released and (receipt.job, receipt.attempt) in known.beats
            ]
        newest: dict[JobKey, int] = {}
        for job, attempt, _, _ in reports:
            newest[job] = max(attempt, newest.get(job, 0))
        found: dict[JobKey, dict[NodeName, Beat]] = {job: {} for job in sorted(newest)}
        for job, attempt, node, beat in reports:
            if newest[job] == attempt:
                found[job][node] = beat
        return {job: live_attempt(job, newest[job], beats) for job, beats in found.items()}

    def vitals(self) -> dict[NodeName, NodeVitals]:
        """What each node that is not silent last said of itself for people."""
        with self._lock:
            ready = {n: k for n, k in sorted(self._known.items()) if k.seen.condition is NodeCondition.READY}
            return {node: known.vitals for node, known in ready.items() if known.vitals is not None}

    def refusals(self) -> dict[NodeName, tuple[Refusal, ...]]:
        """The orders each node last said it does not accept, until it accepts another one."""
        with self._lock:
            return {node: known.refusals for node, known in sorted(self._known.items()) if known.refusals}

    def _weigh(self, monotonic: Nanoseconds) -> bool:
        """Whether we begin to lead at this moment. Silence counts from now on, and leases from now at the earliest."""
        if self._leads:
            return False
        expected = [
            known
            for node, known in self._known.items()
            if known.seen.condition is not NodeCondition.LOST and not self._declared.get(node, False)
        ]
        lately = monotonic - self._rules.unreachable_after
        heard = sum(1 for known in expected if known.heard is not None and known.heard >= lately)
        self._leads = may_lead(heard, len(expected), self._rules, rivalled=self._rivalled)
        if self._leads:
            self._started = monotonic
            # Who led before us renews until it notices that most nodes have left it.
            margin = self._rules.unreachable_after if self._rivalled else 0
            for node, known in self._known.items():
                lease = self._applied.lease_seconds(node) * SECOND if self._applied else 0
                known.leased_until = Nanoseconds(max(known.leased_until, monotonic + margin + lease))
        return self._leads

    def _declare(self, desired: Desired) -> None:
        self._rules = desired.agents
        self._declared = {node.name: node.dead for node in desired.inventory.nodes}

    def _names(self) -> AbstractSet[NodeName]:
        ordered = {n for n, file in self._applied.files.items() if file.attempts} if self._applied else frozenset()
        return self._declared.keys() | ordered

    def _silence(self, node: NodeName, monotonic: Nanoseconds) -> Silence:
        known = self._known[node]
        last = self._started if known.heard is None else known.heard
        # After our own link was suspected, the nodes not back yet get as long again as at the start.
        listening = last if self._suspected is None else max(last, self._suspected)
        return Silence(
            condition=known.seen.condition,
            heard=known.heard is not None,
            silent=Nanoseconds(monotonic - last),
            since_listening=Nanoseconds(monotonic - listening),
            dead=self._declared.get(node, False),
        )

    def _check_own_link(self, silences: list[Silence], monotonic: Nanoseconds) -> None:
        if own_link_suspected(silences, self._rules):
            self._suspected = monotonic
            raise EngineUnavailable(
                "too many nodes fell silent at once: our own link is suspected, no node is judged lost",
                code="OwnLinkSuspected",
                remedy="Check the network of the reconciler. If the nodes really are gone, declare them dead.",
            )

    def _settle(self, node: NodeName, condition: NodeCondition, monotonic: Nanoseconds, now: Instant) -> None:
        known = self._known[node]
        forget_rebooted(known, self._attempts(node))
        if known.unsettled:
            settle_instants(known, now)
        seen = known.seen
        lost = condition is NodeCondition.LOST
        fresh = condition is not seen.condition or seen.condition_since == NEVER_JUDGED
        over = self._applied is not None and monotonic > known.leased_until + self._rules.lease_margin
        judgement = replace(
            seen,
            condition=condition,
            condition_since=now if fresh else seen.condition_since,
            lease_expired=lost and (seen.lease_expired or over),
            confirmed_dead=lost and self._declared.get(node, False),
        )
        if judgement != seen:
            known.seen = judgement

    def _settle_jobs(self, present: list[NodeName], desired: Desired, now: Instant) -> None:
        """Move checkpoints on: never back within an attempt, and never by a node that has no orders for it."""
        for node in present:
            ordered = self._attempts(node) or frozenset()
            for (job, attempt), (_, checkpoint) in self._known[node].checkpoints.items():
                before = self._jobs.get(job)
                newer = before is None or (before.attempt, before.checkpoint or 0) < (attempt, checkpoint)
                if newer and (job, attempt) in ordered:
                    self._jobs[job] = moved_on(before, job, attempt, checkpoint)
        self._settle_disuse(now)
        if self._applied is not None:
            wanted = desired.jobs.keys() | {j for file in self._applied.files.values() for j, _ in file.attempts}
            self._jobs = {job: found for job, found in self._jobs.items() if job in wanted}

    def _settle_disuse(self, now: Instant) -> None:
        """A session is idle since the last of its nodes was used; a node that says nothing of it counts as used."""
        told: dict[AttemptKey, dict[NodeName, Instant]] = {}
        for node, known in self._known.items():
            for key, beat in known.beats.items():
                if beat.idle is not None and beat.idle <= now:
                    told.setdefault(key, {})[node] = beat.idle
        files = self._applied.files if told and self._applied is not None else {}
        ordered = {key: {node for node, file in files.items() if key in file.attempts} for key in told}
        idle = {job: (n, max(told[job, n].values())) for job, n in told if ordered[job, n] == told[job, n].keys()}
        for job, seen in self._jobs.items():
            if seen.idle_since is not None and idle.get(job, (0, None))[0] != seen.attempt:
                self._jobs[job] = replace(seen, idle_since=None)
        for job, (attempt, since) in idle.items():
            before = self._jobs.get(job)
            if before is None or before.attempt < attempt:
                self._jobs[job] = JobObservation(job=job, attempt=attempt, idle_since=since)
            elif before.attempt == attempt and before.idle_since != since:
                self._jobs[job] = replace(before, idle_since=since)

    def _attempts(self, node: NodeName) -> frozenset[AttemptKey] | None:
        """The attempts the node has orders for; None while nothing was applied and so nothing is known of it."""
        if self._applied is None:
            return None
        file = self._applied.files.get(node)
        return file.attempts if file else frozenset()
