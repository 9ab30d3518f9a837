"""Which lines of a script does sbatch read as directives, which only look like it, and where does the body begin?

The rules of sbatch, as observed: only `#SBATCH` at column 0, only above the first line that is neither blank nor a
comment, no blank needed behind it, and an unquoted `#` ends the line. What the words mean is for `parse`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_MARK: Final = "#SBATCH"
_LOOKS_ALIKE: Final = re.compile(r"[ \t]*#[# \t]*SBATCH(?![A-Za-z_])", re.IGNORECASE)
_SLASHES: Final = re.compile(r"//[ \t]*(?=!/|SBATCH\b)")
_DASHES: Final = ("\u2013", "\u2014", "\u2015", "\u2212")


@dataclass(frozen=True, slots=True)
class Directive:
    """One `#SBATCH` line, split into words with quotes resolved. `unclosed`: a quote was left open."""

    line: int
    words: tuple[str, ...]
    unclosed: bool = False


@dataclass(frozen=True, slots=True)
class Ignored:
    """A line that looks like a directive and is none. `reason` is a stable word."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A script taken apart. `body` are its lines from the first command on, the first of them at `body_line`."""

    shell: str | None
    directives: tuple[Directive, ...]
    ignored: tuple[Ignored, ...]
    slashed: tuple[int, ...]
    """Lines whose `#` was turned into `//`, as some web pages do."""
    body: tuple[str, ...]
    body_line: int


def split_script(text: str) -> Lines:
    """The directives of a script and its body; lines are counted from 1."""
    rows = text.split("\n")
    shell = rows[0][2:].strip() if rows[0].startswith("#!") else None
    start = next((number for number, row in enumerate(rows) if _is_command(row)), len(rows))
    directives, ignored = [], []
    for number, row in enumerate(rows, 1):
        if row.startswith(_MARK) and number <= start:
            directives.append(_directive(number, row[len(_MARK) :]))
        elif reason := _reason(row):
            ignored.append(Ignored(number, reason))
    return Lines(
        shell=shell,
        directives=tuple(directives),
        ignored=tuple(ignored),
        slashed=tuple(number for number, row in enumerate(rows, 1) if _SLASHES.match(row)),
        body=tuple(rows[start:]),
        body_line=start + 1,
    )


def repaired(text: str) -> str:
    """The script as it was before a web page or an editor changed its signs; the same text when nothing did.

    `//` at column 0 becomes `#` again (in a script that has `// SBATCH` or `// !/`), Windows line ends and a byte
    order mark go, and a typographic dash that begins an option becomes `--`.
    """
    rows = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if any(_SLASHES.match(row) for row in rows):
        rows = [_unslashed(row) for row in rows]
    return "\n".join(_with_plain_dashes(row) for row in rows)


def _unslashed(row: str) -> str:
    if _SLASHES.match(row):
        return "#" + _SLASHES.sub("", row, count=1)
    return "#" + row[2:] if row.startswith("//") and not row[2:3].strip() else row


def _with_plain_dashes(row: str) -> str:
    if not row.startswith(_MARK):
        return row
    for dash in _DASHES:
        row = re.sub(rf"(?<=[ \tH]){dash}{{1,2}}-?(?=[A-Za-z])", "--", row)
    return row


def starts_with_dash(word: str) -> bool:
    """Whether the word begins with a dash of typography, where an option's `--` was meant."""
    return word.startswith(_DASHES)


def _is_command(row: str) -> bool:
    stripped = row.strip()
    return bool(stripped) and not stripped.startswith("#")


def _reason(row: str) -> str:
    """Why a line that looks like a directive is none; "" when it does not look like one."""
    if not _LOOKS_ALIKE.match(row):
        return ""
    if row.startswith(_MARK):
        return "after_first_command"
    if row[:1] in {" ", "\t"}:
        return "not_at_column_0"
    if row.startswith("##"):
        return "double_hash"
    return "space_after_hash" if row[1:2] in {" ", "\t"} else "wrong_case"


def _directive(line: int, rest: str) -> Directive:
    """Words as sbatch splits them: quotes and backslashes as in a shell, nothing expanded, `#` ends the line."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    at = iter(rest)
    for sign in at:
        if quote:
            if sign == quote:
                quote = ""
            elif sign == "\\" and quote == '"':
                word = [*(word or []), next(at, "")]
            else:
                (word := word if word is not None else []).append(sign)
        elif sign in "'\"":
            quote, word = sign, word if word is not None else []
        elif sign == "#":
            break
        elif sign.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            (word := word if word is not None else []).append(next(at, "") if sign == "\\" else sign)
    if word is not None:
        words.append("".join(word))
    return Directive(line, tuple(words), unclosed=bool(quote))
