"""What does an sbatch script come to as a Job? Its values in our fields, and a note for each option without one.

Whatever no step below takes is noted at the end, so that nothing is dropped in silence. One script is one Job: an
array becomes `array`, a heterogeneous job `roles`; where that cannot be, it is refused with the reason.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from reconciler.imports.gang import is_name, job_document, job_name
from reconciler.imports.mapping import Mapped
from reconciler.imports.notes import Imported, Notes
from reconciler.imports.sbatch.body import read_body
from reconciler.imports.sbatch.conduct import read_behaviour, read_places, read_resources
from reconciler.imports.sbatch.draft import Draft
from reconciler.imports.sbatch.gangs import read_gang, read_roles
from reconciler.imports.sbatch.launch import setting_of, surrounded
from reconciler.imports.sbatch.parse import Script
from reconciler.imports.sbatch.run import MOST_CHARACTERS, roles_run, run_of


def job_from_script(script: Script, file: str, queue: str | None = None, mapped: Mapped | None = None) -> Imported:
    """The Job of a script, in numbered steps. `queue` overrides what account and partition say."""
    notes, mapped = Notes(file=file), mapped or Mapped()
    if script.problems:
        return _refused(script, notes)
    body = "\n".join(script.body)
    if len(body) > MOST_CHARACTERS:
        notes.refuse("CannotBecomeJob", f"Its commands have {len(body)} characters; at most {MOST_CHARACTERS}.")
        return notes.imported()
    drafts = [Draft(component, mapped, notes) for component in script.components]
    draft = drafts[0]
    # 1. Who is charged, and what it is called.
    name = _name(draft, file)
    draft.spec["queue"] = _queue(draft, queue)
    _class(draft)
    # 2. The gang.
    steps = read_body(script.body, script.body_line)
    names = read_roles(drafts) if len(drafts) > 1 else []
    if not names and len(drafts) == 1:
        read_gang(draft, script.ignored)
    # 3. Where it goes, and what comes with its GPUs.
    read_places(draft)
    read_resources(draft)
    # 4. How it behaves.
    read_behaviour(draft, name)
    # 5. What runs.
    if not notes.errors:
        setting = setting_of(draft, steps, name, script.shell or "")
        run = roles_run(names, steps, setting, notes) if names else run_of(steps, setting, notes)
        draft.spec["run"] = surrounded(draft, steps, run)
    # 6. What is left over.
    for one in drafts:
        _leftovers(one, draft)
    job = job_document(name, draft.spec, labels={}, annotations=draft.annotations)
    return notes.imported(job, hints=_hints(draft))


def _refused(script: Script, notes: Notes) -> Imported:
    for problem in script.problems:
        code = "".join(part.capitalize() for part in problem.code.split("_"))
        remedy = "Import it with --repair, or use the corrected script." if script.corrected else ""
        notes.refuse("ScriptRefused", f"{code}: {problem.reason}.", line=problem.line, remedy=remedy)
    found = notes.imported()
    return Imported(errors=found.errors, corrected=script.corrected)


def _hints(draft: Draft) -> tuple[str, ...]:
    if draft.spec.get("run", {}).get("workingDir"):
        return ()
    return ("Slurm starts a script in the folder it was submitted from; without run.workingDir this starts at home.",)


# --- 1. names -------------------------------------------------------------------------------------------------------


def _name(draft: Draft, file: str) -> str:
    written = draft.get("job_name", "job-name")
    if written is None:
        return job_name(PurePosixPath(file).name.split(".")[0])
    name = job_name(written)
    if name != written:
        draft.note("CarriedOverChanged", f"A name has lower case letters, digits and dashes: {name}.", "job-name")
    return name


def _queue(draft: Draft, queue: str | None) -> str:
    account = draft.component.asked.get("account")
    partitions = draft.component.asked.get("partitions", [])
    if queue is not None:
        draft.taken.add("account")
        return queue
    if account is not None and account in draft.mapped.queues:
        draft.taken.add("account")
        return draft.mapped.queues[account]
    for partition in partitions:
        if partition in draft.mapped.queues:
            draft.taken.add("partition")
            return draft.mapped.queues[partition]
    if account is not None and is_name(account):
        draft.taken.add("account")
        return str(account)
    draft.notes.refuse(
        "NoQueue",
        "The script names no account that could be a queue." if account is None else f"{account!r} is no queue's name.",
        line=draft.line("account", "partition"),
        at="--account",
        remedy="Give --queue, or a map file with `queues`.",
    )
    return ""


def _class(draft: Draft) -> None:
    qos = draft.get("qos")
    wanted = draft.mapped.classes.get(qos, qos) if qos is not None else None
    if wanted is not None and is_name(wanted):
        draft.taken.add("qos")
        draft.spec["priorityClass"] = wanted
    nice = draft.get("nice", "nice")
    if nice is not None:
        draft.spec["nice"] = max(-100, min(100, nice)) or None
        if not -100 <= nice <= 100:
            draft.note("CarriedOverChanged", "nice goes from -100 to 100 here.", "nice")


# --- 6. what is left over -------------------------------------------------------------------------------------------

_WHY: Final = {
    "partition": "The queue says who is charged, gpuType and nodeLabels which nodes.",
    "output": "Output is kept by GangOps: see `gangops logs`.",
    "error": "Output is kept by GangOps: see `gangops logs`.",
    "open-mode": "Output is kept by GangOps: see `gangops logs`.",
    "gpu-bind": "GangOps gives each process the GPU of its rank, with the NUMA node and NIC beside it.",
    "constraint": "Node features have no counterpart without an entry under nodeLabels in the map file.",
    "nodelist": "The planner chooses the nodes; cordons, taints and labels steer it.",
    "exclude": "The planner chooses the nodes; cordons, taints and labels steer it.",
    "qos": "This is no name of a priority class here; map it under priorityClasses.",
    "reservation": "Reservations are documents of their own here.",
    "begin": "A job starts when it fits; suspend it until it may.",
    "kill-on-invalid-dep": "A job whose dependency cannot come true waits, and says so.",
    "chdir": "The folder has to be an absolute path here.",
    "network": "Only roce, infiniband, ethernet and efa are kinds of network here.",
    "oversubscribe": "A GPU belongs to one job.",
    "ntasks-per-gpu": "A GPU has one process, or its node has one for all.",
    "mail-type": "Nobody is mailed; the record and its webhooks tell.",
}


def _leftovers(draft: Draft, first: Draft) -> None:
    """Note what was not taken. Of a heterogeneous job, what the first component says counts for all."""
    for option, said in draft.component.said.items():
        if option in draft.taken:
            continue
        why = _WHY.get(option, "There is no counterpart.")
        if draft is not first and option in first.taken:
            if option in first.component.said and first.component.said[option].value == said.value:
                continue
            why = "The members of one Job share this: what the first component says was taken."
        draft.notes.note("NotCarriedOver", why, line=said.line, at=f"--{option}")
