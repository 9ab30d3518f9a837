"""What does a new cluster repository start with? The smallest set of documents that is valid, and says why.

Two racks of two eight-GPU nodes and one job: every file is meant to be edited. `gangops init` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from reconciler.documents.schema.files import schema_files


def scaffold(cluster: str = "my-cluster") -> Mapping[str, bytes]:
    """Path from the root of the repository to content, sorted. `cluster` is a valid name for a document."""
    files = {path: text.replace("{cluster}", cluster).encode() for path, text in _FILES.items()}
    files |= {f"schemas/{name}": content for name, content in schema_files().items()}
    return dict(sorted(files.items()))


_FILES: Final[Mapping[str, str]] = {
    "cluster-state/cluster.yaml": """\
# yaml-language-server: $schema=../schemas/clusterconfig.schema.json
# How this cluster decides. Every field has a default: see schemas/clusterconfig.schema.json, or complete in an editor.
apiVersion: gangops/v1
kind: ClusterConfig
metadata: {name: {cluster}}
spec: {}
""",
    "cluster-state/fabric/network.yaml": """\
# yaml-language-server: $schema=../../schemas/fabric.schema.json
# What is near what. Levels from the inside out; latency and bandwidth are for each GPU in one direction.
apiVersion: gangops/v1
kind: Fabric
metadata: {name: network}
spec:
  levels:
    - {name: nvlinkDomain, latency: 0.7us, bandwidth: 450GBps}
    - {name: node, latency: 1.2us, bandwidth: 64GBps}
    - {name: rack, latency: 3us, bandwidth: 400Gbps}
    - {name: spineGroup, latency: 5us, bandwidth: 400Gbps, oversubscription: 2}
    - {name: cluster, latency: 8us, bandwidth: 400Gbps, oversubscription: 4}
  spineGroups:
    - name: sg0
      racks: [{name: r01}, {name: r02}]
""",
    "cluster-state/inventory/profile.yaml": """\
# yaml-language-server: $schema=../../schemas/nodeprofile.schema.json
# What a node looks like inside. `gangops discover`, run on a node, prints this for its hardware.
apiVersion: gangops/v1
kind: NodeProfile
metadata: {name: hgx-h100}
spec:
  gpuType: H100-SXM5-80GB
  gpuMemory: 80GiB
  numa:
    - {id: 0, cpus: "0-55,112-167", memory: 1TiB}
    - {id: 1, cpus: "56-111,168-223", memory: 1TiB}
  nvlinkDomains: [{id: 0, gpus: [0, 1, 2, 3, 4, 5, 6, 7]}]
  pcieSwitches:                      # the i-th NIC of a switch serves its i-th GPU
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
""",
    "cluster-state/inventory/racks.yaml": """\
# yaml-language-server: $schema=../../schemas/nodeset.schema.json
# Which nodes stand where. A node list is in Slurm's syntax, in quotes.
apiVersion: gangops/v1
kind: NodeSet
metadata: {name: r01}
spec: {nodes: "gpu-[01-02]", profile: hgx-h100, rack: r01}
---
apiVersion: gangops/v1
kind: NodeSet
metadata: {name: r02}
spec: {nodes: "gpu-[03-04]", profile: hgx-h100, rack: r02}
""",
    "cluster-state/queues/tree.yaml": """\
# yaml-language-server: $schema=../../schemas/queue.schema.json
# Who owns what: a guarantee is its own, what it leaves idle is lent.
apiVersion: gangops/v1
kind: Queue
metadata: {name: root}
spec: {}
---
apiVersion: gangops/v1
kind: Queue
metadata: {name: research}
spec:
  parent: root
  guaranteed: {H100-SXM5-80GB: 16}
  # runAs: {user: svc-research}      # the account of its ranks; needed on all but simulated nodes
""",
    "cluster-state/priorities/classes.yaml": """\
# yaml-language-server: $schema=../../schemas/priorityclass.schema.json
# Inside a queue, higher goes first and may displace lower.
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: normal}
spec: {value: 500, default: true}
---
apiVersion: gangops/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 1000}
""",
    "cluster-state/jobs/research/hello.yaml": """\
# yaml-language-server: $schema=../../../schemas/job.schema.json
# A job is at jobs/QUEUE/NAME.yaml. This one takes a whole node: all eight GPUs, or none.
apiVersion: gangops/v1
kind: Job
metadata: {name: hello}
spec:
  queue: research
  gpus: 8
  timeLimit: 1h
  run: {command: [python3, -c, "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"]}
""",
}
