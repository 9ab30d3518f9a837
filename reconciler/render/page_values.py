"""What is on the page of a record: values alone, so that who fills them in and who draws them agree."""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.model.units import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """GPUs of one node held by one job over a time. `first` and `count` are GPU positions; `state` in lower case.

    A `spare` waits for the repair of its gang.
    """

    node: str
    first: int
    count: int
    job: str
    queue: str
    state: str
    since: Instant
    until: Instant
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShown:
    """A node now. `cells` has one word a GPU: a queue's name, "" idle, or `!` for what is out of work.

    `spares` are the positions of GPUs that are held for a repair; `held_by` has each job with its GPUs in words.
    """

    name: str
    rack: str
    group: str
    gpus: int
    cells: tuple[str, ...]
    note: str = ""
    spares: frozenset[int] = frozenset()
    held_by: tuple[tuple[str, str], ...] = ()

    @property
    def held(self) -> int:
        """How many of its GPUs somebody has."""
        return sum(word not in {"", "!"} for word in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShown:
    """A job now, or an array: then `tasks` has its table. `mood` is good, warn, bad or ""; the rest is as `status` says."""

    name: str
    state: str
    mood: str
    gpus: str
    priority: str
    where: str
    since: str
    why: str
    tasks: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of a rack each queue held in a slice of time, in millionths."""

    rack: str
    since: Instant
    until: Instant
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Phi and the idle share from an instant on, in millionths."""

    at: Instant
    phi: int
    idle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShown:
    """A queue now, in GPUs, and over the page's time, in GPU-nanoseconds. None: no such quota."""

    name: str
    held: int
    guaranteed: int | None
    ceiling: int | None
    waiting: int
    allocated: int
    running: int
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionShown:
    """One decision of the list."""

    generation: int
    at: Instant
    commit: str
    told: str
    trigger: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossShown:
    """One line of the ledger: work that was thrown away, and for whom."""

    generation: int
    at: Instant
    job: str
    gpus: int
    why: str
    gpu_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything on the page. `seal` says what was verified; `sealed` None: not looked at, else whether it is true.

    `remarks` are what holds for the time being and should be known: requests in force, changes not acted on.
    """

    cluster: str
    generation: int
    commit: str
    made: Instant
    since: Instant
    until: Instant
    declared: int
    capacity: int
    held: int
    idle: int
    stranded: int
    phi: int
    running: int
    waiting: int
    queues: tuple[QueueShown, ...]
    jobs: tuple[JobShown, ...]
    more_jobs: int
    nodes: tuple[NodeShown, ...]
    bars: tuple[Bar, ...]
    shares: tuple[Share, ...]
    samples: tuple[Sample, ...]
    decisions: tuple[DecisionShown, ...]
    more_decisions: int
    losses: tuple[LossShown, ...]
    more_losses: int
    lost_seconds: int
    drift: tuple[tuple[str, str, bool], ...]
    seal: str
    sealed: bool | None
    threshold: int = 200_000
    spares: int = 0
    remarks: tuple[str, ...] = ()
