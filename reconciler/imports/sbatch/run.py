"""What does the body of a script come to as `run`? A command where one is all there is, else the script, adapted.

Slurm runs the body once, on the first node, and `srun` starts the tasks. Here the agents start the processes: srun's
command takes its place, lines around it run in each process, and Slurm's variables are set from ours. Every line
that changed or cannot work is noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from posixpath import basename
from typing import Any, Final

from reconciler.documents.secrets import secret_kind
from reconciler.imports.notes import Notes
from reconciler.imports.sbatch.body import Step, StepKind, argv_of, is_operatorless
from reconciler.imports.sbatch.ranks import unwrapped

MOST_CHARACTERS: Final = 65_536
_SHELLS: Final = ("/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/env bash")
_SLURM_NAME: Final = re.compile(r"\bSLURM_[A-Z_]+\b")
_SLURM_TOOL: Final = re.compile(
    r"(?<![\w./-])(?:scontrol|sbatch|squeue|scancel|sacct|sattach|sbcast|salloc|sinfo|srun)\b"
)
_FIRST_NODE: Final = re.compile(
    r"\$\([ \t]*(?:scontrol[ \t]+show[ \t]+hostnames?\b[^()]*|srun\b[^()]*[ \t]hostname(?:[ \t][^()]*)?)\)"
)
"""`$(scontrol show hostnames ... | head -n 1)` and `$(srun ... hostname --ip-address)`: how scripts find their leader."""
_RENDEZVOUS: Final = re.compile(r"[ \t]*(?:export[ \t]+)?MASTER_(?:ADDR|PORT)=")
_QUIET_OPTIONS: Final = frozenset(
    {
        "label", "unbuffered", "kill-on-bad-exit", "ntasks", "nodes", "ntasks-per-node", "gpus-per-task",
        "ntasks-per-gpu", "het-group", "pack-group", "container-image", "container-mounts", "container-workdir", "mpi",
        "chdir",
    }
)  # fmt: skip
"""Options of srun that are carried over, or that describe what always is so here: one line a rank, all or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the body's translation depends on. `constants` are Slurm's variables whose value is known."""

    launch: str
    one_process: bool
    constants: Mapping[str, str]
    shell: str


def run_of(steps: Sequence[Step], setting: Setting, notes: Notes) -> dict[str, Any]:
    """`command` or `script`, with `env` and `launch`; {} when there is nothing to run."""
    kept = [replace(step, command=unwrapped(step.command)) for step in steps if not _is_dropped(step, notes)]
    working = [step for step in kept if step.kind in {StepKind.SRUN, StepKind.OTHER}]
    if not working:
        notes.refuse("NoCommand", "The script has no command.", at="script")
        return {}
    for step in working:
        _note_options(step, notes)
    run = _plain_command(kept, working) or _script(kept, working, setting, notes)
    if len(command := run.get("command", [])) == 3 and command[:2] == ["bash", "-c"] and "\n" in command[2]:
        text = command[2]
        run = {"script": _prologue(text, setting, notes, working[0].line) + text} | {
            k: run[k] for k in ("env",) if k in run
        }
    default = "perNode" if basename((run.get("command") or [""])[0]) == "torchrun" else "perGpu"
    launch = {} if setting.launch == default else {"launch": setting.launch}
    return launch | run


def roles_run(components: Sequence[str], steps: Sequence[Step], setting: Setting, notes: Notes) -> dict[str, Any]:
    """One script that starts for each role what srun started for its component; {} when that cannot be told."""
    commands: dict[str, str] = {}
    env: dict[str, str] = {}
    for step in (step for step in steps if not _is_dropped(step, notes)):
        group = step.options.get("het-group", step.options.get("pack-group", ""))
        if step.kind is StepKind.SRUN and group.isdigit() and int(group) < len(components):
            command = unwrapped(re.sub(r"[ \t]*&$", "", step.command).strip())
            if components[int(group)] not in commands and is_operatorless(command) and command:
                _note_options(step, notes)
                prefix = "".join(f"{name}={value} " for name, value in step.assigned)
                commands[components[int(group)]] = f"{prefix}exec {command}"
                continue
        if step.kind in {StepKind.SRUN, StepKind.OTHER}:
            notes.refuse(
                "CannotBecomeJob",
                "Of a heterogeneous job, each component is started by one srun --het-group, and nothing else runs.",
                line=step.line,
                at="script",
                remedy="Write one Job with roles, and a script that looks at $GANGOPS_ROLE.",
            )
            return {}
        env |= dict(step.assigned) if step.kind is StepKind.EXPORT else {}
    if missing := [name for name in components if name not in commands]:
        notes.refuse("NoCommand", f"Nothing is started for {', '.join(missing)}.", at="script")
        return {}
    cases = "".join(f"{name}) {commands[name]} ;;\n" for name in components)
    script = f'case "$GANGOPS_ROLE" in\n{cases}esac\n'
    launch = {} if setting.launch == "perGpu" else {"launch": setting.launch}
    prologue = _prologue(script, setting, notes, 0)
    return launch | {"script": prologue + script} | ({"env": env} if env else {})


# --- a command ------------------------------------------------------------------------------------------------------


def _plain_command(kept: Sequence[Step], working: Sequence[Step]) -> dict[str, Any] | None:
    """The only command with the literals exported before it, when no shell is needed."""
    (first, *others) = working
    argv = argv_of(first.command)
    if others or not argv or any(step.kind is StepKind.EXPORT for step in kept[kept.index(first) :]):
        return None
    if first.kind is StepKind.OTHER and (_is_shell_word(argv[0]) or _SLURM_TOOL.search(first.command)):
        return None
    env = dict(pair for step in kept if step.kind in {StepKind.EXPORT, StepKind.SRUN} for pair in step.assigned)
    return {"command": argv, "env": env} if env else {"command": argv}


def _is_shell_word(word: str) -> bool:
    """Words that mean something to a shell alone, assignments among them."""
    return "=" in word or word in {
        "source", ".", "module", "conda", "export", "cd", "trap", "if", "for", "while", "case", "function", "eval",
        "exec", "exit", "ulimit", "umask", "unset", "alias", "declare", "local", "shift", "time", "spack",
    }  # fmt: skip


# --- a script -------------------------------------------------------------------------------------------------------


def _script(kept: Sequence[Step], working: Sequence[Step], setting: Setting, notes: Notes) -> dict[str, Any]:
    sruns = [step for step in working if step.kind is StepKind.SRUN]
    around = next((step for step in working if step.kind is StepKind.OTHER), None)
    if around is not None and not setting.one_process:
        told = (
            "Slurm ran these lines once, on the first node" if sruns else "Without srun, only the first node ran this"
        )
        notes.note("BodyChanged", f"{told}; here every process runs them.", line=around.line, at="script")
    random = next((step for step in working if re.search(r"\$\{?RANDOM\b", step.raw)), None)
    if random is not None and not setting.one_process:
        notes.note("BodyChanged", "$RANDOM differs from process to process.", line=random.line, at="script")
    if len(sruns) > 1:
        notes.note(
            "BodyChanged",
            "Between two steps of srun all tasks had ended; here each process goes on by itself.",
            line=sruns[1].line,
            at="srun",
        )
    rows = []
    for step in kept:
        if step.kind is StepKind.SRUN:
            prefix = "".join(f"{name}={_quoted(value)} " for name, value in step.assigned)
            last = step is working[-1] and len(sruns) == 1 and is_operatorless(step.command)
            indent = step.raw[: len(step.raw) - len(step.raw.lstrip())]
            rows.append(f"{indent}{prefix}{'exec ' if last else ''}{step.command}")
            continue
        rows.append(_with_leader(step, notes))
        if step.kind is StepKind.OTHER and (tools := _SLURM_TOOL.search(rows[-1])):
            notes.note(
                "BodyNeedsSlurm",
                f"{tools[0]} is not there when GangOps runs this.",
                line=step.line,
                at="script",
                remedy="MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set; a stop and a restart are GangOps' work.",
            )
    text = "\n".join(rows).strip("\n") + "\n"
    head = "" if setting.shell in _SHELLS or not setting.shell else f"#!{setting.shell}\n"
    return {"script": head + _prologue(text, setting, notes, kept[0].line) + text}


def _with_leader(step: Step, notes: Notes) -> str:
    """The line, asking GangOps and not Slurm for the address of the first node."""
    changed = _FIRST_NODE.sub("$MASTER_ADDR", step.raw) if step.kind is StepKind.OTHER else step.raw
    if changed != step.raw:
        notes.note("BodyChanged", "The first node is $MASTER_ADDR here.", line=step.line, at="script")
    return changed


def _is_dropped(step: Step, notes: Notes) -> bool:
    """Lines that must not come along: a rendezvous of their own, and secrets."""
    if step.kind in {StepKind.EXPORT, StepKind.OTHER} and _RENDEZVOUS.match(step.raw):
        notes.note(
            "BodyChanged",
            "MASTER_ADDR and MASTER_PORT are set by GangOps; this line was left out.",
            line=step.line,
            at="script",
        )
        return True
    return step.kind is StepKind.EXPORT and bool(step.assigned) and not _public(step, notes)


def _public(step: Step, notes: Notes) -> dict[str, str]:
    """The variables of a line; {} when one of them looks like a secret, which is noted."""
    for name, value in step.assigned:
        if kind := secret_kind(name, value):
            notes.note(
                "NotCarriedOver",
                f"The value of {name} looks like {kind}; in git everyone would read it, for ever.",
                line=step.line,
                at="script",
                remedy="Put it in a file on the nodes and name that under run.secretFiles.",
            )
            return {}
    return dict(step.assigned)


def _note_options(step: Step, notes: Notes) -> None:
    """Options of srun that have no counterpart."""
    for name, value in step.options.items():
        if name in _QUIET_OPTIONS or (name == "export" and value.split(",")[0] == "ALL" and "," not in value):
            continue
        why = "GangOps binds each process to the CPUs and memory of its GPU." if "bind" in name else ""
        notes.note("NotCarriedOver", why or "srun's work is the agents' here.", line=step.line, at=f"srun --{name}")


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[A-Za-z0-9_./:=,@%+-]*", value) else "'" + value.replace("'", "'\\''") + "'"


# --- Slurm's variables ----------------------------------------------------------------------------------------------

_ALWAYS: Final = {
    "SLURM_PROCID": "${RANK:-$NODE_RANK}",
    "SLURM_LOCALID": "${LOCAL_RANK:-0}",
    "SLURM_NODEID": "$NODE_RANK",
    "SLURM_LAUNCH_NODE_IPADDR": "$MASTER_ADDR",
    "SLURM_RESTART_COUNT": "$((GANGOPS_ATTEMPT - 1))",
}
_BY_LAUNCH: Final = {
    "perGpu": {
        "SLURM_NTASKS": "$WORLD_SIZE",
        "SLURM_NPROCS": "$WORLD_SIZE",
        "SLURM_NNODES": "$((WORLD_SIZE / LOCAL_WORLD_SIZE))",
        "SLURM_JOB_NUM_NODES": "$((WORLD_SIZE / LOCAL_WORLD_SIZE))",
        "SLURM_NTASKS_PER_NODE": "$LOCAL_WORLD_SIZE",
        "SLURM_GPUS_ON_NODE": "$LOCAL_WORLD_SIZE",
        "SLURM_GPUS_PER_NODE": "$LOCAL_WORLD_SIZE",
    },
    "perNode": {
        "SLURM_NTASKS": "$PET_NNODES",
        "SLURM_NPROCS": "$PET_NNODES",
        "SLURM_NNODES": "$PET_NNODES",
        "SLURM_JOB_NUM_NODES": "$PET_NNODES",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_GPUS_ON_NODE": "$PET_NPROC_PER_NODE",
        "SLURM_GPUS_PER_NODE": "$PET_NPROC_PER_NODE",
    },
}


def _prologue(text: str, setting: Setting, notes: Notes, line: int) -> str:
    """Exports for those of Slurm's variables that the text names; those without a counterpart are noted."""
    known = {**_ALWAYS, **_BY_LAUNCH[setting.launch], **setting.constants}
    named = dict.fromkeys(_named_in(text))
    missing = [name for name in named if name not in known]
    if missing:
        notes.note(
            "BodyNeedsSlurm",
            f"{', '.join(missing[:8])}: not set when GangOps runs this.",
            line=line,
            at="script",
            remedy="Use $GANGOPS_JOB, $GANGOPS_ATTEMPT, RANK, WORLD_SIZE and their like.",
        )
    return "".join(f'export {name}="{known[name]}"\n' for name in sorted(named) if name in known)


def _named_in(text: str) -> Iterator[str]:
    for row in text.split("\n"):
        if not row.lstrip().startswith("#"):
            yield from _SLURM_NAME.findall(row)
