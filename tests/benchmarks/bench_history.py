"""How fast are questions to a long record? `python -m tests.benchmarks.bench_history [COMMITS] [FOLDER]`.

A synthetic stream of gangs over 200 nodes in the record's own file format, written through one fast-import stream;
then the questions of `gangops history` and `usage`, on the fresh clone and after `gangops gc`. With FOLDER the
repository is made there once and kept.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from reconciler.documents.record import SUMMARY, Summary, changed_jobs, summary_bytes
from reconciler.model.allocation import Allocation, JobRecord, Metrics, Placement, RankPlace
from reconciler.model.lifecycle import Cause, JobState, Outcome, Phase
from reconciler.model.reasons import Reason, ReasonCode
from reconciler.model.units import SECOND, CommitId, Digest, GpuSeconds, Instant, JobKey, LevelName, NodeName, QueueName
from reconciler.runtime.audit.answers import Question, answers, holders_at
from reconciler.runtime.audit.history import by_path
from reconciler.runtime.audit.index import index_file, indexed
from reconciler.runtime.audit.scenes import scenes
from reconciler.runtime.audit.usage import usage
from reconciler.runtime.generation import trailers
from reconciler.store.runner import Git
from reconciler.store.walk import pack, write_commit_graph
from tests.runtime.lab import BASE, job_text
from tests.store.world import MAIN, STATE, git, new_repository

NODES = 200
BEGIN = 1_767_225_600 * SECOND
EVERY = 300 * SECOND
KEPT = 500
"""Finished jobs whose record is still there."""
QUEUES = ("nlp", "vision", "speech", "pretrain")
INVENTORY = "".join(
    f"apiVersion: gangops/v1\nkind: NodeSet\nmetadata: {{name: r{n:02}}}\n"
    f'spec: {{nodes: "gpu-[{n * 10 + 1:03}-{n * 10 + 10:03}]", profile: small, rack: r{n:02}}}\n---\n'
    for n in range(NODES // 10)
).removesuffix("---\n")
FABRIC = BASE["cluster-state/fabric/clos.yaml"].replace(
    "racks: [{name: r01}, {name: r02}]", f"racks: [{', '.join(f'{{name: r{n:02}}}' for n in range(NODES // 10))}]"
)
TREE = "".join(
    f"---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {{name: {name}}}\nspec: {{parent: root}}\n"
    for name in QUEUES[1:]
)


@dataclass
class Stream:
    """A made-up cluster that places, starts, runs and ends gangs; each step is one generation."""

    rng: random.Random = field(default_factory=lambda: random.Random(6))
    free: list[int] = field(default_factory=lambda: list(range(NODES)))
    jobs: dict[JobKey, JobRecord] = field(default_factory=dict)
    live: deque[JobKey] = field(default_factory=deque)
    over: deque[JobKey] = field(default_factory=deque)
    made: int = 0

    def step(self, now: Instant) -> dict[JobKey, JobRecord | None]:
        """The records that change now."""
        changed: dict[JobKey, JobRecord | None] = {}
        for key in list(self.live)[-3:]:
            record = self.jobs[key]
            if record.state is JobState.STARTING:
                further = replace(record, phase=Phase.RUN)
                changed[key] = further if record.phase is Phase.PREPARE else replace(
                    further, state=JobState.RUNNING, started=now, since=now, reason=Reason(code=ReasonCode.RUNNING, numbers=(("ranks", len(_ranks(record))),))
                )  # fmt: skip
        want = self.rng.choice((1, 1, 2, 4, 8))
        if len(self.free) < want:
            changed |= self._end(now)
        elif not changed or self.rng.random() < 0.3:
            changed |= self._place(want, now)
        self.jobs.update({key: record for key, record in changed.items() if record is not None})
        if len(self.over) > KEPT:
            gone = self.over.popleft()
            del self.jobs[gone]
            changed[gone] = None
        return changed

    def _place(self, want: int, now: Instant) -> dict[JobKey, JobRecord | None]:
        self.made += 1
        key = JobKey(f"{self.rng.choice(QUEUES)}/job-{self.made:05}")
        nodes, self.free = self.free[:want], self.free[want:]
        ranks = tuple(
            RankPlace(rank=i * 8 + g, node=NodeName(f"gpu-{n + 1:03}"), local_rank=g, gpu=g, numa=g // 4, nic=f"mlx5_{g}", rail=g)
            for i, n in enumerate(nodes) for g in range(8)
        )  # fmt: skip
        self.live.append(key)
        return {
            key: JobRecord(
                job=key, queue=QueueName(key.partition("/")[0]), digest=Digest(f"{self.made:064x}"), state=JobState.STARTING,
                since=now, submitted=now, attempt=1, first_attempt=1, phase=Phase.PREPARE, ports=(29500,),
                reason=Reason(code=ReasonCode.PLACED, numbers=(("gpus", len(ranks)), ("level", "rack"))),
                placement=Placement(ranks=ranks, level=LevelName("rack"), domain="r01"),
            )
        }  # fmt: skip

    def _end(self, now: Instant) -> dict[JobKey, JobRecord | None]:
        key = self.live.popleft()
        record = self.jobs[key]
        if record.state is JobState.RUNNING and self.rng.random() < 0.2:
            self.live.appendleft(key)
            return {
                key: replace(
                    record,
                    state=JobState.STOPPING,
                    phase=Phase.STOP,
                    cause=Cause.PREEMPTED,
                    since=now,
                    lost_work=GpuSeconds(record.lost_work + 600 * len(_ranks(record))),
                )
            }
        self.free += [int(node[4:]) - 1 for node in record.placement.nodes] if record.placement else []
        self.over.append(key)
        return {
            key: replace(
                record,
                state=JobState.FINISHED,
                phase=None,
                placement=None,
                outcome=Outcome.SUCCEEDED,
                since=now,
                reason=Reason(code=ReasonCode.SUCCEEDED),
            )
        }


def _ranks(record: JobRecord) -> tuple[RankPlace, ...]:
    return record.placement.ranks if record.placement else ()


def generate(folder: Path, count: int) -> None:
    """A bare repository with `count` generations, and a desired commit for about every fourth of them."""
    remote = new_repository(folder)
    with subprocess.Popen(
        ["git", "fast-import", "--quiet", "--date-format=raw"], cwd=folder, stdin=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        for part in _stream(count):
            child.stdin.write(part)
    assert child.returncode == 0
    git(remote.path, "repack", "-adq")


def _blob(path: str, content: bytes) -> bytes:
    return f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n"


def _file(path: str, content: bytes | None) -> bytes:
    return _blob(path, content) if content is not None else f"D {path}\n".encode()


def _stream(count: int) -> Iterator[bytes]:
    base = {**BASE, "cluster-state/inventory/nodes.yaml": INVENTORY, "cluster-state/fabric/clos.yaml": FABRIC}
    base["cluster-state/queues/tree.yaml"] += TREE
    yield f"commit {MAIN}\nmark :1\ncommitter Ada <ada@lab> {BEGIN // SECOND} +0000\ndata 5\nbegin".encode()
    yield b"".join(_blob(path, text.encode()) for path, text in base.items())
    stream, desired, gone = Stream(), 1, 2
    graft = b"".join(_blob(f"desired/{path}", text.encode()) for path, text in base.items())
    before = Allocation(
        generation=0, epoch=1, cluster_id="lab", decided_at=Instant(BEGIN), desired_commit=CommitId("0" * 40)
    )
    for number in range(count):
        now = Instant(BEGIN + number * EVERY)
        known = set(stream.jobs)
        changed = stream.step(now) if number else {}
        fresh = sorted(set(stream.jobs) - known)
        if fresh:
            gone += 1
            told = f"Merge pull request #{gone} from {'ada' if gone % 3 else 'bob'}/{fresh[0]}"
            yield f"commit {MAIN}\nmark :{gone}\ncommitter {'Ada <ada@lab>' if gone % 3 else 'Bob <bob@lab>'} {now // SECOND} +0000\ndata {len(told)}\n{told}\nfrom :{desired}\n".encode()
            files: list[tuple[str, bytes | None]] = [
                (
                    f"cluster-state/jobs/{key}.yaml",
                    job_text(key.partition("/")[2]).replace("queue: nlp", f"queue: {key.partition('/')[0]}").encode(),
                )
                for key in fresh
            ]
            files += [(f"cluster-state/jobs/{key}.yaml", None) for key in sorted(known - set(stream.jobs))]
            yield b"".join(_file(path, content) for path, content in files)
            graft += b"".join(_file(f"desired/{path}", content) for path, content in files)
            desired = gone
        held = sum(record.gpus_held for record in stream.jobs.values()) if number % 50 == 0 else before.metrics.held
        after = replace(
            before,
            generation=number,
            decided_at=now,
            jobs=stream.jobs,
            metrics=Metrics(declared=NODES * 8, capacity=NODES * 8, held=held, idle=NODES * 8 - held),
        )
        gone += 1
        yield from _commit(number, gone, desired, {k: before.jobs.get(k) for k in changed}, changed, after, now)
        yield graft
        graft = b""
        before = replace(after, jobs=dict(stream.jobs) if changed else before.jobs)


def _commit(
    number: int,
    mark: int,
    desired: int,
    old: dict[JobKey, JobRecord | None],
    new: dict[JobKey, JobRecord | None],
    after: Allocation,
    now: Instant,
) -> Iterator[bytes]:
    summary = Summary(
        generation=number, epoch=1, cluster_id="lab", decision_id=f"{number:032x}", decided_at=now, decision_version=1,
        package_version="0", desired_commit=CommitId(f"{desired:040x}"), inputs_digest=f"{number:064x}", previous_commit="",
        trigger="observed", metrics=after.metrics,
    )  # fmt: skip
    told = f"Go on with {len(new)} jobs\n\n" + "\n".join(f"{k}: {v}" for k, v in trailers(summary).items()) + "\n"
    yield f"commit {STATE}\nmark :{mark}\ncommitter gangops <gangops@lab> {now // SECOND} +0000\ndata {len(told)}\n{told}".encode()
    yield f"from :{mark_of(number, mark)}\nmerge :{desired}\n".encode() if number else b""
    one = replace(after, jobs={k: v for k, v in old.items() if v is not None})
    two = replace(after, jobs={k: v for k, v in new.items() if v is not None})
    for path, content in changed_jobs(one, two).items():
        yield _blob(path, content) if content is not None else f"D {path}\n".encode()
    yield _blob(SUMMARY, summary_bytes(summary))
    _MARKS[number] = mark


_MARKS: dict[int, int] = {}


def mark_of(number: int, _mark: int) -> int:
    """The mark of the generation before."""
    return _MARKS[number - 1]


def timed(name: str, run: Callable[[], object]) -> None:
    """Prints how long it took."""
    start = time.perf_counter()
    result = run()
    print(f"{name:<62} {time.perf_counter() - start:8.2f} s   {result}", flush=True)


def main(count: int, folder: Path) -> None:
    """Generate, ask, print."""
    repository = folder / "record.git"
    if not repository.exists():
        timed(f"generate {count} generations", lambda: generate(repository, count))
    access = Git(folder=repository, bare=True, protocols=frozenset())
    graph = repository / "objects/info/commit-graph"
    graph.unlink(missing_ok=True)
    index_file(access).unlink(missing_ok=True)
    tip = git(repository, "rev-parse", STATE).decode().strip()
    late = git(repository, "ls-tree", "-r", "--name-only", STATE, "allocation/jobs/nlp/").decode().split()[-1]
    job = late.removeprefix("allocation/jobs/").removesuffix(".yaml")
    for state in ("fresh clone", "after gc"):
        timed(f"{state}: a job's first line", lambda: next(iter(by_path(access, tip, job))).generation)
        timed(f"{state}: a job's whole history", lambda: len(list(by_path(access, tip, job))))
        timed(
            f"{state}: whole history of the oldest job", lambda: len(list(by_path(access, tip, "nlp/job-00001"))) or "-"
        )
        if state == "fresh clone":
            timed("gc: pack", lambda: pack(access))
            timed("gc: commit-graph with changed-path filters", lambda: write_commit_graph(access))
    timed("index: build once", lambda: len(indexed(access, tip).events["commit"]))
    print(f"index: {index_file(access).stat().st_size / 1e6:.1f} MB")
    index = indexed(access, tip)
    middle = Instant(BEGIN + count // 2 * EVERY)
    timed("index: load", lambda: len(indexed(access, tip).ids))
    timed(
        "who held the GPUs of a node at T (warm, load included)",
        lambda: len(holders_at(indexed(access, tip), middle, Question(node="gpu-017"))),
    )
    timed("history of a node", lambda: sum(1 for _ in answers(index, Question(node="gpu-017"))))
    timed("history of a person", lambda: sum(1 for _ in answers(index, Question(person="bob"))))
    timed("usage by queue, whole record", lambda: len(usage(index, scenes(access, index), by="queue").rows))


if __name__ == "__main__":
    commits = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    if len(sys.argv) > 2:
        Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
        main(commits, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory(prefix="gangops-bench-") as made:
            main(commits, Path(made))
