"""Does each record follow from the one before it? States, phases, attempts, releases, and the generation they are in.

New places are looked at elsewhere; here a job that begins is only a number and a phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Fence, Job
from reconciler.model.lifecycle import MOVES, Cause, JobState, Phase
from reconciler.model.observed import AttemptReport, AttemptState, NodeCondition
from reconciler.model.request import Ask
from reconciler.model.tombstones import Tombstone
from reconciler.model.units import NodeName, document_of
from reconciler.planner.verify.case import FINAL, RUNS, Breach, Case, Violation, held_by
from reconciler.planner.verify.tasks import is_unwanted


def succession(case: Case) -> Iterator[Violation]:
    """Generations count up by one, time does not run back, and what was finished stays on record."""
    old, new = case.previous, case.next
    same = old.jobs == new.jobs and old.tombstones == new.tombstones
    if new.generation - old.generation not in ((0, 1) if same else (1,)):
        yield Violation(code=Breach.WRONG_GENERATION, detail=f"{old.generation} is followed by {new.generation}")
    if (new.epoch, new.cluster_id) != (old.epoch, old.cluster_id) or new.decided_at < old.decided_at:
        yield Violation(code=Breach.WRONG_GENERATION, detail="another epoch or cluster, or time ran backwards")
    before, after = old.tombstones.apart(new.tombstones)
    for key, stones in before.items():
        kept = after.get(key, ())
        if kept is not stones and not all(
            stone in kept or any(_later(stone, other) for other in kept) for stone in stones
        ):
            yield Violation(code=Breach.TOMBSTONE_LOST, job=key)


def _later(stone: Tombstone, other: Tombstone) -> bool:
    """How the same incarnation ended when it had come back, which only one that had not finished may."""
    return stone.outcome not in FINAL and other.digest == stone.digest and other.attempts >= stone.attempts


def census(case: Case) -> Iterator[Violation]:
    """Every desired job has a record; a record of any other is there because it still holds GPUs."""
    wanted, present = case.desired.jobs, case.next.jobs
    for key in sorted(wanted.keys() - present.keys()):
        yield Violation(code=Breach.NO_RECORD, job=key)
    for key in sorted(present.keys() - wanted.keys()):
        if not present[key].state.holds_gpus and document_of(key) not in case.desired.invalid:
            yield Violation(code=Breach.LEFTOVER_RECORD, job=key, detail=present[key].state)
    for key, record in present.items():
        if record.job != key:
            yield Violation(code=Breach.NO_RECORD, job=key, detail=f"the record is of {record.job}")


_AT_REST: Final = frozenset(state for state in JobState if not state.holds_gpus)


def _reachable() -> dict[JobState | None, frozenset[JobState]]:
    """Where one decision may take a job: any moves of the table, as long as no state between them holds GPUs."""
    table: dict[JobState | None, set[JobState]] = {}
    for move in MOVES:
        table.setdefault(move.source, set()).add(move.target)
    found: dict[JobState | None, frozenset[JobState]] = {}
    for source, first in table.items():
        seen, ahead = set(first), [state for state in first if state in _AT_REST]
        while ahead:
            fresh = table.get(ahead.pop(), set()) - seen
            seen |= fresh
            ahead += [state for state in fresh if state in _AT_REST]
        found[source] = frozenset(seen)
    return found


_REACHABLE: Final = _reachable()
_ORDER: Final = {phase: rank for rank, phase in enumerate((Phase.PREPARE, Phase.RUN, Phase.CHECKPOINT, Phase.STOP))}
_PHASES: Final[dict[JobState, frozenset[Phase]]] = {
    JobState.STARTING: frozenset({Phase.PREPARE, Phase.RUN}),
    JobState.RUNNING: frozenset({Phase.RUN}),
    JobState.LOST: frozenset({Phase.PREPARE, Phase.RUN}),
    JobState.REPAIRING: frozenset({Phase.CHECKPOINT, Phase.STOP}),
    JobState.STOPPING: frozenset({Phase.CHECKPOINT, Phase.STOP}),
}
_MAY_RUN: Final = (AttemptState.PREPARED, AttemptState.RUNNING, AttemptState.EXITED)


def life(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """State, phase and attempt go only forward, and only on what was observed."""
    source = before.state if before else None
    if after.state is not source and after.state not in _REACHABLE.get(source, frozenset()):
        yield Violation(code=Breach.ILLEGAL_MOVE, job=after.job, detail=f"{source} to {after.state}")
    if after.promise and after.state not in (JobState.PROMISED, JobState.STOPPING):
        yield Violation(code=Breach.ILLEGAL_MOVE, job=after.job, detail=f"{after.state} with a promise")
    if after.state is JobState.PROMISED and after.promise is None:
        yield Violation(code=Breach.ILLEGAL_MOVE, job=after.job, detail="Promised without a promise")
    if not after.state.holds_gpus:
        return
    if after.placement is None:
        yield Violation(code=Breach.GANG_NOT_WHOLE, job=after.job, detail="holds nothing")
    elif before and held_by(before) and before.attempt == after.attempt:
        yield from _goes_on(case, before, after)
    else:
        yield from _begins(case, before, after)
    if after.phase not in _PHASES[after.state]:
        yield Violation(code=Breach.WRONG_PHASE, job=after.job, detail=f"{after.state} in phase {after.phase}")


def _goes_on(case: Case, before: JobRecord, after: JobRecord) -> Iterator[Violation]:
    """The same attempt: same GPUs (fewer, when broken), ports and work; the next phase, with receipts from all nodes."""
    old, new = held_by(before), held_by(after)
    grown = any(mask & ~old.get(node, 0) for node, mask in new.items())
    shrunk = old != new and after.state not in (JobState.REPAIRING, JobState.STOPPING)
    swapped = old == new and before.placement != after.placement
    if grown or shrunk or swapped or (before.ports, before.digest) != (after.ports, after.digest):
        yield Violation(code=Breach.MOVED_WHILE_HOLDING, job=after.job)
    if (before.fence, before.grace) != (after.fence, after.grace):
        yield Violation(code=Breach.WRONG_FENCE, job=after.job)
    if before.phase and after.phase and _ORDER[after.phase] < _ORDER[before.phase]:
        yield Violation(code=Breach.WRONG_PHASE, job=after.job, detail=f"{before.phase} to {after.phase}")
    if before.phase is Phase.PREPARE and after.phase is Phase.RUN and not case.reports(after, _MAY_RUN):
        yield Violation(code=Breach.NOT_PREPARED, job=after.job)
    if after.state is JobState.RUNNING and before.started is None and not case.reports(after, RUNS):
        yield Violation(code=Breach.NOT_STARTED, job=after.job)


def _begins(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """A new attempt: the next number, and it begins by preparing."""
    stones = case.previous.tombstones.get(after.job, ())
    last = before.attempt if before else max((stone.attempts for stone in stones), default=0)
    if after.attempt != last + 1:
        yield Violation(code=Breach.WRONG_ATTEMPT, job=after.job, detail=f"{last} is followed by {after.attempt}")
    job = case.desired.jobs.get(after.job)
    if job is not None and after.fence is not job.restart.fence:
        yield Violation(code=Breach.WRONG_FENCE, job=after.job, detail=after.fence)
    if (after.state, after.phase) != (JobState.STARTING, Phase.PREPARE):
        yield Violation(code=Breach.WRONG_PHASE, job=after.job, detail=f"begins {after.state} in phase {after.phase}")


def release(case: Case, before: JobRecord | None, after: JobRecord | None) -> Iterator[Violation]:
    """Promise 3: whatever an attempt no longer holds was seen released there, or is fenced off."""
    kept = held_by(after) if before and after and before.attempt == after.attempt else {}
    for node, mask in held_by(before).items():
        if before and mask & ~kept.get(node, 0) and not _gone(case, before, node):
            yield Violation(code=Breach.NOT_RELEASED, job=before.job, detail=node)


def _gone(case: Case, record: JobRecord, node: NodeName) -> bool:
    """No process of this attempt can be alive on the node. One neither declared nor observed takes no work either."""
    seen = case.observed.nodes.get(node)
    if seen is None:
        return node not in case.nodes
    said = seen.attempt(record.job, record.attempt)
    if said is not None and said.state.released:
        return True
    if seen.condition is not NodeCondition.LOST:
        return False
    return seen.confirmed_dead or (seen.lease_expired and record.fence is Fence.LEASE)


def stop_cause(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """A stop that blames the desired state or the clock must be able to show it there."""
    known = before is not None and before.state is JobState.STOPPING and before.cause is after.cause
    if after.state is not JobState.STOPPING or known:
        return
    proof = _PROOFS.get(after.cause) if after.cause else _no_proof
    if proof is not None and not proof(case, case.desired.jobs.get(after.job), after):
        yield Violation(code=Breach.STOPPED_WITHOUT_CAUSE, job=after.job, detail=after.cause or "")


def blame(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """A failure is counted for a rank that ended badly, a loss for a node that went; a loss may explain a failure."""
    if before is None or before.digest != after.digest:
        return
    counted = (after.failures - before.failures, after.node_losses - before.node_losses)
    told = before.state is JobState.STOPPING or after.state is not JobState.STOPPING
    if counted == (0, 0) and (told or after.cause is not Cause.RANK_FAILED):
        return
    allowed, said = set[tuple[int, int]](), list(_receipts(case, before))
    if any(report.state is AttemptState.EXITED and report.exit_code for report in said):
        allowed.add((1, 0))
    if _went(case, before) or any(report.state in (AttemptState.GONE, AttemptState.REFUSED) for report in said):
        allowed.add((0, 1))
        if before.cause is Cause.RANK_FAILED and before.failures:
            allowed = {(-1, 1)}
    if counted not in allowed:
        detail = f"{counted[0]:+d} failures, {counted[1]:+d} node losses"
        yield Violation(code=Breach.WRONG_COUNT, job=after.job, detail=detail)


def _receipts(case: Case, record: JobRecord) -> Iterator[AttemptReport]:
    for node in held_by(record):
        seen = case.observed.nodes.get(node)
        said = seen.attempt(record.job, record.attempt) if seen is not None else None
        if said is not None:
            yield said


def _went(case: Case, record: JobRecord) -> bool:
    seen = (case.observed.nodes.get(node) for node in held_by(record))
    return any(node is not None and node.condition is NodeCondition.LOST for node in seen)


def back_off(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """Nobody begins again before the instant its record named."""
    if before is None or before.retry_at is None or before.digest != after.digest or case.now >= before.retry_at:
        return
    if after.state in (JobState.STARTING, JobState.PROMISED):
        yield Violation(code=Breach.BACK_OFF_CUT, job=after.job, detail=f"until {before.retry_at}")


def _no_proof(_case: Case, _job: Job | None, _after: JobRecord) -> bool:
    return False


def _limit_over(case: Case, job: Job | None, after: JobRecord) -> bool:
    """The signal goes out a grace before the end."""
    limit = case.limit(job)
    return limit is not None and case.now >= (after.started or after.since) + limit - after.grace


def _unused(case: Case, job: Job | None, after: JobRecord) -> bool:
    """Its nodes said so of this attempt, and long enough ago."""
    seen, limit = case.observed.jobs.get(after.job), job.run.idle_timeout if job is not None else None
    if seen is None or seen.idle_since is None or seen.attempt != after.attempt or limit is None:
        return False
    return case.now >= max(seen.idle_since, after.started or after.since) + limit


_PROOFS: Final[dict[Cause, Callable[[Case, Job | None, JobRecord], bool]]] = {
    Cause.CANCELLED: lambda case, job, after: (
        job is None or is_unwanted(case, job, after) or case.asked_for(after.job, Ask.CANCEL)
    ),
    Cause.CHANGED: lambda _, job, after: job is None or job.digest != after.digest,
    Cause.SUSPENDED: lambda case, job, after: (
        job is not None and (job.suspend or case.asked_for(after.job, Ask.SUSPEND))
    ),
    Cause.TIME_LIMIT: _limit_over,
    Cause.IDLE: _unused,
    Cause.NODE_REMOVED: lambda case, _, after: any(node not in case.nodes for node in held_by(after)),
}
