"""`cancel --now` against a real cluster: from the verb to the signal, and what is gone in the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.request import Standing
from reconciler.model.units import JobKey
from reconciler.runtime.demo.stage import Stage
from reconciler.store.history import first_parent_log
from reconciler.store.signatures import make_key
from tests.e2e.day import PATIENCE, awaits, be_patient, configure, log_of
from tests.e2e.test_cluster import check_record, state, submit, training

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]

JOB = JobKey("vision/low")


@pytest.fixture
def stage() -> Iterator[Stage]:
    """One rack of four nodes, where Ada is known by her key and the remote is asked as often as by default."""
    folder = Path(f"/tmp/gangops-now-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with Stage(folder, racks=1) as made:
        made.build()
        key = make_key(folder / "ada", "ada")
        user = "apiVersion: gangops/v1\nkind: User\nmetadata: {name: ada}\n"
        made.write(
            "cluster-state/users/ada.yaml", f"{user}spec: {{emails: [ada@acme.org], sshKeys: ['{key.public_key()}']}}\n"
        )
        configure(made, "pollInterval: 1s", "pollInterval: 2s")  # the default
        be_patient(made)
        made.commit("Ada", branch="main")
        made.start_reconciler()
        made.start_agents()
        made.until("agents connect", 120, lambda g: len(g.observed.nodes) == len(made.nodes))
        yield made
    assert made.alive() == []
    check_record(made)
    shutil.rmtree(folder)


def test_cancel_now_signals_the_ranks_and_takes_them_away(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    # Twenty steps take a minute: no checkpoint is due by itself meanwhile.
    submit(stage, JOB, text=training(stage, gpus=16, priority="research", pace=3))
    stage.until("low runs", 120, state(JOB, JobState.RUNNING))
    awaits("its rank has begun", lambda: "starts at step" in log_of(stage, JOB, 1))
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(stage.folder), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@acme.org",
        "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@acme.org", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    begun = time.monotonic()
    verb = subprocess.Popen(
        [sys.executable, "-m", "reconciler.cli", "-C", str(stage.people), "cancel", JOB, "--now", "--yes", "--key",
         str(stage.folder / "ada"), "--reason", "loss is NaN"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while "(asked)" not in log_of(stage, JOB, 1) and time.monotonic() - begun < PATIENCE:
        time.sleep(0.02)
    signalled = time.monotonic() - begun
    told, _ = verb.communicate(timeout=120)
    assert verb.returncode == 0, told

    assert "(asked)" in log_of(stage, JOB, 1)
    ended = stage.until("low is over", 120, state(JOB, JobState.FINISHED))
    gone = time.monotonic() - begun
    with capsys.disabled():
        print(f"\ncancel --now: ranks signalled after {signalled:.1f} s, job over on record after {gone:.1f} s")
    assert ended.allocation.jobs[JOB].outcome is Outcome.CANCELLED
    (request,) = ended.observed.requests.values()
    assert (request.standing, request.by) == (Standing.IN_FORCE, "ada")
    assert [pid for node in stage.nodes for pid in stage.ranks_on(node)] == []
    # Committed first: the generation that orders the stop is the one that lets the request in.
    stops = [m for m in first_parent_log(stage.clone.git, stage.clone.state_tip()) if "Request cancel-low" in m.message]
    assert [m.subject for m in stops] == ["Stop vision/low"]
