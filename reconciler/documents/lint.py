"""Do the cluster's own documents make sense together? Every contradiction, with its place and what to do.

Levels, racks, profiles, nodes, queues, classes, windows, people. Jobs are judged by `lint_jobs`, against a cluster
that is sound. Nothing here decides: a document that is well-formed and consistent may still be unwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from reconciler.documents.check import Item, at_most
from reconciler.documents.lint_hardware import lint_hardware
from reconciler.documents.lint_nodes import lint_nodes
from reconciler.documents.lint_queues import lint_queues
from reconciler.documents.references import unknown_queue
from reconciler.documents.similar import did_you_mean, listed
from reconciler.errors import Diagnostic


@dataclass(frozen=True, slots=True)
class Documents:
    """Well-formed documents by kind, in the order of their files."""

    by_kind: Mapping[str, tuple[Item, ...]]

    def of(self, kind: str) -> tuple[Item, ...]:
        return self.by_kind.get(kind, ())

    def named(self, kind: str) -> dict[str, Item]:
        """By name; of repeated names, the first."""
        found: dict[str, Item] = {}
        for item in self.of(kind):
            found.setdefault(item.name, item)
        return found


def documents_of(items: Iterable[Item]) -> Documents:
    """Sort items by kind, then file and place in the file."""
    by_kind: dict[str, list[Item]] = {}
    for item in items:
        by_kind.setdefault(item.kind, []).append(item)
    return Documents({k: tuple(sorted(v, key=lambda i: (i.file, i.index))) for k, v in sorted(by_kind.items())})


_MOST: Final = 500


def lint_cluster(documents: Documents) -> list[Diagnostic]:
    """All that is wrong with the cluster's own documents, unsorted."""
    rules = chain(
        _names(documents),
        _config(documents),
        lint_hardware(documents.of("Fabric"), documents.of("NodeProfile")),
        lint_nodes(documents.of("Fabric"), documents.of("NodeProfile"), documents.of("NodeSet")),
        _classes(documents),
        lint_queues(
            documents.named("Queue"),
            documents.named("PriorityClass"),
            documents.named("NodeProfile"),
            documents.of("NodeSet"),
        ),
        _windows(documents),
        _people(documents),
        _labels(documents),
    )
    return at_most(rules, _MOST)


# --- names ----------------------------------------------------------------------------------------------------------


def _names(documents: Documents) -> Iterator[Diagnostic]:
    for kind, items in documents.by_kind.items():
        first: dict[str, Item] = {}
        for item in items:
            if kind == "Job":  # named by folder and file
                continue
            if item.name in first:
                place = first[item.name].place("metadata", "name")
                yield item.problem(
                    "DuplicateName",
                    "Name is used twice",
                    f'Another {kind} "{item.name}" is at {place.file}:{place.line}.',
                    "metadata",
                    "name",
                    remedy="Rename one, or remove it.",
                )
            first.setdefault(item.name, item)


def _labels(documents: Documents) -> Iterator[Diagnostic]:
    for items in documents.by_kind.values():
        for item in items:
            if item.kind != "Job":
                yield from reserved_labels(item)


def reserved_labels(item: Item) -> Iterator[Diagnostic]:
    """Labels that only we may set."""
    places: list[tuple[tuple[str, ...], Mapping[str, str]]] = [(("metadata", "labels"), item.model.metadata.labels)]
    if item.kind == "NodeSet":
        places.append((("spec", "labels"), item.model.spec.labels))
        places += [(("spec", "overrides", n, "labels"), o.labels) for n, o in item.model.spec.overrides.items()]
    for path, labels in places:
        for key in labels:
            if key.startswith(("gangops/", "gangops.io/")):
                yield item.problem(
                    "LabelReserved",
                    "Label is reserved",
                    f'Labels that start with "{key.split("/")[0]}/" are set by GangOps.',
                    *path,
                    key,
                    remedy="Use a prefix of your own, or none.",
                    of_key=True,
                )


def _people(documents: Documents) -> Iterator[Diagnostic]:
    for field, what in (("emails", "E-mail address"), ("ssh_keys", "Key")):
        first: dict[str, Item] = {}
        for item in documents.of("User"):
            for position, value in enumerate(getattr(item.model.spec, field)):
                identity = value.lower() if field == "emails" else " ".join(value.split()[:2])
                if first.setdefault(identity, item) is not item:
                    yield item.problem(
                        "DuplicateName",
                        "Name is used twice",
                        f'{what} also belongs to User "{first[identity].name}": commits could not be told apart.',
                        "spec",
                        "sshKeys" if field == "ssh_keys" else field,
                        position,
                        remedy="Give it to one of them.",
                    )


# --- rules ----------------------------------------------------------------------------------------------------------


def _config(documents: Documents) -> Iterator[Diagnostic]:
    for extra in documents.of("ClusterConfig")[1:]:
        yield extra.problem(
            "SeveralClusterConfigs",
            "There is more than one ClusterConfig",
            "A repository is one cluster.",
            "kind",
            remedy="Keep one.",
        )
    for item in documents.of("ClusterConfig")[:1]:
        spec = item.model.spec
        if spec.agents.unreachable_after > spec.agents.lost_after:
            yield item.problem(
                "AgentTimes",
                "Times of silence are in the wrong order",
                "A node would be lost before it is unreachable.",
                "spec",
                "agents",
                "lostAfter",
                remedy="Make lostAfter at least unreachableAfter.",
            )
        if spec.agents.report_interval >= spec.agents.unreachable_after:
            yield item.problem(
                "AgentTimes",
                "Times of silence are in the wrong order",
                "A node would be unreachable between two of its reports.",
                "spec",
                "agents",
                "unreachableAfter",
                remedy="Make unreachableAfter several times reportInterval.",
            )
        forbids = spec.scheduling.jobs_may_pass == "never"  # noqa: S105  # a rule, no password
        if forbids and spec.scheduling.backfill.mode != "none":
            yield item.problem(
                "BackfillNeedsPassing",
                "Backfill contradicts jobsMayPass",
                "Backfill lets later jobs run in gaps; jobsMayPass: never forbids it.",
                "spec",
                "scheduling",
                "jobsMayPass",
                remedy="Set backfill.mode: none, or jobsMayPass: always.",
            )


def _classes(documents: Documents) -> Iterator[Diagnostic]:
    defaults = [item for item in documents.of("PriorityClass") if item.model.spec.default]
    for extra in defaults[1:]:
        yield extra.problem(
            "MultipleDefaultClasses",
            "More than one priority class is the default",
            f'"{defaults[0].name}" is the default already.',
            "spec",
            "default",
            remedy="Leave `default: true` in one.",
        )


# --- windows --------------------------------------------------------------------------------------------------------


def _windows(documents: Documents) -> Iterator[Diagnostic]:
    nodes = {name for item in documents.of("NodeSet") for name in item.model.spec.nodes}
    queues = documents.named("Queue")
    for item in (*documents.of("Maintenance"), *documents.of("Reservation")):
        unknown = [name for name in item.model.spec.nodes if name not in nodes]
        if unknown:
            yield item.problem(
                "MaintenanceUnknownNode",
                "Window names nodes that do not exist",
                f"No NodeSet has {listed(unknown)}.",
                "spec",
                "nodes",
                remedy=did_you_mean(unknown[0], nodes),
            )
        for position, queue in enumerate(item.model.spec.queues if item.kind == "Reservation" else ()):
            if queue not in queues:
                yield unknown_queue(item, queue, queues, "spec", "queues", position)
