"""How are the processes started, and in what: one a GPU or one a node, with which image, folder and environment?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reconciler.imports.sbatch.body import Step, StepKind
from reconciler.imports.sbatch.draft import Draft, nodes_of, shape_of
from reconciler.imports.sbatch.run import Setting


def launch_of(draft: Draft, srun: Step | None) -> tuple[str, bool]:
    """Processes as Slurm would start tasks, and whether that is exactly so."""
    shape = shape_of(draft) or (1, 1)
    nodes, each = shape
    asked = draft.component.asked
    options = srun.options if srun is not None else {}
    by_node = _number(options, "ntasks-per-node") or (None if "ntasks" in options else asked.get("ntasks_per_node"))
    tasks = _number(options, "ntasks") or asked.get("ntasks_total")
    if asked.get("gpus", {}).get("per_task") == 1 or asked.get("ntasks_per_gpu") == 1 or nodes * each == 1:
        return "perGpu", True
    if by_node is None and tasks is not None:
        by_node = tasks // nodes if tasks % nodes == 0 else tasks
    if by_node is None or by_node == 1:
        return "perNode", True
    return "perGpu", by_node == each


def _number(options: Mapping[str, str], name: str) -> int | None:
    return int(options[name]) if options.get(name, "").isdigit() and len(options[name]) < 9 else None


def setting_of(draft: Draft, steps: Sequence[Step], name: str, shell: str) -> Setting:
    """What the body's translation depends on."""
    srun = next((step for step in steps if step.kind is StepKind.SRUN), None)
    by_tasks, exact = launch_of(draft, srun)
    launch = by_tasks if srun is not None else "perNode"
    if launch == "perNode" and (shape_of(draft) or (1, 1)) == (1, 1):
        launch = "perGpu"  # the same, and the default
    if not exact and srun is not None:
        option = next((o for o in ("ntasks-per-node", "ntasks") if o in draft.component.said), "ntasks")
        draft.note("CarriedOverChanged", "Tasks are neither one a GPU nor one a node; one a GPU was taken.", option)
    constants = {"SLURM_JOB_NAME": name, "SLURM_ARRAY_TASK_COUNT": ""}
    array = draft.component.asked.get("array")
    if array is not None:
        counted = "count" in draft.spec["array"]
        constants["SLURM_ARRAY_TASK_ID"] = "$GANGOPS_TASK_INDEX" if counted else "$GANGOPS_PARAM_TASK_ID"
        constants["SLURM_ARRAY_TASK_COUNT"] = str(len(array["ids"]))
    if "cpus_per_task" in draft.component.asked:
        constants["SLURM_CPUS_PER_TASK"] = str(draft.component.asked["cpus_per_task"])
    one = (launch == "perNode" and nodes_of(draft) == 1) or draft.spec.get("gpus") == 1
    return Setting(
        launch=launch,
        one_process=one,
        constants={key: value for key, value in constants.items() if value},
        shell=shell,
    )


def surrounded(draft: Draft, steps: Sequence[Step], run: dict[str, Any]) -> dict[str, Any]:
    """`run` with its image, mounts, working folder and environment, in the order of the schema."""
    said = draft.component.said
    options = {
        key: value
        for step in steps
        for key, value in step.options.items()
        if key == "chdir" or key.startswith("container-")
    }
    asked = {
        key: said[key].value for key in ("container-image", "container-mounts", "container-workdir") if key in said
    }
    options = asked | options
    draft.taken |= set(asked)
    folder = (
        options.get("container-workdir") or options.get("chdir") or (said["chdir"].value if "chdir" in said else "")
    )
    folder = folder or draft.mapped.working_dir
    if folder.startswith("/"):
        draft.taken.add("chdir")
    image = re.sub(r"^([^/]*)#", r"\1/", options.get("container-image", ""))
    found: dict[str, Any] = {
        **{key: run[key] for key in ("launch", "command", "script") if key in run},
        "image": image,
        "workingDir": folder if folder.startswith("/") else "",
        "env": _environment(draft) | run.get("env", {}),
        "mounts": [_mount(one) for one in options.get("container-mounts", "").split(",") if one.startswith("/")],
    }
    return {key: value for key, value in found.items() if value}


def _mount(text: str) -> dict[str, Any]:
    source, _, rest = text.partition(":")
    target, _, flags = rest.partition(":")
    return {"source": source, "target": target or source} | ({"readOnly": True} if "ro" in flags.split("+") else {})


def _environment(draft: Draft) -> dict[str, str]:
    """What `--export` sets; what it only passes on from whoever submits is not there."""
    if "export" not in draft.component.said:
        return {}
    draft.taken.add("export")
    found, passed = {}, []
    for part in draft.component.said["export"].value.split(","):
        name, equals, value = part.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            found[name] = value
        elif name not in {"ALL", "NONE", "NIL", ""}:
            passed.append(name)
    if passed:
        draft.note("NotCarriedOver", f"Nothing is passed on from who submits: {', '.join(passed[:8])}.", "export")
    return found
