"""Do fabrics and profiles describe hardware that can exist? The part of `lint` about cables and chips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reconciler.documents.check import Item
from reconciler.documents.convert_cluster import gpu_count
from reconciler.documents.cpulist import print_cpus
from reconciler.documents.similar import did_you_mean, listed
from reconciler.errors import Diagnostic, Severity
from reconciler.model.counting import counted


def lint_hardware(fabrics: Sequence[Item], profiles: Sequence[Item]) -> Iterator[Diagnostic]:
    """All that is wrong with kinds of nodes and with what connects them."""
    yield from _fabrics(fabrics)
    for profile in profiles:
        yield from _profile(profile)


# --- fabrics --------------------------------------------------------------------------------------------------------


def _fabrics(fabrics: Sequence[Item]) -> Iterator[Diagnostic]:
    racks: dict[str, Item] = {}
    groups: dict[str, Item] = {}
    for item in fabrics:
        yield from _levels(item)
        if level_names(item) != level_names(fabrics[0]):
            yield item.problem(
                "FabricsDiffer",
                "Fabrics have different levels",
                f'"{fabrics[0].name}" has {", ".join(level_names(fabrics[0]))}; a cluster has one order of levels.',
                "spec",
                "levels",
                remedy="Give both the same levels, or make them two clusters.",
            )
        for path, name in domains_of(item):
            seen = groups if path[1] == "spineGroups" and len(path) == 3 else racks
            if name in seen:
                what = "Spine group" if seen is groups else "Rack"
                yield item.problem(
                    "DuplicateName",
                    "Name is used twice",
                    f'{what} "{name}" is also in fabric "{seen[name].name}".',
                    *path,
                    "name",
                    remedy="Rename one of them.",
                )
            seen.setdefault(name, item)
        if item.model.spec.racks and "spineGroup" in level_names(item):
            yield item.problem(
                "RackOutsideSpineGroup",
                "Racks stand outside the spine groups",
                "This fabric has a level spineGroup, so each rack is listed in one.",
                "spec",
                "racks",
                remedy="Move them under spineGroups.",
            )


def level_names(item: Item) -> tuple[str, ...]:
    """Names of a fabric's levels, from the inside out."""
    return tuple(level.name for level in item.model.spec.levels)


def _levels(item: Item) -> Iterator[Diagnostic]:
    names = level_names(item)
    wrong = ""
    if "node" not in names:
        wrong = "No level is called node."
    elif names[-1] != "cluster":
        wrong = f'The last level is "{names[-1]}"; it has to be cluster, which holds all.'
    elif len(set(names)) < len(names):
        wrong = "A level comes twice."
    elif "rack" in names and "spineGroup" in names and names.index("rack") > names.index("spineGroup"):
        wrong = "A spineGroup is wider than a rack."
    if wrong:
        yield item.problem(
            "BadLevels",
            "Levels are incomplete or out of order",
            wrong,
            "spec",
            "levels",
            remedy="List them from the inside out, such as nvlinkDomain, node, rack, spineGroup, cluster.",
        )


def domains_of(item: Item) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """(path, name) of every spine group and rack."""
    for i, group in enumerate(item.model.spec.spine_groups):
        yield ("spec", "spineGroups", i), group.name
        for j, rack in enumerate(group.racks):
            yield ("spec", "spineGroups", i, "racks", j), rack.name
    for j, rack in enumerate(item.model.spec.racks):
        yield ("spec", "racks", j), rack.name


# --- profiles -------------------------------------------------------------------------------------------------------


def _profile(item: Item) -> Iterator[Diagnostic]:
    spec = item.model.spec
    count = gpu_count(spec)
    if count == 0:
        yield item.problem(
            "GpuMissing",
            "Profile has no GPUs",
            "Neither gpus nor nvlinkDomains nor pcieSwitches name any.",
            "spec",
            remedy="Say how many: `gpus: 8`.",
        )
    named = {gpu for group in (*spec.nvlink_domains, *spec.pcie_switches) for gpu in group.gpus}
    gap = set(range(count)) - named if spec.gpus is None else set()
    if gap:
        yield item.problem(
            "GpuMissing",
            "GPU numbers have a gap",
            f"GPU {max(named)} is named, and nowhere {_numbers(gap)}.",
            "spec",
            remedy="Correct the numbers, or say how many there are: `gpus: 8`.",
        )
    for field, groups in (("nvlinkDomains", spec.nvlink_domains), ("pcieSwitches", spec.pcie_switches)):
        seen: dict[int, int] = {}
        for i, group in enumerate(groups):
            for j, gpu in enumerate(group.gpus):
                if gpu in seen:
                    yield item.problem(
                        "GpuOverlap",
                        "GPU is in two places",
                        f"GPU {gpu} is in {field}[{seen[gpu]}] already.",
                        "spec",
                        field,
                        i,
                        "gpus",
                        j,
                        remedy="Leave it where it belongs.",
                    )
                elif gpu >= count:
                    yield item.problem(
                        "UnknownGpu",
                        "GPU does not exist",
                        f"Of {counted(count, 'GPU')}, 0 to {count - 1}, none is {gpu}.",
                        "spec",
                        field,
                        i,
                        "gpus",
                        j,
                    )
                seen.setdefault(gpu, i)
        missing = sorted(set(range(count)) - seen.keys())
        if groups and missing and not gap and field == "pcieSwitches":
            yield item.problem(
                "GpuMissing",
                "GPU is under no PCIe switch",
                f"GPU {_numbers(missing)} has no NUMA node and no NIC.",
                "spec",
                field,
                severity=Severity.WARNING,
                remedy="Add it to the switch it hangs under.",
            )
    yield from _nics(item)
    yield from _cpus(item)


def _numbers(numbers: Iterable[int]) -> str:
    return print_cpus(numbers)  # the same short notation


def _nics(item: Item) -> Iterator[Diagnostic]:
    spec = item.model.spec
    numa = {node.id for node in spec.numa}
    names = [nic.name for nic in spec.nics]
    for i, name in enumerate(names):
        if name in names[:i]:
            yield item.problem(
                "DuplicateName",
                "Name is used twice",
                f'NIC "{name}" is listed twice.',
                "spec",
                "nics",
                i,
                "name",
            )
    for i, switch in enumerate(spec.pcie_switches):
        if switch.numa not in numa:
            yield item.problem(
                "UnknownNuma",
                "NUMA node does not exist",
                f"There are {_numbers(numa)}; found {switch.numa}.",
                "spec",
                "pcieSwitches",
                i,
                "numa",
            )
        for j, name in enumerate(switch.nics):
            if name not in names:
                yield item.problem(
                    "UnknownNic",
                    "NIC does not exist",
                    f'There is no "{name}" in nics; there are {listed(names, 16)}.',
                    "spec",
                    "pcieSwitches",
                    i,
                    "nics",
                    j,
                    remedy=did_you_mean(name, names),
                )
    own = {name for switch in spec.pcie_switches for name in switch.nics}
    for i, switch in enumerate(spec.pcie_switches):
        for j, name in enumerate(switch.shared_nics):
            if name in own:
                yield item.problem(
                    "NicTwice",
                    "NIC is one GPU's own and shared",
                    f'"{name}" is in nics of a switch, so that it serves one GPU.',
                    "spec",
                    "pcieSwitches",
                    i,
                    "sharedNics",
                    j,
                    remedy="Leave it in one of the two.",
                )


def _cpus(item: Item) -> Iterator[Diagnostic]:
    spec = item.model.spec
    seen: set[int] = set()
    for i, node in enumerate(spec.numa):
        if node.id in {other.id for other in spec.numa[:i]}:
            yield item.problem(
                "DuplicateName",
                "Name is used twice",
                f"NUMA node {node.id} is listed twice.",
                "spec",
                "numa",
                i,
                "id",
            )
        shared = seen & set(node.cpus)
        if shared:
            yield item.problem(
                "CpuOverlap",
                "CPU is in two NUMA nodes",
                f"CPU {_numbers(shared)} was listed before.",
                "spec",
                "numa",
                i,
                "cpus",
            )
        seen |= set(node.cpus)
    unknown = set(spec.reserved.cpus) - seen
    if unknown:
        yield item.problem(
            "UnknownCpu",
            "Reserved CPU does not exist",
            f"No NUMA node has CPU {_numbers(unknown)}.",
            "spec",
            "reserved",
            "cpus",
        )
    if seen and not seen - set(spec.reserved.cpus):
        yield item.problem(
            "NothingLeft",
            "Everything is reserved",
            "No CPU is left for jobs.",
            "spec",
            "reserved",
            "cpus",
        )
    if spec.reserved.memory and any(node.memory * len(spec.numa) <= spec.reserved.memory for node in spec.numa):
        yield item.problem(
            "NothingLeft",
            "Everything is reserved",
            "A NUMA node has no memory left for jobs.",
            "spec",
            "reserved",
            "memory",
        )
