"""A record of any length by the real planner: a made-up stream of people's changes, a fake clock, one fast-import stream.

Nodes are pretended in the smallest way that is true to the protocol: what was ordered is done by the next round, and
receipts say so. Every decision is `next_generation` of its inputs, so the record replays; its commits are not signed,
which fast-import cannot do. `python -m tests.generated FOLDER [GENERATIONS] [NODES]` writes one.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from reconciler.documents.cache import ParseCache
from reconciler.documents.desired import SourceFile, load_desired
from reconciler.errors import BrokenInvariant
from reconciler.model.desired import Desired
from reconciler.model.lifecycle import JobState
from reconciler.model.observed import (
    AttemptReport,
    AttemptState,
    GpuReport,
    NodeCondition,
    NodeObservation,
    Observed,
    Person,
    Proof,
    Provenance,
)
from reconciler.model.units import SECOND, CommitId, Instant, JobKey, NodeName
from reconciler.render.taken import taken_lines
from reconciler.runtime.generation import (
    Generation,
    Inputs,
    NextGeneration,
    first_generation,
    generation_of,
    next_generation,
    trailers,
)
from reconciler.runtime.taken import told_by
from reconciler.runtime.telling import message_of
from reconciler.store.statecommit import Message
from tests.runtime.lab import BASE, CLUSTER
from tests.store.world import MAIN, STATE, git, new_repository

BEGIN = 1_767_225_600 * SECOND
QUEUES = ("nlp", "vision", "speech", "pretrain")
PEOPLE = ("ada", "bob", "eve", "kim")
_FORGE = "Forge <noreply@forge>"
_DONE = {"prepare": AttemptState.PREPARED, "run": AttemptState.RUNNING}
_PACKED = 500
"""Commits to a pack. Trees that were listed are made deltas of each other without an end to the chain, but not across packs."""
_KEPT = 60
"""Files of finished jobs that are still there."""


def cluster_files(nodes: int) -> dict[str, str]:
    """A cluster of racks of ten nodes, four queues, each guaranteed a fifth."""
    racks = range((nodes + 9) // 10)
    named = ", ".join(f"{{name: r{n:02}}}" for n in racks)
    sets = (
        f"apiVersion: gangops/v1\nkind: NodeSet\nmetadata: {{name: r{n:02}}}\n"
        f'spec: {{nodes: "gpu-[{n * 10 + 1:03}-{min(nodes, n * 10 + 10):03}]", profile: small, rack: r{n:02}}}\n'
        for n in racks
    )
    queues = "".join(
        f"---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {{name: {name}}}\n"
        f"spec: {{parent: root, guaranteed: {{H100: {nodes * 8 // 5}}}}}\n"
        for name in QUEUES
    )
    fabric = BASE["cluster-state/fabric/clos.yaml"]
    return {
        **BASE,
        "cluster-state/inventory/nodes.yaml": "---\n".join(sets),
        "cluster-state/fabric/clos.yaml": fabric.replace("racks: [{name: r01}, {name: r02}]", f"racks: [{named}]"),
        "cluster-state/queues/tree.yaml": "apiVersion: gangops/v1\nkind: Queue\nmetadata: {name: root}\nspec: {}\n"
        + queues,
    }


def _job(key: JobKey, gpus: int, hours: int) -> str:
    queue, _, name = key.partition("/")
    return (
        f"apiVersion: gangops/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  queue: {queue}\n  gpus: {gpus}\n"
        f"  timeLimit: {hours}h\n  run: {{command: [python, train.py]}}\n"
    )


def _path(key: JobKey) -> str:
    return f"cluster-state/jobs/{key}.yaml"


def blob_id(content: bytes) -> str:
    """The id git gives a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Stream:
    """git fast-import, which also tells the ids it made. A context manager: the repository is whole after it."""

    def __init__(self, folder: Path) -> None:
        new_repository(folder)
        self._child = subprocess.Popen(
            ["git", "fast-import", "--quiet", "--date-format=raw", "--cat-blob-fd=1", "--done"],
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._marks: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(b"done\n")
        self._child.stdin.close()
        self._child.stdout.close()
        assert self._child.wait() == 0

    def commit(
        self,
        ref: str,
        who: str,
        at: int,
        message: str,
        parents: tuple[str, ...],
        changes: Mapping[str, bytes | None],
        graft: str = "",
        author: str = "",
    ) -> tuple[str, str]:
        """Ids of a commit and of its tree. `graft` is a tree that becomes `desired/`; `author` is `who` if not said."""
        assert self._child.stdin is not None
        mark = len(self._marks) + 1
        when = f"{at // SECOND} +0000"
        told = message.encode()
        out = [
            f"commit {ref}\nmark :{mark}\nauthor {author or who} {when}\ncommitter {who} {when}\n".encode(),
            f"data {len(told)}\n".encode(),
            told,
            b"\n",
        ]
        out += [
            f"{word} :{self._marks[parent]}\n".encode()
            for word, parent in zip(("from", "merge"), parents, strict=False)
        ]
        for path, content in changes.items():
            if content is None:
                out.append(f"D {path}\n".encode())
            else:
                out += [f"M 100644 inline {path}\ndata {len(content)}\n".encode(), content, b"\n"]
        out += [f"M 040000 {graft} desired\n".encode()] if graft else []
        tree = self._asked(b"".join([*out, b'ls ""\n'])).split()[2]
        made = self._asked(f"\nget-mark :{mark}\n".encode()).strip()
        self._marks[made] = mark
        if mark % _PACKED == 0:
            self._child.stdin.write(b"checkpoint\n")
        return made, tree

    def _asked(self, words: bytes) -> str:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(words)
        self._child.stdin.flush()
        return self._child.stdout.readline().decode("ascii")


@dataclass
class _People:
    """What people ask for: files that come and go, each change by somebody through a numbered pull request."""

    rng: random.Random
    files: dict[str, bytes]
    live: dict[JobKey, Instant] = field(default_factory=dict)
    """When each job's ranks end by themselves, once it runs."""
    over: deque[JobKey] = field(default_factory=deque)
    made: int = 0
    requests: int = 0

    def change(self, waiting: int) -> dict[str, bytes | None]:
        """Files that a merge changes; {} when nobody asks for anything."""
        changes: dict[str, bytes | None] = {}
        if waiting < 12 and self.rng.random() < 0.5:
            for _ in range(self.rng.choice((1, 1, 2))):
                self.made += 1
                key = JobKey(f"{self.rng.choice(QUEUES)}/job-{self.made:05}")
                gpus = self.rng.choice((8, 8, 16, 32, 64, 128))
                changes[_path(key)] = _job(key, gpus, self.rng.choice((2, 4, 8, 24))).encode()
        while len(self.over) > _KEPT:
            changes[_path(self.over.popleft())] = None
        for path, content in changes.items():
            if content is None:
                del self.files[path]
            else:
                self.files[path] = content
        return changes


@dataclass
class _Nodes:
    """What nodes report: that they did what was ordered."""

    seen: dict[NodeName, NodeObservation]

    def obey(self, following: NextGeneration, changed: Mapping[str, bytes | None], now: Instant) -> None:
        """Receipts for the orders that changed."""
        for path in changed:
            if path.startswith("allocation/nodes/"):
                node = NodeName(path.rpartition("/")[2].removesuffix(".json"))
                self.seen[node] = replace(self.seen[node], attempts=tuple(self._receipts(node, following, now)))

    def _receipts(self, node: NodeName, following: NextGeneration, now: Instant) -> list[AttemptReport]:
        known = {(one.job, one.attempt): one for one in self.seen[node].attempts}
        found = []
        for order in following.orders[node].attempts:
            key = (JobKey(order.job), order.attempt)
            state = _DONE.get(order.phase, AttemptState.GONE)
            before = known.get(key)
            if before is not None and (before.state is state or before.state.released):
                found.append(before)
            else:
                number = following.summary.generation
                found.append(AttemptReport(job=key[0], attempt=key[1], state=state, at=now, generation=number))
        return found

    def end(self, job: JobKey, now: Instant) -> None:
        """The job's processes end by themselves, everywhere."""
        for node, seen in self.seen.items():
            if any(one.job == job and one.state is AttemptState.RUNNING for one in seen.attempts):
                ended = tuple(
                    replace(one, state=AttemptState.EXITED, at=now, exit_code=0) if one.job == job else one
                    for one in seen.attempts
                )
                self.seen[node] = replace(seen, attempts=ended)


class Maker:
    """The loop over all of it; each `go_on` is one generation."""

    def __init__(self, stream: Stream, nodes: int, seed: int) -> None:
        self._stream, self._rng = stream, random.Random(seed)
        files = {path: text.encode() for path, text in cluster_files(nodes).items()}
        self._people = _People(self._rng, files)
        self._cache = ParseCache()
        self._now = Instant(BEGIN)
        self._brought: dict[JobKey, Provenance] = {}
        self.refused: list[tuple[int, str]] = []
        """Decisions that their own judge refused: generation, and why."""
        self._tip, self._tree = stream.commit(MAIN, "Ada <ada@lab>", BEGIN, "Begin", (), files)
        self._desired = self._recorded = self._load()
        summary, first = first_generation(CLUSTER, 1, self._tip, self._now)
        told = Message(subject="Begin the record", body="", trailers=trailers(summary)).text()
        commit, _ = stream.commit(STATE, "gangops <gangops@lab>", BEGIN, told, (), first, self._tree)
        self.current: Generation = generation_of(commit, first)
        self._nodes = _Nodes(
            {
                node.name: NodeObservation(
                    node=node.name, boot_id=f"boot-{node.name}", address="127.0.1.1", condition=NodeCondition.READY,
                    condition_since=self._now, gpu_type=node.shape.gpu_type,
                    gpus=tuple(GpuReport(index=slot.index, uuid=f"GPU-{node.name}-{slot.index}") for slot in node.shape.gpus),
                )
                for node in self._desired.inventory.nodes
            }
        )  # fmt: skip

    def _load(self) -> Desired:
        files = [SourceFile(path, blob_id(content), content) for path, content in sorted(self._people.files.items())]
        self._read = tuple((one.path, one.oid) for one in files)
        loaded = load_desired(files, CommitId(self._tip), cache=self._cache)
        assert loaded.desired is not None, loaded.diagnostics
        assert not any(one.is_error for one in loaded.diagnostics), loaded.diagnostics
        return loaded.desired

    def go_on(self) -> None:
        """Time passes and people ask, until a decision changes something; then it is committed."""
        for _ in range(200):
            self._now = Instant(self._now + self._rng.randint(20, 280) * SECOND)
            self._merge()
            self._finish()
            try:
                following = self._decide()
            except BrokenInvariant as err:  # as the loop does: nothing is committed, and a later round decides again
                self.refused.append((self.current.summary.generation + 1, err.message))
                continue
            if following.decision.changed:
                self._commit(following)
                return
        raise AssertionError("nothing changes any more")

    def _merge(self) -> None:
        waiting = sum(
            record.state in {JobState.PENDING, JobState.HELD} for record in self.current.allocation.jobs.values()
        )
        changes = self._people.change(waiting)
        if not changes:
            return
        self._people.requests += 1
        number, who = self._people.requests, self._rng.choice(PEOPLE)
        told = f"Merge pull request #{number} from {who}/change-{number}\n\nApproved-by: Ops <ops@lab>\n"
        self._tip, self._tree = self._stream.commit(
            MAIN, _FORGE, self._now, told, (self._tip,), changes, author=f"{who.capitalize()} <{who}@lab>"
        )
        self._desired = self._load()
        author = Person(email=f"{who}@lab")
        for path, content in changes.items():
            key = JobKey(path.removeprefix("cluster-state/jobs/").removesuffix(".yaml"))
            if content is not None:
                self._brought[key] = Provenance(
                    job=key, digest=self._desired.jobs[key].digest, file=blob_id(content), commit=CommitId(self._tip),
                    author=author, pull_request=str(number), approvers=(Person(email="ops@lab"),), proven=Proof.FORGE,
                    submitter=author, vouched=Proof.FORGE,
                )  # fmt: skip

    def _finish(self) -> None:
        live = self._people.live
        for key, record in self.current.allocation.jobs.items():
            if record.state is JobState.RUNNING and key not in live:
                live[key] = Instant(self._now + self._rng.randint(600, 3 * 3600) * SECOND)
            elif record.state is JobState.FINISHED and key in live:
                del live[key]
                self._people.over.append(key)
        for key, ends in live.items():
            if ends <= self._now and self.current.allocation.jobs[key].state is JobState.RUNNING:
                self._nodes.end(key, self._now)

    def _decide(self) -> NextGeneration:
        known = self._desired.jobs.keys() | self.current.allocation.jobs.keys()
        self._brought = {key: seen for key, seen in self._brought.items() if key in known}
        return next_generation(
            Inputs(
                desired=self._desired, read=self._read, frozen={}, previous=self.current, now=self._now,
                observed=Observed(nodes=dict(sorted(self._nodes.seen.items())), provenance=dict(sorted(self._brought.items()))),
                trigger="desired" if self._tip != self.current.summary.desired_commit else "observed",
            )
        )  # fmt: skip

    def _commit(self, following: NextGeneration) -> None:
        taken: tuple[str, ...] = ()
        if self._tip != self.current.summary.desired_commit:  # people change jobs alone
            taken = taken_lines(self._recorded, self._desired, (), (), told_by(following))
        told = message_of(following, self.current, taken).text()
        commit, _ = self._stream.commit(
            STATE, "gangops <gangops@lab>", following.summary.decided_at, told, (self.current.commit, self._tip),
            following.changes, self._tree,
        )  # fmt: skip
        self.current, self._recorded = following.committed_as(commit), self._desired
        self._nodes.obey(following, following.changes, self._now)


def generate(folder: Path, generations: int, nodes: int = 200, seed: int = 6) -> list[tuple[int, str]]:
    """A bare repository with that many generations, packed. What the judge refused on the way."""
    with Stream(folder) as stream:
        maker = Maker(stream, nodes, seed)
        while maker.current.summary.generation < generations - 1:
            maker.go_on()
    git(folder, "repack", "-adq")
    return maker.refused


if __name__ == "__main__":
    start = time.process_time()
    count, size = (*map(int, sys.argv[2:4]), *(5000, 200)[len(sys.argv[2:4]) :])
    refused = generate(Path(sys.argv[1]), count, size)
    print(
        f"{count} generations of {size} nodes in {time.process_time() - start:.1f} s of processor time, {len(refused)} refused"
    )
    print(*refused[:5], sep="\n")
