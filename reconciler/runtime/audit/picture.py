"""The page of a record as a value: what the index, the newest generation and an audit say, cut to a time and a size.

Everything is drawn bar by bar while that stays a few thousand bars; beyond it each rack is drawn as shares over slices
of time, so that a thousand nodes and a month are still one small file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.units import SECOND, Instant, NodeName
from reconciler.render.names import when
from reconciler.render.page_values import Bar, DecisionShown, LossShown, Page, QueueShown, Sample, Share
from reconciler.render.pictures import MOST_ROWS
from reconciler.runtime.audit.glance import masks
from reconciler.runtime.audit.index import EVICTED, HOLDING, Index, gpus_in
from reconciler.runtime.audit.scenes import scenes
from reconciler.runtime.audit.standing import jobs_shown, nodes_shown, remarks
from reconciler.runtime.audit.usage import Used, usage
from reconciler.runtime.generation import Generation
from reconciler.store.history import parse_commit
from reconciler.store.objects import raw_commits
from reconciler.store.runner import Git
from reconciler.topology.drift import drift_of

MOST_BARS = 4000
_SLICES, _MOST_SHARES, _SAMPLES, _DECISIONS, _LOSSES = 120, 6000, 600, 60, 100
_WORDS = {
    "Starting": "starting",
    "Running": "running",
    "Stopping": "stopping",
    "Lost": "stalled",
    "Repairing": "stalled",
}


def picture(
    git: Git, index: Index, current: Generation, desired: Desired, *, since: Instant, until: Instant, made: Instant,
    seal: str, sealed: bool | None,
) -> Page:  # fmt: skip
    """The page over a time. Raises StoreError; UsageError where the record knows nothing of that time."""
    used = usage(index, scenes(git, index), by="queue", since=since, until=until)
    bars = list(_bars(index, since, until)) if len(desired.inventory.nodes) <= MOST_ROWS else []
    if len(bars) > MOST_BARS:
        bars = []
    metrics = current.summary.metrics
    jobs, more_jobs = jobs_shown(desired, current.allocation.jobs, made)
    states = [record.state for record in current.allocation.jobs.values()]
    losses = list(_losses(index, since, until))
    decisions, more = _decisions(git, index, since, until)
    return Page(
        cluster=current.summary.cluster_id,
        generation=current.summary.generation,
        commit=current.commit,
        made=made,
        since=since,
        until=until,
        declared=metrics.declared,
        capacity=metrics.capacity,
        held=metrics.held,
        idle=metrics.idle,
        stranded=metrics.stranded,
        phi=metrics.phi_ppm,
        running=states.count(JobState.RUNNING),
        waiting=sum(state in {JobState.PENDING, JobState.PROMISED} for state in states),
        queues=tuple(_queues(current, desired, used)),
        jobs=jobs,
        more_jobs=more_jobs,
        nodes=tuple(nodes_shown(desired, current.allocation, current.observed)),
        bars=tuple(bars),
        shares=() if bars else tuple(_shares(index, desired, since, until)),
        samples=tuple(_samples(index, since, until)),
        decisions=decisions,
        more_decisions=more,
        losses=tuple(losses[:_LOSSES]),
        more_losses=max(0, len(losses) - _LOSSES),
        lost_seconds=sum(total.hours.lost_preempted + total.hours.lost_failed for total in used.totals) // SECOND,
        drift=tuple(
            (one.node, f"{one.sentence} ({one.effect})", one.is_grave)
            for one in drift_of(desired.inventory, current.observed)
        ),
        seal=seal,
        sealed=sealed,
        threshold=desired.scheduling.defragment_threshold_ppm,
        spares=sum(record.gpus_bound - record.gpus_held for record in current.allocation.jobs.values()),
        remarks=tuple(remarks(current, desired, until)),
    )


def _spans(index: Index, since: Instant, until: Instant) -> Iterator[tuple[int, Instant, Instant]]:
    """(event, from, to) of everything held, cut to the time; by job's last change."""
    at, columns = index.commits["at"], index.events
    open_at: dict[int, int] = {}
    for event, (commit, job) in enumerate(zip(columns["commit"], columns["job"], strict=True)):
        before = open_at.pop(job, None)
        if before is not None:
            yield from _cut(index, before, at[commit], since, until)
        if index.text("state", event) in HOLDING:
            open_at[job] = event
    for event in open_at.values():
        yield from _cut(index, event, until, since, until)


def _cut(index: Index, event: int, end: int, since: Instant, until: Instant) -> Iterator[tuple[int, Instant, Instant]]:
    begin = max(index.commits["at"][index.events["commit"][event]], since)
    end = min(end, until)
    if begin < end:
        yield event, Instant(begin), Instant(end)


def _bars(index: Index, since: Instant, until: Instant) -> Iterator[Bar]:
    """Sorted by node, then time; a job's equal neighbours in time are one bar."""
    merged: dict[tuple[int, str, int], list[tuple[str, int, Instant, Instant]]] = defaultdict(list)
    for event, begin, end in _spans(index, since, until):
        for node, mask, state in _taken(index, event):
            row = merged[index.events["job"][event], node, mask]
            if (
                row
                and row[-1][0] == state
                and row[-1][3] == begin
                and index.events["attempt"][row[-1][1]] == index.events["attempt"][event]
            ):
                row[-1] = (state, row[-1][1], row[-1][2], end)
            else:
                row.append((state, event, begin, end))
    found = [
        bar for (_, node, mask), rows in merged.items() for state, event, begin, end in rows for bar in _of_mask(index, event, node, mask, state, begin, end)
    ]  # fmt: skip
    yield from sorted(found, key=lambda bar: (bar.node, bar.since, bar.first, bar.job))


def _taken(index: Index, event: int) -> Iterator[tuple[str, int, str]]:
    """(node, GPU mask, state) of all that nobody else can have; spares are a state of their own."""
    state = _WORDS.get(index.text("state", event), "stopping")
    for node, mask in masks(index.text("place", event)).items():
        yield node, mask, state
    for node, mask in masks(index.text("spares", event)).items():
        yield node, mask, "spare"


def _of_mask(index: Index, event: int, node: str, mask: int, state: str, begin: Instant, end: Instant) -> Iterator[Bar]:
    """One bar for each run of neighbouring GPUs."""
    job, queue = index.text("job", event), index.text("queue", event)
    generation = index.commits["generation"][index.events["commit"][event]]
    while mask:
        first = (mask & -mask).bit_length() - 1
        count = 0
        while mask >> first + count & 1:
            count += 1
        mask &= ~((1 << count) - 1 << first)
        told = f"{job} attempt {index.events['attempt'][event]}, {state}: {counted(count, 'GPU')} of {node}, {when(begin)} to {when(end)}, since generation {generation}"
        yield Bar(
            node=node, first=first, count=count, job=job, queue=queue, state=state, since=begin, until=end, told=told
        )


def _shares(index: Index, desired: Desired, since: Instant, until: Instant) -> Iterator[Share]:
    """Each rack's queues over slices of time, equal neighbours joined."""
    racks = {node.name: node.rack for node in desired.inventory.nodes}
    sizes: dict[str, int] = defaultdict(int)
    for node in desired.inventory.nodes:
        sizes[node.rack] += len(node.shape.gpus)
    slices = max(12, min(_SLICES, _MOST_SHARES // max(1, len(sizes))))
    wide = max(1, (until - since) // slices)
    held: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for event, begin, end in _spans(index, since, until):
        gpus: dict[str, int] = defaultdict(int)
        for name, mask, _ in _taken(index, event):
            gpus[racks.get(NodeName(name), "")] += mask.bit_count()
        for number in range((begin - since) // wide, min((end - since - 1) // wide, slices - 1) + 1):
            inside = min(end, since + (number + 1) * wide) - max(begin, since + number * wide)
            for rack, count in gpus.items():
                held[rack, number][index.text("queue", event)] += count * max(0, inside)
    for rack in dict.fromkeys(node.rack for node in desired.inventory.nodes):
        for number in range(slices):
            parts = tuple(
                (queue, amount * 1_000_000 // (sizes[rack] * wide))
                for queue, amount in sorted(held[rack, number].items())
            )
            if parts:
                yield Share(
                    rack=rack,
                    since=Instant(since + number * wide),
                    until=Instant(since + (number + 1) * wide),
                    parts=parts,
                )


def _queues(current: Generation, desired: Desired, used: Used) -> Iterator[QueueShown]:
    """Queues that may hold jobs of their own or did."""
    inner = {queue.parent for queue in desired.quotas.queues.values()}
    records = current.allocation.jobs.values()
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in used.rows:
        for i, value in enumerate(
            (row.hours.allocated, row.hours.running, row.hours.lost_preempted + row.hours.lost_failed)
        ):
            rows[row.key][i] += value
    names = {*desired.quotas.queues, *(record.queue for record in records if record.gpus_held)}
    for name in sorted(names):
        queue = desired.quotas.queues.get(name)
        held = sum(record.gpus_held for record in records if record.queue == name)
        if name in inner and not held and not any(rows[name]):
            continue
        allocated, running, lost = rows[name]
        yield QueueShown(
            name=name,
            held=held,
            guaranteed=sum(queue.guaranteed.values()) if queue and queue.guaranteed else None,
            ceiling=sum(queue.ceiling.values()) if queue and queue.ceiling else None,
            waiting=sum(
                record.queue == name and record.state in {JobState.PENDING, JobState.PROMISED} for record in records
            ),
            allocated=allocated,
            running=running,
            lost=lost,
        )


def _samples(index: Index, since: Instant, until: Instant) -> Iterator[Sample]:
    """Phi and idle share; of a long time evenly thinned."""
    columns = index.commits
    first, last = max(0, index.position_at(since)), index.position_at(until)
    step = max(1, (last - first + 1) // _SAMPLES)
    for position in range(first, last + 1, step):
        idle, capacity = columns["idle"][position], columns["capacity"][position]
        phi = (idle - columns["whole"][position]) * 1_000_000 // idle if idle else 0
        yield Sample(
            at=Instant(max(since, columns["at"][position])),
            phi=phi,
            idle=idle * 1_000_000 // capacity if capacity else 0,
        )


def _decisions(git: Git, index: Index, since: Instant, until: Instant) -> tuple[tuple[DecisionShown, ...], int]:
    first, last = index.position_at(Instant(since - 1)) + 1, index.position_at(until)
    shown = range(last, max(first, last - _DECISIONS + 1) - 1, -1)
    raw = raw_commits(git, (index.ids[position] for position in shown))
    rows = tuple(
        DecisionShown(
            generation=index.commits["generation"][position], at=Instant(index.commits["at"][position]), commit=index.ids[position],
            told=parse_commit(index.ids[position], raw[index.ids[position]]).subject, trigger=index.texts[index.commits["trigger"][position]],
        )
        for position in shown
    )  # fmt: skip
    return rows, max(0, last - first + 1 - len(rows))


def _losses(index: Index, since: Instant, until: Instant) -> Iterator[LossShown]:
    """Newest first."""
    events = index.events
    last: dict[int, int] = {}
    found = []
    for event in range(index.first_event(index.position_at(until) + 1)):
        job, before = events["job"][event], last.get(events["job"][event])
        last[job] = event
        at = index.commits["at"][events["commit"][event]]
        if before is None or at < since:
            continue
        evicted = max(0, events["lost"][event] - events["lost"][before]) if index.text("cause", event) in EVICTED else 0
        if evicted or events["failed"][event]:
            found.append((event, before, evicted))
    for event, before, evicted in reversed(found):
        position = events["commit"][event]
        by = index.text("preemptor", event)
        yield LossShown(
            generation=index.commits["generation"][position],
            at=Instant(index.commits["at"][position]),
            job=index.text("job", event),
            gpus=gpus_in(index.text("place", before)),
            why=(f"{index.text('cause', event)} for {by}" if by else index.text("cause", event))
            if evicted
            else f"failure: {index.text('code', event)}",
            gpu_seconds=evicted + events["failed"][event],
        )
