"""A real Slurm cluster on this machine, made by the scripts of the corpus, with nodes whose GPUs can be pinned.

One a test session: `cluster()` starts it when it is first asked for, and `stop` ends every process of it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from reconciler.engines.slurm.reading import jobs_of
from reconciler.engines.slurm.seen import SlurmJob

SCRIPTS = Path(__file__).resolve().parents[3] / "shared" / "slurm"
PATIENCE = 60.0


def why_not() -> str:
    """Why no Slurm can be started here; "" when one can."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started as root"
    return "" if (SCRIPTS / "start-slurm.sh").is_file() else f"no {SCRIPTS}"


class SlurmCluster:
    """`nodes` nodes of 8 GPUs, in racks of 4; the first `slotted` have a GRES type for each slot."""

    def __init__(self, nodes: int = 8, slotted: int = 4, *, rack: int = 4, conf: str = "SlurmdTimeout=10") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gsl-", dir="/tmp"))
        self.shared = self.folder / "fs"
        self.names = [f"node{number:03d}" for number in range(1, nodes + 1)]
        self.slotted = self.names[:slotted]
        self._start(nodes, {"RACK_SIZE": str(rack), "CRED_EXPIRE": "5", "EXTRA_CONF": conf})
        self.shared.mkdir()
        if slotted:
            self._give_slots()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH'].removeprefix(f'{self.folder}/bin:')}",
            "SLURM_CONF": str(self.folder / "etc/slurm.conf"),
        }

    def run(self, *argv: str, given: str = "") -> str:
        done = subprocess.run(
            argv, env=self.environment, input=given, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def control(self, what: str, *names: str) -> None:
        """`node.sh`: kill or start nodes, kill-ctld, restart-ctld."""
        self.run("bash", str(SCRIPTS / "node.sh"), str(self.folder), what, *names)

    def jobs(self, *, every: bool = False) -> tuple[SlurmJob, ...]:
        """The jobs that are not over, or all that Slurm still shows."""
        found = jobs_of(self.run("squeue", "--json", "-t", "all"))
        return tuple(job for job in found if every or not job.over)

    def submit(self, *options: str, wrap: str = "sleep 600") -> int:
        """Somebody else's job."""
        return int(self.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={wrap}"))

    def clear(self) -> None:
        """No jobs, the controller and every node up: as if nothing had been."""
        if " is UP" not in self._ping():
            self.control("start-ctld")
        dead = [name for name in self.names if not self._lives(name)]
        if dead:
            self.control("start", *dead)
        left = [str(job.id) for job in self.jobs()]
        if left:
            self.run("scancel", *left)
        until(lambda: not self.jobs(), "all jobs are gone")
        off = [name for name in self.names if self.state_of(name).startswith(("drain", "down"))]
        for name in off:
            self.run("scontrol", "update", f"nodename={name}", "state=resume")
        until(lambda: self.idle() == len(self.names), "all nodes are idle")
        shutil.rmtree(self.shared)
        self.shared.mkdir()

    def save(self) -> None:
        """End the controller in good order and start it again: nothing of what was before is left for a crash to undo."""
        pid = self._pid("slurmctld")
        os.kill(pid, signal.SIGTERM)
        until(lambda: not _is_alive(pid), "the controller has ended")
        self.control("start-ctld")
        until(lambda: self.idle() == len(self.names), "all nodes are idle")

    def has_saved(self, job: str) -> bool:
        """A controller that is killed now finds the job of this name again."""
        return job.encode() in (self.folder / "state" / "job_state").read_bytes()

    def state_of(self, name: str) -> str:
        """As sinfo words it: idle, mixed, drained, down*, ..."""
        return self.run("sinfo", "-h", "-N", "-p", "main", "-n", name, "-o", "%T")

    def _ping(self) -> str:
        command = ["timeout", "2", "scontrol", "ping"]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False).stdout

    def _lives(self, name: str) -> bool:
        """The last slurmd that was started under this name is still there."""
        return _is_alive(self._pid(name))

    def _pid(self, name: str) -> int:
        pids = [line.split() for line in (self.folder / "pids").read_text(encoding="utf-8").splitlines()]
        return next((int(pid) for pid, _, whose in reversed(pids) if whose == name), 0)

    def idle(self) -> int:
        """Nodes that are up and have nothing to do."""
        return sum(map(int, self.run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").split()))

    def stop(self) -> None:
        subprocess.run(["bash", str(SCRIPTS / "stop-slurm.sh"), str(self.folder)], check=True, timeout=120)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, nodes: int, settings: Mapping[str, str]) -> None:
        command = ["bash", str(SCRIPTS / "start-slurm.sh"), str(self.folder), str(nodes), "8"]
        done = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        self._let_everybody_start_steps()

    def _let_everybody_start_steps(self) -> None:
        """Another suite's commands mount its /usr, which root alone may. In a job it is mounted already."""
        srun = self.folder / "bin/srun"
        found = re.search(r"--bind (\S+) /usr ", srun.read_text(encoding="utf-8"))
        if found:
            first, conf, then = srun.read_text(encoding="utf-8").split("\n", 2)
            there = f'[ ! /usr -ef {found[1]} ] || exec /usr/bin/srun "$@"'
            srun.write_text(f"{first}\n{conf}\n{there}\n{then}", encoding="utf-8")

    def _give_slots(self) -> None:
        """Another gres.conf: on the first nodes every GPU has a type of its own."""
        conf = self.folder / "etc/slurm.conf"
        slots = ",".join(f"gpu:g{i}:1" for i in range(8))
        lines = [
            line.replace("Gres=gpu:h100:8", f"Gres={slots}") if line.split(" ")[0][9:] in self.slotted else line
            for line in conf.read_text().splitlines()
        ]
        conf.write_text("\n".join(lines) + "\n")
        gres = [
            f"NodeName={','.join(self.slotted)} Name=gpu Type=g{i} File={self.folder}/dev/gpu{i} Cores={_cores(i)}"
            for i in range(8)
        ]
        plain = ",".join(self.names[len(self.slotted) :])
        if plain:
            gres += [
                f"NodeName={plain} Name=gpu Type=h100 File={self.folder}/dev/gpu[{a}-{a + 3}] Cores={_cores(a)}"
                for a in (0, 4)
            ]
        (self.folder / "etc/gres.conf").write_text("\n".join(gres) + "\n")
        self.control("kill", *self.names)
        self.control("restart-ctld")
        self.control("start", *self.names)
        until(lambda: self.idle() == len(self.names), "all nodes are idle")


def _is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


def _cores(gpu: int) -> str:
    return "0-31" if gpu < 4 else "32-63"


def until(found: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Look again and again until it is so; a test that waits for nothing fails and says for what."""
    end = time.monotonic() + patience
    while not found():
        assert time.monotonic() < end, f"not in {patience:.0f} s: {what}"
        time.sleep(0.05)
