"""What are the commands of a script's body, as far as they have to be told apart? Logical lines, and what `srun` says.

No shell is imitated: lines are joined where quotes, backslashes and here-documents join them, and each gets a kind.
What cannot be told is `OTHER` and stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class StepKind(StrEnum):
    """What a logical line is to us."""

    SILENT = "silent"  # blank or a comment
    SETTING = "setting"  # `set -e`, `wait`
    EXPORT = "export"  # only literal assignments
    SRUN = "srun"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One logical line. `raw` as written; of an srun line, what it starts and how."""

    line: int
    kind: StepKind
    raw: str
    assigned: tuple[tuple[str, str], ...] = ()
    """Of exports, and before srun: NAME and literal value."""
    command: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


_HERE: Final = re.compile(r"<<-?[ \t]*(['\"\\]?)([A-Za-z_][A-Za-z0-9_]*)")
_SRUN: Final = re.compile(
    r"[ \t]*((?:[A-Za-z_][A-Za-z0-9_]*=[^\s'\"`$]*[ \t]+)*)(?:exec[ \t]+)?srun(?=\s|$)(.*)", re.DOTALL
)
_SETTING: Final = re.compile(r"[ \t]*(?:set[ \t]+[-+][^;&|]*|wait)[ \t;]*(?:#.*)?")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_QUOTED: Final = re.compile(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_WORD: Final = re.compile(r"(?:[^\s'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+", re.DOTALL)
_FLAGS: Final = frozenset(
    {
        "label", "unbuffered", "exclusive", "overlap", "exact", "pty", "kill-on-bad-exit", "no-kill", "overcommit",
        "preserve-env", "quiet", "verbose", "quit-on-interrupt", "disable-status", "immediate", "contiguous",
        "multi-prog", "spread-job", "whole", "no-container-mount-home", "container-mount-home", "container-writable",
        "container-remap-root", "no-container-entrypoint", "container-entrypoint", "no-container-remap-root",
        "debugger-test", "external-launcher", "nice", "het-group-all",
    }
)  # fmt: skip
_LONG_OF: Final = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "G": "gpus", "J": "job-name", "o": "output", "e": "error",
    "i": "input", "w": "nodelist", "x": "exclude", "t": "time", "p": "partition", "m": "distribution", "A": "account",
    "d": "dependency", "D": "chdir", "C": "constraint", "r": "relative", "q": "qos", "T": "threads", "W": "wait",
    "S": "core-spec", "B": "extra-node-info", "P": "dependency", "M": "clusters",
}  # fmt: skip
_SHORT_FLAGS: Final = {"l": "label", "u": "unbuffered", "K": "kill-on-bad-exit", "O": "overcommit", "Q": "quiet",
                       "v": "verbose", "E": "preserve-env", "k": "no-kill", "s": "oversubscribe", "H": "hold",
                       "X": "disable-status", "Z": "no-allocate", "I": "immediate"}  # fmt: skip


def read_body(rows: Sequence[str], first_line: int) -> list[Step]:
    """The logical lines of a body whose first row is line `first_line` of its file."""
    return [_step(number, raw, text) for number, raw, text in _logical(rows, first_line)]


def argv_of(command: str) -> list[str] | None:
    """The words of a command that needs no shell; None when it uses one in any way."""
    return None if _needs_shell(command) else shlex.split(command)


def is_operatorless(command: str) -> bool:
    """Whether this is one simple command, however its words are made: `exec` before it means the same."""
    return not re.search(r"[|&;<>()\n]", _outside_quotes(command))


# --- logical lines --------------------------------------------------------------------------------------------------


def _logical(rows: Sequence[str], first_line: int) -> Iterator[tuple[int, str, str]]:
    """(line, as written, with continuations joined) of each logical line."""
    at = 0
    while at < len(rows):
        start, joined = at, ""
        quote, goes_on = "", False
        while True:
            loose = goes_on and not quote
            quote, text, goes_on = _scan(rows[at], quote)
            # A backslash joins without a blank; blanks around it are as good as one.
            if loose and (joined[-1:].isspace() or text[:1].isspace()):
                joined, text = f"{joined.rstrip()} ", text.lstrip()
            joined += text
            at += 1
            if at >= len(rows) or not (quote or goes_on):
                break
            joined += "" if goes_on else "\n"
        for word in _here_words(joined):
            while at < len(rows) and rows[at - 1].strip() != word:
                joined += "\n" + rows[at]
                at += 1
        yield first_line + start, "\n".join(rows[start:at]), joined


def _scan(row: str, quote: str) -> tuple[str, str, bool]:
    """(quote that is open at the end, text without a joining backslash, whether the next row belongs to it)."""
    position, before = 0, " "
    while position < len(row):
        sign = row[position]
        if quote == "'":
            quote = "" if sign == "'" else quote
        elif sign == "\\":
            if position == len(row) - 1:
                return quote, row[:-1], True
            position += 1
        elif quote == '"':
            quote = "" if sign == '"' else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and before.isspace():
            return "", row, False
        before = sign
        position += 1
    return quote, row, False


def _here_words(text: str) -> list[str]:
    """The words that end the here-documents a line begins."""
    begun = [found.start() for found in re.finditer(r"(?<!<)<<(?!<)", _outside_quotes(text))]
    return [word[2] for at in begun if (word := _HERE.match(text, at))]


def _outside_quotes(text: str) -> str:
    """The text with everything quoted made unrecognisable, at the same places."""
    return _QUOTED.sub(lambda found: "Q" * len(found[0]), text)


def _needs_shell(command: str) -> bool:
    doubled = _QUOTED.sub(lambda found: "Q" if found[0][0] == "'" else found[0], command)
    bare = _outside_quotes(command)
    return bool(re.search(r"[$`]", doubled) or re.search(r"[*?\[\]{}~|&;<>()!#\n'\"]", bare))


# --- kinds ----------------------------------------------------------------------------------------------------------


def _step(line: int, raw: str, text: str) -> Step:
    stripped = text.strip()
    if not stripped or (stripped.startswith("#") and "\n" not in stripped):
        return Step(line=line, kind=StepKind.SILENT, raw=raw)
    if _SETTING.fullmatch(text):
        return Step(line=line, kind=StepKind.SETTING, raw=raw)
    started = _SRUN.fullmatch(text)
    options, command = _srun(started[2]) if started else ({}, "")
    if started and command:
        assigned = _assignments(started[1].split())
        return Step(line=line, kind=StepKind.SRUN, raw=raw, assigned=assigned, command=command, options=options)
    assigned = _exports(stripped)
    kind = StepKind.EXPORT if assigned else StepKind.OTHER
    return Step(line=line, kind=kind, raw=raw, assigned=assigned, command=stripped if kind is StepKind.OTHER else "")


def _exports(text: str) -> tuple[tuple[str, str], ...]:
    """NAME and value of a line that only exports literals; () for any other line."""
    without_comment = re.sub(r"[ \t]+#[^'\"]*$", "", text)
    if not without_comment.startswith("export ") or _needs_shell(without_comment):
        return ()
    return _assignments(shlex.split(without_comment)[1:])


def _assignments(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """NAME and value of each word; () when one is no assignment."""
    found = [_ASSIGNMENT.fullmatch(word) for word in words]
    return tuple((one[1], one[2]) for one in found if one) if all(found) else ()


def _srun(rest: str) -> tuple[dict[str, str], str]:
    """The options of srun by long name, and the command behind them as written."""
    options: dict[str, str] = {}
    words = list(_WORD.finditer(rest))
    position = 0
    while position < len(words):
        word = _unquoted(words[position][0])
        if not word.startswith("-") or word == "-":
            return options, rest[words[position].start() :].strip()
        position += 1
        if word == "--":
            continue
        name, equals, attached = word.removeprefix("--").partition("=") if word.startswith("--") else _short(word)
        if not equals and name not in _FLAGS and not _is_flag(word) and position < len(words):
            attached = _unquoted(words[position][0])
            position += 1
        options[name] = attached
    return options, ""


def _short(word: str) -> tuple[str, str, str]:
    letter, attached = word[1], word[2:]
    if letter in _SHORT_FLAGS:
        return _SHORT_FLAGS[letter], "=", attached
    return _LONG_OF.get(letter, letter), "=" if attached else "", attached


def _is_flag(word: str) -> bool:
    return not word.startswith("--") and word[1:2] in _SHORT_FLAGS


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word
