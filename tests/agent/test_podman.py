"""Real podman: a gang in an image saves, ends and leaves nothing, and sees no more than it was given.

The image is made of this machine's own bash, and everything podman keeps lies in the test's folder: nothing is fetched.
Root runs it here, so that no user ids have to be mapped; rootless podman needs `newuidmap` and ranges of ids.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from reconciler.agent import proc
from reconciler.wire import AttemptOrder

from .conftest import Agents, Hub, StateRepo, running
from .test_run import started, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root runs containers without mapping user ids"),
    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
]

NAME = "localhost/gangops-test"
PROGRAMS = ("bash", "cat", "grep", "mv", "sleep", "touch")

CONTAINERS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
STORAGE = """\
[storage]
driver = "vfs"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
# Its settings are its own, and crun starts nothing where v1 and v2 are mounted together: the rank's cgroup is the agent's
# to make, so it needs none of them.
APART = """\
umount -R /sys/fs/cgroup && mount -t tmpfs tmpfs /sys/fs/cgroup && mount --bind {folder}/conf /etc/containers && exec "$@"
"""
SAVES = """
touch /probe && test ! -e /var/lib/dpkg && echo "its own root"
trap 'echo 100 > "$GANGOPS_CHECKPOINT_MARKER.new" && mv "$GANGOPS_CHECKPOINT_MARKER.new" "$GANGOPS_CHECKPOINT_MARKER"' USR1
test -e /dev/kmsg && echo kernel log
grep -E '^(NoNewPrivs|CapEff)' /proc/self/status
echo "rank $RANK sees $TOKEN as $MINE"
touch "$GANGOPS_CHECKPOINT_DIR/ready-$RANK"
while :; do sleep 0.1; done
"""


@dataclass(frozen=True)
class Podman:
    """podman in a mount namespace in which all that it keeps lies in one folder."""

    folder: Path

    def command(self, *argv: str) -> list[str]:
        script = APART.format(folder=self.folder)
        return ["unshare", "--mount", "--propagation", "private", "bash", "-ec", script, "apart", *argv]

    def run(self, *argv: str) -> str:
        done = subprocess.run(self.command("podman", *argv), capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def image(self) -> str:
        """An image of this machine's bash, by its digest."""
        root = self.folder / "root"
        for folder in ("dev", "proc", "sys", "tmp", "etc"):
            (root / folder).mkdir(parents=True)
        for file in files_of(PROGRAMS):
            (root / file.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, root / file.relative_to("/"))
        if not (root / "bin").exists():
            (root / "bin").symlink_to("usr/bin")
        packed = shutil.make_archive(str(self.folder / "root"), "tar", root)
        self.run("import", "--quiet", packed, f"{NAME}:1")
        return self.run("image", "inspect", "--format", "{{index .RepoDigests 0}}", f"{NAME}:1")


def files_of(programs: Sequence[str]) -> set[Path]:
    """These programs and the libraries that they load."""
    found = {Path(shutil.which(program, path="/usr/bin:/bin") or "") for program in programs}
    for program in tuple(found):
        said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        found |= {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}
    return found


@pytest.fixture
def podman() -> Iterator[Podman]:
    with tempfile.TemporaryDirectory(prefix="gangops-podman-", dir="/tmp") as name:
        made = Podman(Path(name))
        (made.folder / "conf").mkdir()
        (made.folder / "conf/containers.conf").write_text(CONTAINERS)
        (made.folder / "conf/storage.conf").write_text(STORAGE.format(folder=made.folder))
        (made.folder / "conf/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (made.folder / "conf/registries.conf").write_text("")
        yield made


def test_a_gang_in_real_containers_runs_saves_and_is_gone(
    podman: Podman, agents: Agents, hub: Hub, repo: StateRepo, order: AttemptOrder, tmp_path: Path
) -> None:
    image = podman.image()
    trial = subprocess.run(
        podman.command("podman", "run", "--rm", "--cgroups=disabled", "--network=host", image, "/usr/bin/bash", "-c", ":"),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if trial.returncode != 0:
        pytest.skip(f"podman starts nothing here: {trial.stderr.strip().splitlines()[-1]}")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/token").write_text("TOKEN=hush\n")
    limits = f"[limits]\nruntimes = podman\nregistries = localhost\nsecretRoots = {tmp_path}/secrets\n"
    agents.conf.write_text(f"{agents.conf.read_text()}{limits}[images]\ndir = images\nrunDir = run\n")
    order = running(
        order,
        runtime="podman",
        killSeconds=1,
        image=image,
        command=[],
        script=SAVES,
        env={"MINE": "me", "LD_PRELOAD": ""},
        secretFiles=[str(tmp_path / "secrets/token")],
        workingDir="",
    )
    (tmp_path / "ckpt").mkdir()
    started(agents, hub, repo, order, *podman.command(sys.executable, "-m", "reconciler.agent"))
    until(lambda: (tmp_path / "ckpt/ready-0").exists() and (tmp_path / "ckpt/ready-1").exists(), "ranks ready")
    everything = [pid for facts in agents.facts().values() for pid in proc.descendants_of(int(facts["shim"]))]
    hub.offer(repo.orders(3, running(order, "checkpoint")), 3)
    hub.wait_state("Gone")
    assert (tmp_path / "ckpt/latest").read_text() == "100\n", "what is inside was asked to save"
    assert not [pid for pid in everything if proc.start_time(pid)]
    for rank in (0, 1):
        said = (tmp_path / f"logs/nlp/train/1/{rank}.log").read_text().splitlines()
        bounds = ["CapEff:\t0000000000000000", "NoNewPrivs:\t1"]
        assert said[:4] == ["its own root", *bounds, f"rank {rank} sees hush as me"]
    # A first process without a handler does not hear SIGTERM: it was killed, and podman still cleared it away.
    assert podman.run("ps", "--all", "--quiet") == ""
    assert not Path("/probe").exists()
