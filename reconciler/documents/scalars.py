"""What does one plain (unquoted) YAML scalar mean, and do all YAML versions agree?

One table of rules, used by the reader and by the writer. A text that YAML 1.1, YAML 1.2 or a common
loader would read as something else than we do has no meaning here: its author is asked for quotes.
Positions, files and diagnostics are the loader's.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, Literal, TypeAlias


class DecimalText(str):
    """A plain decimal such as `0.70`, kept as its digits: no float ever exists, nothing is rounded."""

    __slots__ = ()


class Ambiguous(Enum):
    """The answer for a plain scalar that different loaders read differently."""

    AMBIGUOUS = "ambiguous"


AMBIGUOUS: Final = Ambiguous.AMBIGUOUS
Scalar: TypeAlias = str | int | bool | None

# Any spelling of these is a boolean or null to some loader (`y` and `n` by the YAML 1.1 specification).
RESERVED_WORDS: Final = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false", "null"})
_MEANING: Final[dict[str, Scalar]] = {"true": True, "false": False, "null": None, "": None}

_PLAIN_TEXT: Final = re.compile(r"[A-Za-z/_][A-Za-z0-9/_.-]*")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_READ_DIFFERENTLY: Final = re.compile(
    r"""
      [-+]?[0-9][0-9_]*                                            # 010 (octal in 1.1), 1_000, +1, -0
    | [-+]?0[bBoOxX][0-9A-Fa-f_]+                                  # 0b1 0o7 0x1F
    | [-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?             # 1:30:00, base 60 in 1.1
    | [-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?   # 1e3 .5 5. 1_0.5
    | [-+]?\.(?:inf|nan)
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt\ \t].*)?                # a timestamp in 1.1
    | ~ | = | <<
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def is_plain_text(text: str) -> bool:
    """Whether every loader reads this text, unquoted, as that same text. Errs towards False."""
    return _PLAIN_TEXT.fullmatch(text) is not None and text.lower() not in RESERVED_WORDS


def read_plain(text: str, max_digits: int) -> Scalar | Literal[Ambiguous.AMBIGUOUS]:
    """The value of a plain scalar: text, integer, boolean, None or `DecimalText`; else AMBIGUOUS.

    An integer or decimal of more than `max_digits` digits raises OverflowError: loaders with 64-bit
    numbers would change it silently.
    """
    if text in _MEANING:
        return _MEANING[text]
    if _PLAIN_TEXT.fullmatch(text):
        return AMBIGUOUS if text.lower() in RESERVED_WORDS else text
    if _INTEGER.fullmatch(text):
        _refuse_long(text, max_digits)
        return int(text)
    if _DECIMAL.fullmatch(text):
        _refuse_long(text, max_digits)
        return DecimalText(text)
    return AMBIGUOUS if _READ_DIFFERENTLY.fullmatch(text) else text


def _refuse_long(text: str, max_digits: int) -> None:
    digits = sum(character.isdigit() for character in text) if len(text) > max_digits else 0
    if digits > max_digits:
        raise OverflowError(digits)
