"""What does a scenario file say? A small cluster, the jobs on it, and the answer that is right.

Format `gang-scenario/1`, described in `tests/scenarios/README.md`. The models here are frozen and are used as they
are: a scenario is no desired state and has no other form. Whether its parts fit together (a job in a queue that is not
there, a node given more GPUs than it has) is for `scenario_sense`; what a planner makes of it for `runtime.scenario`.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints, model_validator

from reconciler.documents.hostlist import expand
from reconciler.documents.schema.base import PATTERNS, Count, Duration, Listed, Positive, Text, Time, kind_of, refuse

FORMAT: Final = "gang-scenario/1"

_WORD: Final = r"^[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?$"
PATTERNS.setdefault(_WORD, ("BadName", "letters, digits, '-', '_' and '.', at most 63 characters"))

Word: TypeAlias = Annotated[str, StringConstraints(pattern=_WORD)]
Tier: TypeAlias = Literal["node", "rack", "spine"]
Outcome: TypeAlias = Literal[
    "start", "start_after_evictions", "start_after_moves", "start_after_shrink", "wait", "impossible", "keep", "repair",
    "restart",
]  # fmt: skip
ReasonClass: TypeAlias = Literal[
    "capacity", "fragmented", "quota", "fair_share", "protected", "gpu_type", "node_state", "would_delay", "held_for",
    "stopping", "never_fits",
]  # fmt: skip


def _expanded(written: Any) -> tuple[str, ...]:
    if type(written) is not str:
        refuse("WrongType", f"Expected a name, or a list of names in quotes, found {kind_of(written)}.")
    try:
        return expand(written)
    except ValueError as err:
        refuse("BadNodeList", f"{str(err)[:1].upper()}{str(err)[1:]}.")


def _gpus_by_node(written: Any) -> dict[str, int]:
    if type(written) is not dict:
        refuse("WrongType", f"Expected GPUs by node, found {kind_of(written)}.")
    found: dict[str, int] = {}
    for key, gpus in written.items():
        if type(gpus) is not int or gpus < 1:
            refuse("OutOfRange", f"Expected a number of GPUs on {key}, at least 1.")
        for name in _expanded(key):
            if name in found:
                refuse("BadNodeList", f"{name} is named twice.")
            found[name] = gpus
    return found


def _names(written: Any) -> tuple[str, ...]:
    if type(written) is not list:
        refuse("WrongType", f"Expected a list of names, found {kind_of(written)}.")
    return tuple(name for item in written for name in _expanded(item))


def _one_or_more(written: Any) -> tuple[Any, ...]:
    return tuple(written) if isinstance(written, list) else (written,)


def _number(written: Any) -> Decimal:
    if type(written) is not int and not isinstance(written, Decimal):
        refuse("WrongType", f"Expected a number, found {kind_of(written)}.")
    return Decimal(written)


Names: TypeAlias = Annotated[tuple[str, ...], PlainValidator(_names)]
"""A YAML list of names; `x[01-18]` stands for eighteen."""
Placed: TypeAlias = Annotated[dict[str, int], PlainValidator(_gpus_by_node)]
"""GPUs by node, in the order written."""
Number: TypeAlias = Annotated[Decimal, PlainValidator(_number)]


class Part(BaseModel):
    """Nothing unknown, nothing converted. Keys are written as the fields are called."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


# --- the cluster ---


class Outage(Part):
    """A stretch of time in which a node takes no work."""

    from_: Time = Field(alias="from")
    to: Time


class NodeRow(Part):
    """One node, or with `names` several alike."""

    name: Word | None = None
    names: Annotated[tuple[str, ...], PlainValidator(_expanded)] = ()
    gpus: Annotated[int, Field(ge=1, le=64)]
    type: Word
    state: Literal["ready", "cordoned", "down"] = "ready"
    maintenance: Listed[Outage] = ()

    @model_validator(mode="after")
    def _is_named(self) -> NodeRow:
        if (self.name is None) == (not self.names):
            refuse("MissingField", "A node has either name or names.")
        return self

    @property
    def all_names(self) -> tuple[str, ...]:
        """The nodes that this row stands for."""
        return self.names or (self.name or "",)


class Rack(Part):
    """Nodes under one top-of-rack switch."""

    name: Word
    nodes: Annotated[Listed[NodeRow], Field(min_length=1)]


class Spine(Part):
    """Racks under one uniform spine group."""

    name: Word
    racks: Annotated[Listed[Rack], Field(min_length=1)]


class Cluster(Part):
    """The tree, widest tier first. `nvlink_domain: rack` makes each rack one NVLink domain (NVL72)."""

    nvlink_domain: Literal["node", "rack"] = "node"
    spines: Annotated[Listed[Spine], Field(min_length=1)]

    def rows(self) -> Iterator[tuple[Spine, Rack, NodeRow, str]]:
        """Every node with the domains around it, in the order written."""
        for spine in self.spines:
            for rack in spine.racks:
                for row in rack.nodes:
                    for name in row.all_names:
                        yield spine, rack, row, name


# --- who may have what ---


class Usage(Part):
    """GPU-hours a queue used, and when."""

    gpu_hours: Number
    at: Time


class QueueRow(Part):
    """One queue. Absent limits do not limit."""

    name: Word
    guaranteed: Count = 0
    borrow_limit: Count | None = None
    lend_limit: Count | None = None
    weight: Annotated[int, Field(ge=1, le=10_000)] = 1
    guaranteed_shape: Literal["gpu", "node"] = "gpu"
    usage: Listed[Usage] = ()


VictimRule: TypeAlias = Literal["lowest_priority", "fewest_jobs", "least_lost_work"]


class Policy(Part):
    """The rules of this cluster. The defaults are the format's, not those of a ClusterConfig."""

    preempt_same_queue: Literal["never", "lower_priority"] = "never"
    preempt_other_queues: Literal["never", "reclaim", "fair_share"] = "never"
    victim_order: Listed[VictimRule] = ("lowest_priority", "fewest_jobs", "least_lost_work")
    min_runtime: Duration | None = None
    lower_jobs_may_pass: bool | Literal["other_gpu_types_only"] = False
    backfill: Literal["none", "conservative"] = "none"
    hold_for_starved_after: Duration | None = None
    move_running_jobs: Literal["never", "preemptible"] = "never"
    on_node_failure: Literal["replace_else_restart"] = "replace_else_restart"
    order: Literal["priority_then_age", "decayed_usage_then_age"] = "priority_then_age"
    usage_half_life: Duration | None = None


# --- jobs ---


class Role(Part):
    """Members of one kind: so many workers of so many GPUs, each worker on one node."""

    role: Word = "worker"
    workers: Positive
    gpus_each: Annotated[int, Field(ge=1, le=64)]
    gpu_types: Listed[Word] = ()
    min_workers: Positive | None = None


class Group(Part):
    """Consecutive workers, so many at a time, each run inside one domain of a tier."""

    size: Positive
    one: Tier


class Rule(Part):
    """Where a gang may sit."""

    required: Tier | None = None
    preferred: Tier | None = None
    groups: Listed[Group] = ()
    ranked: bool = False
    same_gpu_type: bool = False


class JobRow(Part):
    """What running and pending jobs have in common."""

    job: Word
    queue: Word = "default"
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    preemptible: bool = True
    time_limit: Duration | None = None
    roles: Listed[Role] = ()
    rule: Rule = Rule.model_construct()


class Running(JobRow):
    """A job that holds GPUs. Without `roles` its workers are as large as its nodes make likely."""

    started: Time
    last_checkpoint: Time | None = None
    placement: Placed
    ranks: Names = ()
    missing_workers: Count = 0
    stopping_until: Time | None = None


class Pending(JobRow):
    """A job that waits, and holds nothing."""

    submitted: Time
    roles: Annotated[Listed[Role], Field(min_length=1)]


class PromiseRow(Part):
    """Capacity that an earlier plan gave to a job which still waits for victims to stop."""

    job: Word
    nodes: Placed
    made: Time
    waiting_for: Listed[Word] = ()


# --- the answer ---


class Evictions(Part):
    """Who is evicted in the whole plan."""

    none: bool = False
    exactly: Listed[Word] | None = None
    one_of: Listed[Listed[Word]] | None = None


class Moves(Part):
    """Who is moved, and where to."""

    none: bool = False
    exactly: dict[Word, Placed] | None = None
    one_of: Listed[dict[Word, Placed]] | None = None


class Shrinks(Part):
    """Who gives up how many workers."""

    none: bool = False
    exactly: dict[Word, Positive] | None = None
    one_of: Listed[dict[Word, Positive]] | None = None


class Where(Part):
    """One statement about a place, or several that all hold."""

    nodes: Placed | None = None
    exactly: dict[Tier, Names] | None = None
    within: dict[Tier, Names] | None = None
    count: dict[Tier, Positive] | None = None
    one: Tier | None = None
    per: dict[Tier, dict[Word, Positive]] | None = None
    groups: Group | None = None
    ranks_contiguous: Tier | None = None
    avoids: Names | None = None


class Why(Part):
    """What a useful explanation says: one of these classes, and these words."""

    class_: Annotated[tuple[ReasonClass, ...], Field(alias="class", strict=False, min_length=1)]
    names: Listed[Text] = ()

    @model_validator(mode="before")
    @classmethod
    def _one_class_or_several(cls, written: Any) -> Any:
        if isinstance(written, dict) and "class" in written:
            return {**written, "class": _one_or_more(written["class"])}
        return written


class Answer(Part):
    """What becomes of one job."""

    outcome: Outcome
    where: Listed[Where] = ()
    reason: Why | None = None
    holds: Count | None = None
    earliest_start: Time | None = None


class Expect(Part):
    """The right answer. What is absent is not asked, except for the rules that hold in every case."""

    evict: Evictions | None = None
    moves: Moves | None = None
    shrink: Shrinks | None = None
    jobs: dict[Word, Answer] = Field(default_factory=dict)
    numbers: dict[str, Number | dict[Word, Number]] = Field(default_factory=dict)


class Scenario(Part):
    """One case: everything a scheduler may know, the answer, and why."""

    format: Literal["gang-scenario/1"]
    id: Word
    title: Text = ""
    question: Text = ""
    tags: Listed[Word] = ()
    inspired_by: Listed[Text] = ()
    now: Time
    cluster: Cluster
    queues: Listed[QueueRow] = ()
    policy: Policy = Policy.model_construct()
    promises: Listed[PromiseRow] = ()
    running: Listed[Running] = ()
    pending: Listed[Pending] = ()
    expect: Expect
    why: Text = ""

    @property
    def rows(self) -> tuple[JobRow, ...]:
        """All jobs, running ones first, in the order written."""
        return (*self.running, *self.pending)
