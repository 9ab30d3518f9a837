"""Every case of the corpus of git faults has a test that is named after it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = sorted((HERE.parents[1] / "shared/corpus/gitops-faults").glob("g*.yaml"))
NAMED = {
    found
    for file in HERE.rglob("test_*.py")
    for found in re.findall(r"^\s*def test_(g\d\d)_", file.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_there_are_cases() -> None:
    if not CASES:
        pytest.skip("the corpus of git faults is not beside this repository")
    assert len(CASES) >= 28


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_has_a_test_of_its_name(case: Path) -> None:
    assert case.stem.partition("-")[0] in NAMED


def test_no_test_is_named_after_a_case_that_is_not_there() -> None:
    if not CASES:
        pytest.skip("the corpus of git faults is not beside this repository")
    assert {case.stem.partition("-")[0] for case in CASES} >= NAMED
