"""What `gangops explain` knows of a job, a node or a queue: the planner asked live, on the state as it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reconciler.documents.quantities import print_instant
from reconciler.documents.values import tree_of
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.decision import Tidying
from reconciler.model.desired import Desired, Window
from reconciler.model.inventory import Node
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import NodeObservation, Observed
from reconciler.model.queue import Queue
from reconciler.model.reasons import Reason
from reconciler.model.units import GpuType, Instant, JobKey
from reconciler.planner.admit import Sweep
from reconciler.planner.capacity import Outage, outages_of
from reconciler.planner.counterfactual import Counterfactual, counterfactuals
from reconciler.planner.decide import decide
from reconciler.planner.draft import Draft
from reconciler.planner.explain import blockers_of
from reconciler.planner.forecast import Forecast, forecast
from reconciler.planner.ground import ground_of
from reconciler.planner.line import line_of
from reconciler.planner.usage import brought_to
from reconciler.render.names import when
from reconciler.render.node import Trouble, troubles


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExplained:
    """Every blocker, binding one first; what would start it; and when it starts as it is, when that is known."""

    blockers: tuple[Reason, ...] = ()
    offers: tuple[Counterfactual, ...] = ()
    expected: Forecast | None = None

    def content(self) -> dict[str, object]:
        """As trees, for JSON and YAML."""
        found: dict[str, object] = {"blockers": [tree_of(one) for one in self.blockers]}
        found["counterfactuals"] = [
            {
                "changes": [
                    {"path": list(c.path), "value": c.value, **({"queue": c.queue} if c.queue else {})}
                    for c in offer.changes
                ],
                "when": print_instant(offer.when), "disturbs": list(offer.disturbs), "lostGpuSeconds": offer.lost,
            }
            for offer in self.offers
        ]  # fmt: skip
        if self.expected is not None:
            p90 = self.expected.p90
            found["forecast"] = {
                "at": print_instant(self.expected.at), "reserved": self.expected.reserved,
                **({"p90": print_instant(p90)} if p90 is not None else {}),
            }  # fmt: skip
        return found


def explained(desired: Desired, observed: Observed, allocated: Allocation, key: JobKey, now: Instant) -> JobExplained:
    """Worked out for this moment. A job that does not wait has nothing to explain but its reason."""
    record = allocated.jobs[key]
    if record.state not in (JobState.PENDING, JobState.HELD, JobState.PROMISED):
        return JobExplained()
    waits = record.state is JobState.PENDING
    return JobExplained(
        blockers=blockers_of(desired, observed, allocated, key, now) if waits else (),
        offers=counterfactuals(desired, observed, allocated, key, now),
        expected=forecast(desired, observed, allocated, now, [key]).get(key),
    )


def proposals(desired: Desired, observed: Observed, allocated: Allocation, now: Instant) -> tuple[Tidying, ...]:
    """What defragmentation proposes in this moment; nothing where it is not asked to, or there is nothing to gain."""
    rules = desired.scheduling
    if rules.defragment_action != "propose" or allocated.metrics.phi_ppm <= rules.defragment_threshold_ppm:
        return ()
    return decide(desired, observed, allocated, Instant(max(now, allocated.decided_at))).tidying


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExplained:
    """What is on a node, what of it is out, and who waits for its GPUs and how."""

    seen: NodeObservation | None
    wrong: tuple[Trouble, ...]
    outages: tuple[Outage, ...]
    holders: Mapping[JobKey, int]
    bookings: tuple[tuple[JobKey, str], ...]
    windows: tuple[Window, ...]

    def content(self) -> dict[str, object]:
        """As trees."""
        return {
            "condition": str(self.seen.condition) if self.seen is not None else "NotObserved",
            "states": [one.tree() for one in self.wrong],
            "out": [{"code": str(d.code), "gpus": d.gpus, "detail": d.detail} for d in self.outages],
            "holders": {job: mask.bit_count() for job, mask in sorted(self.holders.items())},
            "waiting": [{"job": job, "how": how} for job, how in self.bookings],
            "windows": [tree_of(window) for window in self.windows],
        }


def node_explained(
    desired: Desired, observed: Observed, allocated: Allocation, node: Node, now: Instant
) -> NodeExplained:
    """Worked out for this moment, the pass made once to know who would book its GPUs."""
    draft = _draft(desired, observed, allocated, now)
    index, bookings = draft.ground.tree.index_of[node.name], list[tuple[JobKey, str]]()
    for record in allocated.jobs.values():
        if record.promise is not None and node.name in record.promise.placement.nodes:
            bookings.append((record.job, "promised"))
    for booking in _swept(draft, allocated, now).bookings.made:
        if index in booking.masks:
            how = "held for it" if booking.is_hold else f"reserved from {when(booking.until)}"
            bookings.append((booking.owner, how))
    seen = observed.nodes.get(node.name)
    return NodeExplained(
        seen=seen, wrong=troubles(node, seen), holders=allocated.holders().get(node.name, {}), bookings=tuple(bookings),
        outages=tuple(d for d in outages_of(draft.ground, observed, allocated) if d.node == node.name),
        windows=tuple(w for w in desired.windows if w.node == node.name and w.ends > now),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueExplained:
    """GPUs held and room for more by type, and the jobs that wait in it or below it."""

    used: Mapping[GpuType, int]
    rooms: Mapping[GpuType, int]
    waiting: tuple[JobRecord, ...]

    def content(self) -> dict[str, object]:
        """As trees."""
        reasons: dict[str, int] = {}
        for record in self.waiting:
            reasons[record.reason.code] = reasons.get(record.reason.code, 0) + 1
        return {"held": dict(self.used), "room": dict(self.rooms), "waiting": reasons}


def queue_explained(
    desired: Desired, observed: Observed, allocated: Allocation, queue: Queue, now: Instant
) -> QueueExplained:
    """Worked out for this moment."""
    draft = _draft(desired, observed, allocated, now)
    inside = {name for name in desired.quotas.queues if queue.name in desired.quotas.path(name)}
    mine = [record for record in allocated.jobs.values() if record.queue in inside]
    used: dict[GpuType, int] = {}
    for record in mine:
        if record.gpus_bound:
            kind = draft.charges.types[record.job]
            used[kind] = used.get(kind, 0) + record.gpus_bound
    rooms = {kind: draft.quotas.room(queue.name, kind) for kind in draft.ground.types}
    waiting = tuple(record for record in mine if record.state in (JobState.PENDING, JobState.HELD))
    return QueueExplained(used=used, rooms=rooms, waiting=waiting)


def _draft(desired: Desired, observed: Observed, allocated: Allocation, now: Instant) -> Draft:
    at = Instant(max(now, allocated.decided_at))
    return Draft(desired, observed, ground_of(desired.inventory), dict(allocated.jobs), at)


def _swept(draft: Draft, allocated: Allocation, now: Instant) -> Sweep:
    """The pass as it would be made now."""
    accounts, _ = brought_to(allocated.usage, allocated.usage_as_of, now, draft.desired.scheduling.half_life)
    sweep = Sweep(draft)
    sweep.run(line_of(draft, accounts))
    return sweep
