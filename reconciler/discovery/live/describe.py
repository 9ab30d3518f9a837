"""How is a machine written down as a NodeProfile and a NodeSet, and what can it not tell of itself?

Nothing is made up: where several NICs are equally near to a GPU none is given to it, unless the switches at their
other ends tell them apart. Trees only; writing and checking them is for documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.discovery.live.machine import GpuFact, Machine, NicFact, islands_of
from reconciler.documents.loader import Tree
from reconciler.documents.quantities import print_bandwidth, print_bytes
from reconciler.documents.schema.base import API_VERSION, NAME_PATTERN
from reconciler.model.gpu_models import as_reported

UNKNOWN_RACK: Final = "unknown"
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The two documents, None each when they cannot be written, and remarks for the person who commits them."""

    profile: dict[str, Tree] | None
    node_set: dict[str, Tree] | None
    remarks: tuple[str, ...]


def describe(
    machine: Machine, *, profile: str = "", rack: str = "", racks: Mapping[str, Iterable[str]] | None = None
) -> Description:
    """The machine as documents. `racks` are the switches of each declared rack, to find the one it is cabled to."""
    remarks = list(machine.unseen)
    if not machine.gpus:
        return Description(profile=None, node_set=None, remarks=(*remarks, "no GPUs: there is no NodeProfile to write"))
    models = sorted({gpu.model for gpu in machine.gpus})
    if len(models) > 1:
        remarks.append(f"GPUs of several models ({', '.join(models)}): a profile has one; the first GPU's is written")
    spec = _spec(machine, remarks)
    name = profile or _name(f"{spec['gpuType']}x{len(machine.gpus)}")
    place = rack or _rack(machine, racks or {}, remarks)
    node = machine.host.lower()
    if not re.match(NAME_PATTERN, node):
        remarks.append(f"{machine.host!r} is no name for a node; write the one its agent has")
        node = "unknown"
    set_spec: dict[str, Tree] = {"nodes": node, "profile": name, "rack": place}
    if machine.clique:
        set_spec["domains"] = {"nvlinkDomain": _clique_name(machine.clique)}
        remarks.append(
            f"NVLink goes beyond this node: clique {machine.clique}, a domain of level nvlinkDomain above node"
        )
    return Description(
        profile=_document("NodeProfile", name, spec),
        node_set=_document("NodeSet", _name(f"{place}-{node}"), set_spec),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _document(kind: str, name: str, spec: dict[str, Tree]) -> dict[str, Tree]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-") or "unknown"


def _clique_name(clique: str) -> str:
    cluster, _, number = clique.rpartition(".")
    return f"clique-{cluster[:8]}-{number}"


def _spec(machine: Machine, remarks: list[str]) -> dict[str, Tree]:
    gpus = machine.gpus
    memory = min(gpu.memory for gpu in gpus)
    spec: dict[str, Tree] = {
        "gpuType": as_reported(gpus[0].model),
        "gpuMemory": print_bytes(round(memory / _GIB) * _GIB or memory),
        "gpus": len(gpus),
        "numa": _numa(machine, remarks),
    }
    domains = _domains(gpus)
    if domains:
        spec["nvlinkDomains"] = domains
    pairs = _pairs(machine, remarks)
    spec["pcieSwitches"] = _switches(machine, pairs)
    nics = _rails(pairs, remarks)
    if nics:
        spec["nics"] = nics
    for device, width, most in ((nic.name, nic.width, nic.most) for nic in machine.nics):
        if 0 < width < most:
            remarks.append(f"{device} trained at x{width} of x{most}")
    return spec


def _numa(machine: Machine, remarks: list[str]) -> list[Tree]:
    without = [node.id for node in machine.numa if not node.cpus]
    if without:
        remarks.append(f"NUMA nodes {', '.join(map(str, without))} have no CPUs and are left out")
    return [
        {"id": node.id, "cpus": node.cpus, "memory": print_bytes(node.memory // _GIB * _GIB or node.memory)}
        for node in machine.numa
        if node.cpus
    ]


def _domains(gpus: tuple[GpuFact, ...]) -> list[Tree]:
    found: list[Tree] = []
    for number, island in enumerate(islands_of(gpus)):
        links = min((gpu.links for gpu in island if gpu.links > 0), default=0)
        domain: dict[str, Tree] = {
            "id": number,
            "gpus": [gpu.index for gpu in island],
            "fabric": "nvswitch" if all(gpu.switched for gpu in island) else "direct",
        }
        found.append(domain | ({"links": links} if links else {}))
    return found


# --- which NIC serves which GPU ---------------------------------------------------------------------------------------


def _pairs(machine: Machine, remarks: list[str]) -> dict[int, NicFact]:
    """The NIC of each GPU that has one of its own: the only nearest one, or told apart by the switch it is cabled to."""
    near = {gpu.index: _nearest(gpu, machine.nics) for gpu in machine.gpus}
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, nics in near.items():
        if nics:
            groups.setdefault(tuple(nic.name for nic in nics), []).append(index)
    found: dict[int, NicFact] = {}
    for names, members in groups.items():
        nics = near[members[0]]
        switches = [nic.switch for nic in nics]
        if len(nics) == 1:
            found[members[0]] = nics[0]
            if len(members) > 1:
                rest = ", ".join(map(str, members[1:]))
                remarks.append(f"{names[0]} is nearest to GPU {members[0]} and to {rest}; a profile gives it to one")
        elif len(nics) == len(members) and all(switches) and len(set(switches)) == len(switches):
            ordered = sorted(nics, key=lambda nic: (_natural(nic.switch), nic.name))
            found |= dict(zip(members, ordered, strict=True))
        else:
            gpus = ", ".join(map(str, members))
            remarks.append(f"{', '.join(names)} are equally near to GPU {gpus}: none is given to any")
    return found


def _nearest(gpu: GpuFact, nics: tuple[NicFact, ...]) -> list[NicFact]:
    """The NICs that share most of the PCI path; without any shared bridge none is near."""
    shared = {nic.name: _shared(gpu.bridges, nic.bridges) for nic in nics}
    most = max(shared.values(), default=0)
    return [nic for nic in nics if most and shared[nic.name] == most]


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _switches(machine: Machine, pairs: Mapping[int, NicFact]) -> list[Tree]:
    """GPUs below one bridge with the NICs of some of them first, so that the i-th NIC serves the i-th GPU.

    The nearest NICs that are nobody's own are shared.
    """
    taken = {nic.name for nic in pairs.values()}
    groups: dict[tuple[str, ...], list[GpuFact]] = {}
    for gpu in machine.gpus:
        near = _nearest(gpu, machine.nics)
        above = gpu.bridges[: _shared(gpu.bridges, near[0].bridges)] if near else gpu.bridges[:1]
        groups.setdefault((str(gpu.numa), *(above or (f"GPU {gpu.index}",))), []).append(gpu)
    known = {node.id for node in machine.numa if node.cpus}
    found: list[Tree] = []
    for members in groups.values():
        members.sort(key=lambda gpu: (gpu.index not in pairs, gpu.index))
        nics = [pairs[gpu.index].name for gpu in members if gpu.index in pairs]
        entry: dict[str, Tree] = {
            "id": f"sw{len(found)}",
            "numa": members[0].numa if members[0].numa in known else min(known, default=0),
            "gpus": [gpu.index for gpu in members],
        }
        names = dict.fromkeys(nic.name for gpu in members for nic in _nearest(gpu, machine.nics))
        shared: list[Tree] = [name for name in names if name not in taken]
        entry |= {"nics": [*nics]} if nics else {}
        found.append(entry | ({"sharedNics": shared} if shared else {}))
    return found


def _rails(pairs: Mapping[int, NicFact], remarks: list[str]) -> list[Tree]:
    """The NICs that serve GPUs. A rail is a switch name by order; without names, the order of the GPUs, which is said."""
    served = [pairs[index] for index in sorted(pairs)]
    switches = sorted({nic.switch for nic in served}, key=_natural)
    proven = bool(served) and all(nic.switch for nic in served)
    if served and not proven:
        remarks.append("rails are numbered in the order of the GPUs they serve: check them against the cabling")
    found: list[Tree] = []
    for position, nic in enumerate(served):
        entry: dict[str, Tree] = {"name": nic.name, "rail": switches.index(nic.switch) if proven else position}
        entry |= {"speed": print_bandwidth(nic.speed)} if nic.speed and nic.up else {}
        found.append(entry | {"kind": nic.kind})
        if not nic.up:
            remarks.append(f"{nic.name} is down")
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts rail10 after rail9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _rack(machine: Machine, racks: Mapping[str, Iterable[str]], remarks: list[str]) -> str:
    """The one declared rack whose switches are those heard; `unknown` and a remark otherwise."""
    heard = {nic.switch for nic in machine.nics if nic.switch}
    fitting = sorted(name for name, switches in racks.items() if heard & set(switches))
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        remarks.append(f"its switches are of several racks ({', '.join(fitting)}): name the rack with --rack")
    else:
        told = f" (switches heard: {', '.join(sorted(heard, key=_natural))})" if heard else ""
        remarks.append(f"its rack is not known{told}: name it with --rack")
    return UNKNOWN_RACK
