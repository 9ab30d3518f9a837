"""Is the tree of queues a tree, and do its numbers add up? The part of `lint` about quotas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from reconciler.documents.check import Item
from reconciler.documents.convert_cluster import gpu_count
from reconciler.documents.references import cycles_of, unknown_class, unknown_gpu_type, unknown_queue
from reconciler.errors import Diagnostic


def lint_queues(
    queues: Mapping[str, Item], classes: Iterable[str], profiles: Mapping[str, Item], node_sets: Iterable[Item]
) -> Iterator[Diagnostic]:
    """All that is wrong with the quota tree, against the GPUs that are declared."""
    capacity = _declared(profiles, node_sets)
    for item in queues.values():
        spec = item.model.spec
        if spec.parent is not None and spec.parent not in queues:
            yield unknown_queue(item, spec.parent, queues, "spec", "parent")
        for field in ("guaranteed", "ceiling", "lend"):
            counts = getattr(spec, field)
            for gpu_type in counts if isinstance(counts, Mapping) else ():
                if gpu_type not in capacity:
                    yield unknown_gpu_type(item, gpu_type, capacity, "spec", field, gpu_type, of_key=True)
        if spec.run_as not in (None, "submitter") and "root" in (spec.run_as.user, spec.run_as.group):
            field = "user" if spec.run_as.user == "root" else "group"
            yield item.problem(
                "NonRootUser",
                "Ranks may not run as root",
                "Agents refuse accounts with a uid or gid below 1000.",
                "spec",
                "runAs",
                field,
                remedy="Name a service account.",
            )
        top = spec.limits.max_priority_class
        if top is not None and top not in classes:
            yield unknown_class(item, top, classes, "spec", "limits", "maxPriorityClass")
    cycles = cycles_of({name: [i.model.spec.parent] for name, i in queues.items()})
    for members in cycles:
        yield queues[members[0]].problem(
            "QueueCycle",
            "Queues are inside each other",
            f"The chain {' -> '.join((*members, members[0]))} never ends.",
            "spec",
            "parent",
            remedy="Give one of them another parent, or none.",
        )
    deep = [] if cycles else [name for name in queues if _depth(queues, name) > _DEEPEST]
    for name in deep:
        yield queues[name].problem(
            "QueueTooDeep",
            "Queues are nested too deeply",
            f"At most {_DEEPEST} are inside each other.",
            "spec",
            "parent",
            remedy="Give it a parent nearer to the root.",
        )
    if not cycles and not deep:
        yield from _guarantees(queues, capacity)


_DEEPEST: Final = 16


def _depth(queues: Mapping[str, Item], name: str) -> int:
    """Queues from this one to its root, counted no further than needed."""
    depth, at = 1, queues[name].model.spec.parent
    while at in queues and depth <= _DEEPEST:
        depth, at = depth + 1, queues[at].model.spec.parent
    return depth


def _guarantees(queues: Mapping[str, Item], capacity: Mapping[str, int]) -> Iterator[Diagnostic]:
    children: dict[str | None, list[str]] = {}
    for name, item in queues.items():
        children.setdefault(item.model.spec.parent, []).append(name)
    for name, item in queues.items():
        said, ceiling = item.model.spec.guaranteed or {}, item.model.spec.ceiling
        for gpu_type in sorted(said.keys() & ceiling.keys()):
            if said[gpu_type] > ceiling[gpu_type]:
                yield item.problem(
                    "GuaranteeOverCeiling",
                    "Queue is guaranteed more than it may hold",
                    f"{said[gpu_type]} {gpu_type} guaranteed, ceiling {ceiling[gpu_type]}.",
                    "spec",
                    "guaranteed",
                    gpu_type,
                    remedy="Raise the ceiling or lower the guarantee.",
                )
        if item.model.spec.guaranteed is not None:
            for gpu_type, total in _sums(queues, children, children.get(name, ())):
                if total > said.get(gpu_type, 0):
                    yield item.problem(
                        "GuaranteesExceedParent",
                        "Queues inside are guaranteed more than the queue around them",
                        f"Its children together: {total} {gpu_type}; itself: {said.get(gpu_type, 0)}.",
                        "spec",
                        "guaranteed",
                        gpu_type,
                        remedy="Raise this guarantee or lower theirs.",
                    )
    roots = [name for name, item in queues.items() if item.model.spec.parent is None]
    for gpu_type, total in _sums(queues, children, roots):
        if gpu_type in capacity and total > capacity[gpu_type]:
            largest = max(_holders(queues, children, roots), key=lambda n: (_own(queues, n).get(gpu_type, 0), n))
            yield queues[largest].problem(
                "GuaranteesExceedCapacity",
                "More is guaranteed than there is",
                f"{total} {gpu_type} are guaranteed in all, {capacity[gpu_type]} are declared.",
                "spec",
                "guaranteed",
                gpu_type,
                remedy="Lower guarantees, or add nodes.",
            )


def _own(queues: Mapping[str, Item], name: str) -> Mapping[str, int]:
    return queues[name].model.spec.guaranteed or {}


def _holders(
    queues: Mapping[str, Item], children: Mapping[str | None, list[str]], roots: Sequence[str]
) -> Iterator[str]:
    """The queues whose own words make up the roots' guarantees."""
    for name in roots:
        if queues[name].model.spec.guaranteed is not None or name not in children:
            yield name
        else:
            yield from _holders(queues, children, children[name])


def _sums(
    queues: Mapping[str, Item], children: Mapping[str | None, list[str]], names: Iterable[str]
) -> list[tuple[str, int]]:
    """GPUs guaranteed to these queues together, by type; one that does not say has what its children have."""
    total: dict[str, int] = {}
    for name in names:
        own = queues[name].model.spec.guaranteed
        for gpu_type, count in own.items() if own is not None else _sums(queues, children, children.get(name, ())):
            total[gpu_type] = total.get(gpu_type, 0) + count
    return sorted(total.items())


def _declared(profiles: Mapping[str, Item], node_sets: Iterable[Item]) -> dict[str, int]:
    """Declared GPUs by type, as far as the profiles are known."""
    found: dict[str, int] = {item.model.spec.gpu_type: 0 for item in profiles.values()}
    for item in node_sets:
        profile = profiles.get(item.model.spec.profile)
        if profile is not None:
            found[profile.model.spec.gpu_type] += gpu_count(profile.model.spec) * len(item.model.spec.nodes)
    return dict(sorted(found.items()))
