"""Does each queue stay within what it is guaranteed, lent and allowed? The rule book's arithmetic, worked out afresh.

Written straight from the formulas of §3 over names, without any table kept between decisions. Only what is given GPUs
now is judged; what a queue had before it inherits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from reconciler.model.allocation import JobRecord, Placement
from reconciler.model.job import Job, OnPreempt
from reconciler.model.lifecycle import JobState
from reconciler.model.queue import Queue
from reconciler.model.units import GpuType, NodeName
from reconciler.planner.verify.case import Breach, Case, Violation, bound_by, held_by

OWN: Final = "/"
"""Added to a queue's name for the leaf of the jobs that name it although it has others inside."""
LOST: Final = "//orphaned"
TOP: Final = "//top"

Use = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """GPUs by queue, subtree included: in use, and taken out of its pot."""

    under: Use
    drawn: Use


class Tree:
    """The queues of a case and what each was given of one GPU type."""

    def __init__(self, case: Case, kind: GpuType) -> None:
        self.case, self.kind = case, kind
        self.rows: Mapping[str, Queue] = {str(name): row for name, row in case.desired.quotas.queues.items()}
        tops = [name for name, row in self.rows.items() if row.parent not in self.rows]
        self.top = tops[0] if len(tops) == 1 else TOP
        self._guaranteed: dict[str, int] = {}
        self._paths: dict[str, list[str]] = {}
        self._ahead_of: dict[int, tuple[JobRecord, int]] = {}

    @cached_property
    def children(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {self.top: []}
        for name, row in self.rows.items():
            if name != self.top:
                above = str(row.parent) if row.parent in self.rows else self.top
                found.setdefault(above, []).append(name)
        for name in list(found):
            found[name].append(name + OWN)
        found[self.top].append(LOST)
        return found

    @cached_property
    def parent(self) -> dict[str, str]:
        return {child: name for name, inside in self.children.items() for child in inside}

    @cached_property
    def total(self) -> int:
        return sum(len(n.shape.gpus) for n in self.case.nodes.values() if n.shape.gpu_type == self.kind)

    def path(self, queue: str) -> list[str]:
        """From the leaf of a queue's jobs up to the root."""
        if queue not in self._paths:
            self._paths[queue] = self._path(queue)
        return self._paths[queue]

    def _path(self, queue: str) -> list[str]:
        at = queue if queue in self.rows else LOST if self.rows else self.top
        found = [at + OWN if at in self.children else at]
        while found[-1] in self.parent:
            found.append(self.parent[found[-1]])
        return found

    def is_declared(self, name: str) -> bool:
        return name in self.rows and self.kind in self.rows[name].guaranteed

    def guaranteed(self, name: str) -> int:
        """What it says, else what its children say; the root has everything."""
        if name not in self._guaranteed:
            self._guaranteed[name] = self._guarantee(name)
        return self._guaranteed[name]

    def _guarantee(self, name: str) -> int:
        if name in self.rows and self.kind in self.rows[name].guaranteed:
            return self.rows[name].guaranteed[self.kind]
        if name == self.top:
            return self.total
        if name.endswith(OWN):
            siblings = [child for child in self.children[self.parent[name]] if child != name]
            return max(0, self.guaranteed(self.parent[name]) - sum(map(self.guaranteed, siblings)))
        return sum(self.guaranteed(child) for child in self.children.get(name, ()) if not child.endswith(OWN))

    def pot(self, name: str) -> int:
        """What is shared inside a queue: its guarantee, less what its children keep to themselves."""
        inside = self.children.get(name, ())
        lent = sum(self.pot(child) - self.local(child) - self.guaranteed(child) for child in inside)
        return self.guaranteed(name) + lent

    def local(self, name: str) -> int:
        """What it lends to nobody."""
        row = self.rows.get(name)
        if name == self.top or row is None or row.lend is None or self.kind not in row.lend:
            return 0
        return max(0, self.pot(name) - row.lend[self.kind])

    def sums(self, use: Use) -> Sums:
        """What each subtree uses, and what it takes out of its own pot and its parent's."""
        under, drawn = Counter[str](), Counter[str]()
        for name in self.inside_out:
            inside = self.children.get(name)
            if inside is None:
                under[name] = drawn[name] = use.get(name, 0)
            else:
                under[name] = sum(under[child] for child in inside)
                drawn[name] = sum(max(0, drawn[child] - self.local(child)) for child in inside)
        return Sums(under=under, drawn=drawn)

    @cached_property
    def inside_out(self) -> list[str]:
        """All queues, children before their parents."""
        found = [self.top]
        for name in found:
            found += self.children.get(name, ())
        return found[::-1]

    @cached_property
    def ahead(self) -> Sums:
        """What goes on and what is promised after this decision."""
        return self.sums(self._uses[0])

    @cached_property
    def now(self) -> Sums:
        """What is held after this decision, also by what is stopping."""
        return self.sums(self._uses[1])

    @cached_property
    def _uses(self) -> tuple[Use, Use]:
        return uses(self.case, self, self.case.next.jobs.values())

    @cached_property
    def at_most(self) -> Use:
        """All that went on before and all that was given GPUs now, as if nobody had been evicted yet."""
        old, new = self.case.previous.jobs, self.case.next.jobs
        found = Counter[str]()
        for key in {**old, **new}:
            before, after = old.get(key), new.get(key)
            queue = (after or before or next(iter(new.values()))).queue
            found[self.path(queue)[0]] += max(self.ahead_of(before), self.ahead_of(after))
        return self.sums(found).under

    @cached_property
    def staying(self) -> Use:
        """What went on before and still does."""
        old, found = self.case.previous.jobs, Counter[str]()
        for key, record in self.case.next.jobs.items():
            if key in old and goes_on_at(old[key]) is not None:
                found[self.path(record.queue)[0]] += self.ahead_of(record)
        return self.sums(found).under

    @cached_property
    def fixed_now(self) -> Use:
        """What is given now to jobs that are not preemptible."""
        found = Counter[str]()
        for before, after in self.case.started:
            job = self.case.desired.jobs.get(after.job)
            if job is not None and is_fixed(self.case, job) and (before is None or goes_on_at(before) is None):
                found[self.path(after.queue)[0]] += self.ahead_of(after)
        return self.sums(found).under

    @cached_property
    def untouched(self) -> Use:
        """What went on before and does so at the same place: it was there at every moment of the decision."""
        old, found = self.case.previous.jobs, Counter[str]()
        for key, record in self.case.next.jobs.items():
            if key in old and goes_on_at(old[key]) == goes_on_at(record):
                found[self.path(record.queue)[0]] += min(self.ahead_of(old[key]), self.ahead_of(record))
        return self.sums(found).under

    @cached_property
    def returned_to(self) -> Use:
        """What is given now to jobs that gave borrowed GPUs back within the cooldown, without their spares."""
        found = Counter[str]()
        for after in self.case.returned:
            found[self.path(after.queue)[0]] += count(self.case, self.kind, goes_on_at(after))
        return self.sums(found).under

    def ahead_of(self, record: JobRecord | None) -> int:
        """GPUs of one job once everything that stops has stopped."""
        if record is None:
            return 0
        known = self._ahead_of.get(id(record))  # of each record it is asked several times
        if known is None:
            stays = record.promise is None and record.state is not JobState.STOPPING
            gpus = bound(self.case, self.kind, record) if stays else count(self.case, self.kind, goes_on_at(record))
            known = self._ahead_of[id(record)] = (record, gpus)
        return known[1]

    def shape(self, name: str, records: Iterable[JobRecord]) -> int:
        """GPUs of the nodes on which jobs of the subtree have, or were promised, GPUs."""
        nodes: set[NodeName] = set()
        for record in records:
            if name in self.path(record.queue):
                place = goes_on_at(record)
                nodes.update(place.nodes if place else ())
                nodes.update(one.node for one in record.spares if place is record.placement)
        shapes = [self.case.nodes[node].shape for node in nodes if node in self.case.nodes]
        return sum(len(shape.gpus) for shape in shapes if shape.gpu_type == self.kind)

    def in_nodes(self, name: str) -> bool:
        return name in self.rows and self.rows[name].guaranteed_shape == "node"


def tree_of(case: Case, kind: GpuType) -> Tree:
    """The queues of a case for one GPU type; worked out once."""
    if kind not in case.trees:
        case.trees[kind] = Tree(case, kind)
    return case.trees[kind]


def goes_on_at(record: JobRecord) -> Placement | None:
    """Where a job is once everything that stops has stopped, and every promise has come true."""
    if record.promise is not None:
        return record.promise.placement
    return record.placement if record.state.holds_gpus and record.state is not JobState.STOPPING else None


def count(case: Case, kind: GpuType, place: Placement | None) -> int:
    """GPUs of one type in a place."""
    return _count(case, kind, place.masks if place is not None else {})


def bound(case: Case, kind: GpuType, record: JobRecord) -> int:
    """GPUs of one type that a job holds, its spares among them."""
    return _count(case, kind, bound_by(record))


def _count(case: Case, kind: GpuType, masks: Mapping[NodeName, int]) -> int:
    found = 0
    for node, mask in masks.items():
        declared = case.nodes.get(node)
        if declared is not None and declared.shape.gpu_type == kind:
            found += mask.bit_count()
    return found


def uses(case: Case, tree: Tree, records: Iterable[JobRecord]) -> tuple[Use, Use]:
    """By leaf: what goes on or was promised; and what is held, whatever its state."""
    live: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for record in records:
        place, holds = goes_on_at(record), record.state.holds_gpus
        if place is not None or holds:
            leaf = tree.path(record.queue)[0]
            live[leaf] += tree.ahead_of(record)
            held[leaf] += bound(case, tree.kind, record)
    return live, held


def within_quota(case: Case) -> Iterator[Violation]:
    """No start and no promise passes a ceiling, takes more than is left, or uses what only may be taken back again.

    What is stopping counts for a start, as it still holds its GPUs, and not for a promise, which waits for them. A
    promise made earlier is kept even when its queue was cut meanwhile; a repair or a move brings no new use.
    """
    for before, after in case.started:
        if before and before.state in (JobState.PROMISED, JobState.REPAIRING) and after.state.holds_gpus:
            continue
        place = after.promise.placement if after.promise else after.placement
        for kind in sorted({case.nodes[n].shape.gpu_type for n in place.nodes if n in case.nodes} if place else ()):
            if count(case, kind, before.placement if before and held_by(before) else None) >= count(case, kind, place):
                continue
            tree = tree_of(case, kind)
            for use in (tree.ahead, tree.now) if after.promise is None else (tree.ahead,):
                yield from _judge(case, tree, after, use)


def limits_kept(case: Case, tree: Tree, after: JobRecord) -> Iterator[Violation]:
    """The limits of its queue after what a running gang took in addition."""
    for use in (tree.ahead, tree.now):
        yield from _judge(case, tree, after, use)


def _judge(case: Case, tree: Tree, after: JobRecord, use: Sums) -> Iterator[Violation]:
    path, job = tree.path(after.queue), case.desired.jobs.get(after.job)
    for name in path:
        row, has = tree.rows.get(name), use.under[name]
        if row is not None and tree.kind in row.ceiling and has > row.ceiling[tree.kind]:
            yield Violation(
                code=Breach.CEILING_EXCEEDED, job=after.job, detail=f"{name}: {has} of {row.ceiling[tree.kind]}"
            )
        if job is not None and is_fixed(case, job) and tree.is_declared(name):
            least = tree.staying[name] + tree.fixed_now[name]  # who came after it may have borrowed
            if least > tree.guaranteed(name):
                yield Violation(
                    code=Breach.BEYOND_GUARANTEE, job=after.job, detail=f"{name}: {least} of {tree.guaranteed(name)}"
                )
    draws = all(use.drawn[name] > tree.local(name) for name in path[:-1])
    if draws and use.drawn[tree.top] > tree.pot(tree.top):
        numbers = f"{use.drawn[tree.top]} of {tree.pot(tree.top)} taken"
        yield Violation(code=Breach.QUOTA_EXCEEDED, job=after.job, detail=numbers)


def is_fixed(case: Case, job: Job) -> bool:
    """Nobody may ask it to give way."""
    rank = case.priority(job)
    return job.on_preempt is OnPreempt.NEVER or (rank is not None and not rank.preemptible)


def borrows_soon(case: Case) -> Iterator[Violation]:
    """What gave borrowed GPUs back does not borrow again for a cooldown.

    Who was first within one decision is not known. But the last of those that gave back found all the others of them,
    and what merely went on; who came after it may have borrowed.
    """
    for after in case.returned:
        place = goes_on_at(after)
        for kind in sorted({case.nodes[n].shape.gpu_type for n in place.nodes if n in case.nodes} if place else ()):
            tree = tree_of(case, kind)
            said = [name for name in tree.path(after.queue)[:-1] if tree.is_declared(name)]
            has = {name: tree.untouched[name] + tree.returned_to[name] for name in said}
            over = [
                f"{name}: {has[name]} of {tree.guaranteed(name)}" for name in said if has[name] > tree.guaranteed(name)
            ]
            if over or not said:
                yield Violation(code=Breach.BORROWS_TOO_SOON, job=after.job, detail=", ".join(over))
