"""However the demo is ended, and however often it is asked, nothing of it stays; and whom it collects meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconciler.errors import ExitStatus
from reconciler.runtime.demo.stage import Stage, children, collect_orphans, is_zombie

ROOT = Path(__file__).parents[2]
PATIENCE = 90
# The real verb and stage, with one stubborn process instead of a cluster.
DEMO = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that started us beside it may ignore it
import reconciler.cli as cli
import reconciler.runtime.demo.acts as acts
def play(stage, told):
    stubborn = "trap '' TERM INT HUP; echo deaf; while :; do sleep 1; done"
    left = subprocess.Popen(["bash", "-c", stubborn], stdout=subprocess.PIPE)
    left.stdout.readline()
    print("started", left.pid, flush=True)
    time.sleep(60)
acts.play = play
sys.argv = ["gangops", "demo", "--dir", sys.argv[1]]
cli.main()
"""


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_when_the_demo_is_ended_twice(tmp_path: Path, asked: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEMO, str(tmp_path / "demo")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        pid = next(int(line.split()[1]) for line in demo.stdout if line.startswith("started"))
        demo.send_signal(asked)
        end = time.monotonic() + PATIENCE
        while demo.poll() is None:  # an impatient person: whatever it does just then, it is asked again
            assert time.monotonic() < end
            demo.send_signal(signal.SIGINT)
            time.sleep(0.001)
        assert demo.returncode == ExitStatus.INTERRUPTED
    assert not os.path.exists(f"/proc/{pid}") or is_zombie(pid)  # noqa: PTH110  asked often


def test_only_who_was_left_by_others_is_collected() -> None:
    """A child that somebody waits for keeps its status, however long it has been over."""
    ours = subprocess.Popen(["false"])
    orphan = subprocess.Popen(["false"], start_new_session=True)  # as a shim is, when its agent is gone
    end = time.monotonic() + PATIENCE
    while not (is_zombie(ours.pid) and is_zombie(orphan.pid)):
        assert time.monotonic() < end
        time.sleep(0.01)
    collect_orphans()
    assert orphan.pid not in children(os.getpid())
    assert ours.wait() == 1
    orphan.wait()


def test_a_stage_ends_what_came_with_it_and_nobody_who_was_there_before(tmp_path: Path) -> None:
    """A Slurm cluster or a helper of Python's own that whoever opens the stage has started lives on, with its children."""
    before = subprocess.Popen(["bash", "-c", "sleep 600 & wait"])
    try:
        with Stage(tmp_path, racks=1) as stage:
            within = subprocess.Popen(["sleep", "600"])
            assert stage.alive() == [within.pid]
        assert stage.alive() == []
        assert within.poll() is not None
        assert before.poll() is None
    finally:
        subprocess.run(["pkill", "-P", str(before.pid)], check=False)
        before.kill()
        before.wait()
