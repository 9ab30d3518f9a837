"""What every document and every field of ours has in common: strictness, names, and how quantities are spelled.

A quantity is text in a document and an integer of its base unit in the model: nanoseconds, bytes, bits a second,
millionths. Errors raised here carry our own codes; `documents.check` turns them into diagnostics.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NoReturn, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from reconciler.documents import quantities
from reconciler.documents.cpulist import parse_cpus
from reconciler.documents.hostlist import expand

API_VERSION: Final = "gangops/v1"

NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
JOB_PATTERN: Final = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
LEVEL_PATTERN: Final = r"^[a-z][A-Za-z0-9]{0,31}$"
GPU_TYPE_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?$"
LABEL_PATTERN: Final = r"^([a-z0-9][-a-z0-9.]{0,61}/)?[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?$"
PATH_PATTERN: Final = r"^/[^\x00-\x1f]*$"
VARIABLE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
SIGNAL_PATTERN: Final = r"^SIG[A-Z0-9+]{2,12}$"
ACCOUNT_PATTERN: Final = r"^[a-z_][-a-z0-9_]{0,31}$"


class Strict(BaseModel):
    """Nothing unknown, nothing converted: a typing mistake never passes for a wish."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        # A field that is called `from` or `list` in YAML has its alias spelled out.
        defer_build=True,
        # What is said below each field is read when schemas are made (`files`): doing so for every class costs each
        # start of a verb 30 ms.
        use_attribute_docstrings=False,
    )


def refuse(code: str, detail: str) -> NoReturn:
    """Raise the error that becomes a diagnostic of this code at the value being read."""
    raise PydanticCustomError(code, "{detail}", {"detail": detail})


def _quantity(code: str, parse: Callable[[str], int], what: str) -> Callable[[Any], int]:
    parse = lru_cache(maxsize=4096)(parse)  # ten thousand jobs say the same few dozen durations

    def read(written: Any) -> int:
        if type(written) is not str and not isinstance(written, Decimal):
            refuse("WrongType", f"Expected {what}, found {kind_of(written)}.")
        try:
            return parse(str(written))
        except ValueError as err:
            refuse(code, f"{str(err)[:1].upper()}{str(err)[1:]}.")

    return read


def kind_of(written: object) -> str:
    """What a reader of YAML would call this value."""
    names = {
        bool: "true or false",
        int: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
        type(None): "nothing",
    }
    return names.get(type(written), "a decimal number")


def _counted(parse: Callable[[Any], int]) -> Callable[[Any], int]:
    """Sizes and shares may be plain integers too: 4096, 0, 1."""
    return lambda written: parse(str(written)) if type(written) is int else parse(written)


DURATION_JSON: Final = r"^([0-9]+(\.[0-9]+)?(d|h|m|s|ms|us|ns))+$"
_SIZE_JSON: Final = r"^[0-9]+(\.[0-9]+)?([KMGT]iB?|B)?$"
_BANDWIDTH_JSON: Final = r"^[0-9]+(\.[0-9]+)?[KMGT]?[Bb]ps$"

Duration: TypeAlias = Annotated[
    int,
    PlainValidator(_quantity("BadDuration", quantities.parse_duration, "a duration such as 30m")),
    WithJsonSchema({"type": "string", "pattern": DURATION_JSON, "examples": ["90s", "30m", "12h", "7d", "1d12h"]}),
]
Size: TypeAlias = Annotated[
    int,
    PlainValidator(_counted(_quantity("BadSize", quantities.parse_bytes, "a size such as 64GiB"))),
    WithJsonSchema(
        {"type": ["string", "integer"], "pattern": _SIZE_JSON, "minimum": 0, "examples": ["512MiB", "64GiB", "2TiB"]}
    ),
]
Bandwidth: TypeAlias = Annotated[
    int,
    PlainValidator(_quantity("BadBandwidth", quantities.parse_bandwidth, "a bandwidth such as 400Gbps")),
    WithJsonSchema({"type": "string", "pattern": _BANDWIDTH_JSON, "examples": ["400Gbps", "450GBps"]}),
]
Share: TypeAlias = Annotated[
    int,
    PlainValidator(_counted(_quantity("BadShare", quantities.parse_share, "a share such as 25%"))),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?%?$"},
            ],
            "examples": ["25%", 0.25],
        }
    ),
]
Time: TypeAlias = Annotated[
    int,
    PlainValidator(_quantity("BadTime", quantities.parse_instant, "a quoted RFC 3339 time with offset")),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-12-05T08:00:00+00:00"]}),
]


def _unlimited(minimum: int) -> Callable[[Any], int]:
    def read(written: Any) -> int:
        if written == "unlimited":
            return -1
        if type(written) is not int:
            refuse("WrongType", f"Expected a number or unlimited, found {kind_of(written)}.")
        if written < minimum:
            refuse("OutOfRange", f"Expected at least {minimum}, or unlimited; found {written}.")
        return written

    return read


Times: TypeAlias = Annotated[
    int,
    PlainValidator(_unlimited(0)),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "unlimited"}]}),
]
"""How often something may happen; -1 is unlimited."""


def duration_or(word: str) -> Callable[[Any], int]:
    """Reads a duration, or this word as -1."""
    read = _quantity("BadDuration", quantities.parse_duration, f"a duration such as 12h, or {word}")
    return lambda written: -1 if written == word else read(written)


def duration_or_json(word: str) -> dict[str, Any]:
    """JSON schema of what `duration_or` reads."""
    return {"type": "string", "pattern": f"^({word}|([0-9]+(\\.[0-9]+)?(d|h|m|s|ms|us|ns))+)$"}


def _nodes(written: Any) -> tuple[str, ...]:
    if type(written) is not str:
        refuse("WrongType", f"Expected a node list in quotes, found {kind_of(written)}.")
    try:
        names = expand(written)
    except ValueError as err:
        refuse("BadNodeList", f"{str(err)[:1].upper()}{str(err)[1:]}.")
    for name in names:
        if not re.match(NAME_PATTERN, name):
            refuse("BadName", f"{name!r} is no node name: lower case letters, digits and '-', at most 63 characters.")
    return names


NodeList: TypeAlias = Annotated[
    tuple[str, ...],
    PlainValidator(_nodes),
    WithJsonSchema({"type": "string", "minLength": 1, "examples": ["gpu-[001-008]", "gpu-[001-008,010],login1"]}),
]


def _cpus(written: Any) -> tuple[int, ...]:
    if type(written) is int:
        return (written,) if written >= 0 else refuse("BadCpuList", "CPU numbers start at 0.")
    if type(written) is not str:
        refuse("WrongType", f"Expected a CPU list in quotes, found {kind_of(written)}.")
    try:
        return parse_cpus(written)
    except ValueError as err:
        refuse("BadCpuList", f"{str(err)[:1].upper()}{str(err)[1:]}.")


CpuList: TypeAlias = Annotated[
    tuple[int, ...],
    PlainValidator(_cpus),
    WithJsonSchema(
        {
            "type": ["string", "integer"],
            "pattern": r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$",
            "examples": ["0-55,112-167"],
        }
    ),
]

Name: TypeAlias = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
JobName: TypeAlias = Annotated[str, StringConstraints(pattern=JOB_PATTERN)]
"""`queue/name`, or `name` of the same queue."""
LevelName: TypeAlias = Annotated[str, StringConstraints(pattern=LEVEL_PATTERN)]
GpuTypeName: TypeAlias = Annotated[str, StringConstraints(pattern=GPU_TYPE_PATTERN)]
LabelKey: TypeAlias = Annotated[str, StringConstraints(pattern=LABEL_PATTERN)]
AbsolutePath: TypeAlias = Annotated[str, StringConstraints(pattern=PATH_PATTERN, max_length=4096)]
Variable: TypeAlias = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN)]
Signal: TypeAlias = Annotated[str, StringConstraints(pattern=SIGNAL_PATTERN)]
Account: TypeAlias = Annotated[str, StringConstraints(pattern=ACCOUNT_PATTERN)]
Text: TypeAlias = Annotated[str, StringConstraints(max_length=16384)]
Line: TypeAlias = Annotated[str, StringConstraints(max_length=1024)]
_T = TypeVar("_T")
Listed: TypeAlias = Annotated[tuple[_T, ...], Field(strict=False)]
"""A YAML list; strictness would refuse to make a tuple of it, and goes on to hold for its items."""
Count: TypeAlias = Annotated[int, Field(ge=0, le=1_000_000)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]

PATTERNS: Final[dict[str, tuple[str, str]]] = {
    NAME_PATTERN: ("BadName", "lower case letters, digits and '-' inside, at most 63 characters"),
    JOB_PATTERN: ("BadName", "a job's name, or queue/name"),
    LEVEL_PATTERN: ("BadName", "a level such as nvlinkDomain, node, rack or spineGroup"),
    GPU_TYPE_PATTERN: ("BadName", "a GPU type such as H100-SXM5-80GB"),
    LABEL_PATTERN: ("BadName", "letters, digits, '-', '_' and '.', perhaps after prefix/"),
    PATH_PATTERN: ("BadPath", "an absolute path, starting with /"),
    VARIABLE_PATTERN: ("BadName", "the name of an environment variable"),
    SIGNAL_PATTERN: ("BadSignal", "a signal such as SIGUSR1"),
    ACCOUNT_PATTERN: ("BadName", "a Unix account: lower case letters, digits, '-' and '_'"),
}
"""What each pattern means to a reader: (code, what is expected)."""


NOTHING: Final[Any] = {}
"""The default of mappings: empty. pydantic hands each model a copy."""


class Metadata(Strict):
    """Who this document is about. Labels are for people and policies; decisions never read them."""

    name: Name
    """Lower case letters, digits and '-', at most 63 characters. Unique among documents of the kind."""
    labels: dict[LabelKey, Line] = NOTHING
    """Free keys and values. Prefixes `gangops/` and `gangops.io/` are ours."""
    annotations: dict[LabelKey, Text] = NOTHING
    """Longer notes, such as a ticket; nothing reads them."""


class Document(Strict):
    """The envelope all documents share."""

    api_version: Literal["gangops/v1"]
    """The version of the format."""
    kind: str
    """The kind of document."""
    metadata: Metadata
    """Name, labels and annotations."""
