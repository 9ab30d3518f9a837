"""One job as its file, its record and the world around it; and is it a candidate for GPUs at all?

The reasons of the rule book's first block: suspended, queue gone, dependency, back-off, a request,
admissions frozen. What a job
that is none becomes is for `classify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import Dependency, Job
from reconciler.model.lifecycle import Cause, JobState, Outcome
from reconciler.model.observed import Observed
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.request import Ask
from reconciler.model.tombstones import Stones, Tombstone
from reconciler.model.units import Instant, JobKey, NodeName, document_of, task_key
from reconciler.planner.people import no_account
from reconciler.planner.requested import why_asked

FINAL: Final = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
"""How an incarnation ends for good. A cancelled or replaced one goes on when its file comes back."""

_FAILURES: Final = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})


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
    def is_invalid(self) -> bool:
        """Its file is there and has no valid form."""
        return document_of(self.key) in self.world.desired.invalid

    @property
    def ends_unstarted(self) -> Reason | None:
        """Why it is not to run any more, of a task of an array."""
        return self.world.ends_unstarted(self.job, self.record) if self.job is not None else None

    @property
    def asked(self) -> Ask | None:
        """What a request in force asks for it."""
        request = self.world.desired.request_about(self.key)
        return request.ask if request is not None else None

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
    tombstones: Stones
    nodes: frozenset[NodeName]
    now: Instant
    failed: Mapping[JobKey, JobKey] = field(default_factory=dict)  # by array that stops then, a task that failed
    _met: dict[Dependency, bool] = field(default_factory=dict, repr=False, compare=False)  # ten thousand tasks ask once

    def ends_unstarted(self, job: Job, record: JobRecord | None) -> Reason | None:
        """Why this task of an array is not to run any more; None for any other job.

        One that people cancelled, or that never started when the array stops because another failed.
        """
        task = job.task
        if task is None:
            return None
        if task.cancelled:
            return reason(ReasonCode.TASK_CANCELLED)
        failed = self.failed.get(task.array)
        started = record is not None and record.digest == job.digest and record.first_attempt > 0
        if failed is None or failed == job.key or started:
            return None
        return reason(ReasonCode.ARRAY_STOPPED, task=failed)

    def met(self, dependency: Dependency) -> bool:
        """Whether the job that comes first has come as far as it must."""
        if dependency not in self._met:
            self._met[dependency] = _met(self, dependency)
        return self._met[dependency]

    def stone(self, key: JobKey, digest: str) -> Tombstone | None:
        """How this incarnation ended before, if it did."""
        return next((s for s in reversed(self.tombstones.get(key, ())) if s.digest == digest), None)

    def attempts(self, key: JobKey) -> int:
        """Attempts ever made under this name: receipts are told apart by number, whatever ran."""
        return max((stone.attempts for stone in self.tombstones.get(key, ())), default=0)


def failed_tasks(desired: Desired, records: Mapping[JobKey, JobRecord], tombstones: Stones) -> dict[JobKey, JobKey]:
    """The first task that failed for good, by array, of those arrays that start no other task then."""
    found: dict[JobKey, JobKey] = {}
    for key, document in desired.arrays.items():
        if document.array is None or not document.array.stop_on_failure:
            continue
        for index in range(len(document.array.tasks)):
            task = task_key(key, index)
            if _ended(desired.jobs[task], records.get(task), tombstones.get(task, ())) in _FAILURES:
                found[key] = task
                break
    return found


def _ended(job: Job, record: JobRecord | None, stones: tuple[Tombstone, ...]) -> Outcome | None:
    """How this incarnation of a job ended; None while it has not."""
    if record is not None and record.digest == job.digest:
        return record.outcome if record.state is JobState.FINISHED else None
    return next((stone.outcome for stone in reversed(stones) if stone.digest == job.digest), None)


def not_a_candidate(case: Case, job: Job) -> Reason | None:
    """The first thing that keeps it out of the pass, None when it is a candidate."""
    world, record = case.world, case.record
    if job.suspend:
        return reason(ReasonCode.SUSPENDED)
    request = world.desired.request_about(case.key)
    if request is not None and request.ask is not Ask.FREEZE:
        return why_asked(request)
    queues = world.desired.quotas.queues
    if queues and job.queue not in queues:
        return reason(ReasonCode.QUEUE_GONE, queue=job.queue)
    hold = world.desired.policy.get(document_of(case.key)) if world.desired.policy else None
    if hold is not None:
        approvers = {"approvers": ", ".join(hold.approvers)} if hold.approvers else {}
        code = ReasonCode.APPROVAL if hold.approvers else ReasonCode.POLICY
        return reason(code, policy=hold.policy, rule=hold.rule, message=hold.message, **approvers)
    unknown = no_account(world.desired, world.observed, job)
    if unknown is not None:
        return unknown
    for dependency in job.after:
        if not world.met(dependency):
            return reason(ReasonCode.AFTER, job=dependency.job, condition=dependency.condition)
    if record is not None and case.same and record.retry_at is not None and record.retry_at > world.now:
        if record.reason.code is ReasonCode.BACK_OFF:
            return record.reason  # it says what failed, which nothing else remembers
        return reason(ReasonCode.BACK_OFF, failures=record.failures + record.failed_starts, until=record.retry_at)
    if request is not None:
        return why_asked(request)
    if world.desired.blocked:
        return reason(ReasonCode.ADMISSIONS_FROZEN, file=world.desired.blocked)
    return None


def _met(world: World, dependency: Dependency) -> bool:
    """An array has come as far as all its tasks have; it has failed when all are over and one of them failed."""
    array, plain = world.desired.arrays.get(dependency.job), dependency.condition
    if array is not None and array.array is not None:
        tasks = [task_key(dependency.job, index) for index in range(len(array.array.tasks))]
    else:
        tasks = [] if dependency.job in world.desired.jobs else _tasks_once(world, dependency.job)
    if not tasks:
        return _has_come(world, dependency.job, plain)
    if plain == "Failed":
        over = all(_has_come(world, task, "Finished") for task in tasks)
        return over and any(_has_come(world, task, "Failed") for task in tasks)
    return all(_has_come(world, task, plain) for task in tasks)


def _tasks_once(world: World, array: JobKey) -> list[JobKey]:
    """What is known of the tasks of an array whose file is gone."""
    return sorted({key for known in (world.records, world.tombstones) for key in known if key.startswith(f"{array}.")})


def _has_come(world: World, job: JobKey, condition: str) -> bool:
    """A live incarnation counts before any that ended earlier."""
    record = world.records.get(job)
    if record is not None and record.state is not JobState.FINISHED:
        return condition == "Started" and record.started is not None
    stones = world.tombstones.get(job, ())
    outcome = record.outcome if record is not None else stones[-1].outcome if stones else None
    return outcome in _CONDITIONS.get(condition, frozenset())


_CONDITIONS: Final[Mapping[str, frozenset[Outcome]]] = {
    "Started": FINAL,
    "Succeeded": frozenset({Outcome.SUCCEEDED}),
    "Failed": _FAILURES,
    "Finished": FINAL | {Outcome.CANCELLED},
}
