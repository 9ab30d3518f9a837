"""Real launchers and shims without an agent: what is told to end does, however early that comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.agent import proc
from reconciler.agent.folder import AttemptFolder, Facts, sweep
from reconciler.agent.launch import Site, launcher_command, spec_of
from reconciler.agent.limits import Account
from reconciler.wire import AttemptOrder

from .conftest import ROOT, running
from .test_run import until

LATE = """
import os, sys, time
from reconciler.agent import shim
become = shim.be_rank
def late(*what):
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    become(*what)
shim.be_rank = late
sys.exit(shim.main(sys.argv[1:2]))
"""
"""A launcher whose ranks become what they are to be when a file is there, and not before."""


FULL = """
import os, sys
from reconciler.agent import shim
fork, rank = shim._fork, []
def full():
    raise BlockingIOError(11, "Resource temporarily unavailable")
def one_alone():
    if rank:
        os.fork = full
    rank.append(1)
    return fork()
shim._fork = one_alone
sys.exit(shim.main(sys.argv[1:]))
"""
"""A launcher on a node that has room for one process more, the rank."""


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[AttemptFolder]:
    folder = AttemptFolder(tmp_path / "attempt")
    yield folder
    for facts in folder.shims().facts.values():
        if proc.is_alive(int(facts["shim"]), int(facts["shimStart"])):
            os.kill(int(facts["shim"]), signal.SIGKILL)
        sweep(facts)


def written(attempt: AttemptFolder, order: AttemptOrder, tmp_path: Path) -> Path:
    """The spec of one rank, which nobody kills before the test is over."""
    os.mkfifo(tmp_path / "events")
    (tmp_path / "logs").mkdir()
    limits = {"maxBytes": 1 << 20, "keep": 1, "bytesPerSecond": 1 << 20}
    site = Site(events=tmp_path / "events", boot=proc.boot_id(), log_limits=limits)
    only = running(order, launch="perNode", killSeconds=600)
    me = Account("me", "/", "/bin/sh")
    return attempt.write_spec(spec_of(only, me, site, folder=attempt.path, logs=tmp_path / "logs", deadline=None))


def facts_of(attempt: AttemptFolder) -> Facts:
    return attempt.shims().facts.get(0, {})


def test_a_rank_that_is_told_to_end_before_it_is_itself_ends(
    attempt: AttemptFolder, order: AttemptOrder, tmp_path: Path
) -> None:
    """Its neighbour failed at once. Until then it is a copy of its shim, which has a handler for that signal."""
    spec, becomes = written(attempt, order, tmp_path), tmp_path / "becomes"
    subprocess.run([sys.executable, "-c", LATE, str(spec), str(becomes)], cwd=ROOT, check=True)
    until(lambda: attempt.command(0, "term"), "its shim hears")
    until(lambda: "termAt" in facts_of(attempt), "it was told")
    becomes.touch()
    until(lambda: "gone" in facts_of(attempt), "it has ended")
    found = facts_of(attempt)
    assert (found["exit"], found["cause"]) == (str(128 + signal.SIGTERM), "order")


def test_a_shim_that_the_node_ends_takes_its_rank_along_and_says_so(
    attempt: AttemptFolder, order: AttemptOrder, tmp_path: Path
) -> None:
    subprocess.run(launcher_command(written(attempt, order, tmp_path)), check=True)
    until(lambda: "startedAt" in facts_of(attempt), "the rank runs")
    os.kill(int(facts_of(attempt)["shim"]), signal.SIGTERM)
    until(lambda: "gone" in facts_of(attempt), "it has ended")
    found = facts_of(attempt)
    assert (found["exit"], found["cause"]) == (str(128 + signal.SIGTERM), "shim")


def test_a_shell_for_which_there_is_no_process_leaves_the_job_alone(
    attempt: AttemptFolder, order: AttemptOrder, tmp_path: Path
) -> None:
    spec, name = written(attempt, order, tmp_path), "0" * 31 + "7"
    subprocess.run([sys.executable, "-c", FULL, str(spec)], cwd=ROOT, check=True)
    until(lambda: "startedAt" in facts_of(attempt), "the rank runs")
    asked, status = attempt.path / f"shell-{name}", attempt.path / f"shell-{name}.exit"
    asked.write_text("{}")
    until(lambda: attempt.command(0, f"shell {name}"), "its shim hears")
    until(status.exists, "the shell is over")
    until(lambda: status.read_text() == "126", "that it could not run is said")
    assert "exit" not in facts_of(attempt)
    os.kill(int(facts_of(attempt)["shim"]), signal.SIGTERM)  # which it still takes notice of
    until(lambda: "gone" in facts_of(attempt), "it has ended")
    assert facts_of(attempt)["cause"] == "shim"
