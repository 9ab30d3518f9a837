"""The table of states and the page made of it say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.errors import BrokenInvariant
from reconciler.model.lifecycle import MOVES, JobState, check_move, lifecycle_page

PAGE = Path(__file__).parents[2] / ".github" / "LIFECYCLE.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == lifecycle_page(), "write lifecycle_page() to .github/LIFECYCLE.md"


def test_no_move_is_written_twice_and_every_state_can_be_left_and_reached() -> None:
    pairs = [(move.source, move.target) for move in MOVES]
    assert len(pairs) == len(set(pairs))
    assert {source for source, _ in pairs if source} == set(JobState) == {target for _, target in pairs}


def test_a_move_that_is_not_in_the_table_is_refused() -> None:
    assert check_move(JobState.RUNNING, JobState.RUNNING) is JobState.RUNNING
    with pytest.raises(BrokenInvariant):
        check_move(JobState.STOPPING, JobState.RUNNING)
