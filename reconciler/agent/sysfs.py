"""Which NUMA nodes and network ports does the kernel show below /sys? Facts that hold still: no counters.

A list is empty when the kernel shows nothing, so that whoever compares it sees "not said" and not "none". What the
links mean for ranks is decided elsewhere.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

_LLDP_SECONDS = 10
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")
_SPEED = re.compile(r"([0-9]+)(?:\.([0-9]))?[0-9]* GT/s")


def numa_nodes(root: Path = Path("/")) -> list[dict[str, Any]]:
    """[{id, cpus}] by id; CPUs in Linux list syntax, "" for a node that has memory alone."""
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    numbers = sorted((int(folder.name[4:]), folder) for folder in folders if folder.name[4:].isdigit())
    return [{"id": number, "cpus": _text(folder / "cpulist")} for number, folder in numbers]


def network_ports(root: Path = Path("/"), switches: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """[{name, up, bitsPerSecond, pcieWidth, pcieMost, pcieSpeed, pcieFastest, numa, switch}] by name.

    RDMA devices, or without any the NICs. Lanes, and MT/s of a lane, each as trained and as can be at most. Virtual functions are left out. `switches` names the switch at each network interface (default: ask lldpd).
    """
    rdma = sorted((root / "sys/class/infiniband").glob("*"))
    cards = rdma or sorted((root / "sys/class/net").glob("*"))
    cards = [card for card in cards if (card / "device").exists() and not (card / "device/physfn").exists()]
    heard = neighbours() if switches is None and cards else switches or {}
    return [_port(card, heard, is_rdma=bool(rdma)) for card in cards]


def pci_numa(address: str, root: Path = Path("/")) -> int:
    """The NUMA node of a PCI device given as nvidia-smi prints it, -1 when unknown."""
    domain, colon, rest = address.strip().lower().partition(":")
    return numa_of(root / "sys/bus/pci/devices" / f"{domain.lstrip('0').rjust(4, '0')}{colon}{rest}")


def numa_of(device: Path) -> int:
    """What `numa_node` of a device says, -1 when it says nothing."""
    said = _text(device / "numa_node")
    return int(said) if said.isdigit() else -1


def neighbours() -> dict[str, str]:
    """The switch each network interface hears, by LLDP; empty without lldpd."""
    if shutil.which("lldpctl") is None:
        return {}
    try:
        done = subprocess.run(
            ["lldpctl", "-f", "json0"], capture_output=True, timeout=_LLDP_SECONDS, check=False, text=True
        )
        tree = json.loads(done.stdout)
        return {
            str(port["name"]): str(port["chassis"][0]["name"][0]["value"])
            for part in tree["lldp"]
            for port in part.get("interface", [])
            if port.get("chassis") and port["chassis"][0].get("name")
        }
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _port(card: Path, heard: dict[str, str], *, is_rdma: bool) -> dict[str, Any]:
    device = card / "device"
    interfaces = sorted(path.name for path in (device / "net").glob("*")) if is_rdma else [card.name]
    if is_rdma:
        up = "ACTIVE" in _text(card / "ports/1/state")
        rate = _RATE.match(_text(card / "ports/1/rate"))
        speed = int(float(rate[1]) * 1000) * 1_000_000 if rate else 0
    else:
        up = _text(card / "operstate") == "up"
        megabits = _text(card / "speed")
        speed = int(megabits) * 1_000_000 if megabits.isdigit() else 0
    return {
        "name": card.name,
        "up": up,
        "bitsPerSecond": speed if up else 0,  # a port that is down shows what it spoke last
        "pcieWidth": _number(device / "current_link_width"),
        "pcieMost": _number(device / "max_link_width"),
        "pcieSpeed": _transfers(device / "current_link_speed"),
        "pcieFastest": _fastest(device),
        "numa": numa_of(device),
        "switch": next((heard[name] for name in interfaces if name in heard), ""),
    }


def _number(path: Path) -> int:
    said = _text(path)
    lanes = int(said) if said.isdigit() else 0
    return lanes if lanes <= 32 else 0  # 255 is the kernel's "unknown"


def _transfers(path: Path) -> int:
    """MT/s out of `16.0 GT/s PCIe`, 0 when unknown."""
    found = _SPEED.match(_text(path))
    return int(found[1]) * 1000 + int(found[2] or 0) * 100 if found else 0


def _fastest(device: Path) -> int:
    """What card and port above it can both do: a new card in an older host is no fault of either."""
    card = _transfers(device / "max_link_speed")
    port = _transfers(device.resolve().parent / "max_link_speed")
    return min(card, port) if card and port else card


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
