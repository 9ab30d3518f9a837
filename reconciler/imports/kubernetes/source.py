"""One object of a manifest, and which of its fields came along. What was never asked for is noted, with its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reconciler.documents.loader import Document
from reconciler.documents.positions import Path, path_text
from reconciler.imports.notes import Notes

_MOST_NOTES: Final = 200
_SERVER_SIDE: Final = frozenset(
    {"creationTimestamp", "uid", "resourceVersion", "generation", "managedFields", "selfLink"}
)


class Source:
    """Reads the object at `root` of a document. Reading a field marks it, and all below it, as carried over."""

    def __init__(self, document: Document, root: Path, notes: Notes) -> None:
        self.document = document
        self.root = root
        self.notes = notes
        self._taken: set[Path] = set()
        self._why: dict[Path, str] = {}

    def peek(self, *path: str | int) -> Any:
        """The value at this path, or None; not marked."""
        at: Any = self.document.value
        for step in (*self.root, *path):
            if isinstance(at, dict) and isinstance(step, str):
                at = at.get(step)
            elif isinstance(at, list) and isinstance(step, int) and step < len(at):
                at = at[step]
            else:
                return None
        return at

    def take(self, *path: str | int) -> Any:
        """The value at this path, or None; it counts as carried over, whole."""
        value = self.peek(*path)
        if value is not None:
            self._taken.add(path)
        return value

    def text(self, *path: str | int) -> str:
        """A text or number as text; "" when it is absent or something else, which is left over."""
        value = self.peek(*path)
        return str(self.take(*path)) if isinstance(value, str) or type(value) is int else ""

    def number(self, *path: str | int, default: int | None = None) -> int | None:
        """A number from 0; the default when it is absent or something else, which is left over."""
        value = self.peek(*path)
        if type(value) is int and 0 <= value <= 10**9:
            return int(self.take(*path))
        return default

    def items(self, *path: str | int) -> list[Any]:
        """The list at this path, [] when there is none; not marked."""
        value = self.peek(*path)
        return value if isinstance(value, list) else []

    def fields(self, *path: str | int) -> Mapping[str, Any]:
        """The mapping at this path, {} when there is none; not marked."""
        value = self.peek(*path)
        return value if isinstance(value, dict) else {}

    def because(self, why: str, *path: str | int) -> None:
        """Why this field stays behind, for its note."""
        self._why[path] = why

    def note(self, code: str, detail: str, *path: str | int, remedy: str = "") -> None:
        """A note about this field, which then counts as dealt with."""
        self._taken.add(path)
        place = self._place(path)
        self.notes.note(code, detail, line=place[0], at=place[1], remedy=remedy)

    def refuse(self, code: str, detail: str, *path: str | int, remedy: str = "") -> None:
        """Why this object cannot be a Job."""
        line, at = self._place(path)
        self.notes.refuse(code, detail, line=line, at=at, remedy=remedy)

    def note_leftovers(self, reasons: Mapping[str, str]) -> None:
        """A note for everything that was never taken; `reasons` by the name of the field."""
        parents = {path[:length] for path in {*self._taken, *self._why} for length in range(len(path))}
        left = [path for path in self._left((), parents) if not _is_server_side(path)]
        for path in left[:_MOST_NOTES]:
            name = next((str(step) for step in reversed(path) if isinstance(step, str)), "")
            self.note("NotCarriedOver", self._why.get(path) or reasons.get(name, "There is no counterpart."), *path)
        if len(left) > _MOST_NOTES:
            self.notes.note("NotCarriedOver", f"{len(left) - _MOST_NOTES} more fields have no counterpart.")

    def _left(self, path: Path, parents: set[Path]) -> list[Path]:
        if path in self._taken:
            return []
        value = self.peek(*path)
        if isinstance(value, (dict, list)) and (path in parents or not path):
            keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
            return [found for key in keys for found in self._left((*path, key), parents)]
        return [path] if value not in (None, {}, [], "") else []

    def _place(self, path: Path) -> tuple[int, str]:
        place = self.document.place_of((*self.root, *path), of_key=not path or isinstance(path[-1], str))
        return place.line, path_text(path)


def _is_server_side(path: Path) -> bool:
    return path[:1] in {("status",), ("apiVersion",), ("kind",)} or (path[0] == "metadata" and path[-1] in _SERVER_SIDE)
