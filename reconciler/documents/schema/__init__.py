"""What may a document say? One strict pydantic model for each kind, and the JSON schemas made from them (`files`).

The models say what is well-formed, field by field. Whether documents make sense together is for `lint`, what they
mean for `convert`. Nothing outside `documents` imports these models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from reconciler.documents.schema.base import Document

_HOMES: Final[Mapping[str, str]] = {
    "ClusterConfig": "cluster", "Fabric": "fabric", "Job": "job", "Maintenance": "maintenance",
    "NodeProfile": "inventory", "NodeSet": "inventory", "Policy": "policy", "PriorityClass": "queue", "Queue": "queue",
    "Reservation": "maintenance", "User": "user",
}  # fmt: skip


class _Kinds(Mapping[str, "type[Document]"]):
    """Models are imported when one of their kind is asked for: making the classes takes longer than reading a file."""

    def __getitem__(self, kind: str) -> type[Document]:
        return cast("type[Document]", getattr(import_module(f"{__name__}.{_HOMES[kind]}"), kind))

    def __contains__(self, kind: object) -> bool:
        return kind in _HOMES

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


KINDS: Final[Mapping[str, type[Document]]] = _Kinds()
"""Every kind of document, by name."""
