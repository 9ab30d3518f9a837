"""What hardware does this node have, and is it well? Pretended by a profile, or asked of `nvidia-smi`, a child process.

The answer is the `hardware` of a report: gpuType, gpus [{index, uuid, healthy, foreign, reason, memoryBytes, nvlinks,
pcieWidth, pcieMost, pcieSpeed, pcieFastest, numa, xids, recovery, throttled, rowsPending}], nics and numa as in
`sysfs`, clique, cpus, memoryBytes, kernel, driver. What is not known is left out, and nothing in it moves while the
machine is well. What one look cannot tell is `health`'s; parsing captured topology output is `discovery`'s, on the
other side.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

from reconciler.agent.conf import Simulation
from reconciler.agent.health import Course
from reconciler.agent.sysfs import network_ports, numa_nodes, pci_numa

_SMI_SECONDS = 30
_SPEEDS = {1: 2_500, 2: 5_000, 3: 8_000, 4: 16_000, 5: 32_000, 6: 64_000}
"""MT/s of a lane by generation of PCIe."""
_SLOWDOWNS = {
    "hw_thermal_slowdown": "heat, by the hardware",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "heat, by the driver",
}
"""Reasons for slower clocks that something outside of the job causes, the gravest first."""


def hardware(
    node: str, simulation: Simulation | None, is_ours: Callable[[int], bool], course: Course | None = None
) -> dict[str, Any]:
    """The facts now. `is_ours` says whether a pid belongs to an attempt; any other one on a GPU is foreign.

    `course` is what was seen before; without one, only what a single look tells is told.
    """
    found: dict[str, Any] = {"cpus": os.cpu_count() or 0, "memoryBytes": _memory(), "kernel": os.uname().release}
    return found | (_simulated(node, simulation) if simulation else _real(is_ours, course or Course()))


def pretended_uuid(node: str, index: int) -> str:
    """The UUID a simulated GPU always has."""
    text = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def _simulated(node: str, simulation: Simulation) -> dict[str, Any]:
    """Profile: {"gpuType", "gpus": count or [{"index", ...}], "nics", "numa", "clique"}; all may be missing.

    Of the machine below nothing else is told: it is not the one that is pretended.
    """
    profile: dict[str, Any] = {}
    if simulation.profile:
        try:
            read = json.loads(simulation.profile.read_text(encoding="utf-8"))
            profile = read if isinstance(read, dict) else {}
        except (OSError, ValueError):
            profile = {}
    given = profile.get("gpus", simulation.gpus)
    overrides = (
        {g["index"]: g for g in given if isinstance(g, dict) and "index" in g} if isinstance(given, list) else {}
    )
    count = given if isinstance(given, int) else max([simulation.gpus, *(i + 1 for i in overrides)])
    gpus = [
        {
            "index": i,
            "uuid": pretended_uuid(node, i),
            "healthy": True,
            "foreign": "",
            "reason": "",
            **overrides.get(i, {}),
        }
        for i in range(count)
    ]
    told: dict[str, Any] = {key: profile[key] for key in ("nics", "numa", "clique") if key in profile}
    return {"gpuType": str(profile.get("gpuType", simulation.gpu_type)), "gpus": gpus, "driver": "simulated", **told}


def _real(is_ours: Callable[[int], bool], course: Course) -> dict[str, Any]:
    """No nvidia-smi means no GPUs; one that fails means GPUs whose state nobody knows, and so none to give."""
    rows = _smi("--query-gpu=index,uuid,name,driver_version,ecc.errors.uncorrected.volatile.total")
    foreign: dict[str, str] = {}
    for row in _smi("--query-compute-apps=gpu_uuid,pid") if rows else []:
        if len(row) == 2 and row[1].isdigit() and not is_ours(int(row[1])):
            foreign[row[0]] = f"pid {row[1]} of {_owner_of(int(row[1]))}"
    gpus = [
        {
            "index": int(row[0]),
            "uuid": row[1],
            "healthy": not (row[4].isdigit() and int(row[4]) > 0),
            "foreign": foreign.get(row[1], ""),
            "reason": f"{row[4]} uncorrected memory errors" if row[4].isdigit() and int(row[4]) > 0 else "",
        }
        for row in rows
        if len(row) == 5 and row[0].isdigit()
    ]
    first = next((row for row in rows if len(row) == 5), ["", "", "", "", ""])
    found = {"gpuType": first[2].replace("NVIDIA ", "").replace(" ", "-"), "gpus": gpus, "driver": first[3]}
    if gpus:
        _add_links(gpus, course)
        _add_health(gpus, course)
        found["clique"] = clique_of(_run("-q", "-i", str(gpus[0]["index"])))
    return {**found, "nics": network_ports(), "numa": numa_nodes()}


def _add_links(gpus: list[dict[str, Any]], course: Course) -> None:
    """Memory, PCIe, NVLink and logged faults of each GPU.

    Asked for apart: a driver that does not know a field answers none of them.
    """
    course.read_log()
    rows = _smi("--query-gpu=uuid,memory.total,pcie.link.width.current,pcie.link.width.max,pci.bus_id")
    known = {row[0]: row for row in rows if len(row) == 5}
    links = links_up(_run("nvlink", "--status"))
    for gpu in gpus:
        row = known.get(gpu["uuid"])
        if row:
            gpu["memoryBytes"] = _whole(row[1]) << 20
            gpu["pcieWidth"], gpu["pcieMost"] = _whole(row[2]), _whole(row[3])
            gpu["numa"] = pci_numa(row[4])
            if xids := course.xids(row[4]):
                gpu["xids"] = xids
        if gpu["uuid"] in links:
            gpu["nvlinks"] = links[gpu["uuid"]]


def _add_health(gpus: list[dict[str, Any]], course: Course) -> None:
    """What the driver says of memory rows, of what must be done about a fault, of slower clocks, and of the link."""
    asked = _smi("--query-remapped-rows=gpu_uuid,remapped_rows.failure,remapped_rows.pending")
    rows = {row[0]: row for row in asked if len(row) == 3}
    actions = {row[0]: row[1] for row in _smi("--query-gpu=uuid,gpu_recovery_action") if len(row) == 2}
    clocks = {row[0]: row for row in _clocks() if len(row) == 4 + len(_SLOWDOWNS)}
    now = time.monotonic()
    for gpu in gpus:
        uuid = gpu["uuid"]
        _, failed, pending = rows.get(uuid, ["", "", ""])
        if failed in _YES and gpu["healthy"]:
            gpu["healthy"], gpu["reason"] = False, "no spare memory rows are left"
        if pending in _YES:
            gpu["rowsPending"] = True
        action = actions.get(uuid, "")
        if action in _ACTIONS or (action == "None" and "xids" in gpu):  # of a sound GPU it says nothing new
            gpu["recovery"] = action
        if uuid in clocks:
            _, state, current, most, *slow = clocks[uuid]
            why = next((word for word, on in zip(_SLOWDOWNS.values(), slow, strict=True) if on == "Active"), "")
            if told := course.throttled(uuid, why, now):
                gpu["throttled"] = told
            speed = course.speed(uuid, _SPEEDS.get(_whole(current), 0), at_work=state == "P0")
            if speed and _whole(most) in _SPEEDS:
                gpu["pcieSpeed"], gpu["pcieFastest"] = speed, _SPEEDS[_whole(most)]


_YES = ("1", "Yes")
_ACTIONS = ("Reset", "Reboot", "Drain P2P", "Drain and Reset")
"""What drivers ask for, beside None. Anything else that is printed there (N/A, an error) is no answer."""


def _clocks() -> list[list[str]]:
    """UUID, performance state, generation of the link now and at most, then whether each slowdown is active."""
    for family in ("clocks_event_reasons", "clocks_throttle_reasons"):  # renamed with driver 535
        reasons = ",".join(f"{family}.{name}" for name in _SLOWDOWNS)
        rows = _smi(f"--query-gpu=uuid,pstate,pcie.link.gen.current,pcie.link.gen.max,{reasons}")
        if len(rows[0] if rows else []) == 4 + len(_SLOWDOWNS):
            return rows
    return []


def links_up(text: str) -> dict[str, int]:
    """NVLinks that are up by GPU, from `nvidia-smi nvlink --status`; a GPU without any link listed is left out."""
    found: dict[str, int] = {}
    uuid = ""
    for line in text.splitlines():
        head = re.match(r"GPU [0-9]+: .*\(UUID: ([^)\s]+)\)", line.strip())
        link = re.match(r"Link [0-9]+: (.*)", line.strip())
        if head:
            uuid = head[1]
        elif link and uuid:
            found[uuid] = found.get(uuid, 0) + (0 if "inactive" in link[1].lower() else 1)
    return found


def clique_of(text: str) -> str:
    """The multi-node NVLink domain, from `nvidia-smi -q`: cluster UUID and clique; "" outside of any."""
    cluster = re.search(r"ClusterUUID\s*: ([0-9a-fA-F-]{36})\s", text)
    clique = re.search(r"CliqueId\s*: ([0-9]+)\s", text)
    if not cluster or not clique or not cluster[1].strip("0-"):
        return ""
    return f"{cluster[1].lower()}.{clique[1]}"


def _smi(query: str) -> list[list[str]]:
    text = _run(query, "--format=csv,noheader,nounits")
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def _run(*arguments: str) -> str:
    """What nvidia-smi printed; "" when it is missing, too slow or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, timeout=_SMI_SECONDS, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _whole(cell: str) -> int:
    return int(cell) if cell.isdigit() else 0


def _owner_of(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - a process, not a file of ours
        return pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        return "an unknown user"


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
