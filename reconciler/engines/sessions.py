"""What did each node last say, and what is known of the cluster from that?

Reports become facts that keep their instants while nothing changes, so that equal worlds give equal values and an
idle cluster gives no commits. Silence is judged by `silence`, content was checked by `reports`; sockets, orders and
certificates are others' work. Time comes from the injected clock. Every public method holds one lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Lock

from reconciler.engines.applied import Applied
from reconciler.engines.reports import AttemptKey, Beat, Facts, Hardware, facts_of
from reconciler.engines.silence import Silence, judged, may_lead, own_link_suspected
from reconciler.errors import EngineUnavailable
from reconciler.model.anomaly import NodeVitals
from reconciler.model.desired import AgentRules, Desired
from reconciler.model.observed import (
    AttemptReport,
    AttemptState,
    JobObservation,
    NodeCondition,
    NodeObservation,
    Observed,
)
from reconciler.model.units import SECOND, Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import Clock, LiveAttempt
from reconciler.wire import Refusal, Report

REBOOTED = "Rebooted"
_NEVER_JUDGED = Instant(0)
_NOT_SETTLED = Instant(2**63 - 1)
_KEPT_SESSIONS = 8
_KEPT_SKEWS = 5


class Hearing(StrEnum):
    """What became of a report: it changed facts, changed none, or came too late to count."""

    NEWS = "News"
    SAME = "Same"
    STALE = "Stale"


@dataclass(slots=True)
class _Known:
    """One node as known. `heard` and `leased_until` are monotonic. `rebooted` holds the receipts of an earlier boot.

    `checkpoints` are pairs: as reported, and as told to decisions. `unsettled`: heard since last observed.
    """

    seen: NodeObservation
    leased_until: Nanoseconds
    heard: Nanoseconds | None = None
    session: str = ""
    sequence: int = -1
    past: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_SESSIONS))
    rebooted: dict[AttemptKey, AttemptReport] = field(default_factory=dict)
    beats: Mapping[AttemptKey, Beat] = field(default_factory=dict)
    checkpoints: dict[AttemptKey, tuple[Instant, Instant]] = field(default_factory=dict)
    accepted: tuple[int, int, str] = (0, 0, "")
    refusals: tuple[Refusal, ...] = ()
    unsettled: bool = False
    vitals: NodeVitals | None = None
    skews: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT_SKEWS))


class Sessions:
    """All nodes' sessions. A node enters by the committed observation or by its first report."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._known: dict[NodeName, _Known] = {}
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
            self._known = {n: _Known(seen=seen, leased_until=self._started) for n, seen in observed.nodes.items()}
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
                node: _followed(before.get(node), seen, self._started) for node, seen in observed.nodes.items()
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
                known = self._known[facts.node] = _Known(seen=_stranger(facts), leased_until=self._clock.monotonic())
            if report.session in known.past or (report.session == known.session and report.sequence < known.sequence):
                return Hearing.STALE
            repeated = (report.session, report.sequence) == (known.session, known.sequence)
            if known.session and known.session != report.session:
                known.past.append(known.session)
            known.session, known.sequence, known.heard = report.session, report.sequence, self._clock.monotonic()
            hearing = Hearing.SAME if repeated else _take_in(known, facts, self._attempts(facts.node))
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
        return {job: _live_attempt(job, newest[job], beats) for job, beats in found.items()}

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
        _forget_rebooted(known, self._attempts(node))
        if known.unsettled:
            _settle_instants(known, now)
        seen = known.seen
        lost = condition is NodeCondition.LOST
        fresh = condition is not seen.condition or seen.condition_since == _NEVER_JUDGED
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
                    self._jobs[job] = _moved_on(before, job, attempt, checkpoint)
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


def _followed(before: _Known | None, seen: NodeObservation, since: Nanoseconds) -> _Known:
    """A node as another reconciler recorded it. Reports that were old to us stay old."""
    if before is None:
        return _Known(seen=seen, leased_until=since)
    return _Known(
        seen=seen,
        leased_until=max(before.leased_until, since),
        session=before.session,
        sequence=before.sequence,
        past=before.past,
    )


def _stranger(facts: Facts) -> NodeObservation:
    """A node seen for the first time, before it was judged: as good as lost."""
    return NodeObservation(
        node=facts.node,
        boot_id=facts.boot_id,
        address=facts.address,
        condition=NodeCondition.LOST,
        condition_since=_NEVER_JUDGED,
    )


def _take_in(known: _Known, facts: Facts, ordered: frozenset[AttemptKey] | None) -> Hearing:
    """Replace what the node said before by what it says now; what did not change keeps its instants."""
    before = known.seen
    if facts.boot_id != before.boot_id:
        known.rebooted = _ended_by_reboot(before.attempts, ordered)
    for receipt in facts.attempts:
        known.rebooted.pop((receipt.job, receipt.attempt), None)
    receipts = [*facts.attempts, *known.rebooted.values()]
    receipts.sort(key=lambda r: (r.job, r.attempt))
    refused = {(r.commitId, r.code) for r in facts.refusals} - {(r.commitId, r.code) for r in known.refusals}
    # A refusal is said once; it holds until the node accepts something.
    if refused or facts.accepted != known.accepted:
        known.refusals = facts.refusals
    seen = replace(
        _with_hardware(before, facts.hardware),
        boot_id=facts.boot_id,
        address=facts.address,
        unhealthy=facts.unhealthy,
        attempts=tuple(_unchanged(before, receipt) or receipt for receipt in receipts),
        refused=_why_refused(before.refused, known.refusals),
    )
    back = before.condition is not NodeCondition.READY and not known.unsettled
    news = seen != before or bool(refused) or back
    if seen != before:
        known.seen = seen
    known.beats, known.accepted, known.unsettled = facts.beats, facts.accepted, True
    # A report that was long under way makes a clock look slow, and nothing makes it look fast: the highest is nearest.
    known.skews.append(facts.vitals.skew)
    known.vitals = replace(facts.vitals, skew=max(known.skews))
    return Hearing.NEWS if news else Hearing.SAME


def _why_refused(before: str, refusals: tuple[Refusal, ...]) -> str:
    """The last refusal in one line; as first told while its code stays, or each commit that is refused too would ask
    for another one that records it."""
    if not refusals:
        return ""
    last = refusals[-1]
    return before if before.partition(":")[0] == last.code else f"{last.code}: {last.detail}"


def _with_hardware(before: NodeObservation, found: Hardware | None) -> NodeObservation:
    if found is None:
        return before
    return replace(
        before,
        gpu_type=found.gpu_type,
        gpus=found.gpus,
        driver=found.driver,
        clique=found.clique,
        nics=found.nics,
        numa=found.numa,
    )


def _ended_by_reboot(
    receipts: tuple[AttemptReport, ...],
    ordered: frozenset[AttemptKey] | None,
) -> dict[AttemptKey, AttemptReport]:
    """Receipts of an earlier boot that orders still name: no process of them can exist any more."""
    ended = {
        (r.job, r.attempt): r
        if r.state.released
        else replace(r, state=AttemptState.GONE, at=_NOT_SETTLED, exit_code=None, reason=REBOOTED)
        for r in receipts
    }
    return {key: receipt for key, receipt in ended.items() if ordered is None or key in ordered}


def _unchanged(before: NodeObservation, receipt: AttemptReport) -> AttemptReport | None:
    """The receipt as first given, when only its instant differs."""
    earlier = before.attempt(receipt.job, receipt.attempt)
    return earlier if earlier is not None and replace(receipt, at=earlier.at) == earlier else None


def _forget_rebooted(known: _Known, ordered: frozenset[AttemptKey] | None) -> None:
    """Drop receipts that only we remember, once no order names their attempt any more."""
    if ordered is None or known.rebooted.keys() <= ordered:
        return
    done = known.rebooted.keys() - ordered
    known.rebooted = {key: receipt for key, receipt in known.rebooted.items() if key not in done}
    kept = tuple(a for a in known.seen.attempts if (a.job, a.attempt) not in done)
    known.seen = replace(known.seen, attempts=kept)


def _settle_instants(known: _Known, now: Instant) -> None:
    """A node whose clock is ahead must not put instants of the future into the record."""
    if any(a.at > now for a in known.seen.attempts):
        attempts = tuple(a if a.at <= now else replace(a, at=now) for a in known.seen.attempts)
        known.seen = replace(known.seen, attempts=attempts)
    settled: dict[AttemptKey, tuple[Instant, Instant]] = {}
    for key, beat in known.beats.items():
        if beat.checkpoint is not None:
            raw, told = known.checkpoints.get(key, (None, now))
            settled[key] = (beat.checkpoint, told if raw == beat.checkpoint else min(beat.checkpoint, now))
    known.checkpoints, known.unsettled = settled, False


def _moved_on(before: JobObservation | None, job: JobKey, attempt: int, checkpoint: Instant) -> JobObservation:
    if before is not None and before.attempt == attempt:
        return replace(before, checkpoint=checkpoint)
    return JobObservation(job=job, attempt=attempt, checkpoint=checkpoint)


def _live_attempt(job: JobKey, attempt: int, beats: Mapping[NodeName, Beat]) -> LiveAttempt:
    """One attempt over its nodes: the latest checkpoint, and the heartbeat that got furthest."""
    checkpoints = [beat.checkpoint for beat in beats.values() if beat.checkpoint is not None]
    furthest = max(beats.values(), key=lambda beat: (_step_of(beat), bool(beat.progress)))
    return LiveAttempt(
        job=job,
        attempt=attempt,
        checkpoint=max(checkpoints, default=None),
        progress=furthest.progress,
        ranks={node: beat.ranks for node, beat in beats.items()},
    )


def _step_of(beat: Beat) -> float:
    step = beat.progress.get("step", -1)
    return step if isinstance(step, (int, float)) else -1
