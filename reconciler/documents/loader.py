"""What does this YAML file say, if every loader on earth is to agree?

One strict reader over libyaml's events: the only way a document gets into GangOps. It refuses what
repeats, hides or changes meaning between loaders (duplicate keys, anchors, tags, `no`, `010`), what
is too large to be honest, and bytes a reviewer cannot see. Every problem is a `Diagnostic`; nothing
is raised for bad content. Whether a document makes sense is for the schema and the lint.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from reconciler.documents.positions import Events, Path, events_of, find, path_text, shown
from reconciler.documents.scalars import AMBIGUOUS, Scalar, is_plain_text, read_plain
from reconciler.documents.text import unreadable, without_mark
from reconciler.errors import Diagnostic, Place, Severity

Tree: TypeAlias = dict[str, "Tree"] | list["Tree"] | str | int | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one file may ask of us. Beyond any of these it is refused, never cut."""

    max_bytes: int = 1 << 20
    max_depth: int = 32
    max_nodes: int = 100_000
    max_digits: int = 18  # every such integer fits in 63 bits
    max_key: int = 160  # characters; escaped, still a simple key to every YAML parser
    max_documents: int = 1_000
    max_problems: int = 20  # reported for one file; then reading stops


FILE_LIMITS: Final = Limits()
# Files of our own writing: usage accumulators outgrow 63 bits, summaries outgrow a megabyte.
STATE_LIMITS: Final = Limits(max_bytes=64 << 20, max_nodes=4_000_000, max_digits=40, max_documents=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document as read: plain values, and where each of them stands."""

    file: str
    line: int  # of its root value, from 1
    value: Tree
    content: bytes  # of the whole file, without byte order mark
    index: int  # among all documents of the file, empty ones too

    @property
    def kind(self) -> str:
        """The text under `kind`, or "" when there is none."""
        found = self.value.get("kind") if isinstance(self.value, dict) else None
        return found if isinstance(found, str) else ""

    @property
    def name(self) -> str:
        """The text under `metadata.name`, or "" when there is none."""
        metadata = self.value.get("metadata") if isinstance(self.value, dict) else None
        found = metadata.get("name") if isinstance(metadata, dict) else None
        return found if isinstance(found, str) else ""

    def place_of(self, path: Path, *, of_key: bool = False) -> Place:
        """Place of the value at `path` (of its key, with `of_key`); of its nearest parent when absent.

        Walks the file again, about 0.2 ms: for messages, not for every value.
        """
        spot = find(self.content, self.index, path)
        line, column = spot.key if of_key else spot.best
        return Place(self.file, line, column, path_text(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What one file holds. `documents` has only those without an error of their own.

    A file with any error is invalid as a whole; its sound documents are there so that more problems
    can be found in one go, not to be acted on.
    """

    documents: tuple[Document, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """No errors; warnings may be there."""
        return not any(d.is_error for d in self.diagnostics)


@contextmanager
def bulk() -> Iterator[None]:
    """Making many values inside this block is faster, loading files several times: no garbage collection passes.

    Nothing the loader makes holds reference cycles, and what little a decision leaves behind can wait.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load(content: bytes, file: str, limits: Limits = FILE_LIMITS) -> Loaded:
    """All documents of one file, and everything that is wrong with its text.

    `file` is the path that messages show. Takes bounded time and memory for any bytes; never raises
    for bad content.
    """
    content, warnings = without_mark(content, file)
    if refusal := unreadable(content, file, limits.max_bytes):
        return Loaded(documents=(), diagnostics=(*warnings, refusal))
    reader = _Reader(content, file, limits)
    reader.read_stream()
    return Loaded(documents=tuple(reader.documents), diagnostics=(*warnings, *reader.diagnostics))


_WRITE_OUT: Final = "Write the value out where it is used."
# Code, then summary and remedy; an empty remedy depends on the case.
_REFUSALS: Final[dict[str, tuple[str, str]]] = {
    "AliasRefused": ("YAML alias", _WRITE_OUT),
    "AmbiguousScalar": ("Value reads differently in YAML 1.1 and 1.2", ""),
    "AnchorRefused": ("YAML anchor", _WRITE_OUT),
    "DirectiveRefused": ("YAML directive", "Remove the line that starts with %."),
    "DuplicateKey": ("Key is repeated", "Remove one of the two."),
    "EmptyDocument": ("Empty document", "Remove the superfluous document mark (---)."),
    "EmptyFile": ("File holds no document", "Delete the file if it is not needed: an empty one could be an accident."),
    "InvalidYaml": ("File is not valid YAML", "Check indentation, brackets and quotes around this place."),
    "KeyNotText": ("Key is not text", "Use a text as key; put one that looks like something else in quotes."),
    "KeyTooLong": ("Key is too long", "Move the text into a value."),
    "MergeRefused": ("YAML merge key", _WRITE_OUT),
    "NumberTooLong": ("Number has too many digits", "If it is meant as text, put it in quotes."),
    "TagRefused": ("YAML tag", "Remove the tag; put a text that looks like something else in quotes."),
    "TooDeep": ("File is nested too deeply", "Flatten it: no kind of document needs so many levels."),
    "TooManyDocuments": ("File holds too many documents", "Split the file."),
    "TooManyNodes": ("File holds too many values", "Split the file."),
}


class _Stop(Exception):
    """The rest of the file is not worth reading."""


class _Reader:
    """Builds values from one file's events, and notes everything that is refused on the way."""

    def __init__(self, content: bytes, file: str, limits: Limits) -> None:
        self.content = content
        self.file = file
        self.limits = limits
        self.get_event: Events = events_of(content)
        self.path: list[str | int] = []  # of the collection being read
        self.nodes = 0
        self.index = -1
        self.documents: list[Document] = []
        self.diagnostics: list[Diagnostic] = []
        self.errors = 0

    def read_stream(self) -> None:
        """Fill `documents` and `diagnostics`."""
        try:
            while not isinstance(event := self.get_event(), StreamEndEvent):
                if isinstance(event, DocumentStartEvent):
                    self._read_document(event)
        except _Stop:
            return
        except YAMLError as error:
            self._report_syntax(error)
            return
        if not self.documents and not self.errors:
            self._add(
                "EmptyFile", "There is nothing in it but blank lines, comments or empty documents.", Place(self.file)
            )

    def _read_document(self, start: Any) -> None:
        self.index += 1
        if self.index >= self.limits.max_documents:
            self._refuse(start, (), "TooManyDocuments", f"At most {self.limits.max_documents} are read.")
            raise _Stop
        errors_before = self.errors
        if start.version or start.tags:
            self._refuse(start, (), "DirectiveRefused", "A directive changes how the rest of the file is read.")
        root = self.get_event()
        value = self._node(root, ())
        if self.errors > errors_before:
            return
        line, column = root.start_mark.line + 1, root.start_mark.column + 1
        if value is None:
            if any(known.code == "EmptyDocument" for known in self.diagnostics):
                return  # said once a file
            # libyaml puts an empty value behind the last line when the file ends in a bare mark.
            last = self.content.count(b"\n") + 1
            place = Place(self.file, line, column) if line <= last else Place(self.file, last, 1)
            self._add("EmptyDocument", "There is nothing between two document marks.", place, severity=Severity.WARNING)
        else:
            self.documents.append(
                Document(file=self.file, line=line, value=value, content=self.content, index=self.index)
            )

    def _node(self, event: Any, step: Path) -> Tree:
        """The value that starts with this event; `step` is its key or index in the parent."""
        self.nodes += 1
        if self.nodes > self.limits.max_nodes:
            self._refuse(event, step, "TooManyNodes", f"At most {self.limits.max_nodes} are read.")
            raise _Stop
        kind = type(event)
        if kind is AliasEvent:
            self._refuse(event, step, "AliasRefused", f"*{_cut(event.anchor)} repeats another value.")
            return None
        if event.anchor is not None or event.tag is not None:
            self._refuse_properties(event, step)
        if kind is ScalarEvent:
            text: str = event.value
            return text if event.style else self._plain(event, text, step)
        self.path.extend(step)
        if len(self.path) >= self.limits.max_depth:
            self._refuse(event, (), "TooDeep", f"At most {self.limits.max_depth} levels are read.")
            raise _Stop
        value: Tree = self._mapping() if kind is MappingStartEvent else self._sequence()
        if step:
            self.path.pop()
        return value

    def _mapping(self) -> dict[str, Tree]:
        get_event, mapping = self.get_event, dict[str, Tree]()
        keys: list[Any] = []  # their events: where a repeated key was first used
        while type(event := get_event()) is not MappingEndEvent:
            key = self._key(event)
            if key is None:  # refused; its value is read only to find what else is wrong
                self._value_of_refused_key(get_event())
            elif key in mapping:
                self._refuse_duplicate(event, next(first for first in keys if first.value == key))
                self._node(get_event(), (key,))
            else:
                keys.append(event)
                mapping[key] = self._node(get_event(), (key,))
        return mapping

    def _sequence(self) -> list[Tree]:
        get_event, items = self.get_event, list[Tree]()
        while type(event := get_event()) is not SequenceEndEvent:
            items.append(self._node(event, (len(items),)))
        return items

    def _key(self, event: Any) -> str | None:
        """The key that this event starts, consumed whole; None when it was refused."""
        if type(event) is not ScalarEvent:
            if type(event) is not AliasEvent:
                self._refuse(event, (), "KeyNotText", "A list or mapping cannot be a key.")
            self._node(event, ())
            return None
        self.nodes += 1
        text: str = event.value
        if event.anchor is not None or event.tag is not None:
            self._refuse_properties(event, (text,))
        if len(text) > self.limits.max_key:
            self._refuse(
                event, (), "KeyTooLong", f"It has {len(text)} characters; at most {self.limits.max_key} are read."
            )
            return None
        if event.style or is_plain_text(text):
            return text
        if text == "<<":
            self._refuse(event, (), "MergeRefused", "<< copies keys from another mapping.")
            return None
        errors_before = self.errors
        value = self._plain(event, text, (text,))
        if type(value) is str:  # not DecimalText: other loaders make 0.7 a number
            return text
        if self.errors == errors_before:
            self._refuse(event, (text,), "KeyNotText", f"{shown(text)} without quotes is no text.")
        return None

    def _value_of_refused_key(self, event: Any) -> None:
        if type(event) is not AliasEvent:  # `<<: *base` is one problem, not two
            self._node(event, ())

    def _plain(self, event: Any, text: str, step: Path) -> Scalar:
        try:
            value = read_plain(text, self.limits.max_digits)
        except OverflowError:
            detail = f"{shown(text)} has more than {self.limits.max_digits} digits; other loaders would change it."
            self._refuse(event, step, "NumberTooLong", detail)
            return None
        if value is AMBIGUOUS:
            detail, remedy = _ambiguity(text)
            self._refuse(event, step, "AmbiguousScalar", detail, remedy)
            return None
        return value

    # --- refusals ---

    def _refuse_properties(self, event: Any, step: Path) -> None:
        if event.anchor is not None:
            self._refuse(event, step, "AnchorRefused", f"&{_cut(event.anchor)} names a value for reuse.")
        if event.tag is not None:
            self._refuse(event, step, "TagRefused", f"The tag {shown(event.tag)} changes how the value is read.")

    def _refuse_duplicate(self, event: Any, first: Any) -> None:
        line, column = first.start_mark.line + 1, first.start_mark.column + 1
        key: str = first.value
        detail = f"{shown(key)} was first used in line {line}, column {column}; loaders disagree which one counts."
        self._refuse(event, (key,), "DuplicateKey", detail)

    def _report_syntax(self, error: YAMLError) -> None:
        context, problem = getattr(error, "context", None), getattr(error, "problem", None)
        began, mark = getattr(error, "context_mark", None), getattr(error, "problem_mark", None)
        detail = ": ".join(part for part in (context, problem) if part) or "The YAML parser gave up here"
        if mark is None:
            self._add("InvalidYaml", f"{detail}.", Place(self.file))
            return
        if began is not None and began.line != mark.line:
            detail += f" (it began in line {began.line + 1})"
        lines = self.content.decode("utf-8").split("\n")
        if mark.line >= len(lines):  # the end of the file is the end of its last line
            self._add("InvalidYaml", f"{detail}.", Place(self.file, len(lines), len(lines[-1]) + 1))
            return
        after_tab = lines[mark.line].lstrip(" ").startswith("\t")
        remedy = "Indent with spaces, not tabs." if after_tab else ""
        self._add("InvalidYaml", f"{detail}.", Place(self.file, mark.line + 1, mark.column + 1), remedy)

    def _refuse(self, event: Any, step: Path, code: str, detail: str, remedy: str = "") -> None:
        """Note an error at this event; after many, stop reading."""
        mark = event.start_mark
        self._add(
            code, detail, Place(self.file, mark.line + 1, mark.column + 1, path_text((*self.path, *step))), remedy
        )
        if self.errors >= self.limits.max_problems:
            raise _Stop

    def _add(self, code: str, detail: str, place: Place, remedy: str = "", severity: Severity = Severity.ERROR) -> None:
        self.errors += severity is Severity.ERROR
        summary, usual_remedy = _REFUSALS[code]
        self.diagnostics.append(
            Diagnostic(
                code=code,
                summary=summary,
                detail=detail,
                place=place,
                remedy=remedy or usual_remedy,
                severity=severity,
            )
        )


def _ambiguity(text: str) -> tuple[str, str]:
    """(detail, remedy) for a plain scalar that loaders disagree on."""
    lowered = text.lower()
    if lowered in {"true", "false", "null"}:
        return f"{shown(text)} is not {lowered} to every loader.", f"Write {lowered}, or quote it: {shown(text)}."
    if text == "~":
        return "~ is null to some loaders and text to others.", 'Write null, or quote it: "~".'
    quoted = shown(text)
    return f"{quoted} without quotes is text to some loaders and something else to others.", f"Quote it: {quoted}."


def _cut(anchor: str) -> str:
    return shown(anchor)[1:-1]
