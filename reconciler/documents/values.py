"""Frozen model values to trees and back, led by their type annotations alone.

The state branch is written and read with this one codec, so that a field added to a value is recorded without
another line of code. Names become camelCase; instants become RFC 3339, spans become durations; a field that has
its default is left out. People's documents do not come through here: they have a schema and messages of their own.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter

from reconciler.documents.loader import Tree
from reconciler.documents.quantities import parse_duration, parse_instant, print_duration, print_instant
from reconciler.errors import StoreError
from reconciler.model.units import Instant, Nanoseconds

_T = typing.TypeVar("_T")
_Encode = Callable[[typing.Any], Tree]
_Decode = Callable[[typing.Any], typing.Any]


class Form(typing.NamedTuple):
    """How one kind of value is written, where its fields one by one would not read well."""

    encode: _Encode
    decode: _Decode


class _Field(typing.NamedTuple):
    name: str
    key: str
    form: Form
    default: typing.Any


_NO_DEFAULT = object()


class Codec:
    """Writes and reads frozen dataclasses. `forms` has the kinds that are written in a way of their own.

    The functions for a kind are put together once, at its first use.
    """

    def __init__(self, forms: Mapping[type, Form] | None = None) -> None:
        self._forms: dict[object, Form] = dict(_QUANTITIES)
        self._forms.update((forms or {}).items())

    def tree_of(self, value: object) -> dict[str, Tree]:
        """A frozen value as a tree of mappings, sequences, text, integers and booleans; fields in declared order."""
        return self._form(type(value)).encode(value)  # type: ignore[return-value]  # a dataclass becomes a mapping

    def value_of(self, kind: type[_T], tree: Tree) -> _T:
        """The value that `tree_of` made this tree from. Raises StoreError (code BadRecord) for any other tree."""
        try:
            return self._form(kind).decode(tree)  # type: ignore[no-any-return]  # led by annotations at run time
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as err:
            raise StoreError(
                f"a {kind.__name__} in the record cannot be read: {str(err)[:200]}",
                code="BadRecord",
                remedy="the state branch was not written by this version of gangops; run `gangops audit verify`",
            ) from err

    def _form(self, hint: typing.Any) -> Form:
        found = self._forms.get(hint)
        if found is None:
            found = self._forms[hint] = self._made(hint)
        return found

    def _made(self, hint: typing.Any) -> Form:
        """How values of this type are written and read; first match wins."""
        if isinstance(hint, typing.NewType):
            return self._form(hint.__supertype__)
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return _optional(args, self._form)
        if origin is tuple and args[-1] is Ellipsis:
            return _sequence(self._form(args[0]))
        if origin is tuple:
            return _row([self._form(arg) for arg in args])
        if origin is not None and issubclass(origin, Mapping):
            return _mapping(self._form(args[1]))
        if dataclasses.is_dataclass(hint):
            return self._record(typing.cast("type", hint))
        if isinstance(hint, type) and issubclass(hint, Enum):
            return Form(lambda value: str(value.value), hint)
        return _scalar(hint)

    def _record(self, kind: type) -> Form:
        """A dataclass: a mapping of its fields that do not have their default."""
        hints = typing.get_type_hints(kind)
        fields = [
            _Field(f.name, camel(f.name), self._form(hints[f.name]), _default(f)) for f in dataclasses.fields(kind)
        ]
        values_of = attrgetter(*(f.name for f in fields))
        writers = [(f.key, f.form.encode, f.default) for f in fields]
        readers = {f.key: (f.name, f.form.decode) for f in fields}

        def encode(value: typing.Any) -> Tree:
            rows = zip(writers, values_of(value), strict=True)
            return {key: write(item) for (key, write, default), item in rows if item != default}

        def decode(tree: typing.Any) -> typing.Any:
            found = {}
            for key, item in _checked(tree, dict).items():
                name, read = readers[key]
                found[name] = read(item)
            return kind(**found)

        return Form(encode, decode)


def camel(name: str) -> str:
    """`decided_at` as `decidedAt`."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def _default(field: dataclasses.Field[typing.Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _NO_DEFAULT


def _optional(args: tuple[typing.Any, ...], form_of: Callable[[typing.Any], Form]) -> Form:
    """`X | None`; any other union is one of plain types, written and read as it stands."""
    rest = [arg for arg in args if arg is not type(None)]
    if len(rest) > 1:
        kinds = frozenset(args)
        return Form(_same, lambda tree: _checked(tree, kinds))
    inner = form_of(rest[0])
    return Form(
        lambda value: None if value is None else inner.encode(value),
        lambda tree: None if tree is None else inner.decode(tree),
    )


def _sequence(each: Form) -> Form:
    return Form(
        lambda value: [each.encode(item) for item in value],
        lambda tree: tuple([each.decode(item) for item in _checked(tree, list)]),
    )


def _row(forms: list[Form]) -> Form:
    return Form(
        lambda value: [form.encode(item) for form, item in zip(forms, value, strict=True)],
        lambda tree: tuple([form.decode(item) for form, item in zip(forms, _checked(tree, list), strict=True)]),
    )


def _mapping(each: Form) -> Form:
    return Form(
        lambda value: {str(key): each.encode(value[key]) for key in sorted(value)},
        lambda tree: {key: each.decode(item) for key, item in _checked(tree, dict).items()},
    )


def _scalar(kind: type) -> Form:
    return Form(_same, lambda tree: _checked(tree, kind))


def _same(value: typing.Any) -> Tree:
    return value  # type: ignore[no-any-return]  # a scalar stands for itself


def _checked(tree: typing.Any, kind: type | frozenset[type]) -> typing.Any:
    """The tree, when it is of exactly this type: `true` is no integer here."""
    if type(tree) is not kind and not (isinstance(kind, frozenset) and type(tree) in kind):
        raise ValueError(f"{str(tree)[:80]!r} is of type {type(tree).__name__}")
    return tree


_QUANTITIES: dict[object, Form] = {
    Instant: Form(print_instant, parse_instant),
    Nanoseconds: Form(print_duration, parse_duration),
}
_GENERIC = Codec()


def tree_of(value: object) -> dict[str, Tree]:
    """`Codec.tree_of` without special forms: every field by its name."""
    return _GENERIC.tree_of(value)


def value_of(kind: type[_T], tree: Tree) -> _T:
    """`Codec.value_of` without special forms."""
    return _GENERIC.value_of(kind, tree)
