"""NodeProfile: what a kind of node looks like inside. NodeSet: which nodes are such a one, and where they stand."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from reconciler.documents.schema.base import (
    NOTHING,
    AbsolutePath,
    Bandwidth,
    CpuList,
    Document,
    GpuTypeName,
    LabelKey,
    LevelName,
    Line,
    Listed,
    Name,
    NodeList,
    Size,
    Strict,
    refuse,
)

GpuIndex: TypeAlias = Annotated[int, Field(ge=0, le=63)]
GpuList: TypeAlias = Annotated[Listed[GpuIndex], Field(min_length=1, max_length=64)]
DeviceName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}$")]
Reason: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]


class Numa(Strict):
    """One NUMA node of the host."""

    id: Annotated[int, Field(ge=0, le=255)]
    """As Linux numbers it."""
    cpus: CpuList
    """Its CPUs as Linux lists them."""
    memory: Size
    """Its memory."""


class NvlinkDomain(Strict):
    """GPUs of one node that reach each other over NVLink at full speed."""

    id: Annotated[int, Field(ge=0, le=63)]
    """Its number inside the node."""
    gpus: GpuList
    """Indices of its GPUs."""
    fabric: Literal["nvswitch", "direct", "xgmi", "none"] = "nvswitch"
    """How they are connected."""
    links: Annotated[int, Field(ge=0, le=64)] = 0
    """NVLinks of each GPU."""


class PcieSwitch(Strict):
    """What hangs under one PCIe switch; the i-th NIC serves the i-th GPU."""

    id: DeviceName
    """Any name, unique in the profile."""
    numa: Annotated[int, Field(ge=0, le=255)]
    """The NUMA node it is attached to."""
    gpus: Listed[GpuIndex] = ()
    """GPUs below it."""
    nics: Listed[DeviceName] = ()
    """NICs below it, each the own NIC of one GPU."""
    shared_nics: Annotated[Listed[DeviceName], Field(max_length=64)] = ()
    """NICs below it that are equally near to all its GPUs: the rail of none."""


class Nic(Strict):
    """One network port for the GPUs."""

    name: DeviceName
    """As the RDMA stack names it."""
    rail: Annotated[int, Field(ge=0, le=63)]
    """Which plane of top-of-rack switches it is cabled to."""
    speed: Bandwidth = 0
    """Its line rate."""
    kind: Literal["roce", "infiniband", "ethernet", "efa"] = "roce"
    """What it speaks."""


class Reserved(Strict):
    """Kept for the operating system and the agent."""

    cpus: CpuList = ()
    """CPUs that jobs never get."""
    memory: Size = 0
    """Memory that jobs never get, taken from the NUMA nodes in equal parts."""


class ProfileSpec(Strict):
    """One node, from GPUs outwards."""

    gpu_type: GpuTypeName
    """What jobs and quotas call these GPUs."""
    gpu_models: Annotated[Listed[Line], Field(max_length=16)] = ()
    """What the driver calls them, as `nvidia-smi -L` prints it; needed only for a name that is not commonly known."""
    gpu_memory: Size
    """Memory of one GPU."""
    gpus: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many there are; needed only when `nvlinkDomains` and `pcieSwitches` do not name them all."""
    numa: Annotated[Listed[Numa], Field(min_length=1, max_length=256)]
    """The NUMA nodes."""
    nvlink_domains: Annotated[Listed[NvlinkDomain], Field(max_length=64)] = ()
    """Which GPUs share NVLink. A GPU in none stands alone."""
    pcie_switches: Annotated[Listed[PcieSwitch], Field(max_length=256)] = ()
    """What is near what."""
    nics: Annotated[Listed[Nic], Field(max_length=256)] = ()
    """Network ports and their rails."""
    nccl_topo_file: AbsolutePath | None = None
    """A topology file for NCCL that lies on every node: what ranks find as NCCL_TOPO_FILE, unless the job sets it."""
    reserved: Reserved = Reserved.model_construct()
    """What jobs never get."""


class NodeProfile(Document):
    """What every node of one kind looks like inside."""

    kind: Literal["NodeProfile"]
    """The kind of document."""
    spec: ProfileSpec
    """GPUs, NUMA, NVLink, PCIe and NICs."""


class Taint(Strict):
    """Keeps jobs away that do not tolerate it."""

    key: LabelKey
    """What a job's `tolerations` must name."""
    value: Line = ""
    """Narrows it: tolerated as `key` or as `key=value`."""
    effect: Literal["NoSchedule", "PreferNoSchedule"]
    """NoSchedule: never; PreferNoSchedule: only when nothing else serves. Running work stays."""


class GpuOverride(Strict):
    """What is different about one GPU of one node."""

    state: Literal["failed", "ok"]
    """failed: it has no capacity."""
    reason: Reason = "declared failed"
    """For people."""
    ticket: Line = ""
    """For people."""


class NicOverride(Strict):
    """What is different about one NIC of one node."""

    state: Literal["down", "up"]
    """down: its GPU has no NIC and no rail."""
    reason: Line = ""
    """For people."""


def _gpu_key(written: object) -> int:
    if type(written) is not str or not written.isascii() or not written.isdigit() or int(written) > 63:
        refuse("UnknownGpu", "Expected the index of a GPU as key, such as 5.")
    return int(written)


GpuKey: TypeAlias = Annotated[
    int, PlainValidator(_gpu_key), WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,2}$"})
]


class NodeOverride(Strict):
    """What is different about one node of the set."""

    gpus: dict[GpuKey, GpuOverride] = NOTHING
    """By index."""
    nics: dict[DeviceName, NicOverride] = NOTHING
    """By name."""
    taints: Listed[Taint] = ()
    """Added to those of the set."""
    labels: dict[LabelKey, Line] = NOTHING
    """Added to those of the set."""
    cordoned: Reason | None = None
    """Why it takes no new work; running work stays."""
    dead: bool = False
    """True: a person vouches that no process of it is left, so what it held may be given again."""


class NodeSetSpec(Strict):
    """Nodes that look alike, side by side."""

    nodes: NodeList
    """In Slurm's hostlist syntax, quoted."""
    profile: Name
    """The NodeProfile they are."""
    fabric: Name | None = None
    """The Fabric they are cabled to; needed only when there are several."""
    rack: Name
    """The rack they stand in."""
    domains: dict[LevelName, Name] = NOTHING
    """Their domain at levels of your own, such as an NVL72 block: {nvlinkDomain: block-3}."""
    labels: dict[LabelKey, Line] = NOTHING
    """For `nodeLabels` of jobs."""
    taints: Listed[Taint] = ()
    """For all of them."""
    cordoned: Reason | None = None
    """Why none of them takes new work."""
    dead: bool = False
    """True: a person vouches that no process of any of them is left."""
    engine: Literal["agents", "slurm"] | None = None
    """Who starts and stops work here; absent: as the cluster says."""
    overrides: dict[Line, NodeOverride] = NOTHING
    """By node, or by hostlist in quotes."""


class NodeSet(Document):
    """Which nodes are of one profile, and where they stand."""

    kind: Literal["NodeSet"]
    """The kind of document."""
    spec: NodeSetSpec
    """Nodes, profile and place."""
