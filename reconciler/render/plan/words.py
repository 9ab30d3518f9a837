"""The words of a plan that every renderer uses, as plain text: each renderer escapes what it is given."""

from __future__ import annotations

from datetime import UTC, datetime

from reconciler.model.counting import counted
from reconciler.model.units import MINUTE, SECOND, Instant
from reconciler.render.names import gpu_hours, share, span
from reconciler.render.plan.model import COUNTED, LEGEND, Numbers, Plan, QuotaLine, Rack, Row, Slip, Step

_MILLION = 1_000_000
BAR = 24
"""Characters of a quota bar."""
GETS = frozenset({Step.PLACE, Step.PROMISE})


def age(nanoseconds: int) -> str:
    """A span as people say it: from ten minutes on without seconds."""
    return span(nanoseconds // MINUTE * MINUTE if nanoseconds >= 10 * MINUTE else nanoseconds // SECOND * SECOND)


def clock(at: Instant, now: Instant) -> str:
    """A time of the same day as `09:40Z`, of another as `Dec 01 09:40Z`."""
    then, today = (datetime.fromtimestamp(one // SECOND, UTC) for one in (at, now))
    return f"{then:%H:%MZ}" if then.date() == today.date() else f"{then:%b %d %H:%MZ}"


def headline(plan: Plan) -> str:
    """What a reader of one line has to know: the biggest consequence first."""
    if plan.removals:
        gone = plan.removals[0]
        return f"stops {gone.gone} of {gone.of} {gone.what}"
    if not plan.decided:
        return f"no decision: {counted(len(plan.errors), 'error')}"
    told = ", ".join(f"{n:,} {COUNTED[step][n > 1]}" for step, n in plan.counts.items())
    return told or "no job changes"


def verdict(plan: Plan) -> str:
    """Why the change may not be merged as it is; "" when it may."""
    if plan.removals:
        gone = plan.removals[0]
        return (
            f"It removes {gone.gone} of {gone.of} {gone.what}; at most {gone.limit} % may go at once. If that is "
            f"meant, the merged commit's message has to end with: {gone.acknowledge}"
        )
    if plan.errors:
        return f"It has {counted(len(plan.errors), 'error')} that the base does not have."
    return ""


def total(plan: Plan) -> str:
    """The closing sentence."""
    same = f"{counted(plan.unchanged, 'job')} as before" if plan.unchanged else "no other jobs"
    if not plan.decided:
        return "No plan: the files of the cluster allow no decision."
    return f"Plan: {headline_counts(plan)}; {same}." if plan.rows else f"No job changes: {same}."


def headline_counts(plan: Plan) -> str:
    """`1 placed, 1 preempted`."""
    return ", ".join(f"{n:,} {COUNTED[step][n > 1]}" for step, n in plan.counts.items())


# --- one job ---


def loss(row: Row, at: Instant) -> str:
    """`loses 3.6 GPU-h (checkpoint 14m old)`; "" when the step throws nothing away."""
    if row.step not in (Step.PREEMPT, Step.MOVE, Step.RESIZE):
        return ""
    saved = f"checkpoint {age(at - row.checkpoint)} old" if row.checkpoint is not None else "no checkpoint seen"
    return f"loses {gpu_hours(row.lost_gpu_seconds)} ({saved})"


def comm(row: Row) -> str:
    """`T_comm 41.2ms, the least possible`, or how far from it."""
    if not row.comm_ns:
        return ""
    told = f"T_comm {span(row.comm_ns)}"
    if row.comm_bound_ns >= row.comm_ns:
        return f"{told}, the least possible"
    return f"{told}, at best {span(row.comm_bound_ns)}" if row.comm_bound_ns else told


def timing(row: Row, at: Instant) -> str:
    """When it starts, and when it would have; "" when nothing can be told."""
    if row.step in (Step.PLACE, Step.START, Step.RUNNING, Step.FINISH, Step.CANCEL, Step.DROP, Step.STOP):
        return ""
    if row.starts is None and row.would_start is None:
        return ""
    if row.starts is None and row.would_start is not None:
        return f"start {clock(row.would_start, at)} -> not foreseeable"
    assert row.starts is not None
    after = f"{clock(row.starts, at)} (in {age(row.starts - at)})"
    likely = f", likely by {clock(row.likely, at)}" if row.likely is not None else ""
    if row.would_start is None or row.would_start // SECOND == row.starts // SECOND:
        return f"starts {after} at the latest{likely}"
    return f"start {clock(row.would_start, at)} -> {after}{likely}"


def where(row: Row) -> str:
    """Its place, and the one it leaves."""
    if row.step in (Step.MOVE, Step.PLACE, Step.PROMISE) and row.was and row.where:
        return f"{row.was} -> {row.where}"
    return row.where or row.was


def notes(row: Row, at: Instant) -> list[str]:
    """Why, and what it costs or gets: clauses, most important first."""
    found = [row.why] if row.why else []
    if row.step is Step.DELAY:
        found = [f"would get its GPUs now without this change; {row.why}" if row.why else "would get its GPUs now"]
    if row.step is Step.KEEP:
        found = ["would be stopped without this change, and goes on"]
    if row.step is Step.CHANGE and row.where:
        found = ["goes on as it is"]
    if row.step is Step.PROMISE and row.victims:
        found = [f"once {several(row.victims)} {'has' if len(row.victims) == 1 else 'have'} stopped"]
    found.append(loss(row, at))
    if row.step in GETS:
        found.append(_racks(row))
        found.append(comm(row))
    found.append(timing(row, at))
    return [one for one in found if one]


def several(names: tuple[str, ...], most: int = 3) -> str:
    """`a, b and 4 more`."""
    if len(names) <= most:
        return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _racks(row: Row) -> str:
    return f"spans {row.racks} racks" if row.racks > 1 else ""


def edits(row: Row) -> list[str]:
    """`gpus 128 -> 256`; a value that may not be shown is not."""
    told = []
    for edit in row.edits:
        if edit.before and edit.after:
            told.append(f"{edit.field} {edit.before} -> {edit.after}")
        else:
            told.append(f"{edit.field} {edit.after or '(changed)'}")
    return told


def slip(one: Slip, at: Instant) -> tuple[str, str, str]:
    """Before, after, and by how much: `09:40Z`, `12:50Z`, `3h10m later`."""
    before = clock(one.before, at) if one.before is not None else "unknown"
    after = clock(one.after, at) if one.after is not None else "not foreseeable"
    if one.before is None or one.after is None:
        return before, after, ""
    moved = one.after - one.before
    return before, after, f"{age(abs(moved))} {'later' if moved > 0 else 'sooner'}"


# --- the cluster ---


def phi(plan: Plan) -> tuple[str, str, str]:
    """Fragmentation before and after, and how it stands to its limit."""
    limit = plan.phi_limit_ppm
    before, after = (share(n.phi_ppm, _MILLION) for n in (plan.before, plan.after))
    if not plan.after.idle:
        return before, after, "says nothing: no GPU is idle"
    stands = "above" if plan.after.phi_ppm > limit else "within"
    return before, after, f"{stands} its limit of {share(limit, _MILLION)}"


def percent(ppm: int) -> str:
    """`12 %`, rounded to the nearest."""
    return f"{(ppm + 5_000) // 10_000} %"


def figures(plan: Plan) -> list[tuple[str, str, str, str]]:
    """Name, before, after, remark of each number of the cluster that says something."""
    one, other = plan.before, plan.after
    fragmentation = phi(plan)
    rows = [
        (
            "GPUs in use",
            str(one.busy),
            str(other.busy),
            f"of {_moved(_unlike(one.capacity, other.capacity), other.capacity)}",
        ),
        ("idle", str(one.idle), str(other.idle), _stranded(other)),
        ("Phi", *fragmentation),
        (
            "across racks",
            percent(one.cross_rack_ppm),
            percent(other.cross_rack_ppm),
            "of GPUs in gangs of several nodes",
        ),
    ]
    kept = [row for row in rows if not (row[1] == row[2] and row[1] in ("0", "0 %"))]
    if plan.lost_gpu_seconds:
        payers = sum(row.lost_gpu_seconds > 0 for row in plan.rows)
        kept.append(("lost work", "", gpu_hours(plan.lost_gpu_seconds), f"of {counted(payers, 'job')}"))
    return kept


def _unlike(before: int, after: int) -> int | None:
    return before if before != after else None


def _stranded(numbers: Numbers) -> str:
    return f"{numbers.stranded} of them in broken baseboards" if numbers.stranded else ""


def bar(line: QuotaLine, width: int = BAR) -> str:
    """`######|==--`: own, the guarantee, borrowed, room up to the ceiling."""
    top = max(line.ceiling or 0, line.guaranteed, line.after, 1)
    filled = -(-line.after * width // top)
    mark = -(-line.guaranteed * width // top)
    cells = ["#" if i < min(filled, mark) else "=" if i < filled else "-" for i in range(width)]
    cells.insert(mark, "|")
    return "".join(cells)


def quota(line: QuotaLine) -> str:
    """`128 -> 144 of 128 guaranteed, 224 at most`."""
    used = str(line.after) if line.before == line.after else f"{line.before} -> {line.after}"
    guaranteed = _moved(line.guaranteed_before, line.guaranteed)
    told = f"{used} of {guaranteed} guaranteed"
    if line.ceiling is None and line.ceiling_before is None:
        return told
    return f"{told}, {_moved(line.ceiling_before, line.ceiling)} at most"


def _moved(before: int | None, after: int | None) -> str:
    shown = "no limit" if after is None else str(after)
    return shown if before is None else f"{before} -> {shown}"


def told_quotas(plan: Plan) -> list[QuotaLine]:
    """The queues whose use or limits change, and those that contain one."""
    return [
        line
        for line in plan.quotas
        if line.before != line.after
        or line.guaranteed_before is not None
        or line.ceiling_before is not None
        or line.over_ceiling
    ]


def over_ceilings(plan: Plan) -> list[str]:
    """A sentence for each queue that holds more than it may from now on: a ceiling stops nobody who runs."""
    return [
        f"Queue {line.queue} holds {line.after} {line.gpu_type} of at most {line.ceiling} now: nobody is stopped for "
        "it, and nothing of it starts that would be above its ceiling."
        for line in plan.quotas
        if line.over_ceiling
    ]


def told_racks(plan: Plan, most: int) -> tuple[list[Rack], int]:
    """The racks where something happens (all of a small cluster), and how many are left out."""
    chosen = list(plan.racks) if len(plan.racks) <= 8 else [rack for rack in plan.racks if rack.touched]
    if not any(rack.touched for rack in plan.racks):
        return [], 0
    return chosen[:most], len(plan.racks) - len(chosen[:most])


def legend(racks: list[Rack]) -> str:
    """The letters that occur, explained."""
    seen = {cell for rack in racks for cell in rack.cells}
    told = [f"{sign} {word}" for sign, word in LEGEND.items() if sign in seen]
    return ", ".join([*told, *(["0-9 free GPUs"] if any(c.isdigit() for c in seen) else [])])
