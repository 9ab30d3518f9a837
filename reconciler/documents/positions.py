"""Where in a YAML file does a path such as `spec.gang.ranks[3]` stand?

Answered on demand by walking the parser's events once more (about 0.2 ms), so that reading files
that are right costs nothing for positions. What a document may contain is the loader's concern:
only content it accepted up to the wanted place is walked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from ruamel.yaml.events import (
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

try:
    from _ruamel_yaml import CParser  # type: ignore[import-not-found, unused-ignore]  # a C extension without stubs
except ImportError as missing:  # never fall back: the pure Python parser reads some files differently
    raise ImportError(
        "ruamel.yaml's C parser is missing. Install the package ruamel.yaml.clib; "
        "the pure Python parser is no substitute, it accepts other files."
    ) from missing

Path: TypeAlias = tuple[str | int, ...]
Events: TypeAlias = Callable[[], Any]  # the parser is untyped C code: its events are looked at here and in the loader

_SIMPLE_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_SHOWN = 60  # characters of anyone's text that a message repeats


def events_of(content: bytes) -> Events:
    """The function that returns the next event of this UTF-8 content, and None at the end."""
    events: Events = CParser(content).get_event
    return events


def path_text(path: Path) -> str:
    """A path as people read it: `spec.gang.ranks[3]`, `metadata.labels["a.b/c"]`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif step and _SIMPLE_KEY.issuperset(step) and len(step) <= _SHOWN:
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f"[{shown(step)}]")
    return "".join(parts)


def shown(text: str) -> str:
    """Someone's text in double quotes for a message: printable ASCII only, cut when long."""
    cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return '"' + cut.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where the deepest existing part of a path stands; lines and columns from 1."""

    key: tuple[int, int]  # of a list item or a root: the same as `value`
    value: tuple[int, int]
    complete: bool  # the whole path exists

    @property
    def best(self) -> tuple[int, int]:
        """The value, unless it is missing or starts on a later line than its key."""
        return self.value if self.complete and self.value[0] == self.key[0] else self.key


def find(content: bytes, index: int, path: Path) -> Spot:
    """The place of `path` in document number `index`; of repeated keys, the first."""
    get_event = events_of(content)
    seen = -1
    while seen < index:
        event = get_event()
        if event is None:
            return Spot(key=(1, 1), value=(1, 1), complete=False)
        seen += isinstance(event, DocumentStartEvent)
    node = get_event()
    key = value = mark_of(node)
    for step in path:
        for found, key_event, child in _children(get_event, node):
            if found == step and type(found) is type(step):
                node, value = child, mark_of(child)
                key = mark_of(key_event) if key_event else value
                break
            _skip(get_event, child)
        else:
            return Spot(key=key, value=value, complete=False)
    return Spot(key=key, value=value, complete=True)


def _children(get_event: Events, parent: Any) -> Iterator[tuple[str | int | None, Any, Any]]:
    """(step, key event or None, value event) of each child; the caller consumes the value."""
    if isinstance(parent, SequenceStartEvent):
        position = 0
        while not isinstance(item := get_event(), SequenceEndEvent):
            yield position, None, item
            position += 1
    elif isinstance(parent, MappingStartEvent):
        while not isinstance(key := get_event(), MappingEndEvent):
            _skip(get_event, key)
            yield key.value if isinstance(key, ScalarEvent) else None, key, get_event()


def _skip(get_event: Events, event: Any) -> None:
    depth = 0
    while True:
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            depth -= 1
        if depth == 0:
            return
        event = get_event()


def mark_of(event: Any) -> tuple[int, int]:
    """Line and column at which an event of YAML begins, from 1."""
    return event.start_mark.line + 1, event.start_mark.column + 1
