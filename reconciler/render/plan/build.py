"""The plan of a change, made from two decisions on one state: what the base alone would do, and what the head would.

Pure: what was read, decided and forecast is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from reconciler.documents.hostlist import fold
from reconciler.documents.places import spans
from reconciler.errors import Diagnostic
from reconciler.model.allocation import Allocation, JobRecord, Placement
from reconciler.model.decision import Tidying
from reconciler.model.desired import Desired
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import Observed
from reconciler.model.reasons import sentence
from reconciler.model.units import MINUTE, Instant, JobKey, NodeName, document_of, index_of
from reconciler.render.names import one_line, places_among
from reconciler.render.plan.arrays import folded, folded_slips
from reconciler.render.plan.cluster import (
    Nodes,
    drift_lines,
    hardware_lines,
    lasting,
    numbers_of,
    quota_lines,
    rack_lines,
)
from reconciler.render.plan.edits import edits_of
from reconciler.render.plan.model import Basis, Finding, Numbers, Plan, RankLine, Removal, Row, Slip, Step
from reconciler.render.plan.steps import step_of
from reconciler.render.tidying import proposed

SLIP = 10 * MINUTE
"""A forecast that moves by less is not told."""
_GETS_A_PLACE = frozenset({Step.PLACE, Step.PROMISE, Step.MOVE, Step.RESIZE})
_PAYS = frozenset({Step.PREEMPT, Step.MOVE, Step.RESIZE})
_RANKS = 64
"""Nodes whose ranks are told, in all."""
_LONGEST = 120
"""Characters of a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is desired, and what would be decided, on one side of a change. `starts`: forecasts of those who wait, if all
    run to their limits; `likely`, where it is sooner: if they run no longer than nine in ten did.

    `tidying` is what defragmentation proposes.
    """

    desired: Desired
    allocation: Allocation
    starts: Mapping[JobKey, Instant] = field(default_factory=dict)
    likely: Mapping[JobKey, Instant] = field(default_factory=dict)
    tidying: tuple[Tidying, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is said of the files of a change beside the decision. `sources`: file and line of each job.

    `known`: findings that the base has as well.
    """

    diagnostics: tuple[Diagnostic, ...] = ()
    known: tuple[Diagnostic, ...] = ()
    files: tuple[str, ...] = ()
    sources: Mapping[JobKey, tuple[str, int]] = field(default_factory=dict)
    removals: tuple[Removal, ...] = ()


def plan_of(basis: Basis, base: Side, head: Side, observed: Observed, told: Told) -> Plan:
    """The difference between two decisions. Without a base, `base` is what holds now."""
    nodes = Nodes(head.desired.inventory, observed, head.allocation)
    same = base.desired.inventory is head.desired.inventory
    before = nodes if same else Nodes(base.desired.inventory, observed, base.allocation)
    single = tuple(_rows(base, head, observed, told, nodes, before))
    shown = {JobKey(row.job) for row in single}
    rows = folded(single, base.desired, head.desired)
    return Plan(
        basis=basis,
        decided=True,
        rows=rows,
        unchanged=len(head.allocation.jobs.keys() - shown),
        before=numbers_of(base.allocation, before),
        after=numbers_of(head.allocation, nodes),
        lost_gpu_seconds=sum(row.lost_gpu_seconds for row in rows),
        phi_limit_ppm=head.desired.scheduling.defragment_threshold_ppm,
        findings=findings_of(told.diagnostics, told.known),
        quotas=tuple(
            quota_lines((base.desired, base.allocation), (head.desired, head.allocation), (before, nodes))
        ),
        racks=tuple(rack_lines(base.allocation, head.allocation, nodes)),
        slips=folded_slips(_slips(base, head), _later),
        drift=(
            *drift_lines(nodes, None if same else before),
            *hardware_lines(head.desired.inventory, base.desired.inventory, observed, _placed(single, head.allocation)),
        ),
        removals=told.removals,
        files=told.files,
        tidying=proposed([one for one in head.tidying if one not in base.tidying]) if _proposes(head) else (),
    )  # fmt: skip


def _placed(rows: Iterable[Row], allocation: Allocation) -> dict[NodeName, list[JobKey]]:
    """The jobs that get a place, by node."""
    found: dict[NodeName, list[JobKey]] = {}
    for row in rows:
        record = allocation.jobs.get(JobKey(row.job))
        placement = lasting(record) if record is not None and row.step in _GETS_A_PLACE else None
        for node in placement.nodes if placement is not None else ():
            found.setdefault(node, []).append(JobKey(row.job))
    return found


def _proposes(side: Side) -> bool:
    """Moves that are made are rows already."""
    return side.desired.scheduling.defragment_action == "propose"


def refused_plan(basis: Basis, told: Told) -> Plan:
    """A change that allows no decision: a file that defines the cluster has no valid form."""
    nothing = Numbers(capacity=0, busy=0, idle=0, stranded=0, phi_ppm=0, cross_rack_ppm=0)
    return Plan(
        basis=basis, decided=False, rows=(), unchanged=0, before=nothing, after=nothing, lost_gpu_seconds=0,
        phi_limit_ppm=0, findings=findings_of(told.diagnostics, told.known), files=told.files, removals=told.removals,
    )  # fmt: skip


def findings_of(diagnostics: Iterable[Diagnostic], known: Iterable[Diagnostic]) -> tuple[Finding, ...]:
    """Diagnostics as a plan tells them: new errors first, then as they stand in the files."""
    old = {(d.code, d.place.file, d.detail) for d in known}
    found = [
        Finding(
            code=d.code, severity=str(d.severity), summary=d.summary, detail=d.detail, remedy=d.remedy,
            file=d.place.file, line=d.place.line, column=d.place.column, path=d.place.path,
            new=(d.code, d.place.file, d.detail) not in old,
        )
        for d in diagnostics
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda f: (not f.new, not f.is_error)))


# --- jobs ---


def _rows(base: Side, head: Side, observed: Observed, told: Told, nodes: Nodes, before: Nodes) -> Iterator[Row]:
    files = frozenset(told.files)
    found: list[tuple[Step, JobKey]] = []
    for key in {**base.allocation.jobs, **head.allocation.jobs}:
        one, other = base.allocation.jobs.get(key), head.allocation.jobs.get(key)
        edited = base.desired.jobs.get(key) != head.desired.jobs.get(key)
        step = step_of(key, one, other) or (Step.CHANGE if edited and key in base.desired.jobs else None)
        if step is not None:
            found.append((step, key))
    rank = {step: number for number, step in enumerate(Step)}
    left = _RANKS
    for step, key in sorted(found, key=lambda row: (rank[row[0]], row[1])):
        row = _Row(key, step, base, head)
        placement = row.target
        ranks: tuple[RankLine, ...] = ()
        is_told = step in _GETS_A_PLACE and index_of(key) is None  # tasks are one row, which has no room for ranks
        if is_told and placement is not None and len(placement.masks) <= left:
            ranks = tuple(_rank_lines(placement))
            left -= len(ranks)
        yield row.told(observed, told, files, (nodes, before), ranks)


class _Row:
    """One job of a plan, from its two records."""

    def __init__(self, key: JobKey, step: Step, base: Side, head: Side) -> None:
        self.key, self.step, self._base, self._head = key, step, base, head
        self.before, self.after = base.allocation.jobs.get(key), head.allocation.jobs.get(key)
        self.target = lasting(self.after) if self.after is not None else None
        self.job: Job | None = head.desired.jobs.get(key) or base.desired.jobs.get(key)

    def told(
        self, observed: Observed, told: Told, files: frozenset[str], nodes: tuple[Nodes, Nodes],
        ranks: tuple[RankLine, ...],
    ) -> Row:  # fmt: skip
        """The row a reader sees."""
        after, before, target = self.after, self.before, self.target
        source, line = told.sources.get(document_of(self.key), ("", 0))
        one, other = self._base.desired.jobs.get(self.key), self._head.desired.jobs.get(self.key)
        seen = observed.jobs.get(self.key)
        evicted = self.step in _PAYS and after is not None
        return Row(
            step=self.step,
            job=self.key,
            gpus=self.job.gpus if self.job is not None else after.gpus_held if after is not None else 0,
            priority_class=self.job.priority_class if self.job is not None else "",
            reason=after.reason.code.value if after is not None else "",
            why=_why(after),
            own=source in files or (other is None and one is not None),
            where=_where(target, nodes[0]),
            was=self._was(nodes[1]),
            nodes=len(target.masks) if target is not None else 0,
            racks=len(nodes[0].racks(target)) if target is not None else 0,
            within=f"{target.level} {target.domain}".strip() if target is not None else "",
            comm_ns=target.comm_time if target is not None else 0,
            comm_bound_ns=target.comm_bound if target is not None else 0,
            lost_gpu_seconds=after.reason.count("lost") if evicted and after is not None else 0,
            grace_ns=self.job.grace if self.job is not None and evicted else 0,
            checkpoint=seen.checkpoint if seen is not None and evicted else None,
            preemptor=(after.preemptor or "") if after is not None and evicted else "",
            victims=_waits_for(after) if after is not None and self.step in _GETS_A_PLACE else (),
            starts=self._head.starts.get(self.key),
            likely=self._head.likely.get(self.key),
            would_start=self._base.starts.get(self.key) if before is not None else None,
            file=source,
            line=line,
            edits=edits_of(one, other) if one is not None and other is not None else (),
            ranks=ranks,
        )

    def _was(self, nodes: Nodes) -> str:
        """Its place without the change, where that is another."""
        held = self.before.placement if self.before is not None and self.before.state.holds_gpus else None
        held = held or (lasting(self.before) if self.before is not None else None)
        return _where(held, nodes) if held is not None and held != self.target else ""


def _waits_for(record: JobRecord) -> tuple[str, ...]:
    return record.promise.waiting_for if record.promise is not None else record.victims


def _why(record: JobRecord | None) -> str:
    """Its reason; the price is told apart from it."""
    if record is None:
        return "its file is gone, and nothing of it is left"
    return (
        one_line(sentence(record.reason)).partition("; ")[0]
        if record.reason.number("lost") is not None
        else one_line(sentence(record.reason))
    )


def _where(placement: Placement | None, nodes: Nodes) -> str:
    if placement is None:
        return ""
    told = places_among(placement, nodes.by_name)
    return told if len(told) <= _LONGEST else f"{len(placement.masks)} nodes of {len(nodes.racks(placement))} racks"


def _rank_lines(placement: Placement) -> Iterator[RankLine]:
    for node in placement.nodes:
        here = [place for place in placement.ranks if place.node == node]
        yield RankLine(
            node=node,
            ranks=spans((place.rank for place in here), shortest=2),
            gpus=spans((place.gpu for place in here), shortest=2),
            numa=spans(sorted({place.numa for place in here if place.numa >= 0})),
            nics=fold(dict.fromkeys(place.nic for place in here if place.nic)),
        )


# --- forecasts ---


def _slips(base: Side, head: Side) -> Iterator[Slip]:
    """Waiting jobs that nobody edited and whose start moves, the worst first."""
    found = []
    for key in base.allocation.jobs:
        one, other = base.starts.get(key), head.starts.get(key)
        waits = key in head.allocation.jobs and head.allocation.jobs[key].state is JobState.PENDING
        if not waits or base.desired.jobs.get(key) != head.desired.jobs.get(key) or one == other or not base.starts:
            continue
        if one is None or other is None or abs(other - one) >= SLIP:
            found.append(Slip(job=key, before=one, after=other))
    yield from sorted(found, key=lambda s: (-_later(s), s.job))


def _later(slip: Slip) -> int:
    if slip.after is None:
        return 1 << 62
    return slip.after - slip.before if slip.before is not None else -(1 << 62)
