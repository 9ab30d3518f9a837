"""What is this machine made of? CPUs, NUMA nodes, GPUs, NICs, how they hang together, and what could not be seen.

The kernel is asked for what it knows best (NUMA, the PCI tree, ports), NVML for GPUs, `nvidia-smi` where NVML is
not to be had. Values as found; what they mean for a profile is `describe`'s.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reconciler.discovery import lldp, nvidia_topo
from reconciler.discovery.groups import joined
from reconciler.discovery.live.source import Source
from reconciler.discovery.parsed import Status, shortened
from reconciler.documents.cpulist import parse_cpus
from reconciler.model.counting import counted

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) Gb/sec")
_ACCELERATOR: Final = ("0x0300", "0x0302", "0x1200")  # display, 3D, processing accelerator
_NVIDIA: Final = "0x10de"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaFact:
    """One NUMA node: its CPUs (Linux list, "" for none) and memory in bytes."""

    id: int
    cpus: str
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFact:
    """One GPU. `links` counts NVLinks that are up (-1 unknown), `peers` those to each other GPU of the node.

    `bridges` are the PCI devices above it, outermost first; `pci` its own address.
    """

    index: int
    uuid: str
    model: str
    memory: int
    pci: str
    numa: int = -1
    bridges: tuple[str, ...] = ()
    links: int = -1
    switched: bool = False
    peers: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFact:
    """One port. `kind` as documents have it, `speed` in bits a second (0 unknown), `switch` by LLDP ("" unheard)."""

    name: str
    interfaces: tuple[str, ...]
    up: bool
    speed: int
    kind: str
    pci: str
    numa: int
    bridges: tuple[str, ...]
    width: int = 0
    most: int = 0
    switch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything found, by index or name. `unseen` says in words what was not, and why that matters."""

    host: str
    numa: tuple[NumaFact, ...]
    gpus: tuple[GpuFact, ...]
    nics: tuple[NicFact, ...]
    driver: str
    clique: str
    unseen: tuple[str, ...]


def look(source: Source) -> Machine:
    """The machine behind a source. Never raises for what it finds there."""
    unseen: list[str] = []
    numa = _numa(source, unseen)
    nics = _with_switches(_nics(source), source, unseen)
    gpus, driver, clique = _gpus(source, unseen)
    host = source.output("hostname").strip().partition(".")[0]
    if not nics:
        unseen.append("no network port of a PCI device was found")
    return Machine(
        host=host or "unknown", numa=numa, gpus=gpus, nics=nics, driver=driver, clique=clique, unseen=tuple(unseen)
    )


# --- the kernel -------------------------------------------------------------------------------------------------------


def _numa(source: Source, unseen: list[str]) -> tuple[NumaFact, ...]:
    base = "sys/devices/system/node"
    found = []
    for name in source.names(base):
        if re.fullmatch(r"node[0-9]{1,4}", name):
            total = re.search(r"MemTotal:\s+([0-9]{1,15}) kB", source.text(f"{base}/{name}/meminfo"))
            cpus = source.text(f"{base}/{name}/cpulist")
            if cpus and not _cpus(cpus):
                unseen.append(f"the CPUs of NUMA node {int(name[4:])} are no list: {shortened(cpus, 40)}")
                cpus = ""
            found.append(NumaFact(id=int(name[4:]), cpus=cpus, memory=int(total[1]) << 10 if total else 0))
    if not found:
        unseen.append("the kernel shows no NUMA nodes: all CPUs are taken as one")
        memory = 0 if source.captured else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found.append(NumaFact(id=0, cpus=source.text("sys/devices/system/cpu/online"), memory=memory))
    if not source.captured:
        mine, there = len(os.sched_getaffinity(0)), sum(len(_cpus(node.cpus)) for node in found)
        if mine < there:
            unseen.append(f"this process may use {mine} of {there} CPUs: perhaps it runs in a container")
    return tuple(sorted(found, key=lambda node: node.id))


def _cpus(text: str) -> tuple[int, ...]:
    try:
        return parse_cpus(text) if text else ()
    except ValueError:
        return ()


def _nics(source: Source) -> tuple[NicFact, ...]:
    """RDMA devices, or without any the network cards; virtual functions are left out."""
    rdma = [f"sys/class/infiniband/{name}" for name in source.names("sys/class/infiniband")]
    cards = rdma or [f"sys/class/net/{name}" for name in source.names("sys/class/net")]
    return tuple(_nic(source, card, is_rdma=bool(rdma)) for card in cards if _is_physical(source, card))


def _is_physical(source: Source, card: str) -> bool:
    return bool(source.resolved(f"{card}/device")) and not source.resolved(f"{card}/device/physfn")


def _nic(source: Source, card: str, *, is_rdma: bool) -> NicFact:
    name = card.rpartition("/")[2]
    device = source.resolved(f"{card}/device")
    path = [part for part in device.split("/") if _ADDRESS.fullmatch(part)]
    if is_rdma:
        interfaces = tuple(source.names(f"{card}/device/net"))
        up = "ACTIVE" in source.text(f"{card}/ports/1/state")
        rate = _RATE.match(source.text(f"{card}/ports/1/rate"))
        speed = int(float(rate[1]) * 1000) * 1_000_000 if rate else 0
        kind = "infiniband" if source.text(f"{card}/ports/1/link_layer") == "InfiniBand" else "roce"
    else:
        interfaces, up, kind = (name,), source.text(f"{card}/operstate") == "up", "ethernet"
        speed = source.number(f"{card}/speed", 0) * 1_000_000
    pci = f"sys/bus/pci/devices/{path[-1]}" if path else device
    return NicFact(
        name=name,
        interfaces=interfaces,
        up=up,
        speed=speed,
        kind="efa" if "efa" in name and is_rdma else kind,
        pci=path[-1] if path else "",
        numa=_numa_of(source, pci),
        bridges=tuple(path[:-1]),
        width=_lanes(source, f"{pci}/current_link_width"),
        most=_lanes(source, f"{pci}/max_link_width"),
    )


def _numa_of(source: Source, device: str) -> int:
    return source.number(f"{device}/numa_node", -1)


def _lanes(source: Source, path: str) -> int:
    lanes = source.number(path, 0)
    return lanes if lanes <= 32 else 0  # 255 is the kernel's "unknown"


def _with_switches(nics: tuple[NicFact, ...], source: Source, unseen: list[str]) -> tuple[NicFact, ...]:
    """Each port with the switch its interface hears."""
    heard = switches_heard(source.output("lldpctl"))
    found = tuple(replace(n, switch=next((heard[i] for i in n.interfaces if i in heard), "")) for n in nics)
    if nics and not any(nic.switch for nic in found):
        unseen.append("no switch was heard by LLDP: rack and rails are not proven")
    return found


def switches_heard(text: str) -> dict[str, str]:
    """The name of the switch at each interface, from `lldpctl -f json0`; empty for anything else."""
    neighbours = lldp.parse(text).content.get("neighbors") if text else None
    found: dict[str, str] = {}
    for interface, what in neighbours.items() if isinstance(neighbours, dict) else ():
        switch = what.get("switch") if isinstance(what, dict) else None
        if isinstance(switch, str):
            found[interface] = switch
    return found


# --- GPUs -------------------------------------------------------------------------------------------------------------


def _gpus(source: Source, unseen: list[str]) -> tuple[tuple[GpuFact, ...], str, str]:
    """GPUs by index, driver version and clique; by NVML, else by what nvidia-smi prints."""
    from reconciler.discovery.live import nvml  # which needs the values above

    answer = None if source.captured else nvml.ask()
    answer = answer or _by_text(source, unseen)
    on_bus = list(_accelerators(source))
    if answer is None:
        if on_bus:
            unseen.append(f"{counted(len(on_bus), 'GPU')} on the PCI bus without a driver that answers")
        return (), "", ""
    gpus, driver, clique = answer
    lost = [address for address in on_bus if address not in {gpu.pci for gpu in gpus}]
    if lost:
        unseen.append(f"the driver does not answer for the GPU at {', '.join(lost)}")
    return tuple(_placed(source, gpu) for gpu in gpus), driver, clique


def _accelerators(source: Source) -> Iterator[str]:
    for address in source.names("sys/bus/pci/devices"):
        base = f"sys/bus/pci/devices/{address}"
        if source.text(f"{base}/vendor") == _NVIDIA and source.text(f"{base}/class")[:6] in _ACCELERATOR:
            yield address


def _placed(source: Source, gpu: GpuFact) -> GpuFact:
    """The GPU with its NUMA node and the bridges above it, as the kernel has them."""
    device = f"sys/bus/pci/devices/{gpu.pci}"
    path = [part for part in source.resolved(device).split("/") if _ADDRESS.fullmatch(part)]
    return replace(gpu, numa=_numa_of(source, device), bridges=tuple(path[:-1]))


def pci_address(text: str) -> str:
    """The kernel's spelling (`0000:1b:00.0`) of an address as NVIDIA's tools print it."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}{colon}{rest}"


def _by_text(source: Source, unseen: list[str]) -> tuple[tuple[GpuFact, ...], str, str] | None:
    rows = [[cell.strip() for cell in line.split(",")] for line in source.output("nvidia-smi-gpus").splitlines()]
    rows = [row for row in rows if len(row) == 6 and re.fullmatch(r"[0-9]{1,4}", row[0])]
    if not rows:
        return None
    up, listed = nvlinks(source.output("nvidia-smi-nvlink"))
    peers, partial = _peers(source.output("nvidia-smi-topo"))
    if partial:
        unseen.append(partial)
    down = {uuid: listed[uuid] - up[uuid] for uuid in up if up[uuid] < listed[uuid]}
    gpus = tuple(
        GpuFact(
            index=int(index),
            uuid=uuid,
            model=model,
            memory=int(memory) << 20 if re.fullmatch(r"[0-9]{1,9}", memory) else 0,
            pci=pci_address(bus),
            links=up.get(uuid, -1),
            peers=peers.get(int(index), {}),
            switched=_is_switched(peers.get(int(index), {}), up.get(uuid, 0)),
        )
        for index, uuid, model, memory, bus, _ in sorted(rows, key=lambda row: int(row[0]))
    )
    unseen += [
        f"GPU {gpu.index} has {counted(down[gpu.uuid], 'NVLink')} down: the profile describes it as it is now"
        for gpu in gpus
        if gpu.uuid in down and any(other.links > gpu.links for other in gpus)
    ]
    return gpus, rows[0][5], clique_of(source.output("nvidia-smi-query"))


def nvlinks(text: str) -> tuple[dict[str, int], dict[str, int]]:
    """Links that are up, and links listed, by GPU UUID, from `nvidia-smi nvlink --status`."""
    up: dict[str, int] = {}
    listed: dict[str, int] = {}
    uuid = ""
    for line in text.splitlines():
        head = re.match(r"GPU [0-9]+: .*\(UUID: ([^)\s]+)\)", line.strip())
        link = re.match(r"Link [0-9]+: (.*)", line.strip())
        if head:
            uuid = head[1]
        elif link and uuid:
            listed[uuid] = listed.get(uuid, 0) + 1
            up[uuid] = up.get(uuid, 0) + ("inactive" not in link[1].lower())
    return up, listed


def _peers(text: str) -> tuple[dict[int, dict[int, int]], str]:
    """NVLinks between each pair of GPUs from `nvidia-smi topo -m`, and what is wrong with it in words."""
    if not text:
        return {}, "nvidia-smi topo -m printed nothing: which GPUs share NVLink is not known"
    parsed = nvidia_topo.parse(text)
    if parsed.status is Status.ERROR:
        return {}, f"nvidia-smi topo -m cannot be read: {parsed.errors[0].reason}"
    counts = parsed.content["nvlink_count"]
    found: dict[int, dict[int, int]] = {}
    for pair, count in counts.items() if isinstance(counts, dict) else ():
        one, other = (int(name.removeprefix("GPU")) for name in pair.split("-"))
        assert isinstance(count, int)
        found.setdefault(one, {})[other] = found.setdefault(other, {})[one] = count
    return found, ""


def _is_switched(peers: Mapping[int, int], links: int) -> bool:
    """Every link leads to every peer: only a switch makes that so, once there is more than one peer."""
    return len(peers) > 1 and len(set(peers.values())) == 1 and links > 0 and links == next(iter(peers.values()))


def clique_of(text: str) -> str:
    """The multi-node NVLink domain, from `nvidia-smi -q`: cluster UUID and clique; "" outside of any."""
    cluster = re.search(r"ClusterUUID\s*: ([0-9a-fA-F-]{36})\b", text)
    clique = re.search(r"CliqueId\s*: ([0-9]+)\b", text)
    if not cluster or not clique or not cluster[1].strip("0-"):
        return ""
    return f"{cluster[1].lower()}.{clique[1]}"


def islands_of(gpus: Iterable[GpuFact]) -> list[list[GpuFact]]:
    """GPUs that reach each other over NVLink, each group whole; those that stand alone are in none."""
    by_index = {gpu.index: gpu for gpu in gpus}
    pairs = [(a, b) for a, b in itertools.combinations(by_index, 2) if by_index[a].peers.get(b, 0) > 0]
    return [[by_index[index] for index in group] for group in joined(list(by_index), pairs)]
