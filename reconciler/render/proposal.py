"""A proposal for machines: what `-o json` of every verb that changes something prints, and the schema of that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, get_type_hints

from reconciler.documents.values import camel
from reconciler.render.plan import Plan, plan_json
from reconciler.render.plan.machine import schema_head


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`changed` False: there was nothing to do, `why` says so. `commit` is empty when nothing was pushed.

    `request` is the branch of what was asked for at once, "" when nothing was.
    """

    verb: str
    changed: bool
    why: str = ""
    title: str = ""
    job: str = ""
    base: str = ""
    commit: str = ""
    branch: str = ""
    request: str = ""
    pushed: bool = False
    pull_request: str = ""
    link: str = ""
    files: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    plan: Plan | None = None


def proposal_json(told: Told) -> Mapping[str, object]:
    """The content of the object, in the order of its fields; `plan` is what `gangops plan -o json` prints, or null."""
    found: dict[str, object] = {camel(field.name): getattr(told, field.name) for field in fields(told)}
    found["plan"] = plan_json(told.plan) if told.plan is not None else None
    return found


_TYPES: Final[Mapping[object, Mapping[str, object]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    tuple[str, ...]: {"type": "array", "items": {"type": "string"}},
    Plan | None: {"anyOf": [{"$ref": "plan.schema.json"}, {"type": "null"}]},
}


def proposal_schema() -> bytes:
    """`schemas/proposal.schema.json`."""
    hints = get_type_hints(Told)
    properties: dict[str, object] = {
        **schema_head("Proposal"),
        **{camel(field.name): _TYPES[hints[field.name]] for field in fields(Told)},
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Proposal",
        "description": "What `gangops submit -o json`, and every other verb that changes something, prints.",
        "type": "object",
        "required": list(properties),
        "properties": properties,
    }
    return (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode()
