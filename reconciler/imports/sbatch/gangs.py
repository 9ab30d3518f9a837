"""How large is the gang, of which GPUs, and in which roles? From nodes, tasks and GPUs of a script."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reconciler.documents.schema.base import GPU_TYPE_PATTERN
from reconciler.imports.gang import even_gang, job_name, roles_of
from reconciler.imports.sbatch.draft import Draft, shape_of
from reconciler.imports.sbatch.launch import launch_of
from reconciler.imports.sbatch.lines import Ignored


def _no_gpus(draft: Draft, ignored: Sequence[Ignored] = ()) -> None:
    near = [f"line {one.line} ({one.reason.replace('_', ' ')})" for one in ignored]
    told = f" sbatch ignores {', '.join(near[:5])}." if near else ""
    draft.notes.refuse(
        "NoGpus",
        f"A Job has at least one GPU.{told}",
        line=draft.line("nodes", "ntasks"),
        remedy="Add --gpus-per-node, --gpus or --gres=gpu:N.",
    )


def read_gang(draft: Draft, ignored: Sequence[Ignored]) -> None:
    """`gpus` and what goes with it, of members that are alike. Refuses a script without GPUs."""
    shape = shape_of(draft)
    if shape is None:
        _no_gpus(draft, ignored)
        return
    draft.taken |= {"gpus", "gpus-per-node", "gpus-per-task", "gres", "nodes", "ntasks", "ntasks-per-node"}
    draft.taken |= {"ntasks-per-gpu"} if draft.component.asked.get("ntasks_per_gpu") == 1 else set()
    nodes, each = shape
    asked = draft.component.asked.get("nodes", {"min": nodes, "max": nodes})
    least = asked["min"] if asked["min"] < asked["max"] and "per_node" in draft.component.asked["gpus"] else None
    draft.spec |= even_gang(nodes, each, draft.mapped, least=least)
    _gpu_type(draft)
    for name, count in draft.component.asked.get("other_gres", {}).items():
        if count:
            draft.note("NotCarriedOver", f"{count} of {name} for each node: only GPUs are counted here.", "gres")
    if nodes > 1 and each < draft.mapped.gpus_per_node and "nodes" in draft.component.asked:
        draft.note(
            "CarriedOverChanged",
            f"The {each} GPUs of a node stay together; how many nodes it takes is the planner's choice.",
            "nodes",
        )


def _gpu_type(draft: Draft) -> None:
    partitions = draft.component.asked.get("partitions", [])
    said = draft.component.asked.get("gpus", {}).get("type")
    by_partition = next((draft.mapped.gpu_types[p] for p in partitions if p in draft.mapped.gpu_types), None)
    if said is not None:
        draft.spec["gpuType"] = draft.mapped.gpu_type(said)
    if by_partition is not None:
        draft.spec.setdefault("gpuType", by_partition)
        draft.taken.add("partition")
    if not re.match(GPU_TYPE_PATTERN, draft.spec.get("gpuType", "x")):
        draft.note("NotCarriedOver", "This is no name of a GPU type here.", "gres")
        del draft.spec["gpuType"]


def read_roles(drafts: list[Draft]) -> list[str]:
    """The names of the roles; refuses what cannot be one gang."""
    names: list[str] = []
    members = []
    for position, draft in enumerate(drafts):
        shape = shape_of(draft)
        if shape is None:
            _no_gpus(draft)
            continue
        if "max" in (sizes := draft.component.asked.get("nodes", {})) and sizes["min"] < sizes["max"]:
            draft.note("CarriedOverChanged", "A role has a fixed size: the largest was taken.", "nodes")
        name = job_name(draft.component.asked.get("job_name", ""), f"part-{position}")
        names.append(name if name not in names else f"{name[:58]}-{position}")
        members.append((names[-1], *shape))
        draft.taken |= {
            "gpus", "gpus-per-node", "gpus-per-task", "gres", "nodes", "ntasks", "ntasks-per-node", "job-name", "account",
        }  # fmt: skip
        _gpu_type(draft)
    first = drafts[0]
    for key, option in (("gpuType", "gres"), ("launch", "ntasks-per-node")):
        kinds = {launch_of(d, None)[0] if key == "launch" else d.spec.get(key) for d in drafts}
        if len(kinds) > 1 and not first.notes.errors:
            first.notes.refuse(
                "CannotBecomeJob",
                f"Components differ in {'their GPU type' if key == 'gpuType' else 'tasks for each GPU'}; "
                "one Job has one.",
                line=drafts[-1].line(option, "gpus", "gpus-per-node"),
                at="hetjob",
                remedy="Write one Job for each, or make them alike.",
            )
    if not first.notes.errors:
        first.spec |= roles_of(members)
    return names
