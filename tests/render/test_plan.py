"""The plan as a value: what becomes of each job, what may be shown of an edit, and the same in every form."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from reconciler.model.allocation import JobRecord, Promise
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.observed import JobObservation, Observed
from reconciler.model.reasons import ReasonCode, reason
from reconciler.model.units import HOUR, MINUTE, SECOND, ClassName, Digest, Gpus, GpuSeconds, Instant, JobKey
from reconciler.render.plan import Basis, Plan, Row, Side, Step, plan_markdown, plan_of, plan_text
from reconciler.render.plan.build import Told
from reconciler.render.plan.edits import edits_of
from reconciler.render.plan.escape import code, fenced, prose
from reconciler.render.plan.machine import plan_from_json, plan_text_json
from reconciler.render.plan.model import Edit, Finding, Slip
from reconciler.render.plan.page import plan_page
from reconciler.render.plan.steps import step_of
from reconciler.render.plan.text import plain
from reconciler.render.plan.words import timing
from tests.planner.worlds import START, job, pending, placement
from tests.render.scene import AFTER, BEFORE, BIG, DESIRED, NOW, OBSERVED, SWEEP, WIDE

BASIS = Basis(
    cluster="h100-east", base="8f3c2ab" + "0" * 33, head="91bd03e" + "0" * 33, state="c01d9e2" + "0" * 33, generation=7,
    at=NOW, state_at=START, digest="0d4f" * 16, decision_version=1, package_version="1.0.0",
)  # fmt: skip
SAVED = JobObservation(job=SWEEP, attempt=1, checkpoint=Instant(NOW - 14 * MINUTE))


def plan() -> Plan:
    seen = replace(OBSERVED, jobs={SWEEP: SAVED})
    sides = (Side(desired=DESIRED, allocation=BEFORE), Side(desired=DESIRED, allocation=AFTER))
    return plan_of(BASIS, *sides, seen, Told())


def test_who_pays_comes_first_then_who_gains_then_who_waits() -> None:
    rows = {row.job: row for row in plan().rows}
    assert [(row.step, row.job) for row in plan().rows] == [(Step.PREEMPT, SWEEP), (Step.PROMISE, BIG)]
    assert (rows[SWEEP].lost_gpu_seconds, rows[SWEEP].preemptor, rows[SWEEP].checkpoint) == (
        3360,
        BIG,
        SAVED.checkpoint,
    )
    assert (rows[BIG].victims, rows[BIG].nodes, rows[BIG].racks) == ((SWEEP,), 2, 1)
    assert rows[BIG].comm_ns > rows[BIG].comm_bound_ns > 0
    assert plan().unchanged == 2
    assert plan().lost_gpu_seconds == 3360
    assert [row.job for row in plan().victims] == [SWEEP]


def test_numbers_are_those_once_all_that_stops_has_stopped() -> None:
    before, after = plan().before, plan().after
    assert (before.busy, after.busy) == (6, 18)
    assert before.busy + before.idle == before.capacity


def record(state: JobState, **changes: object) -> JobRecord:
    """The sweep in some state, with a place where that state has one."""
    base = BEFORE.jobs[SWEEP]
    if not state.holds_gpus:
        base = replace(pending(DESIRED, SWEEP), attempt=1)
    return replace(base, state=state, **changes)  # type: ignore[arg-type]  # names are those of the fields


ELSEWHERE = placement(DESIRED, {"gpu-003": 4}, "node")
RUNS, WAITS, HELD = record(JobState.RUNNING), record(JobState.PENDING), record(JobState.HELD)
STARTS = record(JobState.STARTING, phase=Phase.PREPARE, attempt=2)
PROMISED = record(JobState.PROMISED, promise=Promise(placement=ELSEWHERE, made=NOW, deadline=NOW, waiting_for=()))
ENDED = record(JobState.FINISHED, digest=Digest("another run"))
CANCELLED = record(JobState.FINISHED, outcome=Outcome.CANCELLED)
STOPS = record(JobState.STOPPING, cause=Cause.PREEMPTED, phase=Phase.CHECKPOINT)


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        (RUNS, RUNS, None),
        (RUNS, STOPS, Step.PREEMPT),
        (RUNS, replace(STOPS, cause=Cause.MOVED), Step.MOVE),
        (RUNS, replace(STOPS, cause=Cause.RESIZED), Step.RESIZE),
        (RUNS, replace(STOPS, cause=Cause.CHANGED), Step.REPLACE),
        (RUNS, replace(STOPS, cause=Cause.CANCELLED), Step.STOP),
        (replace(STOPS, cause=Cause.CHANGED), STOPS, Step.PREEMPT),
        (STOPS, RUNS, Step.KEEP),
        (STARTS, WAITS, Step.DELAY),
        (STARTS, replace(STARTS, placement=ELSEWHERE), Step.PLACE),
        (STARTS, replace(STARTS, phase=Phase.RUN), Step.START),
        (WAITS, STARTS, Step.PLACE),
        (WAITS, PROMISED, Step.PROMISE),
        (replace(WAITS, digest=Digest("other")), PROMISED, Step.PROMISE),
        (ENDED, PROMISED, Step.PROMISE),
        (ENDED, WAITS, Step.WAIT),
        (PROMISED, STARTS, Step.PLACE),
        (None, WAITS, Step.WAIT),
        (None, STARTS, Step.PLACE),
        (WAITS, replace(WAITS, reason=reason(ReasonCode.CAPACITY, need=1, free=0, evictable=0, releasing=0)), None),
        (WAITS, replace(WAITS, digest=Digest("other")), Step.CHANGE),
        (WAITS, HELD, Step.HOLD),
        (WAITS, CANCELLED, Step.CANCEL),
        (None, CANCELLED, Step.CANCEL),
        (CANCELLED, replace(CANCELLED, digest=Digest("other")), Step.REPLACE),
        (RUNS, replace(CANCELLED, outcome=Outcome.SUCCEEDED), Step.FINISH),
        (WAITS, None, Step.DROP),
        (None, None, None),
    ],
)
def test_what_becomes_of_a_job(before: JobRecord | None, after: JobRecord | None, step: Step | None) -> None:
    assert step_of(SWEEP, before, after) is step


def test_numbers_and_instants_alone_are_no_step() -> None:
    later = replace(RUNS, since=Instant(RUNS.since + SECOND), lost_work=GpuSeconds(7))
    assert step_of(SWEEP, RUNS, later) is None


# --- edits ---


def test_an_edit_shows_what_may_be_shown_and_nothing_more() -> None:
    one = job("nlp/a", 8, limit=3600)
    other = replace(
        one, gpus=Gpus(16), priority_class=ClassName("high"), time_limit=None, suspend=True, labels={"team": "x"},
        run=replace(one.run, command=("python", "--token=hunter2"), script="", env={"KEY": "hunter2", "B": "2"}),
    )  # fmt: skip
    found = {edit.field: edit for edit in edits_of(one, other)}
    assert found["gpus"] == Edit(field="gpus", before="8", after="16")
    assert found["suspend"] == Edit(field="suspend", before="false", after="true")
    assert found["timeLimit"] == Edit(field="timeLimit", before="1h", after="none")
    assert found["run.command"] == Edit(field="run.command")
    assert found["run.env.KEY"] == Edit(field="run.env.KEY", after="(added)")
    assert "hunter2" not in str(found)
    assert edits_of(one, one) == ()


# --- anybody's text ---

HOSTILE = (
    "@everyone", "@acme/platform", "<img src=x onerror=alert(1)>", "</details>", "```", "`x`", "|", "a | b", "::error::x",
    "##[error]x", "https://evil.example/x", "www.evil.example", "#12", "acme/repo#12", "GH-12", ":tada:", "[a](b)", "![a](b)",
    "\u202eabc", "\u200b", "\x1b[31m", "-->", "<!--", "&lt;", "$x$", "deadbeef1234", "0d4f0d4f0d4f0d4f0d4f0d4f0d4f0d4f0d4f0d4f",
    "line\nnext", "a\rb", "\\|", "*b*", "_b_", "~~b~~", "x" * 5000,
)  # fmt: skip
text = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(HOSTILE), max_size=4).map(" ".join))
RENDERER = MarkdownIt("gfm-like", {"html": True, "linkify": False})


def visible(markdown: str) -> str:
    return str(RENDERER.render(markdown))


@settings(max_examples=300, deadline=None)
@given(text)
def test_no_text_does_anything_in_a_cell_of_a_table(told: str) -> None:
    for shown in (prose(told), code(told)):
        page = visible(f"| a | b |\n|--|--|\n| {shown} | end |\n")
        assert page.count("<td>") == 2, shown
        assert not re.search(r"<(?!/?(?:table|thead|tbody|tr|th|td|code)\b)[a-z!/]", page), page
        within = re.sub(r"<code>.*?</code>", "", page)
        assert not re.search(r"@[A-Za-z0-9]|#[0-9]|\bGH-[0-9]|https?://|\bwww\.|::|##\[", within), page
        assert not re.search(r"\b[0-9a-f]{7,40}\b", within), page
        assert not re.search(r"[\u200e\u200f\u202a-\u202e\u2066-\u2069]", page)
        assert "\n" not in shown


@settings(max_examples=200, deadline=None)
@given(text)
def test_no_text_ends_a_fence_or_commands_a_build(told: str) -> None:
    line = f"  {fenced(told)}"
    page = visible(f"```text\n{line}\n```\n\nafter\n")
    assert page.endswith("<p>after</p>\n")
    assert "::" not in line
    assert "::" not in plain(told)
    assert "\n" not in plain(told)
    assert plain(told).isprintable()


def with_text(told: str) -> Plan:
    """A plan whose every field that can hold somebody's text holds this one."""
    whole = plan()
    rows = tuple(
        replace(row, job=told, priority_class=told, why=told, where=told, was=told, preemptor=told, victims=(told,), file=told,
                edits=(Edit(field=told, before=told, after=told),), own=True,
                ranks=tuple(replace(line, node=told, nics=told, gpus=told, ranks=told, numa=told) for line in row.ranks))
        for row in whole.rows
    )  # fmt: skip
    finding = Finding(code=told, severity="error", summary=told, detail=told, remedy=told, file=told, line=3, path=told)
    return replace(
        whole,
        rows=rows,
        findings=(finding,),
        drift=(finding,),
        slips=(Slip(job=told),),
        quotas=tuple(replace(line, queue=told, gpu_type=told, after=line.after + 1) for line in whole.quotas),
        racks=tuple(replace(rack, group=told, rack=told, nodes=told, cells=f"N{rack.cells}") for rack in whole.racks),
    )


@settings(max_examples=80, deadline=None)
@given(text)
def test_a_whole_plan_of_anybody_s_text_is_harmless_in_every_form(told: str) -> None:
    made = with_text(told)
    comment = plan_markdown(made)
    assert len(comment) < 60_000
    assert comment.count("\n```") % 2 == 0
    page = visible(comment)
    assert page.count("<details>") == page.count("</details>")
    allowed = r"h3|p|strong|table|thead|tbody|tr|th|td|code|pre|ul|li|em|br|sub|details|summary|blockquote|hr"
    assert not re.search(rf"<(?!/?(?:{allowed})\b|!-- gangops)[a-z!/]", page)
    for line in plan_text(made).splitlines():
        assert not line.lstrip().startswith("::")
    html = plan_page(made)
    assert html.count("<script") == 0
    assert html.count("<img") == 0
    assert html.count("</main>") == 1
    assert plan_from_json(plan_text_json(made).encode()) == made


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5000), st.sampled_from(sorted(HOSTILE)), st.sampled_from(list(Step)))
def test_no_plan_is_too_large_for_a_comment(count: int, told: str, step: Step) -> None:
    row = Row(step=step, job=told, gpus=8, priority_class=told, reason="", why=told * 3, where=told, was=told,
              edits=(Edit(field=told, before=told, after=told),) * 9)  # fmt: skip
    finding = Finding(code=told, severity="warning", summary=told, detail=told, remedy=told, file=told)
    whole = plan()
    made = replace(
        whole, rows=(row,) * count, findings=(finding,) * count, drift=(finding,) * count, slips=(Slip(job=told),) * count,
        quotas=whole.quotas * (count // 10), racks=whole.racks * count,
    )  # fmt: skip
    comment = plan_markdown(made)
    assert len(comment) < 60_000
    assert comment.count("\n```") % 2 == 0
    assert comment.count("<details>") == comment.count("</details>")


def test_a_job_that_nothing_is_left_of() -> None:
    gone = replace(AFTER, jobs={})
    sides = (Side(desired=DESIRED, allocation=BEFORE), Side(desired=DESIRED, allocation=gone))
    rows = plan_of(BASIS, *sides, Observed(), Told()).rows
    assert {row.step for row in rows} == {Step.DROP}
    assert len(rows) == 4


def test_a_forecast_that_moves_is_told_and_one_that_hardly_does_is_not() -> None:
    def slips(before: int, after: int) -> tuple[Slip, ...]:
        starts = [{WIDE: Instant(NOW + span)} for span in (before, after)]
        sides = [
            Side(desired=DESIRED, allocation=side, starts=at) for side, at in zip((BEFORE, AFTER), starts, strict=True)
        ]
        return plan_of(BASIS, sides[0], sides[1], OBSERVED, Told()).slips

    assert slips(60 * MINUTE, 65 * MINUTE) == ()
    assert [slip.job for slip in slips(60 * MINUTE, 250 * MINUTE)] == [WIDE]


def test_a_start_says_at_the_latest_and_where_there_is_history_when_it_is_likely() -> None:
    latest, likely = Instant(NOW + 100 * MINUTE), Instant(NOW + 70 * MINUTE)
    waits = Row(
        step=Step.WAIT, job="vision/dino-l", gpus=32, priority_class="low", reason="Capacity", why="", starts=latest
    )
    assert timing(waits, NOW) == "starts 23:53Z (in 1h40m) at the latest"
    assert timing(replace(waits, likely=likely), NOW) == "starts 23:53Z (in 1h40m) at the latest, likely by 23:23Z"
    moved = replace(waits, would_start=Instant(NOW + 10 * MINUTE), likely=likely)
    assert timing(moved, NOW) == "start 22:23Z -> 23:53Z (in 1h40m), likely by 23:23Z"


def test_the_likely_start_reaches_the_row_and_its_json() -> None:
    fresh = replace(AFTER, jobs={**AFTER.jobs, JobKey("nlp/more"): replace(AFTER.jobs[WIDE], job=JobKey("nlp/more"))})
    likely = Instant(NOW + 70 * MINUTE)
    head = Side(desired=DESIRED, allocation=fresh, starts={JobKey("nlp/more"): Instant(NOW + HOUR * 4)},
                likely={JobKey("nlp/more"): likely})  # fmt: skip
    told = plan_of(BASIS, Side(desired=DESIRED, allocation=BEFORE), head, OBSERVED, Told())
    (row,) = (row for row in told.rows if row.job == "nlp/more")
    assert row.likely == likely
    assert plan_from_json(plan_text_json(told).encode()) == told


def test_running_jobs_beside_the_change_are_not_told() -> None:
    assert JobKey("nlp/eval") not in {row.job for row in plan().rows}
