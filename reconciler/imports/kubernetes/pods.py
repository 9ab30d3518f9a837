"""What does one pod run, on how many GPUs, and with what beside them? From a pod template, in our fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from reconciler.documents.positions import Path
from reconciler.documents.quantities import print_bytes
from reconciler.documents.schema.base import GPU_TYPE_PATTERN, LABEL_PATTERN
from reconciler.documents.secrets import secret_kind
from reconciler.imports.kubernetes.source import Source
from reconciler.imports.mapping import Mapped

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")
_GPU_SELECTORS: Final = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "gpu.nvidia.com/class")
_EFA: Final = "vpc.amazonaws.com/efa"
_SUFFIXES: Final = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
SET_BY_US: Final = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PET_NNODES",
        "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT", "GANGOPS_ROLE",
        "GANGOPS_TASK_INDEX",
    }
)  # fmt: skip
"""Variables that every rank has anyway."""
_EXPANSION: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Pod:
    """`run` has the parts of a Job's run; `shared` what all members of a gang have to agree on."""

    gpus: int
    run: Mapping[str, Any]
    shared: Mapping[str, Any]
    grace: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


def pod_of(source: Source, template: Path, mapped: Mapped) -> Pod:
    """The pod that the template at this path makes. Whatever it says that has no counterpart is left over."""
    spec: Path = (*template, "spec")
    containers = source.items(*spec, "containers")
    sized = [(position, _gpus(source, (*spec, "containers", position))) for position in range(len(containers))]
    main, gpus = next((found for found in sized if found[1]), (0, 0))
    container: Path = (*spec, "containers", main)
    source.take(*container, "name")
    env = _env(source, container)
    run: dict[str, Any] = {
        "command": _command(source, container, env),
        "image": source.text(*container, "image"),
        "workingDir": source.text(*container, "workingDir"),
        "env": env,
    }
    resources = _resources(source, container, max(gpus, 1))
    run["mounts"] = list(_mounts(source, spec, container, mapped, resources))
    shared = {"resources": resources, **_nodes(source, spec, mapped), **_network(source, container)}
    annotations = source.fields(*template, "metadata", "annotations")
    return Pod(
        gpus=gpus,
        run={key: value for key, value in run.items() if value},
        shared={key: value for key, value in shared.items() if value},
        grace=source.number(*spec, "terminationGracePeriodSeconds"),
        annotations={key: value for key, value in annotations.items() if isinstance(value, str)},
    )


# --- what it runs ---------------------------------------------------------------------------------------------------


def _command(source: Source, container: Path, env: Mapping[str, str]) -> list[str]:
    if not source.items(*container, "command"):
        return []
    words = [*source.take(*container, "command")]
    words += source.take(*container, "args") if source.items(*container, "args") else []
    return [_expanded(str(word), env) for word in words]


def _expanded(word: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` of variables that the container sets, as the kubelet would; `$$(` stands for itself."""
    parts = word.split("$$(")
    return "$(".join(_EXPANSION.sub(lambda found: env.get(found[1], found[0]), part) for part in parts)


def _env(source: Source, container: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for position, one in enumerate(source.items(*container, "env")):
        path: Path = (*container, "env", position)
        name, value = (one.get("name"), one.get("value", "")) if isinstance(one, dict) else (None, None)
        if isinstance(name, str) and name in SET_BY_US:
            source.because("GangOps sets this for every rank.", *path)
        elif not isinstance(name, str) or not isinstance(value, str) or "valueFrom" in one:
            source.because("Values from elsewhere do not come along: secrets go into a file under secretFiles.", *path)
        elif kind := secret_kind(name, value):
            source.note(
                "NotCarriedOver",
                f"The value of {name} looks like {kind}; in git everyone would read it, for ever.",
                *path,
                remedy="Put it in a file on the nodes and name that under run.secretFiles.",
            )
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            source.because("This is no name of a variable here.", *path)
        else:
            source.take(*path)
            found[name] = _expanded(value, found)
    return found


def _mounts(
    source: Source, spec: Path, container: Path, mapped: Mapped, resources: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Folders of the node; a memory volume at /dev/shm becomes the size of shared memory."""
    volumes = {
        one["name"]: (*spec, "volumes", position)
        for position, one in enumerate(source.items(*spec, "volumes"))
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    }
    for position, one in enumerate(source.items(*container, "volumeMounts")):
        path: Path = (*container, "volumeMounts", position)
        target, name = (one.get("mountPath"), one.get("name")) if isinstance(one, dict) else (None, None)
        volume = volumes.get(name) if isinstance(name, str) else None
        if volume is None or not isinstance(target, str):
            continue
        host = source.peek(*volume, "hostPath", "path")
        claim = source.peek(*volume, "persistentVolumeClaim", "claimName")
        folder = host or mapped.mounts.get(str(claim)) or mapped.mounts.get(str(name))
        if isinstance(folder, str) and folder.startswith("/") and target.startswith("/"):
            source.take(*path)
            source.take(*volume)
            inner = f"/{one['subPath']}" if isinstance(one.get("subPath"), str) else ""
            mount = {"source": f"{folder.rstrip('/')}{inner}" or "/", "target": target}
            yield mount | ({"readOnly": True} if one.get("readOnly") is True else {})
        elif target == "/dev/shm" and source.peek(*volume, "emptyDir") is not None:  # noqa: S108  # a mount, no file of ours
            source.take(*path)
            source.take(*volume)
            size = _amount(source.peek(*volume, "emptyDir", "sizeLimit"))
            resources |= {"sharedMemory": print_bytes(size // _MIB * _MIB)} if size else {}
        else:
            why = "Which folder of the nodes is this? Name it under `mounts` in the map file."
            source.because(why, *path)
            source.because(why, *volume)


# --- what it has ----------------------------------------------------------------------------------------------------


def _gpus(source: Source, container: Path) -> int:
    for part in ("limits", "requests"):
        for name in GPU_RESOURCES:
            count = _amount(source.peek(*container, "resources", part, name))
            if count:
                for either in ("limits", "requests"):
                    source.take(*container, "resources", either, name)
                return count
    return 0


def _resources(source: Source, container: Path, gpus: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, ours in (("cpu", "cpusPerGpu"), ("memory", "memoryPerGpu")):
        said = [source.take(*container, "resources", part, name) for part in ("requests", "limits")]
        amount = next((value for one in said if (value := _amount(one))), 0)
        if amount and ours == "cpusPerGpu":
            found[ours] = min(1024, -(-amount // gpus))
        elif amount:
            found[ours] = print_bytes(amount // gpus // _MIB * _MIB)
    return found


def _amount(written: object) -> int:
    """A quantity of Kubernetes as a whole number, parts rounded up; 0 when it is none."""
    found = _QUANTITY.fullmatch(str(written)) if isinstance(written, (str, int)) else None
    if not found:
        return 0
    whole, decimals, suffix = found[1], found[2] or "", found[3] or ""
    scaled, unit = int(whole + decimals) * _SUFFIXES.get(suffix, 1), 10 ** len(decimals)
    return int(-(-scaled // (unit * 1000 if suffix == "m" else unit)))


def _nodes(source: Source, spec: Path, mapped: Mapped) -> dict[str, Any]:
    """gpuType, nodeLabels and tolerations."""
    found: dict[str, Any] = {"nodeLabels": {}, "tolerations": []}
    for key, value in source.fields(*spec, "nodeSelector").items():
        labels = mapped.node_labels.get(f"{key}={value}")
        is_type = key in _GPU_SELECTORS or str(value) in mapped.gpu_types
        gpu_type = mapped.gpu_type(str(value)) if is_type else ""
        if labels is not None:
            found["nodeLabels"] |= labels
        elif gpu_type and re.match(GPU_TYPE_PATTERN, gpu_type):
            found["gpuType"] = gpu_type
        else:
            source.because("Labels here are the inventory's: map it under nodeLabels.", *spec, "nodeSelector", key)
            continue
        source.take(*spec, "nodeSelector", key)
    for position, one in enumerate(source.items(*spec, "tolerations")):
        taint = one.get("key") if isinstance(one, dict) else None
        if isinstance(taint, str) and re.match(LABEL_PATTERN, taint):
            source.take(*spec, "tolerations", position)
            value = one.get("value")
            found["tolerations"].append(f"{taint}={value}" if isinstance(value, str) and value else taint)
    return found


def _network(source: Source, container: Path) -> dict[str, Any]:
    said = [source.take(*container, "resources", part, _EFA) for part in ("limits", "requests")]
    return {"nicKind": "efa"} if any(said) else {}
