"""What runs now, as people read it: status, lists, descriptions, reasons, history. Text only; values come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from reconciler.documents.record import Summary
from reconciler.documents.withheld import WITHHELD, withheld_of
from reconciler.model.allocation import JobRecord, Metrics, Placement
from reconciler.model.counting import counted
from reconciler.model.desired import Desired
from reconciler.model.inventory import Node
from reconciler.model.job import Job
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.observed import JobObservation, NodeCondition, NodeObservation, Observed, Proof, Provenance
from reconciler.model.reasons import sentence
from reconciler.model.request import Request
from reconciler.model.units import CommitId, Instant, JobKey, NodeName, QueueName, document_of
from reconciler.render.arrays import STATES, by_array, leading, tally
from reconciler.render.names import age, gpu_hours, one_line, places, share, span, when
from reconciler.render.node import condition
from reconciler.render.story import use
from reconciler.render.table import continued, table


def headline(summary: Summary, metrics: Metrics, now: Instant) -> str:
    """Two lines: which cluster and decision, how old; then what its GPUs do."""
    lines = [
        f"{summary.cluster_id}   generation {summary.generation}, decided {age(now - summary.decided_at)} ago",
        f"{use(metrics)}   Phi {share(metrics.phi_ppm, 1_000_000)}",
    ]
    return "\n".join(lines)


Rows = tuple[Sequence[str], list[list[str]]]
"""A header and what is below it."""


def queue_table(desired: Desired, jobs: Mapping[JobKey, JobRecord], width: int | None) -> str:
    """A line a queue, children below their parents: GPUs held, promised, and jobs that wait.

    Jobs that run on although their queue is gone share a line of their own.
    """
    header, rows = queue_rows(desired, jobs)
    return table(header, rows, width=width, right="GUARANTEED HELD PROMISED WAITING CEILING")


def queue_rows(desired: Desired, jobs: Mapping[JobKey, JobRecord]) -> Rows:
    """The cells of `queue_table`."""
    rows = []
    for name, depth in _tree_order(desired):
        queue = desired.quotas.queues[name]
        below = {q for q in desired.quotas.queues if name in desired.quotas.path(q)}
        mine = [r for r in jobs.values() if r.queue in below]
        guaranteed, ceiling = sum(queue.guaranteed.values()), sum(queue.ceiling.values())
        rows.append(["  " * depth + name, str(guaranteed or "-"), *_use_of(mine), str(ceiling or "-")])
    if orphans := [r for r in jobs.values() if r.queue not in desired.quotas.queues and r.gpus_bound]:
        rows.append(["(orphaned)", "-", *_use_of(orphans), "-"])
    return ["QUEUE", "GUARANTEED", "HELD", "PROMISED", "WAITING", "CEILING"], rows


def request_table(requests: Mapping[str, Request], width: int | None) -> str:
    """A line a request, newest first: what is asked, by whom, how it stands, and until when or why not."""
    rows = []
    for request in sorted(requests.values(), key=lambda one: (-one.seen, one.id)):
        why = f"{request.refusal.value}: {request.told}" if request.refusal is not None else request.reason
        until = when(request.expires) if request.expires else "-"
        rows.append([request.id, request.asked, request.by or "-", request.standing.value, until, one_line(why)])
    return table(["REQUEST", "ASKS", "BY", "STANDS", "UNTIL", "WHY"], rows, width=width)


def _use_of(records: Sequence[JobRecord]) -> tuple[str, str, str]:
    """GPUs held and promised, and how many jobs wait."""
    held = sum(r.gpus_bound for r in records)
    promised = sum(len(r.promise.placement.ranks) for r in records if r.promise)
    waiting = sum(r.state in {JobState.PENDING, JobState.PROMISED} for r in records)
    return str(held), str(promised or "-"), str(waiting or "-")


def _tree_order(desired: Desired) -> list[tuple[QueueName, int]]:
    queues = desired.quotas.queues
    rows: list[tuple[QueueName, int]] = []

    def visit(parent: QueueName | None, depth: int) -> None:
        for name in sorted(q for q in queues if queues[q].parent == parent):
            rows.append((name, depth))
            visit(name, depth + 1)

    visit(None, 0)
    return rows


def job_table(
    desired: Desired, jobs: Mapping[JobKey, JobRecord], now: Instant, width: int | None, *, wide: bool
) -> str:
    """A line a job, running ones first, with its reason at the end; an array is a line as well."""
    header, rows = job_rows(desired, jobs, now, wide=wide)
    return table(header, rows, width=width, right="GPUS SINCE ATTEMPT LEFT T_COMM")


def job_rows(desired: Desired, jobs: Mapping[JobKey, JobRecord], now: Instant, *, wide: bool) -> Rows:
    """The cells of `job_table`."""
    ordered = sorted(by_array(jobs).items(), key=lambda one: (STATES.index(_first_of(one[1]).state), one[0]))
    rows = []
    for key, records in ordered:
        if len(records) == 1:
            rows.append(_job_row(records[0], desired.jobs.get(records[0].job), desired, now, wide=wide))
        else:
            rows.append(_array_row(key, records, desired, now, wide=wide))
    header = ["JOB", "STATE", "GPUS", "CLASS", "WHERE", "SINCE", "WHY"]
    if wide:
        header[6:6] = ["ATTEMPT", "LEFT", "T_COMM"]
    return header, rows


def _first_of(records: Sequence[JobRecord]) -> JobRecord:
    return min(records, key=lambda r: STATES.index(r.state))


def _array_row(
    key: JobKey, records: Sequence[JobRecord], desired: Desired, now: Instant, *, wide: bool
) -> list[str]:  # fmt: skip
    """All tasks of an array: the GPUs they hold, when something happened last, and why the first of them waits."""
    job, first = desired.arrays.get(key), leading(records)
    why = f": {one_line(sentence(first.reason))}" if first.state in (JobState.PENDING, JobState.HELD) else ""
    row = [
        key,
        f"{len(records)} tasks",
        str(sum(record.gpus_held for record in records) or "-"),
        str(job.priority_class) if job else "-",
        "-",
        age(now - max(record.since for record in records)),
        "; ".join(filter(None, (f"{tally(records)}{why}", _stands(first, desired)))),
    ]
    if wide:
        row[6:6] = ["-", "-", "-"]
    return row


def _job_row(record: JobRecord, job: Job | None, desired: Desired, now: Instant, *, wide: bool) -> list[str]:
    placement = record.placement or (record.promise.placement if record.promise else None)
    gpus = job.gpus if job else record.gpus_held
    why = (
        ""
        if record.state is JobState.RUNNING or record.outcome is Outcome.SUCCEEDED
        else one_line(sentence(record.reason))
    )
    state = f"{record.state}" if record.outcome is None else str(record.outcome)
    row = [
        record.job,
        state,
        str(gpus or "-"),
        str(job.priority_class) if job else "-",
        places(placement, desired.inventory) if placement else "-",
        age(now - record.since),
        "; ".join(filter(None, (why, _stands(record, desired)))) or "-",
    ]
    if wide:
        left = "-"
        if job and job.time_limit is not None and record.started is not None:
            left = span(record.started + job.time_limit - now)
        comm = span(placement.comm_time) if placement and placement.comm_time else "-"
        row[6:6] = [str(record.attempt or "-"), left, comm]
    return row


def _stands(record: JobRecord, desired: Desired) -> str:
    """That another form of its file counts than the newest, "" when none does or it matters no more."""
    kept = document_of(record.job) in desired.frozen and record.state is not JobState.FINISHED
    return "its older file counts" if kept else ""


def invalid_line(frozen: Mapping[str, bytes], blocked: str, commit: CommitId) -> str:
    """The files that are invalid and count as they were before, where to look, and what that stops; "" without any.

    `frozen` has the last valid content of files by path, `blocked` the file that keeps all jobs from starting; they are of `commit`.
    """
    withheld = {WITHHELD, *(one.path for one in withheld_of(frozen))}
    paths = [path for path in frozen if path not in withheld]
    if not paths:
        return ""
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    are = "are invalid and count as they were" if len(paths) > 1 else "is invalid and counts as it was"
    which = blocked if len(paths) > 1 else "it"
    stops = f", and no job starts until {which} is valid" if blocked in paths else ""
    told = f"{', '.join(paths[:_MOST_PATHS])}{more} {are} before{stops}"
    return f"{told}; `gangops validate --rev {commit[:12]}` says what is wrong"


_MOST_PATHS: Final = 3


def node_table(
    desired: Desired, observed: Observed, held: Mapping[NodeName, Mapping[JobKey, int]], width: int | None
) -> str:
    """A line a node: its place, condition, one sign for each GPU (0 free, # held, x failed), and who holds it."""
    header, rows = node_rows(desired, observed, held)
    return table(header, rows, width=width)


def node_rows(desired: Desired, observed: Observed, held: Mapping[NodeName, Mapping[JobKey, int]]) -> Rows:
    """The cells of `node_table`."""
    rows = []
    for node in desired.inventory.nodes:
        seen = observed.nodes.get(node.name)
        holders = held.get(node.name, {})
        rows.append(
            [
                node.name,
                "/".join(node.path),
                condition(node, seen),
                gpu_signs(node, seen, holders),
                " ".join(sorted(holders)) or "-",
            ]
        )
    return ["NODE", "PLACE", "CONDITION", "GPUS", "HELD BY"], rows


def gpu_signs(node: Node, seen: NodeObservation | None, holders: Mapping[JobKey, int]) -> str:
    """One character a GPU: `#` held, `0` free, `x` out of use, `d` on a cordoned node, `f` used by a foreign process."""
    busy = 0
    for mask in holders.values():
        busy |= mask
    return "".join("#" if busy >> i & 1 else _sign(node, seen, i) for i in range(len(node.shape.gpus)))


def _sign(node: Node, seen: NodeObservation | None, index: int) -> str:
    """The sign of a GPU that nobody holds; first match wins."""
    if seen is None or seen.condition is not NodeCondition.READY or seen.unhealthy:
        return "x"
    report = next((gpu for gpu in seen.gpus if gpu.index == index), None)
    if node.failed >> index & 1 or report is None or report.fault:
        return "x"
    return "d" if node.cordoned else "f" if report.foreign else "0"


def job_page(
    record: JobRecord, job: Job | None, desired: Desired, now: Instant, live: Sequence[str] = (),
    progress: JobObservation | None = None, brought: Provenance | None = None, width: int | None = None,
) -> str:  # fmt: skip
    """Everything known about one job, a label a line: what it is, where it is, what it asked for, what it cost."""
    rows = job_facts(record, job, desired, now, live, progress, brought)
    return "\n".join(line for label, text in rows for line in continued(f"{label:<12}  {text}", width, hang=14))


def job_facts(
    record: JobRecord, job: Job | None, desired: Desired, now: Instant, live: Sequence[str] = (),
    progress: JobObservation | None = None, brought: Provenance | None = None,
) -> list[tuple[str, str]]:  # fmt: skip
    """Labels and texts of `job_page`; the first three say which job, its state, and why."""
    phase = f", phase {record.phase}" if record.phase else ""
    return [
        ("job", record.job),
        ("state", f"{record.outcome or record.state}{phase}"),
        ("why", one_line(sentence(record.reason))),
        ("since", f"{when(record.since)}  ({age(now - record.since)})"),
        ("submitted", f"{when(record.submitted)}  ({age(now - record.submitted)})"),
        ("attempt", str(record.attempt or "none yet")),
        *[("file", text) for text in (_stands(record, desired),) if text],
        *_where_rows(record, desired),
        *_ask_rows(record, job, now),
        *_cost_rows(record),
        *_checkpoint_rows(job, progress, now),
        *_brought_rows(brought),
        *[("live", one_line(text)) for text in live],
    ]


def _where_rows(record: JobRecord, desired: Desired) -> list[tuple[str, str]]:
    rows = []
    if record.placement is not None:
        rows.append(("where", places(record.placement, desired.inventory)))
        if record.spares:
            told = ", ".join(f"{one.mask.bit_count()} on {one.node}" for one in record.spares)
            rows.append(("spares", f"{told}, for its repair"))
        rows.append(("inside one", f"{record.placement.level} ({record.placement.domain})"))
        if record.placement.comm_time:
            rows.append(("T_comm", _comm(record.placement)))
    if record.promise is not None:
        rows.append(("promised", places(record.promise.placement, desired.inventory)))
        rows.append(("waits for", ", ".join(record.promise.waiting_for) or "-"))
    return rows


def _ask_rows(record: JobRecord, job: Job | None, now: Instant) -> list[tuple[str, str]]:
    if job is None:
        return [("asks", "its file is gone")]
    rows = [
        (
            "asks",
            f"{counted(job.gpus, 'GPU')} of {' or '.join(job.gpu_types) or 'any type'}, class {job.priority_class}",
        )
    ]
    if job.dimensions:
        rows.append(("groups", " x ".join(f"{d.name} {d.size}" for d in job.dimensions)))
    for label, wanted in (("required", job.required), ("preferred", job.preferred)):
        if wanted:
            rows.append((label, ", ".join(f"{one.group} in one {one.level}" for one in wanted)))
    if job.time_limit is not None:
        left = f", {span(record.started + job.time_limit - now)} left" if record.started is not None else ""
        rows.append(("time limit", f"{span(job.time_limit)}{left}"))
    return rows


def _cost_rows(record: JobRecord) -> list[tuple[str, str]]:
    rows = []
    if record.victims:
        rows.append(("victims", ", ".join(record.victims)))
    if record.preemptor:
        rows.append(("gave way to", record.preemptor))
    if record.lost_work:
        rows.append(("price paid", gpu_hours(record.lost_work)))
    return rows


def _checkpoint_rows(job: Job | None, progress: JobObservation | None, now: Instant) -> list[tuple[str, str]]:
    if progress is not None and progress.checkpoint is not None:
        ago = age(now - progress.checkpoint)
        return [("checkpoint", f"{when(progress.checkpoint)}  ({ago}), by attempt {progress.attempt}")]
    return [("checkpoint", "none yet")] if job is not None and job.checkpoint is not None else []


def _brought_rows(brought: Provenance | None) -> list[tuple[str, str]]:
    if brought is None:
        return []
    who = brought.author.user or brought.author.login or brought.author.email or "unknown"
    request = f", PR #{brought.pull_request}" if brought.pull_request else ""
    proof = "not proven" if brought.proven is Proof.NONE else f"proven by {brought.proven}"
    return [("asked by", f"{one_line(who)}{request}, commit {brought.commit[:7]}, {proof}")]


def _comm(placement: Placement) -> str:
    return f"{span(placement.comm_time)} a step; no placement could be below {span(placement.comm_bound)}"


def topology_table(placement: Placement, observed: Observed, width: int | None) -> str:
    """A line a rank: node, GPU, NUMA node, NIC and rail as ordered, and what the node says of that GPU."""
    rows = []
    for place in placement.ranks:
        seen = observed.nodes.get(place.node)
        gpu = next((g for g in seen.gpus if g.index == place.gpu), None) if seen else None
        real = "not seen" if gpu is None else f"failed: {one_line(gpu.fault)}" if gpu.fault else gpu.uuid
        rail = str(place.rail) if place.rail >= 0 else "-"
        numa = str(place.numa) if place.numa >= 0 else "-"
        rows.append([str(place.rank), place.node, str(place.gpu), numa, place.nic or "-", rail, real])
    return table(["RANK", "NODE", "GPU", "NUMA", "NIC", "RAIL", "SEEN"], rows, width=width, right="RANK GPU NUMA RAIL")
