"""What the hardware is declared to be: levels, nodes, their GPUs and what hangs beside each GPU.

Levels are data. `Fabric.levels` runs from the inside out and always contains `node` and ends with
`cluster`; a level before `node` lies inside nodes (NVLink islands), one after it groups nodes
(rack, spine group, and for multi-node NVLink an `nvlinkDomain` above node).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.model.units import BitsPerSecond, Bytes, DomainName, GpuType, LevelName, Nanoseconds, NodeName

AGENTS: Final = "agents"
SLURM: Final = "slurm"
"""Engines, as documents name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One locality level and the link model used by the cost of communication across it.

    `bandwidth` is per GPU and direction; `oversubscription` is in thousandths (2:1 is 2000).
    """

    name: LevelName
    latency: Nanoseconds
    bandwidth: BitsPerSecond
    oversubscription: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlot:
    """One GPU position of a profile: index, NUMA node (-1 unknown), its own NIC ("" none) and rail (-1 none).

    `near` are all NICs below its PCIe switch, in the order of the profile: with a NIC of its own it comes among them,
    and without one they tie. `links` is how many NVLinks it has, 0 when the profile does not say.
    """

    index: int
    numa: int
    nic: str
    rail: int
    links: int = 0
    near: tuple[str, ...] = ()

    def without(self, nics: Collection[str]) -> GpuSlot:
        """The slot when these NICs cannot be used; the same object when it has none of them."""
        if self.nic not in nics and not any(nic in nics for nic in self.near):
            return self
        near = tuple(nic for nic in self.near if nic not in nics)
        return replace(self, near=near, nic="", rail=-1) if self.nic in nics else replace(self, near=near)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """CPUs (Linux list syntax) and memory of one NUMA node, after what is reserved was taken out."""

    id: int
    cpus: str
    cpu_count: int
    memory: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """A NodeProfile: what every node of it looks like. `nvlink` holds one GPU bit mask for each island.

    `models` are the names its nodes may report for this GPU type, `topo_file` the path of a NCCL topology file on
    each of them ("" none).
    """

    profile: str
    gpu_type: GpuType
    gpu_memory: Bytes
    gpus: tuple[GpuSlot, ...]
    nvlink: tuple[int, ...]
    numa: tuple[NumaNode, ...]
    models: tuple[str, ...] = ()
    topo_file: str = ""

    def goes_by(self, reported: str) -> bool:
        """Whether a node that reports this model has GPUs of this type."""
        return reported == self.gpu_type or reported in self.models

    @property
    def all_gpus(self) -> int:
        """Bit mask of every GPU index."""
        return (1 << len(self.gpus)) - 1

    @property
    def cpu_count(self) -> int:
        return sum(n.cpu_count for n in self.numa)

    @property
    def memory(self) -> Bytes:
        return Bytes(sum(n.memory for n in self.numa))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Keeps jobs away that do not tolerate it. Effects: NoSchedule, PreferNoSchedule."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One declared node: its shape and its domain at each level above node.

    `path` has one domain a level between node and cluster, outermost first: (spine group, rack).
    `failed` is the bit mask of GPUs declared failed. `engine` is who starts and stops work on it.
    """

    name: NodeName
    shape: NodeShape
    path: tuple[DomainName, ...]
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    cordoned: str = ""
    failed: int = 0
    dead: bool = False
    engine: str = AGENTS

    @property
    def rack(self) -> DomainName:
        """The innermost domain above the node; also the folder of its files in the state tree."""
        return self.path[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All declared nodes sorted by name, and the levels that order them.

    `levels` from the inside out; `above_node` names those between node and cluster, outermost
    first, in the order of `Node.path`. `switches` are the top-of-rack switches of each rack that names them.
    """

    levels: tuple[Level, ...]
    nodes: tuple[Node, ...]
    switches: Mapping[DomainName, tuple[str, ...]] = field(default_factory=dict)

    @property
    def above_node(self) -> tuple[LevelName, ...]:
        names = [level.name for level in self.levels]
        return tuple(reversed(names[names.index(LevelName("node")) + 1 : -1]))
