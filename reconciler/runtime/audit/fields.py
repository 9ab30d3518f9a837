"""Which fields of a record differ, and how? For a file that does not come out as it was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator

from reconciler.documents.loader import STATE_LIMITS, load

_LONGEST = 60


def field_changes(recorded: bytes | None, expected: bytes | None, path: str) -> Iterator[str]:
    """`placement.nodes[0].gpus 0-6 -> 0-7` for each field: what is recorded, and what comes out."""
    if recorded is None or expected is None:
        yield "is not recorded" if recorded is None else "should not be there"
        return
    found = list(_differing(_tree(recorded, path), _tree(expected, path), ""))
    yield from found or ["the same values in other bytes"]


def _tree(content: bytes, path: str) -> object:
    if path.endswith(".json"):
        try:
            tree: object = json.loads(content)
        except ValueError:
            return content.decode("utf-8", "replace")
        return tree
    documents = load(content, path, STATE_LIMITS).documents
    return documents[0].value if documents else content.decode("utf-8", "replace")


def _differing(recorded: object, expected: object, at: str) -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(expected, dict):
        for key in dict.fromkeys([*recorded, *expected]):
            yield from _differing(recorded.get(key), expected.get(key), f"{at}.{key}" if at else str(key))
    elif isinstance(recorded, list) and isinstance(expected, list) and len(recorded) == len(expected):
        for number, (one, other) in enumerate(zip(recorded, expected, strict=True)):
            yield from _differing(one, other, f"{at}[{number}]")
    elif recorded != expected:
        yield f"{at} {_shown(recorded)} -> {_shown(expected)}"


def _shown(value: object) -> str:
    if value is None:
        return "(absent)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"
