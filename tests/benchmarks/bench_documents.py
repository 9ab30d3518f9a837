"""Loading 10,000 jobs, cold and warm: prints seconds and counts. Not a test: run `python tests/benchmarks/bench_documents.py`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from reconciler.documents.cache import ParseCache, restored
from reconciler.documents.desired import LoadedDesired, SourceFile, load_desired, source_file
from reconciler.documents.scaffold import scaffold
from reconciler.model.units import CommitId

T = TypeVar("T")
JOBS = 10_000
JOB = """\
# yaml-language-server: $schema=../../../schemas/job.schema.json
apiVersion: gangops/v1
kind: Job
metadata: {{name: job-{number}, labels: {{team: nlp, project: atlas}}}}
spec:
  queue: research
  priorityClass: normal
  owner: someone@example.org
  gpuType: H100-SXM5-80GB
  gpus: 16
  parallelism: {{tensor: 8, data: 2}}
  topology:
    required: {{tensor: nvlinkDomain, job: spineGroup}}
    preferred: {{job: rack}}
  communication:
    tensor: {{collective: allreduce, bytesPerStep: 512MiB}}
    data: {{collective: allreduce, bytesPerStep: 17GiB, overlap: 0.7}}
  resources: {{cpusPerGpu: 12, memoryPerGpu: 180GiB}}
  timeLimit: 1d12h
  checkpoint:
    dir: /fs/ckpt/job-{number}
    every: 20m
    onPreempt: {{signal: SIGUSR1, to: leader, grace: 5m}}
  preemption: {{policy: checkpoint, maxPerDay: 2}}
  restart: {{onFailure: 3, backoff: 1m}}
  run:
    workingDir: /workspace/atlas
    command: [torchrun, train.py, --config, "conf/{number}.yaml"]
    env: {{NCCL_DEBUG: WARN, TORCH_NCCL_ASYNC_ERROR_HANDLING: "1"}}
    mounts:
      - {{source: /fs/datasets/c4, target: /data, readOnly: true}}
"""


def timed(what: str, act: Callable[[], T]) -> T:
    start, cpu = time.perf_counter(), time.process_time()
    result = act()
    print(f"{what:45} {time.perf_counter() - start:7.3f} s  (cpu {time.process_time() - cpu:.3f} s)")
    return result


def main() -> None:
    files = [source_file(path, content) for path, content in scaffold().items()]
    files += [
        source_file(f"cluster-state/jobs/research/job-{n}.yaml", JOB.format(number=n).encode()) for n in range(JOBS)
    ]
    print(f"{len(files)} files, {sum(len(f.content) for f in files)} bytes")

    def load(tree: list[SourceFile], cache: ParseCache) -> LoadedDesired:
        return load_desired(tree, CommitId("0" * 40), cache=cache)

    cache = ParseCache()
    cold = timed("cold: parse, check, lint, convert", lambda: load(files, cache))
    warm = timed("warm: same process", lambda: load(files, cache))
    changed = [*files[:-1], source_file(files[-1].path, files[-1].content + b"# touched\n")]
    timed("warm: one job changed", lambda: load(changed, cache))
    written = timed("cache to bytes", cache.dump)
    print(f"{'cache size':45} {len(written):9d} bytes")
    second = timed("cache from bytes", lambda: restored(written))
    again = timed("warm: another process", lambda: load(files, second))
    counts = [len(r.desired.jobs) if r.desired else 0 for r in (cold, warm, again)]
    print(f"jobs {counts}, equal: {cold.desired == warm.desired == again.desired}, diagnostics {len(cold.diagnostics)}")


if __name__ == "__main__":
    main()
