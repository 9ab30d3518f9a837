"""What does an sbatch script ask for? The neutral format sbatch/v1: components, what was ignored, and what was wrong.

Values mean what sbatch takes them to mean; an absent key was not set. Options that repeat count in their last form,
and a component of a heterogeneous job starts with what carries over from the one before. Nothing is run or expanded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from reconciler.documents.loader import FILE_LIMITS, Tree
from reconciler.documents.similar import closest
from reconciler.documents.text import unreadable
from reconciler.imports.sbatch import values
from reconciler.imports.sbatch.lines import Directive, Ignored, Lines, repaired, split_script, starts_with_dash
from reconciler.imports.sbatch.options import LETTERS, OPTIONS, Option, Takes, Use, find_option

FORMAT: Final = "sbatch/v1"
_MOST_COMPONENTS: Final = 128
_MOST_ERRORS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a script is refused. `code` is stable and in capitals; line 0 is the whole file."""

    code: str
    reason: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.code}: {f'line {self.line} ' if self.line else ''}{self.reason}"


@dataclass(frozen=True, slots=True)
class Said:
    """An option as it was last written: its value ("" when it takes none), and where."""

    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Component:
    """One job, or one part of a heterogeneous one: the neutral values, and every option that led to them."""

    asked: Mapping[str, Any]
    said: Mapping[str, Said]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script as read. With `problems` its components are for looking at, never for use."""

    shell: str | None
    components: tuple[Component, ...]
    ignored: tuple[Ignored, ...]
    problems: tuple[Problem, ...]
    body: tuple[str, ...]
    body_line: int
    corrected: str | None = None
    """The script with its damage undone, when it was damaged in a way that is known."""

    def names(self, use: Use) -> list[str]:
        """Options of one use that were said, sorted."""
        said = {name for component in self.components for name in component.said}
        return sorted(name for name in said if OPTIONS[name].use is use)

    def neutral(self, file: str) -> dict[str, Tree]:
        """The neutral format as a tree."""
        return {
            "file": file,
            "format": FORMAT,
            "status": "error" if self.problems else "ok",
            "shell": self.shell,
            "components": [dict(component.asked) for component in self.components],
            "ignored": [{"line": ignored.line, "reason": ignored.reason} for ignored in self.ignored],
            "informational": [*self.names(Use.INFORMATIONAL)],
            "unsupported": [*self.names(Use.UNSUPPORTED)],
            "errors": [str(problem) for problem in self.problems],
        }


def parse_sbatch(content: bytes) -> Script:
    """The script these bytes are. Never raises: all that is wrong is among its `problems`."""
    marked = content.removeprefix(b"\xef\xbb\xbf")
    if refusal := unreadable(marked, "", FILE_LIMITS.max_bytes):
        code = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", refusal.code).upper()
        return _refused([Problem(code=code, reason=refusal.detail, line=refusal.place.line)])
    text = content.decode("utf-8")
    lines = split_script(text)
    corrected = repaired(text)
    problems = _damage(text, lines)
    if problems:
        return _refused(problems, lines, corrected if corrected != text else None)
    return _read(lines, corrected if corrected != text else None)


def _refused(problems: list[Problem], lines: Lines | None = None, corrected: str | None = None) -> Script:
    return Script(
        shell=lines.shell if lines else None,
        components=(),
        ignored=lines.ignored if lines else (),
        problems=tuple(problems),
        body=lines.body if lines else (),
        body_line=lines.body_line if lines else 1,
        corrected=corrected,
    )


def _damage(text: str, lines: Lines) -> list[Problem]:
    """What keeps sbatch from taking this as a script at all."""
    found = []
    if not text.strip():
        return [Problem(code="EMPTY_SCRIPT", reason="there is nothing in it")]
    if lines.shell is None:
        found.append(Problem(code="NO_SHEBANG", reason="does not start with #!", line=1))
    if "\r\n" in text:
        found.append(Problem(code="DOS_LINE_BREAKS", reason="lines end as on Windows; sbatch refuses that"))
    slashed = [number for number in lines.slashed if number > 1 or lines.shell is not None]
    if slashed:
        span = f"{slashed[0]}-{slashed[-1]}" if len(slashed) > 1 else str(slashed[0])
        reason = f'lines {span} look like #SBATCH damaged to "// SBATCH"'
        code = "DAMAGED_DIRECTIVES" if lines.directives else "NO_DIRECTIVES"
        found.append(Problem(code=code, reason=reason))
    return found


# --- components -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """A component being read. Keys of `asked` that begin with `_` are parts of a value, put together at the end."""

    asked: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Said] = field(default_factory=dict)

    def heir(self) -> _Draft:
        """The next component of a heterogeneous job, as sbatch starts it."""
        kept = {name: said for name, said in self.said.items() if name not in _RESET}
        asked = {key: value for key, value in self.asked.items() if key not in _RESET_KEYS}
        if "mem" in asked and "per_node_mb" not in asked["mem"] and "all_of_node" not in asked["mem"]:
            del asked["mem"]
        return _Draft(asked, kept)


_RESET: Final = frozenset(
    {
        "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core", "ntasks-per-socket", "cpus-per-task",
        "cpus-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gpu-bind", "gpu-freq", "gres",
        "gres-flags", "mem-per-cpu", "mem-per-gpu", "mem-bind", "partition", "constraint", "exclusive", "switches",
        "nodelist", "nodefile", "exclude", "contiguous", "hint", "distribution", "network", "tmp", "mincpus",
        "cores-per-socket", "sockets-per-node", "threads-per-core", "extra-node-info", "licenses", "spread-job",
        "use-min-nodes", "overcommit", "oversubscribe", "tres-per-task", "tres-bind", "container-image",
        "container-mounts", "container-workdir",
    }
)  # fmt: skip
_RESET_KEYS: Final = frozenset(
    {
        "nodes", "_ntasks", "ntasks_per_node", "ntasks_per_gpu", "cpus_per_task", "cpus_per_gpu", "_gpus",
        "_gpus_per_node", "_gpus_per_task", "_gres", "partitions", "constraint", "exclusive", "switches", "nodelist",
        "exclude", "contiguous",
    }
)  # fmt: skip


def _read(lines: Lines, corrected: str | None) -> Script:
    drafts = [_Draft()]
    problems: list[Problem] = []
    for directive in lines.directives:
        if directive.words[:1] in {("hetjob",), ("packjob",)}:
            drafts.append(drafts[-1].heir())
            if len(drafts) > _MOST_COMPONENTS:
                problems.append(Problem(code="TOO_MANY_COMPONENTS", reason="of one job", line=directive.line))
                break
            continue
        problems += _apply(drafts[-1], directive)
    fatal = any(not problem.code.startswith(_REFUSED_LATER) for problem in problems)
    if not fatal:
        for draft in drafts:
            problems += _finish(draft)
    return Script(
        shell=lines.shell,
        components=() if fatal else tuple(Component(draft.asked, draft.said) for draft in drafts),
        ignored=lines.ignored,
        problems=tuple(problems[:_MOST_ERRORS]),
        body=lines.body,
        body_line=lines.body_line,
        corrected=corrected,
    )


_REFUSED_LATER: Final = ("DEPENDENCY_", "INVALID_DEPENDENCY")
"""Found by slurmctld, not by sbatch: the rest of the script still says what it says."""


def _apply(draft: _Draft, directive: Directive) -> Iterator[Problem]:
    """Take over what one line says."""
    line = directive.line
    if directive.unclosed:
        yield Problem(code="UNCLOSED_QUOTE", reason="a quote is not closed", line=line)
        return
    words = list(reversed(directive.words))
    while words:
        word = words.pop()
        if word == "--":
            continue
        if word.startswith("--"):
            found = _long(word, words)
        elif word.startswith("-") and len(word) > 1:
            found = _short(word, words)
        else:
            code = "DAMAGED_DASH" if starts_with_dash(word) else "UNEXPECTED_WORD"
            yield Problem(code=code, reason=f"{_shown(word)} is no option", line=line)
            return
        if isinstance(found, Problem):
            yield replace(found, line=line)
            return
        for option, value in found:
            draft.said.pop(option.name, None)
            draft.said[option.name] = Said(value or "", line)
            yield from _value(draft, option, value, line)


def _long(word: str, rest: list[str]) -> list[tuple[Option, str | None]] | Problem:
    """The option and its value, or what is wrong."""
    name, equals, attached = word[2:].partition("=")
    option = find_option(name)
    if option is None:
        near = closest(name[:64], OPTIONS)
        guess = f"did you mean --{near}?" if near else "sbatch has none of that name"
        return Problem(code="UNKNOWN_OPTION", reason=f"{_shown('--' + name)} ({guess})")
    if equals and option.takes is Takes.NOTHING:
        return Problem(code="OPTION_FORM", reason=f"--{option.name} takes no value")
    if equals:
        return [(option, attached)]
    if option.takes is not Takes.VALUE:
        return [(option, None)]
    return [(option, rest.pop())] if rest else Problem(code="OPTION_FORM", reason=f"--{option.name} needs a value")


def _short(word: str, rest: list[str]) -> list[tuple[Option, str | None]] | Problem:
    """The options of `-N2`, `-N 2`, `-HN 2`, or what is wrong."""
    found: list[tuple[Option, str | None]] = []
    for position, letter in enumerate(word[1:], 2):
        option = LETTERS.get(letter)
        if option is None:
            return Problem(code="UNKNOWN_OPTION", reason=f"{_shown('-' + letter)} (sbatch has none of that letter)")
        if option.takes is Takes.NOTHING:
            found.append((option, None))
            continue
        attached = word[position:]
        if option.takes is Takes.VALUE and not attached:
            if not rest:
                return Problem(code="OPTION_FORM", reason=f"-{letter} needs a value")
            attached = rest.pop()
        return [*found, (option, attached or None)]
    return found


# --- values ---------------------------------------------------------------------------------------------------------

_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "account": ("account", values.text),
    "array": ("array", values.array),
    "begin": ("begin", values.text),
    "constraint": ("constraint", values.text),
    "container-image": ("container_image", values.text),
    "container-mounts": ("container_mounts", values.names),
    "container-workdir": ("container_workdir", values.text),
    "cpus-per-gpu": ("cpus_per_gpu", values.count),
    "cpus-per-task": ("cpus_per_task", values.count),
    "exclude": ("exclude", values.hosts),
    "gpus": ("_gpus", values.gpus),
    "gpus-per-node": ("_gpus_per_node", values.gpus),
    "gpus-per-task": ("_gpus_per_task", values.gpus),
    "gres": ("_gres", values.gres),
    "job-name": ("job_name", values.text),
    "kill-on-invalid-dep": ("kill_on_invalid_dep", values.yes_no),
    "mem": ("mem", lambda said: {"per_node_mb": mb} if (mb := values.memory(said)) else {"all_of_node": True}),
    "mem-per-cpu": ("mem", lambda said: {"per_cpu_mb": values.memory(said)}),
    "mem-per-gpu": ("mem", lambda said: {"per_gpu_mb": values.memory(said)}),
    "nodelist": ("nodelist", values.hosts),
    "nodes": ("nodes", values.nodes),
    "ntasks": ("_ntasks", values.count),
    "ntasks-per-gpu": ("ntasks_per_gpu", values.count),
    "ntasks-per-node": ("ntasks_per_node", values.count),
    "partition": ("partitions", values.names),
    "qos": ("qos", values.text),
    "reservation": ("reservation", values.text),
    "signal": ("signal", values.signal),
    "switches": ("switches", values.switches),
    "time": ("time_limit_s", values.seconds),
    "time-min": ("time_min_s", values.seconds),
}
_FLAGS: Final[Mapping[str, tuple[str, Any]]] = {
    "contiguous": ("contiguous", True),
    "hold": ("hold", True),
    "no-requeue": ("requeue", False),
    "requeue": ("requeue", True),
}
_OVERRIDES: Final = (("requeue", "no-requeue"), ("mem", "mem-per-cpu", "mem-per-gpu"), ("exclusive", "oversubscribe"))
"""Of each of these groups, the last one said counts."""


def _value(draft: _Draft, option: Option, value: str | None, line: int) -> Iterator[Problem]:
    for group in _OVERRIDES:
        if option.name in group:
            for other in group:
                draft.said.pop(other, None) if other != option.name else None
    try:
        if option.name == "oversubscribe":
            draft.asked.pop("exclusive", None)
        elif option.name == "exclusive":
            draft.asked["exclusive"] = value or "node"
        elif option.name == "nice":
            draft.asked["nice"] = values.nice(value)
        elif option.name == "dependency":
            draft.asked.pop("dependency", None)
            draft.asked.pop("dependency_join", None)
            draft.asked["dependency"], join = values.dependencies(value or "")
            draft.asked |= {"dependency_join": join} if join else {}
        elif option.name in _FLAGS:
            key, flag = _FLAGS[option.name]
            draft.asked[key] = flag
        elif option.name in _KEYS:
            key, read = _KEYS[option.name]
            draft.asked[key] = read(value or "")
    except values.MixedSeparators as err:
        yield Problem(code="DEPENDENCY_MIXED_SEPARATORS", reason=str(err), line=line)
    except ValueError as err:
        code = f"INVALID_{option.name.upper().replace('-', '_')}"
        yield Problem(code=code, reason=f"{_shown(value or '')} ({err})", line=line)


def _finish(draft: _Draft) -> Iterator[Problem]:
    """Put the parts of tasks and GPUs together, in the order of the neutral format."""
    asked = draft.asked
    nodes = asked.get("nodes", {})
    fixed = nodes.get("min") if nodes and nodes["min"] == nodes["max"] else None
    tasks = asked.pop("_ntasks", None)
    if tasks is None and fixed is not None and "ntasks_per_node" in asked:
        tasks = fixed * asked["ntasks_per_node"]
    if tasks is not None:
        asked["ntasks_total"] = tasks
    gres = asked.pop("_gres", {})
    others = {name: found[1] for name, found in gres.items() if name != "gpu"}
    if others:
        asked["other_gres"] = others
    by_node = [found for found in (asked.pop("_gpus_per_node", None), gres.get("gpu")) if found and found[1]]
    total, by_task = asked.pop("_gpus", None), asked.pop("_gpus_per_task", None)
    kinds = sorted({found[0] for found in (*by_node, total, by_task) if found and found[0]})
    if len(kinds) > 1 or len({found[1] for found in by_node}) > 1:
        yield Problem(code="CONFLICTING_GPUS", reason="the options for GPUs contradict each other")
        return
    gpus: dict[str, Any] = {}
    if by_node:
        gpus["per_node"] = by_node[0][1]
        if fixed is not None:
            gpus["total"] = gpus["per_node"] * fixed
        elif nodes:
            gpus |= {"total_min": gpus["per_node"] * nodes["min"], "total_max": gpus["per_node"] * nodes["max"]}
    if by_task:
        gpus["per_task"] = by_task[1]
        if tasks is not None:
            gpus.setdefault("total", by_task[1] * tasks)
    if total:
        if gpus.get("total", total[1]) != total[1]:
            reason = f"--gpus says {total[1]}, the other options come to {gpus['total']}"
            yield Problem(code="CONFLICTING_GPUS", reason=reason)
            return
        gpus["total"] = total[1]
    if gpus:
        asked["gpus"] = gpus | ({"type": kinds[0]} if kinds else {})


def _shown(word: str) -> str:
    cut = word if len(word) <= 60 else f"{word[:60]}..."
    plain = "".join(sign if sign.isprintable() else "?" for sign in cut)
    return plain if plain.startswith("-") else f'"{plain}"'
