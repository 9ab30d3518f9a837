"""What a node tells people of itself: room, and ranks bound elsewhere than ordered, seen on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.agent import vitals
from reconciler.agent.vitals import Bound, disk_of, misbound

CPUS = sorted(os.sched_getaffinity(0))
FIRST = CPUS[:1]
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, both bound to the first CPU; the child says so when it is there."""
    script = (
        f"import os, subprocess, sys; os.sched_setaffinity(0, {FIRST});"
        "subprocess.run([sys.executable, '-c', 'import sys; print(1, flush=True); sys.stdin.read()'])"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.readline() == b"1\n"
    yield started
    assert started.stdin is not None
    started.stdin.close()
    started.wait(60)
    started.stdout.close()


def bound(rank: subprocess.Popen[bytes], cpus: list[int]) -> Bound:
    return Bound("nlp/sft", 3, rank.pid, cpus, [], 0)


def test_a_rank_bound_as_ordered_is_not_told(rank: subprocess.Popen[bytes]) -> None:
    assert misbound(bound(rank, FIRST)) == []
    assert misbound(bound(rank, CPUS)) == [], "a job may bind itself closer"
    assert misbound(bound(rank, [])) == [], "nothing was ordered"
    assert misbound(bound(rank, [9999])) == [], "a pretended node has CPUs that this one has not"


@needs_two
def test_a_child_that_bound_itself_away_is_told_with_its_pid(rank: subprocess.Popen[bytes]) -> None:
    from reconciler.agent import proc

    (child,) = proc.children_of(rank.pid)
    os.sched_setaffinity(child, CPUS[1:2])
    told = {"job": "nlp/sft", "rank": 3, "pid": child, "what": "cpus", "ordered": str(CPUS[0]), "seen": str(CPUS[1])}
    assert misbound(bound(rank, FIRST)) == [told]


def test_memory_is_compared_by_policy(rank: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    ordered = Bound("nlp/sft", 0, rank.pid, [], [1], 0)
    monkeypatch.setattr(vitals, "bindable", lambda nodes, _: list(nodes))
    policies = {"bind:1": [], "default": ["default"], "interleave:0-1": ["interleave:0-1"], "": []}
    for policy, expected in policies.items():
        monkeypatch.setattr(vitals, "_policy_of", lambda _, policy=policy: policy)
        rows = misbound(ordered)
        assert [(row["what"], row["ordered"], row["seen"]) for row in rows] == [("memory", "1", s) for s in expected]


def test_the_kernel_tells_a_policy_or_nothing() -> None:
    assert vitals._policy_of(os.getpid()).partition(":")[0] in {"default", "bind", "prefer", "interleave", ""}
    assert vitals._policy_of(2**22 + 1) == ""


def test_a_disk_is_told_in_bytes(tmp_path: Path) -> None:
    found = disk_of(str(tmp_path))
    assert found is not None
    assert found["path"] == str(tmp_path)
    assert 0 <= found["free"] <= found["size"]
    assert disk_of(str(tmp_path / "none")) is None
