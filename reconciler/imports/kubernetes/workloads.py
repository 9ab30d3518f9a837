"""Which members does a Kubernetes object have, and what does it say about all of them? One reader a kind.

A member is a kind of pod and how many there are. Everything read is in our words: limits in seconds, restarts as a
count, the smallest number of pods for gangs that may shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reconciler.documents.positions import Path
from reconciler.imports.kubernetes.source import Source

_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"


@dataclass(frozen=True, slots=True)
class Members:
    """`count` pods of the template at this path."""

    name: str
    count: int
    template: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One object, as far as its kind matters."""

    members: tuple[Members, ...]
    queue: str = ""
    queue_path: Path = ()
    priority_class: str = ""
    limit: int | None = None
    restarts: int | None = None
    suspend: bool = False
    least: int | None = None
    tasks: int | None = None
    """As an array: so many tasks of one member each."""
    parallel: int | None = None
    slice_key: str = ""
    slice_size: int = 0
    """So many pods belong together, inside the level of this key; 0 for no such wish."""
    topology: Mapping[str, str] = field(default_factory=dict)
    """Level key by `required` or `preferred`."""


def _pytorch(source: Source) -> Workload:
    replicas: Path = ("spec", "pytorchReplicaSpecs")
    policy: Path = ("spec", "runPolicy")
    members = tuple(
        Members(name.lower(), source.number(*replicas, name, "replicas", default=1) or 0, (*replicas, name, "template"))
        for name in sorted(source.fields(*replicas), key=lambda name: (name != "Master", name))
    )
    total = sum(member.count for member in members)
    least = source.number("spec", "elasticPolicy", "minReplicas")
    if source.number("spec", "elasticPolicy", "maxReplicas", default=total) != total:
        source.note("CarriedOverChanged", "It grows to `replicas` at most.", "spec", "elasticPolicy", "maxReplicas")
    least = source.number(*policy, "schedulingPolicy", "minAvailable", default=least)
    policies = [source.take(*replicas, name, "restartPolicy") for name in source.fields(*replicas)]
    never = all(said == "Never" for said in policies)
    return Workload(
        members=members,
        queue=source.text(*policy, "schedulingPolicy", "queue"),
        queue_path=(*policy, "schedulingPolicy", "queue"),
        priority_class=source.text(*policy, "schedulingPolicy", "priorityClass"),
        limit=source.number(*policy, "activeDeadlineSeconds"),
        restarts=source.number(*policy, "backoffLimit", default=0 if never else None),
        suspend=source.take(*policy, "suspend") is True,
        least=least,
    )


def _jobset(source: Source) -> Workload:
    members, limits = [], []
    single = len(source.items("spec", "replicatedJobs")) == 1
    size = 0
    for position in range(len(source.items("spec", "replicatedJobs"))):
        path: Path = ("spec", "replicatedJobs", position)
        job: Path = (*path, "template", "spec")
        replicas = source.number(*path, "replicas", default=1) or 0
        pods = source.number(*job, "parallelism", default=1) or 0
        if source.peek(*job, "completions") == pods:
            source.take(*job, "completions")
        source.take(*job, "completionMode")
        if source.peek(*job, "backoffLimit") == 0:  # a gang fails and restarts as a whole anyway
            source.take(*job, "backoffLimit")
        limits.append(source.number(*job, "activeDeadlineSeconds"))
        size = pods if single and replicas > 1 else 0
        members.append(Members(source.text(*path, "name") or f"part-{position}", replicas * pods, (*job, "template")))
    key = source.text("metadata", "annotations", _EXCLUSIVE) if size else ""
    return Workload(
        members=tuple(members),
        limit=min((limit for limit in limits if limit is not None), default=None),
        restarts=source.number("spec", "failurePolicy", "maxRestarts"),
        suspend=source.take("spec", "suspend") is True,
        slice_key=key,
        slice_size=size if key else 0,
    )


def _job(source: Source) -> Workload:
    parallelism = source.number("spec", "parallelism", default=1) or 0
    completions = source.number("spec", "completions")
    indexed = source.take("spec", "completionMode") == "Indexed"
    as_array = completions is not None and completions > parallelism
    if as_array and not indexed:
        source.note(
            "CarriedOverChanged", "Each completion became a task with a number of its own.", "spec", "completions"
        )
    return Workload(
        members=(Members("worker", 1 if as_array else parallelism, ("spec", "template")),),
        limit=source.number("spec", "activeDeadlineSeconds"),
        restarts=source.number("spec", "backoffLimit"),
        suspend=source.take("spec", "suspend") is True,
        tasks=completions if as_array else None,
        parallel=parallelism if as_array else None,
    )


def _volcano(source: Source) -> Workload:
    members = tuple(
        Members(
            source.text("spec", "tasks", position, "name") or f"task-{position}",
            source.number("spec", "tasks", position, "replicas", default=1) or 0,
            ("spec", "tasks", position, "template"),
        )
        for position in range(len(source.items("spec", "tasks")))
    )
    for position in range(len(members)):
        if source.peek("spec", "tasks", position, "minAvailable") == members[position].count:
            source.take("spec", "tasks", position, "minAvailable")
    if source.peek("spec", "schedulerName") == "volcano":
        source.take("spec", "schedulerName")
    topology = {}
    tier = source.peek("spec", "networkTopology", "highestTierAllowed")
    if type(tier) is int:
        hard = source.take("spec", "networkTopology", "mode") != "soft"
        topology["required" if hard else "preferred"] = (
            f"tier/{source.take('spec', 'networkTopology', 'highestTierAllowed')}"
        )
    return Workload(
        members=members,
        queue=source.text("spec", "queue"),
        queue_path=("spec", "queue"),
        priority_class=source.text("spec", "priorityClassName"),
        restarts=source.number("spec", "maxRetry"),
        least=source.number("spec", "minAvailable"),
        topology=topology,
    )


READERS: Final[Mapping[tuple[str, str], Callable[[Source], Workload]]] = {
    ("kubeflow.org", "PyTorchJob"): _pytorch,
    ("jobset.x-k8s.io", "JobSet"): _jobset,
    ("batch", "Job"): _job,
    ("batch.volcano.sh", "Job"): _volcano,
}
"""By API group and kind; any version of the group is read."""


def reader_of(document: Mapping[str, Any]) -> Callable[[Source], Workload] | None:
    """What reads this object, or None."""
    version, kind = document.get("apiVersion"), document.get("kind")
    group = version.rpartition("/")[0] if isinstance(version, str) else ""
    return READERS.get((group, str(kind)))
