"""Machines as declared and as seen, for the tests of drift: eight good GPUs and NICs, and what is changed about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reconciler.model.inventory import GpuSlot, Inventory, Level, Node, NodeShape, NumaNode
from reconciler.model.observed import GpuReport, NicReport, NodeCondition, NodeObservation, NumaReport
from reconciler.model.units import BitsPerSecond, Bytes, DomainName, GpuType, Instant, LevelName, Nanoseconds, NodeName

GIB = 1 << 30
H100 = GpuType("H100")


def shape(*islands: int, links: int = 18) -> NodeShape:
    slots = tuple(GpuSlot(index=i, numa=i // 4, nic=f"mlx5_{i}", rail=i, links=links) for i in range(8))
    numa = tuple(NumaNode(id=n, cpus=f"{n * 8}-{n * 8 + 7}", cpu_count=8, memory=Bytes(512 * GIB)) for n in range(2))
    return NodeShape(
        profile="hgx", gpu_type=H100, gpu_memory=Bytes(80 * GIB), gpus=slots, nvlink=islands or (0xFF,), numa=numa
    )


def node(name: str = "n1", *, of: NodeShape | None = None, path: tuple[str, ...] = ("sg0", "r1")) -> Node:
    return Node(name=NodeName(name), shape=of or shape(), path=tuple(DomainName(p) for p in path), labels={})


def gpus(**changes: Any) -> tuple[GpuReport, ...]:
    """Eight good GPUs; `g5={"nvlinks": 17}` changes one, `g5=None` takes it away."""
    found = []
    for index in range(8):
        change = changes.get(f"g{index}", {})
        if change is not None:
            whole = GpuReport(
                index=index, uuid=f"GPU-{index}", memory=Bytes(81559 << 20), nvlinks=18, pcie_width=16, pcie_most=16,
                numa=index // 4,
            )  # fmt: skip
            found.append(replace(whole, **change))
    return tuple(found)


def nics(**changes: Any) -> tuple[NicReport, ...]:
    found = []
    for index in range(8):
        change = changes.get(f"n{index}", {})
        if change is not None:
            whole = NicReport(
                name=f"mlx5_{index}", up=True, speed=BitsPerSecond(400_000_000_000), pcie_width=16, pcie_most=16,
                numa=index // 4, switch=f"tor-{index}",
            )  # fmt: skip
            found.append(replace(whole, **change))
    return tuple(found)


def seen(name: str = "n1", **changes: Any) -> NodeObservation:
    good = NodeObservation(
        node=NodeName(name), boot_id="b", address="10.0.0.1", condition=NodeCondition.READY, condition_since=Instant(1),
        gpu_type=H100, gpus=gpus(), nics=nics(), driver="570.1",
        numa=(NumaReport(id=0, cpus="0-7"), NumaReport(id=1, cpus="8-15")),
    )  # fmt: skip
    return replace(good, **changes)


def inventory(*nodes: Node, above: tuple[str, ...] = ("rack", "spineGroup")) -> Inventory:
    names = ("node", *above, "cluster")
    levels = tuple(
        Level(name=LevelName(name), latency=Nanoseconds(1000), bandwidth=BitsPerSecond(10**11)) for name in names
    )
    return Inventory(levels=levels, nodes=nodes)
