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
from operator import attrgetter
from types import FunctionType
from typing import Any, BinaryIO, cast


def kept(value: object) -> bytes:
    """The bytes of any value made of ours and plain ones."""
    out = io.BytesIO()
    keep_in(out, value)
    return out.getvalue()


def keep_in(out: BinaryIO, value: object) -> None:
    """The same bytes, into a file."""
    _Writer(out, protocol=5).dump(value)


def again(content: bytes) -> object:
    """The value that `kept` wrote. Raises what a damaged pickle raises: check a digest first."""
    return pickle.loads(content)  # noqa: S301  our own, from a folder nobody else can write


def again_from(file: BinaryIO) -> object:
    """The next value of a file that `keep_in` wrote. Raises EOFError at its end."""
    return pickle.load(file)  # noqa: S301  our own


class _Writer(pickle.Pickler):
    """Writes slotted dataclasses as what makes one of their class, and the values of their fields."""

    def reducer_override(self, obj: object) -> Any:
        """How one object is rebuilt; NotImplemented for all but values with slots."""
        kind = type(obj)
        if kind is FunctionType and (made := getattr(obj, "makes", None)) is not None:
            return maker, (made,)
        if not dataclasses.is_dataclass(kind) or "__slots__" not in vars(kind):
            return NotImplemented
        return maker(kind), _values(kind)(obj)


@cache
def maker(kind: type) -> Callable[..., Any]:
    """What makes a value of this class from all its fields in order, past the refusal of a frozen value to be changed.

    Written out for each class, as `dataclasses` does with `__init__`: a loop over the fields takes twice as long.
    """
    fields = dataclasses.fields(kind)
    names = {f"put{i}": getattr(kind, field.name).__set__ for i, field in enumerate(fields)}
    lines = [f"def make({', '.join(f'v{i}' for i in range(len(fields)))}):", " one = new(kind)"]
    lines += [f" put{i}(one, v{i})" for i in range(len(fields))]
    names |= {"new": object.__new__, "kind": kind}
    exec("\n".join([*lines, " return one"]), names)  # noqa: S102  of numbers alone, nothing of anybody's
    make: Any = names["make"]
    make.makes = kind
    return cast("Callable[..., Any]", make)


@cache
def _values(kind: type) -> Callable[[object], tuple[Any, ...]]:
    """What reads all fields of a value of this class, in order."""
    names = [field.name for field in dataclasses.fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)
