"""Real agents and shims whose wall clock jumps under them: a lease counts what really passes, and a deadline as well."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from reconciler.agent import proc
from reconciler.agent.shim import SECOND
from reconciler.wire import AttemptOrder, Report

from .conftest import ROOT, Agents, Hub, StateRepo, running
from .test_run import LEASE, started, until

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DAY = 86_400

# What agents take for their Python, and start launchers by: so these and their shims have that clock too.
PYTHON = """\
#!/bin/bash
export LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={file} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1
exec {python} -I -S {begin} "$0" "$@"
"""
# libfaketime refuses clock_nanosleep until an instant of the monotonic clock, by which Python sleeps.
BEGIN = """\
import runpy, select, sys, time
time.sleep = lambda seconds: select.select([], [], [], seconds)[3:]
sys.executable, sys.argv = sys.argv[1], [word for word in sys.argv[2:] if word not in ("-I", "-S")]
sys.path[0] = {root!r}
option, what = sys.argv[0], sys.argv.pop(1)
if option == "-c":
    exec(what)
else:
    runpy.run_module(what, run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Clock:
    """The wall clock of whatever runs by `python`."""

    file: Path
    python: Path

    def jump(self, days: int) -> None:
        """So far from now, from one instant to the next."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(f"{days:+}d\n")
        fresh.replace(self.file)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    if LIBRARY is None:
        assert not os.environ.get("CI"), "the package faketime is not installed"
        pytest.skip("the package faketime is not installed")
    made = Clock(tmp_path / "clock", tmp_path / "python")
    made.jump(0)
    begin = tmp_path / "begin.py"
    begin.write_text(BEGIN.format(root=str(ROOT)))
    made.python.write_text(PYTHON.format(library=LIBRARY, file=made.file, python=sys.executable, begin=begin))
    made.python.chmod(0o755)
    return made


def jumped(days: int, report: Report) -> bool:
    """Whether it was made by a clock that is so far from ours."""
    said = report.vitals.get("clock", 0)
    return isinstance(said, int) and abs(said - time.time_ns() - days * DAY * SECOND) < 3600 * SECOND


@pytest.mark.parametrize("days", [3, -3])
def test_a_wall_clock_that_jumps_neither_ends_nor_lengthens_a_lease(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, clock: Clock, days: int
) -> None:
    hub.lease = LEASE
    deadline = time.time_ns() + 3600 * SECOND
    order = running(order, fence="lease", leaseSeconds=LEASE, deadline=deadline)
    started(agents, hub, repo, order, str(clock.python), "-m", "reconciler.agent")
    shims = [int(facts["shim"]) for facts in agents.facts().values()]
    assert len(shims) == 2
    assert all(str(LIBRARY) in Path(f"/proc/{shim}/maps").read_text() for shim in shims), "the shims have that clock"

    clock.jump(days)
    began = proc.boottime()
    hub.wait_for(partial(jumped, days))
    hub.wait_for(lambda report: jumped(days, report) and proc.boottime() > began + (LEASE + 1) * SECOND)
    assert all("exit" not in facts for facts in agents.facts().values()), "renewed by every answer, and not overdue"

    hub.silent = True
    agents.started[0].kill()
    until(lambda: all("gone" in facts for facts in agents.facts().values()), "the leases are over")
    assert {facts["cause"] for facts in agents.facts().values()} == {"lease"}
    assert {facts["exit"] for facts in agents.facts().values()} == {str(128 + signal.SIGKILL)}


def test_a_wall_clock_that_jumps_back_leads_nobody_to_an_older_order(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, clock: Clock
) -> None:
    """Which order is newer is for its numbers, and what ran before the jump is adopted after it."""
    older = repo.orders(1, running(order, "prepare"))
    started(agents, hub, repo, order, str(clock.python), "-m", "reconciler.agent")
    before = {rank: facts["pid"] for rank, facts in agents.facts().items()}
    clock.jump(-3)
    agents.started[0].kill()
    agents.started[0].wait()
    agents.start(str(clock.python), "-m", "reconciler.agent")
    hub.offer(older, 1)
    refused = hub.wait_for(lambda report: report.refusals).refusals[0]
    assert (refused.code, refused.commitId) == ("OlderOrder", older.commitId)
    assert {rank: facts["pid"] for rank, facts in agents.facts().items()} == before
    assert all("exit" not in facts for facts in agents.facts().values())


def test_an_agent_that_starts_after_a_jump_leaves_a_deadline_where_it_was(
    agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, clock: Clock
) -> None:
    """It comes when as much time has passed as was left at the launch. A new one is told by the clock that there is."""
    order = running(order, deadline=time.time_ns() + DAY * SECOND)
    started(agents, hub, repo, order, str(clock.python), "-m", "reconciler.agent")
    agents.started[0].kill()
    agents.started[0].wait()

    clock.jump(3)
    agents.start(str(clock.python), "-m", "reconciler.agent")
    hub.wait_for(partial(jumped, 3))
    began = proc.boottime()
    hub.wait_for(lambda report: jumped(3, report) and proc.boottime() > began + 2 * SECOND)
    assert all("cause" not in facts for facts in agents.facts().values())

    moved = replace(order, deadline=time.time_ns() + 2 * DAY * SECOND)
    hub.offer(repo.orders(3, moved), 3)
    until(lambda: all("gone" in facts for facts in agents.facts().values()), "the new deadline is over")
    causes = {facts["cause"] for facts in agents.facts().values()}
    assert "deadline" in causes, "one of them, and then the agent ends the other by order"
