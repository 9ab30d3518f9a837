"""A plan for a terminal: 80 columns unless told otherwise, a line or two a job, nothing by colour alone."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len

from reconciler.model.counting import counted
from reconciler.render.names import one_line
from reconciler.render.plan import words
from reconciler.render.plan.model import COUNTED, Basis, Finding, Plan, Row, Step
from reconciler.render.table import below, continued
from reconciler.render.tidying import hop_line, tidying_line

WIDTH = 80
_ROWS = 24
_VICTIMS = 200
_RACKS = 24
_FINDINGS = 50
_DRIFT = 8
_HOPS = 4
_OVER = 16
_INDENT = " " * 6


def plan_text(plan: Plan, width: int | None = None) -> str:
    """The whole plan. `width` None: 80 columns."""
    columns = width or WIDTH
    basis = plan.basis
    sides = f"{basis.base[:7]} -> {basis.head[:7]}" if basis.base else basis.head[:7]
    head = f"Plan for {plain(basis.cluster)}   desired {sides}   {_stands_on(basis)}"
    parts = [
        [head, *_assumed(plan, columns)],
        _verdict(plan, columns),
        list(_jobs(plan, columns)),
        _over(plan, columns),
        list(_slips(plan)),
        list(_figures(plan)),
        list(_quotas(plan)),
        list(_racks(plan)),
        list(_tidying(plan)),
        list(_findings(plan, columns)),
        list(_drift(plan, columns)),
        list(_close(plan, columns)),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def plan_brief(plan: Plan, width: int | None = None) -> str:
    """What becomes of jobs, what was found, and the sum of it: for who asked for this change and knows the cluster."""
    columns = width or WIDTH
    parts = [
        _assumed(plan, columns),
        _verdict(plan, columns),
        list(_jobs(plan, columns)),
        _over(plan, columns),
        list(_slips(plan)),
        list(_new_findings(plan, columns)),
        list(below(words.total(plan), columns, "")),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _assumed(plan: Plan, width: int) -> list[str]:
    return list(below(f"Assumed: {plan.basis.assumes}.", width, "")) if plan.basis.assumes else []


def _stands_on(basis: Basis) -> str:
    return f"state #{basis.generation} {basis.state[:7]}" if basis.state else "no state"


def plain(text: str) -> str:
    """Anybody's text on one line, and no command to whoever reads a build's output line by line."""
    return one_line(text).replace("::", ": :").replace("##[", "## [")


def _verdict(plan: Plan, width: int) -> list[str]:
    told = words.verdict(plan)
    if not told:
        return []
    return [f"! {words.headline(plan).upper()}" if plan.removals else "! NOT TO BE MERGED", *below(told, width, "  ")]


def _over(plan: Plan, width: int) -> list[str]:
    return [line for told in words.over_ceilings(plan)[:_OVER] for line in continued(f"! {plain(told)}", width, 2)]


# --- jobs ---


def _jobs(plan: Plan, width: int) -> Iterator[str]:
    if not plan.rows:
        return
    name = min(max(len(plain(row.job)) for row in plan.rows), 34)
    gpus = max(len(str(row.gpus)) for row in plan.rows)
    step = max(len(row.step) for row in plan.rows)
    kind = max(len(plain(row.priority_class)) for row in plan.rows)
    told: dict[Step, int] = {}
    for row in plan.rows:
        told[row.step] = told.get(row.step, 0) + 1
        if told[row.step] > (_VICTIMS if row.is_victim else _ROWS):
            if told[row.step] == plan.lines[row.step]:
                left_out = plan.lines[row.step] - (_VICTIMS if row.is_victim else _ROWS)
                yield f"{_INDENT}... and {left_out:,} more {COUNTED[row.step][1]}: plan -o json has them"
            continue
        yield from _job(row, plan, (step, name, gpus, kind), width)


def _job(row: Row, plan: Plan, widths: tuple[int, int, int, int], width: int) -> Iterator[str]:
    step, name, gpus, kind = widths
    start = f"{row.step.sign:>3} {row.step:<{step}}  {plain(row.job):<{name}}  {row.gpus:>{gpus}} {'GPU ' if row.gpus == 1 else 'GPUs'}"
    start += f"  {plain(row.priority_class):<{kind}}"
    place = plain(words.where(row))
    if place and cell_len(start) + 2 + cell_len(place) <= width:
        yield f"{start}  {place}"
    else:
        yield start.rstrip()
        yield from below(place, width, _INDENT) if place else ()
    clauses = "; ".join(plain(note) for note in words.notes(row, plan.basis.at))
    yield from below(clauses, width, _INDENT) if clauses else ()
    for edit in words.edits(row):
        yield from below(plain(edit), width, f"{_INDENT}~ ")


def _slips(plan: Plan) -> Iterator[str]:
    if not plan.slips:
        return
    yield "Others that wait, and when they start"
    rows = [(plain(slip.job), *words.slip(slip, plan.basis.at)) for slip in plan.slips]
    name = max(len(row[0]) for row in rows)
    for job, before, after, moved in rows:
        yield f"  {job:<{name}}  {before} -> {after}  {moved}".rstrip()


# --- the cluster ---


def _figures(plan: Plan) -> Iterator[str]:
    if not plan.rows and plan.before == plan.after:
        return
    rows = [
        (name, after if before in ("", after) else f"{before} -> {after}", note)
        for name, before, after, note in words.figures(plan)
    ]
    size = max((len(value) for _, value, _ in rows), default=0)
    for name, value, note in rows:
        yield f"  {name:<12}  {value:<{size}}  {note}".rstrip()


def _quotas(plan: Plan) -> Iterator[str]:
    lines = words.told_quotas(plan)
    if not lines:
        return
    yield "Quota   # own, = borrowed, | guarantee, - room"
    top = min(line.depth for line in lines)
    name = max(len(plain(line.queue)) + 2 * (line.depth - top) for line in lines)
    kinds = len({line.gpu_type for line in plan.quotas}) > 1
    for line in lines:
        label = "  " * (line.depth - top) + plain(line.queue)
        told = f"{plain(line.gpu_type)}: {words.quota(line)}" if kinds else words.quota(line)
        whole = f"  {label:<{name}}  {words.bar(line)}  {told}"
        if len(whole) <= WIDTH:
            yield whole
        else:
            yield f"  {label:<{name}}  {words.bar(line)}"
            yield f"  {'':<{name}}  {told}"


def _racks(plan: Plan) -> Iterator[str]:
    racks, left_out = words.told_racks(plan, _RACKS)
    if not racks:
        return
    yield from below(f"Racks   a letter a node: {words.legend(racks)}", WIDTH, "")
    group = max(len(plain(rack.group)) for rack in racks)
    name = max(len(plain(rack.rack)) for rack in racks)
    for rack in racks:
        start = f"  {plain(rack.group):<{group}}  " if group else "  "
        row = f"{start}{plain(rack.rack):<{name}}  {plain(rack.cells)}"
        yield f"{row}  {plain(rack.nodes)}" if len(row) + len(rack.nodes) + 2 <= WIDTH else row
    if left_out:
        yield f"  {counted(left_out, 'rack')} without a change left out"


def _tidying(plan: Plan) -> Iterator[str]:
    if plan.tidying:
        yield tidying_line(plan.tidying)
        hops = [hop for one in plan.tidying for hop in one.hops]
        yield from (f"  {plain(hop_line(hop))}" for hop in hops[:_HOPS])
        if len(hops) > _HOPS:
            yield f"  ... and {len(hops) - _HOPS} more: plan -o json has them"


# --- what was found ---


def _findings(plan: Plan, width: int) -> Iterator[str]:
    yield from _new_findings(plan, width)
    old = sum(not finding.new for finding in plan.findings)
    if old:
        yield f"{counted(old, 'finding')} of the base left out: gangops validate"


def _new_findings(plan: Plan, width: int) -> Iterator[str]:
    told = [*plan.errors, *plan.warnings]
    for number, finding in enumerate(told[:_FINDINGS]):
        if number:
            yield ""
        yield from _finding(finding, width)
    if len(told) > _FINDINGS:
        yield f"... and {counted(len(told) - _FINDINGS, 'more finding')}"


def _finding(finding: Finding, width: int) -> Iterator[str]:
    yield f"{plain(finding.severity)}[{plain(finding.code)}]: {plain(finding.summary)}"
    place = f"{finding.file}:{finding.line}:{finding.column}" if finding.line else finding.file
    yield f"  {plain(f'{place}  {finding.path}')}".rstrip()
    for text in (finding.detail, finding.remedy):
        yield from below(plain(text), width, "  ") if text else ()


def _drift(plan: Plan, width: int) -> Iterator[str]:
    if not plan.drift:
        return
    yield "Nodes that offer less than declared"
    for finding in plan.drift[:_DRIFT]:
        head, detail = f"  {plain(finding.summary)}  {plain(finding.code)}", plain(finding.detail)
        if cell_len(head) + 2 + cell_len(detail) <= width:
            yield f"{head}  {detail}"
        else:
            yield head
            yield from below(detail, width, _INDENT)
    if len(plan.drift) > _DRIFT:
        yield f"  ... and {len(plan.drift) - _DRIFT} more: gangops get nodes"


def _close(plan: Plan, width: int) -> Iterator[str]:
    yield from below(words.total(plan), width, "")
    again, rest = plan.basis.command
    yield f"Again        {again} \\"
    yield f"               {rest}"
    yield f"Still true?  {plan.basis.check}"
