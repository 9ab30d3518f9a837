"""What follows for one gang from its orders and from what Slurm says of it? A table, first match wins; pure.

Slurm starts and ends a gang as a whole, so one verdict holds for all its nodes. Nothing else remembers how far a
start or a stop has come: a reconciler killed at any line goes on from what Slurm shows. Doing it is for `engine`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from reconciler.engines.slurm.naming import Tag
from reconciler.engines.slurm.seen import SlurmJob
from reconciler.model.observed import AttemptState
from reconciler.model.units import SECOND, Instant
from reconciler.wire import CheckpointOrder


class Do(StrEnum):
    """What to do next. All of them are safe to repeat."""

    NOTHING = "nothing"
    SUBMIT = "submit"
    ASK = "ask for a checkpoint"
    CANCEL = "cancel"


class Standing(StrEnum):
    """How one submission stands, over all its parts."""

    WAITS = "Waits"
    RUNS = "Runs"
    ENDS = "Ends"
    OVER = "Over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One submission as Slurm shows it: a plain job, or all parts of a heterogeneous one, the first in front."""

    tag: Tag
    jobs: tuple[SlurmJob, ...]

    @property
    def id(self) -> int:
        """The number that commands take for the whole."""
        return self.jobs[0].het or self.jobs[0].id

    @property
    def standing(self) -> Standing:
        if all(job.over for job in self.jobs):
            return Standing.OVER
        if any(job.over or job.completing for job in self.jobs):
            return Standing.ENDS
        return Standing.RUNS if all(job.holds for job in self.jobs) else Standing.WAITS

    @property
    def requeued(self) -> bool:
        """Slurm or an operator put it back in line: it would start once more without a decision."""
        return any(job.restarts for job in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What the gang's own script wrote: that it began, and with which status it ended."""

    begun: bool = False
    code: int | None = None


NO_RECEIPT: Final = Receipt()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attempt and all that the table looks at. `phase` "" when no order names it. `refusal`: why Slurm cannot have
    it; `busy`: its GPUs are not clear yet; `up`: its ranks can be signalled. `marker` is the mtime of the checkpoint marker in ns, None for none."""

    phase: str
    submitted: tuple[Submitted, ...] = ()
    receipt: Receipt = NO_RECEIPT
    refusal: str = ""
    busy: bool = False
    up: bool = True
    checkpoint: CheckpointOrder | None = None
    marker: int | None = None
    now: Instant = Instant(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to report of the attempt on each of its nodes, and what to do: to `target` for ask and cancel.

    `extra` are submissions of the same attempt that may not run beside the first.
    """

    state: AttemptState
    code: int | None = None
    reason: str = ""
    do: Do = Do.NOTHING
    target: Submitted | None = None
    extra: tuple[Submitted, ...] = ()


def judge(case: Case) -> Verdict:
    """The verdict on one attempt."""
    alive = sorted((s for s in case.submitted if s.standing is not Standing.OVER), key=_foremost)
    first, extra = (alive[0], tuple(alive[1:])) if alive else (None, ())
    if case.phase in ("prepare", "run"):
        verdict = _going(case, first) if first else _absent(case)
    else:
        verdict = _stopping(case, first) if first else _gone(case)
    return Verdict(
        state=verdict.state, code=verdict.code, reason=verdict.reason, do=verdict.do, target=first, extra=extra
    )


def _foremost(submitted: Submitted) -> tuple[int, int]:
    """What runs stays; of two that do not, the earlier one."""
    return _ORDER[submitted.standing], submitted.id


_ORDER: Final = {Standing.RUNS: 0, Standing.ENDS: 1, Standing.WAITS: 2, Standing.OVER: 3}


def _going(case: Case, first: Submitted) -> Verdict:
    """Wanted, and in Slurm. A gang whose ranks are not up yet has not started, whatever Slurm calls it."""
    if first.standing is Standing.WAITS:
        if first.requeued:
            return Verdict(state=AttemptState.RUNNING, do=Do.CANCEL)
        return Verdict(state=AttemptState.PREPARED)
    started = case.up or first.standing is Standing.ENDS
    return Verdict(state=AttemptState.RUNNING if started else AttemptState.PREPARED)


def _absent(case: Case) -> Verdict:
    """Wanted, and nothing of it is in Slurm: it ended, was lost by a controller, or was never submitted."""
    if case.phase == "run" and (ended := _ended(case)):
        return ended
    if case.refusal:
        return Verdict(state=AttemptState.REFUSED, reason=case.refusal)
    if case.phase == "prepare":
        return Verdict(state=AttemptState.PREPARING if case.busy else AttemptState.PREPARED)
    # A gang that began and is absent was lost with its controller: the same attempt goes on, from its checkpoint.
    state = AttemptState.RUNNING if case.receipt.begun else AttemptState.PREPARED
    return Verdict(state=state, do=Do.NOTHING if case.busy else Do.SUBMIT)


def _ended(case: Case) -> Verdict | None:
    """How it ended, by Slurm's word or by its own receipt."""
    # One that ended before it had nodes never was the gang: a submission too many, which we cancelled ourselves, or one
    # that somebody cancelled while it waited, and that is submitted again.
    real = [s for s in case.submitted if s.requeued or any(job.nodes for job in s.jobs)]
    over = max(real, key=lambda s: (s.jobs[0].state == "COMPLETED", s.id), default=None)
    if over is None:
        code = case.receipt.code
        return None if code is None else Verdict(state=AttemptState.EXITED, code=code)
    job = next((part for part in over.jobs if part.state != "COMPLETED"), over.jobs[0])
    if job.state == "COMPLETED":
        return Verdict(state=AttemptState.EXITED, code=0)
    if job.state in ("TIMEOUT", "DEADLINE"):
        return Verdict(state=AttemptState.GONE, reason="DeadlinePassed")
    said = "Requeued" if over.requeued else _WORDS.get(job.state, "")
    code = job.exit_code or (128 + job.signal if job.signal else case.receipt.code) or 1
    return Verdict(state=AttemptState.EXITED, code=code, reason=said)


_WORDS: Final = {
    "NODE_FAIL": "NodeFail: Slurm lost a node of it",
    "BOOT_FAIL": "NodeFail: a node did not boot",
    "PREEMPTED": "Preempted: Slurm gave its nodes to another job",
    "CANCELLED": "Cancelled: somebody cancelled it in Slurm",
    "OUT_OF_MEMORY": "OutOfMemory",
}


def _stopping(case: Case, first: Submitted) -> Verdict:
    """To be stopped, and something of it is in Slurm."""
    if first.standing is Standing.ENDS:
        return Verdict(state=AttemptState.STOPPING)
    checkpoint = case.checkpoint
    if first.standing is Standing.WAITS or case.phase != "checkpoint" or checkpoint is None:
        return Verdict(state=AttemptState.STOPPING, do=Do.CANCEL)
    if not first.tag.asked:
        return Verdict(state=AttemptState.STOPPING, do=Do.ASK)
    saved = case.marker is not None and case.marker > first.tag.marker
    over = case.now >= first.tag.asked + checkpoint.graceSeconds * SECOND
    return Verdict(state=AttemptState.STOPPING, do=Do.CANCEL if saved or over else Do.NOTHING)


def _gone(case: Case) -> Verdict:
    """To be stopped, and nothing of it is left."""
    ended = _ended(case)
    return Verdict(state=AttemptState.GONE, code=ended.code if ended else None)


def submissions(tagged: Iterable[tuple[Tag, SlurmJob]]) -> tuple[Submitted, ...]:
    """Jobs put together to submissions: the parts of a heterogeneous job belong to one."""
    found: dict[int, list[tuple[Tag, SlurmJob]]] = {}
    for tag, job in tagged:
        found.setdefault(job.het or job.id, []).append((tag, job))
    parts = (sorted(part, key=lambda item: item[1].id) for _, part in sorted(found.items()))
    return tuple(Submitted(tag=part[0][0], jobs=tuple(job for _, job in part)) for part in parts)
