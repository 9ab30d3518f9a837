"""Who may have how much? The arithmetic of guarantee, borrowing and lending for the flat queues of a scenario.

Written from the format and the rule book alone. GPUs of all types are counted together, as the format does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from reconciler.documents.scenario import JobRow, QueueRow
from reconciler.model.counting import counted
from reconciler.runtime.scenario.ledger import Ledger


class Quotas:
    """Use before and after a plan, by queue, and what the limits say to it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._world, self._plan = ledger, ledger.world, ledger.plan
        self._rows = self._world.queues

    @cached_property
    def before(self) -> Mapping[str, int]:
        """GPUs that running jobs of each queue hold, without those on their way out."""
        found = dict.fromkeys(self._rows, 0)
        for job, row in self._world.running.items():
            found[row.queue] += 0 if self._ledger.leaves(job) else sum(row.placement.values())
        return found

    @cached_property
    def after(self) -> Mapping[str, int]:
        """GPUs of each queue once the plan has been carried out, with what stays promised."""
        found = dict.fromkeys(self._rows, 0)
        for job, seats in self._ledger.afterwards().items():
            found[self._world.jobs[job].queue] += len(seats)
        for promise in self._world.scenario.promises:
            if promise.job not in self._plan.started:
                found[self._world.jobs[promise.job].queue] += sum(promise.nodes.values())
        return found

    def borrowed(self, use: Mapping[str, int]) -> dict[str, int]:
        """GPUs of each queue above its guarantee."""
        return {name: max(0, use[name] - row.guaranteed) for name, row in self._rows.items()}

    # --- limits ---

    def exceeded(self) -> Iterator[str]:
        """Queues in which something starts although they are over a limit then."""
        for name, row in self._rows.items():
            fresh = (job for job in self._plan.started if job in self._world.pending)  # a repair is no growth
            if not any(self._world.pending[job].queue == name for job in fresh):
                continue
            over = self.after[name] - row.guaranteed
            if row.borrow_limit is not None and over > row.borrow_limit:
                yield f"{name} borrows {counted(over, 'GPU')} of at most {row.borrow_limit}"
            elif over > 0 and self._pool(self.after) < 0:
                yield f"{name} borrows {counted(over, 'GPU')}, more than the other queues lend"

    def room(self, queue: str, use: Mapping[str, int] | None = None) -> int:
        """GPUs that a queue may add without taking anything back."""
        use = self.after if use is None else use
        row = self._rows[queue]
        left = max(0, _kept(row) - use[queue]) + max(0, self._pool(use))
        return max(0, left if row.borrow_limit is None else min(left, row.guaranteed + row.borrow_limit - use[queue]))

    def allow(self, row: JobRow, need: int, gone: Iterable[JobRow]) -> bool:
        """Whether the job may have so many GPUs, others being where they are or start, and these being gone."""
        use = dict(self.before)
        for job, started in self._plan.started.items():
            if job != row.job and not self._world.is_broken(job):
                use[self._world.jobs[job].queue] += len(started.seats)
        for victim in gone:
            use[victim.queue] -= sum(self._ledger.own(victim.job).values())
        return self.room(row.queue, use) >= need

    def _pool(self, use: Mapping[str, int]) -> int:
        """What is left of all that is not kept back by its owner; below 0 when more was taken."""
        kept = sum(_kept(row) for row in self._rows.values())
        taken = sum(max(0, use[name] - _kept(row)) for name, row in self._rows.items())
        return self._world.capacity - kept - taken

    # --- who may take from whom ---

    def unlawful(self, victims_queue: str, owner: JobRow) -> Iterator[str]:
        """Why a job may not take from another queue; nothing when it may."""
        policy = self._world.scenario.policy.preempt_other_queues
        if policy == "never":
            yield "queues do not take from each other"
            return
        taker, giver = self._rows[owner.queue], self._rows[victims_queue]
        if self.after[giver.name] < giver.guaranteed:
            yield f"{giver.name} falls below its guarantee"
        if self._shape(giver) <= giver.guaranteed:
            yield f"{giver.name} is not above its guarantee"
        if self._with(owner) <= taker.guaranteed or (policy == "fair_share" and self._is_fairer(taker, giver, owner)):
            return
        yield f"{taker.name} does not stay within its guarantee"

    def _is_fairer(self, taker: QueueRow, giver: QueueRow, owner: JobRow) -> bool:
        """What each has above its guarantee, by its weight: the taker no more than the giver afterwards."""
        mine = max(0, self._with(owner) - taker.guaranteed)
        return mine * giver.weight <= max(0, self.after[giver.name] - giver.guaranteed) * taker.weight

    def _with(self, owner: JobRow) -> int:
        """The least its queue has once it runs: what it had, less those of its own that make room, and the job."""
        leaving = {job for job in self._plan.displaced_for(owner.job) if self._world.jobs[job].queue == owner.queue}
        if self._rows[owner.queue].guaranteed_shape == "node":
            nodes = set(self._plan.seats(owner.job) or ())
            for job, row in self._world.running.items():
                if row.queue == owner.queue and job not in leaving and not self._ledger.leaves(job):
                    nodes |= set(row.placement)
            return sum(self._world.nodes[node].row.gpus for node in nodes)
        freed = sum(sum(self._ledger.given_up(job).values()) for job in leaving)
        return self.before[owner.queue] - freed + len(self._plan.seats(owner.job) or ())

    def _shape(self, queue: QueueRow) -> int:
        """Its use now, in whole nodes touched where its guarantee is in whole nodes."""
        if queue.guaranteed_shape == "gpu":
            return self.before[queue.name]
        nodes = {node for row in self._world.running.values() if row.queue == queue.name for node in row.placement}
        return sum(self._world.nodes[node].row.gpus for node in nodes)


def _kept(row: QueueRow) -> int:
    """What a queue lends to nobody."""
    return 0 if row.lend_limit is None else max(0, row.guaranteed - row.lend_limit)
