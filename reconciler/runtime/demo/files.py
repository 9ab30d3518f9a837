"""The demo's desired state: a cluster of a few racks and the jobs of its acts, as the YAML a person would write."""

from __future__ import annotations

NODES_A_RACK = 4
GPU_TYPE = "H100-SXM5-80GB"

CLUSTER = """\
apiVersion: gangops/v1
kind: ClusterConfig
metadata: {name: demo}
spec:
  repository: {desiredBranch: main, stateBranch: allocations, pollInterval: 1s, publishInterval: 0s}
  engine: agents
  scheduling:
    cycleInterval: 1s
    order: priorityThenAge
    preemptSameQueue: lowerPriority
    minRuntime: 0s
    cooldown: 0s
  agents:
    reportInterval: 1s
    unreachableAfter: 3s
    lostAfter: 5s
    gangStartTimeout: 60s
"""

_FABRIC = """\
apiVersion: gangops/v1
kind: Fabric
metadata: {name: hall}
spec:
  levels:
    - {name: nvlinkDomain, latency: 0.7us, bandwidth: 450GBps}
    - {name: node, latency: 1.2us, bandwidth: 64GBps}
    - {name: rack, latency: 3us, bandwidth: 400Gbps}
    - {name: spineGroup, latency: 5us, bandwidth: 400Gbps, oversubscription: 2}
    - {name: cluster, latency: 8us, bandwidth: 400Gbps, oversubscription: 4}
  spineGroups:
"""

PROFILE = f"""\
apiVersion: gangops/v1
kind: NodeProfile
metadata: {{name: hgx-h100}}
spec:
  gpuType: {GPU_TYPE}
  gpuMemory: 80GiB
  numa:
    - {{id: 0, cpus: "0-55", memory: 1TiB}}
    - {{id: 1, cpus: "56-111", memory: 1TiB}}
  nvlinkDomains: [{{id: 0, gpus: [0, 1, 2, 3, 4, 5, 6, 7], fabric: nvswitch, links: 18}}]
  pcieSwitches:
    - {{id: sw0, numa: 0, gpus: [0, 1, 2, 3], nics: [mlx5_0, mlx5_1, mlx5_2, mlx5_3]}}
    - {{id: sw1, numa: 1, gpus: [4, 5, 6, 7], nics: [mlx5_4, mlx5_5, mlx5_6, mlx5_7]}}
  nics:
""" + "".join(f"    - {{name: mlx5_{rail}, rail: {rail}, speed: 400Gbps, kind: roce}}\n" for rail in range(8))

QUEUES = f"""\
apiVersion: gangops/v1
kind: Queue
metadata: {{name: root}}
spec: {{}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {{name: nlp}}
spec: {{parent: root, guaranteed: {{{GPU_TYPE}: 64}}, ceiling: {{{GPU_TYPE}: 96}}}}
---
apiVersion: gangops/v1
kind: Queue
metadata: {{name: vision}}
spec: {{parent: root, guaranteed: {{{GPU_TYPE}: 64}}, ceiling: {{{GPU_TYPE}: 96}}}}
"""

CLASSES = """\
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: production}
spec: {value: 1000, preempts: lower, preemptible: false}
---
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: research}
spec: {value: 500, default: true, preempts: lower, preemptible: true}
---
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: interactive}
spec: {value: 300, preempts: never, preemptible: true}
"""


def node_names(racks: int) -> tuple[str, ...]:
    """Every node of that many racks."""
    return tuple(f"gpu-{number:03d}" for number in range(1, NODES_A_RACK * racks + 1))


def _fabric(racks: int) -> str:
    """Two racks a spine group."""
    groups = []
    for group in range((racks + 1) // 2):
        names = ", ".join(f"{{name: r0{rack}}}" for rack in range(2 * group + 1, min(2 * group + 2, racks) + 1))
        groups.append(f"    - {{name: sg{group}, racks: [{names}]}}\n")
    return _FABRIC + "".join(groups)


def _node_set(rack: int) -> str:
    first = NODES_A_RACK * (rack - 1) + 1
    return f"""\
apiVersion: gangops/v1
kind: NodeSet
metadata: {{name: r0{rack}}}
spec:
  nodes: "gpu-[{first:03d}-{first + NODES_A_RACK - 1:03d}]"
  profile: hgx-h100
  fabric: hall
  rack: r0{rack}
"""


def job(
    queue: str,
    name: str,
    *,
    gpus: int,
    command: list[str],
    checkpoints: str,
    priority: str = "research",
    launch: str = "perNode",
    rack: bool = False,
    lease: bool = False,
) -> str:
    """A job as a person would write it. `rack` requires one rack; `lease` fences a lost node by a 5 s lease."""
    lines = [
        "apiVersion: gangops/v1",
        "kind: Job",
        f"metadata: {{name: {name}}}",
        "spec:",
        f"  queue: {queue}",
        f"  priorityClass: {priority}",
        f"  gpus: {gpus}",
        "  timeLimit: 1h",
    ]
    if rack:
        lines.append("  topology: {required: {job: rack}}")
    lines += [
        "  checkpoint:",
        f"    dir: {checkpoints}/{name}",
        "    every: 1m",
        "    completeMarker: latest",
        "    onPreempt: {signal: SIGUSR1, to: leader, grace: 10s}",
    ]
    if lease:
        lines.append("  restart: {fence: lease, lease: 5s}")
    words = ", ".join(f'"{word}"' for word in command)
    lines += [
        "  run:",
        f"    launch: {launch}",
        f"    command: [{words}]",
    ]
    lines.append(f"  health: {{heartbeatFile: {checkpoints}/{name}/heartbeat}}")
    return "\n".join(lines) + "\n"


def cluster_files(racks: int) -> dict[str, str]:
    """Everything but the jobs, by path."""
    base = "cluster-state"
    files = {
        f"{base}/cluster.yaml": CLUSTER,
        f"{base}/fabric/hall.yaml": _fabric(racks),
        f"{base}/inventory/hgx-h100.yaml": PROFILE,
        f"{base}/queues/tree.yaml": QUEUES,
        f"{base}/priorities/classes.yaml": CLASSES,
        f"{base}/jobs/README.md": "One file a job: `jobs/<queue>/<name>.yaml`.\n",
    }
    files.update({f"{base}/inventory/r0{rack}.yaml": _node_set(rack) for rack in range(1, racks + 1)})
    return files
