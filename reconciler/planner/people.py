"""Who brought a job, which account it runs under, and how much one person may hold at once.

A person is who brought the incarnation; later edits by others change neither account nor count. Limits of a queue count all
jobs of the person in it and below it, those of a priority class all in the class. What holds GPUs counts, and what is
promised. As with quotas, nobody is stopped by a limit: it only starts nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired
from reconciler.model.job import SUBMITTER, Job
from reconciler.model.observed import Observed, Person, Proof
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import JobKey, document_of

_NO_LIMIT: Final = 1 << 60


def person_of_job(observed: Observed, key: JobKey) -> str:
    """The name that counts: user, login or address; marked where nothing stands behind it, so that nobody is charged
    with what others only say is his."""
    brought = observed.provenance.get(document_of(key))
    if brought is None:
        return "unknown"
    person = brought.submitter or brought.author
    name = person.user or (f"@{person.login}" if person.login else "") or person.email or "unknown"
    return name if brought.vouched is not Proof.NONE else f"{name} (unproven)"


def account_of(desired: Desired, observed: Observed, job: Job) -> str:
    """The account its ranks run under; "" when it is to be the submitter's and none is known for certain."""
    if job.run.user != SUBMITTER:
        return job.run.user
    brought = observed.provenance.get(document_of(job.key))
    person = (brought.submitter or Person()) if brought is not None and brought.vouched is not Proof.NONE else Person()
    return desired.accounts.get(person.user, "")


def no_account(desired: Desired, observed: Observed, job: Job) -> Reason | None:
    """Why a job that is to run as who brought it cannot; None when it can, or runs as somebody else."""
    if job.run.user != SUBMITTER or account_of(desired, observed, job):
        return None
    person = person_of_job(observed, job.key)
    return reason(ReasonCode.NO_ACCOUNT, user=person, queue=job.queue)


@dataclass(frozen=True, slots=True)
class _Limit:
    """One number that a person may not pass: of GPUs or jobs, in a queue or a class."""

    scope: str
    what: str
    most: int


def limits_people(desired: Desired) -> bool:
    """Whether some queue or class limits what one person has: who brought a job is asked for then alone."""
    queues, classes = desired.quotas.queues.values(), desired.classes.values()
    return any(q.per_user_gpus is not None or q.per_user_jobs is not None for q in queues) or any(
        c.per_user_gpus is not None for c in classes
    )


class Shares:
    """What each person holds and is promised, as far as some limit counts it. Costs nothing where there is none."""

    __slots__ = ("_desired", "_limits", "_observed", "_people", "_use", "exist")

    def __init__(self, desired: Desired, observed: Observed, records: Mapping[JobKey, JobRecord]) -> None:
        self._desired, self._observed = desired, observed
        self.exist = limits_people(desired)
        self._limits: dict[tuple[str, str], tuple[_Limit, ...]] = {}
        self._use: dict[tuple[str, _Limit], int] = {}
        for record in records.values() if self.exist else ():
            self.add(record)

    def add(self, record: JobRecord, sign: int = 1) -> None:
        """Count what a job has now; `sign` -1 takes it off again."""
        gpus = size_of(record)
        job = self._desired.jobs.get(record.job)
        if not gpus or job is None or not self.exist:
            return
        person = person_of_job(self._observed, record.job)
        for limit in self._limits_of(job):
            key = (person, limit)
            self._use[key] = self._use.get(key, 0) + sign * (gpus if limit.what == "GPUs" else 1)

    def why(self, job: Job, gpus: int, *, jobs: int = 1) -> Reason | None:
        """The first limit of its person that `gpus` more, of `jobs` more jobs, would pass; None when it may."""
        if not self.exist:
            return None
        person = person_of_job(self._observed, job.key)
        for limit in self._limits_of(job):
            more = gpus if limit.what == "GPUs" else jobs
            would_be = self._use.get((person, limit), 0) + more
            if more and would_be > limit.most:
                return reason(
                    ReasonCode.USER_LIMIT, user=person, wouldBe=would_be, most=limit.most, what=limit.what,
                    scope=limit.scope,
                )  # fmt: skip
        return None

    def room(self, job: Job) -> int:
        """GPUs that its person may still have."""
        if not self.exist:
            return _NO_LIMIT
        person = person_of_job(self._observed, job.key)
        rooms = (one.most - self._use.get((person, one), 0) for one in self._limits_of(job) if one.what == "GPUs")
        return min(rooms, default=_NO_LIMIT)

    def _limits_of(self, job: Job) -> tuple[_Limit, ...]:
        key = (str(job.queue), str(job.priority_class))
        if key not in self._limits:
            self._limits[key] = tuple(self._found(job))
        return self._limits[key]

    def _found(self, job: Job) -> Iterator[_Limit]:
        for name in self._desired.quotas.path(job.queue):
            queue = self._desired.quotas.queues.get(name)
            if queue is not None and queue.per_user_gpus is not None:
                yield _Limit(f"queue {name}", "GPUs", queue.per_user_gpus)
            if queue is not None and queue.per_user_jobs is not None:
                yield _Limit(f"queue {name}", "jobs", queue.per_user_jobs)
        priority = self._desired.classes.get(job.priority_class)
        if priority is not None and priority.per_user_gpus is not None:
            yield _Limit(f"class {priority.name}", "GPUs", priority.per_user_gpus)


def size_of(record: JobRecord) -> int:
    """GPUs that a job holds, or will once its promise came true, whichever is more."""
    promised = len(record.promise.placement.ranks) if record.promise is not None else 0
    return max(record.gpus_held, promised)
