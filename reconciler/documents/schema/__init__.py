"""What may a document say? One strict pydantic model for each kind, and the JSON schemas made from them.

The models say what is well-formed, field by field. Whether documents make sense together is for `lint`, what they
mean for `convert`. Nothing outside `documents` imports these models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from reconciler.documents.schema.base import Document
from reconciler.documents.schema.cluster import ClusterConfig
from reconciler.documents.schema.fabric import Fabric
from reconciler.documents.schema.inventory import NodeProfile, NodeSet
from reconciler.documents.schema.job import Job
from reconciler.documents.schema.maintenance import Maintenance, Reservation
from reconciler.documents.schema.policy import Policy
from reconciler.documents.schema.queue import PriorityClass, Queue
from reconciler.documents.schema.user import User

KINDS: Final[Mapping[str, type[Document]]] = {
    model.__name__: model
    for model in (
        ClusterConfig,
        Fabric,
        Job,
        Maintenance,
        NodeProfile,
        NodeSet,
        Policy,
        PriorityClass,
        Queue,
        Reservation,
        User,
    )
}
"""Every kind of document, by name."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_files() -> Mapping[str, bytes]:
    """The folder `schemas/`: file name to bytes, the same bytes on every machine."""
    return {f"{kind.lower()}.schema.json": _schema_bytes(kind, model) for kind, model in KINDS.items()}


def _schema_bytes(kind: str, model: type[Document]) -> bytes:
    schema = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Schema)
    whole = {"$schema": DIALECT, "title": kind, "description": _one_line(model.__doc__ or ""), **schema}
    return (json.dumps(_tidied(whole), ensure_ascii=False, indent=2) + "\n").encode()


class _Schema(GenerateJsonSchema):
    """JSON schema without the parts that only pydantic understands."""

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """Without defaults: they are integers here and text in documents; the descriptions tell them."""
        return self.generate_inner(schema["schema"])


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
