"""Which profiles and node sets do Slurm's nodes amount to, placed in the racks that its switches make?

Slurm knows counts, sockets and memory, but nothing of NVLink, NICs or the memory of a GPU: usual values stand in for
those, said so in a comment, to be corrected by `gangops inventory adopt` from what the nodes themselves report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.documents.hostlist import fold
from reconciler.documents.loader import Tree
from reconciler.documents.schema.base import API_VERSION
from reconciler.imports.slurm.tables import name_of

ONLY_RACK: Final = "rack-1"
_GIB: Final = {
    "v100": 32, "a100": 80, "a30": 24, "a40": 48, "l4": 24, "l40": 48, "l40s": 48, "h100": 80, "h200": 141,
    "gh200": 96, "b100": 192, "b200": 180, "gb200": 186, "b300": 288, "mi250": 128, "mi300x": 192, "mi325x": 256,
}  # fmt: skip
_UNKNOWN_GIB: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node as far as Slurm knows it. `gpu_type` is what jobs will call its GPUs; memory in MiB."""

    name: str
    gpu_type: str
    gpus: int
    cpus: int
    memory: int
    sockets: int
    addressable: bool = False
    """Its slots have types of their own, so that GPUs can be pinned."""


def profiles_of(machines: Iterable[Machine]) -> dict[tuple[object, ...], tuple[str, dict[str, Tree]]]:
    """A NodeProfile and its name for each kind of machine, by what makes the kind."""
    found: dict[tuple[object, ...], tuple[str, dict[str, Tree]]] = {}
    taken: set[str] = set()
    for machine in machines:
        kind = kind_of(machine)
        if kind in found:
            continue
        base = name_of(f"{machine.gpus}x-{machine.gpu_type}") or "gpu-node"
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        found[kind] = name, _profile(name, machine)
    return found


def kind_of(machine: Machine) -> tuple[object, ...]:
    """What two machines of one profile have in common."""
    return machine.gpu_type, machine.gpus, machine.cpus, machine.memory, machine.sockets


def gpu_memory_is_known(gpu_type: str) -> bool:
    """Whether the memory written for this type is that of a known card."""
    return _card(gpu_type) in _GIB


def node_sets_of(
    machines: Iterable[Machine], racks: Mapping[str, Iterable[str]], blocks: Mapping[str, Iterable[str]]
) -> list[dict[str, Tree]]:
    """A NodeSet for each profile in each rack (and NVLink block), nodes folded to hostlists."""
    rack_of = {node: rack for rack, nodes in racks.items() for node in nodes}
    block_of = {node: block for block, nodes in blocks.items() for node in nodes}
    machines = list(machines)
    profiles = profiles_of(machines)
    sets: dict[tuple[str, str, str], list[str]] = {}
    for machine in machines:
        place = rack_of.get(machine.name, ONLY_RACK), block_of.get(machine.name, "")
        sets.setdefault((*place, profiles[kind_of(machine)][0]), []).append(machine.name)
    return [_node_set(rack, block, profile, nodes) for (rack, block, profile), nodes in sorted(sets.items())]


def _node_set(rack: str, block: str, profile: str, nodes: list[str]) -> dict[str, Tree]:
    spec: dict[str, Tree] = {"nodes": fold(nodes), "profile": profile, "rack": rack}
    if block:
        spec["domains"] = {"nvlinkDomain": block}
    name = name_of("-".join(part for part in (rack, block, profile) if part))
    return _document("NodeSet", name, spec)


def _profile(name: str, machine: Machine) -> dict[str, Tree]:
    sockets = max(1, min(machine.sockets, machine.cpus or 1))
    share = max(1, machine.cpus // sockets)
    numa: list[Tree] = [
        {
            "id": socket,
            "cpus": f"{socket * share}-{(socket + 1) * share - 1}" if share > 1 else str(socket),
            "memory": f"{max(1, machine.memory // sockets)}MiB",
        }
        for socket in range(sockets)
    ]
    spec: dict[str, Tree] = {
        "gpuType": machine.gpu_type,
        "gpuMemory": f"{_GIB.get(_card(machine.gpu_type), _UNKNOWN_GIB)}GiB",
        "gpus": machine.gpus,
        "numa": numa,
        "nvlinkDomains": [{"id": 0, "gpus": list(range(machine.gpus))}],
    }
    if machine.gpus >= sockets > 1:
        each = machine.gpus // sockets
        spec["pcieSwitches"] = [
            {"id": f"socket{socket}", "numa": socket, "gpus": _gpus_of(socket, each, machine.gpus, sockets)}
            for socket in range(sockets)
        ]
    return _document("NodeProfile", name, spec)


def _gpus_of(socket: int, each: int, gpus: int, sockets: int) -> list[Tree]:
    end = gpus if socket == sockets - 1 else (socket + 1) * each
    return list(range(socket * each, end))


def _card(gpu_type: str) -> str:
    """`NVIDIA-H100-SXM5` is an h100."""
    words = gpu_type.lower().replace("_", "-").split("-")
    return next((word for word in words if word in _GIB), gpu_type.lower())


def _document(kind: str, name: str, spec: dict[str, Tree]) -> dict[str, Tree]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
