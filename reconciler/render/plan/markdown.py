"""A plan as a comment on a pull request: short enough for any forge, whatever the plan, and safe to show.

Detail goes first, and the text says so: rank maps, racks, small findings, then rows of jobs; headline, counts, and
the victims with the most lost work always stay. Sections are left out whole and tables row by row, so nothing is ever
cut in a fence, a fold or a character.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.model.counting import counted
from reconciler.render.names import gpu_hours, span
from reconciler.render.plan import words
from reconciler.render.plan.escape import code, fenced, prose
from reconciler.render.plan.model import Finding, Plan, Row, Step
from reconciler.render.tidying import hop_line, tidying_line

LIMIT = 60_000
"""Characters. GitHub takes 65,536."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detail:
    """How much is told: rows of jobs, of victims, findings, racks, queues, edits, and whether rank maps are."""

    rows: int
    victims: int
    findings: int
    racks: int
    lines: int
    ranks: bool


_LADDER = (
    _Detail(rows=200, victims=100, findings=50, racks=48, lines=24, ranks=True),
    _Detail(rows=120, victims=60, findings=30, racks=48, lines=24, ranks=False),
    _Detail(rows=60, victims=40, findings=15, racks=24, lines=12, ranks=False),
    _Detail(rows=20, victims=20, findings=8, racks=0, lines=8, ranks=False),
    _Detail(rows=5, victims=5, findings=3, racks=0, lines=4, ranks=False),
)

_ICONS = {
    Step.PREEMPT: "➖",
    Step.STOP: "⏹️",
    Step.REPLACE: "🔁",
    Step.MOVE: "↪️",
    Step.RESIZE: "↔️",
    Step.LOST: "❌",
    Step.DELAY: "⏳",
    Step.PLACE: "➕",
    Step.PROMISE: "➕",
    Step.KEEP: "🛡️",
    Step.WAIT: "⏸️",
    Step.HOLD: "⏸️",
    Step.CHANGE: "✏️",
    Step.CANCEL: "⏹️",
    Step.DROP: "🗑️",
}


def marker(cluster: str) -> str:
    """The first line of a comment: by it the comment is found again."""
    return f"<!-- gangops:plan:{''.join(c for c in cluster if c.isalnum() or c in '-._')[:64]}:v1 -->"


def plan_markdown(plan: Plan, *, limit: int = LIMIT, more: str = "") -> str:
    """The plan in fewer than `limit` characters. `more`: markdown of ours that says where all of it is."""
    for detail in _LADDER[:-1]:
        told = _render(plan, detail, more)
        if len(told) < limit:
            return told
    return _render(plan, _LADDER[-1], more)


def _render(plan: Plan, detail: _Detail, more: str) -> str:
    sections = [
        marker(plan.basis.cluster),
        _title(plan),
        _verdict(plan),
        _victims(plan, detail),
        _over(plan, detail),
        _figures(plan),
        _jobs(plan, detail),
        _slips(plan, detail),
        _racks(plan, detail),
        _quotas(plan, detail),
        _tidying(plan, detail),
        _findings(plan, detail),
        _ranks(plan) if detail.ranks else "",
        _drift(plan, detail),
        more,
        _foot(plan),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


# --- above everything ---


def _title(plan: Plan) -> str:
    told = words.headline(plan)
    warnings = len(plan.warnings)
    flags = []
    if plan.removals:
        flags.append("🛑 not to be merged")
    elif plan.errors or not plan.decided:
        flags.append(f"🛑 {counted(len(plan.errors), 'error')}")
    else:
        flags.append("✅ policies pass")
    if warnings:
        flags.append(f"⚠️ {counted(warnings, 'warning')}")
    return f"### gangops plan: {code(plan.basis.cluster)} — {told} · {' · '.join(flags)}"


def _verdict(plan: Plan) -> str:
    told = words.verdict(plan)
    return f"> [!CAUTION]\n> {prose(told)}" if told else ""


def _victims(plan: Plan, detail: _Detail) -> str:
    """Who pays, before anything else and never folded away."""
    victims = plan.victims
    if not victims:
        return ""
    lost = sum(row.lost_gpu_seconds for row in victims)
    price = f", {gpu_hours(lost)} of work lost" if lost else ""
    head = f"**Costs {counted(len(victims), 'other job')}{price}**"
    shown = victims[: detail.victims]
    rows = [
        f"| {_icon(row)} {row.step} | {code(row.job)} | {row.gpus} | {code(words.where(row)) or '–'} | {_why(row, plan)} |"
        for row in shown
    ]
    table = "\n".join(["| | job | GPUs | where | what it costs it |", "|:--|:--|--:|:--|:--|", *rows])
    return f"{head}\n\n{table}{_rest(len(victims) - len(shown), 'job that pays', 'jobs that pay')}"


def _over(plan: Plan, detail: _Detail) -> str:
    told = words.over_ceilings(plan)
    shown = told[: detail.lines]
    return "\n".join(f"- ⚠️ {prose(one)}" for one in shown) + _rest(len(told) - len(shown), "more queue", "more queues")


def _figures(plan: Plan) -> str:
    if not plan.rows and plan.before == plan.after:
        return ""
    rows = [
        f"| {name} | {before or '–'} | {after}{_stands(name, plan)} | {note} |"
        for name, before, after, note in words.figures(plan)
    ]
    return "\n".join(["| | before | after | |", "|:--|--:|--:|:--|", *rows])


def _stands(name: str, plan: Plan) -> str:
    if name != "Phi":
        return ""
    return " ⚠️" if plan.after.phi_ppm > plan.phi_limit_ppm else " ✅"


# --- jobs ---


def _jobs(plan: Plan, detail: _Detail) -> str:
    """What the change asks for, and everything else that is not already told as a price."""
    told = [row for row in plan.rows if not row.is_victim]
    if not told:
        return "" if plan.rows or not plan.decided else f"No job changes: {counted(plan.unchanged, 'job')} as before."
    ordered = sorted(told, key=lambda row: not row.own)
    shown = ordered[: detail.rows]
    rows = [
        f"| {_icon(row)} {row.step} | {code(row.job)} | {row.gpus} | {code(words.where(row)) or '–'} | {_comm(row)} | {_why(row, plan)} |"
        for row in shown
    ]
    table = "\n".join(["| | job | GPUs | where | T_comm | why |", "|:--|:--|--:|:--|:--|:--|", *rows])
    return f"{table}{_rest(len(ordered) - len(shown), 'more job', 'more jobs')}"


def _icon(row: Row) -> str:
    return _ICONS.get(row.step, "•")


def _comm(row: Row) -> str:
    if not row.comm_ns:
        return "–"
    best = row.comm_bound_ns
    told = span(row.comm_ns)
    return told if not best or best >= row.comm_ns else f"{told} (best {span(best)})"


def _why(row: Row, plan: Plan) -> str:
    notes = [note for note in words.notes(row, plan.basis.at) if not note.startswith("T_comm")]
    told = "; ".join(prose(note) for note in notes)
    edits = ", ".join(prose(edit, 120) for edit in words.edits(row)[:6])
    return f"{told}<br>{edits}" if edits else told


def _slips(plan: Plan, detail: _Detail) -> str:
    if not plan.slips:
        return ""
    shown = plan.slips[: detail.lines]
    rows = []
    for slip in shown:
        before, after, moved = words.slip(slip, plan.basis.at)
        rows.append(f"| {code(slip.job)} | {before} | {after} | {moved or '–'} |")
    table = "\n".join(["| waits | start before | start after | |", "|:--|--:|--:|:--|", *rows])
    return f"**Others that wait, and when they start**\n\n{table}{_rest(len(plan.slips) - len(shown), 'more job', 'more jobs')}"


# --- the cluster ---


def _racks(plan: Plan, detail: _Detail) -> str:
    racks, left_out = words.told_racks(plan, detail.racks)
    if not racks:
        return ""
    group = max(len(fenced(rack.group)[:20]) for rack in racks)
    name = max(len(fenced(rack.rack)[:20]) for rack in racks)
    lines = [
        f"{fenced(rack.group)[:20]:<{group}}  {fenced(rack.rack)[:20]:<{name}}  {fenced(rack.cells)[:72]}"
        for rack in racks
    ]
    more = f" {counted(left_out, 'rack')} without a change left out." if left_out else ""
    head = f"**Racks** (a letter a node: {words.legend(racks)}).{more}"
    return "\n".join([head, "", "```text", *lines, "```"])


def _quotas(plan: Plan, detail: _Detail) -> str:
    lines = words.told_quotas(plan)
    shown = lines[: detail.lines]
    if not shown:
        return ""
    top = min(line.depth for line in shown)
    name = max(len(_queue(line.queue, line.depth - top)) for line in shown)
    kinds = len({line.gpu_type for line in plan.quotas}) > 1
    rows = [
        f"{_queue(line.queue, line.depth - top):<{name}}  {words.bar(line)}  "
        f"{fenced(line.gpu_type)[:24] + ': ' if kinds else ''}{words.quota(line)}"
        for line in shown
    ]
    return "\n".join(
        ["**Quota** (`#` own, `=` borrowed, `|` guarantee, `-` room)", "", "```text", *rows, "```"]
    ) + _rest(len(lines) - len(shown), "more queue", "more queues")


def _queue(name: str, depth: int) -> str:
    return "  " * min(depth, 8) + fenced(name)[:40]


def _tidying(plan: Plan, detail: _Detail) -> str:
    hops = [hop for one in plan.tidying for hop in one.hops]
    if not hops:
        return ""
    body = "\n".join(f"- {code(hop_line(hop))}" for hop in hops[: detail.lines])
    return _fold(
        tidying_line(plan.tidying), body + _rest(len(hops) - len(hops[: detail.lines]), "more move", "more moves")
    )


# --- what was found ---


def _findings(plan: Plan, detail: _Detail) -> str:
    told = [*plan.errors, *plan.warnings]
    if not told:
        return ""
    shown = told[: detail.findings]
    lines = [_finding(one) for one in shown]
    return "\n".join(lines) + _rest(len(told) - len(shown), "more finding", "more findings")


def _finding(one: Finding) -> str:
    place = f"{one.file}:{one.line}" if one.line else one.file
    sign = "🛑" if one.is_error else "⚠️"
    remedy = f" {prose(one.remedy)}" if one.remedy else ""
    return f"- {sign} {code(place)} — {prose(one.detail)}{remedy} ({code(one.code, 60)})"


def _drift(plan: Plan, detail: _Detail) -> str:
    if not plan.drift:
        return ""
    shown = plan.drift[: detail.lines]
    rows = [f"- {code(one.summary)}: {prose(one.detail)} ({code(one.code, 60)})" for one in shown]
    body = "\n".join(rows) + _rest(len(plan.drift) - len(shown), "more difference", "more differences")
    nodes = len({one.summary for one in plan.drift})
    return _fold(f"{counted(nodes, 'node')} with less than declared", body)


def _ranks(plan: Plan) -> str:
    folds = []
    for row in plan.rows:
        if row.ranks and row.own:
            lines = [
                f"| {code(r.node)} | {code(r.ranks)} | {code(r.gpus)} | {code(r.numa) or '–'} | {code(r.nics) or '–'} |"
                for r in row.ranks
            ]
            table = "\n".join(["| node | ranks | GPUs | NUMA | NICs |", "|:--|:--|:--|:--|:--|", *lines])
            folds.append(_fold(f"Ranks of {prose(row.job)} ({counted(len(row.ranks), 'node')})", table))
    return "\n\n".join(folds)


def _fold(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _rest(left_out: int, one: str, many: str) -> str:
    return (
        f"\n\n*{left_out:,} {one if left_out == 1 else many} left out; the whole plan has them.*"
        if left_out > 0
        else ""
    )


def _foot(plan: Plan) -> str:
    basis = plan.basis
    base = f"on base {code(basis.base[:10])}, " if basis.base else ""
    age = span(basis.at - basis.state_at)
    state = (
        f"state #{basis.generation} {code(basis.state[:10])} ({age} old)"
        if basis.state
        else f"assumed: {basis.assumes}"
    )
    return (
        f"<sub>head {code(basis.head[:10])} {base}{state} · "
        f"gangops {prose(basis.package_version)}, rules {basis.decision_version} · digest {code(f'sha256-{basis.digest[:16]}')} · "
        f"again: {code(' '.join(basis.command))} · The cluster moves on until the merge; the decision is made again then.</sub>"
    )
