"""Decisions of released versions come out the same, byte for byte: a record of each version is replayed for ever.

When a change moves one byte, raise `DECISION_VERSION` and run this with `--update-goldens`: the new version's record is
kept beside the old ones, which from then on are judged by their invariants. Before a version was released, its record
may be made anew the same way.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.model.decision import DECISION_VERSION
from reconciler.runtime.audit.verify import verify
from reconciler.runtime.replay import replay
from tests.generated import generate
from tests.store.world import STATE, Repository, git, new_repository

GOLDENS = Path(__file__).parent / "goldens"
NOW = GOLDENS / f"decisions-{DECISION_VERSION}.bundle"
GENERATIONS, NODES = 48, 10


def test_this_decision_version_has_a_golden(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if request.config.getoption("--update-goldens"):
        assert generate(tmp_path / "record.git", GENERATIONS, NODES) == []
        GOLDENS.mkdir(exist_ok=True)
        git(tmp_path / "record.git", "bundle", "create", "-q", str(NOW), "main", "allocations")
    assert NOW.exists(), "record it with --update-goldens"


@pytest.mark.parametrize("bundle", sorted(GOLDENS.glob("decisions-*.bundle")), ids=lambda bundle: str(bundle.stem))
def test_decisions_of_each_version_come_out_the_same(bundle: Path, tmp_path: Path) -> None:
    remote: Repository = new_repository(tmp_path / "record.git")
    git(remote.path, "fetch", "-q", str(bundle), "+refs/heads/*:refs/heads/*")
    tip = remote.tip(STATE)
    assert tip is not None
    done = list(replay(remote.git, tip))
    assert [one.generation for one in done] == list(range(GENERATIONS - 1, 0, -1))
    if bundle == NOW:
        different = [(one.generation, one.differs, one.fields, one.why) for one in done if not one.identical]
        assert different == [], "a decision of this version comes out otherwise"
    else:
        assert all(one.other_version and one.package for one in done)
        assert [one for one in verify(remote.git, tip).findings if one.check == "judge"] == []
