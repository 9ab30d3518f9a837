"""Does every node have a profile and exactly one place? The part of `lint` about node sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reconciler.documents.check import Item
from reconciler.documents.convert_cluster import gpu_count
from reconciler.documents.hostlist import expand
from reconciler.documents.lint_hardware import domains_of, level_names
from reconciler.documents.similar import did_you_mean, listed
from reconciler.errors import Diagnostic
from reconciler.model.counting import counted


def lint_nodes(fabrics: Sequence[Item], profiles: Sequence[Item], node_sets: Sequence[Item]) -> Iterator[Diagnostic]:
    """All that is wrong with which nodes there are and where they stand."""
    by_fabric = {item.name: item for item in reversed(fabrics)}
    by_profile = {item.name: item for item in reversed(profiles)}
    first: dict[str, Item] = {}
    for item in node_sets:
        yield from _names_resolve(item, by_fabric, by_profile)
        yield from _named_twice(item, first)
        yield from _overrides(item, by_profile)


def _names_resolve(item: Item, fabrics: Mapping[str, Item], profiles: Mapping[str, Item]) -> Iterator[Diagnostic]:
    spec = item.model.spec
    if spec.profile not in profiles:
        yield _unknown(
            item, "UnknownProfile", "Node profile does not exist", "NodeProfile", spec.profile, profiles, "profile"
        )
    if spec.fabric is None and len(fabrics) != 1:
        yield item.problem(
            "UnknownFabric",
            "Fabric does not exist",
            "No fabric is named, and there is not exactly one to take." if fabrics else "There is no Fabric at all.",
            "spec",
            remedy=f"Name one of {listed(fabrics)}." if fabrics else "Add one under cluster-state/fabric/.",
        )
        return
    if spec.fabric is not None and spec.fabric not in fabrics:
        yield _unknown(item, "UnknownFabric", "Fabric does not exist", "Fabric", spec.fabric, fabrics, "fabric")
        return
    fabric = fabrics[spec.fabric] if spec.fabric else next(iter(fabrics.values()))
    yield from _place(item, fabric)


def _unknown(item: Item, code: str, summary: str, kind: str, name: str, known: Iterable[str], *path: str) -> Diagnostic:
    return item.problem(
        code,
        summary,
        f'There is no {kind} "{name}"; there are {listed(known)}.',
        "spec",
        *path,
        remedy=did_you_mean(name, known),
    )


def _place(item: Item, fabric: Item) -> Iterator[Diagnostic]:
    spec, names = item.model.spec, level_names(fabric)
    racks = [name for path, name in domains_of(fabric) if path[-2] == "racks"]
    if spec.rack not in racks:
        yield item.problem(
            "UnknownRack",
            "Rack does not exist",
            f'Fabric "{fabric.name}" has no rack "{spec.rack}"; it has {listed(racks)}.',
            "spec",
            "rack",
            remedy=did_you_mean(spec.rack, racks),
        )
    above = set(names[names.index("node") + 1 : -1]) if "node" in names else set()
    own = above - {"rack", "spineGroup"}
    for level in spec.domains:
        if level not in own:
            yield item.problem(
                "UnknownLevel",
                "Level does not exist",
                f'Fabric "{fabric.name}" has no level "{level}" above the node to fill in; it has {listed(own)}.',
                "spec",
                "domains",
                level,
                remedy=did_you_mean(level, own),
                of_key=True,
            )
    for level in sorted(own - spec.domains.keys()):
        yield item.problem(
            "MissingDomain",
            "Place of the nodes is incomplete",
            f'Fabric "{fabric.name}" has a level {level}; which domain are they in?',
            "spec",
            remedy=f"Add `domains: {{{level}: NAME}}`.",
        )


def _named_twice(item: Item, first: dict[str, Item]) -> Iterator[Diagnostic]:
    again: dict[str, list[str]] = {}
    for name in item.model.spec.nodes:
        if first.setdefault(name, item) is not item:
            again.setdefault(first[name].name, []).append(name)
    for other, names in sorted(again.items()):
        yield item.problem(
            "NodeNamedTwice",
            "Node is in two node sets",
            f'NodeSet "{other}" has {listed(names)} too.',
            "spec",
            "nodes",
            remedy="Leave each node in the set of the rack it stands in.",
        )


def _overrides(item: Item, profiles: Mapping[str, Item]) -> Iterator[Diagnostic]:
    profile = profiles.get(item.model.spec.profile)
    nodes = frozenset(item.model.spec.nodes)
    seen: set[str] = set()
    for written, override in item.model.spec.overrides.items():
        where = ("spec", "overrides", written)
        try:
            names = expand(written, len(nodes))
        except ValueError as err:
            yield item.problem("BadNodeList", "Node list cannot be read", f"{err}.", *where, of_key=True)
            continue
        unknown = [name for name in names if name not in nodes]
        if unknown:
            told, guess = f"The set does not have {listed(unknown)}.", did_you_mean(unknown[0], item.model.spec.nodes)
            yield item.problem("UnknownNode", "Node is not in this set", told, *where, remedy=guess, of_key=True)
        again = [name for name in names if name in seen]
        if again:
            told = f"Another override names {listed(again)} too."
            yield item.problem(
                "NodeNamedTwice", "Node is in two overrides", told, *where, remedy="Join them.", of_key=True
            )
            return
        seen.update(names)
        if profile is not None:
            yield from _override_parts(item, written, override, profile.model.spec)


def _override_parts(item: Item, written: str, override: Any, profile: Any) -> Iterator[Diagnostic]:
    shared = (name for switch in profile.pcie_switches for name in switch.shared_nics)
    count, nics = gpu_count(profile), [*dict.fromkeys((*(nic.name for nic in profile.nics), *shared))]
    for gpu in override.gpus:
        if gpu >= count:
            yield item.problem(
                "UnknownGpu",
                "GPU does not exist",
                f"Of {counted(count, 'GPU')}, 0 to {count - 1}, none is {gpu}.",
                "spec",
                "overrides",
                written,
                "gpus",
                str(gpu),
                of_key=True,
            )
    for name in override.nics:
        if name not in nics:
            yield item.problem(
                "UnknownNic",
                "NIC does not exist",
                f'The profile has no "{name}"; it has {listed(nics, 16)}.',
                "spec",
                "overrides",
                written,
                "nics",
                name,
                remedy=did_you_mean(name, nics),
                of_key=True,
            )
