"""A plan as JSON and back, and the schema of that JSON. All three are led by the fields of the values themselves.

A field that has its default is left out. A reader of format 1.x ignores keys it does not know; reading an artefact
back is stricter, for whoever made it may not mean well: unknown keys, other types and too much of anything are refused.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from enum import Enum

from reconciler.documents.values import Codec, camel
from reconciler.errors import StoreError
from reconciler.model.units import Instant
from reconciler.render.plan.model import Plan

FORMAT = "1.0"
_MOST_BYTES = 16 << 20
_codec = Codec()
_AGAIN = "Make it again: gangops plan -o json"


def plan_json(plan: Plan) -> Mapping[str, object]:
    """The machine form, versioned."""
    return {"formatVersion": FORMAT, "kind": "Plan", **_codec.tree_of(plan)}


def plan_text_json(plan: Plan) -> str:
    """The machine form as text, one line a row of its lists."""
    return json.dumps(plan_json(plan), indent=1, ensure_ascii=False)


def plan_from_json(raw: bytes) -> Plan:
    """The plan an artefact holds. Raises StoreError (BadArtifact) for anything but a well-formed plan."""
    if len(raw) > _MOST_BYTES:
        raise StoreError(
            f"the artefact has {len(raw)} bytes; at most {_MOST_BYTES} are read", code="BadArtifact", remedy=_AGAIN
        )
    try:
        return _codec.value_of(Plan, _unwrapped(json.loads(raw.decode("utf-8"))))
    except (ValueError, RecursionError, StoreError) as err:
        raise StoreError(f"the artefact cannot be read: {str(err)[:200]}", code="BadArtifact", remedy=_AGAIN) from err


def _unwrapped(tree: object) -> dict[str, typing.Any]:
    """The plan without what says that it is one. Raises ValueError."""
    if not isinstance(tree, dict) or tree.pop("kind", None) != "Plan":
        raise ValueError("it is no plan")
    if str(tree.pop("formatVersion", "")).partition(".")[0] != FORMAT.partition(".")[0]:
        raise ValueError("its format is of another version")
    return tree


# --- schema ---


def schema_head(kind: str) -> dict[str, object]:
    """The properties with which every object for machines begins: its version, and what it is."""
    version = {"type": "string", "pattern": r"^1\.[0-9]+$", "description": "Ignore unknown keys within 1.x."}
    return {"formatVersion": version, "kind": {"const": kind}}


def plan_schema() -> bytes:
    """`schemas/plan.schema.json`: what `gangops plan -o json` prints."""
    definitions: dict[str, object] = {}
    whole = _object(Plan, definitions)
    properties = {
        **schema_head("Plan"),
        **typing.cast("dict[str, object]", whole["properties"]),
    }
    required = ["formatVersion", "kind", *typing.cast("list[str]", whole["required"])]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Plan",
        "description": "What `gangops plan -o json` prints. A field with its default is left out.",
        "type": "object",
        "required": required,
        "properties": properties,
        "$defs": dict(sorted(definitions.items())),
    }
    return (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode()


def schema_of(kind: type, title: str, description: str) -> bytes:
    """The JSON schema of a value as its codec writes it."""
    definitions: dict[str, object] = {}
    whole = _object(kind, definitions)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **whole,
        "description": description,
        "$defs": dict(sorted(definitions.items())),
    }
    return (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode()


def _object(kind: type, definitions: dict[str, object]) -> dict[str, object]:
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    needed = [f for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    return {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "required": [camel(f.name) for f in needed],
        "properties": {camel(f.name): _type(hints[f.name], definitions) for f in fields},
    }


def _type(hint: typing.Any, definitions: dict[str, object]) -> dict[str, object]:
    if hint is Instant:
        return {"type": "string", "format": "date-time"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = next(one for one in arguments if one is not type(None))
        return _type(rest, definitions)
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0], definitions)}
    if dataclasses.is_dataclass(hint):
        name = typing.cast("type", hint).__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _object(typing.cast("type", hint), definitions)
        return {"$ref": f"#/$defs/{name}"}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[hint]}
