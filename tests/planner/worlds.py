"""Small clusters for planner tests: builders that read like a sentence, and a simulated cluster that obeys orders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reconciler.model.allocation import Allocation, JobRecord, Placement, RankPlace, empty_allocation
from reconciler.model.desired import AgentRules, Desired, RepositoryRules, Window
from reconciler.model.inventory import GpuSlot, Inventory, Level, Node, NodeShape, NumaNode, Taint
from reconciler.model.job import Checkpoint, Dimension, Fence, Job, Launch, Locality, OnPreempt, Restart, Role, Run
from reconciler.model.lifecycle import JobState, Phase
from reconciler.model.observed import (
    AttemptReport,
    AttemptState,
    GpuReport,
    JobObservation,
    NodeCondition,
    NodeObservation,
    Observed,
)
from reconciler.model.queue import PriorityClass, Queue, QuotaTree, Scheduling
from reconciler.model.reasons import ReasonCode, reason, sentence
from reconciler.model.units import (
    MINUTE,
    SECOND,
    BitsPerSecond,
    Bytes,
    ClassName,
    CommitId,
    Digest,
    DomainName,
    Gpus,
    GpuType,
    Instant,
    JobKey,
    LevelName,
    Nanoseconds,
    NodeName,
    QueueName,
)
from reconciler.planner.verify import violations

H100 = "H100"
START = Instant(1_700_000_000 * SECOND)
GBPS = 8 * 10**9
LEASE = Nanoseconds(5 * SECOND)

Spines = Mapping[str, Mapping[str, Sequence[str]]]
TWO_RACKS: Spines = {"sg0": {"r01": ["gpu-001", "gpu-002"], "r02": ["gpu-003", "gpu-004"]}}


# --- what is desired ---


def shape(gpus: int = 8, gpu_type: str = H100, nvlink: Sequence[int] = (), cpus: int = 128) -> NodeShape:
    """A node: two NUMA nodes, one NIC and rail a GPU, one NVLink island unless masks are given."""
    half = max(1, (gpus + 1) // 2)
    slots = tuple(GpuSlot(index=i, numa=i // half, nic=f"mlx5_{i}", rail=i) for i in range(gpus))
    numa = tuple(
        NumaNode(id=i, cpus=f"{i * cpus // 2}-{(i + 1) * cpus // 2 - 1}", cpu_count=cpus // 2, memory=Bytes(2**40))
        for i in range(2)
    )
    return NodeShape(
        profile=f"{gpu_type}x{gpus}", gpu_type=GpuType(gpu_type), gpu_memory=Bytes(80 * 2**30), gpus=slots,
        nvlink=tuple(nvlink) or ((1 << gpus) - 1,), numa=numa,
    )  # fmt: skip


def inventory(spines: Spines = TWO_RACKS, gpus: int = 8, *, of: NodeShape | None = None) -> Inventory:
    """All nodes of one shape at their racks; levels nvlinkDomain, node, rack, spineGroup, cluster."""
    made = of or shape(gpus)
    nodes = [
        Node(name=NodeName(name), shape=made, path=(DomainName(spine), DomainName(rack)), labels={})
        for spine, racks in spines.items()
        for rack, names in racks.items()
        for name in names
    ]
    rows = (("nvlinkDomain", 700, 450), ("node", 1200, 64), ("rack", 3000, 50), ("spineGroup", 5000, 50),
            ("cluster", 8000, 50))  # fmt: skip
    levels = tuple(
        Level(name=LevelName(name), latency=Nanoseconds(latency), bandwidth=BitsPerSecond(speed * GBPS))
        for name, latency, speed in rows
    )
    return Inventory(levels=levels, nodes=tuple(sorted(nodes, key=lambda node: node.name)))


def priority(name: str, value: int, *, preempts: bool = True, preemptible: bool = True) -> PriorityClass:
    return PriorityClass(name=ClassName(name), value=value, preempts_lower=preempts, preemptible=preemptible)


CLASSES = (priority("high", 1000, preemptible=False), priority("low", 100, preempts=False), priority("normal", 500))


def queue(name: str, parent: str | None = "root", ceiling: int | None = None) -> Queue:
    limit = {} if ceiling is None else {GpuType(H100): Gpus(ceiling)}
    above = None if parent is None else QueueName(parent)
    return Queue(name=QueueName(name), parent=above, guaranteed={}, ceiling=limit)


QUEUES = (queue("nlp"), queue("root", None), queue("vision"))


def world(
    spines: Spines = TWO_RACKS,
    gpus: int = 8,
    jobs: Iterable[Job] = (),
    *,
    of: NodeShape | None = None,
    queues: Sequence[Queue] = QUEUES,
    classes: Sequence[PriorityClass] = CLASSES,
    windows: Sequence[Window] = (),
    rules: Scheduling | None = None,
) -> Desired:
    """A desired state; by default no cooldown and priority order, so that a test says all it depends on."""
    chosen = rules or Scheduling(order="priorityThenAge", cooldown=Nanoseconds(0), backfill="none")
    return Desired(
        commit=CommitId("c" * 40), cluster="test", scheduling=chosen,
        agents=AgentRules(lost_after=Nanoseconds(60 * SECOND)), repository=RepositoryRules(),
        inventory=inventory(spines, gpus, of=of), quotas=QuotaTree(queues={q.name: q for q in sorted(queues, key=lambda q: q.name)}),
        classes={c.name: c for c in classes},
        jobs={one.key: one for one in sorted(jobs, key=lambda one: one.key)}, windows=tuple(windows),
    )  # fmt: skip


def job(
    key: str,
    gpus: int = 8,
    priority: str = "normal",  # noqa: A002, RUF100 (the word a job's file uses)
    *,
    dims: Mapping[str, int] | None = None,
    required: Mapping[str, str] | None = None,
    preferred: Mapping[str, str] | None = None,
    checkpoint: int | None = None,
    limit: int | None = None,
    version: int = 1,
    fence: Fence = Fence.LEASE,
    restarts: int = 0,
    roles: Sequence[tuple[str, int, int]] = (),
    on_preempt: OnPreempt = OnPreempt.REQUEUE,
) -> Job:
    """A job of `queue/name`. `checkpoint` is its grace and `limit` its time limit, in seconds."""
    home, _, name = key.partition("/")
    saved = None if checkpoint is None else Checkpoint(
        directory="/ckpt", every=Nanoseconds(30 * MINUTE), signal="USR1", signal_to="all",
        grace=Nanoseconds(checkpoint * SECOND), marker="latest",
    )  # fmt: skip
    return Job(
        queue=QueueName(home), name=name, digest=Digest(f"{version}/{gpus}/{sorted((dims or {}).items())}"), gpus=Gpus(gpus),
        gpu_types=(GpuType(H100),),
        dimensions=tuple(Dimension(name=n, size=s) for n, s in (dims or {"data": gpus}).items()),
        required=localities(required), preferred=localities(preferred), priority_class=ClassName(priority),
        run=Run(runtime="process", launch=Launch.PER_GPU, command=("train",)),
        restart=Restart(on_failure=restarts, backoff=Nanoseconds(10 * SECOND), on_node_loss=-1, fence=fence,
                        lease=LEASE),
        on_preempt=OnPreempt.CHECKPOINT if saved else on_preempt, checkpoint=saved,
        time_limit=None if limit is None else Nanoseconds(limit * SECOND),
        roles=tuple(Role(name=n, workers=w, gpus_each=Gpus(g)) for n, w, g in roles),
    )  # fmt: skip


def localities(levels: Mapping[str, str] | None) -> tuple[Locality, ...]:
    return tuple(Locality(group=group, level=LevelName(level)) for group, level in (levels or {}).items())


def with_node(desired: Desired, name: str, **changes: object) -> Desired:
    """The same world with one node declared otherwise (cordoned, taints, failed, labels ...)."""
    nodes = tuple(replace(n, **changes) if n.name == name else n for n in desired.inventory.nodes)  # type: ignore[arg-type]  # fields by name
    return replace(desired, inventory=replace(desired.inventory, nodes=nodes))


def with_jobs(desired: Desired, *changed: Job, without: Iterable[str] = ()) -> Desired:
    """The same world with these jobs added or replaced, and those gone."""
    jobs = {**desired.jobs, **{one.key: one for one in changed}}
    return replace(desired, jobs={key: jobs[key] for key in sorted(jobs.keys() - set(without))})


def taint(key: str, effect: str = "NoSchedule") -> Taint:
    return Taint(key=key, value="yes", effect=effect)


def window(node: str, begins: int, ends: int) -> Window:
    """Maintenance, in seconds after START."""
    at = (Instant(START + begins * SECOND), Instant(START + ends * SECOND))
    return Window(name="works", node=NodeName(node), begins=at[0], ends=at[1], drain="checkpoint")


# --- what is allocated ---


def placement(desired: Desired, gpus: Mapping[str, int | Sequence[int]], level: str = "cluster") -> Placement:
    """Ranks in the order given: so many of a node's first GPUs, or exactly these."""
    ranks: list[RankPlace] = []
    for name, chosen in gpus.items():
        slots = next(n for n in desired.inventory.nodes if n.name == name).shape.gpus
        for local, index in enumerate(range(chosen) if isinstance(chosen, int) else chosen):
            slot = slots[index]
            ranks.append(
                RankPlace(rank=len(ranks), node=NodeName(name), local_rank=local, gpu=index, numa=slot.numa,
                          nic=slot.nic, rail=slot.rail)
            )  # fmt: skip
    return Placement(ranks=tuple(ranks), level=LevelName(level), domain=level)


def pending(desired: Desired, key: str, at: Instant = START) -> JobRecord:
    """A job that waits, first seen at `at`."""
    asked = desired.jobs[JobKey(key)]
    return JobRecord(
        job=asked.key, queue=asked.queue, digest=asked.digest, state=JobState.PENDING, since=at, submitted=at,
        reason=reason(ReasonCode.CAPACITY, need=asked.gpus, free=0, evictable=0, releasing=0),
    )  # fmt: skip


def running(
    desired: Desired,
    key: str,
    gpus: Mapping[str, int | Sequence[int]],
    *,
    started: Instant = START,
    attempt: int = 1,
    level: str = "cluster",
) -> JobRecord:
    """A job whose ranks were all seen started."""
    return replace(
        pending(desired, key), state=JobState.RUNNING, phase=Phase.RUN, attempt=attempt, started=started,
        fence=desired.jobs[JobKey(key)].restart.fence, grace=desired.jobs[JobKey(key)].grace,
        placement=placement(desired, gpus, level), reason=reason(ReasonCode.RUNNING, ranks=desired.jobs[JobKey(key)].gpus),
    )  # fmt: skip


def allocation(desired: Desired, *records: JobRecord, at: Instant = START, generation: int = 7) -> Allocation:
    made = empty_allocation("test", 1, at, desired.commit)
    jobs = {record.job: record for record in sorted(records, key=lambda record: record.job)}
    return replace(made, generation=generation, jobs=jobs)


# --- what is observed ---

_SEEN = {
    Phase.PREPARE: AttemptState.PREPARED,
    Phase.RUN: AttemptState.RUNNING,
    Phase.CHECKPOINT: AttemptState.STOPPING,
    Phase.STOP: AttemptState.STOPPING,
}


def ready(desired: Desired, *records: JobRecord, at: Instant = START) -> Observed:
    """Every node healthy, reporting for each of these jobs what its phase asks for (a stop: still stopping)."""
    reports: dict[NodeName, list[AttemptReport]] = {}
    for record in records:
        for node in record.placement.nodes if record.placement and record.phase else ():
            state = _SEEN[record.phase] if record.phase else AttemptState.GONE
            reports.setdefault(node, []).append(
                AttemptReport(job=record.job, attempt=record.attempt, state=state, at=at)
            )
    nodes = {
        node.name: NodeObservation(
            node=node.name, boot_id="b0", address="127.0.1.1", condition=NodeCondition.READY, condition_since=at,
            gpu_type=node.shape.gpu_type, attempts=tuple(reports.get(node.name, ())),
            gpus=tuple(GpuReport(index=slot.index, uuid=f"GPU-{node.name}-{slot.index}") for slot in node.shape.gpus),
        )
        for node in desired.inventory.nodes
    }  # fmt: skip
    return Observed(nodes=nodes)


def said(
    observed: Observed, node: str, job: str, attempt: int, state: AttemptState, code: int | None = None
) -> Observed:
    """The same observation, except for what one node says of one attempt."""
    seen = observed.nodes[NodeName(node)]
    report = AttemptReport(job=JobKey(job), attempt=attempt, state=state, at=START, exit_code=code)
    others = tuple(a for a in seen.attempts if (a.job, a.attempt) != (job, attempt))
    return saw(observed, node, attempts=(*others, report))


def saw(observed: Observed, node: str, **changes: object) -> Observed:
    """The same observation, except for these facts of one node."""
    seen = replace(observed.nodes[NodeName(node)], **changes)  # type: ignore[arg-type]  # fields by name
    return replace(observed, nodes={**observed.nodes, NodeName(node): seen})


# --- a cluster that obeys ---


@dataclass(slots=True)
class Process:
    """What really goes on for one attempt on one node: the truth that reports only tell of."""

    gpus: int
    state: AttemptState
    code: int | None = None
    lease: int | None = None

    @property
    def alive(self) -> bool:
        return not self.state.released


@dataclass(slots=True)
class SimulatedNode:
    """A perfect agent, with knobs. `silent_since`: cut off or off; `refuses`, `hangs`: what it does with orders."""

    name: NodeName
    boot: int = 0
    off: bool = False
    silent_since: Instant | None = None
    refuses: bool = False
    hangs: bool = False
    confirmed_dead: bool = False
    last_said: NodeObservation | None = None
    attempts: dict[tuple[JobKey, int], Process] = field(default_factory=dict)


class Cluster:
    """Desired, simulated nodes and a committed allocation. `step` decides, judges, commits and lets the nodes obey."""

    def __init__(self, desired: Desired, at: Instant = START) -> None:
        self.desired, self.now = desired, at
        self.allocation = empty_allocation("test", 1, at, desired.commit)
        self.checkpoints: dict[JobKey, JobObservation] = {}
        self.nodes = {node.name: SimulatedNode(name=node.name) for node in desired.inventory.nodes}

    # what happens

    def die(self, node: str) -> None:
        """Power off: all processes end, and nobody says so."""
        at = self.nodes[NodeName(node)]
        at.off, at.silent_since, at.attempts = True, at.silent_since or self.now, {}

    def cut(self, node: str) -> None:
        """The link goes down; processes live on until their lease ends."""
        at = self.nodes[NodeName(node)]
        at.silent_since = at.silent_since or self.now

    def back(self, node: str) -> None:
        """Reachable again; after a power-off with a new boot, on which no old attempt lives."""
        at = self.nodes[NodeName(node)]
        if at.off:
            at.boot += 1
            known = at.last_said.attempts if at.last_said else ()
            at.attempts = {(a.job, a.attempt): Process(gpus=0, state=AttemptState.GONE) for a in known}
            self._forgotten_orders(at)
        at.off, at.silent_since, at.confirmed_dead = False, None, False

    def end(self, job: str, code: int = 0) -> None:
        """All running ranks of the job exit."""
        for at in self.nodes.values():
            for (key, _), process in at.attempts.items():
                if key == job and process.state is AttemptState.RUNNING:
                    process.state, process.code = AttemptState.EXITED, code

    def saves(self, job: str) -> None:
        """The job writes a checkpoint now."""
        record = self.allocation.jobs[JobKey(job)]
        self.checkpoints[record.job] = JobObservation(job=record.job, attempt=record.attempt, checkpoint=self.now)

    # a round

    def observe(self) -> Observed:
        """What the shell would make of the nodes' reports now."""
        return Observed(nodes={name: self._seen(at) for name, at in self.nodes.items()}, jobs=dict(self.checkpoints))

    def step(self, seconds: int = 0) -> bool:
        """One round `seconds` later; True when it changed the allocation. Every invariant is checked."""
        from reconciler.planner.decide import decide

        self.now = Instant(self.now + seconds * SECOND)
        self._expire_leases()
        observed = self.observe()
        decision = decide(self.desired, observed, self.allocation, self.now)
        found = violations(self.desired, observed, self.allocation, decision.allocation)
        assert not found, "\n".join([*map(str, found), self.show(), "-- would become", self.show(decision.allocation)])
        if decision.changed:
            self.allocation = decision.allocation
        self._obey()
        return decision.changed

    def settle(self, seconds: int = 1, rounds: int = 40) -> None:
        """Rounds until two in a row change nothing: after the first, nodes may still do what they were told."""
        quiet = 0
        for _ in range(rounds):
            quiet = 0 if self.step(seconds) else quiet + 1
            if quiet == 2:
                return
        raise AssertionError(f"no rest after {rounds} rounds\n{self.show()}")

    def state(self, job: str) -> JobState:
        return self.allocation.jobs[JobKey(job)].state

    def places(self, job: str) -> dict[str, int]:
        """GPUs held by node."""
        record = self.allocation.jobs[JobKey(job)]
        held = record.placement.masks if record.placement and record.state.holds_gpus else {}
        return {str(node): mask.bit_count() for node, mask in held.items()}

    def show(self, of: Allocation | None = None) -> str:
        """The cluster, small: a letter a GPU (lower case: promised), then a line a job."""
        at = of or self.allocation
        letters = {key: chr(ord("A") + index % 26) for index, key in enumerate(at.jobs)}
        lines = [f"generation {at.generation}, {(self.now - START) // SECOND} s"]
        for node in self.desired.inventory.nodes:
            row = ["."] * len(node.shape.gpus)
            for record in at.jobs.values():
                for place, letter in ((record.promise and record.promise.placement, letters[record.job].lower()),
                                      (record.state.holds_gpus and record.placement, letters[record.job])):  # fmt: skip
                    for rank in place.ranks if place else ():
                        if rank.node == node.name:
                            row[rank.gpu] = letter
            sim = self.nodes.get(node.name)
            notes = f"{node.cordoned and ' cordoned'}{' silent' if sim and sim.silent_since is not None else ''}"
            lines.append(f"  {'/'.join(node.path)}/{node.name} {''.join(row)}{notes}")
        lines += [
            f"  {letters[r.job]} {r.job} {r.state} {r.phase or ''} #{r.attempt} {r.cause or ''} {sentence(r.reason)}"
            for r in at.jobs.values()
        ]
        return "\n".join(lines)

    # inside a node

    def _seen(self, at: SimulatedNode) -> NodeObservation:
        silence = 0 if at.silent_since is None else self.now - at.silent_since
        rules = self.desired.agents
        lost, unreachable = silence >= rules.lost_after, silence >= rules.unreachable_after
        condition = NodeCondition.LOST if lost else NodeCondition.UNREACHABLE if unreachable else NodeCondition.READY
        if at.silent_since is not None and at.last_said is not None:
            lease = max((process.lease or 0 for process in at.attempts.values()), default=LEASE)
            expired = silence >= lease + rules.lease_margin
            return replace(at.last_said, condition=condition, lease_expired=expired, confirmed_dead=at.confirmed_dead)
        node = next((n for n in self.desired.inventory.nodes if n.name == at.name), None)
        at.last_said = NodeObservation(
            node=at.name, boot_id=f"b{at.boot}", address="127.0.1.1", condition=condition, condition_since=self.now,
            gpu_type=node.shape.gpu_type if node else "",
            gpus=tuple(GpuReport(index=s.index, uuid=f"{at.name}-{s.index}") for s in node.shape.gpus) if node else (),
            attempts=tuple(
                AttemptReport(job=job, attempt=attempt, state=process.state, at=self.now, exit_code=process.code)
                for (job, attempt), process in sorted(at.attempts.items())
            ),
        )  # fmt: skip
        return at.last_said

    def _expire_leases(self) -> None:
        for at in self.nodes.values():
            for process in at.attempts.values():
                if at.silent_since is None or process.lease is None or not process.alive:
                    continue
                if self.now - at.silent_since >= process.lease:
                    process.state = AttemptState.GONE

    def _obey(self) -> None:
        """Each node that hears gets its orders: the phase of every gang that holds GPUs on it."""
        for at in self.nodes.values():
            if at.silent_since is None:
                orders = self._orders(at)
                for record in orders.values():
                    self._follow(at, record)
                for key in [key for key in at.attempts if key not in orders]:
                    assert not at.attempts[key].alive, f"{key} was let go of alive on {at.name}\n{self.show()}"
                    del at.attempts[key]
            self._no_gpu_twice(at)

    def _orders(self, at: SimulatedNode) -> dict[tuple[JobKey, int], JobRecord]:
        return {
            (r.job, r.attempt): r
            for r in self.allocation.jobs.values()
            if r.state.holds_gpus and r.placement and r.phase and at.name in r.placement.nodes
        }

    def _follow(self, at: SimulatedNode, record: JobRecord) -> None:
        key, phase = (record.job, record.attempt), record.phase
        process = at.attempts.get(key)
        if process is None:
            if phase is Phase.PREPARE:
                state = AttemptState.REFUSED if at.refuses else AttemptState.PREPARED
                gpus = record.placement.masks[at.name] if record.placement else 0
                lease = LEASE if record.fence is Fence.LEASE else None
                at.attempts[key] = Process(gpus=gpus, state=AttemptState.PREPARING if at.hangs else state, lease=lease)
            else:
                assert phase is not Phase.RUN, f"{key} shall run unprepared on {at.name}\n{self.show()}"
                at.attempts[key] = Process(gpus=0, state=AttemptState.GONE)
        elif process.alive and phase is Phase.RUN and process.state is AttemptState.PREPARED:
            process.state = AttemptState.RUNNING
        elif process.alive and phase in (Phase.CHECKPOINT, Phase.STOP):
            process.state = AttemptState.STOPPING if at.hangs else AttemptState.GONE

    def _forgotten_orders(self, at: SimulatedNode) -> None:
        """After a boot the journal still knows what was ordered; none of it lives."""
        for key in self._orders(at):
            at.attempts.setdefault(key, Process(gpus=0, state=AttemptState.GONE))

    def _no_gpu_twice(self, at: SimulatedNode) -> None:
        used = 0
        for key, process in at.attempts.items():
            if process.alive:
                assert not used & process.gpus, f"{key} shares a GPU on {at.name}\n{self.show()}"
                used |= process.gpus
