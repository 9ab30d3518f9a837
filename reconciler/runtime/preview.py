"""What would be decided for a commit that is not merged yet: the same decision the loop would make, on the newest
state commit of a clone. Asks no agent and no network; the observation is the committed one."""

from __future__ import annotations

from dataclasses import replace

from reconciler.errors import InvalidInput
from reconciler.model.units import Instant
from reconciler.planner.changes import changes_between
from reconciler.render.plan import Plan, plan_of
from reconciler.runtime.clone import Clone
from reconciler.runtime.generation import Generation, Inputs, NextGeneration, next_generation
from reconciler.runtime.reading import DesiredReader
from reconciler.store.objects import resolve


def preview(clone: Clone, head: str, now: Instant, *, base: str | None = None) -> Plan:
    """The plan of `head`; with `base`, the decision for `head` as compared with what `base` alone would give.

    Raises InvalidInput when the head has errors, NotFound for an unknown revision or a missing state branch.
    """
    current = clone.generation()
    reader = DesiredReader(clone.git)
    following = _decide(clone, reader, head, current, now)
    decision, before = following.decision, current.allocation
    if base is not None:
        before = _decide(clone, reader, base, current, now).allocation
        decision = replace(decision, changes=changes_between(before.jobs, decision.allocation.jobs))
    return plan_of(
        decision,
        before.metrics,
        following.inputs.desired,
        state=current.commit,
        generation=current.summary.generation,
        digest=following.summary.inputs_digest,
    )


def _decide(clone: Clone, reader: DesiredReader, revision: str, current: Generation, now: Instant) -> NextGeneration:
    read = reader.read(resolve(clone.git, revision), current)
    errors = [d for d in read.diagnostics if d.is_error]
    if errors or read.desired is None:
        raise InvalidInput(read.diagnostics)
    return next_generation(
        Inputs(
            desired=read.desired,
            read=read.read,
            frozen=read.frozen,
            observed=current.observed,
            previous=current,
            now=now,
            trigger="preview",
        )
    )
