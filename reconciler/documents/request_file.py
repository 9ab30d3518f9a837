"""What does a request say? Its one file, written by a verb and read by the reconciler: a value and its bytes.

Whether somebody may ask for that is not looked at here; a word that is no request of ours is read all the same, so
that it can be refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.documents.canonical import to_yaml
from reconciler.documents.loader import load
from reconciler.documents.tasklist import parse_tasks, print_tasks
from reconciler.documents.values import tree_of, value_of
from reconciler.errors import InvalidInput
from reconciler.model.units import Instant, JobKey, NodeName, QueueName

REQUEST_FILE: Final = "request.yaml"
LONGEST_REASON: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody asks of one cluster until `expires`. `ask` as written: cancel, suspend, cordon, drain or freeze.

    `tasks` are those of the array `job` that are meant, as `3,7-9`; "": the whole job.
    """

    ask: str
    cluster: str
    expires: Instant
    job: JobKey = JobKey("")
    tasks: str = ""
    nodes: tuple[NodeName, ...] = ()
    queue: QueueName = QueueName("")
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envelope:
    api_version: str
    kind: str
    metadata: Mapping[str, str]
    spec: Wish


def wish_bytes(name: str, wish: Wish) -> bytes:
    """The content of a request's file."""
    return to_yaml(tree_of(_Envelope(api_version="gangops/v1", kind="Request", metadata={"name": name}, spec=wish)))


def read_wish(content: bytes) -> tuple[str, Wish]:
    """The name a request gives itself, and what it asks. Raises StoreError (BadRecord), InvalidInput."""
    loaded = load(content, REQUEST_FILE)
    if any(d.is_error for d in loaded.diagnostics) or len(loaded.documents) != 1:
        raise InvalidInput([d for d in loaded.diagnostics if d.is_error])
    found = value_of(_Envelope, loaded.documents[0].value)
    if (found.api_version, found.kind) != ("gangops/v1", "Request") or len(found.spec.reason) > LONGEST_REASON:
        raise InvalidInput(())
    name = found.metadata.get("name", "")
    if not (_is_written_shortest(found.spec.tasks) and _names_on_one_line(name, found.spec)):
        raise InvalidInput(())
    return name, found.spec


def _names_on_one_line(name: str, wish: Wish) -> bool:
    """Names go into commit messages as they are, those of a refused request too: an escape in YAML must not end a line."""
    return all(text.isprintable() for text in (name, wish.ask, wish.cluster, wish.job, wish.queue, *wish.nodes))


def _is_written_shortest(tasks: str) -> bool:
    """One list has one spelling: who reads a record compares texts."""
    try:
        return not tasks or print_tasks(parse_tasks(tasks)) == tasks
    except ValueError:
        return False
