"""A CEL expression whose loops are safe to repeat: the ranges of its macros are counted, and maps go in order of keys.

The library walks a map in an order that differs from one process to the next, which would make a verdict depend on
chance; and it bounds loops without saying what they cost. So every range of a macro (`all`, `exists`, `exists_one`,
`map`, `filter`) is wrapped in a call of our own. The library's serialised form is a protocol buffer (cel/expr/syntax.proto,
field numbers below); only the few messages on the way to a range are taken apart, everything else is copied as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

RANGE: Final = "@range"
"""Name of the wrapper. Nobody can write a call of it: the grammar knows no `@`."""

_INSIDE: Final[Mapping[str, Mapping[int, str]]] = {
    "any": {2: "parsed"},
    "parsed": {2: "expr"},
    "expr": {5: "select", 6: "call", 7: "list", 8: "struct", 9: "loop"},
    "select": {1: "expr"},
    "call": {1: "expr", 3: "expr"},
    "list": {1: "expr"},
    "struct": {2: "entry"},
    "entry": {3: "expr", 4: "expr"},
    "loop": {2: "range", 4: "expr", 5: "expr", 6: "expr", 7: "expr"},
}
"""Which fields of a message lead to expressions, and as what."""

_LENGTH: Final = 2  # wire type of text, bytes and messages


def with_counted_ranges(serialised: bytes) -> bytes:
    """The serialised parsed expression with every range wrapped. Raises ValueError for bytes of another form."""
    return _rewritten("any", serialised)


def _rewritten(kind: str, message: bytes) -> bytes:
    if kind == "range":
        return _wrapped(_rewritten("expr", message))
    inside = _INSIDE[kind]
    out = bytearray()
    for number, wire, whole, body in _fields(message):
        out += _field(number, _rewritten(inside[number], body)) if wire == _LENGTH and number in inside else whole
    return bytes(out)


def _wrapped(expression: bytes) -> bytes:
    """Expr{call_expr: Call{function: RANGE, args: [expression]}}."""
    return _field(6, _field(2, RANGE.encode()) + _field(3, expression))


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(body)) + body


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """(number, wire type, the field as it is, what is inside when it has a length)."""
    at = 0
    while at < len(message):
        begin = at
        key, at = _read_varint(message, at)
        wire = key & 7
        body = b""
        if wire == 0:
            _, at = _read_varint(message, at)
        elif wire == _LENGTH:
            size, at = _read_varint(message, at)
            body = message[at : at + size]
            at += size
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(message):
            raise ValueError("a field is longer than its message")
        yield key >> 3, wire, message[begin:at], body


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number does not end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
