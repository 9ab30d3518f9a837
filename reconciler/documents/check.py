"""Is this document well-formed, and if not, where exactly and what should it be?

Every complaint of the schema becomes a `Diagnostic` at its line and column; all of them are given, never only the
first. Whether the document makes sense beside others is for `lint`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from reconciler.documents.loader import FILE_LIMITS, Document, Limits, Tree, load
from reconciler.documents.positions import Path, find, path_text
from reconciler.documents.scalars import DecimalText
from reconciler.documents.schema import KINDS
from reconciler.documents.schema import base as schema
from reconciler.documents.similar import closest, did_you_mean, listed
from reconciler.documents.spots import find_again
from reconciler.errors import Diagnostic, Place, Severity

_Model = TypeVar("_Model", bound=BaseModel)


class Later:
    """A document that was found well-formed before: its model is made when somebody looks at it."""

    __slots__ = ("_kind", "_model", "tree")

    def __init__(self, kind: str, tree: Any) -> None:
        self._kind, self.tree = kind, tree
        self._model: BaseModel | None = None

    @property
    def model(self) -> BaseModel:
        """The model, always the same one."""
        if self._model is None:
            self._model = KINDS[self._kind].model_validate(self.tree)
        return self._model


@dataclass(frozen=True, slots=True)
class Item:
    """One well-formed document and where it stands. `read` is the pydantic model of its kind, now or later."""

    kind: str
    name: str
    index: int
    read: Any
    file: str
    content: bytes

    @property
    def model(self) -> Any:
        """The pydantic model of its kind."""
        return self.read.model if type(self.read) is Later else self.read

    @property
    def waits(self) -> bool:
        """A job that waits for others; told without a model being made for it."""
        if type(self.read) is Later:
            spec = self.read.tree.get("spec")
            return bool(isinstance(spec, dict) and spec.get("after"))
        return bool(self.read.spec.after)

    def place(self, *path: str | int, of_key: bool = False) -> Place:
        """Where the value at this path stands; walks the file again, so for messages only."""
        return _place(self.file, self.content, self.index, path, of_key=of_key)

    def problem(
        self,
        code: str,
        summary: str,
        detail: str,
        *path: str | int,
        remedy: str = "",
        severity: Severity = Severity.ERROR,
        of_key: bool = False,
    ) -> Diagnostic:
        """A diagnostic about the value at this path."""
        return Diagnostic(
            code=code,
            summary=summary,
            detail=detail,
            place=self.place(*path, of_key=of_key),
            remedy=remedy,
            severity=severity,
        )


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file, read and checked. `items` has the documents without an error of their own."""

    items: tuple[Item, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def first_error(self) -> str:
        """Code of the first error, "" when the file is sound."""
        return next((d.code for d in self.diagnostics if d.is_error), "") if self.diagnostics else ""


def check_file(content: bytes, file: str, limits: Limits = FILE_LIMITS) -> CheckedFile:
    """All well-formed documents of a file and everything that is wrong with the others."""
    loaded = load(content, file, limits)
    items: list[Item] = []
    diagnostics = list(loaded.diagnostics)
    for document in loaded.documents:
        item, found = check(document)
        diagnostics += found
        if item is not None:
            items.append(item)
    return CheckedFile(tuple(items), tuple(diagnostics))


def check(document: Document) -> tuple[Item | None, tuple[Diagnostic, ...]]:
    """The document as a model, or all that keeps it from being one."""
    refusal = _envelope(document)
    if refusal is not None:
        return None, (refusal,)
    model, found = validated(document, KINDS[document.kind])
    if model is None:
        return None, found
    item = Item(document.kind, model.metadata.name, document.index, model, document.file, document.content)
    return item, ()


def validated(document: Document, model: type[_Model]) -> tuple[_Model | None, tuple[Diagnostic, ...]]:
    """The document as this model, or all that keeps it from being one. The envelope is not looked at."""
    tree = _with_decimals(document.value) if may_hold_decimals(document.content) else document.value
    try:
        return model.model_validate(tree), ()
    except ValidationError as err:
        return None, tuple(at_most(_diagnostics(document, err, model)))


_DECIMAL: Final = re.compile(rb"[ \t:,\[{][-0-9][0-9]*\.[0-9]")


def may_hold_decimals(content: bytes) -> bool:
    """Whether an unquoted decimal can be in this text; quick, so that most documents are not walked for one."""
    return _DECIMAL.search(content) is not None


def _with_decimals(tree: Tree) -> Any:
    """The tree with unquoted decimals as `Decimal`: pydantic takes any kind of `str` for text."""
    if isinstance(tree, dict):
        return {key: _with_decimals(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_decimals(value) for value in tree]
    return Decimal(tree) if isinstance(tree, DecimalText) else tree


def _envelope(document: Document) -> Diagnostic | None:
    """What keeps us from knowing which kind of document this is."""
    if not isinstance(document.value, dict):
        return _problem(
            document,
            "NotADocument",
            "Document is not a mapping",
            f"Expected apiVersion, kind, metadata and spec; found {schema.kind_of(document.value)}.",
            (),
        )
    version = document.value.get("apiVersion")
    if version != schema.API_VERSION:
        detail = f"Found {version!r}; this version reads {schema.API_VERSION}." if version else "apiVersion is missing."
        return _problem(
            document,
            "UnknownVersion",
            "Version of the format is not known",
            detail,
            ("apiVersion",),
            f"Write apiVersion: {schema.API_VERSION}.",
        )
    if document.kind not in KINDS:
        detail = f"Found {document.kind!r}; there are {listed(KINDS, 99)}." if document.kind else "kind is missing."
        return _problem(
            document,
            "UnknownKind",
            "Kind of document is not known",
            detail,
            ("kind",),
            did_you_mean(document.kind, KINDS),
        )
    return None


def _problem(document: Document, code: str, summary: str, detail: str, path: Path, remedy: str = "") -> Diagnostic:
    return Diagnostic(code=code, summary=summary, detail=detail, place=document.place_of(path), remedy=remedy)


# --- what pydantic says, in our words -------------------------------------------------------------------------------

_SUMMARIES: Final[Mapping[str, str]] = {
    "UnknownField": "Field is not known",
    "MissingField": "Field is missing",
    "WrongType": "Value has the wrong type",
    "UnknownValue": "Value is not one of those allowed",
    "OutOfRange": "Value is out of range",
    "BadName": "Name is not allowed",
    "BadPath": "Path is not absolute",
    "BadSignal": "Signal is not known by that name",
    "BadText": "Text is not of the expected form",
    "BadDuration": "Duration cannot be read",
    "BadSize": "Size cannot be read",
    "BadBandwidth": "Bandwidth cannot be read",
    "BadShare": "Share cannot be read",
    "BadTime": "Time cannot be read",
    "BadRatio": "Ratio cannot be read",
    "BadNodeList": "Node list cannot be read",
    "BadCpuList": "CPU list cannot be read",
    "BadWindow": "Window ends before it begins",
    "UnknownGpu": "GPU does not exist",
}
_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "text", "int_type": "a whole number", "bool_type": "true or false", "dict_type": "a mapping",
    "model_type": "a mapping", "tuple_type": "a list", "list_type": "a list", "model_attributes_type": "a mapping",
    "int_from_float": "a whole number", "string_sub_type": "text",
}  # fmt: skip


MOST_PROBLEMS: Final = 20
"""Told of one document; nobody reads more at a time, and each costs a look into the file."""


def at_most(found: Iterable[Diagnostic], most: int = MOST_PROBLEMS) -> list[Diagnostic]:
    """The first of these problems; when there are more, the last says so. What is not told is not looked for."""
    told = list(islice(found, most + 1))
    if len(told) > most:
        place = Place(told[most].place.file)
        more = f"The first {most} are listed; there are more."
        told[most] = Diagnostic("MoreProblems", "There are more problems than are listed", more, place)
    return told


def _place(file: str, content: bytes, index: int, path: Path, *, of_key: bool) -> Place:
    spot = (find if len(content) < _SHORT else find_again)(content, index, path)
    line, column = spot.key if of_key else spot.best
    return Place(file, line, column, path_text(path))


_SHORT: Final = 8192  # bytes; a walk through less is quicker than noting all that is in it


def _diagnostics(document: Document, err: ValidationError, model: type[BaseModel]) -> Iterator[Diagnostic]:
    problems = err.errors(include_url=False)[: 2 * MOST_PROBLEMS]
    meant = {(*p["loc"][:-1], _meant_field(model, p["loc"])) for p in problems if p["type"] == "extra_forbidden"}
    for problem in problems:
        if problem["type"] == "missing" and problem["loc"] in meant:
            continue  # it is there, misspelt, and reported as such
        described = _described(document, problem, model)
        if described is not None:
            yield described


def _described(document: Document, problem: Any, model: type[BaseModel]) -> Diagnostic | None:
    kind, path, given, context = problem["type"], problem["loc"], problem["input"], problem.get("ctx", {})
    of_key = bool(path) and path[-1] == "[key]"
    path = path[:-1] if of_key else path
    remedy = ""
    if kind == "extra_forbidden":
        code, of_key = "UnknownField", True
        detail, remedy = _unknown_field(model, path)
    elif kind == "missing":
        code, detail = "MissingField", f"{path[-1]} is needed here."
    elif kind in _EXPECTED:
        code, detail = "WrongType", f"Expected {_EXPECTED[kind]}, found {schema.kind_of(given)}."
        remedy = "Put it in quotes." if kind.startswith("string") and _is_scalar(given) else ""
        remedy = remedy or _listed_job(path, given)
    elif kind == "literal_error":
        code, detail, remedy = "UnknownValue", f"Expected {context['expected']}.", _meant(given, context["expected"])
    elif kind == "string_pattern_mismatch":
        code, what = schema.PATTERNS.get(context["pattern"], ("BadText", f"text matching {context['pattern']}"))
        detail = f"Expected {what}."
    elif kind == "too_short" and _is_echo(given, context):
        return None
    elif kind[:1].isupper():  # raised by our own validators
        code, detail = kind, context["detail"]
    else:  # greater_than_equal, too_long, ...: pydantic's sentence is about numbers and lengths alone
        code, detail = "OutOfRange", f"{problem['msg'].replace('Input should', 'It should')}."
    place = _place(document.file, document.content, document.index, path, of_key=of_key)
    return Diagnostic(
        code=code, summary=_SUMMARIES.get(code, "Value is not allowed"), detail=detail, place=place, remedy=remedy
    )


def _is_scalar(given: object) -> bool:
    return isinstance(given, (int, Decimal))  # true and false are integers here


def _listed_job(path: Sequence[str | int], given: object) -> str:
    """How a job that comes first is written, for who wrote its name alone: `spec.after` or an item of it."""
    if tuple(path[:2]) != ("spec", "after") or len(path) > 3 or not isinstance(given, str):
        return ""
    job = given if re.fullmatch(schema.JOB_PATTERN, given) else "QUEUE/NAME"
    return f"Write after: [{{job: {job}}}]."


def _is_echo(given: object, context: Mapping[str, Any]) -> bool:
    """A list that is only too short because its items were refused, each with a message of its own."""
    return isinstance(given, (list, dict)) and len(given) >= context["min_length"]


def _meant(given: object, expected: str) -> str:
    return did_you_mean(given, re.findall(r"'([^']*)'", expected)) if isinstance(given, str) else ""


def _meant_field(model: type[BaseModel], path: Sequence[str | int]) -> str | None:
    return closest(str(path[-1]), _fields_at(model, path[:-1]))


def _unknown_field(model: type[BaseModel], path: Sequence[str | int]) -> tuple[str, str]:
    known = _fields_at(model, path[:-1])
    parent = ".".join(str(step) for step in path[:-1] if isinstance(step, str)) or "a document"
    guess = did_you_mean(str(path[-1]), known) or f"Known here: {listed(known, 40)}."
    if path[-1] == "status":
        guess = "Remove it: what was observed and decided is on the state branch."
    return f"{parent} has no field of that name.", guess


def _fields_at(model: type[BaseModel], path: Sequence[str | int]) -> tuple[str, ...]:
    """The fields that a mapping at this path may have."""
    at: type[BaseModel] | None = model
    for step in path:
        if at is not None and step in (found := fields_of(at)):
            at = found[str(step)]
        # Otherwise a key of a free mapping or an index: still inside the same field's model.
    return tuple(fields_of(at)) if at is not None else ()


@cache
def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model as they are written, in order, each with the model inside it or None."""
    return {field.alias or name: _model_in(field.annotation) for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(argument) for argument in getattr(annotation, "__args__", ()))
    return next((found for found in inner if found is not None), None)
