"""What do the workloads of a manifest come to as Jobs? One Job an object, and a note for every field left behind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reconciler.documents.loader import Document, load
from reconciler.documents.positions import Path
from reconciler.documents.quantities import print_duration
from reconciler.documents.schema.base import LABEL_PATTERN
from reconciler.imports.gang import checkpoint_of, even_gang, is_name, job_document, job_name, roles_of
from reconciler.imports.kubernetes.pods import Pod, pod_of
from reconciler.imports.kubernetes.source import Source
from reconciler.imports.kubernetes.workloads import Members, Workload, reader_of
from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Imported, Notes

_SECOND: Final = 10**9
_QUEUE: Final = "kueue.x-k8s.io/queue-name"
_CLASS: Final = "kueue.x-k8s.io/priority-class"
_LIMIT: Final = "kueue.x-k8s.io/max-exec-time-seconds"
_LEAST: Final = "kueue.x-k8s.io/job-min-parallelism"
_REQUIRED: Final = "kueue.x-k8s.io/podset-required-topology"
_PREFERRED: Final = "kueue.x-k8s.io/podset-preferred-topology"
_SLICE: Final = "kueue.x-k8s.io/podset-slice-required-topology"
_SLICE_SIZE: Final = "kueue.x-k8s.io/podset-slice-size"
_LEVELS: Final = (
    ("hostname", "node"), ("nvlink", "nvlinkDomain"), ("clique", "nvlinkDomain"), ("rack", "rack"),
    ("block", "spineGroup"), ("spine", "spineGroup"),
)  # fmt: skip
"""What the last part of a topology key tells when the map file does not; first match."""


def jobs_from_manifest(content: bytes, file: str, queue: str | None = None, mapped: Mapped | None = None) -> Imported:
    """The Jobs of a manifest's workloads, lists included. Other objects beside them are noted."""
    notes = Notes(file=file)
    loaded = load(content, file)
    for diagnostic in loaded.diagnostics:
        notes.add(diagnostic)
    found: list[dict[str, Any]] = []
    strangers: list[tuple[Source, str]] = []
    for document in loaded.documents if loaded.ok else ():
        for root in _objects(document):
            source = Source(document, root, notes)
            reader = reader_of(source.fields())
            if reader is None:
                strangers.append((source, f"{source.peek('kind') or 'something without a kind'}"))
            elif job := _job(source, reader(source), queue, mapped or Mapped()):
                found.append(job)
    for source, kind in strangers:
        if found or notes.errors:
            source.note("NotCarriedOver", f"A {kind} is not a workload.", "kind")
        else:
            told = f"Read are PyTorchJob, JobSet, Job and Volcano's Job; this is a {kind}."
            source.refuse("UnknownWorkload", told, "kind")
    if not found and not notes.errors:
        notes.refuse("UnknownWorkload", "There is no workload in it.")
    return notes.imported(*found)


def _objects(document: Document) -> list[Path]:
    """Where the objects of a document are: one, or those of a List."""
    value = document.value
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        return [("items", position) for position in range(len(value["items"]))]  # type: ignore[arg-type]  # a list, as just seen
    return [()]


def _job(source: Source, workload: Workload, queue: str | None, mapped: Mapped) -> dict[str, Any] | None:
    """The Job of one object, in numbered steps; None when it was refused."""
    written = source.text("metadata", "name") or source.text("metadata", "generateName")
    name = job_name(written)
    if name != written.rstrip("-"):
        source.note("CarriedOverChanged", f"Its name here is {name}.", "metadata", "name")
    # 1. Who is charged, how urgent.
    spec: dict[str, Any] = {"queue": _queue(source, workload, queue, mapped)}
    pods = [(members, pod_of(source, members.template, mapped)) for members in workload.members if members.count]
    spec |= _class(source, workload, mapped)
    # 2. The gang and what it runs.
    if not _is_gang(source, pods):
        return None
    spec |= _gang(source, workload, pods, mapped)
    run = _run(source, pods, spec)
    if run is None:
        return None
    # 3. Where it goes.
    _topology(source, workload, pods, spec, mapped)
    shared = dict(pods[0][1].shared)
    if kind := shared.pop("nicKind", None):
        spec.setdefault("topology", {})["nicKind"] = kind
    spec |= shared
    # 4. How it behaves.
    _behaviour(source, workload, pods, name, spec, mapped)
    spec["run"] = run
    # 5. What is left over.
    labels = _labels(source)
    source.note_leftovers(_WHY)
    return job_document(name, spec, labels=labels, annotations={})


# --- 1. queue and class ---------------------------------------------------------------------------------------------


def _queue(source: Source, workload: Workload, queue: str | None, mapped: Mapped) -> str:
    label = source.text("metadata", "labels", _QUEUE)
    said = label or workload.queue
    space = source.peek("metadata", "namespace")
    if queue is not None:
        return queue
    wanted = mapped.queues.get(said, said)
    if not wanted and space in mapped.queues:
        source.take("metadata", "namespace")
        wanted = mapped.queues[space]
    if not is_name(wanted):
        path = ("metadata", "labels", _QUEUE) if label else workload.queue_path or ("metadata",)
        told = f"{wanted!r} is no queue's name." if wanted else "The object names no queue."
        source.refuse("NoQueue", told, *path, remedy="Give --queue, or a map file with `queues`.")
    return wanted


def _class(source: Source, workload: Workload, mapped: Mapped) -> dict[str, str]:
    template = workload.members[0].template if workload.members else ()
    said = source.text("metadata", "labels", _CLASS) or workload.priority_class
    said = said or source.text(*template, "spec", "priorityClassName")
    wanted = mapped.classes.get(said, said)
    return {"priorityClass": wanted} if is_name(wanted) else {}


# --- 2. the gang ----------------------------------------------------------------------------------------------------


def _is_gang(source: Source, pods: Sequence[tuple[Members, Pod]]) -> bool:
    """Whether it can be one gang; refused with the reason when not."""
    if not any(pod.gpus for _, pod in pods):
        source.refuse("NoGpus", "No container asks for nvidia.com/gpu or amd.com/gpu.", "spec")
        return False
    for members, pod in pods:
        if not pod.gpus:
            told = f'"{members.name}" has no GPU; every member of a gang has one.'
            source.refuse("CannotBecomeJob", told, *members.template, remedy="Let a member with GPUs do its work.")
        if "command" not in pod.run:
            source.refuse(
                "NoCommand",
                f'"{members.name}" says no command: what its image starts by itself is not known here.',
                *members.template,
                remedy="Add `command` to the container.",
            )
    first = pods[0][1]
    for members, pod in pods[1:]:
        differing = [key for key in ("image", "workingDir", "mounts") if pod.run.get(key) != first.run.get(key)]
        differing += [] if pod.shared.get("gpuType") == first.shared.get("gpuType") else ["gpuType"]
        if differing:
            told = f'"{members.name}" differs in {", ".join(differing)}; the members of one Job share them.'
            source.refuse("CannotBecomeJob", told, *members.template)
        elif pod.shared != first.shared:
            told = f'"{members.name}" has other resources or nodes; those of "{pods[0][0].name}" were taken for all.'
            source.note("CarriedOverChanged", told, *members.template)
    return not source.notes.errors


def _gang(source: Source, workload: Workload, pods: Sequence[tuple[Members, Pod]], mapped: Mapped) -> dict[str, Any]:
    each = {pod.gpus for _, pod in pods}
    alike = len(each) == 1 and all(pod.run == pods[0][1].run for _, pod in pods)
    total = sum(members.count for members, _ in pods)
    least = _whole(source.text("metadata", "annotations", _LEAST)) or workload.least
    if not alike:
        names = [job_name(members.name) for members, _ in pods]
        if least is not None and least < total:
            source.notes.note("CarriedOverChanged", "A gang of unlike members has a fixed size.")
        return roles_of((name, members.count, pod.gpus) for name, (members, pod) in zip(names, pods, strict=True))
    spec = even_gang(total, pods[0][1].gpus, mapped, least=max(1, least) if least is not None else None)
    if 1 < pods[0][1].gpus < mapped.gpus_per_node and total > 1:
        told = "Pods that share a node become one process, which sees the GPUs of all of them."
        source.note("CarriedOverChanged", told, *pods[0][0].template)
    if workload.tasks is not None:
        spec["array"] = {"count": min(workload.tasks, 10_000), "maxParallel": workload.parallel or 1}
        if workload.tasks > 10_000:
            source.refuse("CannotBecomeJob", "An array has at most 10000 tasks.", "spec", "completions")
    return spec


def _run(source: Source, pods: Sequence[tuple[Members, Pod]], spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """What runs; for unlike members, a script that looks at the role."""
    first = pods[0][1]
    run = dict(first.run)
    per_node = any(pod.gpus > 1 for _, pod in pods)
    if "roles" in spec and any(pod.run != first.run for _, pod in pods):
        common = {k: v for k, v in run.get("env", {}).items() if all(p.run.get("env", {}).get(k) == v for _, p in pods)}
        cases = []
        for members, pod in pods:
            own = [f"export {k}={shlex.quote(v)}; " for k, v in pod.run.get("env", {}).items() if k not in common]
            cases.append(f"{job_name(members.name)}) {''.join(own)}exec {shlex.join(pod.run['command'])} ;;\n")
        del run["command"]
        run |= {"script": f'case "$GANGOPS_ROLE" in\n{"".join(cases)}esac\n', "env": common}
    torchrun = run.get("command", [""])[0].rpartition("/")[2] == "torchrun"
    if per_node is not torchrun:
        run["launch"] = "perNode" if per_node else "perGpu"
    _note_variables(source, pods)
    order = ("launch", "command", "script", "image", "workingDir", "env", "mounts")
    return {key: run[key] for key in order if run.get(key)}


_FOREIGN: Final = ("JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "JOBSET_NAME", "PET_RDZV_ENDPOINT", "VK_TASK_INDEX")


def _note_variables(source: Source, pods: Sequence[tuple[Members, Pod]]) -> None:
    for members, pod in pods:
        text = " ".join(pod.run.get("command", ()))
        if named := [name for name in _FOREIGN if name in text]:
            source.notes.note(
                "BodyChanged",
                f"{', '.join(named)}: not set when GangOps runs this.",
                line=source.document.place_of((*source.root, *members.template)).line,
                remedy="Use NODE_RANK, RANK, $GANGOPS_TASK_INDEX and their like.",
            )


# --- 3. places ------------------------------------------------------------------------------------------------------


def _topology(
    source: Source, workload: Workload, pods: Sequence[tuple[Members, Pod]], spec: dict[str, Any], mapped: Mapped
) -> None:
    topology: dict[str, Any] = {}
    members, pod = pods[0]
    annotations: Path = (*members.template, "metadata", "annotations")
    for kind, key in (("required", _REQUIRED), ("preferred", _PREFERRED)):
        said = pod.annotations.get(key) or workload.topology.get(kind)
        level = _level(said, mapped)
        if level is not None:
            topology[kind] = {"job": level}
        if key in pod.annotations and level is None:
            source.because("Which level is this? Name it under `levels` in the map file.", *annotations, key)
        for other, _ in pods if level is not None else ():
            source.take(*other.template, "metadata", "annotations", key)
    key, size = pod.annotations.get(_SLICE, workload.slice_key), _whole(pod.annotations.get(_SLICE_SIZE, ""))
    size = size or workload.slice_size
    level = _level(key, mapped)
    if level is not None and size and "roles" not in spec and members.count % size == 0:
        for one in (_SLICE, _SLICE_SIZE):
            source.take(*annotations, one)
        group = _slices(spec, pod.gpus, members.count, size, level)
        topology.setdefault("required", {})[group] = level
    if topology:
        spec["topology"] = topology


def _slices(spec: dict[str, Any], each: int, pods: int, size: int, level: str) -> str:
    """Say in `parallelism` that so many pods belong together; the group that stays inside the level."""
    if level in {"node", "nvlinkDomain"} or each == 1:
        spec["parallelism"] = {"tensor": size * each, "data": pods // size}
        return "tensor"
    spec["parallelism"] = {"tensor": each, "pipeline": size, "data": pods // size}
    return "pipeline"


def _level(key: str | None, mapped: Mapped) -> str | None:
    if not key:
        return None
    last = key.rpartition("/")[2]
    return mapped.levels.get(key) or next((level for word, level in _LEVELS if word in last), None)


def _whole(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 7 else 0


# --- 4. behaviour ---------------------------------------------------------------------------------------------------


def _behaviour(
    source: Source,
    workload: Workload,
    pods: Sequence[tuple[Members, Pod]],
    name: str,
    spec: dict[str, Any],
    mapped: Mapped,
) -> None:
    limit = _whole(source.text("metadata", "labels", _LIMIT)) or workload.limit
    template_limit = source.number(*pods[0][0].template, "spec", "activeDeadlineSeconds")
    limit = limit if limit is not None else template_limit
    if limit:
        spec["timeLimit"] = print_duration(limit * _SECOND)
    if workload.restarts is not None:
        spec["restart"] = {"onFailure": workload.restarts}
    for members, _ in pods:
        source.take(*members.template, "spec", "restartPolicy")
    if workload.suspend and source.peek("metadata", "labels", _QUEUE) is None:  # Kueue's own way to hold a job
        spec["suspend"] = True
    graces = [pod.grace for _, pod in pods if pod.grace]
    if graces:
        asked = {"signal": "SIGTERM", "to": "all", "grace": print_duration(max(graces) * _SECOND)}
        path: Path = (*pods[0][0].template, "spec", "terminationGracePeriodSeconds")
        line = source.document.place_of((*source.root, *path)).line
        at = "terminationGracePeriodSeconds"
        spec["checkpoint"] = checkpoint_of(asked, spec["queue"], name, mapped, source.notes, line=line, at=at)


def _labels(source: Source) -> dict[str, str]:
    """Labels that are people's own; those of other systems stay behind."""
    found = {}
    for key, value in source.fields("metadata", "labels").items():
        if isinstance(value, str) and "/" not in key and re.match(LABEL_PATTERN, key) and len(value) <= 63:
            source.take("metadata", "labels", key)
            found[key] = value
    return found


_WHY: Final = {
    "namespace": "Queues take the place of namespaces.",
    "initContainers": "Nothing runs before the ranks: prepare in the command itself.",
    "containers": "A rank is one process, without sidecars.",
    "ports": "Ports are chosen by GangOps: see run.ports.",
    "ttlSecondsAfterFinished": "`gangops tidy` proposes removing finished jobs.",
    "cleanPodPolicy": "Ranks of a gang end together.",
    "imagePullSecrets": "Registries are logged in to on the nodes.",
    "serviceAccountName": "Ranks run as the account of their queue.",
    "securityContext": "Ranks run as the account of their queue, unprivileged.",
    "schedulerName": "Here GangOps schedules.",
    "affinity": "The planner chooses the nodes; levels, labels and taints steer it.",
    "topologySpreadConstraints": "The planner chooses the nodes; levels, labels and taints steer it.",
    "policies": "A gang fails and restarts as a whole: see restart.",
    "plugins": "Rendezvous is GangOps' work: MASTER_ADDR, RANK and WORLD_SIZE are set.",
    "nprocPerNode": "torchrun is told the GPUs of its node.",
    "envFrom": "Values from elsewhere do not come along: secrets go into a file under secretFiles.",
    "hostNetwork": "Ranks use the network of their node.",
    "ephemeral-storage": "Scratch space is resources.localDisk here.",
}
