"""Why a job is where it is, and what would start it; what a node or a queue has to do with who waits; what a code means.

Pages for people, built from values that the planner worked out.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from reconciler.documents.quantities import print_duration
from reconciler.errors import NotFound
from reconciler.model.allocation import JobRecord
from reconciler.model.counting import counted
from reconciler.model.desired import Window
from reconciler.model.inventory import Node
from reconciler.model.job import Job
from reconciler.model.observed import NodeObservation
from reconciler.model.queue import Queue
from reconciler.model.reasons import Reason, ReasonCode, sentence, template
from reconciler.model.units import GpuType, Instant, JobKey, Nanoseconds
from reconciler.planner.capacity import Outage
from reconciler.planner.counterfactual import Change, Counterfactual
from reconciler.planner.forecast import Forecast
from reconciler.render.names import age, one_line, span, when
from reconciler.render.node import condition, troubles
from reconciler.render.table import below, continued


def explanation_page(
    record: JobRecord,
    job: Job | None,
    blockers: Sequence[Reason],
    generation: int,
    now: Instant,
    width: int | None = None,
    *,
    offers: Sequence[Counterfactual] = (),
    expected: Forecast | None = None,
) -> str:
    """What it asks for, every blocker in order, the binding one marked, what would start it, and how to ask again."""
    lines = [
        f"{record.job} is {record.outcome or record.state} since {when(record.since)} ({age(now - record.since)}).",
        *([f"It asks for {_asked(job)}."] if job else []),
    ]
    if not blockers or blockers[0].code is not record.reason.code:
        lines += ["", f"Because  {record.reason.code}", *below(one_line(sentence(record.reason)), width)]
    if blockers:
        lines += ["", "Blocked now by"]
        for number, blocker in enumerate(blockers, 1):
            lines.append(f" {number:>2}. {blocker.code}{'   <- binding' if number == 1 else ''}")
            lines += below(one_line(sentence(blocker)), width, " " * 5)
    starts = [_offer_row(offer, now) for offer in offers]
    if expected is not None:
        why = "as it is, by a reservation" if expected.reserved else "as it is, if all run to their limits"
        starts.append((f"at {when(expected.at)}", why))
        if expected.p90 is not None:
            starts.append((f"at {when(expected.p90)}", "as it is, if none runs longer than 9 in 10 did"))
    if starts:
        column = max(len(row[0]) for row in starts)
        lines += ["", "It would start"]
        for at, how in starts:
            lines += continued(f"  {at:<{column}}  {how}", width, column + 2)
    if expected is not None and job is not None and job.start_before is not None and expected.at > job.start_before:
        lines.append(f"! It was to start before {when(job.start_before)}; as things are it will not.")
    return "\n".join([*lines, "", f"Decision #{generation}. The same answer again: gangops replay {generation}"])


def _offer_row(offer: Counterfactual, now: Instant) -> tuple[str, str]:
    """When, and with which lines of the file: `now`, `with 24 GPUs: gpus: 24`."""
    at = "now" if offer.when <= now else f"in {span(offer.when - now)}"
    lines = ", ".join(_line_of(change) for change in offer.changes)
    where = f" of queue {offer.changes[0].queue}" if offer.changes and offer.changes[0].queue else ""
    return at, f"with `{lines}`{where}{_price(offer)}"


def _line_of(change: Change) -> str:
    """One line of a document, without its outermost key."""
    path = ".".join(change.path[1:])
    if change.value is None:
        return f"no {path}"
    if path == "timeLimit":
        return f"{path}: {print_duration(Nanoseconds(int(change.value)))}"
    return f"{path}: {change.value}"


def _price(offer: Counterfactual) -> str:
    if not offer.disturbs:
        return ""
    jobs = len(offer.disturbs)
    hours = offer.lost * 10 // 3600
    return f" (disturbs {counted(jobs, 'job')}, {hours // 10}.{hours % 10} GPU-h lost)"


def node_page(
    node: Node, seen: NodeObservation | None, outages: Sequence[Outage], holders: Mapping[JobKey, int],
    bookings: Sequence[tuple[JobKey, str]], windows: Sequence[Window], now: Instant, width: int | None = None,
) -> str:  # fmt: skip
    """Why a node takes work or not: its state, what is missing, who is on it and who is to come.

    `bookings`: who waits for its GPUs, and how.
    """
    used = sum(mask.bit_count() for mask in holders.values())
    whole, out = len(node.shape.gpus), sum(outage.gpus for outage in outages)
    idle = max(0, whole - used - out)
    state, held = condition(node, seen), f"{used} of {counted(whole, 'GPU')} held, {out} out, {idle} idle."
    lines = [f"{node.name} in {'/'.join(node.path)}: {state}. {held}"]
    rows = [("State", f"{one.told}; {one.means}") for one in troubles(node, seen)]
    rows += [
        ("Out", f"{counted(d.gpus, 'GPU')}: {d.code}{f' ({one_line(d.detail)})' if d.detail else ''}") for d in outages
    ]
    rows += [("Runs", f"{job} on {counted(mask.bit_count(), 'GPU')}") for job, mask in sorted(holders.items())]
    rows += [("Waits", f"{job} ({how})") for job, how in bookings]
    for window in windows:
        who = f", for {', '.join(window.members)} alone" if window.members else f" ({window.drain})"
        begun = "since" if window.begins <= now else "from"
        rows.append(("Window", f"{window.name} {begun} {when(window.begins)} to {when(window.ends)}{who}"))
    rows += [("Taint", f"{taint.key}={taint.value}: {taint.effect}") for taint in node.taints]
    lines += (f"  {what:<8}{text}" for what, text in rows)
    return "\n".join(row for line in lines for row in continued(line, width, 8))


def queue_page(
    queue: Queue, used: Mapping[GpuType, int], rooms: Mapping[GpuType, int], waiting: Sequence[JobRecord],
    width: int | None = None,
) -> str:  # fmt: skip
    """How a queue stands, by GPU type, and why its jobs wait: the reasons with most jobs first."""
    lines = [f"Queue {queue.name}{f', below {queue.parent}' if queue.parent else ''}, weight {queue.weight}"]
    for kind in sorted({*used, *rooms, *queue.guaranteed, *queue.ceiling}):
        guaranteed, held = queue.guaranteed.get(kind, 0), used.get(kind, 0)
        ceiling = f", at most {queue.ceiling[kind]}" if kind in queue.ceiling else ""
        lines.append(
            f"  {kind}: holds {held}; guaranteed {guaranteed}, borrows {max(0, held - guaranteed)}{ceiling}; "
            f"room for {rooms.get(kind, 0)} more"
        )
    codes: dict[str, list[JobRecord]] = {}
    for record in waiting:
        codes.setdefault(record.reason.code, []).append(record)
    for code, records in sorted(codes.items(), key=lambda row: (-len(row[1]), row[0])):
        first = records[0]
        lines.append(f"  {len(records)} wait: {code}, for example {first.job}: {one_line(sentence(first.reason))}")
    lines += [] if codes else ["  nobody waits"]
    return "\n".join(row for line in lines for row in continued(line, width))


def _asked(job: Job) -> str:
    types = " or ".join(job.gpu_types) or "any type"
    inside = "".join(f", {'all' if one.group == 'job' else one.group} in one {one.level}" for one in job.required)
    return f"{counted(job.gpus, 'GPU')} of {types}{inside}"


def reason_code(name: str) -> tuple[ReasonCode, str]:
    """A code named in any case, and its sentence with the numbers it carries. Raises NotFound (UnknownCode)."""
    code = next((c for c in ReasonCode if c.value.lower() == name.lower()), None)
    if code is None:
        near = difflib.get_close_matches(name, [str(c) for c in ReasonCode], n=1)
        known = ", ".join(sorted(ReasonCode))
        remedy = f"did you mean {near[0]}?" if near else f"known codes: {known}"
        raise NotFound(f"{name} is not a reason code", code="UnknownCode", remedy=remedy)
    return code, template(code)
