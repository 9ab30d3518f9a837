"""A small cluster in a real bare repository, reconcilers over it, and nodes that are pretended: all in one process.

Desired commits are made with fast-import, as a merge on a forge would make them; nothing is ever checked out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reconciler.documents.record import Summary, read_allocation
from reconciler.model.allocation import Allocation, JobRecord
from reconciler.model.units import SECOND, JobKey
from reconciler.runtime.gathering import Gathering
from reconciler.runtime.generation import Generation, first_generation, read_generation, trailers
from reconciler.runtime.loop import Reconciler, Round
from reconciler.runtime.notices.courier import Desk as NoticeDesk
from reconciler.runtime.notices.courier import Patience
from reconciler.runtime.notices.hooks import Hook
from reconciler.runtime.notices.teller import Teller
from reconciler.runtime.reading import DesiredReader
from reconciler.runtime.replay import Replayed, replay
from reconciler.runtime.status_server import LoopMetrics
from reconciler.store.history import CommitMeta, first_parent_log
from reconciler.store.mirror import Branches, Mirror, Remote
from reconciler.store.publish import PublishedMark, publish
from reconciler.store.statecommit import Message, Writer, build
from reconciler.store.trees import read_tree
from tests.engines.fake import FakeClock, FakeCluster, FakeEngine
from tests.store.world import LOCAL, MAIN, STATE, Repository, git, new_mirror

CLUSTER = "lab"

CONFIG = """\
apiVersion: gangops/v1
kind: ClusterConfig
metadata: {name: lab}
spec: {}
"""
FABRIC = """\
apiVersion: gangops/v1
kind: Fabric
metadata: {name: clos}
spec:
  levels:
    - {name: nvlinkDomain, latency: 0.7us, bandwidth: 450GBps}
    - {name: node, latency: 1.2us, bandwidth: 64GBps}
    - {name: rack, latency: 3us, bandwidth: 400Gbps}
    - {name: spineGroup, latency: 5us, bandwidth: 400Gbps}
    - {name: cluster, latency: 8us, bandwidth: 400Gbps}
  spineGroups:
    - name: sg0
      spines: ["spine-[0-1]"]
      racks: [{name: r01}, {name: r02}]
"""
PROFILE = """\
apiVersion: gangops/v1
kind: NodeProfile
metadata: {name: small}
spec:
  gpuType: H100
  gpuMemory: 80GiB
  numa: [{id: 0, cpus: "0-63", memory: 1TiB}]
  nvlinkDomains: [{id: 0, gpus: [0, 1, 2, 3, 4, 5, 6, 7]}]
"""
NODES = """\
apiVersion: gangops/v1
kind: NodeSet
metadata: {name: r01}
spec: {nodes: "gpu-[001-002]", profile: small, rack: r01}
---
apiVersion: gangops/v1
kind: NodeSet
metadata: {name: r02}
spec: {nodes: "gpu-[003-004]", profile: small, rack: r02}
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
metadata: {name: production}
spec: {value: 1000}
---
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: research}
spec: {value: 500, default: true}
"""
BASE = {
    "cluster-state/cluster.yaml": CONFIG,
    "cluster-state/fabric/clos.yaml": FABRIC,
    "cluster-state/inventory/small.yaml": PROFILE,
    "cluster-state/inventory/nodes.yaml": NODES,
    "cluster-state/queues/tree.yaml": QUEUES,
    "cluster-state/priorities/classes.yaml": CLASSES,
    "cluster-state/jobs/.gitkeep": "",
}


def job_file(name: str) -> str:
    return f"cluster-state/jobs/nlp/{name}.yaml"


def job_text(name: str, gpus: int = 8, *, more: str = "") -> str:
    """The file of a job of queue nlp; `more` are further lines of its spec."""
    return (
        f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  queue: nlp\n  gpus: {gpus}\n"
        f"  run: {{command: [python, train.py]}}\n{more}"
    )


def jobs(*names: str, gpus: int = 8) -> dict[str, str]:
    return {job_file(name): job_text(name, gpus) for name in names}


@dataclass
class Lab:
    """The repository, and what is desired in it now."""

    folder: Path
    remote: Repository
    writer: Writer
    clock: FakeClock = field(default_factory=FakeClock)
    files: dict[str, str] = field(default_factory=lambda: dict(BASE))
    record: Repository | None = None
    """Where the state branch is, when it is not beside the desired one."""

    def desire(self, changes: Mapping[str, str | None] | None = None, *, message: str = "", anew: bool = False) -> str:
        """A commit on main with these files changed (None removes one); `anew` rewrites the branch."""
        for path, content in (changes or {}).items():
            if content is None:
                self.files.pop(path)
            else:
                self.files[path] = content
        parent = None if anew else self.remote.tip(MAIN)
        made = self.remote.commit({p: c.encode() for p, c in self.files.items()}, parent=parent)
        if message:
            made = self._reworded(made, message)
        return made

    def _reworded(self, commit: str, message: str) -> str:
        tree = git(self.remote.path, "rev-parse", f"{commit}^{{tree}}").decode().strip()
        parents = git(self.remote.path, "log", "-1", "--format=%P", commit).decode().split()
        flags = [word for parent in parents for word in ("-p", parent)]
        person = ("-c", "user.name=T", "-c", "user.email=t@t")
        made = git(self.remote.path, *person, "commit-tree", tree, *flags, stdin=message.encode()).decode().strip()
        git(self.remote.path, "update-ref", MAIN, made)
        return made

    def begin(self, **changes: str) -> str:
        """The first desired commit and generation 0."""
        desired = self.desire(changes)
        mirror = self.mirror("init")
        mirror.fetch()
        summary, files = first_generation(CLUSTER, 1, desired, self.clock.now())
        commit = build(
            mirror.git, files, parent=None, desired=desired, at=self.clock.now(), writer=self.writer,
            message=Message(subject="Begin the record", body="", trailers=trailers(summary)),
        )  # fmt: skip
        publish(mirror, commit, expected=None).raise_for_result()
        return commit

    def mirror(self, name: str) -> Mirror:
        if self.record is None:
            return new_mirror(self.folder / name / "git", self.remote)
        branches = Branches(source=Remote(url=self.remote.url), record=Remote(url=self.record.url, name="state"))
        mirror = Mirror(self.folder / name / "git", branches, protocols=LOCAL)
        mirror.open()
        return mirror

    def desk(
        self, name: str = "one", cluster: FakeCluster | None = None, hooks: Sequence[Hook] = (),
        gathering: Gathering | None = None,
    ) -> Desk:  # fmt: skip
        """A reconciler with a clone and an engine of its own; `hooks` are told when the test says so.

        Without `gathering` every decision is committed in the round that makes it.
        """
        mirror = self.mirror(name)
        engine = FakeEngine(self.clock, cluster)
        told: list[tuple[str, Mapping[str, object]]] = []
        metrics = LoopMetrics()
        around = NoticeDesk(
            git=mirror.git, clock=self.clock, report=lambda event, fields: told.append((event, fields)),
            count=metrics.notified, patience=Patience(tries=2, first=0.001, longest=0.001, later=0.01),
        )  # fmt: skip
        teller = Teller(self.folder / name / "notices", hooks, DesiredReader(mirror.git), around) if hooks else None
        reconciler = Reconciler(
            mirror=mirror,
            mark=PublishedMark(folder=self.folder / name),
            writer=self.writer,
            reader=DesiredReader(mirror.git),
            engine=engine,
            clock=self.clock,
            cluster_id=CLUSTER,
            report=lambda event, fields: told.append((event, fields)),
            teller=teller,
            metrics=metrics,
            gathering=gathering,
        )
        return Desk(self, reconciler, engine, mirror, told)

    # -- what the remote says

    @property
    def tip(self) -> str:
        found = (self.record or self.remote).tip(STATE)
        assert found is not None
        return found

    def generation(self) -> Generation:
        return read_generation(self.remote.git, self.tip)

    def allocation_at(self, commit: str) -> Allocation:
        contents = read_tree(self.remote.git, commit, ("allocation",))
        return read_allocation({entry.path: contents.blobs[entry.oid] for entry in contents.entries})

    def log(self) -> list[CommitMeta]:
        """State commits, newest first."""
        return list(first_parent_log(self.remote.git, self.tip))

    def numbers(self) -> list[int]:
        """Generations as their trailers tell them, oldest first."""
        return [int(meta.only_trailer("Generation")) for meta in reversed(self.log())]

    def replayed(self) -> list[Replayed]:
        return list(replay(self.remote.git, self.tip))

    def check_chain(self) -> None:
        """One linear chain without a gap, and no GPU held twice in any generation."""
        log = self.log()
        assert self.numbers() == list(range(len(log)))
        for meta in log:
            check_no_gpu_twice(self.allocation_at(meta.id))
        for newer, older in itertools.pairwise(log):
            assert newer.parents[0] == older.id
            assert newer.parents[1:] == (newer.only_trailer("Desired-Commit"),)
        assert log[-1].parents == ()


def check_no_gpu_twice(allocation: Allocation) -> None:
    for node, holders in allocation.holders().items():
        taken = 0
        for job, mask in holders.items():
            assert not taken & mask, f"generation {allocation.generation}: {job} shares GPUs on {node}"
            taken |= mask


@dataclass
class Desk:
    """One reconciler and what it was heard to say."""

    lab: Lab
    reconciler: Reconciler
    engine: FakeEngine
    mirror: Mirror
    told: list[tuple[str, Mapping[str, object]]]

    def round(self, *, poll: bool = True) -> Round:
        """One round a second later; `poll` asks the remote even within the poll interval."""
        self.lab.clock.advance(SECOND)
        if poll:
            self.reconciler.wake()
        return self.reconciler.round()

    def settle(self, most: int = 20) -> list[int]:
        """Rounds until one commits nothing; the generations committed on the way."""
        made: list[int] = []
        for _ in range(most):
            done = self.round()
            if done.committed is None:
                return made
            made.append(done.generation.summary.generation)
        raise AssertionError(f"still not settled after {most} rounds: {made}")

    def record(self, job: str) -> JobRecord:
        assert self.reconciler.last is not None
        return self.reconciler.last.generation.allocation.jobs[JobKey(f"nlp/{job}")]

    @property
    def summary(self) -> Summary:
        assert self.reconciler.last is not None
        return self.reconciler.last.generation.summary

    def events(self) -> Iterator[str]:
        return (event for event, _ in self.told)
