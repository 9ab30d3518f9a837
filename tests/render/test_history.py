"""Answers about the past, as a terminal of 80 columns and a spreadsheet get them."""

from __future__ import annotations

import csv
import io

import pytest

from reconciler.model.units import SECOND, Instant
from reconciler.render.history import Row, as_csv, history_header, history_line
from reconciler.render.usage import UsageTotal, usage_table

ROW: Row = {
    "generation": 123456, "_at": 1_767_225_600 * SECOND, "commit": "0123456789abcdef", "action": "preempt", "gpus": 1024,
    "job": "pretrain/a-job-of-a-long-name", "person": "somebody.with.a.name@acme.example", "pullRequest": "", "preemptor": "nlp/b",
    "why": "gives way; 4816 GPU-seconds since the last checkpoint", "reason": "",
}  # fmt: skip


def test_a_row_on_a_narrow_terminal_loses_nothing_and_is_no_wider() -> None:
    lines = [history_header(80), *history_line(ROW, 80).split("\n")]
    assert max(map(len, lines)) <= 80
    told = " ".join(" ".join(lines).split())
    for cell in ("#123456", "2026-01-01 00:00:00Z", "0123456", "preempt", "1024", str(ROW["job"]), str(ROW["person"])):
        assert cell in told
    assert "for nlp/b: gives way; 4816 GPU-seconds since the last checkpoint" in told


@pytest.mark.parametrize("width", [None, 200])
def test_a_row_with_room_is_one_line(width: int | None) -> None:
    assert "\n" not in history_line(ROW, width)


def test_what_a_whole_is_made_of_is_broken_between_its_parts() -> None:
    hour = 3600 * SECOND
    total = UsageTotal(
        period=Instant(0), until=Instant(hour), capacity=50 * hour, hours=(hour, 20 * hour, hour, hour, 2 * hour, 0, 0),
        idle=20 * hour, unavailable=5 * hour, undeclared=0,
    )  # fmt: skip
    lines = usage_table("queue", [], [total], 80).split("\n")
    assert max(map(len, lines)) <= 97  # the heading of the table alone is wider
    whole = [line for line in lines if "%" in line]
    assert max(map(len, whole)) <= 80
    assert all(line.count("(") == line.count(")") for line in whole)
    assert " ".join(" ".join(whole).split()).endswith("idle 20.000 40.0 % unavailable 5.000 10.0 %")


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_is_a_formula(begins: str) -> None:
    _, line = as_csv(("name", "count"), [{"name": f"{begins}HYPERLINK(1)", "count": -1}])
    ((name, count),) = csv.reader(io.StringIO(line, newline=""))
    assert name[0] == "'"
    assert count == "-1"  # a number is a number
