"""What does observation alone make of a job? The rows of the lifecycle table marked "observation".

`advance` takes one record a round further: a start that is complete, a gang that ended, failed or lost a node, a
stop whose every node was seen released. It decides about no GPU and knows no other job; what the job's file says
is for `classify`, who gets what is for `decide`. Nothing else remembers progress.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Final

from reconciler.model.allocation import Avoid, JobRecord
from reconciler.model.job import Job
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase, check_move
from reconciler.model.observed import AttemptState, Observed
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import Reason, ReasonCode, reason, sentence
from reconciler.model.units import DAY, HOUR, MINUTE, GpuSeconds, Instant, Nanoseconds, NodeName, seconds
from reconciler.planner.memo import masks_of
from reconciler.planner.sight import Sight, all_is_well

MAX_AVOIDED: Final = 8  # nodes a job is kept away from at once; the oldest entry goes first
MAX_BACK_OFF: Final = HOUR
KEPT_THROUGH: Final = 2 * MINUTE  # a gang whose rank failed keeps its GPUs through a back-off no longer than this

_READY_TO_RUN = frozenset({AttemptState.PREPARED, AttemptState.RUNNING, AttemptState.EXITED})


def advance(
    record: JobRecord,
    job: Job | None,
    observed: Observed,
    scheduling: Scheduling,
    now: Instant,
    declared: Container[NodeName] | None = None,
) -> JobRecord:
    """The record after what was seen; the same object when nothing follows from it.

    `job` is the file's present form, None when it is gone. A node neither in `declared` nor observed has left the
    world: nothing will be given out on it, so it counts as released. Raises BrokenInvariant on a move the table does
    not have.
    """
    rule = _RULES.get(record.state)
    if rule is None or record.placement is None or (record.state is JobState.RUNNING and all_is_well(record, observed)):
        return record
    after = rule(_Scene(record=record, job=job, observed=observed, scheduling=scheduling, now=now, declared=declared))
    check_move(record.state, after.state)
    return after


def begin_stop(
    record: JobRecord, cause: Cause, why: Reason, *, phase: Phase, deadline: Instant, lost: GpuSeconds = GpuSeconds(0)
) -> JobRecord:
    """The record on its way out; it holds its GPUs until they are seen released. `lost` is added to its price."""
    check_move(record.state, JobState.STOPPING)
    return replace(
        record, state=JobState.STOPPING, cause=cause, phase=phase, deadline=deadline, reason=why, promise=None,
        lost_work=GpuSeconds(record.lost_work + lost),
    )  # fmt: skip


def lost_gpu_seconds(record: JobRecord, observed: Observed, now: Instant) -> GpuSeconds:
    """GPU-seconds of work a stop now would throw away: since the last checkpoint of this attempt, or its start.

    An idle session does none, so of equals it gives way first.
    """
    if record.started is None or record.placement is None:
        return GpuSeconds(0)
    seen = observed.jobs.get(record.job)
    kept = seen.checkpoint if seen is not None and seen.attempt == record.attempt else None
    since = max(record.started, kept or record.started)
    if idle_since(record, observed) is not None:
        return GpuSeconds(0)
    return GpuSeconds(len(record.placement.ranks) * max(0, seconds(int(now) - since)))


def idle_since(record: JobRecord, observed: Observed) -> Instant | None:
    """Since when nobody uses this attempt of a session; None while somebody does, and of any other job."""
    seen = observed.jobs.get(record.job)
    if seen is None or seen.idle_since is None or seen.attempt != record.attempt or record.started is None:
        return None
    return max(seen.idle_since, record.started)


def gentle_stop(
    record: JobRecord, cause: Cause, why: Reason, scheduling: Scheduling, now: Instant, lost: GpuSeconds = GpuSeconds(0)
) -> JobRecord:
    """The record told to stop: through its checkpoint when it runs and has one, at once when not."""
    saves = record.state is JobState.RUNNING and record.grace > 0
    grace = record.grace if saves else Nanoseconds(0)
    phase = Phase.CHECKPOINT if saves else Phase.STOP
    deadline = Instant(now + grace + scheduling.kill_after)
    return begin_stop(record, cause, why, phase=phase, deadline=deadline, lost=lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """One record and all that the rules look at."""

    record: JobRecord
    job: Job | None
    observed: Observed
    scheduling: Scheduling
    now: Instant
    declared: Container[NodeName] | None

    def sights(self) -> list[Sight]:
        """One for each node of the gang, in rank order."""
        placement = self.record.placement
        return [self._sight(node) for node in masks_of(placement)] if placement is not None else []

    def _sight(self, node: NodeName) -> Sight:
        seen = self.observed.nodes.get(node)
        found = seen.attempt(self.record.job, self.record.attempt) if seen is not None else None
        left = seen is None and self.declared is not None and node not in self.declared
        return Sight(node=node, seen=seen, report=found, left=left)

    def stopping(self, cause: Cause, why: Reason, avoid: Iterable[NodeName] = ()) -> JobRecord:
        """Everything still alive is told to stop at once: there is nothing left worth a checkpoint."""
        lost = lost_gpu_seconds(self.record, self.observed, self.now)
        deadline = Instant(self.now + self.scheduling.kill_after)
        after = begin_stop(self.record, cause, why, phase=Phase.STOP, deadline=deadline, lost=lost)
        return replace(
            after, avoid=avoiding(after.avoid, avoid, self.now, self.scheduling.avoid_for),
            failures=after.failures + (cause is Cause.RANK_FAILED),
            failed_starts=after.failed_starts + (cause is Cause.START_FAILED),
            node_losses=after.node_losses + (cause is Cause.NODE_LOST),
        )  # fmt: skip


def avoiding(known: tuple[Avoid, ...], nodes: Iterable[NodeName], now: Instant, span: Nanoseconds) -> tuple[Avoid, ...]:
    """The avoid list with these nodes added until now + span; over entries and surplus oldest ones are dropped."""
    fresh = tuple(Avoid(node=node, until=Instant(now + span)) for node in nodes)
    named = {entry.node for entry in fresh}
    kept = tuple(entry for entry in known if entry.until > now and entry.node not in named)
    return (*kept, *fresh)[-MAX_AVOIDED:]


# --- Starting ---


def _starting(scene: _Scene) -> JobRecord:
    """Prepare on all, then run on all; one node that does not follow in time stops all."""
    record, sights = scene.record, scene.sights()
    if ended := _broken_start(scene, sights):
        return ended
    if any(sight.lost for sight in sights):
        return _lost(scene, sights)
    if record.phase is Phase.PREPARE and all(sight.is_in(*_READY_TO_RUN) for sight in sights):
        return replace(record, phase=Phase.RUN)
    if record.phase is Phase.RUN:
        if all(sight.is_in(AttemptState.EXITED) for sight in sights):
            return finished(record, Outcome.SUCCEEDED, reason(ReasonCode.SUCCEEDED))
        if all(sight.is_in(AttemptState.RUNNING, AttemptState.EXITED) for sight in sights):
            return _running_now(record, scene.now)
    return _late(scene, sights) or record


def _broken_start(scene: _Scene, sights: list[Sight]) -> JobRecord | None:
    """A node that refuses, fails or has lost the attempt ends the start for all.

    One that says Stopping does so because a rank of it ended: what that means, it says when nothing of it is left.
    """
    fallen = next((sight for sight in sights if sight.fell), None)
    if fallen is not None and fallen.report is not None:  # its peers may have failed because of it
        return _start_failed(scene, fallen.node, fallen.report.reason)
    for sight in sights:
        if sight.failed:
            return _rank_failed(scene, sight)
        if sight.is_in(AttemptState.REFUSED, AttemptState.GONE, AttemptState.KILL_FAILED):
            why = sight.report.reason if sight.report is not None else ""
            return _start_failed(
                scene, sight.node, why or f"the node says {sight.report.state if sight.report else ''}"
            )
        if sight.left:
            return _start_failed(scene, sight.node, "the node is gone")
    return None


def _late(scene: _Scene, sights: list[Sight]) -> JobRecord | None:
    """Each phase of a start has the whole timeout; the first node that is behind is to blame."""
    record = scene.record
    own = scene.job.start_timeout if scene.job is not None else None
    allowed = own if own is not None else scene.scheduling.gang_start_timeout
    if scene.now < record.since + allowed:
        return None
    wanted = _READY_TO_RUN if record.phase is Phase.PREPARE else (AttemptState.RUNNING, AttemptState.EXITED)
    behind = next((sight.node for sight in sights if not sight.is_in(*wanted)), sights[0].node)
    return _start_failed(scene, behind, f"not in {seconds(allowed)} s")


def _start_failed(scene: _Scene, node: NodeName, why: str) -> JobRecord:
    return scene.stopping(Cause.START_FAILED, reason(ReasonCode.START_FAILED, node=node, why=why), avoid=[node])


def _running_now(record: JobRecord, now: Instant) -> JobRecord:
    ranks = len(record.placement.ranks) if record.placement is not None else 0
    why = reason(ReasonCode.RUNNING, ranks=ranks)
    return replace(
        record, state=JobState.RUNNING, reason=why, started=record.started or now, preemptor=None, failed_starts=0
    )


# --- Running and Lost ---


def _running(scene: _Scene) -> JobRecord:
    sights = scene.sights()
    if ended := _ended(scene, sights):
        return ended
    if any(sight.lost for sight in sights):
        return _lost(scene, sights)
    if all(sight.is_in(AttemptState.EXITED) for sight in sights):
        return finished(scene.record, Outcome.SUCCEEDED, reason(ReasonCode.SUCCEEDED))
    return scene.record


def _ended(scene: _Scene, sights: list[Sight]) -> JobRecord | None:
    """What ends the attempt, when something does: a node that is gone explains a rank that failed, not the reverse."""
    if any(sight.outran for sight in sights) and (limit := _limit_over(scene)) is not None:
        return scene.stopping(Cause.TIME_LIMIT, reason(ReasonCode.TIME_LIMIT, limit=seconds(limit)))
    gone = [s for s in sights if s.is_in(AttemptState.GONE, AttemptState.REFUSED)]
    if gone:  # nobody told them to: the node went down beneath its ranks, so the loss is fenced already
        return _node_lost(scene, gone)
    failed = next((sight for sight in sights if sight.failed), None)
    return _rank_failed(scene, failed) if failed is not None else None


def _limit_over(scene: _Scene) -> Nanoseconds | None:
    """The time limit of the attempt, if it is over by our clock too; None otherwise."""
    own = scene.job.time_limit if scene.job is not None else None
    limit, started = own if own is not None else scene.scheduling.default_time_limit, scene.record.started
    return limit if limit is not None and started is not None and scene.now >= started + limit else None


def _lost(scene: _Scene, sights: list[Sight]) -> JobRecord:
    """Nodes are silent. Fenced ones end the attempt; until then nothing may be decided with its GPUs."""
    record = scene.record
    missing = [sight for sight in sights if sight.lost]
    lost = replace(record, state=JobState.LOST, reason=_loss(missing)) if record.state is not JobState.LOST else record
    if all(sight.fenced(record.fence) for sight in missing):
        return _node_lost(replace(scene, record=lost), missing)
    return lost


def _still_lost(scene: _Scene) -> JobRecord:
    """Back in time with all ranks alive is as if nothing had been; anything else ends the attempt."""
    record, sights = scene.record, scene.sights()
    if ended := _ended(scene, sights):
        return ended
    if any(sight.lost for sight in sights):
        return _lost(scene, sights)
    if record.started is not None:
        return _running_now(record, scene.now)
    level = record.placement.level if record.placement is not None else ""
    why = reason(ReasonCode.PLACED, gpus=record.gpus_held, level=level)
    return replace(record, state=JobState.STARTING, reason=why)


def _rank_failed(scene: _Scene, sight: Sight) -> JobRecord:
    """One rank fails: the whole gang stops, and restarts from its checkpoint."""
    code = (sight.report.exit_code if sight.report is not None else None) or 0
    return scene.stopping(Cause.RANK_FAILED, reason(ReasonCode.RANK_FAILED, node=sight.node, exitCode=code))


def _node_lost(scene: _Scene, missing: list[Sight]) -> JobRecord:
    return scene.stopping(Cause.NODE_LOST, _loss(missing), avoid=[sight.node for sight in missing])


def _loss(missing: list[Sight]) -> Reason:
    return reason(ReasonCode.NODE_LOST, nodes=", ".join(sight.node for sight in missing))


# --- Stopping ---


def _stopping(scene: _Scene) -> JobRecord:
    """Nothing turns back: once every node is seen released, the cause says where it goes."""
    sights = scene.sights()
    record = _blame_the_node(scene, sights)
    if not all(sight.fenced(record.fence) for sight in sights):
        return record
    return _after_release(record, scene)


def _blame_the_node(scene: _Scene, sights: list[Sight]) -> JobRecord:
    """Ranks that fail because a peer's node died report first; when that node is seen lost, or says that it ended its
    own ranks by itself, it was no fault of theirs."""
    record, missing = scene.record, [sight for sight in sights if sight.lost or sight.fell]
    if record.cause is not Cause.RANK_FAILED or not missing:
        return record
    return replace(
        record, cause=Cause.NODE_LOST, reason=_loss(missing),
        failures=max(0, record.failures - 1), node_losses=record.node_losses + 1,
        avoid=avoiding(record.avoid, (sight.node for sight in missing), scene.now, scene.scheduling.avoid_for),
    )  # fmt: skip


def _after_release(record: JobRecord, scene: _Scene) -> JobRecord:
    cause = record.cause
    if cause is Cause.CANCELLED:
        return finished(record, Outcome.CANCELLED, record.reason)  # who asked for it, or that its file is gone
    if cause is Cause.CHANGED:
        return finished(record, Outcome.REPLACED, reason(ReasonCode.CHANGED))
    if cause in (Cause.TIME_LIMIT, Cause.IDLE):
        return finished(record, Outcome.TIMED_OUT, record.reason)
    if cause is Cause.SUSPENDED:
        return replace(released(record), state=JobState.HELD, cause=None, reason=reason(ReasonCode.SUSPENDED))
    if cause is Cause.RANK_FAILED:
        return _after_failure(record, scene)
    if cause is Cause.START_FAILED and record.failed_starts > 1:
        return _after_failed_start(record, scene)
    allowed = scene.job.restart.on_node_loss if scene.job is not None else None
    if cause is Cause.NODE_LOST and _used_up(record.node_losses, allowed):
        return finished(record, Outcome.FAILED, record.reason)
    if cause in (Cause.MOVED, Cause.RESIZED) and record.promise is not None:
        return replace(released(record), state=JobState.PROMISED, promise=record.promise)
    return (cause is Cause.NODE_LOST and _to_be_repaired(record, scene)) or replace(
        released(record), state=JobState.PENDING
    )


def _to_be_repaired(record: JobRecord, scene: _Scene) -> JobRecord | None:
    """What is left of the gang is kept for its repair, or until it begins anew; None when nothing is, or nobody wants
    it any more."""
    if record.placement is None or scene.job is None or scene.job.digest != record.digest:
        return None
    avoided = {entry.node for entry in record.avoid if entry.until > scene.now}
    gone = {sight.node for sight in scene.sights() if sight.is_off} | avoided
    left = tuple(place for place in record.placement.ranks if place.node not in gone)
    if not left:
        return None
    return replace(
        record, state=JobState.REPAIRING, phase=Phase.STOP, placement=replace(record.placement, ranks=left),
        whole=record.whole or record.placement, started=None, deadline=None, promise=None, since=scene.now,
    )  # fmt: skip


def _after_failure(record: JobRecord, scene: _Scene) -> JobRecord:
    """Another attempt after a back-off that doubles, in its own place while that is short; or the end when the restarts
    are used up."""
    restart = scene.job.restart if scene.job is not None else None
    if restart is None or _used_up(record.failures, restart.on_failure):
        node, code = record.reason.number("node") or "", record.reason.number("exitCode") or 0
        used = restart.on_failure if restart is not None else 0
        return finished(record, Outcome.FAILED, reason(ReasonCode.FAILED, node=node, exitCode=code, restarts=used))
    waits = _backing_off(record, restart.backoff, record.failures, scene.now)
    kept = _to_be_repaired(record, scene) if _wait(restart.backoff, record.failures) <= KEPT_THROUGH else None
    return replace(kept, retry_at=waits.retry_at, reason=waits.reason) if kept is not None else waits


def goes_on_here(record: JobRecord, job: Job) -> bool:
    """A stopping gang keeps what it has when it is released: until lost nodes are replaced, or a short back-off is over."""
    restart = job.restart
    if record.cause is Cause.NODE_LOST:
        return not _used_up(record.node_losses, restart.on_node_loss)
    within = not _used_up(record.failures, restart.on_failure)
    return record.cause is Cause.RANK_FAILED and within and _wait(restart.backoff, record.failures) <= KEPT_THROUGH


def _after_failed_start(record: JobRecord, scene: _Scene) -> JobRecord:
    """A first failed start is tried elsewhere at once; from the second in a row on it may be no node's fault, and each
    attempt is three commits: wait, twice as long each time. It never ends: the nodes may be put right."""
    backoff = scene.job.restart.backoff if scene.job is not None else Nanoseconds(MINUTE)
    return _backing_off(record, backoff, record.failed_starts - 1, scene.now)


def _backing_off(record: JobRecord, backoff: Nanoseconds, times: int, now: Instant) -> JobRecord:
    until = Instant(now + _wait(backoff, times))
    why = reason(
        ReasonCode.BACK_OFF, failures=record.failures + record.failed_starts, until=until, last=sentence(record.reason)
    )
    return replace(released(record), state=JobState.HELD, retry_at=until, reason=why)


def _wait(backoff: Nanoseconds, times: int) -> int:
    """Twice as long each time, up to an hour; none at all before anything failed."""
    return min(backoff << min(times - 1, 32), MAX_BACK_OFF) if times else 0


def _used_up(count: int, allowed: int | None) -> bool:
    """More than was allowed; a negative allowance has no end."""
    return allowed is not None and 0 <= allowed < count


def released(record: JobRecord) -> JobRecord:
    """The record without anything it held. Its cause stays: repair and order ask why it waits again."""
    return replace(
        record,
        placement=None,
        promise=None,
        whole=None,
        phase=None,
        started=None,
        deadline=None,
        ports=(),
        victims=(),
        spares=(),
    )


def finished(record: JobRecord, outcome: Outcome, why: Reason) -> JobRecord:
    """The record at its end."""
    return replace(released(record), state=JobState.FINISHED, cause=None, outcome=outcome, retry_at=None, reason=why)


def recent(interruptions: tuple[Instant, ...], now: Instant) -> tuple[Instant, ...]:
    """The interruptions of the last 24 hours."""
    return tuple(at for at in interruptions if at > now - DAY)


_RULES: Final[dict[JobState, Callable[[_Scene], JobRecord]]] = {
    JobState.STARTING: _starting,
    JobState.RUNNING: _running,
    JobState.LOST: _still_lost,
    JobState.STOPPING: _stopping,
}
