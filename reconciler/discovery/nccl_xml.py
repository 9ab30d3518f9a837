"""What does an NCCL topology file say: GPUs, NICs, who is behind which bridge, who is linked to whom?

Takes dumps (NCCL_TOPO_DUMP_FILE) and static files (NCCL_TOPO_FILE) of NVIDIA and AMD. The XML is read as a stream of
elements with bounded depth, without document types or entities, and no tree is built: nothing here recurses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser

from reconciler.discovery.groups import joined
from reconciler.discovery.parsed import Kind, Notes, Parsed, failure, listed, shortened
from reconciler.documents.cpulist import print_cpus
from reconciler.documents.loader import Tree

_DEEPEST: Final = 128
_MOST_ELEMENTS: Final = 50_000
_MOST_DEVICES: Final = 512  # GPUs, and NICs
_MOST_CPUS: Final = 8192
_FASTEST_MBPS: Final = 10_000_000  # 10 Tb/s: more than any port, so another unit

_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_NIC_CLASS: Final = "0x02"
_NVSWITCH_CLASS: Final = "0x0680"
_INTEGER: Final = re.compile(r"-?[0-9]{1,15}")
_MASK: Final = re.compile(r"(?:0x)?[0-9a-fA-F]{1,2304}|[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{1,8}){1,255}")
_RANK: Final = {"PIX": 1, "PXB": 2, "PHB": 3, "SYS": 4}


@dataclass(slots=True, kw_only=True)
class _Pci:
    """A <pci>, or a <nic> straight below a <cpu>, with what its children say."""

    busid: str | None
    code: str  # its PCI class
    cpu: int  # which <cpu>, by order; -1 outside of any
    numaid: int | None
    path: tuple[str, ...]  # bus ids of the bridges around it, outermost first
    gpu: Mapping[str, str] | None = None
    has_nic: bool = False
    has_pci: bool = False
    links: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    nets: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def is_gpu(self) -> bool:
        return self.gpu is not None or self.code.startswith(_GPU_CLASSES)

    @property
    def is_nic(self) -> bool:
        return not self.is_gpu and (self.has_nic or self.code.startswith(_NIC_CLASS))


class _TooLarge(ValueError):
    """The document is deeper or longer than any machine's."""


class _Elements:
    """Takes the parser's start and end calls and keeps the devices, in document order."""

    def __init__(self) -> None:
        self.system: Mapping[str, str] | None = None
        self.cpus: list[Mapping[str, str]] = []
        self.devices: list[_Pci] = []
        self._open: list[str] = []
        self._around: list[_Pci] = []  # the <pci> elements we are inside of
        self._nic: _Pci | None = None  # the <nic> straight below a <cpu> we are inside of
        self._count = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._count += 1
        if len(self._open) >= _DEEPEST or self._count > _MOST_ELEMENTS:
            raise _TooLarge(f"more than {_MOST_ELEMENTS} elements, or deeper than {_DEEPEST}")
        inner = self._around[-1] if self._around else None
        match tag:
            case "system" if not self._open:
                self.system = attributes
            case "cpu":
                self.cpus.append(attributes)
            case "pci":
                if inner:
                    inner.has_pci = True
                self._around.append(self._device(attributes.get("busid", "").lower() or None, attributes))
            case "nic" if inner:
                inner.has_nic = True
            case "nic":
                self._nic = self._device(None, attributes)
                self._nic.has_nic = True
            case "gpu" if inner:
                inner.gpu = attributes
            case "nvlink" | "xgmi" if inner:
                inner.links.append((tag, attributes))
            case "net" if owner := inner or self._nic:
                owner.nets.append(attributes)
            case _:
                pass
        self._open.append(tag)

    def end(self, tag: str) -> None:
        self._open.pop()
        if tag == "pci":
            self._around.pop()
        elif tag == "nic":
            self._nic = None

    def close(self) -> None:
        """Nothing is left to do at the end."""

    def _device(self, busid: str | None, attributes: Mapping[str, str]) -> _Pci:
        in_cpu = "cpu" in self._open
        numaid = self.cpus[-1].get("numaid", "") if in_cpu else ""
        device = _Pci(
            busid=busid,
            code=attributes.get("class", "").lower(),
            cpu=len(self.cpus) - 1 if in_cpu else -1,
            numaid=int(numaid) if _INTEGER.fullmatch(numaid) else None,
            path=tuple(pci.busid or "" for pci in self._around),
        )
        self.devices.append(device)
        return device


def parse(text: str) -> Parsed:
    """CPUs, GPUs with links, NICs, link domains and each GPU's nearest NICs, in document order."""
    elements = _Elements()
    parser = DefusedXMLParser(target=elements, forbid_dtd=True, forbid_entities=True, forbid_external=True)
    try:
        parser.feed(text.lstrip())
        parser.close()
    except DefusedXmlException:
        return failure(Kind.NCCL_XML, "XML_DTD_FORBIDDEN", "document types and entities are refused")
    except ParseError as error:
        line, column = error.position
        return failure(Kind.NCCL_XML, "XML_NOT_WELL_FORMED", f"line {line}, column {column}: {_cause(error)}")
    except _TooLarge as error:
        return failure(Kind.NCCL_XML, "XML_TOO_LARGE", str(error))
    except (ValueError, LookupError) as error:
        # An encoding declaration that nobody knows.
        return failure(Kind.NCCL_XML, "XML_NOT_WELL_FORMED", shortened(str(error)))
    if elements.system is None:
        return failure(Kind.NCCL_XML, "NOT_NCCL", "the outermost element is not <system>")
    notes = Notes()
    content = _content(elements, elements.system, notes)
    return notes.parsed(Kind.NCCL_XML, {} if notes.errors else content)


def _cause(error: ParseError) -> str:
    return shortened(str(error).partition(":")[0])


def _content(elements: _Elements, system: Mapping[str, str], notes: Notes) -> dict[str, Tree]:
    gpus = [d for d in elements.devices if d.is_gpu]
    nics = [d for d in elements.devices if d.is_nic]
    if not _sound(gpus, nics, notes):
        return {}
    cpus: list[Tree] = [_cpu(attributes, notes) for attributes in elements.cpus]
    if any("affinity" not in attributes for attributes in elements.cpus):
        notes.gap("NO_AFFINITY", "cpu elements have no affinity attribute: their CPUs are unknown")
    shown_gpus: list[Tree] = [_gpu(gpu, notes) for gpu in gpus]
    _report_gpus(gpus, notes)
    fast = [net.get("name", "?") for nic in nics for net in nic.nets if _is_implausible(net.get("speed", ""))]
    if fast:
        notes.warn("IMPLAUSIBLE_NET_SPEED", f"more than {_FASTEST_MBPS} Mb/s on {listed(fast)}: another unit?")
    known = {gpu.busid for gpu in gpus}
    targets = [
        (gpu.busid or "", link.get("target", "").lower(), link.get("tclass", "").lower())
        for gpu in gpus
        for _, link in gpu.links
    ]
    dangling = sorted({t for _, t, code in targets if not code.startswith(_NVSWITCH_CLASS) and t not in known})
    if dangling:
        notes.gap("DANGLING_LINKS", f"links lead to {listed(dangling)}, which the file does not have")
    return {
        "system_version": _integer(system, "version", notes),
        "cpus": cpus,
        "gpu_count": len(gpus),
        "gpus": shown_gpus,
        "nvswitches": [*_nvswitches(elements.devices, targets)],
        "link_domains": _link_domains(gpus, targets),
        "nic_count": len(nics),
        "nics": [_nic(nic, notes) for nic in nics],
        "nearest_nics": _nearest(gpus, nics),
        "unclassified_pci": _unclassified(elements.devices, notes),
        "dangling_link_targets": [*dangling],
    }


def _sound(gpus: list[_Pci], nics: list[_Pci], notes: Notes) -> bool:
    """Every GPU has a bus id of its own; a NIC that has one shares it with nobody."""
    if max(len(gpus), len(nics)) > _MOST_DEVICES:
        notes.fail("TOO_MANY_DEVICES", f"more than {_MOST_DEVICES} GPUs or NICs")
    if any(gpu.busid is None for gpu in gpus):
        notes.fail("NO_BUSID", "a GPU has no bus id")
    ids = [d.busid for d in [*gpus, *nics] if d.busid]
    twice = {busid: None for busid in ids if ids.count(busid) > 1} if not notes.errors else {}
    if twice:
        notes.fail("DUPLICATE_BUSID", f"{listed(twice)} belongs to more than one device")
    return not notes.errors


def _integer(attributes: Mapping[str, str], name: str, notes: Notes) -> int | None:
    text = attributes.get(name)
    if text is None:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    notes.gap("BAD_ATTRIBUTE", f"{name}={shortened(text, 30)} is no whole number")
    return None


def _cpu(attributes: Mapping[str, str], notes: Notes) -> dict[str, Tree]:
    mask = attributes.get("affinity")
    cpus: str | None = None
    if mask is not None and _MASK.fullmatch(mask):
        # The kernel's form: 32 bits a word, the highest CPUs first.
        words = mask.removeprefix("0x").split(",")
        bits = int("".join(word.zfill(8) for word in words) if len(words) > 1 else words[0], 16)
        cpus = print_cpus(cpu for cpu in range(min(bits.bit_length(), _MOST_CPUS + 1)) if bits >> cpu & 1)
        if bits.bit_length() > _MOST_CPUS:
            mask, cpus = "", None
    if mask is not None and cpus is None:
        notes.gap("BAD_AFFINITY", f"affinity of cpu {shortened(attributes.get('numaid', '?'), 20)} is no CPU mask")
    return {
        "numaid": _integer(attributes, "numaid", notes),
        "cpus": cpus,
        "arch": attributes.get("arch"),
        "vendor": attributes.get("vendor"),
    }


def _gpu(gpu: _Pci, notes: Notes) -> dict[str, Tree]:
    own = gpu.gpu or {}
    links: list[Tree] = []
    total = 0
    for kind, link in gpu.links:
        count = _integer(link, "count", notes)
        if count is None:
            notes.gap("NO_LINK_COUNT", f"a link of {gpu.busid} has no count")
        total += count or 0
        links.append(
            {"type": kind, "target": link.get("target", "").lower(), "count": count, "kind": _link_kind(gpu, link)}
        )
    return {
        "busid": gpu.busid,
        "numaid": gpu.numaid,
        "pci_path": [*gpu.path],
        "dev": _integer(own, "dev", notes),
        "rank": _integer(own, "rank", notes),
        "sm_or_cu": _integer(own, "sm", notes),
        "links": links,
        "link_total": total,
    }


def _link_kind(gpu: _Pci, link: Mapping[str, str]) -> str:
    if link.get("tclass", "").lower().startswith(_NVSWITCH_CLASS):
        return "nvswitch"
    return "self" if link.get("target", "").lower() == gpu.busid else "gpu"


def _report_gpus(gpus: list[_Pci], notes: Notes) -> None:
    if gpus and all(gpu.gpu is None for gpu in gpus):
        notes.warn(
            "NO_GPU_ELEMENTS",
            "GPUs recognised by PCI class only; device, rank and links unknown (a static file, not a dump)",
        )
    selves = [gpu.busid or "" for gpu in gpus if any(_link_kind(gpu, link) == "self" for _, link in gpu.links)]
    if selves:
        notes.warn("SELF_LINK", f"links of {listed(selves)} lead back to the GPU itself: no link to a peer")


def _nvswitches(devices: list[_Pci], targets: list[tuple[str, str, str]]) -> list[str]:
    """Bus ids of NVSwitches, by class, as devices or as ends of links."""
    ends = [target for _, target, code in targets if code.startswith(_NVSWITCH_CLASS)]
    return sorted({*ends, *(d.busid for d in devices if d.busid and d.code.startswith(_NVSWITCH_CLASS))})


def _link_domains(gpus: list[_Pci], targets: list[tuple[str, str, str]]) -> list[Tree]:
    """GPUs joined by links, directly or through any NVSwitch: the switches of a machine are one fabric."""
    behind_switch = [gpu for gpu, _, code in targets if code.startswith(_NVSWITCH_CLASS)]
    through = [(behind_switch[0], gpu) for gpu in behind_switch]
    direct = [(gpu, target) for gpu, target, code in targets if not code.startswith(_NVSWITCH_CLASS)]
    return [[*group] for group in joined(sorted(gpu.busid or "" for gpu in gpus), direct + through)]


def _nic(nic: _Pci, notes: Notes) -> dict[str, Tree]:
    nets: list[Tree] = []
    for net in nic.nets:
        speed = _integer(net, "speed", notes)
        gdr = net.get("gdr")
        nets.append(
            {
                "name": net.get("name"),
                "speed_mbps": speed,
                "port": _integer(net, "port", notes),
                "gdr": None if gdr is None else gdr == "1",
            }
        )
    return {"busid": nic.busid, "numaid": nic.numaid, "pci_path": [*nic.path], "nets": nets}


def _is_implausible(speed: str) -> bool:
    return bool(_INTEGER.fullmatch(speed)) and int(speed) > _FASTEST_MBPS


def _nearest(gpus: list[_Pci], nics: list[_Pci]) -> dict[str, Tree]:
    """Per GPU the best link to any NIC, and all NICs at that link; a NIC without bus id goes by its net's name."""
    nearest: dict[str, Tree] = {}
    for gpu in gpus if nics else ():
        links = [(_between(gpu, nic), nic.busid or (nic.nets[0].get("name") if nic.nets else None)) for nic in nics]
        best = min((link for link, _ in links), key=_RANK.__getitem__)
        nearest[gpu.busid or ""] = {"link": best, "nics": [name for link, name in links if link == best]}
    return nearest


def _between(gpu: _Pci, nic: _Pci) -> str:
    if gpu.cpu != nic.cpu or gpu.cpu < 0:
        return "SYS"
    if gpu.path and gpu.path == nic.path:
        return "PIX"
    return "PXB" if gpu.path[:1] == nic.path[:1] and gpu.path else "PHB"


def _unclassified(devices: list[_Pci], notes: Notes) -> list[Tree]:
    """Devices without a class that are not bridges either, by what is inside them."""
    found = [d for d in devices if not (d.code or d.is_gpu or d.is_nic or d.has_pci)]
    if found:
        notes.gap("UNCLASSIFIED_PCI", "pci elements have no class attribute: what they are is not in the file")
    return [{"busid": d.busid, "numaid": d.numaid} for d in found]
