"""What do members of so many GPUs come to as a gang of ours, and under which name?

Shared by all readers. A foreign scheduler counts nodes or pods; ours counts GPUs and places them, so that the number
of nodes itself is only kept where it follows from the groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Notes

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SPEC_ORDER: Final = (
    "queue", "priorityClass", "nice", "owner", "gpus", "gpuType", "parallelism", "roles", "elastic", "topology",
    "resources", "timeLimit", "checkpoint", "restart", "after", "suspend", "array", "nodeLabels", "tolerations", "run",
)  # fmt: skip
"""Fields of a Job's spec in the order people read them; that of the schema."""


def is_name(text: str) -> bool:
    """Whether this could be the name of a queue, a class or a job."""
    return _NAME.fullmatch(text) is not None


def job_name(text: str, fallback: str = "imported") -> str:
    """The nearest name a job may have: lower case, everything else as dashes, at most 63 characters."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
    return plain or fallback


def job_document(
    name: str, spec: Mapping[str, Any], *, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """A Job as a tree: fields in order, nothing empty."""
    metadata = {"name": name, "labels": dict(labels), "annotations": dict(annotations)}
    return {
        "apiVersion": "gangops/v1",
        "kind": "Job",
        "metadata": _filled(metadata),
        "spec": _filled({key: spec[key] for key in SPEC_ORDER if key in spec}),
    }


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value not in ({}, [], "")}


def even_gang(members: int, gpus_each: int, mapped: Mapped, *, least: int | None = None) -> dict[str, Any]:
    """`gpus`, and where the default would not say it, `parallelism` and `elastic`, of members that are alike.

    GPUs of a member stay together: as whole nodes they do by default, as parts of nodes only as tensor groups.
    """
    spec: dict[str, Any] = {"gpus": members * gpus_each}
    elastic = least is not None and least < members
    if elastic or (members > 1 and 1 < gpus_each != mapped.gpus_per_node):
        spec["parallelism"] = {"tensor": gpus_each, "data": members} if gpus_each > 1 else {"data": members}
    if elastic:
        spec["elastic"] = {"dimension": "data", "min": least, "max": members}
    return spec


def roles_of(members: Iterable[tuple[str, int, int]]) -> dict[str, Any]:
    """`gpus` and `roles` of (name, members, GPUs of each)."""
    listed = list(members)
    roles = [{"name": name, "workers": workers, "gpusEach": each} for name, workers, each in listed]
    return {"gpus": sum(workers * each for _, workers, each in listed), "roles": roles}


def checkpoint_of(
    signal: Mapping[str, Any], queue: str, name: str, mapped: Mapped, notes: Notes, *, line: int, at: str
) -> dict[str, Any]:
    """`checkpoint` with this `onPreempt`; where checkpoints are is known from the map file alone, else assumed."""
    pattern = mapped.checkpoint_dir or "/fs/ckpt/{queue}/{name}"
    folder = pattern.replace("{queue}", queue).replace("{name}", name)
    if not mapped.checkpoint_dir:
        notes.note(
            "ValueAssumed",
            f"A checkpoint needs a folder, and nothing here says which: {folder} was written.",
            line=line,
            at=at,
            remedy="Correct checkpoint.dir, or set checkpointDir in the map file.",
        )
    return {"dir": folder, "onPreempt": dict(signal)}
