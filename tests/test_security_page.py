"""The page on security names tests: they are there, and every trap of the agent's verification is on it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reconciler.agent.verify import RefusedOrder
from tests.controls import CONTROLS, Control

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / ".github" / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)


def test_the_page_names_tests() -> None:
    assert len({test for _, test in NAMED if test}) > 40


@pytest.mark.parametrize(("file", "test"), sorted(set(NAMED)), ids=lambda part: part)
def test_a_test_that_the_page_names_is_there(file: str, test: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert not test or re.search(rf"^\s*(?:async )?def {test}\(", source, re.MULTILINE)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.test.partition("::")[2])
def test_what_is_removed_to_see_a_test_fail_is_there_once(control: Control) -> None:
    for file, text, _ in control.removals:
        assert (ROOT / file).read_text(encoding="utf-8").count(text) == 1
    file, _, test = control.test.partition("::")
    assert (file, test) in NAMED or re.match(r"test_g\d\d_", test), "the page names them, or their common name"


def test_every_row_that_names_tests_has_one_that_was_seen_failing() -> None:
    controlled = {control.test for control in CONTROLS}
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "`tests/" in line]
    assert len(rows) > 50
    missing = [
        row.split("|")[1].strip() for row in rows if not controlled & set(re.findall(r"`(tests/\S+::\w+)`", row))
    ]
    assert missing == []


def test_every_reason_to_refuse_an_order_is_on_the_page() -> None:
    codes = re.findall(r"[A-Z]\w+", (RefusedOrder.__doc__ or "").split("Codes:")[1])
    missing = [code for code in codes if f"`{code}`" not in PAGE]
    assert missing == ["LocalStorageFull"], "a full disk is a fault and no trap"
