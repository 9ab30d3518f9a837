"""The folder `schemas/`, made from the models: what editors complete and check with. Code never reads it."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from reconciler.documents.schema import KINDS
from reconciler.documents.schema.base import Document, Strict

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_files() -> Mapping[str, bytes]:
    """The folder `schemas/`: file name to bytes, the same bytes on every machine."""
    return {f"{kind.lower()}.schema.json": _schema_bytes(kind, model) for kind, model in KINDS.items()}


def _schema_bytes(kind: str, model: type[Document]) -> bytes:
    schema = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Schema)
    whole = {"$schema": DIALECT, "title": kind, "description": _one_line(model.__doc__ or ""), **schema}
    return (json.dumps(_tidied(whole), ensure_ascii=False, indent=2) + "\n").encode()


class _Schema(GenerateJsonSchema):
    """JSON schema without the parts that only pydantic understands, and with what is said below each field."""

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """Without defaults: they are integers here and text in documents; the descriptions tell them."""
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """A model, each field with the text below it in the source, unless it says something of its own."""
        made = super().model_schema(schema)
        told = {key: text for kind in reversed(schema["cls"].__mro__) for key, text in _told_in(kind).items()}
        for name, field in schema["cls"].model_fields.items():
            # A field that says what its model says anyway leaves it to that one.
            if name in told and told[name] != getattr(field.annotation, "__doc__", ""):
                made["properties"][field.alias or name].setdefault("description", told[name])
        return made


@cache
def _told_in(kind: type) -> Mapping[str, str]:
    """The text below each field of a model's own, by name."""
    if not issubclass(kind, Strict) or kind is Strict:
        return {}
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _tidied(node: Any) -> Any:
    """Without generated titles, with one-line descriptions, and without the `null` of optional fields."""
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    choices = node.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        rest = [choice for choice in choices if choice != {"type": "null"}]
        node = {key: value for key, value in node.items() if key != "anyOf"} | (
            rest[0] if len(rest) == 1 else {"anyOf": rest}
        )
    tidy: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str) and value not in KINDS:
            continue
        if key == "description" and isinstance(value, str):
            tidy[key] = _one_line(value)
        elif key in ("properties", "$defs"):
            tidy[key] = {name: _tidied(inner) for name, inner in value.items()}
        else:
            tidy[key] = _tidied(value)
    if "properties" in tidy or "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    return {key: tidy[key] for key in sorted(tidy, key=_reading_order)}


_FIRST: Final = ("$schema", "title", "description", "type", "required", "properties")


def _reading_order(key: str) -> tuple[int, str]:
    return (_FIRST.index(key) if key in _FIRST else len(_FIRST), key) if key != "$defs" else (len(_FIRST) + 1, key)


def _one_line(text: str) -> str:
    return " ".join(text.split())
