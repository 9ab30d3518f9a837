"""When is a session idle? By the CPU time of its processes and who is in it, look after look."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from reconciler.agent import proc
from reconciler.agent.idleness import Looked, idle_since, look_again
from reconciler.wire import AttemptOrder

from .conftest import Agents, Hub, StateRepo, running
from .test_run import started, until

SECOND = 1_000_000_000
WALL = 1_764_547_200 * SECOND


def looks(*steps: tuple[int, float, int], idle: int = 0) -> list[int | None]:
    """What is told after each look: seconds, CPU seconds used until then, people in it. Instants in seconds."""
    seen: Looked | None = None
    told: list[int | None] = []
    for at, used, attached in steps:
        seen = look_again(seen, int(used * SECOND), attached, at * SECOND, WALL + at * SECOND)
        since = idle_since(seen, idle, at * SECOND)
        told.append(None if since is None else (since - WALL) // SECOND)
    return told


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([(0, 1, 0), (30, 1, 0), (60, 1, 0), (90, 1.1, 0)], [None, None, 0, 0]),
        ([(0, 1, 0), (30, 2, 0), (60, 2, 0), (90, 2, 0)], [None, None, None, 30]),
        ([(0, 1, 0), (60, 1, 1), (90, 1, 0), (120, 1, 0)], [None, None, None, 60]),
        ([(0, 5, 0), (60, 1, 0), (120, 1, 0)], [None, None, 60]),
    ],
    ids=["a program that waits", "one that worked", "somebody was in it", "one that ended after it had worked"],
)
def test_what_counts_as_use(steps: list[tuple[int, float, int]], told: list[int | None]) -> None:
    assert looks(*steps) == told


def test_many_short_looks_see_what_a_long_one_sees() -> None:
    assert looks(*((at, at * 0.05, 0) for at in range(90)))[-1] is None
    assert looks(*((at, at * 0.001, 0) for at in range(90)))[-1] == 0


def test_a_session_that_ends_soon_is_told_of_sooner() -> None:
    assert looks((0, 1, 0), (5, 1, 0), (10, 1, 0), idle=20) == [None, None, 0]


def test_cpu_time_is_told_by_the_kernel() -> None:
    before, at = proc.cpu_time(os.getpid()), sum(os.times()[:2])
    while sum(os.times()[:2]) < at + 0.1:
        pass
    assert 80_000_000 <= proc.cpu_time(os.getpid()) - before <= 1_000_000_000
    assert proc.cpu_time(2**22 + 1) == 0


def test_an_agent_reports_an_idle_session_and_no_other_job(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder
) -> None:
    session = running(order, command=[], session=True, launch="perNode", idleSeconds=2)
    session = replace(session, run=replace(session.run, idleSeconds=2))
    started(agents, hub, repo, session)
    said = hub.wait_for(lambda r: any(a.idle for a in r.attempts)).attempts[0]
    assert said.idle is not None
    assert said.at - SECOND <= said.idle <= said.at + 60 * SECOND
    until(lambda: agents.facts()[0].get("pid"), "it still runs")
