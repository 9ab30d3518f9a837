"""What is a job's document judged against, and where do its defaults come from?

The few facts about the cluster that jobs depend on, gathered once. Equal surroundings give equal jobs, so that
converted jobs can be kept for as long as nothing around them changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.documents.check import Item
from reconciler.model.inventory import Inventory
from reconciler.model.queue import PriorityClass, QuotaTree
from reconciler.model.units import CLUSTER_LEVEL, NODE_LEVEL, NVLINK_LEVEL, ClassName, Nanoseconds, QueueName

_NIC: Final = "gangops.io/nic-"


def nic_label(kind: str) -> str:
    """The label of nodes that have a NIC of this kind: how `topology.nicKind` of a job finds them."""
    return f"{_NIC}{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRules:
    """What a queue says about its jobs, with what it inherits."""

    user: str
    group: str
    mount_roots: tuple[str, ...]
    secret_roots: tuple[str, ...]
    time_limit: Nanoseconds | None
    gpus_per_job: int | None
    max_priority: int | None
    max_priority_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """`largest` has the GPUs of the largest domain by GPU type and level, of the whole declared inventory."""

    queues: Mapping[str, QueueRules]
    classes: Mapping[ClassName, PriorityClass]
    default_class: ClassName | None
    default_time_limit: Nanoseconds | None
    levels: tuple[str, ...]
    gpu_types: tuple[str, ...]
    largest: Mapping[tuple[str, str], int]
    nic_labels: frozenset[str] = frozenset()
    """Of the kinds of NIC that any declared node has."""

    def tensor_level(self, gpu_types: Iterable[str]) -> tuple[str, int]:
        """The level a tensor group goes inside by default, and the GPUs that surely fit there whatever the type.

        The NVLink domain, or the node where GPUs have no NVLink.
        """
        types = tuple(gpu_types) or self.gpu_types
        for level in (NVLINK_LEVEL, NODE_LEVEL):
            size = min((self.largest.get((gpu_type, level), 0) for gpu_type in types), default=0)
            if size > 1:
                return level, size
        return NODE_LEVEL, 1

    @property
    def job_level(self) -> str | None:
        """The level a gang of several nodes prefers: the first above the node, None when there is only the cluster."""
        above = self.levels[self.levels.index(NODE_LEVEL) + 1 :] if NODE_LEVEL in self.levels else ()
        return next((level for level in above if level != CLUSTER_LEVEL), None)


def surroundings_of(
    inventory: Inventory,
    quotas: QuotaTree,
    classes: Mapping[ClassName, PriorityClass],
    queues: Iterable[Item],
    gpu_types: Iterable[str],
    default_time_limit: Nanoseconds | None,
) -> Surroundings:
    """The facts of a cluster. `gpu_types` are those of all profiles, whether or not a node has them yet."""
    default = next((name for name, priority in classes.items() if priority.default), None)
    return Surroundings(
        queues=_queue_rules({item.name: item.model.spec for item in queues}, quotas, classes),
        classes=classes,
        default_class=default,
        default_time_limit=default_time_limit,
        levels=tuple(level.name for level in inventory.levels),
        gpu_types=tuple(sorted(set(gpu_types))),
        largest=_largest(inventory),
        nic_labels=frozenset(label for node in inventory.nodes for label in node.labels if label.startswith(_NIC)),
    )


def _queue_rules(
    specs: Mapping[str, object], quotas: QuotaTree, classes: Mapping[ClassName, PriorityClass]
) -> dict[str, QueueRules]:
    found = {}
    for name in sorted(specs):
        path = [spec for ancestor in _path(name, quotas) if (spec := specs.get(ancestor)) is not None]
        limits = [spec.limits for spec in path]  # type: ignore[attr-defined]  # a pydantic model, known to `schema` only
        tops = [c for limit in limits if (c := classes.get(ClassName(limit.max_priority_class or ""))) is not None]
        top = min(tops, key=lambda c: (c.value, c.name), default=None)
        roots = next((spec.mount_roots for spec in path if spec.mount_roots), ())  # type: ignore[attr-defined]  # as above
        secrets = next((spec.secret_roots for spec in path if spec.secret_roots), ())  # type: ignore[attr-defined]  # as above
        queue = quotas.queues[QueueName(name)]
        found[name] = QueueRules(
            user=queue.run_as,
            group=queue.run_as_group,
            mount_roots=roots,
            secret_roots=secrets,
            time_limit=min((limit.time_limit for limit in limits if limit.time_limit is not None), default=None),
            gpus_per_job=min((limit.gpus_per_job for limit in limits if limit.gpus_per_job is not None), default=None),
            max_priority=top.value if top else None,
            max_priority_class=top.name if top else "",
        )
    return found


_DEEP: Final = 64  # queues inside each other; lint allows fewer


def _path(name: str, quotas: QuotaTree) -> list[QueueName]:
    """The queue and those around it, however wrongly they are nested."""
    found = [QueueName(name)]
    while len(found) < _DEEP and (parent := quotas.queues[found[-1]].parent) in quotas.queues and parent is not None:
        found.append(parent)
    return found


def _largest(inventory: Inventory) -> dict[tuple[str, str], int]:
    levels = [level.name for level in inventory.levels]
    if not levels:
        return {}
    above = inventory.above_node
    totals: dict[tuple[str, str, tuple[str, ...]], int] = {}
    for node in inventory.nodes:
        kind, gpus = node.shape.gpu_type, len(node.shape.gpus)
        domains = [(CLUSTER_LEVEL, ()), (NODE_LEVEL, (*node.path, node.name))]
        domains += [(level, node.path[: depth + 1]) for depth, level in enumerate(above)]
        for level, domain in domains:
            totals[kind, level, domain] = totals.get((kind, level, domain), 0) + gpus
    found: dict[tuple[str, str], int] = {}
    for (gpu_type, domain_level, _), gpus in totals.items():
        found[gpu_type, domain_level] = max(found.get((gpu_type, domain_level), 0), gpus)
    for node in inventory.nodes:  # levels before `node` are parts of it
        island = max((mask.bit_count() for mask in node.shape.nvlink), default=1)
        for level in levels[: levels.index(NODE_LEVEL)]:
            key = (node.shape.gpu_type, level)
            found[key] = max(found.get(key, 0), island)
    return dict(sorted(found.items()))
