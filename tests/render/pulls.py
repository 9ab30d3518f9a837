"""A cluster of 256 GPUs at work, and pull requests of every kind against it: what each golden preview is made from.

One record is built with a real reconciler over pretended nodes; each pull request is a commit on top of its main.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from reconciler.model.units import HOUR, MINUTE, SECOND, Instant
from reconciler.render.plan import Plan
from reconciler.runtime.clone import open_clone
from reconciler.runtime.preview import preview
from tests.engines.fake import FakeCluster
from tests.runtime.lab import CONFIG, Desk, Lab

Files = dict[str, str | None]

FABRIC = """\
apiVersion: gangops/v1
kind: Fabric
metadata: {name: clos}
spec:
  levels:
    - {name: nvlinkDomain, latency: 0.7us, bandwidth: 450GBps}
    - {name: node, latency: 1.2us, bandwidth: 64GBps}
    - {name: rack, latency: 3us, bandwidth: 400Gbps}
    - {name: spineGroup, latency: 5us, bandwidth: 200Gbps}
    - {name: cluster, latency: 8us, bandwidth: 100Gbps}
  spineGroups:
    - {name: sg0, racks: [{name: r01}, {name: r02}]}
    - {name: sg1, racks: [{name: r03}, {name: r04}]}
"""
PROFILE = """\
apiVersion: gangops/v1
kind: NodeProfile
metadata: {name: hgx}
spec:
  gpuType: H100
  gpuMemory: 80GiB
  numa: [{id: 0, cpus: "0-55", memory: 1TiB}, {id: 1, cpus: "56-111", memory: 1TiB}]
  nvlinkDomains: [{id: 0, gpus: [0, 1, 2, 3, 4, 5, 6, 7]}]
  pcieSwitches:
    - {id: sw0, numa: 0, gpus: [0, 1, 2, 3], nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3]}
    - {id: sw1, numa: 1, gpus: [4, 5, 6, 7], nics: [mlx5_4, mlx5_5, mlx5_6, mlx5_7]}
  nics:
    - {name: mlx5_0, rail: 0}
    - {name: mlx5_1, rail: 1}
    - {name: mlx5_2, rail: 2}
    - {name: mlx5_3, rail: 3}
    - {name: mlx5_4, rail: 4}
    - {name: mlx5_5, rail: 5}
    - {name: mlx5_6, rail: 6}
    - {name: mlx5_7, rail: 7}
"""
NODES = "---\n".join(
    f"apiVersion: gangops/v1\nkind: NodeSet\nmetadata: {{name: r0{rack + 1}}}\n"
    f'spec: {{nodes: "gpu-[{rack * 8 + 1:03}-{rack * 8 + 8:03}]", profile: hgx, rack: r0{rack + 1}}}\n'
    for rack in range(4)
)
QUEUES = """\
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: nlp}
spec: {parent: root, guaranteed: {H100: 128}, ceiling: {H100: 224}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: vision}
spec: {parent: root, guaranteed: {H100: 64}, ceiling: {H100: 192}}
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
---
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: scavenger}
spec: {value: 0, preempts: never}
"""
POLICY = """\
apiVersion: gangops/v1
kind: Policy
metadata: {name: base}
spec:
  match: {kinds: [Job]}
  validations:
    - expression: object.spec.gpus < 8 || object.spec.gpus % 8 == 0
      messageExpression: "'gpus: ' + string(object.spec.gpus) + ' would strand part of a baseboard'"
      reason: WholeNodes
    - expression: has(object.spec.timeLimit)
      message: Without a time limit nobody behind it can be told a start.
      reason: TimeLimit
      action: Warn
"""
QUEUE_FILE = "cluster-state/queues/tree.yaml"
NODES_FILE = "cluster-state/inventory/nodes.yaml"


def path(job: str) -> str:
    return f"cluster-state/jobs/{job}.yaml"


def text(job: str, gpus: int, *more: str, limit: str = "12h") -> str:
    """The file of a job; `more` are lines of its spec."""
    queue, _, name = job.partition("/")
    lines = [
        "apiVersion: gangops/v1", "kind: Job", f"metadata: {{name: {name}}}", "spec:", f"  queue: {queue}",
        f"  gpus: {gpus}", f"  timeLimit: {limit}", *(f"  {line}" for line in more),
        "  run: {command: [torchrun, train.py]}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def saves(job: str) -> str:
    return f"checkpoint: {{dir: /fs/ckpt/{job.partition('/')[2]}, every: 30m}}"


SCAVENGER, PRODUCTION = "priorityClass: scavenger", "priorityClass: production"
MODEL = "parallelism: {tensor: 8, pipeline: 2, data: 4}"
JOBS: Mapping[str, str] = {
    "nlp/pretrain-13b": text("nlp/pretrain-13b", 64, PRODUCTION, MODEL, saves("nlp/pretrain-13b"), limit="7d"),
    "nlp/eval-3": text("nlp/eval-3", 8, limit="4h"),
    "vision/clip-ft": text("vision/clip-ft", 32, saves("vision/clip-ft"), limit="2d"),
    "vision/segment": text("vision/segment", 8, limit="6h"),
    **{
        f"vision/sweep-{n}": text(f"vision/sweep-{n}", 16, SCAVENGER, saves(f"vision/sweep-{n}")) for n in range(11, 15)
    },
    "vision/dino-l": text("vision/dino-l", 56, "topology: {required: {job: rack}}", saves("vision/dino-l"), limit="3d"),
    "vision/giant": text("vision/giant", 64, "topology: {required: {job: rack}}", limit="1d"),
}
BASE = {
    "cluster-state/cluster.yaml": CONFIG.replace("lab", "h100-east"),
    "cluster-state/fabric/clos.yaml": FABRIC,
    "cluster-state/inventory/hgx.yaml": PROFILE,
    NODES_FILE: NODES,
    QUEUE_FILE: QUEUES,
    "cluster-state/priorities/classes.yaml": CLASSES,
    "policies/base.yaml": POLICY,
    **{path(job): content for job, content in JOBS.items()},
}


@dataclass
class Site:
    """The cluster at work: where its record is, and the time."""

    lab: Lab
    base: str
    now: Instant

    def pull(self, changes: Files) -> str:
        """A commit on top of main, and on no branch of the cluster."""
        files = {p: c for p, c in {**self.lab.files, **changes}.items() if c is not None}
        return self.lab.remote.commit(
            {p: c.encode() for p, c in files.items()}, ref="refs/heads/pull", parent=self.base
        )

    def plan(self, changes: Files) -> Plan:
        """The preview of a pull request, with names of commits that stay."""
        found = preview(open_clone(self.lab.remote.path), self.pull(changes), self.now, base=self.base)
        basis = replace(
            found.basis, base="8f3c2ab" + "0" * 33, head="91bd03e" + "0" * 33, state="c01d9e2" + "0" * 33,
            digest="0d4f" * 16, inputs_digest="1e5a" * 16, package_version="1.0.0",
        )  # fmt: skip
        return replace(found, basis=basis)


def at_work(lab: Lab) -> Site:
    """A cluster that has worked for two hours: its jobs run and saved 14 minutes ago, one waits for a rack."""
    lab.files = dict(BASE)
    lab.begin()
    cluster = FakeCluster(lab.clock)
    desk: Desk = lab.desk(cluster=cluster)
    desk.settle()
    lab.clock.advance(2 * HOUR)
    for job in ("nlp/pretrain-13b", "vision/clip-ft", "vision/sweep-11", "vision/sweep-12", "vision/sweep-13"):
        if cluster.running(job):
            cluster.checkpoint(job)
    lab.clock.advance(6 * MINUTE)
    desk.settle()
    lab.clock.advance(8 * MINUTE)
    base = lab.remote.tip("refs/heads/main")
    assert base is not None
    return Site(lab, base, Instant(lab.clock.now() // SECOND * SECOND))


# --- the pull requests ---


def _new(job: str, gpus: int, *more: str, limit: str = "12h") -> Files:
    return {path(job): text(job, gpus, *more, limit=limit)}


def _edited(job: str, *more: str, gpus: int = 0, limit: str = "") -> Files:
    """A job of the cluster with lines added, or another size or limit."""
    content = JOBS[job]
    lines = content.splitlines()
    size = int(lines[5].split()[1])
    kept = [line.strip() for line in lines[7:-1]]
    return {path(job): text(job, gpus or size, *kept, *more, limit=limit or lines[6].split()[1])}


def _run(job: str, run: str) -> Files:
    return {path(job): JOBS[job].replace("  run: {command: [torchrun, train.py]}", f"  run: {run}")}


PULLS: dict[str, Callable[[], Files]] = {
    "new-job": lambda: _new("nlp/llama7b-sft", 8, saves("nlp/llama7b-sft")),
    "new-job-reclaims": lambda: _new(
        "nlp/llama7b-sft", 32, saves("nlp/llama7b-sft"), MODEL.replace("data: 4", "data: 2")
    ),
    "priority-raised": lambda: {path("vision/sweep-12"): JOBS["vision/sweep-12"].replace("scavenger", "production")},
    "quota-cut": lambda: {
        QUEUE_FILE: QUEUES.replace("guaranteed: {H100: 128}", "guaranteed: {H100: 64}").replace("192", "96")
    },
    "node-cordoned": lambda: {
        NODES_FILE: NODES.replace(
            "profile: hgx, rack: r02", "profile: hgx, rack: r02, overrides: {gpu-009: {cordoned: fan}}"
        )
    },
    "rack-removed": lambda: {NODES_FILE: "---\n".join(NODES.split("---\n")[:3])},
    "mass-removal": lambda: {**{path(job): None for job in JOBS}, "cluster-state/jobs/.gitkeep": ""},
    "invalid-file": lambda: {
        path("nlp/llama7b-sft"): text("nlp/llama7b-sft", 16)
        .replace("queue: nlp", "queue: nlq")
        .replace("16", "sixteen")
    },
    "invalid-cluster": lambda: {QUEUE_FILE: QUEUES.replace("parent: root", "parent: rot")},
    "denied-by-policy": lambda: _new("nlp/llama7b-sft", 12),
    "preemption-chain": lambda: _new("nlp/pretrain-70b", 56, PRODUCTION, saves("nlp/pretrain-70b"), limit="7d"),
    "nothing-changes": lambda: {path("nlp/eval-3"): f"# only a remark\n{JOBS['nlp/eval-3']}"},
    "ten-thousand-jobs": lambda: {
        path(f"nlp/task-{n:05}"): text(f"nlp/task-{n:05}", 8, limit="30m") for n in range(10_000)
    },
    "sweep": lambda: _new("nlp/sweep", 1, "array: {count: 200, maxParallel: 100}", limit="30m"),
    "replaced": lambda: _run("vision/clip-ft", "{command: [torchrun, train2.py], env: {WANDB_PROJECT: clip}}"),
    "cancelled": lambda: {path("vision/segment"): None},
    "suspended": lambda: _edited("vision/clip-ft", "suspend: true"),
    "limit-raised": lambda: _edited("vision/clip-ft", limit="7d"),
    "never-fits": lambda: _new("nlp/moe", 72, "topology: {required: {job: rack}}"),
    "waits-for-another": lambda: _new("nlp/eval-4", 8, "after: [{job: eval-3, condition: Succeeded}]"),
    "new-queue": lambda: {
        QUEUE_FILE: f"{QUEUES}---\napiVersion: gangops/v1\nkind: Queue\nmetadata: {{name: speech}}\n"
        "spec: {parent: root, guaranteed: {H100: 32}}\n",
        path("speech/whisper"): text("speech/whisper", 16),
    },
    "hostile-text": lambda: {
        "policies/base.yaml": POLICY.replace(
            "Without a time limit nobody behind it can be told a start.",
            '"@everyone <img src=x onerror=alert(1)> | `rm -rf` ::error::x ``` https://evil.example #1"',
        ),
        path("nlp/odd"): text("nlp/odd", 8).replace("  timeLimit: 12h\n", ""),
    },
    "no-cluster": lambda: dict.fromkeys(BASE) | {"README.md": "gone"},
}
