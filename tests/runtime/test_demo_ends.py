"""However the demo is ended, and however often it is asked, nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reconciler.errors import ExitStatus
from reconciler.runtime.demo.stage import is_zombie

ROOT = Path(__file__).parents[2]
# The real verb and stage, with one stubborn process instead of a cluster.
DEMO = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import reconciler.cli as cli
import reconciler.runtime.demo.acts as acts
def play(stage, told):
    left = subprocess.Popen(["bash", "-c", "trap '' TERM INT HUP; while :; do sleep 1; done"])
    time.sleep(0.3)
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
        time.sleep(0.5)  # an impatient person
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=30) == ExitStatus.INTERRUPTED
    assert not os.path.exists(f"/proc/{pid}") or is_zombie(pid)  # noqa: PTH110  asked often
