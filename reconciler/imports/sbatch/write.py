"""A Job as an sbatch script, for people who leave. Each field without a counterpart is noted.

The script sets for each task what GangOps sets for each rank. What the import reads back is the same Job, as far as
Slurm can say it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

from reconciler.documents.loader import Document
from reconciler.documents.quantities import parse_bytes, parse_duration
from reconciler.documents.tasklist import parse_tasks, print_tasks
from reconciler.imports.export import MOST_TASKS, Exported, JobText, Shape, inverse, shape_of, tasks_of
from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Notes
from reconciler.imports.sbatch.ranks import RENDEZVOUS, WRAPPERS

_SECOND: Final = 10**9
_MIB: Final = 1 << 20
_CONDITIONS: Final = {"Started": "after", "Succeeded": "afterok", "Failed": "afternotok", "Finished": "afterany"}
_PROLOGUE: Final = re.compile(r'(?:export SLURM_[A-Z_]+="[^"\n]*"\n)*')
_CASES: Final = re.compile(r'case "\$GANGOPS_ROLE" in\n((?:[-a-z0-9]+\) [^\n]* ;;\n)+)esac\n')
_CASE: Final = re.compile(r"([-a-z0-9]+)\) ((?:[A-Za-z_][A-Za-z0-9_]*=\S* )*)exec ([^\n]*) ;;\n")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=,@%+-]+")


def script_of(document: Document, mapped: Mapped | None = None) -> Exported:
    """The Job as a script. `document` is a valid Job, as `read_job` gives it."""
    notes, mapped = Notes(file=document.file), mapped or Mapped()
    job = JobText(document, notes)
    parts = [[*_identity(job, mapped), *_behaviour(job, mapped)]]
    roles = job.take("roles")
    if roles:
        job.take("gpus")
        job.note("CarriedOverChanged", "Slurm counts the ranks of each component by itself.", "roles")
        parts[0] += _members(job, Shape(roles[0]["workers"], roles[0]["workers"], roles[0]["gpusEach"]), mapped)
        for role in roles[1:]:
            shape = Shape(role["workers"], role["workers"], role["gpusEach"])
            parts.append([_said("job-name", role["name"]), *_members(job, shape, mapped)])
    else:
        parts[0] += _members(job, shape_of(job, mapped), mapped)
    parts[0] += _places(job, mapped)
    header = "#SBATCH hetjob\n".join("".join(f"#SBATCH {option}\n" for option in part) for part in parts)
    body = "".join(f"{line}\n" for line in _body(job, [role["name"] for role in roles or ()]))
    job.note_leftovers()
    imported = notes.imported()
    return Exported(text=f"#!/bin/bash\n{header}\n{body}", notes=imported.notes, errors=imported.errors)


def _said(option: str, value: object) -> str:
    text = str(value)
    if not _PLAIN.fullmatch(text):
        text = '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
    return f"--{option}={text}"


# --- options --------------------------------------------------------------------------------------------------------


def _identity(job: JobText, mapped: Mapped) -> Iterator[str]:
    yield _said("job-name", job.name)
    queue = job.take("queue")
    yield _said("account", inverse(mapped.queues).get(queue, queue))
    if priority := job.take("priorityClass"):
        yield _said("qos", inverse(mapped.classes).get(priority, priority))
    if nice := job.take("nice"):
        yield _said("nice", nice)
    if owner := job.take("owner"):
        yield _said("mail-user", owner)
    if comment := job.metadata.get("annotations", {}).get("slurm/comment"):
        yield _said("comment", comment)


def _members(job: JobText, shape: Shape, mapped: Mapped) -> Iterator[str]:
    gpu_type = job.take("gpuType")
    kind = f"{inverse(mapped.gpu_types).get(gpu_type, gpu_type)}:" if gpu_type else ""
    if kind and not kind[0].isalpha():
        job.note("NotCarriedOver", "Slurm's types begin with a letter.", "gpuType")
        kind = ""
    if not shape.each:
        yield _said("gpus", f"{kind}{job.spec['gpus']}")
    else:
        yield _said("nodes", shape.most if shape.least == shape.most else f"{shape.least}-{shape.most}")
        yield _said("gpus-per-node", f"{kind}{shape.each}")
        yield _said("ntasks-per-node", 1 if job.launch == "perNode" else shape.each)
    if cpus := job.take("resources", "cpusPerGpu"):
        yield _said("cpus-per-gpu", cpus)
    if memory := job.take("resources", "memoryPerGpu"):
        yield _said("mem-per-gpu", f"{-(-parse_bytes(str(memory)) // _MIB)}M")


def _places(job: JobText, mapped: Mapped) -> Iterator[str]:
    if (job.spec.get("topology", {}).get("required", {})).get("job") == mapped.levels.get("switches", "rack"):
        job.take("topology", "required", "job")
        yield _said("switches", 1)
    if kind := job.take("topology", "nicKind"):
        yield _said("network", "roce_v2" if kind == "roce" else kind)
    labels = job.spec.get("nodeLabels")
    if labels and (names := [name for name in sorted(mapped.node_labels) if dict(mapped.node_labels[name]) == labels]):
        job.take("nodeLabels")
        yield _said("constraint", names[0])


def _behaviour(job: JobText, mapped: Mapped) -> Iterator[str]:
    if limit := job.take("timeLimit"):
        yield _said("time", "UNLIMITED" if limit == "unlimited" else _time(parse_duration(limit) // _SECOND))
    if job.spec.get("checkpoint"):
        signal = job.take("checkpoint", "onPreempt") or {}
        name = signal.get("signal", "SIGUSR1").removeprefix("SIG")
        target = "B:" if signal.get("to", "leader") == "leader" else ""
        yield _said("signal", f"{target}{name}@{min(65_535, parse_duration(signal.get('grace', '5m')) // _SECOND)}")
        if target:
            told = "The batch shell gets the signal, not rank 0: trap it there and pass it on."
            job.note("CarriedOverChanged", told, "checkpoint", "onPreempt")
    restart = job.take("restart")
    if restart is not None:
        after_loss = restart.get("onNodeLoss", "unlimited")
        yield "--requeue" if after_loss != 0 else "--no-requeue"
        if restart.get("onFailure") != 0 or after_loss not in {0, "unlimited"}:
            job.note("CarriedOverChanged", "Slurm starts again what lost its node, never what failed.", "restart")
    if job.take("suspend"):
        yield "--hold"
    yield from _dependency(job, mapped)
    if array := job.take("array"):
        yield _said("array", _ids(job, array))


def _time(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _dependency(job: JobText, mapped: Mapped) -> Iterator[str]:
    numbers = inverse(mapped.jobs)
    found = []
    for one in job.take("after") or ():
        number = numbers.get(one["job"]) or numbers.get(f"{job.spec['queue']}/{one['job']}")
        if number is None:
            told = f"The number of {one['job']} in Slurm is not known."
            job.note("NotCarriedOver", told, "after", remedy="Submit with --dependency, or name it under `jobs`.")
        else:
            found.append(f"{_CONDITIONS[one.get('condition', 'Succeeded')]}:{number}")
    if found:
        yield _said("dependency", ",".join(found))


def _ids(job: JobText, array: dict[str, Any]) -> str:
    most = f"%{array['maxParallel']}" if "maxParallel" in array else ""
    if array.get("onTaskFailure") == "stop":
        job.note("NotCarriedOver", "A failed task stops no other.", "array", "onTaskFailure")
    tasks = [] if "count" in array else tasks_of(array)
    are_ids, count = bool(tasks) and _are_ids(tasks), len(tasks) or array["count"]
    if len(tasks) > MOST_TASKS and not are_ids:
        job.notes.refuse("NotExported", f"{len(tasks)} tasks with parameters; at most {MOST_TASKS} are written out.")
    cancelled = frozenset(parse_tasks(str(array["cancelled"]))) if "cancelled" in array else frozenset()
    wanted = [number for number in range(count) if number not in cancelled]
    if not wanted:
        job.notes.refuse("NotExported", "All its tasks are cancelled.")
    return (",".join(tasks[number]["task_id"] for number in wanted) if are_ids else print_tasks(wanted)) + most


def _are_ids(tasks: list[dict[str, str]]) -> bool:
    return all(set(task) == {"task_id"} and task["task_id"].isdigit() for task in tasks)


# --- the body -------------------------------------------------------------------------------------------------------


def _body(job: JobText, roles: list[str]) -> Iterator[str]:
    for name, value in (job.take("run", "env") or {}).items():
        yield f"export {name}={shlex.quote(value)}"
    yield from _parameters(job)
    yield RENDEZVOUS
    container = " ".join(_container(job))
    srun = f"srun {container} " if container else "srun "
    script = job.take("run", "script")
    command = job.take("run", "command")
    if job.take("run", "session"):
        job.note(
            "CarriedOverChanged", "A session became a job that sleeps: attach with srun --jobid.", "run", "session"
        )
        command = ["sleep", "infinity"]
    if not roles:
        words = shlex.join(command) if command else f"bash -c {shlex.quote(_without_prologue(script))}"
        yield f"{srun}{WRAPPERS[job.launch]}{words}"
        return
    cases = _cases(script or "")
    for group, role in enumerate(roles):
        prefix, words = cases.get(role, ("", ""))
        if not words:
            words = shlex.join(command) if command else f"bash -c {shlex.quote(_without_prologue(script))}"
            prefix = f"GANGOPS_ROLE={role} "
        yield f"{prefix}{srun}--het-group={group} {WRAPPERS[job.launch]}{words} &"
    yield "wait"


def _cases(script: str) -> dict[str, tuple[str, str]]:
    """What a script that only looks at the role starts for each: (assignments, command)."""
    found = _CASES.fullmatch(_without_prologue(script))
    cases = {name: (prefix, command) for name, prefix, command in _CASE.findall(found[1])} if found else {}
    return cases if found and len(cases) == found[1].count("\n") else {}


def _without_prologue(script: str) -> str:
    """The script without the variables of Slurm that an import had set from ours: they are there again."""
    return _PROLOGUE.sub("", script, count=1)


def _parameters(job: JobText) -> Iterator[str]:
    """What tasks of an array see as $GANGOPS_TASK_INDEX and $GANGOPS_PARAM_NAME."""
    array = job.spec.get("array")
    if array is None:
        return
    tasks = [] if "count" in array else tasks_of(array)
    text = f"{job.run.get('script', '')} {job.run.get('command', '')}"
    if tasks and not _are_ids(tasks):
        yield 'case "$SLURM_ARRAY_TASK_ID" in'
        for number, task in enumerate(tasks[:MOST_TASKS]):
            exports = " ".join(f"GANGOPS_PARAM_{name.upper()}={shlex.quote(value)}" for name, value in task.items())
            yield f"{number}) export {exports} ;;"
        yield "esac"
    elif "GANGOPS_TASK_INDEX" in _without_prologue(text):
        yield "export GANGOPS_TASK_INDEX=$SLURM_ARRAY_TASK_ID"


def _container(job: JobText) -> Iterator[str]:
    image = job.take("run", "image")
    folder = job.take("run", "workingDir")
    mounts = job.take("run", "mounts") or ()
    job.take("run", "runtime")
    if not image:
        if folder:
            yield f"--chdir={shlex.quote(folder)}"
        return
    yield f"--container-image={shlex.quote(image)}"
    if mounts:
        told = [f"{m['source']}:{m['target']}{':ro' if m.get('readOnly') else ''}" for m in mounts]
        yield f"--container-mounts={shlex.quote(','.join(told))}"
    if folder:
        yield f"--container-workdir={shlex.quote(folder)}"
    job.note("CarriedOverChanged", "Containers in srun need the plugin pyxis.", "run", "image")
