"""One job as its file, its record and the world around it; and is it a candidate for GPUs at all?

The reasons of the rule book's first block: suspended, queue gone, dependency, back-off, admissions frozen. What a job
that is none becomes is for `classify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord, Tombstone
from reconciler.model.desired import Desired
from reconciler.model.job import Dependency, Job
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.observed import Observed
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import Instant, JobKey, NodeName

FINAL: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
"""How an incarnation ends for good. A cancelled or replaced one goes on when its file comes back."""

Tombstones = Mapping[JobKey, tuple[Tombstone, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job and all that the table looks at. `world` is shared by all cases of a decision."""

    key: JobKey
    job: Job | None
    record: JobRecord | None
    world: World

    @property
    def state(self) -> JobState | None:
        return self.record.state if self.record is not None else None

    @property
    def lost_its_place(self) -> bool:
        """It waits because a node of it was lost."""
        return self.record is not None and self.record.cause is Cause.NODE_LOST

    @property
    def same(self) -> bool:
        """File and record speak of the same incarnation."""
        return self.job is not None and self.record is not None and self.job.digest == self.record.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all cases share: `records` are the advanced ones, `nodes` the declared names."""

    desired: Desired
    observed: Observed
    records: Mapping[JobKey, JobRecord]
    tombstones: Tombstones
    nodes: frozenset[NodeName]
    now: Instant

    def stone(self, key: JobKey, digest: str) -> Tombstone | None:
        """How this incarnation ended before, if it did."""
        return next((s for s in reversed(self.tombstones.get(key, ())) if s.digest == digest), None)

    def attempts(self, key: JobKey) -> int:
        """Attempts ever made under this name: receipts are told apart by number, whatever ran."""
        return max((stone.attempts for stone in self.tombstones.get(key, ())), default=0)


def not_a_candidate(case: Case, job: Job) -> Reason | None:
    """The first thing that keeps it out of the pass, None when it is a candidate."""
    world, record = case.world, case.record
    if job.suspend:
        return reason(ReasonCode.SUSPENDED)
    queues = world.desired.quotas.queues
    if queues and job.queue not in queues:
        return reason(ReasonCode.QUEUE_GONE, queue=job.queue)
    hold = world.desired.policy.get(case.key)
    if hold is not None:
        approvers = {"approvers": ", ".join(hold.approvers)} if hold.approvers else {}
        code = ReasonCode.APPROVAL if hold.approvers else ReasonCode.POLICY
        return reason(code, policy=hold.policy, rule=hold.rule, message=hold.message, **approvers)
    for dependency in job.after:
        if not _met(world, dependency):
            return reason(ReasonCode.AFTER, job=dependency.job, condition=dependency.condition)
    if record is not None and case.same and record.retry_at is not None and record.retry_at > world.now:
        if record.reason.code is ReasonCode.BACK_OFF:
            return record.reason  # it says what failed, which nothing else remembers
        return reason(ReasonCode.BACK_OFF, failures=record.failures + record.failed_starts, until=record.retry_at)
    if world.desired.blocked:
        return reason(ReasonCode.ADMISSIONS_FROZEN, file=world.desired.blocked)
    return None


def _met(world: World, dependency: Dependency) -> bool:
    """A live incarnation of the dependency counts before any that ended earlier."""
    record = world.records.get(dependency.job)
    if record is not None and record.state is not JobState.FINISHED:
        return dependency.condition == "Started" and record.started is not None
    stones = world.tombstones.get(dependency.job, ())
    outcome = record.outcome if record is not None else stones[-1].outcome if stones else None
    return outcome in _CONDITIONS.get(dependency.condition, frozenset())


_CONDITIONS: Final[Mapping[str, frozenset[Outcome]]] = {
    "Started": FINAL,
    "Succeeded": frozenset({Outcome.SUCCEEDED}),
    "Failed": frozenset({Outcome.FAILED, Outcome.TIMED_OUT}),
    "Finished": FINAL | {Outcome.CANCELLED},
}
