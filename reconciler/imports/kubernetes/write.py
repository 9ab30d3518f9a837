"""A Job as a JobSet, for people who leave: a replicated job for each role, with Kueue's labels and topology.

A pod is a node of the gang, or a GPU where each GPU has a process of its own. Each field without a counterpart is
noted. Secrets and volumes are named as they are on our nodes: as folders of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reconciler.documents.canonical import to_yaml
from reconciler.documents.loader import Document
from reconciler.documents.quantities import parse_bytes, parse_duration
from reconciler.imports.export import Exported, JobText, Shape, inverse, shape_of
from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Notes

_SECOND: Final = 10**9
_MIB: Final = 1 << 20
_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_LEVELS: Final = {
    "node": "kubernetes.io/hostname",
    "rack": "cloud.provider.com/topology-rack",
    "spineGroup": "cloud.provider.com/topology-block",
}


def jobset_of(document: Document, mapped: Mapped | None = None) -> Exported:
    """The Job as YAML of one JobSet. `document` is a valid Job, as `read_job` gives it."""
    notes, mapped = Notes(file=document.file), mapped or Mapped()
    job = JobText(document, notes)
    if not job.run.get("image"):
        told = "A pod needs an image, and the job says none."
        notes.refuse("NotExported", told, remedy="Add run.image.")
    if job.run.get("session"):
        notes.refuse("NotExported", "A session has nothing to run.", remedy="Export a job that has a command.")
    if job.spec.get("array"):
        notes.refuse("NotExported", "An array is no JobSet.", remedy="Export it to sbatch, or one task at a time.")
    if notes.errors:
        return Exported(text="", errors=notes.imported().errors)
    tree: dict[str, Any] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name, "labels": _labels(job, mapped)},
        "spec": _spec(job, mapped),
    }
    job.note_leftovers()
    imported = notes.imported()
    return Exported(text=to_yaml(tree).decode(), notes=imported.notes, errors=imported.errors)


def _labels(job: JobText, mapped: Mapped) -> dict[str, str]:
    queue, priority = job.take("queue"), job.take("priorityClass")
    found = {
        **job.metadata.get("labels", {}),
        "kueue.x-k8s.io/queue-name": inverse(mapped.queues).get(queue, queue),
    }
    return found | (
        {"kueue.x-k8s.io/priority-class": inverse(mapped.classes).get(priority, priority)} if priority else {}
    )


def _spec(job: JobText, mapped: Mapped) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    restarts = job.take("restart", "onFailure")
    if type(restarts) is int:
        spec["failurePolicy"] = {"maxRestarts": restarts}
    if job.take("suspend"):
        job.note("CarriedOverChanged", "Kueue holds and admits JobSets itself: hold its queue.", "suspend")
    roles = job.take("roles")
    if roles:
        job.take("gpus")
        members = [(r["name"], Shape(r["workers"], r["workers"], r["gpusEach"])) for r in roles]
    else:
        members = [("worker", _shape(job, mapped))]
    jobs = [_replicated(job, name, shape, mapped, is_role=bool(roles)) for name, shape in members]
    return spec | {"replicatedJobs": jobs}


def _shape(job: JobText, mapped: Mapped) -> Shape:
    """Pods and GPUs of each: nodes when there is a process a node, else GPUs."""
    shape = shape_of(job, mapped)
    if shape.least < shape.most:
        job.note("CarriedOverChanged", "A JobSet has a fixed size: the largest.", "elastic")
    if job.launch == "perNode" and shape.each:
        return Shape(shape.most, shape.most, shape.each)
    gpus = int(job.spec["gpus"])
    return Shape(gpus, gpus, 1)


def _replicated(job: JobText, name: str, shape: Shape, mapped: Mapped, *, is_role: bool) -> dict[str, Any]:
    limit = job.take("timeLimit")
    template: dict[str, Any] = {"parallelism": shape.most, "completions": shape.most, "completionMode": "Indexed"}
    if limit and limit != "unlimited":
        template["activeDeadlineSeconds"] = parse_duration(limit) // _SECOND
    annotations = _topology(job, mapped)
    pod: dict[str, Any] = {"metadata": {"annotations": annotations}} if annotations else {}
    template |= {"backoffLimit": 0, "template": pod | {"spec": _pod(job, name, shape, mapped, is_role=is_role)}}
    return {"name": name, "replicas": 1, "template": {"spec": template}}


def _topology(job: JobText, mapped: Mapped) -> dict[str, str]:
    found = {}
    keys = _LEVELS | inverse({key: level for key, level in mapped.levels.items() if "/" in key})
    for kind in ("required", "preferred"):
        level = job.spec.get("topology", {}).get(kind, {}).get("job")
        if level in keys:
            job.take("topology", kind, "job")
            found[f"kueue.x-k8s.io/podset-{kind}-topology"] = keys[level]
    return found


def _pod(job: JobText, name: str, shape: Shape, mapped: Mapped, *, is_role: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"restartPolicy": "Never"}
    if grace := job.take("checkpoint", "onPreempt", "grace"):
        spec["terminationGracePeriodSeconds"] = parse_duration(grace) // _SECOND
        signal = job.spec["checkpoint"]["onPreempt"].get("signal", "SIGUSR1")
        if signal == "SIGTERM" and job.take("checkpoint", "onPreempt", "to") == "all":
            job.take("checkpoint", "onPreempt", "signal")
    if gpu_type := job.take("gpuType"):
        spec["nodeSelector"] = {"nvidia.com/gpu.product": inverse(mapped.gpu_types).get(gpu_type, gpu_type)}
    if tolerations := job.take("tolerations"):
        spec["tolerations"] = [_toleration(written) for written in tolerations]
    mounts, volumes = _volumes(job)
    container: dict[str, Any] = {"name": "rank", "image": job.take("run", "image"), "command": _command(job)}
    if folder := job.take("run", "workingDir"):
        container["workingDir"] = folder
    container["env"] = [*_env(job), *_rank_env(job, name, shape, is_role=is_role)]
    container["resources"] = {"limits": _limits(job, shape.each)}
    if mounts:
        container["volumeMounts"] = mounts
        spec["volumes"] = volumes
    return spec | {"containers": [container]}


def _toleration(written: str) -> dict[str, str]:
    key, equals, value = written.partition("=")
    return {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}


def _command(job: JobText) -> list[str]:
    command, script = job.take("run", "command"), job.take("run", "script")
    return [word.replace("$(", "$$(") for word in command] if command else ["bash", "-c", script.replace("$(", "$$(")]


def _env(job: JobText) -> list[dict[str, Any]]:
    return [{"name": n, "value": v.replace("$(", "$$(")} for n, v in (job.take("run", "env") or {}).items()]


def _rank_env(job: JobText, name: str, shape: Shape, *, is_role: bool) -> list[dict[str, Any]]:
    """What GangOps sets for each rank, from the index of the pod and the name it has in the network."""
    per_node = job.launch == "perNode"
    leader = f"{job.name}-{name}-0-0.{job.name}"
    literal = {"MASTER_ADDR": leader, "MASTER_PORT": "29500"}
    if per_node:
        literal |= {
            "PET_NNODES": str(shape.most),
            "PET_NPROC_PER_NODE": str(shape.each),
            "PET_MASTER_ADDR": leader,
            "PET_MASTER_PORT": "29500",
        }
    else:
        literal |= {"WORLD_SIZE": str(shape.most), "LOCAL_RANK": "0"}
    if is_role:
        literal["GANGOPS_ROLE"] = name
    index = {"valueFrom": {"fieldRef": {"fieldPath": _INDEX}}}
    named = ("NODE_RANK", "PET_NODE_RANK") if per_node else ("RANK",)
    return [{"name": one, "value": value} for one, value in literal.items()] + [{"name": one, **index} for one in named]


def _limits(job: JobText, gpus: int) -> dict[str, Any]:
    limits: dict[str, Any] = {"nvidia.com/gpu": gpus}
    if cpus := job.take("resources", "cpusPerGpu"):
        limits["cpu"] = cpus * gpus
    if memory := job.take("resources", "memoryPerGpu"):
        limits["memory"] = f"{-(-parse_bytes(str(memory)) * gpus // _MIB)}Mi"
    if job.take("topology", "nicKind") == "efa":
        limits["vpc.amazonaws.com/efa"] = 1
    return limits


def _volumes(job: JobText) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    mounts: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    for number, mount in enumerate(job.take("run", "mounts") or ()):
        one: Mapping[str, Any] = mount
        read_only = {"readOnly": True} if one.get("readOnly") else {}
        mounts.append({"name": f"folder-{number}", "mountPath": one["target"], **read_only})
        volumes.append({"name": f"folder-{number}", "hostPath": {"path": one["source"]}})
    if size := job.take("resources", "sharedMemory"):
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108  # a mount, no file of ours
        limit = f"{parse_bytes(str(size)) // _MIB}Mi"
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
    return mounts, volumes
