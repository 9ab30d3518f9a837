"""What would have to be different in its file for this job to start? Tried, never guessed.

Each offer is a change to the job's (or its queue's) document. It is offered only when a whole decision with exactly
that change, as of now, starts the job or promises it GPUs; the price is what that same decision takes from others.
Why it waits as it is is for `explain`; when it starts as it is, for `forecast`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.desired import Desired
from reconciler.model.inventory import Inventory
from reconciler.model.job import Dimension, Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.reasons import ReasonCode
from reconciler.model.units import (
    MINUTE,
    Digest,
    Gpus,
    GpuSeconds,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    Nanoseconds,
    QueueName,
    index_of,
    task_key,
)
from reconciler.planner.arrays import is_at_work
from reconciler.planner.decide import decide

TRIALS: Final = 16  # decisions made for one job
SIZES: Final = 6  # of them to find the largest size that starts

Value = int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of a document: `path` from its top. None: the line is taken out. Spans of time are in nanoseconds.

    `queue`: the document is this queue's, not the job's.
    """

    path: tuple[str, ...]
    value: Value
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """With these changes it starts at `when`: now, or once those it evicts, moves or shrinks (`disturbs`) are gone."""

    changes: tuple[Change, ...]
    when: Instant
    disturbs: tuple[JobKey, ...] = ()
    lost: GpuSeconds = GpuSeconds(0)


@dataclass(frozen=True, slots=True)
class _Offer:
    """Something to try: the changes, and the desired state with them."""

    changes: tuple[Change, ...]
    desired: Desired


@dataclass(slots=True)
class _Bench:
    """One job in one world, and how many decisions are left."""

    desired: Desired
    observed: Observed
    allocated: Allocation
    key: JobKey
    now: Instant
    left: int = TRIALS
    known: dict[tuple[Change, ...], Counterfactual | None] = field(default_factory=dict)

    def tried(self, offer: _Offer) -> Counterfactual | None:
        """The offer as it turns out, None when the job would wait all the same or no trial is left."""
        if offer.changes not in self.known:
            if not self.left:
                return None
            self.left -= 1
            self.known[offer.changes] = self._decided(offer)
        return self.known[offer.changes]

    def _decided(self, offer: _Offer) -> Counterfactual | None:
        after = decide(offer.desired, self.observed, self.allocated, self.now).allocation.jobs
        record = after.get(self.key)
        if record is None or record.state not in (JobState.STARTING, JobState.PROMISED):
            return None
        disturbed, lost = [], 0
        for key, other in after.items():
            before = self.allocated.jobs.get(key)
            stops = other.state is JobState.STOPPING and (before is None or before.state is not JobState.STOPPING)
            if stops and other.preemptor == self.key and before is not None:
                disturbed.append(key)
                lost += other.lost_work - before.lost_work
        when = record.promise.deadline if record.promise is not None else self.now
        return Counterfactual(
            changes=offer.changes, when=Instant(when), disturbs=tuple(disturbed), lost=GpuSeconds(lost)
        )

    def with_job(self, job: Job, *changes: Change) -> _Offer:
        """The world in which the job's file reads like this: of a task, that of all tasks of its array."""
        jobs = {**self.desired.jobs, job.key: job}
        before, task = self.desired.jobs.get(job.key), job.task
        if before is not None and task is not None:
            for index in range(task.size):
                other = self.desired.jobs.get(task_key(task.array, index))
                if other is not None and other.task is not None and index != task.index:
                    jobs[other.key] = _likewise(other, job, changed=job.digest != before.digest)
        return _Offer(changes, replace(self.desired, jobs={key: jobs[key] for key in sorted(jobs)}))


def counterfactuals(
    desired: Desired, observed: Observed, allocated: Allocation, key: JobKey, now: Instant
) -> tuple[Counterfactual, ...]:
    """Changes each of which alone starts the job, the smallest of each kind; empty when it does not wait, or none does.

    Costs at most `TRIALS` decisions.
    """
    job, record = desired.jobs.get(key), allocated.jobs.get(key)
    if job is None or record is None or record.state not in (JobState.PENDING, JobState.HELD):
        return ()
    bench = _Bench(desired, observed, allocated, key, Instant(max(now, allocated.decided_at)))
    found = [_more_at_once(bench, job), _released(bench, job), _shorter(bench, job), _wider(bench, job), _other_type(bench, job),
             _higher(bench, job), _more_quota(bench, job), _fewer(bench, job)]  # fmt: skip
    return tuple(one for one in found if one is not None)


# --- one kind of change each ---


def _released(bench: _Bench, job: Job) -> Counterfactual | None:
    """Not suspended, or not after another job."""
    if job.suspend:
        change = Change(path=("spec", "suspend"), value=None)
        return bench.tried(bench.with_job(replace(job, suspend=False), change))
    if job.after:
        return bench.tried(bench.with_job(replace(job, after=()), Change(path=("spec", "after"), value=None)))
    return None


def _more_at_once(bench: _Bench, job: Job) -> Counterfactual | None:
    """More tasks of its array at once: so many that those before it, and it, have their turn."""
    task = job.task
    if task is None or task.max_parallel is None:
        return None
    records = (bench.allocated.jobs.get(task_key(task.array, index)) for index in range(task.size))
    before = [r for r in records if r is not None and r.job != job.key and _goes_before(r, task.index)]
    if len(before) < task.max_parallel:
        return None
    most = len(before) + 1
    change = Change(path=("spec", "array", "maxParallel"), value=most)
    return bench.tried(bench.with_job(replace(job, task=replace(task, max_parallel=most)), change))


def _goes_before(record: JobRecord, index: int) -> bool:
    """It has GPUs or is promised some, or waits with a smaller number."""
    own = index_of(record.job)
    return is_at_work(record) or (record.state is JobState.PENDING and own is not None and own < index)


def _likewise(other: Job, changed_job: Job, *, changed: bool) -> Job:
    """Another task of the array, changed as this one was."""
    own, task = other.task, changed_job.task
    return replace(
        changed_job,
        name=other.name,
        digest=_another(other) if changed else other.digest,
        rerun=other.rerun,
        checkpoint=other.checkpoint,
        task=replace(own, max_parallel=task.max_parallel) if own is not None and task is not None else own,
    )


def _shorter(bench: _Bench, job: Job) -> Counterfactual | None:
    """A time limit that ends before what would otherwise be in the way: a window, or the start of someone before it."""
    limit, instants = bench.desired.limit_of(job), set[int]()
    for window in bench.desired.windows:
        instants.add(window.begins)
    for record in bench.allocated.jobs.values():
        for name, number in record.reason.numbers:
            if name in ("earliestStart", "from") and isinstance(number, int):
                instants.add(number)
    spans = {(at - bench.now) // MINUTE * MINUTE for at in instants if at - bench.now >= MINUTE}
    for span in sorted((s for s in spans if limit is None or s < limit), reverse=True)[:3]:
        changed = replace(job, time_limit=Nanoseconds(span))
        found = bench.tried(bench.with_job(changed, Change(path=("spec", "timeLimit"), value=span)))
        if found is not None:
            return found
    return None


def _wider(bench: _Bench, job: Job) -> Counterfactual | None:
    """One of its rules of place at a wider level, the nearest that is enough."""
    for place in job.required:
        for level in _levels_beyond(bench.desired.inventory, place.level):
            required = tuple(replace(one, level=level) if one is place else one for one in job.required)
            preferred = tuple(one for one in job.preferred if one.group != place.group)
            change = Change(path=("spec", "topology", "required", place.group), value=level)
            found = bench.tried(bench.with_job(replace(job, required=required, preferred=preferred), change))
            if found is not None:
                return found
    return None


def _levels_beyond(inventory: Inventory, level: LevelName) -> list[LevelName]:
    names = [one.name for one in inventory.levels]
    return names[names.index(level) + 1 :] if level in names else [names[-1]]


def _other_type(bench: _Bench, job: Job) -> Counterfactual | None:
    """Another type of GPU, when it names one."""
    declared = sorted({node.shape.gpu_type for node in bench.desired.inventory.nodes})
    for kind in declared if len(job.gpu_types) == 1 else ():
        if kind not in job.gpu_types:
            changed = replace(job, gpu_types=(GpuType(kind),), digest=_another(job))
            found = bench.tried(bench.with_job(changed, Change(path=("spec", "gpuType"), value=kind)))
            if found is not None:
                return found
    return None


def _higher(bench: _Bench, job: Job) -> Counterfactual | None:
    """A higher priority class, the lowest that is enough."""
    classes = bench.desired.classes
    own = classes[job.priority_class].value if job.priority_class in classes else 0
    for known in sorted(classes.values(), key=lambda one: (one.value, one.name)):
        if known.value > own:
            changed = replace(job, priority_class=known.name)
            found = bench.tried(bench.with_job(changed, Change(path=("spec", "priorityClass"), value=known.name)))
            if found is not None:
                return found
    return None


def _more_quota(bench: _Bench, job: Job) -> Counterfactual | None:
    """The ceiling that stops it, raised to what it needs."""
    record = bench.allocated.jobs[job.key]
    said = dict(record.reason.numbers)
    if record.reason.code not in (ReasonCode.QUOTA_CEILING, ReasonCode.NEVER_FITS_QUOTA):
        return None
    queue = bench.desired.quotas.queues.get(QueueName(str(said.get("queue", ""))))
    raised = said.get("wouldBe", job.gpus)
    if queue is None or not isinstance(raised, int):
        return None
    kinds = [kind for kind in queue.ceiling if not job.gpu_types or kind in job.gpu_types]
    changes = tuple(Change(path=("spec", "ceiling", kind), value=raised, queue=queue.name) for kind in kinds)
    higher = replace(queue, ceiling={**queue.ceiling, **{kind: Gpus(raised) for kind in kinds}})
    quotas = replace(bench.desired.quotas, queues={**bench.desired.quotas.queues, queue.name: higher})
    return bench.tried(_Offer(changes, replace(bench.desired, quotas=quotas))) if changes else None


def _fewer(bench: _Bench, job: Job) -> Counterfactual | None:
    """The largest number of GPUs below its own with which it starts; by bisection, so that none may be overlooked but
    where a larger gang fits and a smaller one does not."""
    offers = list(_smaller(bench, job))  # largest first
    low, high, best = 0, len(offers) - 1, None
    for _ in range(SIZES):
        if low > high:
            break
        middle = (low + high) // 2
        found = bench.tried(offers[middle])
        if found is not None:
            best, high = found, middle - 1
        else:
            low = middle + 1
    return best


def _smaller(bench: _Bench, job: Job) -> Iterator[_Offer]:
    """The same job with a smaller dimension: fewer replicas, or, when it has one, a smaller group."""
    if job.roles or job.elastic is not None:
        return
    name = next((n for n in ("data", "tensor") if any(d.name == n and d.size > 1 for d in job.dimensions)), None)
    own = next((d for d in job.dimensions if d.name == name), None)
    if own is None:
        return
    for size in range(own.size - 1, 0, -1):
        if own.name == "tensor" and own.size % size:
            continue
        dimensions = tuple(replace(d, size=size) if d is own else d for d in job.dimensions)
        gpus = prod(d.size for d in dimensions)
        sizes = tuple(
            Change(path=("spec", "parallelism", d.name), value=d.size)
            for d in dimensions
            if d.size > 1 or d.name == own.name
        )
        changed = replace(job, gpus=Gpus(gpus), dimensions=_without_ones(dimensions), digest=_another(job))
        yield bench.with_job(changed, Change(path=("spec", "gpus"), value=gpus), *sizes)


def _without_ones(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
    return tuple(d for d in dimensions if d.size > 1)


def _another(job: Job) -> Digest:
    """A digest of something else that runs: it loses its age, as the real change would."""
    return Digest(f"{job.digest}, changed")
