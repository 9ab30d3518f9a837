"""By what right does a running gang go on elsewhere, or with another number of GPUs?

A move goes from one node onto GPUs that nobody had, for a job that really takes the place left, within the limits of
the configuration; a shrink keeps some of its GPUs and gives the others to whom it shrank for, by a right to evict it; a
growth keeps all it has. Sizes are those an elastic gang may have. Protections hold as for a victim. A gang that
began to stop for another cause is looked at elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.model.allocation import JobRecord
from reconciler.model.lifecycle import Cause, JobState
from reconciler.model.units import HOUR, NodeName
from reconciler.planner.verify.case import Breach, Case, Violation, bound_by, held_by
from reconciler.planner.verify.quotas import LOST, Tree, tree_of
from reconciler.planner.verify.victims import has_right, helps, protections, ran, takes_anew, within_guarantee


def displaced(case: Case, before: JobRecord | None, after: JobRecord) -> Iterator[Violation]:
    """A gang told to go on in another place of its own."""
    told = before is not None and before.state is JobState.STOPPING
    if (
        after.state is not JobState.STOPPING
        or after.cause not in (Cause.MOVED, Cause.RESIZED)
        or told
        or before is None
    ):
        return
    tree = tree_of(case, case.gpu_type(before.placement))
    if not ran(case, before):
        yield Violation(code=Breach.NO_RIGHT_TO_EVICT, job=after.job, detail="it did not run")
    for protection in protections(case, before, after.cause, is_orphan=LOST in tree.path(before.queue)):
        yield Violation(code=Breach.VICTIM_PROTECTED, job=after.job, detail=protection)
    if after.promise is None:
        yield Violation(code=Breach.STOPPED_WITHOUT_CAUSE, job=after.job, detail=after.cause or "")
        return
    yield from (_moved if after.cause is Cause.MOVED else _resized)(
        case, tree, before, after, after.promise.placement.masks
    )
    if after.preemptor is not None:
        winner = case.next.jobs.get(after.preemptor)
        if winner is None or not takes_anew(case, winner) or not helps(case, tree, winner, after):
            yield Violation(code=Breach.VICTIM_IN_VAIN, job=after.job, detail=f"for {after.preemptor}")


def _moved(
    case: Case, tree: Tree, before: JobRecord, after: JobRecord, target: dict[NodeName, int]
) -> Iterator[Violation]:
    held = held_by(before)
    if len(held) != 1 or (
        before.placement and after.promise and len(before.placement.ranks) != len(after.promise.placement.ranks)
    ):
        yield Violation(code=Breach.WRONG_SIZE, job=after.job, detail="only a gang of one node moves, and whole")
    for other in case.previous.jobs.values():
        mine = bound_by(other)
        if any(mask & mine.get(node, 0) for node, mask in target.items()) and not _is_free_now(case, other):
            yield Violation(code=Breach.NOT_FREE_YET, job=after.job, detail=f"{other.job} had it")
    rules = case.desired.scheduling
    told = [r for b, r in case.changed if r is not None and r.cause is Cause.MOVED and r.state is JobState.STOPPING
            and (b is None or b.state is not JobState.STOPPING) and r.preemptor == after.preemptor]  # fmt: skip
    if after.preemptor is None:
        recent = [at for at in case.previous.moved if at > case.now - HOUR]
        if rules.defragment_action != "move" or len(recent) + len(told) > rules.defragment_moves_per_hour:
            yield Violation(code=Breach.TOO_MANY_MOVES, job=after.job, detail=f"{len(recent)} within the hour")
        return
    if rules.move_to_start == "never" or len(told) > rules.max_moves_per_start:
        yield Violation(code=Breach.TOO_MANY_MOVES, job=after.job, detail=f"{len(told)} for {after.preemptor}")
    winner = case.next.jobs.get(after.preemptor)
    if winner is not None and not _may_move(case, tree, winner, before):
        yield Violation(code=Breach.NO_RIGHT_TO_EVICT, job=after.job, detail=f"for {winner.job}")


def _is_free_now(case: Case, other: JobRecord) -> bool:
    """What it had was seen released: it holds those GPUs no more, in the same attempt or at all."""
    now = case.next.jobs.get(other.job)
    return now is None or not now.state.holds_gpus or now.attempt != other.attempt


def _may_move(case: Case, tree: Tree, winner: JobRecord, mover: JobRecord) -> bool:
    """Same queue and not above the winner, or the winner stays within its guarantee below the common queue."""
    upper, lower = case.desired.jobs.get(winner.job), case.desired.jobs.get(mover.job)
    above, below = (case.priority(job) if job else None for job in (upper, lower))
    if winner.queue == mover.queue and above is not None and below is not None and above.value >= below.value:
        return True
    return within_guarantee(case, tree, winner, mover)


def _resized(
    case: Case, tree: Tree, before: JobRecord, after: JobRecord, target: dict[NodeName, int]
) -> Iterator[Violation]:
    job, held = case.desired.jobs.get(after.job), held_by(before)
    size, had = sum(mask.bit_count() for mask in target.values()), before.gpus_held
    allowed = job is not None and job.elastic is not None and job.resized(size) is not None
    least = job.elastic.least * job.group_gpus if job is not None and job.elastic is not None and not job.roles else 0
    if not allowed or size == had or (size < had and size < least):
        yield Violation(code=Breach.WRONG_SIZE, job=after.job, detail=f"{size} instead of {had}")
    inner, outer = (target, held) if size < had else (held, target)
    if any(mask & ~outer.get(node, 0) for node, mask in inner.items()):
        yield Violation(code=Breach.WRONG_SIZE, job=after.job, detail="it does not keep its place")
    if size > had:
        if after.preemptor is not None:
            yield Violation(code=Breach.VICTIM_IN_VAIN, job=after.job, detail="grows for another")
        return
    winner = case.next.jobs.get(after.preemptor) if after.preemptor is not None else None
    if winner is None or not has_right(case, tree, winner, before):
        yield Violation(code=Breach.NO_RIGHT_TO_EVICT, job=after.job, detail=f"for {after.preemptor}")
