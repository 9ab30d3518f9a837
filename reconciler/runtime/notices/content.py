"""What does a notice look like to a machine? Its JSON, and the schema that describes it."""

from __future__ import annotations

import json
from typing import Any, Final

from reconciler.documents.quantities import print_instant
from reconciler.model.units import Instant
from reconciler.runtime.notices.events import Detail, Notice, NoticeKind

FORMAT: Final = "1.0"
_INSTANTS: Final = frozenset({"resumesAt", "resumesLikely", "from", "to", "startBefore"})


def content_of(notice: Notice, last_lines: tuple[str, ...] = ()) -> dict[str, Any]:
    """A notice as JSON has it; `formatVersion` first, keys without a value left out."""
    author = notice.author
    person = {"user": author.user, "email": author.email, "login": author.login}
    content = {
        "formatVersion": FORMAT,
        "kind": "Notification",
        "id": notice.id,
        "event": str(notice.kind),
        "at": print_instant(notice.at),
        "cluster": notice.cluster,
        "generation": notice.generation,
        "commit": notice.commit,
        "job": notice.job,
        "node": notice.node,
        "queue": notice.queue,
        "attempt": notice.attempt,
        "tasks": notice.tasks,
        "author": {key: value for key, value in person.items() if value},
        "pullRequests": list(notice.requests),
        "told": notice.told,
        "details": {name: _detail(name, value) for name, value in notice.details if value is not None},
        "lastLines": list(last_lines),
    }
    return {key: value for key, value in content.items() if value not in (None, "", 0, {}, [])}


def _detail(name: str, value: Detail) -> object:
    if isinstance(value, tuple):
        return list(value)
    return print_instant(Instant(value)) if name in _INSTANTS and isinstance(value, int) else value


# --- schema ---

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer", "minimum": 0}
_TIME: Final = {"type": "string", "format": "date-time"}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_ALWAYS: Final = ("formatVersion", "kind", "id", "event", "at", "cluster", "generation", "commit", "told")
_PROPERTIES: Final[dict[str, object]] = {
    "formatVersion": {"type": "string", "pattern": r"^1\.[0-9]+$", "description": "Ignore unknown keys within 1.x."},
    "kind": {"const": "Notification"},
    "id": {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "The same whenever this notice is told."},
    "event": {"enum": [kind.value for kind in NoticeKind]},
    "at": {**_TIME, "description": "When it was decided."},
    "cluster": _TEXT,
    "generation": _WHOLE,
    "commit": {**_TEXT, "description": "The state commit it is told of."},
    "job": {**_TEXT, "description": "queue/name; with `tasks` an array."},
    "node": _TEXT,
    "queue": _TEXT,
    "attempt": _WHOLE,
    "tasks": {**_TEXT, "description": "Tasks of the array, such as 0-7,12; the details are of the first."},
    "author": {"type": "object", "properties": {"user": _TEXT, "email": _TEXT, "login": _TEXT}},
    "pullRequests": _TEXTS,
    "told": {**_TEXT, "description": "A sentence for people."},
    "details": {
        "type": "object",
        "properties": {
            **dict.fromkeys(("where", "level", "cause", "by", "node", "outcome", "reason"), _TEXT),
            **dict.fromkeys(("gpus", "commNanoseconds", "waitedSeconds", "lostGpuSeconds", "graceSeconds", "failures", "attempts", "ranSeconds"), _WHOLE),
            "exitCode": {"type": "integer"},
            **dict.fromkeys(sorted(_INSTANTS), _TIME),
            **dict.fromkeys(("ranks", "codes", "effects", "heldBy"), _TEXTS),
        },
    },
    "lastLines": {**_TEXTS, "description": "The end of the log of a failed rank, each line with its rank."},
}  # fmt: skip


def notification_schema() -> bytes:
    """`schemas/notification.schema.json`: what a webhook is sent and a command reads."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Notification",
        "description": "What `[webhook]` and `[command]` of reconciler.toml are told. Keys without a value are left out.",
        "type": "object",
        "required": list(_ALWAYS),
        "properties": _PROPERTIES,
    }
    return (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode()
