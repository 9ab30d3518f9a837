"""What keeps a running gang from being disturbed now, and until when?

The table of protections of rule book §6: not preemptible, minRuntime, cooldown, maxPerDay. The class says the
strongest protection, a job may say less; the last two do not stop a reclaim, but for one within a cooldown of another.
Guarantees of queues are for `rights`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.units import DAY, Instant, Nanoseconds
from reconciler.planner import steps
from reconciler.planner.draft import Draft

NOBODY: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shield:
    """A protection by its name, and when it ends; None: not by itself. No name: nothing protects."""

    by: str = NOBODY
    until: Instant | None = None


BARE: Final = Shield()


class Shields:
    """The protections of one decision. What a class and a job say together is worked out once."""

    __slots__ = ("_draft", "_terms")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._terms: dict[tuple[object, ...], tuple[bool, Nanoseconds, int]] = {}

    def of(self, record: JobRecord, job: Job, *, reclaim: bool = False) -> Shield:
        """The first protection that keeps a running gang from being disturbed; `reclaim`: by the owner of what it borrows.

        A gang whose queue is gone has no protection but minRuntime.
        """
        draft = self._draft
        key = (job.priority_class, job.on_preempt, job.min_runtime, job.max_per_day)
        terms = self._terms.get(key)
        if terms is None:
            terms = self._terms[key] = (draft.is_fixed(job), min_runtime(draft, job), max_per_day(draft, job))
        fixed, least, most = terms
        orphaned = not draft.is_queue(record.queue)
        if fixed and not orphaned:
            return Shield(by="nonPreemptible")
        if record.started is None or draft.now < record.started + least:
            return Shield(by="minRuntime", until=Instant((record.started or draft.now) + least))
        if orphaned or (most and not record.interruptions):
            return BARE
        cooldown = draft.desired.scheduling.cooldown
        if reclaim:  # what gave borrowed GPUs back came again without borrowing: others of its queue borrow now
            again = record.reclaimed is not None and draft.now < record.reclaimed + cooldown
            return (
                Shield(by="cooldown", until=Instant(record.reclaimed + cooldown))
                if again and record.reclaimed
                else BARE
            )
        if record.interruptions and draft.now < record.interruptions[-1] + cooldown:
            return Shield(by="cooldown", until=Instant(record.interruptions[-1] + cooldown))
        recent = steps.recent(record.interruptions, draft.now)
        if len(recent) >= most:
            return Shield(by="maxPerDay", until=Instant(recent[-most] + DAY) if most else None)
        return BARE


def min_runtime(draft: Draft, job: Job) -> Nanoseconds:
    """How long it runs undisturbed. A job may say less than its class, never more; the cluster's cap binds all."""
    own, rules = draft.class_of(job), draft.desired.scheduling
    strongest = own.min_runtime if own is not None else None
    usual = strongest if strongest is not None else rules.min_runtime
    said = job.min_runtime if job.min_runtime is not None else usual
    return min(said, rules.max_min_runtime, usual)


def max_per_day(draft: Draft, job: Job) -> int:
    """Interruptions a day it has to bear. A job may bear more than its class says, never fewer."""
    own = draft.class_of(job)
    fewest = own.max_per_day if own is not None else None
    usual = fewest if fewest is not None else draft.desired.scheduling.max_per_day
    said = job.max_per_day if job.max_per_day is not None else usual
    return max(said, usual)
