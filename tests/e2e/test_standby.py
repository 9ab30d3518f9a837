"""Active and standby, end to end: two reconcilers as processes on one remote, agents that know both, real ranks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.model.lifecycle import JobState
from reconciler.runtime.demo.stage import Stage, free_port
from reconciler.runtime.settings import read_settings, settings_text

from .day import PATIENCE, be_patient
from .test_cluster import HIGH, LOW, check_record, state, submit, training

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

TAKEOVER = 30
"""Seconds from the end of the one to a rank that the other started."""

_CONTINUED = re.compile(r" continue +generation (\d+)")


class Pair(Stage):
    """A stage whose agents know a second server, and that reconciler."""

    def second(self) -> Path:
        """Settings of the second reconciler: the same cluster, remote and keys, a folder and addresses of its own."""
        first = read_settings(self.settings_file)
        listen = f"127.0.0.1:{free_port()}"
        folder = self.folder / "second"
        folder.mkdir()
        other = replace(first, folder=folder / "state", listen=listen, status=f"127.0.0.1:{free_port()}")
        (folder / "reconciler.toml").write_text(settings_text(other))
        for conf in self.folder.glob("nodes/*/agent.conf"):
            known = f"servers = https://{first.listen}"
            assert known in conf.read_text()
            conf.write_text(conf.read_text().replace(known, f"{known} https://{listen}"))
        return folder / "reconciler.toml"

    def start_second(self, settings: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "reconciler.cli", "reconcile", "--settings", str(settings)]
        with (self.folder / "second.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def second_follows(self, generation: int) -> bool:
        """Whether it has taken over what the first decided up to there: from then on it needs most of the nodes to lead."""
        return any(int(told) >= generation for told in _CONTINUED.findall(self.second_says()))

    def second_says(self) -> str:
        return (self.folder / "second.log").read_text()

    def all_ranks(self) -> dict[str, list[int]]:
        return {node: self.ranks_on(node) for node in self.nodes}


@pytest.fixture
def pair() -> Iterator[Pair]:
    folder = Path(f"/tmp/gangops-pair-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with Pair(folder, racks=1) as made:
        made.build()
        be_patient(made)
        made.commit("Be patient", branch="main")
        settings = made.second()
        made.start_reconciler()
        made.start_agents()
        made.until("agents connect", 120, lambda g: len(g.observed.nodes) == len(made.nodes))
        second = made.start_second(settings)
        # What it begins from is nobody's decision; what is committed after that tells it that there is another.
        made.until("the standby has begun", 120, lambda _: made.second_follows(0))
        yield made
    second.wait(PATIENCE)
    check_record(made)
    shutil.rmtree(folder)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_the_standby_leads_within_thirty_seconds_and_ranks_are_untouched(pair: Pair, fault: signal.Signals) -> None:
    submit(pair, LOW, text=training(pair, gpus=16, priority="research"))
    before = pair.until("low runs", 120, state(LOW, JobState.RUNNING))
    pair.until("the standby follows", 120, lambda _: pair.second_follows(before.summary.generation))
    ranks = pair.all_ranks()
    assert sum(len(pids) for pids in ranks.values()) == 2
    first = pair._reconciler
    assert first is not None
    assert "leads" not in pair.second_says()

    os.kill(first.pid, fault)
    if fault is signal.SIGKILL:
        pair.reconciler_ended(10)
    submit(pair, HIGH, text=training(pair, gpus=8, priority="research"))
    later = pair.until("high runs", TAKEOVER, state(HIGH, JobState.RUNNING))

    assert "leads" in pair.second_says()
    record = later.allocation.jobs[LOW]
    assert (record.state, record.attempt) == (JobState.RUNNING, 1)
    assert record.placement == before.allocation.jobs[LOW].placement
    after = pair.all_ranks()
    assert {node: [pid for pid in after[node] if pid in pids] for node, pids in ranks.items()} == ranks

    # Who was only hung has to see that it no longer leads.
    with suppress(ProcessLookupError):
        os.kill(first.pid, signal.SIGCONT)
    (pair.people / f"cluster-state/jobs/{HIGH}.yaml").unlink()
    pair.commit("Cancel high", branch="main")
    last = pair.until("high is gone", 120, lambda g: HIGH not in g.allocation.jobs)
    assert (last.allocation.jobs[LOW].state, last.allocation.jobs[LOW].attempt) == (JobState.RUNNING, 1)
    assert {node: pair.ranks_on(node) for node in pair.nodes} == ranks
