"""Which nodes are closed to a job, and when: maintenance, and reservations of other people.

A window takes no job that would end after its beginning; a job without a limit is taken to last `unlimitedCountsAs`.
A Reservation document is a window for all but its members, jobs of its queues and of those below; strangers may use
its nodes until it begins. Two windows on one node are no conflict: the stricter holds. What becomes of work that is
still there is told by `drain`: checkpoint and kill stop it, a grace before, non-preemptible work too; wait lets it be.
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.model.allocation import JobRecord
from reconciler.model.desired import Desired, Window
from reconciler.model.job import Job
from reconciler.model.queue import QuotaTree
from reconciler.model.units import Instant, QueueName
from reconciler.planner.ground import Ground
from reconciler.topology.tree import NodeMask


def admits(window: Window, queue: QueueName, quotas: QuotaTree) -> bool:
    """The window is for jobs of this queue: it is a member, or a queue above it is."""
    return bool(window.members) and not set(window.members).isdisjoint(quotas.path(queue))


def closed_between(
    desired: Desired, ground: Ground, job: Job, begins: Instant, ends: Instant
) -> tuple[NodeMask, Instant]:
    """Nodes that some window closes to the job within a span, and when the last of these windows is over."""
    mask: NodeMask = 0
    over = begins
    for window in desired.windows:
        index = ground.tree.index_of.get(window.node)
        if index is None or begins >= window.ends or ends <= window.begins:
            continue
        if not admits(window, job.queue, desired.quotas):
            mask |= 1 << index
            over = max(over, window.ends)
    return mask, over


def open_window(record: JobRecord, windows: Iterable[Window], quotas: QuotaTree, now: Instant) -> Window | None:
    """The first window that makes a gang leave now: its grace before the beginning."""
    if record.placement is None:
        return None
    nodes = set(record.placement.nodes)
    return next(
        (
            window
            for window in windows
            if window.node in nodes and window.drain != "wait" and window.begins - record.grace <= now < window.ends
            and not admits(window, record.queue, quotas)
        ),
        None,
    )  # fmt: skip


def begins_next(windows: Iterable[Window], now: Instant) -> list[Instant]:
    """Instants at which a window begins or ends later on, soonest first."""
    return sorted({at for window in windows for at in (window.begins, window.ends) if at > now})
