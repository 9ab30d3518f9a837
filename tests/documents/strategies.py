"""Model values of every shape, for round trips: names as the schema allows them, numbers as large as they get."""

from __future__ import annotations

import string
from dataclasses import replace

from hypothesis import strategies as st

from reconciler.documents.record import Summary
from reconciler.model.allocation import (
    Allocation,
    Avoid,
    Hold,
    JobRecord,
    Metrics,
    Placement,
    Promise,
    RankPlace,
    RunLengths,
    Spare,
    Usage,
)
from reconciler.model.decision import Difference
from reconciler.model.job import Fence
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.observed import (
    AttemptReport,
    AttemptState,
    GpuReport,
    JobObservation,
    NicReport,
    NodeCondition,
    NodeObservation,
    Observed,
    Person,
    Proof,
    Provenance,
    Shown,
)
from reconciler.model.reasons import Reason, ReasonCode
from reconciler.model.request import Ask, Refusal, Request, Standing
from reconciler.model.tombstones import Tombstone, buried
from reconciler.model.units import (
    CommitId,
    Digest,
    GpuSeconds,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    Nanoseconds,
    NodeName,
    QueueName,
    job_key,
    task_key,
)

names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=4) | st.sampled_from(
    ["no", "null", "0x1", "1e3", "010", "a-b", "a", "a-0", "true"]
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "no", "1:30", "x: y", "#"]
)
numbers = st.integers(0, 10**30)
small = st.integers(0, 40)
queues = names.map(QueueName)
nodes = names.map(NodeName)
instants = st.integers(0, 4 * 10**18).map(Instant)
spans_of_time = st.integers(0, 10**17).map(Nanoseconds)
digests = st.text("0123456789abcdef", min_size=64, max_size=64).map(Digest)
commits = st.text("0123456789abcdef", min_size=40, max_size=40).map(CommitId)
jobs = st.builds(job_key, names, names)
tasks = st.builds(
    task_key, st.sampled_from(["a/sweep", "a/sweep-2", "no/1e3"]).map(JobKey), st.integers(0, 9999) | st.integers(0, 3)
)
job_keys = jobs | tasks | st.sampled_from(["a/sweep", "no/1e3"]).map(JobKey)


def some(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Ranks in order, on nodes and GPUs in any order at all: runs, holes, several runs a node."""
    size = draw(st.integers(1, 12))
    at = draw(st.lists(st.sampled_from(["gpu-001", "gpu-002", "gpu-010"]), min_size=size, max_size=size))
    places = tuple(
        RankPlace(
            rank=rank,
            node=NodeName(node),
            local_rank=draw(small) if draw(st.booleans()) else at[:rank].count(node),
            gpu=draw(small),
            numa=draw(st.integers(-1, 3)),
            nic=draw(st.sampled_from(["", "mlx5_0", "mlx5_10", "no"])),
            rail=draw(st.integers(-1, 8)),
        )
        for rank, node in enumerate(at)
    )
    return Placement(
        ranks=places,
        level=LevelName(draw(names)),
        domain=draw(names),
        comm_time=draw(spans_of_time),
        comm_bound=draw(spans_of_time),
    )


reasons = st.builds(
    Reason,
    code=st.sampled_from(ReasonCode),
    numbers=st.dictionaries(
        st.sampled_from(["need", "free", "level", "best", "wouldBe"]), st.integers(-(10**30), 10**30) | texts
    ).map(lambda found: tuple(found.items())),
)
promises = st.builds(
    Promise,
    placement=placements(),
    made=instants,
    deadline=instants,
    waiting_for=st.lists(job_keys, max_size=3).map(tuple),
)


holds = st.builds(Hold, placement=placements(), since=instants)


def records(key: st.SearchStrategy[JobKey] = job_keys) -> st.SearchStrategy[JobRecord]:
    """A record of any kind, every field set to something now and then."""
    return st.builds(
        JobRecord,
        job=key,
        queue=queues,
        digest=digests,
        state=st.sampled_from(JobState),
        since=instants,
        submitted=instants,
        reason=reasons,
        attempt=small,
        first_attempt=small,
        phase=some(st.sampled_from(Phase)),
        cause=some(st.sampled_from(Cause)),
        outcome=some(st.sampled_from(Outcome)),
        placement=some(placements()),
        promise=some(promises),
        started=some(instants),
        deadline=some(instants),
        retry_at=some(instants),
        ports=st.lists(st.integers(1, 65535), max_size=3).map(tuple),
        victims=st.lists(job_keys, max_size=3).map(tuple),
        preemptor=some(job_keys),
        lost_work=numbers.map(GpuSeconds),
        failures=small,
        failed_starts=small,
        node_losses=small,
        reclaimed=some(instants),
        interruptions=st.lists(instants, max_size=3).map(tuple),
        avoid=st.lists(st.builds(Avoid, node=nodes, until=instants), max_size=2).map(tuple),
        fence=st.sampled_from(Fence),
        grace=spans_of_time,
        hold=some(holds),
        whole=some(placements()),
        spares=st.lists(st.builds(Spare, node=nodes, mask=st.integers(1, 255)), max_size=2).map(tuple),
    )


persons = st.builds(Person, user=texts, email=texts, login=texts, teams=st.lists(texts, max_size=2).map(tuple))


def tombstones(key: JobKey) -> st.SearchStrategy[tuple[Tombstone, ...]]:
    """At least one finished incarnation of a job."""
    stone = st.builds(
        Tombstone,
        job=st.just(key),
        digest=digests,
        outcome=st.sampled_from(Outcome),
        at=instants,
        attempts=small,
        submitter=some(persons),
        vouched=st.sampled_from(Proof),
    )
    return st.lists(stone, min_size=1, max_size=3).map(tuple)


metrics = st.builds(
    Metrics,
    declared=numbers,
    capacity=numbers,
    held=numbers,
    promised=numbers,
    idle=numbers,
    stranded=numbers,
    phi_whole=numbers,
    jobs=st.lists(st.tuples(names, small), max_size=3).map(tuple),
    idle_by_type=st.lists(st.tuples(names, small), max_size=3).map(tuple),
)
summaries = st.builds(
    Summary,
    generation=numbers,
    epoch=small,
    cluster_id=names,
    decision_id=digests,
    decided_at=instants,
    decision_version=small,
    package_version=st.sampled_from(["0.1", "1.10.0", "1e3"]),
    desired_commit=commits,
    inputs_digest=digests,
    previous_commit=st.just("") | commits,
    trigger=names,
    metrics=metrics,
    usage=st.lists(
        st.builds(Usage, queue=queues, gpu_type=names.map(GpuType), acc=numbers, rate=numbers), max_size=3
    ).map(tuple),
    usage_as_of=instants,
    moved=st.lists(instants, max_size=3).map(tuple),
    run_lengths=st.lists(
        st.builds(RunLengths, queue=queues, sixteenths=st.lists(small, max_size=16).map(tuple)), max_size=2
    ).map(tuple),
    previews=st.lists(digests, max_size=2).map(tuple),
    differs=st.lists(
        st.builds(
            Difference,
            job=job_keys,
            preview=st.just("") | digests,
            unseen=st.lists(job_keys, max_size=2).map(tuple),
            lost=numbers.map(GpuSeconds),
            lost_shown=numbers.map(GpuSeconds),
        ),
        max_size=2,
    ).map(tuple),
)


@st.composite
def allocations(draw: st.DrawFn, summary: Summary | None = None) -> Allocation:
    """Jobs by key in order; with a summary, that summary's allocation."""
    said = summary or draw(summaries)
    keys = sorted(draw(st.sets(job_keys, max_size=5)))
    gone = sorted(draw(st.sets(job_keys, max_size=3)))
    return Allocation(
        generation=said.generation,
        epoch=said.epoch,
        cluster_id=said.cluster_id,
        decided_at=said.decided_at,
        desired_commit=said.desired_commit,
        jobs={key: draw(records(st.just(key))) for key in keys},
        tombstones=buried({key: draw(tombstones(key)) for key in gone}),
        metrics=said.metrics,
        usage=said.usage,
        usage_as_of=said.usage_as_of,
        moved=said.moved,
        run_lengths=said.run_lengths,
    )


attempts = st.builds(
    AttemptReport,
    job=job_keys,
    attempt=small,
    state=st.sampled_from(AttemptState),
    at=instants,
    generation=numbers,
    exit_code=some(st.integers(-64, 255)),
    reason=texts,
)
gpus = st.builds(
    GpuReport,
    index=small,
    uuid=texts,
    healthy=st.booleans(),
    foreign=texts,
    reason=texts,
    memory=numbers,
    nvlinks=st.integers(-1, 18),
    pcie_speed=numbers,
    pcie_fastest=numbers,
    xids=st.lists(small, max_size=3).map(tuple),
    recovery=texts,
    throttled=texts,
    rows_pending=st.booleans(),
)
nics = st.builds(NicReport, name=texts, up=st.booleans(), speed=numbers, pcie_speed=numbers, pcie_fastest=numbers)


def observations(node: NodeName) -> st.SearchStrategy[NodeObservation]:
    """One node, seen in any way."""
    return st.builds(
        NodeObservation,
        node=st.just(node),
        boot_id=texts,
        address=texts,
        condition=st.sampled_from(NodeCondition),
        condition_since=instants,
        gpu_type=texts,
        gpus=st.lists(gpus, max_size=3).map(tuple),
        nics=st.lists(nics, max_size=2).map(tuple),
        attempts=st.lists(attempts, max_size=3).map(tuple),
        unhealthy=texts,
        lease_expired=st.booleans(),
        confirmed_dead=st.booleans(),
        refused=texts,
    )


brought = st.builds(
    Provenance,
    job=job_keys,
    digest=digests.map(Digest),
    file=commits,
    commit=commits,
    author=persons,
    pull_request=texts,
    approvers=st.lists(persons, max_size=2).map(tuple),
    proven=st.sampled_from(Proof),
    submitter=some(persons),
    vouched=st.sampled_from(Proof),
    preview=some(
        st.builds(
            Shown,
            digest=digests,
            generation=small,
            state=commits,
            victims=st.lists(job_keys, max_size=2).map(tuple),
            lost=numbers.map(GpuSeconds),
        )
    ),
)


requests = st.builds(
    Request,
    id=names,
    commit=commits,
    ask=some(st.sampled_from(Ask)),
    standing=st.sampled_from(Standing),
    seen=instants,
    job=st.just(JobKey("")) | job_keys,
    tasks=st.sampled_from(["", "3,7-9"]),
    nodes=st.lists(nodes, max_size=2).map(tuple),
    queue=st.just(QueueName("")) | queues,
    reason=texts,
    expires=instants,
    by=texts,
    email=texts,
    refusal=some(st.sampled_from(Refusal)),
    told=texts,
    ended=instants,
    content=texts,
    signed=texts,
)


@st.composite
def observed(draw: st.DrawFn) -> Observed:
    """Nodes and jobs by name, in order."""
    seen = sorted(draw(st.sets(nodes, max_size=4)))
    keys = sorted(draw(st.sets(job_keys, max_size=3)))
    progress = st.builds(
        JobObservation, job=job_keys, attempt=small, checkpoint=some(instants), idle_since=some(instants)
    )
    return Observed(
        nodes={node: draw(observations(node)) for node in seen},
        jobs={key: replace(draw(progress), job=key) for key in keys},
        provenance={key: replace(draw(brought), job=key) for key in keys},
        requests={name: replace(draw(requests), id=name) for name in sorted(draw(st.sets(names, max_size=2)))},
    )
