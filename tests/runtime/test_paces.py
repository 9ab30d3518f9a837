"""How fast each attempt went: what heartbeats say, kept beside the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.model.units import Instant, JobKey
from reconciler.ports import LiveAttempt
from reconciler.render.life import Pace
from reconciler.runtime.paces import ATTEMPTS, Paces, pace_from, pace_of, pace_tree

JOB = JobKey("nlp/sft")
NOW = Instant(10**18)


def live(attempt: int, **progress: object) -> dict[JobKey, LiveAttempt]:
    return {JOB: LiveAttempt(job=JOB, attempt=attempt, checkpoint=None, progress=progress, ranks={})}


def test_the_last_word_of_each_attempt_survives_a_restart(tmp_path: Path) -> None:
    paces = Paces(tmp_path / "paces.json")
    paces.note(live(1, step=10, stepSeconds=2.5, mfu=0.31), NOW)
    paces.note(live(1, step=11, stepSeconds=2.4, mfu=0.32), NOW)
    paces.note(live(2, step=12, stepSeconds=1.8, mfu=0.41), NOW)
    paces.note(live(2), NOW)  # says nothing: what it said stays
    paces.save()
    first, second = Paces(tmp_path / "paces.json").of()[JOB]
    assert first == Pace(attempt=1, step=11, step_seconds=2.4, mfu=0.32, at=NOW)
    assert (second.attempt, second.step_seconds, second.mfu) == (2, 1.8, 0.41)


def test_only_the_newest_attempts_are_kept() -> None:
    paces = Paces()
    for attempt in range(1, ATTEMPTS + 4):
        paces.note(live(attempt, step=1), NOW)
    assert [pace.attempt for pace in paces.of()[JOB]] == list(range(4, ATTEMPTS + 4))


@pytest.mark.parametrize(
    "progress", [{}, {"loss": 1.0}, {"mfu": "0.4"}, {"stepSeconds": -1}, {"step": True}, {"mfu": float("nan")}], ids=str
)
def test_what_says_nothing_of_the_pace_is_none(progress: dict[str, object]) -> None:
    assert pace_of(1, progress, NOW) is None


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"nlp/sft": 1}', b'{"nlp/sft": [1, {"attempt": "x"}]}', b"\xff"]
)
def test_a_damaged_file_is_no_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "paces.json").write_bytes(content)
    assert Paces(tmp_path / "paces.json").of() == {}


def test_a_pace_reads_back_from_json() -> None:
    pace = Pace(attempt=3, step=7, step_seconds=0.5, tokens_per_second=1e6, mfu=0.4, at=NOW)
    assert pace_from(json.loads(json.dumps(pace_tree(pace)))) == pace
