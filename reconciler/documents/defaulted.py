"""What does a document say once everything it left out is filled in? A tree for those who judge it: policies.

Keys are those of YAML. What has no value is absent, so that `has()` means something; empty lists and mappings are there.
Durations are seconds in text (`43200s`) and times RFC 3339 in UTC, as `duration()` and `timestamp()` of CEL read them;
shares are numbers between 0 and 1, sizes bytes, bandwidths bits a second, node and CPU lists lists. In a Job the defaults that come from the cluster are filled in too: class, time limit, ranks,
locality, launch, runtime, and what becomes of it as a victim. A time limit that is absent then is none.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, WithJsonSchema

from reconciler.documents.check import Item
from reconciler.documents.quantities import print_instant
from reconciler.documents.schema import base
from reconciler.model.job import Job
from reconciler.model.units import SECOND, Instant

Tree = dict[str, Any]
_Form = Callable[[Any], Any]


def defaulted(item: Item, job: Job | None = None) -> Tree:
    """The document with its defaults. `job` is what it came to, for a Job: where its other defaults come from."""
    tree: Tree = _model(item.model)
    if job is not None and item.kind == "Job":
        _fill(tree["spec"], job)
    return tree


def _fill(spec: Tree, job: Job) -> None:
    spec["priorityClass"] = str(job.priority_class)
    spec.pop("timeLimit", None)
    if job.time_limit is not None:
        spec["timeLimit"] = _duration(job.time_limit)
    spec["parallelism"] = {dimension.name: dimension.size for dimension in job.dimensions}
    spec["topology"]["required"] = {local.group: str(local.level) for local in job.required}
    spec["topology"]["preferred"] = {local.group: str(local.level) for local in job.preferred}
    spec["preemption"]["policy"] = job.on_preempt.value
    spec["run"]["launch"] = job.run.launch.value
    spec["run"]["runtime"] = job.run.runtime


def _model(model: BaseModel) -> Tree:
    found = {}
    for name, key, form in _fields(type(model)):
        value = getattr(model, name)
        if value is not None:
            found[key] = form(value)
    return found


@cache
def _fields(model: type[BaseModel]) -> tuple[tuple[str, str, _Form], ...]:
    """(name, key in YAML, how it is shown) of each field."""
    return tuple(
        (name, field.alias or name, _form([field.annotation, *field.metadata]))
        for name, field in model.model_fields.items()
    )


def _form(hints: list[Any]) -> _Form:
    """How values with these hints are shown; by the schema they were given for editors."""
    for hint in _flat(hints):
        schema = str(hint.json_schema) if isinstance(hint, WithJsonSchema) else ""
        for mark, form in _MARKS:
            if mark in schema:
                return form
    return _plain


def _flat(hints: typing.Iterable[Any]) -> typing.Iterator[Any]:
    for hint in hints:
        yield hint
        # A union or an annotated type: what is inside a container is another value's hint.
        if typing.get_origin(hint) not in (tuple, list, dict):
            yield from _flat(getattr(hint, "__metadata__", ()))
            yield from _flat(typing.get_args(hint))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _model(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value


def _duration(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, SECOND)
    return f"{whole}.{rest:09}".rstrip("0").rstrip(".") + "s" if rest else f"{whole}s"


def _duration_or_word(value: Any) -> Any:
    """-1 stands for the word in the schema: unlimited."""
    return _duration(value) if value >= 0 else "unlimited"


def _instant(nanoseconds: int) -> str:
    return print_instant(Instant(nanoseconds))


def _share(millionths: int) -> float:
    return millionths / 1_000_000


_MARKS: Final[tuple[tuple[str, _Form], ...]] = (
    ("ms|us|ns", _duration_or_word),
    ("date-time", _instant),
    ("%?$", _share),
)
assert "ms|us|ns" in base.DURATION_JSON  # the mark of a duration is its pattern
