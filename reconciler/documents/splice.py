"""Where in a file's text does one value stand, and how is it changed without touching a byte beside it?

An edit here replaces, adds or removes exactly the characters of one value or entry, by the places that the parser gives
it. What cannot be done so (a value that is laid out over lines of its own, a text that has to move) is answered with
None; `edit` then writes the file anew. Whether the outcome says what was meant is for `edit` to check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml.events import (
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from reconciler.documents.positions import Events, Path, events_of

Entry = Callable[[str], str]
"""`key: value` as it is to be written, for an indentation."""
_MARK: Final = "\ufeff"


@dataclass(slots=True)
class _Node:
    """A value in the text: characters `start` to `end`. `children` of a mapping have keys, of a list none."""

    start: int
    end: int
    flow: bool
    scalar: bool
    block_text: bool = False
    mapping: bool = False
    children: list[tuple[Any, _Node | None, _Node]] = field(default_factory=list)

    def child(self, step: str | int) -> tuple[_Node | None, _Node] | None:
        """Key and value at a step."""
        return next(
            ((key, value) for name, key, value in self.children if name == step and type(name) is type(step)), None
        )


def replaced(content: bytes, index: int, path: Path, value: str) -> bytes | None:
    """The text with `value` in place of the one at `path`; None when nothing is there, or it has lines of its own."""
    text, root = _parsed(content, index)
    node = root
    for step in path:
        found = node.child(step) if node is not None else None
        if found is None:
            return None
        node = found[1]
    if node is None or node.block_text or node.start == node.end or not (node.scalar or node.flow):
        return None
    rest = text[node.end :]
    line, newline, after = rest.partition("\n")
    blank = line[: len(line) - len(line.lstrip(" "))]
    if blank and line.lstrip(" ").startswith("#") and "\n" not in text[node.start : node.end]:
        # The comment beside it stays in its column, where there is room.
        wide = max(1, len(blank) - (len(value) - (node.end - node.start)))
        rest = f"{' ' * wide}{line.lstrip(' ')}{newline}{after}"
    return _bytes(text[: node.start] + value + rest)


def added(content: bytes, index: int, path: Path, entry: Entry, order: Sequence[str] = ()) -> bytes | None:
    """The text with an entry added to the mapping at `path`; its key goes after those that `order` has before it.

    `entry` is asked for the text on one line (indentation "") inside braces, else for lines with the indentation.
    None when no mapping with an entry is there.
    """
    text, root = _parsed(content, index)
    node = root
    for step in path:
        found = node.child(step) if node is not None else None
        if found is None:
            return None
        node = found[1]
    if node is None or not node.mapping:
        return None
    if node.flow:
        return _added_in_braces(text, node, entry(""))
    key = node.children[0][1] if node.children else None
    if key is None:
        return None
    column = key.start - (text.rfind("\n", 0, key.start) + 1)
    if text[key.start - column : key.start].strip(" "):
        return None  # the first entry stands behind a dash
    return _added_below(text, node, entry(" " * column), _before(node, entry("").partition(":")[0], order))


def removed(content: bytes, index: int, path: Path) -> bytes | None:
    """The text without the entry at `path`, which must not be the last of its mapping; a whole line where it has one."""
    text, node = _parsed(content, index)
    for step in path[:-1]:
        found = node.child(step) if node is not None else None
        node = found[1] if found is not None else None
    entry = node.child(path[-1]) if node is not None and path else None
    key, value = entry if entry is not None else (None, None)
    if node is None or not node.mapping or key is None or value is None:
        return None
    if node.flow:
        return _removed_in_braces(text, node, key, value)
    if len(node.children) == 1:
        return None
    begins = text.rfind("\n", 0, key.start) + 1
    if text[begins : key.start].strip(" "):
        return None
    return _bytes(text[:begins] + text[_line_end(text, _last(text, value)) :])


# --- braces ---------------------------------------------------------------------------------------------------------


def _added_in_braces(text: str, node: _Node, entry: str) -> bytes:
    if not node.children:
        return _bytes(f"{text[: node.start]}{{{entry}}}{text[node.end :]}")
    end = node.children[-1][2].end
    return _bytes(f"{text[:end]}, {entry}{text[end:]}")


def _removed_in_braces(text: str, node: _Node, key: _Node, value: _Node) -> bytes:
    starts = [child[1].start for child in node.children if child[1] is not None]
    place = starts.index(key.start)
    if len(starts) == 1:
        return _bytes(f"{text[: node.start]}{{}}{text[node.end :]}")
    if place + 1 < len(starts):
        return _bytes(text[: key.start] + text[starts[place + 1] :])
    return _bytes(text[: node.children[place - 1][2].end] + text[value.end :])


# --- lines ----------------------------------------------------------------------------------------------------------


def _before(node: _Node, key: str, order: Sequence[str]) -> int:
    """How many entries stand before the new one: up to the last of those that come before it in `order`."""
    if key not in order:
        return len(node.children)
    ahead = set(order[: order.index(key)])
    places = [place for place, (name, _, _) in enumerate(node.children, 1) if name in ahead]
    return places[-1] if places else len(node.children)


def _added_below(text: str, node: _Node, entry: str, place: int) -> bytes:
    at = _line_end(text, _last(text, node.children[place - 1][2]))
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = entry.replace("\n", newline) + newline
    return _bytes(text[:at] + ("" if text[:at].endswith("\n") else newline) + lines + text[at:])


def _last(text: str, node: _Node) -> int:
    """Where the last character of a value stands; what follows it on its line is a comment at most."""
    while not node.scalar and not node.flow and node.children:
        node = node.children[-1][2]
    if node.block_text:
        return node.start + len(text[node.start : node.end].rstrip())
    return node.end


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


# --- reading --------------------------------------------------------------------------------------------------------


def _parsed(content: bytes, index: int) -> tuple[str, _Node | None]:
    """The text, and the root value of document number `index`. The content must be valid."""
    text = content.decode()
    get_event, seen = events_of(content.removeprefix(_MARK.encode())), -1
    while seen < index:
        event = get_event()
        if event is None:
            return text, None
        seen += isinstance(event, DocumentStartEvent)
    return text, _node(get_event, get_event(), len(text) - len(text.removeprefix(_MARK)))


def _node(get_event: Events, event: Any, shift: int) -> _Node:
    start, end = event.start_mark.index + shift, event.end_mark.index + shift
    if isinstance(event, ScalarEvent):
        return _Node(start, end, flow=False, scalar=True, block_text=event.style in {"|", ">"})
    flow = bool(getattr(event, "flow_style", False))
    node = _Node(start, end, flow=flow, scalar=False, mapping=isinstance(event, MappingStartEvent))
    while not isinstance(child := get_event(), MappingEndEvent | SequenceEndEvent):
        if isinstance(event, SequenceStartEvent):
            node.children.append((len(node.children), None, _node(get_event, child, shift)))
            continue
        key = _node(get_event, child, shift)
        name = child.value if isinstance(child, ScalarEvent) else None
        node.children.append((name, key, _node(get_event, get_event(), shift)))
    node.end = child.end_mark.index + shift
    return node


def _bytes(text: str) -> bytes:
    return text.encode()
