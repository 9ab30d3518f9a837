"""Which bytes stand for this tree? The only writer of YAML and JSON that goes into git.

The same tree gives the same bytes on every machine, and every YAML loader (1.1 or 1.2) reads them
back as the same tree: whatever any of them could misread is quoted. Key order is the caller's.
Reading is the loader's; editing people's files and keeping their comments is not done here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from reconciler.documents.scalars import is_plain_text
from reconciler.documents.text import HIDDEN_CHARACTERS
from reconciler.errors import BrokenInvariant

# What may be written: anything else (a float, a set, an object) is a bug of ours.
Writable: TypeAlias = Mapping[str, "Writable"] | Sequence["Writable"] | str | int | bool | None

_MAX_DEPTH: Final = 32  # the loader reads no deeper
_MAX_DIGITS: Final = 40
_MAX_KEY: Final = 1000  # characters as written; beyond 1024 a YAML parser no longer sees a key
# Everything JSON lets through raw that a YAML parser refuses, folds, or a person cannot see.
_ESCAPED: Final = re.compile(f"[{HIDDEN_CHARACTERS}]")


def to_yaml(tree: Writable, header: str = "") -> bytes:
    """`tree` as UTF-8 YAML in block form, keys in insertion order, two spaces a level, LF at the end.

    Each line of `header` becomes a comment above it. Empty collections are written `{}` and `[]`.
    Raises: BrokenInvariant, for a float or any other value that has no single spelling.
    """
    lines = [f"# {_escape(line)}".rstrip() for line in header.splitlines()]
    if _is_filled(tree):
        _write_collection(tree, 0, lines)
    else:
        lines.append(_inline(tree))
    return _encoded("\n".join(lines) + "\n")


def to_json(tree: Writable) -> bytes:
    """`tree` as UTF-8 JSON, keys in insertion order, one space a level, LF at the end.

    Raises: BrokenInvariant, as `to_yaml` does.
    """
    _check(tree, 0)
    return _encoded(json.dumps(tree, ensure_ascii=False, allow_nan=False, indent=1, separators=(",", ": ")) + "\n")


def _write_collection(tree: Writable, depth: int, lines: list[str]) -> None:
    """Append the lines of a non-empty mapping or sequence."""
    if depth >= _MAX_DEPTH:
        raise BrokenInvariant(f"a document would be nested more than {_MAX_DEPTH} levels deep")
    pad = "  " * depth
    if isinstance(tree, dict):
        for key, value in tree.items():
            head = f"{pad}{_key(key)}:"
            if _is_filled(value):
                lines.append(head)
                _write_collection(value, depth + 1, lines)
            else:
                lines.append(f"{head} {_inline(value)}")
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            if _is_filled(value):
                first = len(lines)
                _write_collection(value, depth + 1, lines)
                lines[first] = f"{pad}- {lines[first][len(pad) + 2 :]}"
            else:
                lines.append(f"{pad}- {_inline(value)}")


def _is_filled(tree: Writable) -> bool:
    return isinstance(tree, (dict, list, tuple)) and len(tree) > 0


def _inline(value: Writable) -> str:
    """A scalar or an empty collection on one line."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, (list, tuple)):
        return "[]"
    raise BrokenInvariant(f"a value of type {type(value).__name__} has no canonical form")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise BrokenInvariant(f"a key of type {type(key).__name__} has no canonical form")
    written = _text(key)
    if len(written) > _MAX_KEY:
        raise BrokenInvariant(f"a key of {len(key)} characters is too long to be read back")
    return written


def _text(text: str) -> str:
    plain = str.__str__(text)  # of an enumeration: its value, not its name
    return plain if is_plain_text(plain) else _escape(json.dumps(plain, ensure_ascii=False))


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _integer(value: int) -> str:
    written = int.__repr__(value)
    if len(written.lstrip("-")) > _MAX_DIGITS:
        raise BrokenInvariant(f"an integer of more than {_MAX_DIGITS} digits is not written")
    return written


def _check(tree: Writable, depth: int) -> None:
    """Apply to JSON what YAML gets from being written here: the same types, depth and keys."""
    if isinstance(tree, (dict, list, tuple)):
        if depth >= _MAX_DEPTH:
            raise BrokenInvariant(f"a document would be nested more than {_MAX_DEPTH} levels deep")
        if isinstance(tree, dict):
            for key in tree:
                _key(key)
        for value in tree.values() if isinstance(tree, dict) else tree:
            _check(value, depth + 1)
    else:
        _inline(tree)


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BrokenInvariant("a text holds half a character (a lone surrogate) and cannot be written") from error
