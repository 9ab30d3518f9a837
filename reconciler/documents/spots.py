"""Where does everything in a document stand? One walk for files with many problems, where asking one by one would take
a walk each. Answers are those of `positions.find`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ruamel.yaml.events import (
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from reconciler.documents.positions import Events, Path, Spot, events_of, mark_of


def find_again(content: bytes, index: int, path: Path) -> Spot:
    """The same as `positions.find`; the first question about a document costs a walk, the next ones nothing."""
    spots = _spots(content, index)
    known = next(length for length in range(len(path), -1, -1) if path[:length] in spots)
    key, value = spots[path[:known]]
    return Spot(key=key, value=value, complete=known == len(path))


_Mark = tuple[int, int]


@lru_cache(maxsize=2)
def _spots(content: bytes, index: int) -> dict[Path, tuple[_Mark, _Mark]]:
    get_event = events_of(content)
    seen = -1
    while seen < index:
        seen += isinstance(get_event(), DocumentStartEvent)
    found: dict[Path, tuple[_Mark, _Mark]] = {}
    root = get_event()
    _walk(get_event, root, (), mark_of(root), found)
    return found


def _walk(get_event: Events, node: Any, path: Path, key: _Mark, found: dict[Path, tuple[_Mark, _Mark]]) -> None:
    """Note where this node and all inside it stand. No deeper than the loader has accepted."""
    found.setdefault(path, (key, mark_of(node)))
    if isinstance(node, MappingStartEvent):
        while not isinstance(name := get_event(), MappingEndEvent):
            step = name.value if isinstance(name, ScalarEvent) else ""
            _walk(get_event, get_event(), (*path, step), mark_of(name), found)
    elif isinstance(node, SequenceStartEvent):
        position = 0
        while not isinstance(item := get_event(), SequenceEndEvent):
            _walk(get_event, item, (*path, position), mark_of(item), found)
            position += 1
