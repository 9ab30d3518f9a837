"""How long does reading and writing 10,000 job files of 30 lines take, cold, on one core?

Run: ./dev run python tests/benchmarks/bench_loader.py [FILES]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

from reconciler.documents.canonical import to_yaml
from reconciler.documents.loader import bulk, load
from reconciler.documents.positions import events_of

T = TypeVar("T")

JOB = """\
# yaml-language-server: $schema=../../../schemas/job.schema.json
apiVersion: gangops/v1
kind: Job
metadata:
  name: job-{n}
  labels: {{team: nlp, project: atlas}}
spec:
  queue: team-{queue}
  priorityClass: production
  owner: oncall@example.org
  gpuType: H100-SXM5-80GB
  gpus: 256
  parallelism: {{tensor: 8, pipeline: 4, data: 8}}
  rankOrder: [tensor, pipeline, data]
  topology:
    required:
      tensor: nvlinkDomain
      pipeline: rack
    preferred:
      job: spineGroup
  timeLimit: 7d
  checkpoint:
    dir: /fs/ckpt/job-{n}
    every: 20m
    onPreempt: {{signal: SIGUSR1, to: leader, grace: 5m}}
  preemption: {{policy: checkpoint, minRuntime: 1h, maxPerDay: 2}}
  restart: {{onFailure: 3, backoff: 1m}}
  run:
    command: [python, train.py, --config, conf/{n}.yaml]
    env: {{NCCL_DEBUG: WARN, TORCH_NCCL_ASYNC_ERROR_HANDLING: "1"}}
"""


def main() -> None:
    """Print one line a measurement: what, seconds of processor time, microseconds a file."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    files = [JOB.format(n=n, queue=n % 200).encode() for n in range(count)]
    with bulk():
        events = measured("parser events alone", count, lambda: [count_events(content) for content in files])
        loaded = measured("load", count, lambda: [load(content, "job.yaml") for content in files])
        values = [document.value for one in loaded for document in one.documents]
        written = measured("to_yaml", count, lambda: [to_yaml(value) for value in values])
        sample = [one.documents[0] for one in loaded[:1000]]
        path = ("spec", "run", "env", "NCCL_DEBUG")
        measured("place_of", len(sample), lambda: [document.place_of(path) for document in sample])
    print(f"{count} files, {sum(map(len, files))} bytes, {sum(events)} events, {sum(map(len, written))} bytes written")


def count_events(content: bytes) -> int:
    next_event, count = events_of(content), 0
    while next_event() is not None:
        count += 1
    return count


def measured(what: str, count: int, work: Callable[[], list[T]]) -> list[T]:
    started = time.process_time()
    result = work()
    spent = time.process_time() - started
    print(f"{what:22} {spent:6.2f} s  {spent / count * 1e6:7.1f} us each")
    return result


if __name__ == "__main__":
    main()
