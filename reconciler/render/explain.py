"""Why a job is where it is, as a page; and what each reason code means."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.errors import NotFound
from reconciler.model.allocation import JobRecord
from reconciler.model.job import Job
from reconciler.model.reasons import SENTENCES, Reason, ReasonCode, sentence
from reconciler.model.units import Instant
from reconciler.render.names import one_line, span, when
from reconciler.render.table import below


def explanation_page(
    record: JobRecord,
    job: Job | None,
    blockers: Sequence[Reason],
    generation: int,
    now: Instant,
    width: int | None = None,
) -> str:
    """What it asks for, then every blocker in order, the binding one marked, then how to ask again."""
    lines = [
        f"{record.job} is {record.outcome or record.state} since {when(record.since)} ({span(now - record.since)}).",
        *([f"It asks for {_asked(job)}."] if job else []),
    ]
    if not blockers or blockers[0].code is not record.reason.code:
        lines += ["", f"Because  {record.reason.code}", *below(one_line(sentence(record.reason)), width)]
    if blockers:
        lines += ["", "Blocked now by"]
        for number, blocker in enumerate(blockers, 1):
            lines.append(f" {number:>2}. {blocker.code}{'   <- binding' if number == 1 else ''}")
            lines += below(one_line(sentence(blocker)), width, " " * 5)
    return "\n".join([*lines, "", f"Decision #{generation}. The same answer again: gangops replay {generation}"])


def _asked(job: Job) -> str:
    types = " or ".join(job.gpu_types) or "any type"
    inside = "".join(f", {'all' if one.group == 'job' else one.group} in one {one.level}" for one in job.required)
    return f"{job.gpus} GPUs of {types}{inside}"


def code_page(name: str) -> str:
    """What a reason code means, and the numbers it carries. Raises NotFound (UnknownCode)."""
    code = next((c for c in ReasonCode if c.value.lower() == name.lower()), None)
    if code is None:
        known = ", ".join(sorted(ReasonCode))
        raise NotFound(f"{name} is not a reason code", code="UnknownCode", remedy=f"known codes: {known}")
    return f"{code}\n  {SENTENCES[code]}"
