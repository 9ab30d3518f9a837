"""Where may the job go, what comes with its GPUs, and how does it behave? From the other options of a script."""

from __future__ import annotations

import re
from typing import Any, Final

from reconciler.documents.quantities import print_bytes, print_duration
from reconciler.imports.gang import checkpoint_of
from reconciler.imports.sbatch.draft import Draft, shape_of

_SECOND: Final = 10**9
_MIB: Final = 1 << 20
_NIC_KINDS: Final = {
    "roce": "roce", "roce_v1": "roce", "roce_v2": "roce", "rocev2": "roce", "ib": "infiniband",
    "infiniband": "infiniband", "efa": "efa", "ethernet": "ethernet",
}  # fmt: skip


def read_places(draft: Draft) -> None:
    """`topology` and `nodeLabels`; whether nodes are for it alone is noted when it cannot be so."""
    topology: dict[str, Any] = {}
    level = draft.mapped.levels.get("switches", "rack")
    if switches := draft.get("switches", "switches"):
        topology["required" if switches["count"] == 1 else "preferred"] = {"job": level}
        if switches["count"] > 1:
            told = f"At most {switches['count']} switches became a preference for as few of level {level} as possible."
            draft.note("CarriedOverChanged", told, "switches")
        elif "max_wait_s" in switches:
            told = (
                f"Slurm gives up on this after {print_duration(switches['max_wait_s'] * _SECOND)}; required never does."
            )
            draft.note("CarriedOverChanged", told, "switches", "Move it to topology.preferred to start sooner.")
    if "network" in draft.component.said:
        kind = _NIC_KINDS.get(draft.component.said["network"].value.lower())
        if kind is not None:
            draft.taken.add("network")
            topology["nicKind"] = kind
    if topology:
        draft.spec["topology"] = topology
    constraint = draft.component.asked.get("constraint")
    if constraint is not None and constraint in draft.mapped.node_labels:
        draft.taken.add("constraint")
        draft.spec["nodeLabels"] = dict(draft.mapped.node_labels[constraint])
    if draft.get("exclusive", "exclusive") is not None:
        _exclusive(draft)


def _exclusive(draft: Draft) -> None:
    shape = shape_of(draft)
    if shape is not None and shape[1] % draft.mapped.gpus_per_node:
        draft.note(
            "NotCarriedOver",
            f"A gang has a node for itself when it takes all its GPUs: {shape[1]} of {draft.mapped.gpus_per_node}.",
            "exclusive",
            f"Ask for {draft.mapped.gpus_per_node} GPUs of each node, or set gpusPerNode in the map file.",
        )


def read_resources(draft: Draft) -> None:
    """`resources`, counted for each GPU."""
    shape = shape_of(draft)
    if shape is None:
        return
    nodes, each = shape
    resources: dict[str, Any] = {}
    cpus = draft.get("cpus_per_gpu", "cpus-per-gpu")
    if by_task := draft.get("cpus_per_task", "cpus-per-task"):
        tasks = draft.component.asked.get("ntasks_total") or nodes * draft.component.asked.get("ntasks_per_node", 1)
        tasks = nodes * each * draft.component.asked.get("ntasks_per_gpu", 0) or tasks
        cpus = -(-by_task * tasks // (nodes * each))
        if cpus * nodes * each != by_task * tasks:
            draft.note("CarriedOverChanged", f"CPUs are counted for each GPU: rounded up to {cpus}.", "cpus-per-task")
    if cpus is not None:
        resources["cpusPerGpu"] = min(cpus, 1024)
    if memory := draft.get("mem", "mem", "mem-per-cpu", "mem-per-gpu"):
        per_gpu = memory.get("per_gpu_mb", memory.get("per_cpu_mb", 0) * (cpus or 1))
        per_gpu = memory["per_node_mb"] // each if "per_node_mb" in memory else per_gpu
        if per_gpu:
            resources["memoryPerGpu"] = print_bytes(per_gpu * _MIB)
    if resources:
        draft.spec["resources"] = resources


# --- behaviour ------------------------------------------------------------------------------------------------------


def read_behaviour(draft: Draft, name: str) -> None:
    """Time limit, checkpoint, restart, dependencies, array, owner."""
    limit = draft.get("time_limit_s", "time")
    if limit is not None:
        draft.spec["timeLimit"] = limit if isinstance(limit, str) else print_duration(limit * _SECOND)
    if signal := draft.get("signal", "signal"):
        asked = {
            "signal": f"SIG{signal['name']}",
            "to": "leader" if signal["target"] == "batch" else "all",
            "grace": print_duration(signal["seconds"] * _SECOND),
        }
        line = draft.line("signal")
        queue = draft.spec["queue"]
        draft.spec["checkpoint"] = checkpoint_of(
            asked, queue, name, draft.mapped, draft.notes, line=line, at="--signal"
        )
    requeue = draft.get("requeue", "requeue", "no-requeue")
    if requeue is not None:  # Slurm never starts a job again because its script failed
        draft.spec["restart"] = {"onFailure": 0, "onNodeLoss": "unlimited" if requeue else 0}
    if requeue is False:
        draft.note(
            "CarriedOverChanged", "It is not started again after a failure; a victim is still queued.", "no-requeue"
        )
    if draft.get("hold", "hold"):
        draft.spec["suspend"] = True
    _dependencies(draft)
    if array := draft.get("array", "array"):
        ids = array["ids"]
        counted = ids == list(range(len(ids)))
        tasks: dict[str, Any] = {"count": len(ids)} if counted else {"values": [{"task_id": str(i)} for i in ids]}
        draft.spec["array"] = tasks | ({"maxParallel": array["max_concurrent"]} if "max_concurrent" in array else {})
    _remarks(draft)


_CONDITIONS: Final = {
    "after": "Started", "afterok": "Succeeded", "afternotok": "Failed", "afterany": "Finished", "aftercorr": "Succeeded",
}  # fmt: skip


def _dependencies(draft: Draft) -> None:
    draft.get("dependency", "dependency")
    if draft.component.asked.get("dependency_join") == "any":
        draft.note("NotCarriedOver", "One of several (?) cannot be said: `after` waits for all.", "dependency")
        return
    after = []
    for one in draft.component.asked.get("dependency", ()):
        condition = _CONDITIONS.get(one["type"])
        if one["type"] == "singleton":
            continue  # a name is unique in its queue: that is how jobs are here
        if one["type"] == "aftercorr" or "delay_min" in one:
            told = "Each task waiting for its own counterpart" if "delay_min" not in one else "The delay"
            draft.note("CarriedOverChanged", f"{told} cannot be said; the condition itself was kept.", "dependency")
        for job in one["jobs"]:
            known = draft.mapped.jobs.get(str(job))
            if known is not None and condition is not None:
                after.append({"job": known} | ({"condition": condition} if condition != "Succeeded" else {}))
            else:
                told = f"{one['type']}:{job} names a job by its number in Slurm; it would start without waiting."
                remedy = f"Add `after: [{{job: QUEUE/NAME, condition: {condition or 'Finished'}}}]`, or name it under `jobs` in the map file."
                draft.note("NotCarriedOver", told, "dependency", remedy)
    if after:
        draft.spec["after"] = after


def _remarks(draft: Draft) -> None:
    said = draft.component.said
    if "comment" in said and said["comment"].value:
        draft.taken.add("comment")
        draft.annotations["slurm/comment"] = said["comment"].value
    if "mail-user" in said and re.fullmatch(r"[^@\s,]+@[^@\s,]+", said["mail-user"].value):
        draft.taken.add("mail-user")
        draft.spec["owner"] = said["mail-user"].value
