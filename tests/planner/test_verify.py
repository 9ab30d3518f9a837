"""The judge on its own: decisions written by hand, each with one thing wrong, and what is merely inherited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from reconciler.model.allocation import Allocation, JobRecord, Placement, Promise
from reconciler.model.desired import Desired
from reconciler.model.job import Elastic, Fence, OnPreempt
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.observed import AttemptState, GpuReport, NodeCondition, Observed
from reconciler.model.queue import Scheduling
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.tombstones import Tombstone, buried
from reconciler.model.units import (
    HOUR,
    MINUTE,
    SECOND,
    Bytes,
    ClassName,
    Gpus,
    GpuType,
    Instant,
    JobKey,
    Nanoseconds,
    NodeName,
    QueueName,
)
from reconciler.planner.verify import Breach, violations
from tests.planner.worlds import (
    QUEUES,
    START,
    allocation,
    job,
    pending,
    placement,
    priority,
    queue,
    ready,
    running,
    said,
    saw,
    shape,
    taint,
    window,
    with_jobs,
    with_node,
    world,
)

NEW, OLD, LOW, HIGH = JobKey("nlp/new"), JobKey("nlp/old"), JobKey("nlp/low"), JobKey("nlp/high")
NOW = Instant(START + HOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A decision as the judge gets it."""

    desired: Desired
    observed: Observed
    previous: Allocation
    next: Allocation

    def judged(self) -> list[Breach]:
        """What is wrong, but for the accounts of fair share, which these decisions do not keep."""
        found = [one.code for one in violations(self.desired, self.observed, self.previous, self.next)]
        return [code for code in found if code is not Breach.WRONG_USAGE]

    def declared(self, changed: Callable[[Desired], Desired]) -> Pair:
        return replace(self, desired=changed(self.desired))

    def asked(self, key: JobKey, **changes: object) -> Pair:
        """The job's file says something else; its record does not."""
        changed = replace(self.desired.jobs[key], **changes)  # type: ignore[arg-type]  # fields by name
        return replace(self, desired=with_jobs(self.desired, changed))

    def seen(self, node: str, **changes: object) -> Pair:
        return replace(self, observed=saw(self.observed, node, **changes))

    def said(self, node: str, key: JobKey, attempt: int, state: AttemptState) -> Pair:
        return replace(self, observed=said(self.observed, node, key, attempt, state))

    def then(self, key: JobKey, **changes: object) -> Pair:
        """The next record of one job is otherwise."""
        record = replace(self.next.jobs[key], **changes)  # type: ignore[arg-type]  # fields by name
        return replace(self, next=replace(self.next, jobs={**self.next.jobs, key: record}))

    def was(self, key: JobKey, **changes: object) -> Pair:
        """The previous record of one job is otherwise."""
        record = replace(self.previous.jobs[key], **changes)  # type: ignore[arg-type]  # fields by name
        return replace(self, previous=replace(self.previous, jobs={**self.previous.jobs, key: record}))

    def placed(self, key: JobKey, gpus: dict[str, int | list[int]], level: str = "cluster") -> Pair:
        return self.then(key, placement=placement(self.desired, gpus, level))

    def without(self, key: JobKey) -> Pair:
        return replace(self, next=replace(self.next, jobs={k: r for k, r in self.next.jobs.items() if k != key}))


def following(previous: Allocation, *records: JobRecord, at: Instant = NOW) -> Allocation:
    jobs = {**previous.jobs, **{record.job: record for record in records}}
    return replace(
        previous, generation=previous.generation + 1, decided_at=at, jobs={key: jobs[key] for key in sorted(jobs)}
    )


def starting(record: JobRecord, place: Placement, attempt: int = 1) -> JobRecord:
    why = reason(ReasonCode.PLACED, gpus=len(place.ranks), level=place.level)
    return replace(
        record, state=JobState.STARTING, phase=Phase.PREPARE, placement=place, attempt=attempt, since=NOW, reason=why,
        fence=Fence.LEASE,
    )  # fmt: skip


def a_start(**of: object) -> Pair:
    """nlp/new starts on the two nodes of rack r01 while nlp/old runs on gpu-003."""
    asked = job(NEW, gpus=16, dims={"tensor": 8, "data": 2}, required={"job": "rack", "tensor": "nvlinkDomain"})
    desired = world(jobs=[replace(asked, **of), job(OLD)])  # type: ignore[arg-type]  # fields by name
    old = running(desired, OLD, {"gpu-003": 8})
    previous = allocation(desired, pending(desired, NEW), old)
    place = placement(desired, {"gpu-001": 8, "gpu-002": 8}, "rack")
    after = following(previous, starting(previous.jobs[NEW], place))
    return Pair(desired=desired, observed=ready(desired, old), previous=previous, next=after)


def an_eviction(rules: Scheduling | None = None, **victim: object) -> Pair:
    """nlp/low, an hour old, is stopped; nlp/high is promised its GPUs and those of a free node."""
    desired = world(jobs=[job(HIGH, gpus=16, priority="high"), job(LOW, priority="low")], rules=rules)
    desired = with_jobs(desired, replace(desired.jobs[LOW], **victim))  # type: ignore[arg-type]  # fields by name
    low = running(desired, LOW, {"gpu-001": 8})
    previous = allocation(desired, pending(desired, HIGH), low)
    target = placement(desired, {"gpu-001": 8, "gpu-002": 8}, "rack")
    after = following(previous, *promised(previous, target))
    return Pair(desired=desired, observed=ready(desired, low), previous=previous, next=after)


def a_move() -> Pair:
    """nlp/low, on half of gpu-001, goes on on gpu-002; nlp/high is promised gpu-001."""
    desired = world(jobs=[job(HIGH, gpus=8, dims={"tensor": 8}, required={"tensor": "node"}), job(LOW, 4)])
    low = running(desired, LOW, {"gpu-001": 4})
    previous = allocation(desired, pending(desired, HIGH), low)
    high, _ = promised(previous, placement(desired, {"gpu-001": 8}, "node"))
    return Pair(
        desired=desired, observed=ready(desired, low), previous=previous,
        next=following(previous, replace(high, victims=()), displaced(previous, Cause.MOVED, placement(desired, {"gpu-002": 4}, "node"))),
    )  # fmt: skip


def a_shrink() -> Pair:
    """nlp/low gives up the second of its two groups, on gpu-002, which nlp/high is promised."""
    elastic = replace(
        job(LOW, 16, "low", dims={"tensor": 8, "data": 2}), elastic=Elastic(dimension="data", least=1, most=2)
    )
    desired = world(jobs=[job(HIGH, gpus=8, priority="high", dims={"tensor": 8}, required={"tensor": "node"}), elastic])
    low = running(desired, LOW, {"gpu-001": 8, "gpu-002": 8})
    previous = allocation(desired, pending(desired, HIGH), low)
    high, _ = promised(previous, placement(desired, {"gpu-002": 8}, "node"))
    return Pair(
        desired=desired, observed=ready(desired, low), previous=previous,
        next=following(previous, replace(high, victims=()), displaced(previous, Cause.RESIZED, placement(desired, {"gpu-001": 8}, "node"))),
    )  # fmt: skip


def displaced(previous: Allocation, cause: Cause, target: Placement) -> JobRecord:
    deadline = Instant(NOW + 30 * SECOND)
    return replace(
        previous.jobs[LOW], state=JobState.STOPPING, cause=cause, phase=Phase.STOP, since=NOW, deadline=deadline,
        preemptor=HIGH, interruptions=(NOW,), reason=reason(ReasonCode.MOVED, target="x", purpose="", lost=0),
        promise=Promise(placement=target, made=NOW, deadline=deadline, waiting_for=(LOW,)),
    )  # fmt: skip


def instead(pair: Pair, gpus: dict[str, int | list[int]], level: str = "node") -> Pair:
    """nlp/low would go on somewhere else than it should."""
    promise = pair.next.jobs[LOW].promise
    assert promise is not None
    return pair.then(LOW, promise=replace(promise, placement=placement(pair.desired, gpus, level)))


def with_neighbour(pair: Pair) -> Pair:
    """nlp/old leaves gpu-002 in this very decision; until now it had all of it."""
    desired = with_jobs(pair.desired, job(OLD, priority="low"))
    old = running(desired, OLD, {"gpu-002": 8})
    leaves = replace(
        old, state=JobState.STOPPING, cause=Cause.TIME_LIMIT, phase=Phase.STOP, since=NOW,
        deadline=Instant(NOW + 30 * SECOND), reason=reason(ReasonCode.TIME_LIMIT, limit=1),
    )  # fmt: skip
    desired = with_jobs(desired, replace(desired.jobs[OLD], time_limit=Nanoseconds(SECOND)))
    previous, after = ({**a.jobs, OLD: r} for a, r in ((pair.previous, old), (pair.next, leaves)))
    return Pair(
        desired=desired, observed=ready(desired, old, pair.previous.jobs[LOW]),
        previous=replace(pair.previous, jobs=previous), next=replace(pair.next, jobs=after),
    )  # fmt: skip


def promised(previous: Allocation, target: Placement) -> tuple[JobRecord, JobRecord]:
    deadline = Instant(NOW + 30 * SECOND)
    promise = Promise(placement=target, made=NOW, deadline=deadline, waiting_for=(LOW,))
    high = replace(
        previous.jobs[HIGH], state=JobState.PROMISED, since=NOW, promise=promise, victims=(LOW,),
        reason=reason(ReasonCode.WAITING_FOR_VICTIMS, victims=LOW, released=8, needed=16),
    )  # fmt: skip
    low = replace(
        previous.jobs[LOW], state=JobState.STOPPING, cause=Cause.PREEMPTED, phase=Phase.STOP, since=NOW,
        deadline=deadline, preemptor=HIGH, interruptions=(NOW,),
        reason=reason(ReasonCode.PREEMPTED, preemptor=HIGH, lost=28800),
    )  # fmt: skip
    return high, low


def a_handover() -> Pair:
    """nlp/low was seen gone: it is pending again, and nlp/high starts on what it was promised."""
    evicted = an_eviction()
    previous = evicted.next
    target = placement(evicted.desired, {"gpu-001": 8, "gpu-002": 8}, "rack")
    high = replace(starting(previous.jobs[HIGH], target), promise=None)
    low = replace(
        previous.jobs[LOW], state=JobState.PENDING, phase=None, placement=None, started=None, deadline=None,
        reason=reason(ReasonCode.AFTER_PREEMPTOR, preemptor=HIGH),
    )  # fmt: skip
    seen = said(evicted.observed, "gpu-001", LOW, 1, AttemptState.GONE)
    return replace(evicted, previous=previous, next=following(previous, high, low), observed=seen)


def a_run() -> Pair:
    """nlp/new was prepared on both nodes and is told to run."""
    begun = a_start()
    return replace(
        begun, previous=begun.next, observed=ready(begun.desired, *begun.next.jobs.values()),
        next=following(begun.next, replace(begun.next.jobs[NEW], phase=Phase.RUN)),
    )  # fmt: skip


def a_failure() -> Pair:
    """A rank of nlp/old ended badly, and the gang is told to stop."""
    desired = world(jobs=[job(OLD, gpus=16, restarts=2)])
    old = running(desired, OLD, {"gpu-003": 8, "gpu-004": 8})
    why = reason(ReasonCode.RANK_FAILED, node="gpu-003", exitCode=1)
    stopped = replace(
        old, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.RANK_FAILED, failures=1, deadline=NOW, since=NOW,
        reason=why,
    )  # fmt: skip
    observed = said(ready(desired, old), "gpu-003", OLD, 1, AttemptState.EXITED, 1)
    previous = allocation(desired, old)
    return Pair(desired=desired, observed=observed, previous=previous, next=following(previous, stopped))


@pytest.mark.parametrize(
    "pair", [a_start, an_eviction, a_handover, a_run, a_move, a_shrink, a_failure], ids=lambda pair: pair.__name__
)
def test_a_right_decision_is_accepted(pair: Callable[[], Pair]) -> None:
    assert pair().judged() == []


def test_no_change_is_accepted_with_or_without_a_new_generation() -> None:
    pair = a_start()
    assert replace(pair, next=pair.previous).judged() == []
    assert replace(pair, next=following(pair.previous)).judged() == []


Case = tuple[str, Callable[[], Pair], Callable[[Pair], Pair], Breach]


def rename(pair: Pair, **first: object) -> Pair:
    """The first rank of nlp/new is otherwise."""
    place = pair.next.jobs[NEW].placement
    assert place is not None
    changed = replace(place.ranks[0], **first)  # type: ignore[arg-type]  # fields by name
    return pair.then(NEW, placement=replace(place, ranks=(changed, *place.ranks[1:])))


def less(pair: Pair, ranks: slice) -> Pair:
    place = pair.next.jobs[NEW].placement
    assert place is not None
    return pair.then(NEW, placement=replace(place, ranks=place.ranks[ranks]))


def tomb(pair: Pair, outcome: Outcome) -> Pair:
    """This very incarnation of nlp/new ended before."""
    stone = Tombstone(job=NEW, digest=pair.desired.jobs[NEW].digest, outcome=outcome, at=START, attempts=0)
    stones = {NEW: (stone,)}
    return replace(
        pair,
        previous=replace(pair.previous, tombstones=buried(stones)),
        next=replace(pair.next, tombstones=buried(stones)),
    )


def ceiling(pair: Pair, name: str, gpus: int) -> Pair:
    queues = tuple(queue(q.name, q.parent, gpus) if q.name == name else q for q in QUEUES)
    return pair.declared(lambda d: replace(d, quotas=world(queues=queues).quotas))


def guaranteed(pair: Pair, name: str, gpus: int, lend: int | None = None) -> Pair:
    kind = GpuType("H100")
    lent = None if lend is None else {kind: Gpus(lend)}
    queues = [replace(q, guaranteed={kind: Gpus(gpus)}, lend=lent) if q.name == name else q for q in QUEUES]
    return pair.declared(lambda d: replace(d, quotas=world(queues=queues).quotas))


def reshaped(pair: Pair, node: str, gpu_type: str) -> Pair:
    return pair.declared(lambda d: with_node(d, node, shape=shape(gpu_type=gpu_type))).seen(node, gpu_type=gpu_type)


def ports(pair: Pair) -> Pair:
    """nlp/old lives beside nlp/new on gpu-001 and uses the port that nlp/new is given."""
    small = world(jobs=[job(NEW, 4), job(OLD, 4)])
    old = replace(running(small, OLD, {"gpu-001": [4, 5, 6, 7]}), ports=(29500,))
    previous = allocation(small, pending(small, NEW), old)
    new = replace(starting(previous.jobs[NEW], placement(small, {"gpu-001": 4}, "node")), ports=(29500,))
    return Pair(desired=small, observed=ready(small, old), previous=previous, next=following(previous, new))


def split(pair: Pair) -> Pair:
    """Three GPUs of a member's four on one node, the last on the next."""
    return pair.asked(NEW, required=(), dimensions=()).placed(NEW, {"gpu-001": [0, 1, 2], "gpu-002": 8, "gpu-004": 5})


def promise_on(pair: Pair, key: JobKey) -> Pair:
    """Somebody else was promised a GPU that nlp/new is given."""
    desired = with_jobs(pair.desired, job(key, 1, priority="low"))
    target = placement(desired, {"gpu-001": 1}, "node")
    promise = Promise(placement=target, made=START, deadline=NOW, waiting_for=())
    other = replace(pending(desired, key), state=JobState.PROMISED, promise=promise)
    before, after = ({**a.jobs, key: other} for a in (pair.previous, pair.next))
    return replace(
        pair, desired=desired, previous=replace(pair.previous, jobs=before), next=replace(pair.next, jobs=after)
    )


def with_another(pair: Pair) -> Pair:
    """nlp/low starts on gpu-004 in the same decision."""
    desired = with_jobs(pair.desired, job(LOW))
    previous = allocation(desired, *pair.previous.jobs.values(), pending(desired, LOW))
    another = starting(previous.jobs[LOW], placement(desired, {"gpu-004": 8}, "node"))
    return replace(pair, desired=desired, previous=previous, next=following(previous, pair.next.jobs[NEW], another))


def was_promised(pair: Pair, node: str) -> Pair:
    """nlp/low had a promise on this node before."""
    promise = Promise(placement=placement(pair.desired, {node: 8}, "node"), made=START, deadline=NOW, waiting_for=())
    return pair.was(LOW, state=JobState.PROMISED, promise=promise)


def gave_back(pair: Pair, *keys: JobKey, ago: int = 59) -> Pair:
    """These gave borrowed GPUs back so many seconds ago; the cooldown is a minute."""
    pair = pair.declared(lambda d: replace(d, scheduling=replace(d.scheduling, cooldown=Nanoseconds(MINUTE))))
    for key in keys:
        pair = pair.was(key, reclaimed=Instant(NOW - ago * SECOND))
    return pair


WRONG: tuple[Case, ...] = (
    # the allocation as a whole
    ("generation skipped", a_start, lambda p: replace(p, next=replace(p.next, generation=9)), Breach.WRONG_GENERATION),
    ("change without generation", a_start, lambda p: replace(p, next=replace(p.next, generation=7)),
     Breach.WRONG_GENERATION),
    ("time runs back", a_run, lambda p: replace(p, next=replace(p.next, decided_at=START)), Breach.WRONG_GENERATION),
    ("job without a record", a_start, lambda p: p.without(NEW), Breach.NO_RECORD),
    ("record of a job nobody wants", a_run,
     lambda p: p.declared(lambda d: with_jobs(d, without=[OLD])).said("gpu-003", OLD, 1, AttemptState.EXITED).then(
         OLD, state=JobState.FINISHED, outcome=Outcome.SUCCEEDED), Breach.LEFTOVER_RECORD),
    ("tombstone lost", a_start,
     lambda p: replace(q := tomb(p, Outcome.CANCELLED), next=replace(q.next, tombstones=buried({}))), Breach.TOMBSTONE_LOST),
    ("success forgotten", a_run,
     lambda p: replace(
         q := tomb(p, Outcome.SUCCEEDED),
         next=replace(q.next, tombstones=buried({NEW: (replace(q.next.tombstones[NEW][0], outcome=Outcome.CANCELLED),)}))),
     Breach.TOMBSTONE_LOST),
    # the life of one job
    ("promised nothing", a_start,
     lambda p: p.then(NEW, state=JobState.PROMISED, placement=None, phase=None), Breach.ILLEGAL_MOVE),
    ("promise of a running job", a_run,
     lambda p: p.then(OLD, promise=Promise(placement=placement(p.desired, {"gpu-004": 8}), made=NOW, deadline=NOW,
                                           waiting_for=())), Breach.ILLEGAL_MOVE),
    ("run before one node prepared", a_run, lambda p: p.said("gpu-002", NEW, 1, AttemptState.PREPARING),
     Breach.NOT_PREPARED),
    ("run without a receipt", a_run, lambda p: p.seen("gpu-002", attempts=()), Breach.NOT_PREPARED),
    ("receipt of an older attempt", a_run,
     lambda p: p.was(NEW, attempt=2).then(NEW, attempt=2), Breach.NOT_PREPARED),
    ("begins running", a_start, lambda p: p.then(NEW, phase=Phase.RUN), Breach.WRONG_PHASE),
    ("phase goes back", a_run, lambda p: p.then(OLD, state=JobState.STARTING, phase=Phase.PREPARE), Breach.WRONG_PHASE),
    ("called running too early", a_run, lambda p: p.was(NEW, phase=Phase.RUN).then(NEW, state=JobState.RUNNING),
     Breach.NOT_STARTED),
    ("attempt not counted up", a_start, lambda p: p.was(NEW, attempt=1), Breach.WRONG_ATTEMPT),
    ("attempts of the tombstone forgotten", a_start,
     lambda p: replace(p, previous=replace(allocation(p.desired, p.previous.jobs[OLD]), tombstones=buried({NEW: (
         Tombstone(job=NEW, digest=p.desired.jobs[OLD].digest, outcome=Outcome.CANCELLED, at=START, attempts=3),)})),
         next=replace(p.next, tombstones=buried({NEW: (
         Tombstone(job=NEW, digest=p.desired.jobs[OLD].digest, outcome=Outcome.CANCELLED, at=START, attempts=3),)}))),
     Breach.WRONG_ATTEMPT),
    ("moved while it runs", a_run, lambda p: p.placed(OLD, {"gpu-003": [1, 0, 2, 3, 4, 5, 6, 7]}),
     Breach.MOVED_WHILE_HOLDING),
    ("runs something else", a_run, lambda p: p.then(OLD, digest="ffff"), Breach.MOVED_WHILE_HOLDING),
    ("starts with another fence", a_start, lambda p: p.then(NEW, fence=Fence.CONFIRM), Breach.WRONG_FENCE),
    ("fence changed under its ranks", a_run, lambda p: p.then(OLD, fence=Fence.CONFIRM), Breach.WRONG_FENCE),
    ("grace changed under its ranks", a_run, lambda p: p.then(OLD, grace=Nanoseconds(9)), Breach.WRONG_FENCE),
    ("cancelled though wanted", a_run,
     lambda p: p.then(OLD, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.CANCELLED),
     Breach.STOPPED_WITHOUT_CAUSE),
    ("changed though the same", a_run,
     lambda p: p.then(OLD, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.CHANGED),
     Breach.STOPPED_WITHOUT_CAUSE),
    ("time limit not over", a_run,
     lambda p: p.asked(OLD, time_limit=Nanoseconds(2 * HOUR)).then(
         OLD, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.TIME_LIMIT), Breach.STOPPED_WITHOUT_CAUSE),
    ("idle though used", a_run,
     lambda p: p.asked(OLD, run=replace(p.desired.jobs[OLD].run, idle_timeout=Nanoseconds(SECOND))).then(
         OLD, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.IDLE), Breach.STOPPED_WITHOUT_CAUSE),
    ("reclaimed for nobody", a_run,
     lambda p: p.then(OLD, state=JobState.STOPPING, phase=Phase.STOP, cause=Cause.RECLAIMED), Breach.VICTIM_IN_VAIN),
    # promise 3
    ("given before seen released", a_handover, lambda p: p.said("gpu-001", LOW, 1, AttemptState.STOPPING).then(
        HIGH, **fields(p.previous.jobs[HIGH])), Breach.NOT_RELEASED),
    ("silence is no release", a_handover, lambda p: p.seen("gpu-001", attempts=()), Breach.NOT_RELEASED),
    ("release of another attempt", a_handover,
     lambda p: p.seen("gpu-001", attempts=()).said("gpu-001", LOW, 2, AttemptState.GONE), Breach.NOT_RELEASED),
    ("running job vanishes", a_start, lambda p: p.declared(lambda d: with_jobs(d, without=[OLD])).without(OLD),
     Breach.NOT_RELEASED),
    # a new place
    ("suspended job starts", a_start, lambda p: p.asked(NEW, suspend=True), Breach.NOT_WANTED),
    ("older incarnation starts", a_start, lambda p: p.asked(NEW, digest="ffff"), Breach.NOT_WANTED),
    ("queue is gone", a_start,
     lambda p: p.declared(lambda d: replace(d, quotas=world(queues=QUEUES[1:]).quotas)), Breach.NOT_WANTED),
    ("admissions are frozen", a_start, lambda p: p.declared(lambda d: replace(d, blocked="cluster.yaml")),
     Breach.ADMISSIONS_FROZEN),
    ("succeeded runs again", a_start, lambda p: tomb(p, Outcome.SUCCEEDED), Breach.FINISHED_RUNS_AGAIN),
    ("timed out runs again", a_start, lambda p: tomb(p, Outcome.TIMED_OUT), Breach.FINISHED_RUNS_AGAIN),
    ("rank dropped", a_start, lambda p: less(p, slice(15)), Breach.GANG_NOT_WHOLE),
    ("rank 0 missing", a_start, lambda p: less(p, slice(1, 16)), Breach.GANG_NOT_WHOLE),
    ("same GPU for two ranks", a_start, lambda p: rename(p, gpu=1), Breach.GANG_NOT_WHOLE),
    ("local ranks", a_start, lambda p: rename(p, local_rank=1), Breach.WRONG_RANKS),
    ("NIC of another GPU", a_start, lambda p: rename(p, nic="mlx5_7"), Breach.WRONG_RANKS),
    ("member torn apart", lambda: a_start(roles=job(NEW, 16, roles=[("worker", 4, 4)]).roles), split, Breach.ROLE_SPLIT),
    ("cordoned", a_start, lambda p: p.declared(lambda d: with_node(d, "gpu-002", cordoned="fan")), Breach.NODE_UNFIT),
    ("declared dead", a_start, lambda p: p.declared(lambda d: with_node(d, "gpu-002", dead=True)), Breach.NODE_UNFIT),
    ("tainted", a_start, lambda p: p.declared(lambda d: with_node(d, "gpu-001", taints=(taint("ci"),))),
     Breach.NODE_UNFIT),
    ("label missing", a_start, lambda p: p.asked(NEW, node_labels={"fast": "yes"}), Breach.NODE_UNFIT),
    ("unreachable", a_start, lambda p: p.seen("gpu-001", condition=NodeCondition.UNREACHABLE), Breach.NODE_UNFIT),
    ("health hook", a_start, lambda p: p.seen("gpu-001", unhealthy="dcgm"), Breach.NODE_UNFIT),
    ("a stray still lives there", a_start, lambda p: p.said("gpu-001", LOW, 4, AttemptState.RUNNING), Breach.NODE_UNFIT),
    ("declared failed", a_start, lambda p: p.declared(lambda d: with_node(d, "gpu-001", failed=0b100)), Breach.GPU_UNFIT),
    ("foreign process", a_start,
     lambda p: p.seen("gpu-001", gpus=tuple(GpuReport(index=i, uuid=f"{i}", foreign="vim" * (i == 3)) for i in range(8))),
     Breach.GPU_UNFIT),
    ("GPU not seen", a_start, lambda p: p.seen("gpu-001", gpus=()), Breach.GPU_UNFIT),
    ("wrong type", a_start, lambda p: p.asked(NEW, gpu_types=(GpuType("B200"),)), Breach.WRONG_GPU_TYPE),
    ("two types", lambda: a_start(gpu_types=(GpuType("H100"), GpuType("B200"))),
     lambda p: reshaped(p, "gpu-002", "B200"), Breach.WRONG_GPU_TYPE),
    ("one node is Slurm's", a_start, lambda p: p.declared(lambda d: with_node(d, "gpu-002", engine="slurm")),
     Breach.ENGINES_SPANNED),
    ("drained before its end", a_start,
     lambda p: p.asked(NEW, time_limit=Nanoseconds(4 * HOUR)).declared(
         lambda d: replace(d, windows=(window("gpu-002", 3 * 3600, 5 * 3600),))), Breach.MAINTENANCE_AHEAD),
    ("too many CPUs", a_start, lambda p: p.asked(NEW, cpus_per_gpu=17), Breach.NODE_OVERFULL),
    ("too much memory", a_start, lambda p: p.asked(NEW, memory_per_gpu=Bytes(2**40)), Breach.NODE_OVERFULL),
    ("job over two racks", a_start, lambda p: p.placed(NEW, {"gpu-001": 8, "gpu-004": 8}), Breach.LEVEL_BROKEN),
    ("tensor group over two nodes", a_start,
     lambda p: p.placed(NEW, {"gpu-001": [0, 1, 2, 3, 4, 5, 6], "gpu-002": 8, "gpu-004": 1}, "cluster")
     .asked(NEW, required=job(NEW, required={"tensor": "node"}).required), Breach.LEVEL_BROKEN),
    ("tensor group over two islands",
     lambda: a_start(required=job(NEW, required={"tensor": "nvlinkDomain"}).required),
     lambda p: p.declared(lambda d: with_node(d, "gpu-001", shape=shape(nvlink=(0x0F, 0xF0)))), Breach.LEVEL_BROKEN),
    ("claims a narrower level", a_start, lambda p: p.placed(NEW, {"gpu-001": 8, "gpu-002": 8}, "node"),
     Breach.LEVEL_BROKEN),
    # between jobs
    ("GPU given twice", lambda: a_start(required=()), lambda p: p.placed(NEW, {"gpu-002": 8, "gpu-003": 8}),
     Breach.GPU_TWICE),
    ("GPU promised to another", a_start, lambda p: promise_on(p, LOW), Breach.PROMISED_GPU),
    ("promise on GPUs nobody gives up", an_eviction,
     lambda p: replace(p, next=following(p.previous, replace(p.next.jobs[HIGH], victims=()))), Breach.PROMISED_GPU),
    ("port used on the node", a_start, ports, Breach.PORT_TWICE),
    ("ceiling of its queue", a_start, lambda p: ceiling(p, "nlp", 23), Breach.CEILING_EXCEEDED),
    ("ceiling above its queue", a_start, lambda p: ceiling(p, "root", 23), Breach.CEILING_EXCEEDED),
    ("more than the others lend", a_start, lambda p: guaranteed(p, "vision", 24, lend=0), Breach.QUOTA_EXCEEDED),
    ("not preemptible and beyond the guarantee", a_start,
     lambda p: guaranteed(p.asked(NEW, on_preempt=OnPreempt.NEVER), "nlp", 23), Breach.BEYOND_GUARANTEE),
    ("borrows at once what was reclaimed", a_start,
     lambda p: gave_back(p, NEW), Breach.BORROWS_TOO_SOON),
    ("borrows a part of it at once", a_start, lambda p: gave_back(guaranteed(p, "nlp", 23), NEW), Breach.BORROWS_TOO_SOON),
    ("two borrow at once what was reclaimed", lambda: with_another(a_start()),
     lambda p: gave_back(guaranteed(p, "nlp", 31), NEW, LOW), Breach.BORROWS_TOO_SOON),
    ("borrows at once beside a promise", lambda: with_another(a_start()),
     lambda p: gave_back(guaranteed(was_promised(p, "gpu-004"), "nlp", 31), NEW), Breach.BORROWS_TOO_SOON),
    ("ceiling for a promise", an_eviction, lambda p: ceiling(p, "nlp", 15), Breach.CEILING_EXCEEDED),
    # victims
    ("equal priority", an_eviction, lambda p: p.asked(HIGH, priority_class="low"), Breach.NO_RIGHT_TO_EVICT),
    ("class that evicts nobody", an_eviction,
     lambda p: p.declared(lambda d: replace(d, classes={**d.classes, ClassName("high"): priority("high", 1000, preempts=False)})),
     Breach.NO_RIGHT_TO_EVICT),
    ("another queue", an_eviction, lambda p: p.was(LOW, queue=QueueName("vision")).then(LOW, queue=QueueName("vision")),
     Breach.NO_RIGHT_TO_EVICT),
    ("switched off", lambda: an_eviction(Scheduling(preempt_same_queue="never")), lambda p: p, Breach.NO_RIGHT_TO_EVICT),
    ("victim did not run yet", an_eviction,
     lambda p: p.was(LOW, state=JobState.STARTING, phase=Phase.PREPARE, started=None), Breach.NO_RIGHT_TO_EVICT),
    ("class not preemptible", an_eviction,
     lambda p: p.declared(lambda d: replace(d, classes={**d.classes, ClassName("low"): priority("low", 100, preemptible=False)})),
     Breach.VICTIM_PROTECTED),
    ("job not preemptible", lambda: an_eviction(on_preempt=OnPreempt.NEVER), lambda p: p, Breach.VICTIM_PROTECTED),
    ("minRuntime", lambda: an_eviction(Scheduling(min_runtime=Nanoseconds(HOUR))),
     lambda p: p.was(LOW, started=Instant(START + 1)), Breach.VICTIM_PROTECTED),
    ("cooldown", lambda: an_eviction(Scheduling(cooldown=Nanoseconds(2 * MINUTE))),
     lambda p: p.was(LOW, interruptions=(Instant(NOW - MINUTE),)), Breach.VICTIM_PROTECTED),
    ("maxPerDay", lambda: an_eviction(Scheduling(max_per_day=1, cooldown=Nanoseconds(0))),
     lambda p: p.was(LOW, interruptions=(Instant(NOW - HOUR),)), Breach.VICTIM_PROTECTED),
    ("preemptor still waits", an_eviction, lambda p: p.then(HIGH, state=JobState.PENDING, promise=None, victims=()),
     Breach.VICTIM_IN_VAIN),
    ("preemptor does not name it", an_eviction, lambda p: p.then(HIGH, victims=()), Breach.VICTIM_IN_VAIN),
    ("its GPUs are not the target", an_eviction,
     lambda p: p.then(HIGH, promise=replace(p.next.jobs[HIGH].promise,  # type: ignore[type-var]  # it has one
                                            placement=placement(p.desired, {"gpu-003": 8, "gpu-004": 8}))),
     Breach.VICTIM_IN_VAIN),
    ("victim of a promise made before", an_eviction,
     lambda p: p.was(HIGH, state=JobState.PROMISED, promise=p.next.jobs[HIGH].promise, victims=(LOW,)),
     Breach.VICTIM_IN_VAIN),
    ("moves into what another leaves", lambda: with_neighbour(a_move()), lambda p: p, Breach.NOT_FREE_YET),
    ("moves are not allowed", a_move,
     lambda p: p.declared(lambda d: replace(d, scheduling=replace(d.scheduling, move_to_start="never"))), Breach.TOO_MANY_MOVES),
    ("moves for nobody, and nobody asked", a_move, lambda p: p.then(LOW, preemptor=None), Breach.TOO_MANY_MOVES),
    ("mover is above the job", a_move, lambda p: p.asked(LOW, priority_class=job(LOW, priority="high").priority_class)
     .declared(lambda d: replace(d, classes={**d.classes, ClassName("high"): priority("high", 1000)})), Breach.NO_RIGHT_TO_EVICT),
    ("mover is protected", a_move,
     lambda p: p.declared(lambda d: replace(d, scheduling=replace(d.scheduling, cooldown=Nanoseconds(HOUR))))
     .was(LOW, interruptions=(Instant(NOW - MINUTE),)), Breach.VICTIM_PROTECTED),
    ("mover makes room elsewhere", a_move,
     lambda p: p.then(HIGH, promise=replace(p.next.jobs[HIGH].promise,  # type: ignore[type-var]  # it has one
                                            placement=placement(p.desired, {"gpu-003": 8}, "node"))),
     Breach.VICTIM_IN_VAIN),
    ("shrinks for an equal", a_shrink, lambda p: p.asked(LOW, priority_class=job(LOW, priority="high").priority_class)
     .declared(lambda d: replace(d, classes={**d.classes, ClassName("high"): priority("high", 1000)})), Breach.NO_RIGHT_TO_EVICT),
    ("shrinks into another place", a_shrink, lambda p: instead(p, {"gpu-003": 8}), Breach.WRONG_SIZE),
    ("a failure nobody saw", a_failure, lambda p: p.said("gpu-003", OLD, 1, AttemptState.EXITED),
     Breach.WRONG_COUNT),
    ("a failure not counted", a_failure, lambda p: p.then(OLD, failures=0), Breach.WRONG_COUNT),
    ("a failure counted as a loss", a_failure, lambda p: p.then(OLD, failures=0, node_losses=1), Breach.WRONG_COUNT),
    ("a failure counted twice", a_failure, lambda p: p.then(OLD, failures=2), Breach.WRONG_COUNT),
    ("back-off cut short", a_start, lambda p: p.was(NEW, retry_at=Instant(NOW + 1)), Breach.BACK_OFF_CUT),
    ("victim starts first", a_handover,
     lambda p: p.then(HIGH, **fields(p.previous.jobs[HIGH])).then(
         LOW, **fields(starting(p.next.jobs[LOW], placement(p.desired, {"gpu-003": 8}), attempt=2))), Breach.VICTIM_FIRST),
)  # fmt: skip


def fields(record: JobRecord) -> dict[str, object]:
    return {name: getattr(record, name) for name in JobRecord.__slots__ if name != "job"}


@pytest.mark.parametrize(("pair", "mutate", "code"), [c[1:] for c in WRONG], ids=[c[0] for c in WRONG])
def test_each_wrong_decision_is_refused_for_what_is_wrong(
    pair: Callable[[], Pair], mutate: Callable[[Pair], Pair], code: Breach
) -> None:
    assert set(mutate(pair()).judged()) == {code}


def test_a_stop_never_turns_back() -> None:
    pair = an_eviction()
    back = replace(pair, previous=pair.next, next=following(pair.next, pair.previous.jobs[LOW]))
    assert back.judged() == [Breach.ILLEGAL_MOVE, Breach.WRONG_PHASE]


def test_every_breach_has_a_case() -> None:
    elsewhere = {  # in test_usage, test_lengths, test_hold, test_spares and test_backfill
        Breach.WRONG_USAGE, Breach.WRONG_RUN_LENGTHS, Breach.HOLD_BROKEN, Breach.HOLD_UNFOUNDED, Breach.WRONG_SPARES, Breach.RESERVATION_DELAYED,
    }  # fmt: skip
    elsewhere |= {Breach.NO_ACCOUNT, Breach.USER_LIMIT}  # in test_requested
    elsewhere |= {Breach.TOO_MANY_TASKS, Breach.TASK_OUT_OF_TURN, Breach.ENDED_WITHOUT_CAUSE}  # in test_arrays
    assert {case[3] for case in WRONG} == set(Breach) - elsewhere


def overlapping(pair: Pair) -> Pair:
    """Two records that share GPUs were committed before; this decision touches neither."""
    desired = with_jobs(pair.desired, job(LOW))
    twin = running(desired, LOW, {"gpu-003": 8})
    before, after = ({**a.jobs, LOW: twin} for a in (pair.previous, pair.next))
    return replace(
        pair, desired=desired, previous=replace(pair.previous, jobs=before), next=replace(pair.next, jobs=after)
    )


FINE: tuple[tuple[str, Callable[[], Pair], Callable[[Pair], Pair]], ...] = (
    ("ceiling cut below use", a_run, lambda p: ceiling(p, "nlp", 1)),
    ("ceiling cut under a promise that is kept", a_handover, lambda p: ceiling(p, "nlp", 1)),
    ("node of a running job cordoned", a_run, lambda p: p.declared(lambda d: with_node(d, "gpu-003", cordoned="fan"))),
    ("node of a running job tainted", a_run,
     lambda p: p.declared(lambda d: with_node(d, "gpu-003", taints=(taint("ci"),)))),
    ("required level raised under a running job", a_run,
     lambda p: p.asked(NEW, required=job(NEW, required={"job": "node"}).required)),
    ("GPU of a running job failed", a_run, lambda p: p.declared(lambda d: with_node(d, "gpu-003", failed=1))),
    ("taint that does not forbid", a_start,
     lambda p: p.declared(lambda d: with_node(d, "gpu-001", taints=(taint("old", "PreferNoSchedule"),)))),
    ("taint tolerated", a_start,
     lambda p: p.asked(NEW, tolerations=("ci",)).declared(lambda d: with_node(d, "gpu-001", taints=(taint("ci"),)))),
    ("maintenance after its end", a_start,
     lambda p: p.asked(NEW, time_limit=Nanoseconds(HOUR)).declared(
         lambda d: replace(d, windows=(window("gpu-002", 2 * 3600, 5 * 3600),)))),
    ("maintenance that is over", a_start,
     lambda p: p.declared(lambda d: replace(d, windows=(window("gpu-002", 0, 3600),)))),
    ("promise kept while admissions are frozen", a_handover,
     lambda p: p.declared(lambda d: replace(d, blocked="cluster.yaml"))),
    ("cancelled, come back and succeeded", a_run,
     lambda p: replace(
         q := tomb(p, Outcome.CANCELLED),
         next=replace(q.next, tombstones=buried({NEW: (replace(q.next.tombstones[NEW][0], outcome=Outcome.SUCCEEDED),)})))),
    ("cancelled incarnation comes back", a_start, lambda p: tomb(p, Outcome.CANCELLED)),
    ("node lost, lease over", a_handover,
     lambda p: p.seen("gpu-001", attempts=(), condition=NodeCondition.LOST, lease_expired=True).then(
         HIGH, **fields(p.previous.jobs[HIGH]))),
    ("node lost, confirmed dead", a_handover,
     lambda p: p.was(LOW, fence=Fence.CONFIRM).seen("gpu-001", attempts=(), condition=NodeCondition.LOST, confirmed_dead=True)
     .then(HIGH, **fields(p.previous.jobs[HIGH]))),
    ("quota freed by a victim elsewhere", an_eviction,
     lambda p: ceiling(p, "nlp", 16).then(
         HIGH, promise=replace(p.next.jobs[HIGH].promise,  # type: ignore[type-var]  # it has one
                               placement=placement(p.desired, {"gpu-003": 8, "gpu-004": 8})))),
    ("GPUs given twice long ago", a_start, overlapping),
    ("borrows when the cooldown is over", a_start, lambda p: gave_back(guaranteed(p, "nlp", 23), NEW, ago=60)),
    ("all that is guaranteed after a reclaim", a_start, lambda p: gave_back(guaranteed(p, "nlp", 24), NEW)),
    ("another borrows beside what was reclaimed", lambda: with_another(a_start()),
     lambda p: gave_back(guaranteed(p, "nlp", 24), NEW)),
    ("a promise that fell was decided anew beside what was reclaimed", lambda: with_another(a_start()),
     lambda p: gave_back(guaranteed(was_promised(p, "gpu-002"), "nlp", 24), NEW)),
    ("two within the guarantee after a reclaim", lambda: with_another(a_start()),
     lambda p: gave_back(guaranteed(p, "nlp", 32), NEW, LOW)),
)  # fmt: skip


@pytest.mark.parametrize(("pair", "mutate"), [c[1:] for c in FINE], ids=[c[0] for c in FINE])
def test_what_is_inherited_or_allowed_passes(pair: Callable[[], Pair], mutate: Callable[[Pair], Pair]) -> None:
    assert mutate(pair()).judged() == []


def test_a_lease_fences_only_attempts_that_were_started_with_one() -> None:
    pair = a_handover().seen("gpu-001", attempts=(), condition=NodeCondition.LOST, lease_expired=True)
    confirm = pair.was(LOW, fence=Fence.CONFIRM)
    assert confirm.desired.jobs[LOW].restart.fence is Fence.LEASE
    still_promised = confirm.then(HIGH, **fields(confirm.previous.jobs[HIGH]))
    assert still_promised.judged() == [Breach.NOT_RELEASED]


def test_a_dimension_that_strides_over_nodes_is_grouped_by_its_stride() -> None:
    # tensor varies fastest: ranks 0-3 are tensor group 0, and pipeline group 0 is ranks 0, 4, 8, 12
    asked = job(NEW, 16, dims={"tensor": 4, "pipeline": 4}, required={"pipeline": "node"})
    desired = world(jobs=[asked])
    previous = allocation(desired, pending(desired, NEW))
    by_pipeline = placement(desired, {"gpu-001": 8, "gpu-002": 8}, "rack")
    ranks = [by_pipeline.ranks[8 * (rank % 4 // 2) + rank % 4 % 2 + rank // 4 * 2] for rank in range(16)]
    seen: dict[NodeName, int] = {}
    fixed = []
    for rank, place in enumerate(ranks):
        seen[place.node] = seen.get(place.node, -1) + 1
        fixed.append(replace(place, rank=rank, local_rank=seen[place.node]))
    good = following(previous, starting(previous.jobs[NEW], replace(by_pipeline, ranks=tuple(fixed))))
    bad = following(previous, starting(previous.jobs[NEW], by_pipeline))
    judged = [
        Pair(desired=desired, observed=ready(desired), previous=previous, next=one).judged() for one in (good, bad)
    ]
    assert judged == [[], [Breach.LEVEL_BROKEN]]


def test_a_violation_reads_as_code_job_and_detail() -> None:
    pair = a_start().declared(lambda d: with_node(d, "gpu-002", cordoned="fan"))
    found = violations(pair.desired, pair.observed, pair.previous, pair.next)
    assert "NodeUnfit: nlp/new: gpu-002: cordoned" in [str(one) for one in found]
