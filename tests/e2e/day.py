"""Who and what a working day takes: people with keys and clones, a forge that merges, a hook that is told, the programs.

What happens in the day, and what has to be true afterwards, is in `test_day`. People act by the command line alone, in
processes of their own, under a home of their own; the forge knows no more than git.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.request import urlopen

from click.testing import CliRunner

import reconciler.runtime.demo
from reconciler.cli.root import root
from reconciler.runtime.clone import open_clone
from reconciler.runtime.demo.stage import Stage, free_port
from reconciler.runtime.generation import Generation, read_generation
from reconciler.runtime.settings import WebhookSetting, read_settings, settings_text
from reconciler.store.history import first_parent_log
from reconciler.store.signatures import make_key
from tests.runtime.notices.receiver import SECRET, Receiver, served

PATIENCE = 120
"""Seconds that anything may take on a busy machine."""
TRAIN = Path(reconciler.runtime.demo.__path__[0]) / "train.py"
PYTHON = [sys.executable, "-I", "-S"]
GANGOPS = [sys.executable, "-m", "reconciler.cli"]
PEOPLE = {"kim": "root", "ada": "nlp", "bo": "vision"}
"""Everybody, with the queue they work for. Kim is the platform owner."""


@dataclass(frozen=True)
class Person:
    """Somebody with a key, a home and a clone. `environment` is all their programs see."""

    name: str
    clone: Path
    environment: Mapping[str, str]

    @property
    def email(self) -> str:
        return f"{self.name}@acme.org"

    def git(self, *words: str) -> str:
        found = subprocess.run(
            ["git", *words], cwd=self.clone, env=self.environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, (self.name, words, found.stderr)
        return found.stdout.strip()

    def tries(self, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """A verb, away from a terminal."""
        return subprocess.run(
            [*GANGOPS, *words], cwd=self.clone, env=self.environment, input=typed, capture_output=True, text=True,
            check=False, timeout=PATIENCE,
        )  # fmt: skip

    def says(self, *words: str, status: int = 0, typed: str = "") -> str:
        """What a verb prints, when it ends with this status as it has to."""
        found = self.tries(*words, typed=typed)
        assert found.returncode == status, (self.name, words, found.returncode, found.stdout, found.stderr)
        return found.stdout

    def sees(self, *words: str) -> str:
        """What a verb that ends well shows on a terminal of 80 columns."""
        keyboard, screen = pty.openpty()
        termios.tcsetwinsize(screen, (40, 80))
        child = subprocess.Popen(
            [*GANGOPS, *words], cwd=self.clone, env={**self.environment, "TERM": "dumb"}, stdin=subprocess.DEVNULL,
            stdout=screen, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(screen)
        shown = b"".join(iter(lambda: _read(keyboard), b""))
        os.close(keyboard)
        assert child.wait(timeout=PATIENCE) == 0, (self.name, words, shown)
        return shown.decode().replace("\r\n", "\n")

    def proposes(self, *words: str) -> str:
        """A verb that proposes a change: the branch it pushed."""
        return self.says(*words, "--yes", "-o", "name").splitlines()[-1]

    def pushes(self, branch: str, subject: str, files: Mapping[str, str | None]) -> str:
        """A branch made by hand from the newest main: files written, or removed where there is no text."""
        self.git("fetch", "--quiet", "origin")
        self.git("checkout", "--quiet", "-B", branch, "origin/main")
        for path, text in files.items():
            file = self.clone / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                file.unlink()
            else:
                file.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", subject)
        self.git("push", "--quiet", "origin", branch)
        return branch


class Day:
    """A whole cluster with its people. Use as a context manager, after which no process of it is left."""

    def __init__(self, folder: Path, *, racks: int, queues: str) -> None:
        self.folder = folder
        self.stage = Stage(folder, racks=racks)
        self.hook = Receiver(script=[503])  # the first notice has to be told twice
        self.people: dict[str, Person] = {}
        self._queues = queues
        self._listening: AbstractContextManager[Receiver] | None = None
        self._merges = 0
        self._generations: list[Generation] = []

    def __enter__(self) -> Self:
        self.stage.__enter__()
        self.stage.build()
        self.visits = f"127.0.0.1:{free_port()}"
        self._listening = served(self.hook)
        self._listening.__enter__()
        (self.folder / "hook.secret").write_bytes(SECRET)
        settings = read_settings(self.stage.settings_file)
        told = WebhookSetting(url=self.hook.url, secret=self.folder / "hook.secret")
        settings = replace(settings, webhook=told, logs=self.stage.logs, visits=self.visits)
        self.stage.settings_file.write_text(settings_text(settings))
        self._move_in()
        return self

    def __exit__(self, *why: object) -> None:
        self.stage.__exit__(*why)
        assert self._listening is not None
        self._listening.__exit__(None, None, None)

    def _move_in(self) -> None:
        """The clusters' rules and people, on main before anybody has authority over anything."""
        keys = {name: make_key(self.folder / "people" / name / "key", name) for name in PEOPLE}
        for name, key in keys.items():
            spec = f"spec: {{emails: [{name}@acme.org], sshKeys: ['{key.public_key()}']}}\n"
            self.stage.write(
                f"cluster-state/users/{name}.yaml",
                f"apiVersion: gangops/v1\nkind: User\nmetadata: {{name: {name}}}\n{spec}",
            )
        be_patient(self.stage)
        configure(self.stage, "minRuntime: 0s", "minRuntime: 0s\n    moveToStart: never")
        self.stage.write("cluster-state/queues/tree.yaml", self._queues)
        self.stage.commit("The people and their queues", branch="main")
        self.stage.git("clone", "--quiet", str(self.stage.remote), str(self.folder / "forge"), at=self.folder)
        self.people = {name: self._person(name) for name in PEOPLE}

    def _person(self, name: str) -> Person:
        home = self.folder / "people" / name
        (home / "gitconfig").write_text(
            f"[user]\n name = {name.title()}\n email = {name}@acme.org\n signingKey = {home}/key.pub\n"
            "[gpg]\n format = ssh\n[commit]\n gpgSign = true\n"
        )
        self.stage.git("clone", "--quiet", str(self.stage.remote), str(home / "clone"), at=home)
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(home / "gitconfig"), "COLUMNS": "80", "LC_ALL": "C.UTF-8",
            "GANGOPS_SERVER": f"https://{self.visits}", "GANGOPS_CA": str(self.folder / "nodes" / self.stage.nodes[0] / "ca.crt"),
            "GANGOPS_LOGS": str(self.stage.logs),
        }  # fmt: skip
        return Person(name=name, clone=home / "clone", environment=environment)

    def __getitem__(self, name: str) -> Person:
        return self.people[name]

    # -- the forge

    def submits(self, who: str, files: Mapping[str, str]) -> int:
        """A pull request with these files, opened and merged by the same person: its number."""
        return self.merges(self[who].pushes(f"{who}-{self._merges}", f"Submit {len(files)} files", files), by=who)

    def merges(self, branch: str, *, by: str) -> int:
        """The forge merges a branch for who pressed the button: the number of the pull request."""
        self._merges += 1
        self._in_forge("fetch", "--quiet", "origin")
        self._in_forge("checkout", "--quiet", "-B", "main", "origin/main")
        subject = f"Merge pull request #{self._merges} from acme/{branch}"
        self._in_forge("merge", "--quiet", "--no-ff", "-m", subject, f"origin/{branch}", by=by)
        self._in_forge("push", "--quiet", "origin", "main")
        return self._merges

    def reverts(self, number: int, *, by: str) -> int:
        """The forge's button that reverts a merged pull request, by another one."""
        self._in_forge("fetch", "--quiet", "origin")
        found = self._in_forge("log", "--first-parent", "--format=%H", f"--grep=pull request #{number} ", "origin/main")
        self._in_forge("checkout", "--quiet", "-B", f"revert-{number}", "origin/main")
        self._in_forge("revert", "--no-edit", "-m", "1", found.split()[0], by=by)
        self._in_forge("push", "--quiet", "origin", f"revert-{number}")
        return self.merges(f"revert-{number}", by=by)

    def _in_forge(self, *words: str, by: str = "kim") -> str:
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_AUTHOR_NAME": by.title(), "GIT_AUTHOR_EMAIL": f"{by}@acme.org",
            "GIT_COMMITTER_NAME": "Forge", "GIT_COMMITTER_EMAIL": "noreply@forge.acme.org",
        }  # fmt: skip
        found = subprocess.run(
            ["git", *words], cwd=self.folder / "forge", env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, (words, found.stderr)
        return found.stdout

    def goes_away(self) -> None:
        self.stage.remote.rename(self.folder / "away.git")

    def comes_back(self) -> None:
        (self.folder / "away.git").rename(self.stage.remote)

    # -- looking

    def until(self, what: str, holds: Callable[[Generation], bool]) -> Generation:
        return self.stage.until(what, PATIENCE, holds)

    def awaits(self, what: str, holds: Callable[[], bool]) -> None:
        """The same for what is not in the record."""
        awaits(what, holds)

    def health(self) -> dict[str, object]:
        """What the reconciler says of itself."""
        try:
            with urlopen(f"http://{self.stage.status}/healthz", timeout=10) as answer:
                found: dict[str, object] = json.load(answer)
        except OSError as err:  # 503 carries the same
            found = json.loads(err.read()) if hasattr(err, "read") else {"reason": str(err)}
        return found

    def step(self, job: str) -> int:
        """How far a training job has come, by its own word."""
        try:
            told: int = json.loads((self.stage.checkpoints / job.partition("/")[2] / "heartbeat").read_text())["step"]
        except (OSError, ValueError):
            return 0
        return told

    def log(self, job: str, attempt: int) -> str:
        """What rank 0 has said so far."""
        return log_of(self.stage, job, attempt)

    def told_so_far(self) -> str:
        """What the record says by now, for whoever reads why an act failed."""
        said = self.people["kim"].tries("history", "-n", "0")
        return said.stdout + said.stderr

    def generations(self) -> list[Generation]:
        """The whole record, oldest first; read once, when nothing is added any more."""
        if self._generations:
            return self._generations
        clone = open_clone(self.stage.remote)
        log = list(first_parent_log(clone.git, clone.state_tip()))
        self._generations = [read_generation(clone.git, meta.id) for meta in reversed(log)]
        return self._generations

    def tells(self, *words: str, status: int = 0) -> str:
        """What a verb that only reads prints about the record, in this process: there are many of them."""
        found = CliRunner(env={"COLUMNS": "80", "GANGOPS_LOGS": ""}).invoke(
            root, ["-C", str(self.stage.remote), *words]
        )
        assert found.exit_code == status, (words, found.output, repr(found.exception))
        return found.stdout


def awaits(what: str, holds: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
        time.sleep(0.2)


def log_of(stage: Stage, job: str, attempt: int) -> str:
    """What rank 0 has said so far. One that runs, on record, may not have said anything yet."""
    file = stage.logs / job / str(attempt) / "0.log"
    return file.read_text() if file.exists() else ""


def check_goes_on(stage: Stage, job: str, attempt: int) -> None:
    """This attempt begins at the last step that the one before has saved, and that one is over."""
    saved = [line.split()[3] for line in log_of(stage, job, attempt - 1).splitlines() if line.startswith("checkpoint")]
    assert saved, f"{job}: nothing was saved"
    awaits(f"{job} says where it starts", lambda: "starts at step" in log_of(stage, job, attempt))
    assert f"starts at step {saved[-1]}\n" in log_of(stage, job, attempt)


def configure(stage: Stage, old: str, new: str) -> None:
    """Change the rules of the cluster, in the people's clone."""
    config = stage.people / "cluster-state" / "cluster.yaml"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


def be_patient(stage: Stage) -> None:
    """A busy machine is no lost node, and no failed start: for all tests that lose none."""
    configure(stage, "unreachableAfter: 3s", "unreachableAfter: 30s")
    configure(stage, "lostAfter: 5s", "lostAfter: 60s")
    configure(stage, "gangStartTimeout: 60s", "gangStartTimeout: 120s")


def _read(terminal: int) -> bytes:
    """What a terminal shows next; nothing once nobody has it open any more."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def program(folder: Path, name: str, text: str = "") -> list[str]:
    """The command that runs a Python program of this text; of the demo's training program, where there is none."""
    (folder / name).write_text(text or TRAIN.read_text())
    return [*PYTHON, str(folder / name)]


def job(queue: str, name: str, gpus: int, run: str, *more: str) -> str:
    """A job's file: `run` as it stands behind `run:`, `more` further lines of its spec."""
    spec = [f"  {line}" for line in (f"queue: {queue}", f"gpus: {gpus}", "timeLimit: 1h", *more, f"run: {run}")]
    return "\n".join(["apiVersion: gangops/v1", "kind: Job", f"metadata: {{name: {name}}}", "spec:", *spec, ""])


def gang(queue: str, name: str, gpus: int, command: list[str], checkpoints: Path, *more: str) -> str:
    """A training job that runs a process a node, saves its work when asked, and tells how far it is."""
    checkpoint = (
        f"checkpoint: {{dir: {checkpoints}/{name}, every: 1m, completeMarker: latest, "
        "onPreempt: {signal: SIGUSR1, to: leader, grace: 30s}}"
    )
    health = f"health: {{heartbeatFile: {checkpoints}/{name}/heartbeat}}"
    run = f"{{launch: perNode, command: {json.dumps(command)}}}"
    return job(queue, name, gpus, run, checkpoint, health, *more)


def folder_for(name: str) -> Path:
    """An empty folder with a short path: unix sockets of shims need one, pytest's are long."""
    folder = Path(f"/tmp/gangops-{name}-{os.getpid()}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
