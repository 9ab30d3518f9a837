"""How much may a queue have? Guarantees, borrowing, lending and ceilings, against what its jobs hold and are promised.

Rule book §3, per GPU type. Two ledgers are kept. `now` counts all that holds GPUs, also what is stopping: a start
must fit it. `ahead` counts what goes on and what is promised: how things stand once everything that stops has
stopped; a promise must fit that one, and a start both. Forbidden is to make or worsen a breach, never to inherit one.
Whose GPUs may be taken back is for `rights`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from reconciler.model.queue import QuotaTree
from reconciler.model.reasons import Reason, ReasonCode, reason
from reconciler.model.units import GpuType, NodeName, QueueName
from reconciler.planner.quota_tree import TOP, Branches, Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A limit that more GPUs would pass: what they would make, and how much is allowed there.

    With QuotaExhausted `would_be` is the need and `ceiling` the room; with LendLimit `ceiling` is what `queue` lends.
    """

    queue: QueueName
    would_be: int
    ceiling: int
    code: ReasonCode = ReasonCode.QUOTA_CEILING

    def reason(self, kind: GpuType, need: int) -> Reason:
        """The same as a reason with its numbers."""
        if self.code is ReasonCode.LEND_LIMIT:
            return reason(self.code, need=need, lender=self.queue, lend=self.ceiling, gpuType=kind)
        if self.code is ReasonCode.QUOTA_EXHAUSTED:
            return reason(self.code, need=need, queue=self.queue, room=self.ceiling, gpuType=kind)
        if self.code is ReasonCode.NON_PREEMPTIBLE_OVER_GUARANTEE:
            used = self.would_be - need
            return reason(self.code, queue=self.queue, used=used, need=need, guaranteed=self.ceiling, gpuType=kind)
        return reason(self.code, queue=self.queue, wouldBe=self.would_be, ceiling=self.ceiling, gpuType=kind)


class Ledger:
    """GPUs in use by queue and type, subtree included, and what each subtree takes out of its parent's pot."""

    __slots__ = ("_branches", "_changes", "_nodes", "_sizes", "_under", "_use", "version")

    def __init__(self, branches: Branches, sizes: Mapping[NodeName, int]) -> None:
        self._branches, self._sizes = branches, sizes
        self._under: dict[GpuType, list[int]] = {}
        self._use: dict[GpuType, list[int]] = {}
        self._nodes: dict[tuple[int, GpuType], dict[NodeName, int]] = {}
        self._changes = 0
        self.version = 0  # another number after every charge: what was worked out at the same one still holds

    def add(self, leaf: int, kind: GpuType, gpus: int, nodes: Iterable[NodeName] = ()) -> None:
        """Charge GPUs (negative: take them off) to a leaf and all above it; `nodes`: where one gang has them."""
        if not gpus:
            return
        self._changes += 1
        self.version = self._changes
        if kind not in self._under:
            self._under[kind] = [0] * len(self._branches.names)
            self._use[kind] = [0] * len(self._branches.names)
        under, use, local = self._under[kind], self._use[kind], self._branches.shares(kind).local
        taken, sign = gpus, 1 if gpus > 0 else -1
        for number in self._branches.path(leaf):
            under[number] += gpus
            before = max(0, use[number] - local[number])
            use[number] += taken
            taken = max(0, use[number] - local[number]) - before
            if self._branches.is_in_nodes(number):
                counts = self._nodes.setdefault((number, kind), {})
                for node in nodes:
                    counts[node] = counts.get(node, 0) + sign
                    if not counts[node]:
                        del counts[node]

    def undone_to(self, version: int) -> None:
        """All charges since that version were taken back one by one: what was worked out then holds again."""
        self.version = version

    def all_under(self, kind: GpuType) -> Sequence[int]:
        """GPUs used in each queue and below it, by number."""
        row = self._under.get(kind)
        return row if row is not None else [0] * len(self._branches.names)

    def under(self, number: int, kind: GpuType) -> int:
        """GPUs used in a queue and below it."""
        row = self._under.get(kind)
        return row[number] if row is not None else 0

    def shape(self, number: int, kind: GpuType, more: Iterable[NodeName] = ()) -> int:
        """GPUs of the nodes it touches, `more` among them, when its guarantee is in whole nodes; else the GPUs it uses."""
        if not self._branches.is_in_nodes(number):
            return self.under(number, kind)
        touched = {*self._nodes.get((number, kind), ()), *more}
        return sum(self._sizes.get(node, 0) for node in touched)

    def left(self, leaf: int, kind: GpuType) -> int:
        """GPUs that nobody uses and that are its own or lent to it."""
        shares, use = self._branches.shares(kind), self._use.get(kind)
        path = self._branches.path(leaf)
        if use is None:
            return max(0, shares.pot[TOP]) + sum(shares.local[number] for number in path)
        found = max(0, shares.pot[TOP] - use[TOP])
        if not shares.withholds:
            return found
        return found + sum(max(0, shares.local[number] - use[number]) for number in path[:-1])

    def left_after(self, leaf: int, kind: GpuType, change: Callable[[int], int]) -> int:
        """The same, when each leaf's use has changed by so many GPUs."""
        branches, shares = self._branches, self._branches.shares(kind)
        use = [0] * len(branches.names)
        for number in range(len(use) - 1, -1, -1):  # children come after their parents
            if not branches.children[number]:
                use[number] = max(0, self.under(number, kind) + change(number))
            if number != TOP:
                use[branches.parents[number]] += max(0, use[number] - shares.local[number])
        found = max(0, shares.pot[TOP] - use[TOP])
        return found + sum(max(0, shares.local[number] - use[number]) for number in branches.path(leaf)[:-1])

    def idle_local(self, number: int, kind: GpuType) -> int:
        """GPUs a queue keeps to itself and does not use."""
        use = self._use.get(kind)
        return max(0, self._branches.shares(kind).local[number] - (use[number] if use is not None else 0))


class Quotas:
    """The use of every queue in one decision, in GPUs."""

    __slots__ = ("_paths", "_sizes", "ahead", "branches", "now", "promised")

    def __init__(
        self, tree: QuotaTree, declared: Mapping[GpuType, int], sizes: Mapping[NodeName, int] | None = None
    ) -> None:
        """`declared`: all GPUs by type, healthy or not; `sizes`: GPUs of each node, where guarantees are in nodes."""
        self.branches = Branches(tree, declared)
        self._sizes = sizes or {}
        self.now, self.ahead = Ledger(self.branches, self._sizes), Ledger(self.branches, self._sizes)
        self.promised: dict[tuple[QueueName, GpuType], int] = {}
        self._paths: dict[QueueName, tuple[QueueName, ...]] = {}

    # --- what is charged ---

    def hold(
        self, queue: QueueName, kind: GpuType, gpus: int, nodes: Iterable[NodeName] = (), *, goes_on: bool = True
    ) -> None:
        """Charge GPUs held (negative: released); what is stopping counts now, and not ahead."""
        leaf = self.branches.leaf(queue)
        self.now.add(leaf, kind, gpus, nodes)
        if goes_on:
            self.ahead.add(leaf, kind, gpus, nodes)

    def keep(self, queue: QueueName, kind: GpuType, gpus: int, nodes: Iterable[NodeName] = ()) -> None:
        """Charge GPUs promised (negative: no longer so)."""
        self.ahead.add(self.branches.leaf(queue), kind, gpus, nodes)
        for name in self.path(queue):
            self.promised[name, kind] = self.promised.get((name, kind), 0) + gpus

    def leave(self, queue: QueueName, kind: GpuType, gpus: int, nodes: Iterable[NodeName] = ()) -> None:
        """A gang begins to stop, or (negative) was only thought to: it does not count ahead any more."""
        self.ahead.add(self.branches.leaf(queue), kind, -gpus, nodes)

    # --- what is known ---

    def path(self, queue: QueueName) -> tuple[QueueName, ...]:
        """Names from the queue up to the root."""
        found = self._paths.get(queue)
        if found is None:
            names = (self.branches.names[number] for number in self.branches.path(self.branches.leaf(queue)))
            found = self._paths[queue] = tuple(dict.fromkeys(names))
        return found

    def use(self, queue: QueueName, kind: GpuType) -> int:
        """GPUs held in the queue itself, and those promised in it."""
        leaf = self.branches.leaf(queue)
        return max(self.now.under(leaf, kind), self.ahead.under(leaf, kind))

    def room(self, queue: QueueName, kind: GpuType) -> int:
        """GPUs it may add now without taking anything back."""
        leaf, shares = self.branches.leaf(queue), self.branches.shares(kind)
        found = min(self.now.left(leaf, kind), self.ahead.left(leaf, kind))
        for number in self.branches.path(leaf):
            ceiling = shares.ceiling[number]
            if ceiling is not None:
                used = max(self.now.under(number, kind), self.ahead.under(number, kind))
                found = min(found, ceiling - used)
        return max(0, found)

    def most(self, queue: QueueName, kind: GpuType, *, fixed: bool = False) -> int | None:
        """GPUs it can never pass, whatever others do; None when only the hardware limits it. `fixed`: not preemptible."""
        leaf, shares = self.branches.leaf(queue), self.branches.shares(kind)
        path = self.branches.path(leaf)
        found = sum(shares.local[number] for number in path) + shares.pot[TOP]
        limits = [limit for number in path for limit in self._limits(shares, number, fixed)]
        found = min([found, *limits])
        return found if found < shares.total else None

    def _limits(self, shares: Shares, number: int, fixed: bool) -> Iterable[int]:
        ceiling = shares.ceiling[number]
        if ceiling is not None:
            yield ceiling
        if fixed and shares.declared[number]:
            yield shares.guaranteed[number]

    # --- may it have more? ---

    def breach(
        self, queue: QueueName, kind: GpuType, need: int, *, fixed: bool = False, promised: bool = False,
        nodes: Iterable[NodeName] = (),
    ) -> Breach | None:  # fmt: skip
        """The first limit that `need` more GPUs would pass, outermost last; None when they may be had.

        `promised`: only once all that is stopping is gone. `fixed`: for a job that is not preemptible, which may use
        guarantees only. `nodes`: where they would be, when that is known already.
        """
        found = self._breach(self.ahead, queue, kind, need, fixed, nodes)
        return found if found is not None or promised else self._breach(self.now, queue, kind, need, fixed, nodes)

    def _breach(
        self, ledger: Ledger, queue: QueueName, kind: GpuType, need: int, fixed: bool, nodes: Iterable[NodeName]
    ) -> Breach | None:
        branches, shares = self.branches, self.branches.shares(kind)
        leaf = branches.leaf(queue)
        for number in branches.path(leaf) if shares.limits else ():
            ceiling, would_be = shares.ceiling[number], ledger.under(number, kind) + need
            if ceiling is not None and would_be > ceiling:
                return Breach(queue=branches.names[number], would_be=would_be, ceiling=ceiling)
        for number in branches.path(leaf) if fixed else ():
            would_be = max(ledger.under(number, kind) + need, ledger.shape(number, kind, nodes))
            if shares.declared[number] and would_be > shares.guaranteed[number]:
                code = ReasonCode.NON_PREEMPTIBLE_OVER_GUARANTEE
                return Breach(
                    queue=branches.names[number], would_be=would_be, ceiling=shares.guaranteed[number], code=code
                )
        left = ledger.left(leaf, kind)
        return self._exhausted(ledger, leaf, kind, need, left) if need > left else None

    def _exhausted(self, ledger: Ledger, leaf: int, kind: GpuType, need: int, left: int) -> Breach:
        """Not enough is left. A queue that lends less than it leaves unused is named, when all it has would help."""
        branches, shares = self.branches, self.branches.shares(kind)
        path = branches.path(leaf)
        if shares.withholds and ledger.under(TOP, kind) + need <= shares.guaranteed[TOP]:
            others = [number for number in range(len(branches.names)) if number not in path]
            lender = max(others, key=lambda number: (ledger.idle_local(number, kind), -number), default=TOP)
            row = branches.rows[lender]
            if row is not None and row.lend is not None and ledger.idle_local(lender, kind):
                lend = row.lend.get(kind, 0)
                return Breach(queue=row.name, would_be=need, ceiling=lend, code=ReasonCode.LEND_LIMIT)
        return Breach(queue=branches.names[leaf], would_be=need, ceiling=left, code=ReasonCode.QUOTA_EXHAUSTED)

    def is_matter_of_gpus(self, breach: Breach, kind: GpuType, need: int) -> bool:
        """What is left is too little only because the GPUs themselves are all in use."""
        total = self.branches.shares(kind).total
        used = max(self.now.under(TOP, kind), self.ahead.under(TOP, kind))
        return breach.code is ReasonCode.QUOTA_EXHAUSTED and used + need > total

    def deficit(self, queue: QueueName, kind: GpuType, need: int, *, fixed: bool = False) -> int:
        """GPUs that have to be given up by anyone before the queue may have `need` more, beyond those of its place.

        A lower bound: a GPU given up elsewhere in the tree may help less than one of its own.
        """
        over = [gpus for _, gpus in self.overs(queue, kind, need, fixed=fixed)]
        if self.branches.shares(kind).withholds:
            over.append(need - self.ahead.left(self.branches.leaf(queue), kind))
        return max(0, *over, 0)

    def overs(self, queue: QueueName, kind: GpuType, need: int, *, fixed: bool = False) -> list[tuple[int, int]]:
        """(queue, GPUs) for each number on the way up that `need` more would pass, once what stops is gone: so many have
        to be given up inside that queue."""
        shares = self.branches.shares(kind)
        return [
            (number, over)
            for number in self.branches.path(self.branches.leaf(queue))
            for limit in self._limits(shares, number, fixed)
            if (over := self.ahead.under(number, kind) + need - limit) > 0
        ]

    # --- within and above guarantees ---

    def within(self, number: int, kind: GpuType, need: int, nodes: Iterable[NodeName] = ()) -> bool:
        """With `need` more GPUs (on `nodes`, if known) the queue is not above its guarantee, promises included."""
        would_be = max(self.ahead.under(number, kind) + need, self.ahead.shape(number, kind, nodes))
        return would_be <= self.branches.shares(kind).guaranteed[number]

    def spare(self, number: int, kind: GpuType) -> int:
        """GPUs that can be taken from a queue before it falls below its guarantee; below 0 when it already is."""
        return self.ahead.under(number, kind) - self.branches.shares(kind).guaranteed[number]

    def is_above(self, number: int, kind: GpuType) -> bool:
        """It has more than its guarantee, judged in whole nodes where the guarantee is."""
        return self.ahead.shape(number, kind) > self.branches.shares(kind).guaranteed[number]

    def excess(self, number: int, kind: GpuType, *, ahead: bool = True) -> int:
        """GPUs above its guarantee."""
        ledger = self.ahead if ahead else self.now
        return max(0, ledger.under(number, kind) - self.branches.shares(kind).guaranteed[number])

    def borrows(self, queue: QueueName, kind: GpuType, need: int) -> bool:
        """With `need` more GPUs some queue on the way up is above what was written as its guarantee, or nothing was."""
        shares = self.branches.shares(kind)
        said = [number for number in self.branches.path(self.branches.leaf(queue))[:-1] if shares.declared[number]]
        return not said or any(not self.within(number, kind, need) for number in said)
