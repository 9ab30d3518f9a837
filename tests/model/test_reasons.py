"""Reasons as sentences: every code has one, and instants in them are the calendar's."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.reasons import SENTENCES, ReasonCode, blank, reason, sentence


def test_every_code_has_a_sentence() -> None:
    assert set(SENTENCES) == set(ReasonCode)


def test_a_number_that_is_missing_shows_as_a_question_mark() -> None:
    assert "?" in sentence(reason(ReasonCode.BACK_OFF))


def test_one_of_a_thing_is_told_as_one() -> None:
    assert sentence(reason(ReasonCode.BACK_OFF, failures=1, last="x")).startswith("failed 1 time, last: x")
    assert sentence(reason(ReasonCode.BACK_OFF, failures=2, last="x")).startswith("failed 2 times, last: x")
    assert sentence(reason(ReasonCode.RUNNING, ranks=1)) == "its one rank started"
    assert sentence(reason(ReasonCode.RUNNING, ranks=2)) == "all 2 ranks started"
    assert sentence(reason(ReasonCode.CAPACITY, need=1)).startswith("needs 1 GPU; ")


_SEVERAL = r"(?:free )?(?:GPUs|GPU-seconds|nodes|tasks|times|ranks|steps|restarts|groups)\b"


@pytest.mark.parametrize("code", list(ReasonCode))
def test_no_sentence_tells_one_as_several(code: ReasonCode) -> None:
    assert not re.search(r"\{\w+\} " + _SEVERAL, SENTENCES[code])
    counted = dict.fromkeys(re.findall(r"\{(\w+)\|", SENTENCES[code]), 1)
    one = sentence(reason(code, **counted))
    assert not re.search(r"\b1 (?:" + _SEVERAL + r"|are\b|were\b|GPU\b.* are\b)", one), one
    assert [name for name in counted if "1" not in one] in ([], ["ranks"])  # its one rank


def test_a_sentence_without_its_numbers_has_no_braces() -> None:
    assert blank(ReasonCode.RUNNING) == "all <ranks> ranks started"
    assert blank(ReasonCode.QUOTA_CEILING) == "queue <queue> would hold <would be> of at most <ceiling> <gpu type>"
    assert not [code for code in ReasonCode if set("{}|#") & set(blank(code))]


@given(st.integers(0, 253_402_300_799))
def test_an_instant_is_told_as_the_calendar_has_it(seconds: int) -> None:
    told = sentence(reason(ReasonCode.BACK_OFF, failures=1, until=seconds * 10**9 + 999))
    assert f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}".lstrip("0") in told
