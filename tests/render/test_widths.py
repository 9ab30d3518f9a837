"""Usage and history on a terminal: within its columns, no number off its own, nothing that matters lost."""

from __future__ import annotations

import re

import pytest

from reconciler.cli.times import Span
from reconciler.model.counting import counted
from reconciler.model.units import HOUR, Instant
from reconciler.render.audit import AuditLine, Fault, verdict_page
from reconciler.render.history import Row, history_header, history_line, holdings_table
from reconciler.render.names import age, gpu_hours
from reconciler.render.table import table
from reconciler.render.usage import UsageRow, UsageTotal, usage_table

HOURS = (0, 23_019 * HOUR + HOUR // 2, 0, 0, 40 * HOUR, 17 * HOUR, 5 * HOUR)
LONG = "very-long-name-of-a-queue-that-is-sixty-three-letters-long-yes-1"


def a_row(key: str, gpu_type: str = "H100-SXM5-80GB") -> UsageRow:
    return UsageRow(
        period=Instant(0), key=key, gpu_type=gpu_type, hours=HOURS, guaranteed=30_000 * HOUR, ceiling=50_000 * HOUR
    )


def a_table(width: int | None, *rows: UsageRow) -> list[str]:
    total = UsageTotal(
        period=Instant(0), until=Instant(720 * HOUR), capacity=60_000 * HOUR, hours=HOURS, idle=30_000 * HOUR,
        unavailable=0, undeclared=0,
    )  # fmt: skip
    return usage_table("queue", rows, [total], width).splitlines()


def test_off_a_terminal_every_column_is_there_to_three_digits() -> None:
    lines = a_table(None, a_row("nlp"))
    assert lines[1].split() == [
        "QUEUE", "GPU", "ALLOCATED", "RUNNING", "LOST/PREEMPT", "LOST/FAIL", "RESERVED", "GUARANTEED", "USED", "CEILING"
    ]  # fmt: skip
    assert lines[2].split()[:5] == ["nlp", "H100-SXM5-80GB", "23019.500", "23019.500", "17.000"]


def test_at_eighty_columns_the_numbers_stay_below_their_headings() -> None:
    lines = a_table(80, a_row("nlp"), a_row("vision"))
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("GPU-hours of H100-SXM5-80GB")
    head, first = lines[2], lines[3]
    assert head.split() == ["QUEUE", "ALLOCATED", "RUNNING", "PREEMPT", "FAIL", "RESERVED", "QUOTA", "USED", "CEILING"]
    assert first.split() == ["nlp", "23019.5", "23019.5", "17.0", "5.0", "40.0", "30000.0", "76.7", "%", "50000.0"]
    ends = [found.end() for found in re.finditer(r"\S+", head)][1:]
    assert all(first[end - 1] != " " and first[end : end + 1] in {"", " "} for end in ends)
    assert lines[-4:-2] == ["capacity x time  60000.000", "  running        23019.500  38.3 %"]


@pytest.mark.parametrize("width", [100, 120, 140])
def test_a_long_name_gives_way_and_keeps_its_ends(width: int) -> None:
    lines = a_table(width, a_row(LONG), a_row("nlp", "A100"))
    assert max(map(len, lines)) <= width
    assert {"A100", "H100-SXM5-80GB", "50000.0"} <= set("\n".join(lines).split())
    key = lines[3].split()[0]
    assert "…" in key
    assert (LONG.startswith(key.partition("…")[0]), LONG.endswith(key.partition("…")[2])) == (True, True)


def a_change(**changes: str | int) -> Row:
    made: Row = {
        "generation": 417, "at": "", "commit": "c0ffee" * 6, "job": "nlp/sft", "queue": "nlp", "attempt": 1, "action": "preempt",
        "state": "Stopping", "gpus": 16, "place": "", "cause": "Preempted", "reason": "Preempted",
        "why": "gives way to vision/big; 64 GPU-seconds since the last checkpoint", "preemptor": "vision/big",
        "person": "ada@acme.org", "pullRequest": "88", "desiredCommit": "", "_at": 0,
    }  # fmt: skip
    return {**made, **changes}


@pytest.mark.parametrize("job", ["nlp/sft", f"nlp/{LONG}"])
def test_a_change_fits_a_terminal_with_all_it_says(job: str) -> None:
    told = history_line(a_change(job=job), 80)
    assert max(map(len, told.splitlines())) <= 80
    assert {"#417", "preempt", "16", job, "PR", "#88:", "vision/big;", "checkpoint"} <= set(told.split())
    assert len(history_header(80)) <= 80


def test_off_a_terminal_a_change_is_one_line() -> None:
    assert "\n" not in history_line(a_change(), None)
    assert history_line(a_change(), None).endswith(
        "PR #88              gives way to vision/big; 64 GPU-seconds since the last checkpoint"
    )


def test_only_an_eviction_is_for_somebody() -> None:
    assert "for vision/big" not in history_line(a_change(action="place", why="16 GPUs in one rack"), None)
    assert "for vision/big: made room" in history_line(a_change(why="made room"), None)


def test_a_last_column_goes_on_in_its_own_while_words_have_room_there() -> None:
    rows = [["#7", "Preempt nlp/sft; place vision/nightly; promise GPUs"], ["#8", "short"]]
    assert table(["#", "WHAT"], rows, width=40).splitlines() == [
        "#   WHAT", "#7  Preempt nlp/sft; place", "    vision/nightly; promise GPUs", "#8  short"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "number", "words"),
    [("1 GPU", 1, ("GPU",)), ("0 GPUs", 0, ("GPU",)), ("1,200 GPUs", 1200, ("GPU",)), ("1 switch", 1, ("switch", "switches")),
     ("2 switches", 2, ("switch", "switches")), ("1 move frees", 1, ("move frees", "moves free"))],
)  # fmt: skip
def test_numbers_of_things(told: str, number: int, words: tuple[str, ...]) -> None:
    assert counted(number, *words) == told


def test_little_lost_work_is_told_in_seconds() -> None:
    assert [gpu_hours(n) for n in (0, 1, 359, 360)] == ["0.0 GPU-h", "1 GPU-s", "359 GPU-s", "0.1 GPU-h"]


@pytest.mark.parametrize(
    ("nanoseconds", "told"), [(0, "0s"), (584_800_000, "0s"), (6_999_999_999, "6s"), (78 * 10**9, "1m18s")]
)
def test_an_age_has_no_fractions(nanoseconds: int, told: str) -> None:
    assert age(nanoseconds) == told


def test_what_is_wrong_with_generations_in_a_row_is_told_once() -> None:
    wrong = (
        [("NoSigners", "none were given")] * 14
        + [("WrongPrincipal", "of another")]
        + [("NoSigners", "none were given")]
    )
    faults = [
        Fault(generation=n, commit=f"{n:07}", check="signatures", code=code, told=told)
        for n, (code, told) in enumerate(wrong, 1)
    ]
    page = verdict_page([AuditLine(check="signatures", told="0 of 17", wrong=16)], faults, [], "NOT verified", 80)
    assert page.split("\n")[1:-1] == [
        "  #1 0000001 to #14 0000014  NoSigners: none were given",
        "  #15 0000015  WrongPrincipal: of another",
        "  #16 0000016  NoSigners: none were given",
    ]


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("5s", 5.0), ("30m", 1800.0)])
def test_a_timeout_is_seconds_or_a_span(text: str, seconds: float) -> None:
    assert Span().convert(text, None, None) == seconds


def test_who_held_what_fits_a_terminal_with_all_it_says() -> None:
    row: Row = {
        "node": "gpu-005", "gpus": "0-7", "job": "nlp/llama-sft", "attempt": 3, "state": "Running", "generation": 24,
        "commit": "2453fe1" + "0" * 33, "_at": 0, "person": "ada@example.org", "pullRequest": "", "why": "16 GPUs in one rack",
    }  # fmt: skip
    narrow = holdings_table([row], 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.splitlines()[1].endswith("#24       1970-01-01 00:00:00Z")
    assert narrow.splitlines()[2] == "    2453fe1  ada@example.org: 16 GPUs in one rack"
    assert holdings_table([row], None).endswith(
        "#24 2453fe1  1970-01-01 00:00:00Z  ada@example.org  16 GPUs in one rack"
    )
