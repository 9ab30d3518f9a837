"""How does an imported Job look in a file? As a person would write it: short mappings in a line, scripts as blocks.

What is written is read back by the strict loader; should it ever say something else, the canonical form is written
instead, which is always right and less pretty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from reconciler.documents.canonical import to_yaml
from reconciler.documents.loader import load
from reconciler.documents.scalars import is_plain_text, read_plain
from reconciler.documents.text import HIDDEN_CHARACTERS

_WIDTH: Final = 110
_HIDDEN: Final = re.compile(f"[\x00-\x08\x0b-\x1f{HIDDEN_CHARACTERS}]")
_QUANTITY: Final = re.compile(r"[0-9]+[A-Za-z][A-Za-z0-9]*")
_OPTION: Final = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9_.-]*")


def job_files(jobs: Sequence[dict[str, Any]], header: Sequence[str]) -> bytes:
    """Job documents as one YAML file, with these lines as a comment above."""
    texts = [_pretty(job) or to_yaml(job).decode() for job in jobs]
    comment = "".join(f"# {_HIDDEN.sub('?', line.replace(chr(10), ' '))}".rstrip() + "\n" for line in header)
    return (comment + "---\n".join(texts)).encode()


def _pretty(job: dict[str, Any]) -> str | None:
    text = "\n".join(_block(job, 0)) + "\n"
    try:
        loaded = load(text.encode(), "")
    except UnicodeEncodeError:
        return None
    same = loaded.ok and len(loaded.documents) == 1 and loaded.documents[0].value == job
    return text if same else None


def _block(tree: dict[str, Any], depth: int) -> list[str]:
    lines = []
    pad = "  " * depth
    for key, value in tree.items():
        head = f"{pad}{_scalar(key)}:"
        flow = _flow(value)
        if isinstance(value, str) and "\n" in value and not _HIDDEN.search(value) and value.strip():
            lines += [f"{head} {_indicator(value)}", *(f"{pad}  {row}".rstrip(" ") for row in _rows(value))]
        elif isinstance(value, dict) and value and (_is_tall(key, value) or len(head) + len(flow) > _WIDTH):
            lines += [head, *_block(value, depth + 1)]
        elif isinstance(value, list) and len(head) + len(flow) > _WIDTH:
            lines += [head, *(f"{pad}  - {_flow(item)}" for item in value)]
        else:
            lines.append(f"{head} {flow}")
    return lines


def _is_tall(key: str, value: dict[str, Any]) -> bool:
    """Mappings that never go on one line: the spec, and what holds a text of several lines."""
    return key == "spec" or any(isinstance(inner, str) and "\n" in inner for inner in value.values())


def _indicator(text: str) -> str:
    ends = len(text) - len(text.rstrip("\n"))
    indent = "2" if text.startswith((" ", "\n")) else ""
    return f"|{indent}{'-' if ends == 0 else '' if ends == 1 else '+'}"


def _rows(text: str) -> list[str]:
    return (text.removesuffix("\n")).split("\n")


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(inner) for inner in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if is_plain_text(value) or _OPTION.fullmatch(value):
        return value
    if _QUANTITY.fullmatch(value) and type(read_plain(value, 18)) is str:
        return value
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
