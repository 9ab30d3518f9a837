"""What does a CEL expression say of these values? The one place that knows the library, which is pinned in the locks.

Standard CEL without extensions: no clock, no network, no state. Evaluation is bounded in steps, never in time: the
library limits nesting (32) and rounds of loops (10,000); here the rounds are weighed by the size of the values, so that a
loop over a large document cannot compare the whole of it in every round. The same expression over the same values gives
the same result in every process; `syntax` says why that needs care.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Final

from reconciler.policy.syntax import RANGE, with_counted_ranges

Value = Any
"""None, bool, int of 64 bits, float, str, and lists and str-keyed dicts of these. An expression may also come to a
duration or a time; the library takes none back, so text has to do where a value is kept."""

NAMES: Final = ("approvers", "author", "object", "plan", "variables")
BUDGET: Final = 200_000
"""Weighed rounds of all loops of one evaluation."""
MOST_PARTS: Final = 50_000
"""Parts of the values an expression may look at; `parts` counts them."""
_ROUND: Final = 256  # parts that weigh one more in every round
_LONGEST: Final = 300  # characters of an error that are told
_STATUS: Final = re.compile(r" \[[A-Z_]+\]$")


class ExpressionError(Exception):
    """The text is no CEL, or names what there is not. The message is one line."""


class Expression:
    """A compiled expression. `text` is what its author wrote."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str) -> None:
        """Raises ExpressionError."""
        self.text = text
        self._compiled = _compiled(text)

    def of(self, given: Given) -> Result:
        """What it comes to with these values for NAMES. Never raises."""
        _METER.left, _METER.weight, _METER.used_up = BUDGET, given.weight, False
        try:
            found = self._compiled.eval(given.activation)
            is_error = found.type() == _library().Type.ERROR
            value = found.value() if is_error else found.plain_value()
        except Exception as err:  # noqa: BLE001  whatever the library makes of hostile values is a result
            return Result(error=_told(err))
        if _METER.used_up:
            return Result(error=f"its loops cost more than {BUDGET} steps")
        return Result(error=_told(value)) if is_error else Result(value=value)


class Result:
    """`value`, or `error` when there is none."""

    __slots__ = ("error", "value")

    def __init__(self, value: Value = None, error: str = "") -> None:
        self.value, self.error = value, error


class Given:
    """Values for some of NAMES, converted once for all expressions that look at them.

    `weight`: what one round of a loop counts. `values` must not be changed afterwards.
    """

    __slots__ = ("activation", "values", "weight")

    def __init__(self, values: Mapping[str, Value], weight: int = 1) -> None:
        self.values, self.weight = values, weight
        self.activation = _environment().Activation(dict(values))

    def with_variables(self, variables: Mapping[str, Value]) -> Given:
        """The same, and these as `variables`."""
        return Given({**self.values, "variables": dict(variables)}, self.weight)


def is_plain(value: Value) -> bool:
    """Whether a value can be given to another expression."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def weight_of(count: int) -> int:
    """What a round of a loop weighs when an expression may look at values of so many parts."""
    return 1 + count // _ROUND


def parts(value: Value) -> int:
    """How large a value is: everything in it counts one, text one more for each 64 characters."""
    if isinstance(value, dict):
        return 1 + sum(1 + len(key) // 64 + parts(item) for key, item in value.items())
    if isinstance(value, list):
        return 1 + sum(map(parts, value))
    return 1 + len(value) // 64 if isinstance(value, str) else 1


# --- the library ----------------------------------------------------------------------------------------------------


class _Meter(threading.local):
    left = 0
    weight = 1
    used_up = False


_METER = _Meter()


def _counted(values: dict[Any, Any] | list[Any]) -> list[Any]:
    """The elements of a list, or the keys of a map in order; what looking at them costs is charged."""
    _METER.left -= len(values) * _METER.weight
    if _METER.left < 0:
        _METER.used_up = True
        raise ValueError("too many rounds")
    return sorted(values, key=lambda key: (type(key).__name__, key)) if isinstance(values, dict) else values


@cache
def _library() -> Any:
    from cel_expr_python import cel  # a large binary: loaded when there is a policy

    return cel


@cache
def _environment() -> Any:
    cel = _library()
    kinds = cel.Type
    anything = kinds.List(kinds.DYN)
    overloads = [
        cel.Overload("range_map", anything, [kinds.Map(kinds.DYN, kinds.DYN)], impl=_counted),
        cel.Overload("range_list", anything, [anything], impl=_counted),
    ]
    return cel.NewEnv(variables=dict.fromkeys(NAMES, kinds.DYN), functions=[cel.FunctionDecl(RANGE, overloads)])


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Any:
    try:
        _environment().compile(text)  # with all checks, which the form below goes without
        parsed = _environment().compile(text, disable_check=True).serialize()
        return _environment().deserialize(with_counted_ranges(parsed))
    except (RuntimeError, ValueError, UnicodeError) as err:
        raise ExpressionError(_told(err)) from err


def _told(err: object) -> str:
    """The library's words in one line, without its codes and drawings."""
    first = str(err).partition("\n")[0]
    for noise in (
        "INVALID_ARGUMENT: ",
        "ERROR: <input>:",
        "NOT_FOUND: ",
        "OUT_OF_RANGE: ",
        "UNKNOWN: ",
        "INTERNAL: ",
        "CANCELLED: ",
    ):
        first = first.removeprefix(noise)
    words = " ".join(first.split())
    return _STATUS.sub("", words)[:_LONGEST] or "it has no value"
