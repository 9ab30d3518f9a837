"""What is known of one node, and what becomes of that when it says something new?

What did not change keeps its instants and its identity; what an earlier boot left is remembered while orders name it.
Which reports count, and what silence means, is for `sessions`, which keeps these values under its lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from reconciler.engines.reports import AttemptKey, Beat, Facts, Hardware
from reconciler.model.anomaly import NodeVitals
from reconciler.model.observed import AttemptReport, AttemptState, JobObservation, NodeCondition, NodeObservation
from reconciler.model.units import Instant, JobKey, Nanoseconds, NodeName
from reconciler.ports import LiveAttempt
from reconciler.wire import Refusal

NEVER_JUDGED = Instant(0)
_NOT_SETTLED = Instant(2**63 - 1)
_KEPT_SESSIONS = 8
_KEPT_SKEWS = 5


class Hearing(StrEnum):
    """What became of a report: it changed facts, changed none, or came too late to count."""

    NEWS = "News"
    SAME = "Same"
    STALE = "Stale"


@dataclass(slots=True)
class Known:
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


def followed(before: Known | None, seen: NodeObservation, since: Nanoseconds) -> Known:
    """A node as another reconciler recorded it. Reports that were old to us stay old."""
    if before is None:
        return Known(seen=seen, leased_until=since)
    return Known(
        seen=seen,
        leased_until=max(before.leased_until, since),
        session=before.session,
        sequence=before.sequence,
        past=before.past,
    )


def stranger(facts: Facts) -> NodeObservation:
    """A node seen for the first time, before it was judged: as good as lost."""
    return NodeObservation(
        node=facts.node,
        boot_id=facts.boot_id,
        address=facts.address,
        condition=NodeCondition.LOST,
        condition_since=NEVER_JUDGED,
    )


def take_in(known: Known, facts: Facts, ordered: frozenset[AttemptKey] | None) -> Hearing:
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
        else replace(r, state=AttemptState.GONE, at=_NOT_SETTLED, exit_code=None, reason="Rebooted")
        for r in receipts
    }
    return {key: receipt for key, receipt in ended.items() if ordered is None or key in ordered}


def _unchanged(before: NodeObservation, receipt: AttemptReport) -> AttemptReport | None:
    """The receipt as first given, when only its instant differs."""
    earlier = before.attempt(receipt.job, receipt.attempt)
    return earlier if earlier is not None and replace(receipt, at=earlier.at) == earlier else None


def forget_rebooted(known: Known, ordered: frozenset[AttemptKey] | None) -> None:
    """Drop receipts that only we remember, once no order names their attempt any more."""
    if ordered is None or known.rebooted.keys() <= ordered:
        return
    done = known.rebooted.keys() - ordered
    known.rebooted = {key: receipt for key, receipt in known.rebooted.items() if key not in done}
    kept = tuple(a for a in known.seen.attempts if (a.job, a.attempt) not in done)
    known.seen = replace(known.seen, attempts=kept)


def settle_instants(known: Known, now: Instant) -> None:
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


def moved_on(before: JobObservation | None, job: JobKey, attempt: int, checkpoint: Instant) -> JobObservation:
    """What is known of a job whose attempt has this checkpoint now."""
    if before is not None and before.attempt == attempt:
        return replace(before, checkpoint=checkpoint)
    return JobObservation(job=job, attempt=attempt, checkpoint=checkpoint)


def live_attempt(job: JobKey, attempt: int, beats: Mapping[NodeName, Beat]) -> LiveAttempt:
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
