"""Slurm as the hands, end to end: imported live, decided in git, started and stopped by real daemons."""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from reconciler.engines.routed import RoutedEngine
from reconciler.engines.slurm.commands import Reader
from reconciler.engines.slurm.engine import SlurmEngine
from reconciler.engines.slurm.naming import find_tag
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.inventory import SLURM
from reconciler.model.lifecycle import JobState, Outcome
from reconciler.model.units import JobKey, NodeName, task_key
from reconciler.runtime.clock import SystemClock
from reconciler.runtime.clone import open_clone
from reconciler.runtime.generation import Generation, read_generation
from reconciler.runtime.loop import Reconciler
from reconciler.runtime.replay import replay
from reconciler.runtime.service import reconciler_of
from reconciler.runtime.settings import read_settings
from reconciler.store.history import first_parent_log
from reconciler.wire import decode_orders
from tests.engines.slurm_cluster import SlurmCluster, until
from tests.runtime.lab import check_no_gpu_twice

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(900)]

CONFIG = """\
apiVersion: gangops/v1
kind: ClusterConfig
metadata: {{name: slurm}}
spec:
  engine: slurm
  slurm: {{folder: "{folder}", pollInterval: 500ms}}
  repository: {{pollInterval: 500ms, publishInterval: 0s}}
  scheduling: {{cycleInterval: 1s, cooldown: 0s, minRuntime: 0s, moveToStart: {moves}}}
"""
QUEUES = """\
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: nlp}
spec: {parent: root}
"""
CLASSES = """\
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: normal}
spec: {value: 500, default: true}
---
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 1000}
"""
WORK = (
    "trap 'date +%s >{marker}; exit 0' USR1; [ $RANK != 0 ] || echo $GANGOPS_ATTEMPT $GANGOPS_RESUME >>{runs}; {rest}"
)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A verb of ours, as people call it."""
    command = [sys.executable, "-m", "reconciler.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@dataclass
class Loop:
    """A repository imported from the cluster, and a reconciler that runs over it in a thread."""

    slurm: SlurmCluster
    folder: Path
    moves: str = "preemptible"
    cluster: str = field(default_factory=lambda: f"loop-{secrets.token_hex(4)}")  # Slurm remembers jobs of others
    stop: threading.Event = field(default_factory=threading.Event)
    told: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    running: list[tuple[Reconciler, threading.Thread]] = field(default_factory=list)
    seen: dict[tuple[JobKey, int], Mapping[NodeName, int]] = field(default_factory=dict)

    def build(self) -> None:
        """Import, commit, begin the record, and let the reconciler run."""
        self.repo, remote = self.folder / "repo", self.folder / "remote.git"
        done = run("import", "slurm-cluster", "--live", "--into", str(self.repo), "--gpu-type", "h100")
        assert done.returncode == 0, done.stderr
        self.git("init", "-q", "-b", "main", str(self.repo))
        self.write("cluster-state/cluster.yaml", CONFIG.format(folder=self.slurm.shared, moves=self.moves))
        self.write("cluster-state/queues/slurm.yaml", QUEUES)
        self.write("cluster-state/priorities/slurm.yaml", CLASSES)
        self.git("init", "-q", "--bare", "-b", "main", str(remote))
        self.git("-C", str(self.repo), "remote", "add", "origin", str(remote))
        self.commit("Import from Slurm")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "key")], check=True)
        usage = self.folder / "usage.json"
        usage.write_text('{"gpuSeconds": {"nlp": {"h100": 3600}}}', encoding="utf-8")
        settings = self.folder / "reconciler.toml"
        settings.write_text(
            f'clusterId = "{self.cluster}"\n[desired]\nurl = "{remote}"\n[signing]\nkey = "key"\n', encoding="utf-8"
        )
        begun = run("init", "--state", "--settings", str(settings), "--usage", str(usage))
        assert begun.returncode == 0, begun.stderr
        self.remote = remote
        self.reconciler = self.reconcile(settings)
        until(lambda: len(self.observed()) == len(self.slurm.names), "every node is observed")

    def reconcile(self, settings: Path) -> Reconciler:
        """A reconciler with these settings, running in a thread of its own."""

        def tell(event: str, fields: Mapping[str, object]) -> None:
            self.told.append((event, fields))

        news = threading.Event()
        engine = SlurmEngine(self.cluster, SystemClock(), news=news, root_may_run=True, tell=tell)
        routed = RoutedEngine({SLURM: lambda: engine}, news)
        made = reconciler_of(read_settings(settings), routed, tell)
        thread = threading.Thread(target=made.run, args=(self.stop,), daemon=True)
        thread.start()
        self.running.append((made, thread))
        return made

    def another(self) -> Reconciler:
        """A second reconciler over the same remote and the same Slurm, with a clone and a memory of its own."""
        settings = self.folder / "another.toml"
        text = (self.folder / "reconciler.toml").read_text(encoding="utf-8")
        settings.write_text(f'folder = "another"\n{text}', encoding="utf-8")
        return self.reconcile(settings)

    def end(self) -> None:
        self.stop.set()
        for reconciler, thread in self.running:
            reconciler.wake()
            thread.join(60)

    def write(self, path: str, text: str) -> None:
        (self.repo / path).parent.mkdir(parents=True, exist_ok=True)
        (self.repo / path).write_text(text, encoding="utf-8")

    def git(self, *words: str) -> None:
        person = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *person, *words], check=True, capture_output=True)

    def commit(self, message: str) -> None:
        self.git("-C", str(self.repo), "add", "-A")
        self.git("-C", str(self.repo), "commit", "-qm", message)
        self.git("-C", str(self.repo), "push", "-q", "origin", "main")

    def job(self, name: str, gpus: int, rest: str, more: str = "") -> None:
        """The file of a job that notes each of its runs, and saves when it is asked to."""
        marker, runs = self.marker(name), self.slurm.shared / f"{name}.runs"
        script = WORK.format(marker=marker, runs=runs, rest=rest)
        self.write(
            f"cluster-state/jobs/nlp/{name}.yaml",
            f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  queue: nlp\n  gpus: {gpus}\n"
            f"  resources: {{cpusPerGpu: 1, memoryPerGpu: 100MiB}}\n"
            f"  checkpoint: {{dir: {marker.parent}, completeMarker: {marker.name}, every: 10m}}\n{more}"
            f"  run:\n    launch: perGpu\n    script: |\n      {script}\n",
        )

    def marker(self, name: str) -> Path:
        return self.slurm.shared / f"{name}.marker"

    def runs(self, name: str) -> list[str]:
        path = self.slurm.shared / f"{name}.runs"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    # -- what is now

    def allocation(self) -> Allocation:
        last = self.reconciler.last
        assert last is not None
        return last.generation.allocation

    def observed(self) -> Mapping[NodeName, object]:
        return self.reconciler.last.generation.observed.nodes if self.reconciler.last else {}

    def record(self, name: str) -> JobRecord | None:
        return self.allocation().jobs.get(JobKey(f"nlp/{name}"))

    def is_in(self, name: str, state: JobState) -> bool:
        found = self.record(name)
        return found is not None and found.state is state

    def reaches(self, found: Callable[[], bool], what: str, patience: float = 120) -> None:
        """Wait for it, and note meanwhile who is where."""

        def noted() -> bool:
            self.note_what_slurm_gave()
            return found()

        until(noted, what, patience)

    def placed(self) -> dict[tuple[JobKey, int], dict[NodeName, int]]:
        """What was ever committed, by attempt."""
        return {
            (key, record.attempt): dict(record.placement.masks)
            for generation in self.generations()
            for key, record in generation.allocation.jobs.items()
            if record.placement is not None and record.state in (JobState.STARTING, JobState.RUNNING)
        }

    def note_what_slurm_gave(self) -> None:
        """By attempt; no GPU of Slurm's is held twice."""
        held: dict[NodeName, int] = {}
        by_attempt: dict[tuple[JobKey, int], dict[NodeName, int]] = {}
        for job in self.slurm.jobs():
            for node, mask in job.gpus.items():
                assert not held.get(node, 0) & mask, f"{node}: {job.name} shares GPUs"
                held[node] = held.get(node, 0) | mask
            tag = find_tag(job.name, job.comment, self.cluster)
            if tag is not None and job.state == "RUNNING" and job.gpus:
                by_attempt.setdefault(tag.key, {}).update(job.gpus)
        self.seen |= by_attempt

    def history(self, name: str) -> list[str]:
        """What the record says of one job, generation by generation."""
        path = f"allocation/jobs/nlp/{name}.yaml"
        command = ["git", "-C", str(self.remote), "log", "--format=", "-p", "allocations", "--", path]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [line for line in shown.splitlines() if line.startswith(("+state", "+reason", "+cause", "+phase"))]

    def generations(self) -> list[Generation]:
        """The whole chain, the newest first."""
        clone = open_clone(self.remote)
        return [read_generation(clone.git, meta.id) for meta in first_parent_log(clone.git, clone.state_tip())]

    def check_record(self) -> None:
        """One chain, no GPU held twice in any generation, every decision recomputed, seeded use at its beginning."""
        clone = open_clone(self.remote)
        log = list(first_parent_log(clone.git, clone.state_tip()))
        allocations = [generation.allocation for generation in self.generations()]
        assert [a.generation for a in allocations] == list(range(len(log) - 1, -1, -1))
        for allocation in allocations:
            check_no_gpu_twice(allocation)
        assert [(one.queue, one.gpu_type, one.acc) for one in allocations[-1].usage] == [("nlp", "h100", 3_600_000)]
        assert [r for r in replay(clone.git, clone.state_tip()) if not r.identical] == []


@pytest.fixture
def loop(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Loop]:
    made = Loop(slurm, tmp_path)
    made.build()
    yield made
    made.end()
    made.check_record()


def test_gangs_run_where_git_says_and_a_victim_goes_on_from_its_checkpoint(loop: Loop) -> None:
    forever = "while :; do sleep 0.1; done"
    loop.job("gang", 16, "sleep 1")
    loop.job("small", 2, "sleep 1")
    loop.job("victim", 32, f"[ $GANGOPS_RESUME = 1 ] && exit 0; {forever}")
    loop.commit("Submit three")
    loop.reaches(lambda: loop.is_in("victim", JobState.RUNNING), "the victim runs")
    for name in ("gang", "small"):  # what holds GPUs yet would be a victim too
        loop.reaches(partial(loop.is_in, name, JobState.FINISHED), f"{name} is done")
    loop.reaches(lambda: loop.runs("victim") == ["1 0"], "the victim listens, which Slurm's state does not say")
    loop.job("urgent", 48, "sleep 1", "  priorityClass: urgent\n")
    loop.commit("Something urgent")
    for name in ("gang", "small", "urgent", "victim"):
        loop.reaches(partial(loop.is_in, name, JobState.FINISHED), f"{name} is done")
        record = loop.record(name)
        assert record is not None
        assert record.outcome is Outcome.SUCCEEDED, (name, record)
    assert loop.marker("victim").exists()
    assert [loop.runs(name) for name in ("gang", "small", "urgent", "victim")] == [
        ["1 0"],
        ["1 0"],
        ["1 0"],
        ["1 0", "2 1"],
    ]
    assert loop.seen
    slotted, placed = {NodeName(name) for name in loop.slurm.slotted}, loop.placed()
    for key, masks in loop.seen.items():
        committed = placed[key]
        assert masks.keys() == committed.keys()
        assert all(masks[node] == committed[node] for node in masks if node in slotted or masks[node] == 255)


SWEEP = """\
apiVersion: gangops/v1
kind: Job
metadata: {{name: sweep}}
spec:
  queue: nlp
  gpus: 2
  restart: {{onFailure: 0}}
  resources: {{cpusPerGpu: 1, memoryPerGpu: 100MiB}}
  checkpoint: {{dir: {folder}}}
  array: {{matrix: {{lr: ["0.1", "0.01"], seed: [1, "it's 2"]}}, maxParallel: 2}}
  run:
    launch: perGpu
    script: |
      echo "$GANGOPS_ATTEMPT $GANGOPS_PARAM_LR $GANGOPS_PARAM_SEED" >>{folder}/$GANGOPS_TASK_INDEX.$RANK.runs
      sleep 1; [ $GANGOPS_TASK_INDEX != 2 ] || exit 3
"""


def test_a_sweep_runs_two_at_once_with_its_parameters_and_one_failure_stops_no_other(loop: Loop) -> None:
    loop.write("cluster-state/jobs/nlp/sweep.yaml", SWEEP.format(folder=loop.slurm.shared))
    loop.commit("Submit a sweep")
    tasks = [task_key(JobKey("nlp/sweep"), index) for index in range(4)]

    def over() -> bool:
        records = [loop.allocation().jobs.get(task) for task in tasks]
        return all(record is not None and record.state is JobState.FINISHED for record in records)

    loop.reaches(over, "every task is over")
    outcomes = [loop.allocation().jobs[task].outcome for task in tasks]
    assert outcomes == [Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUCCEEDED]
    assert loop.allocation().jobs[tasks[2]].reason.number("exitCode") == 3
    said = ["1 0.1 1", "1 0.1 it's 2", "1 0.01 1", "1 0.01 it's 2"]
    for index, line in enumerate(said):  # each rank of each task once, with its own parameters
        for rank in range(2):
            assert (loop.slurm.shared / f"{index}.{rank}.runs").read_text(encoding="utf-8") == f"{line}\n"
    held = [sum(r.state.holds_gpus for r in g.allocation.jobs.values()) for g in loop.generations()]
    assert max(held) == 2


def test_two_reconcilers_over_one_slurm_submit_each_decision_once_and_none_that_lost(loop: Loop) -> None:
    """Both decide, and race; only what is in the chain is ever submitted, by one of them, and it runs once."""
    other = loop.another()
    until(lambda: other.last is not None, "the other one has begun")
    names: list[str] = []

    def lost() -> int:
        return sum(event == "lost-race" for event, _ in loop.told)

    def done() -> bool:
        return all(loop.is_in(name, JobState.FINISHED) for name in names)

    while len(names) < 12 or not lost():  # until they did meet
        assert len(names) < 80, "two that decide on the same never raced"
        fresh = [f"j{number:02d}" for number in range(len(names), len(names) + 4)]
        for name in fresh:
            loop.job(name, 2, "sleep 0.5")
        loop.commit("Four more")
        names += fresh
        if len(names) >= 12:
            loop.reaches(done, "all are done")
    loop.end()
    assert [loop.runs(name) for name in names] == [["1 0"]] * len(names)
    submitted = Counter((str(f["job"]), f["attempt"]) for event, f in loop.told if event == "slurm-submitted")
    assert submitted == {(f"nlp/{name}", 1): 1 for name in names}
    # Every job in Slurm says which generation it was submitted for: that one ordered it to run.
    ordered = {
        (order.job, order.attempt, generation.summary.generation)
        for generation in loop.generations()
        for content in generation.node_orders.values()
        for order in decode_orders(content).attempts
        if order.phase == "run"
    }
    tags = [find_tag(job.name, job.comment, loop.cluster) for job in loop.slurm.jobs(every=True)]
    told = [(tag.job, tag.attempt, tag.generation) for tag in tags if tag is not None]
    assert len(told) == len(names)
    assert set(told) <= ordered
    print(f"{len(loop.generations()) - 1} generations, {lost()} pushes lost, {Reader().version}")


class Recorder:
    """Stands before Slurm's programs and writes down how each was called."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.bin, self.log = folder / "recording", folder / "calls"
        self.bin.mkdir()
        for program in (slurm.folder / "bin").iterdir():
            stand_in = self.bin / program.name
            stand_in.write_text(f'#!/bin/sh\necho "{program.name} $*" >>{self.log}\nexec {program} "$@"\n')
            stand_in.chmod(0o755)

    def calls(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()


READING = ("sinfo ", "squeue ", "scontrol show ", "sacctmgr -P show ", "sshare ")


@pytest.mark.parametrize("verb", [("shadow",), ("import", "slurm-cluster", "--live", "--into", "{into}")])
def test_a_look_from_beside_runs_reading_commands_alone(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    theirs = slurm.submit("-J", "theirs", "-N2", "--exclusive", "--gres=gpu:8", "-w", "node006,node007")
    waits = slurm.submit("-J", "waits", "-N3", "--exclusive", "--gres=gpu:8", "--begin=now+1hour")
    until(lambda: any(job.id == theirs and job.state == "RUNNING" and job.gpus for job in slurm.jobs()), "it runs")
    recorder = Recorder(slurm, tmp_path)
    monkeypatch.setenv("PATH", f"{recorder.bin}:{os.environ['PATH']}")
    before = [(job.id, job.state) for job in slurm.jobs()]
    done = run(*(word.format(into=tmp_path / "into") for word in verb))
    assert done.returncode == 0, done.stderr
    assert recorder.calls()
    assert [call for call in recorder.calls() if not call.startswith(READING)] == []
    assert [(job.id, job.state) for job in slurm.jobs()] == before
    if verb == ("shadow",):
        assert "64 GPUs: 16 held by 1 job, 48 idle" in done.stdout
        assert str(waits) in done.stdout


@pytest.mark.skipif(not os.environ.get("GANGOPS_SOAK"), reason="a soak: set GANGOPS_SOAK=1 to run it by hand")
def test_two_hundred_mixed_jobs_each_run_once_where_git_says(tmp_path: Path) -> None:
    """64 nodes of 8 GPUs, all of which can be pinned."""
    slurm = SlurmCluster(64, 64, rack=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", slurm.environment["PATH"])
        patch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        try:
            loop = Loop(slurm, tmp_path, moves="never")  # a gang that is moved runs twice, as it should
            loop.build()
            dice = random.Random(7)
            names = [f"j{number:03d}" for number in range(200)]
            for name in names:
                gpus = dice.choice([1, 1, 2, 2, 4, 8, 8, 16, 24, 32])
                loop.job(name, gpus, f"sleep {dice.randint(2, 8)}")
            loop.commit("Two hundred jobs")
            loop.reaches(lambda: all(loop.is_in(n, JobState.FINISHED) for n in names), "all are done", 800)
            loop.end()
            loop.check_record()
            records = [loop.record(name) for name in names]
            assert [r.outcome for r in records if r] == [Outcome.SUCCEEDED] * 200
            again = {name: loop.history(name) for name in names if loop.runs(name) != ["1 0"]}
            assert again == {}
            placed = loop.placed()
            differing = {key: (masks, placed[key]) for key, masks in loop.seen.items() if masks != placed[key]}
            assert differing == {}
            print(f"{len(loop.seen)} of 200 seen running in Slurm, {Reader().version}")
        finally:
            slurm.stop()
