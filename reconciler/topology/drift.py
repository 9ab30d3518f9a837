"""Where does a machine differ from what was declared of it, and what is left of its shape?

Declared hardware against the facts nodes report: a row for each difference, with its numbers, how grave it is and
what planning does about it. `effective` is the inventory as it can be used: NVLink islands without the GPUs that
lost links, GPUs without the NICs that are down. A fault of a GPU is drift too: it was declared sound. Whether a node
may be used at all (silent, cordoned, unhealthy) and which GPUs are free is the planner's; a fact that a node did not
report is no difference. The reasons for each effect are in `.github/decisions/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from reconciler.model.inventory import Inventory, Node, NodeShape
from reconciler.model.observed import GpuReport, NicReport, NodeObservation, Observed
from reconciler.model.reasons import Number
from reconciler.model.units import NVLINK_LEVEL, DomainName, NodeName
from reconciler.model.xids import FATAL_XIDS, NOTHING_LEFT


class DriftCode(StrEnum):
    """What differs. The order is the order of telling."""

    TYPE_DIFFERS = "TypeDiffers"
    GPU_MISSING = "GpuMissing"
    GPU_EXTRA = "GpuExtra"
    GPU_FAULTY = "GpuFaulty"
    RECOVERY_NEEDED = "RecoveryNeeded"
    XID_FATAL = "XidFatal"
    XID_LOGGED = "XidLogged"
    ROWS_PENDING = "RowsPending"
    THROTTLED = "Throttled"
    MEMORY_DIFFERS = "MemoryDiffers"
    NVLINK_DOWN = "NvlinkDown"
    CLIQUE_DIFFERS = "CliqueDiffers"
    NIC_MISSING = "NicMissing"
    NIC_DOWN = "NicDown"
    PCIE_NARROW = "PcieNarrow"
    PCIE_SLOW = "PcieSlow"
    SWITCH_DIFFERS = "SwitchDiffers"
    NUMA_DIFFERS = "NumaDiffers"
    CPUS_DIFFER = "CpusDiffer"
    TWIN_DIFFERS = "TwinDiffers"


class Effect(StrEnum):
    """What planning does about a difference."""

    CAPACITY_REMOVED = "capacity removed"
    DOMAIN_SPLIT = "domain split"
    RAIL_AVOIDED = "rail avoided"
    WARNING_ONLY = "warning only"


EFFECTS: Final[Mapping[DriftCode, Effect]] = {
    DriftCode.TYPE_DIFFERS: Effect.CAPACITY_REMOVED,
    DriftCode.GPU_MISSING: Effect.CAPACITY_REMOVED,
    DriftCode.GPU_FAULTY: Effect.CAPACITY_REMOVED,
    DriftCode.RECOVERY_NEEDED: Effect.CAPACITY_REMOVED,
    DriftCode.XID_FATAL: Effect.CAPACITY_REMOVED,
    DriftCode.NVLINK_DOWN: Effect.DOMAIN_SPLIT,
    DriftCode.NIC_MISSING: Effect.RAIL_AVOIDED,
    DriftCode.NIC_DOWN: Effect.RAIL_AVOIDED,
}
"""A code that is not here only warns."""

SENTENCES: Final[Mapping[DriftCode, str]] = {
    DriftCode.TYPE_DIFFERS: "has GPUs of type {seen}, not {declared}",
    DriftCode.GPU_MISSING: "GPU {gpus} not seen",
    DriftCode.GPU_EXTRA: "GPU {gpus} seen, not declared",
    DriftCode.GPU_FAULTY: "GPU {gpus} is not healthy: {why}",
    DriftCode.RECOVERY_NEEDED: "GPU {gpus} has a fault for which its driver asks: {action}",
    DriftCode.XID_FATAL: "GPU {gpus} logged XID {xid}: {meaning}",
    DriftCode.XID_LOGGED: "GPU {gpus} logged XID {xid}",
    DriftCode.ROWS_PENDING: "GPU {gpus} has memory rows that a reset will replace",
    DriftCode.THROTTLED: "GPU {gpus} has been slowed down for a while: {why}",
    DriftCode.MEMORY_DIFFERS: "GPU {gpus} with {seen} MiB of memory, not {declared}",
    DriftCode.NVLINK_DOWN: "GPU {gpus} with {up} of {links} NVLinks up",
    DriftCode.CLIQUE_DIFFERS: "is in NVLink clique {seen}; most of {domain} are in {most}",
    DriftCode.NIC_MISSING: "{nic} not seen, which serves GPU {gpus}",
    DriftCode.NIC_DOWN: "{nic} is down, which serves GPU {gpus}",
    DriftCode.PCIE_NARROW: "{device} trained at x{width} of x{most}",
    DriftCode.PCIE_SLOW: "{device} trained at {speed} of {fastest} MT/s a lane",
    DriftCode.SWITCH_DIFFERS: "{nic} is cabled to {seen}, no switch of {rack}",
    DriftCode.NUMA_DIFFERS: "{device} is at NUMA node {seen}, not {declared}",
    DriftCode.CPUS_DIFFER: "NUMA node {numa} has CPUs {seen}, without {missing} of those declared",
    DriftCode.TWIN_DIFFERS: "{what} is {seen}; {most} on {count} of its twins",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference: on which node, what, and its numbers in the order they are told (camelCase, as in YAML)."""

    node: NodeName
    code: DriftCode
    numbers: tuple[tuple[str, Number], ...] = ()

    @property
    def effect(self) -> Effect:
        """What planning does about it."""
        return EFFECTS.get(self.code, Effect.WARNING_ONLY)

    @property
    def is_grave(self) -> bool:
        """It takes something away from jobs."""
        return self.effect is not Effect.WARNING_ONLY

    @property
    def sentence(self) -> str:
        """The difference in one clause."""
        return SENTENCES[self.code].format_map(dict(self.numbers))


def drift_of(inventory: Inventory, observed: Observed) -> tuple[Drift, ...]:
    """Every difference of every declared node that was seen, in the order of node, then of the codes."""
    found: list[Drift] = []
    for node in inventory.nodes:
        seen = observed.nodes.get(node.name)
        if seen is not None:
            found += node_drift(node, seen, inventory.switches.get(node.rack, ()) if node.path else ())
    found += _cliques(inventory, observed)
    found += _twins(inventory, observed)
    order = list(DriftCode)
    return tuple(sorted(found, key=lambda drift: (drift.node, order.index(drift.code), drift.numbers)))


def node_drift(node: Node, seen: NodeObservation, switches: tuple[str, ...] = ()) -> tuple[Drift, ...]:
    """Differences of one node. `switches` are those of its rack; none: not declared, so nothing is said of them."""
    rows = [
        *_gpus(node, seen),
        *_health(node, seen.gpus),
        *_links(node.shape, seen.gpus),
        *_nics(node.shape, seen.nics),
        *_lanes(seen),
        *_places(node.shape, seen),
        *_cabling(node, seen.nics, switches),
    ]
    order = list(DriftCode)
    found = [Drift(node=node.name, code=code, numbers=tuple(numbers.items())) for code, numbers in rows]
    return tuple(sorted(found, key=lambda drift: (order.index(drift.code), drift.numbers)))


# --- what is left -----------------------------------------------------------------------------------------------------


def effective(inventory: Inventory, observed: Observed) -> Inventory:
    """The inventory with the shapes that can be used; the very same object while nothing takes a link away.

    What was worked out is remembered by identity: rounds in which no hardware changed get the same object again.
    """
    shapes: dict[int, NodeShape] = {}
    for index, node in enumerate(inventory.nodes):
        seen = observed.nodes.get(node.name)
        if seen is not None and (seen.gpus or seen.nics):
            shape = _remembered(node.shape, seen)
            if shape is not node.shape:
                shapes[index] = shape
    if not shapes:
        return inventory
    if not (_latest and _latest[0][0] is inventory and _same(_latest[0][1], shapes)):
        nodes = [replace(n, shape=shapes[i]) if i in shapes else n for i, n in enumerate(inventory.nodes)]
        _latest[:] = [(inventory, shapes, replace(inventory, nodes=tuple(nodes)))]
    return _latest[0][2]


_Facts = tuple[NodeShape, tuple[GpuReport, ...], tuple[NicReport, ...]]
_LIMIT: Final = 100_000
_known: Final[dict[tuple[int, int, int], tuple[_Facts, NodeShape]]] = {}
_latest: Final[list[tuple[Inventory, dict[int, NodeShape], Inventory]]] = []


def _remembered(shape: NodeShape, seen: NodeObservation) -> NodeShape:
    """`effective_shape`; holding the facts beside the answer keeps their identities from being used again."""
    key = id(shape), id(seen.gpus), id(seen.nics)
    found = _known.get(key)
    if found is None:
        if len(_known) >= _LIMIT:
            _known.clear()
        found = _known[key] = ((shape, seen.gpus, seen.nics), effective_shape(shape, seen))
    return found[1]


def _same(before: Mapping[int, NodeShape], after: Mapping[int, NodeShape]) -> bool:
    return before.keys() == after.keys() and all(before[index] is shape for index, shape in after.items())


def effective_shape(shape: NodeShape, seen: NodeObservation) -> NodeShape:
    """The shape less what is broken between its parts; the same object when nothing is."""
    apart = unlinked(shape, seen.gpus)
    dark = _dark(shape, seen.nics)
    if apart:
        whole = tuple(island & ~apart for island in shape.nvlink if island & ~apart)
        alone = tuple(1 << gpu for gpu in range(apart.bit_length()) if apart >> gpu & 1)
        shape = replace(shape, nvlink=tuple(sorted((*whole, *alone), key=lambda mask: mask & -mask)))
    if dark:
        shape = replace(shape, gpus=tuple(slot.without(dark) for slot in shape.gpus))
    return shape


def unlinked(shape: NodeShape, gpus: Iterable[GpuReport]) -> int:
    """Mask of the GPUs that have fewer NVLinks up than declared, or than another GPU of their island.

    Such a GPU may still reach the others over what is left of its links; at what speed nobody knows, so no group
    that asked for NVLink is put across it.
    """
    links = {gpu.index: gpu.nvlinks for gpu in gpus if gpu.nvlinks >= 0}
    if not links:
        return 0
    found = 0
    for island in shape.nvlink:
        needed = _needed(shape, island, links)
        for gpu, count in needed.items():
            found |= 1 << gpu if links.get(gpu, count) < count else 0
    return found


def split_off(now: NodeShape, before: NodeShape) -> int:
    """Mask of the GPUs that stand alone in an effective shape and did not in the one it was made of."""
    return sum(island for island in now.nvlink if island not in before.nvlink and not island & (island - 1))


def _needed(shape: NodeShape, island: int, links: Mapping[int, int]) -> dict[int, int]:
    """NVLinks that each GPU of an island should have up; none for a GPU that stands alone."""
    members = [slot for slot in shape.gpus if island >> slot.index & 1]
    if len(members) < 2:
        return {}
    most = max(1, *(links.get(slot.index, 0) for slot in members))
    return {slot.index: slot.links or most for slot in members}


def _dark(shape: NodeShape, nics: tuple[NicReport, ...]) -> set[str]:
    """NICs that serve a GPU and are down or not there; nothing is said by a node that reports no NIC at all."""
    if not nics:
        return set()
    lit = {nic.name for nic in nics if nic.up}
    return {nic for slot in shape.gpus for nic in (slot.nic, *slot.near) if nic and nic not in lit}


def _served(shape: NodeShape, nic: str) -> int:
    """Mask of the GPU whose own NIC it is; of all it is near to, when it is nobody's."""
    own = sum(1 << slot.index for slot in shape.gpus if slot.nic == nic)
    return own or sum(1 << slot.index for slot in shape.gpus if nic in slot.near)


# --- one node, piece by piece -----------------------------------------------------------------------------------------

_Row = tuple[DriftCode, dict[str, Number]]


def _gpus(node: Node, seen: NodeObservation) -> Iterator[_Row]:
    shape = node.shape
    if seen.gpu_type and not shape.goes_by(seen.gpu_type):
        yield DriftCode.TYPE_DIFFERS, {"declared": shape.gpu_type, "seen": seen.gpu_type}
    present = sum(1 << gpu.index for gpu in seen.gpus)
    missing, extra = shape.all_gpus & ~present & ~node.failed, present & ~shape.all_gpus
    if missing:
        yield DriftCode.GPU_MISSING, {"gpus": numbers_of(missing)}
    if extra:
        yield DriftCode.GPU_EXTRA, {"gpus": numbers_of(extra)}
    odd: dict[int, int] = {}
    for gpu in seen.gpus:
        # A card says a little less than its name: what the firmware keeps is not counted.
        if gpu.memory and abs(gpu.memory - shape.gpu_memory) * 16 > shape.gpu_memory:
            odd[gpu.memory] = odd.get(gpu.memory, 0) | 1 << gpu.index
    for memory, mask in odd.items():
        yield (
            DriftCode.MEMORY_DIFFERS,
            {"gpus": numbers_of(mask), "declared": shape.gpu_memory >> 20, "seen": memory >> 20},
        )


def _health(node: Node, gpus: tuple[GpuReport, ...]) -> Iterator[_Row]:
    """Faults and slowing down; a row for all GPUs that have the same. Of one declared failed all is said already."""
    alike: dict[tuple[DriftCode, tuple[tuple[str, Number], ...]], int] = {}
    for gpu in gpus:
        for code, numbers in _symptoms(gpu) if not node.failed >> gpu.index & 1 else ():
            key = code, tuple(numbers.items())
            alike[key] = alike.get(key, 0) | 1 << gpu.index
    for (code, told), mask in alike.items():
        yield code, {"gpus": numbers_of(mask), **dict(told)}


def _symptoms(gpu: GpuReport) -> Iterator[_Row]:
    fatal = gpu.fatal_xids
    if not gpu.healthy:
        yield DriftCode.GPU_FAULTY, {"why": gpu.fault}
    elif gpu.recovery not in ("", NOTHING_LEFT):
        yield DriftCode.RECOVERY_NEEDED, {"action": gpu.recovery}
    for xid in fatal:
        yield DriftCode.XID_FATAL, {"xid": xid, "meaning": FATAL_XIDS[xid]}
    for xid in gpu.xids:
        if xid not in fatal:
            yield DriftCode.XID_LOGGED, {"xid": xid}
    if gpu.rows_pending:
        yield DriftCode.ROWS_PENDING, {}
    if gpu.throttled:
        yield DriftCode.THROTTLED, {"why": gpu.throttled}


def _links(shape: NodeShape, gpus: tuple[GpuReport, ...]) -> Iterator[_Row]:
    links = {gpu.index: gpu.nvlinks for gpu in gpus if gpu.nvlinks >= 0}
    alike: dict[tuple[int, int], int] = {}
    for island in shape.nvlink:
        for gpu, needed in _needed(shape, island, links).items():
            up = links.get(gpu, needed)
            if up < needed:
                alike[up, needed] = alike.get((up, needed), 0) | 1 << gpu
    for (up, needed), mask in sorted(alike.items()):
        yield DriftCode.NVLINK_DOWN, {"gpus": numbers_of(mask), "up": up, "links": needed}


def _nics(shape: NodeShape, nics: tuple[NicReport, ...]) -> Iterator[_Row]:
    there = {nic.name for nic in nics}
    for name in sorted(_dark(shape, nics)):
        code = DriftCode.NIC_DOWN if name in there else DriftCode.NIC_MISSING
        yield code, {"nic": name, "gpus": numbers_of(_served(shape, name))}


def _lanes(seen: NodeObservation) -> Iterator[_Row]:
    """A card that trained fewer lanes, or slower ones, than it and its slot can do."""
    devices: list[tuple[str, GpuReport | NicReport]] = [(f"GPU {gpu.index}", gpu) for gpu in seen.gpus]
    devices += [(nic.name, nic) for nic in seen.nics]
    for device, card in devices:
        if 0 < card.pcie_width < card.pcie_most:
            yield DriftCode.PCIE_NARROW, {"device": device, "width": card.pcie_width, "most": card.pcie_most}
        if 0 < card.pcie_speed < card.pcie_fastest:
            yield DriftCode.PCIE_SLOW, {"device": device, "speed": card.pcie_speed, "fastest": card.pcie_fastest}


def _places(shape: NodeShape, seen: NodeObservation) -> Iterator[_Row]:
    """NUMA nodes of GPUs and NICs, and the CPUs of each."""
    declared = {slot.index: slot.numa for slot in shape.gpus if slot.numa >= 0}
    near = {slot.nic: slot.numa for slot in shape.gpus if slot.nic and slot.numa >= 0}
    devices = [(f"GPU {gpu.index}", declared.get(gpu.index, -1), gpu.numa) for gpu in seen.gpus]
    devices += [(nic.name, near.get(nic.name, -1), nic.numa) for nic in seen.nics]
    for device, said, numa in devices:
        if said >= 0 and numa >= 0 and said != numa:
            yield DriftCode.NUMA_DIFFERS, {"device": device, "declared": said, "seen": numa}
    there = {numa.id: numa.cpus for numa in seen.numa}
    for node in shape.numa if there else ():
        cpus = there.get(node.id, "")
        missing = _cpus(node.cpus) - _cpus(cpus)
        if missing:
            mask = sum(1 << cpu for cpu in missing)
            yield DriftCode.CPUS_DIFFER, {"numa": node.id, "seen": cpus or "none", "missing": numbers_of(mask)}


def _cabling(node: Node, nics: tuple[NicReport, ...], switches: tuple[str, ...]) -> Iterator[_Row]:
    served = {nic for slot in node.shape.gpus for nic in (slot.nic, *slot.near)}
    for nic in nics if switches else ():
        if nic.switch and nic.switch not in switches and nic.name in served:
            yield DriftCode.SWITCH_DIFFERS, {"nic": nic.name, "seen": nic.switch, "rack": node.rack}


# --- nodes among each other -------------------------------------------------------------------------------------------


def _cliques(inventory: Inventory, observed: Observed) -> Iterator[Drift]:
    """Nodes of one declared multi-node NVLink domain that joined another clique than most of it."""
    if NVLINK_LEVEL not in inventory.above_node:
        return
    level = inventory.above_node.index(NVLINK_LEVEL)
    members: dict[tuple[DomainName, ...], list[NodeObservation]] = {}
    for node in inventory.nodes:
        seen = observed.nodes.get(node.name)
        if seen is not None and seen.clique:
            members.setdefault(node.path[: level + 1], []).append(seen)
    for path, nodes in members.items():
        most, _ = _commonest([seen.clique for seen in nodes])
        for seen in nodes:
            if seen.clique != most:
                numbers = (("domain", path[-1]), ("seen", seen.clique), ("most", most))
                yield Drift(node=seen.node, code=DriftCode.CLIQUE_DIFFERS, numbers=numbers)


_TWIN_FACTS: Final = ("driver", "GPU memory", "NIC speed")


def _twins(inventory: Inventory, observed: Observed) -> Iterator[Drift]:
    """Nodes of one profile that are not alike in what the profile does not fix. Told when most of them agree."""
    twins: dict[str, list[NodeObservation]] = {}
    for node in inventory.nodes:
        seen = observed.nodes.get(node.name)
        if seen is not None:
            twins.setdefault(node.shape.profile, []).append(seen)
    for _, nodes in sorted(twins.items()):
        facts = {seen.node: _twin_facts(seen) for seen in nodes}
        for what in _TWIN_FACTS:
            known = {node: told[what] for node, told in facts.items() if told[what]}
            most, count = _commonest(known.values())
            for name, value in known.items():
                if value != most and count * 2 > len(known):
                    numbers = (("what", what), ("seen", value), ("most", most), ("count", count))
                    yield Drift(node=name, code=DriftCode.TWIN_DIFFERS, numbers=numbers)


def _twin_facts(seen: NodeObservation) -> dict[str, str]:
    memory = sorted({gpu.memory >> 20 for gpu in seen.gpus if gpu.memory})
    speeds = sorted({nic.speed // 1_000_000_000 for nic in seen.nics if nic.speed and nic.up})
    return {
        "driver": seen.driver,
        "GPU memory": ", ".join(f"{size} MiB" for size in memory),
        "NIC speed": ", ".join(f"{speed} Gb/s" for speed in speeds),
    }


def _commonest(values: Iterable[str]) -> tuple[str, int]:
    """The value most have, the first by code point among equals, and how many have it."""
    counts = sorted(Counter(values).items(), key=lambda row: (-row[1], row[0]))
    return counts[0] if counts else ("", 0)


# --- numbers ----------------------------------------------------------------------------------------------------------


def numbers_of(mask: int) -> str:
    """The bits that are set as people write lists: `0-3,5`."""
    runs: list[list[int]] = []
    for bit in range(mask.bit_length()):
        if mask >> bit & 1:
            if runs and runs[-1][1] == bit - 1:
                runs[-1][1] = bit
            else:
                runs.append([bit, bit])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _cpus(text: str) -> frozenset[int]:
    """CPU numbers of a Linux list; what is no such list has none, for it comes from a machine that may be broken."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if first.isascii() and first.isdigit() and last.isascii() and last.isdigit() and len(last) < 6:
            found.update(range(int(first), int(last) + 1))
    return frozenset(found)
