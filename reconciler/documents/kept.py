"""Values of ours as bytes for a file of ours, and back, as fast as Python allows: for caches, never for records.

Only read what nobody else can write: like any pickle, the bytes can do anything. Frozen values with slots are rebuilt
through their slots, several times faster than through `dataclasses`.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

_Put = Callable[[Any, Any], None]


def kept(value: object) -> bytes:
    """The bytes of any value made of ours and plain ones."""
    out = io.BytesIO()
    _Writer(out, protocol=5).dump(value)
    return out.getvalue()


def again(content: bytes) -> object:
    """The value that `kept` wrote. Raises what a damaged pickle raises: check a digest first."""
    return pickle.loads(content)  # noqa: S301  our own, from a folder nobody else can write


class _Writer(pickle.Pickler):
    """Writes slotted dataclasses as their class and the values of their fields."""

    def reducer_override(self, obj: object) -> Any:
        """How one object is rebuilt; NotImplemented for all but values with slots."""
        kind = type(obj)
        if not dataclasses.is_dataclass(kind) or "__slots__" not in vars(kind):
            return NotImplemented
        return _made, (kind, *(getattr(obj, field.name) for field in dataclasses.fields(kind)))


def _made(kind: type, *values: object) -> object:
    one: Any = object.__new__(kind)
    for put, value in zip(_slots(kind), values, strict=True):
        put(one, value)
    return one


@cache
def _slots(kind: type) -> tuple[_Put, ...]:
    """What sets each field, past the refusal of a frozen value to be changed: it is not made yet."""
    return tuple(getattr(kind, field.name).__set__ for field in dataclasses.fields(kind))
