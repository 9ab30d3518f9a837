"""What became of a merged pull request, told in its comment beside what its preview had said.

Pure: from the comment as it is, one more notice and the state after it, to the comment as it should be. What was told
before is kept in the comment itself, so that telling again changes nothing. Only a comment of our own is taken for one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from reconciler.documents.quantities import print_instant
from reconciler.model.allocation import JobRecord
from reconciler.model.counting import counted
from reconciler.model.lifecycle import JobState
from reconciler.model.reasons import sentence
from reconciler.model.units import MINUTE, Instant, JobKey, document_of
from reconciler.render.names import gpu_hours, places, span, when
from reconciler.render.plan.escape import code, prose
from reconciler.runtime.forge.comment import Shown, shown_by
from reconciler.runtime.forge.recheck import TOLERANCE
from reconciler.runtime.notices.events import Moment, Notice, NoticeKind

_BEGIN, _END = "<!-- gangops:happened:", "<!-- gangops:happened-end -->"
_SECTION = re.compile(rf"{re.escape(_BEGIN)}([A-Za-z0-9_=-]*) -->.*?{re.escape(_END)}\n*", re.DOTALL)
LINES = 8
"""Newest notices that are told; and rows of jobs."""
_TOLD = 140
_LATE = 15 * MINUTE
_STARTED = frozenset({JobState.STARTING, JobState.RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One notice as the comment keeps it."""

    id: str
    at: Instant
    kind: str
    job: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What was told before: the newest notices, when each job first ran, and who paid so far, in GPU-seconds."""

    lines: tuple[Line, ...] = ()
    first: Mapping[str, Instant] = field(default_factory=dict)
    paid: Mapping[str, int] = field(default_factory=dict)


def with_notice(body: str, number: str, notice: Notice, moment: Moment, *, most: int = LINES) -> str:
    """The comment after this notice; the same text when it was told before and nothing else moved."""
    found = _SECTION.search(body)
    kept = _after(_kept(found[1]) if found is not None else Kept(), number, notice, moment)
    first, _, rest = (_SECTION.sub("", body) if found is not None else body).partition("\n")
    return f"{first}\n{_section(kept, shown_by(body), number, moment, most)}\n\n{rest.lstrip(chr(10))}"


def _after(kept: Kept, number: str, notice: Notice, moment: Moment) -> Kept:
    if any(line.id == notice.id for line in kept.lines):
        return kept
    job = str(notice.job)
    line = Line(id=notice.id, at=notice.at, kind=str(notice.kind), job=job, told=notice.told[:_TOLD])
    first, paid = dict(kept.first), dict(kept.paid)
    if notice.kind in (NoticeKind.STARTED, NoticeKind.RESUMED):
        first.setdefault(job, notice.at)
    by, lost = notice.detail("by"), notice.detail("lostGpuSeconds")
    if (
        notice.kind is NoticeKind.PREEMPTED
        and isinstance(by, str)
        and document_of(JobKey(by)) in _brought(number, moment)
    ):
        paid[job] = paid.get(job, 0) + (lost if isinstance(lost, int) else 0)
    return Kept(lines=(*kept.lines, line)[-LINES:], first=first, paid=paid)


def _brought(number: str, moment: Moment) -> tuple[JobKey, ...]:
    """The jobs whose files this pull request brought as they are now."""
    return tuple(key for key, one in moment.observed.provenance.items() if one.pull_request == number)


# --- as it differs ---


def differences(shown: Shown, kept: Kept, jobs: Sequence[JobKey], moment: Moment) -> Iterator[str]:
    """How what happened differs from what the preview showed, a sentence each; nothing when it does not."""
    if not shown.found:
        return
    for key in jobs:
        previewed, record = shown.rows.get(key), moment.allocation.jobs.get(key)
        if previewed is not None and record is not None:
            yield from (f"{code(key)} {told}" for told in _moved(previewed, record, kept.first.get(key), moment))
    unseen = sorted(job for job in kept.paid if job not in shown.victims)
    if unseen:
        more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
        yield f"{', '.join(map(code, unseen[:5]))}{more} paid for it, which the preview had not named"
    lost = sum(kept.paid.values())
    if lost > shown.lost_gpu_seconds + max(TOLERANCE, shown.lost_gpu_seconds // 10):
        yield f"{gpu_hours(lost)} of work were lost; the preview had said {gpu_hours(shown.lost_gpu_seconds)}"


def _moved(
    previewed: tuple[str, str, Instant | None], record: JobRecord, first: Instant | None, moment: Moment
) -> Iterator[str]:
    step, where, starts = previewed
    if first is None and step == "place" and record.state not in _STARTED and record.outcome is None:
        yield f"was to start at once; {record.state}: {prose(sentence(record.reason), _TOLD)}"
    if first is not None and step == "place" and first - record.submitted >= _LATE:
        yield f"was to start at once, and started {span(first - record.submitted)} after the merge"
    there = places(record.placement, moment.desired.inventory) if record.placement is not None else ""
    if step in ("place", "promise") and where and there and where != there and record.attempt == record.first_attempt:
        yield f"was to run on {code(where)}"
    if first is not None and starts is not None and abs(first - starts) >= _LATE:
        yield f"started {span(abs(first - starts))} {'later' if first > starts else 'sooner'} than forecast"


# --- as it reads ---


def _section(kept: Kept, shown: Shown, number: str, moment: Moment, most: int) -> str:
    jobs = _brought(number, moment)
    unlike = list(differences(shown, kept, jobs, moment))
    verdict = "⚠️ not all as previewed" if unlike else "✅ as previewed" if shown.found else "no preview to compare with"
    rows = [_row(key, shown, moment) for key in jobs[:most]]
    more = [f"| and {len(jobs) - most} more | | |"] if len(jobs) > most else []
    table = ["| job | previewed | now |", "|:--|:--|:--|", *rows, *more, ""] if rows else []
    lines = [f"- `{when(one.at)}` {one.kind} {code(one.job)}: {prose(one.told, _TOLD)}" for one in kept.lines[-most:]]
    generation = moment.allocation.generation
    return "\n".join(
        [
            f"{_BEGIN}{_packed(kept)} -->",
            f"### What happened — {verdict}",
            "",
            *table,
            *(f"- ⚠️ {told}" for told in unlike[:most]),
            *reversed(lines),
            "",
            f"<sub>state #{generation} `{moment.commit[:8]}` · newest first; the preview as it was follows</sub>",
            "",
            "---",
            _END,
        ]
    )


def _row(key: JobKey, shown: Shown, moment: Moment) -> str:
    records = [record for job, record in moment.allocation.jobs.items() if key in (job, document_of(job))]
    step, where, _ = shown.rows.get(key, ("", "", None))
    previewed = f"{step} {code(where)}".strip() or "–"
    if len(records) != 1:
        running = sum(record.state is JobState.RUNNING for record in records)
        over = sum(record.state is JobState.FINISHED for record in records)
        return f"| {code(key)} | {previewed} | {running} of {counted(len(records), 'task')} run, {over} are over |"
    record = records[0]
    there = f", {code(places(record.placement, moment.desired.inventory))}" if record.placement is not None else ""
    attempt = f", attempt {record.attempt}" if record.attempt > 1 else ""
    return (
        f"| {code(key)} | {previewed} | {record.outcome or record.state} since {when(record.since)}{there}{attempt} |"
    )


# --- as it is kept ---


def _packed(kept: Kept) -> str:
    tree = {
        "lines": [[one.id, one.at, one.kind, one.job, one.told] for one in kept.lines],
        "first": dict(list(kept.first.items())[-50:]),
        "paid": dict(list(kept.paid.items())[-50:]),
    }
    return base64.urlsafe_b64encode(json.dumps(tree, separators=(",", ":")).encode()).decode()


def _kept(packed: str) -> Kept:
    """What `_packed` wrote; a damaged one has told nothing."""
    try:
        tree = json.loads(base64.urlsafe_b64decode(packed))
        lines = [
            Line(id=str(name), at=Instant(int(at)), kind=str(kind), job=str(job), told=str(told)[:_TOLD])
            for name, at, kind, job, told in tree["lines"]
        ]
        for line in lines:
            print_instant(line.at)
        return Kept(
            lines=tuple(lines[-LINES:]),
            first={str(job): Instant(int(at)) for job, at in tree["first"].items()},
            paid={str(job): int(lost) for job, lost in tree["paid"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Kept()
