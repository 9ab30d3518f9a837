"""How do people write durations, sizes, speeds, shares and instants, and which integer is meant?

Exact integer arithmetic: a quantity that is no whole number of its base unit is refused, never
rounded. Each `print_*` gives the one canonical spelling, which its `parse_*` reads back unchanged.
Which field takes which quantity is for the schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Final

_LONGEST: Final = 64  # characters; nobody writes more, and digits cost time to read
_NANOSECONDS: Final[Mapping[str, int]] = {
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_BYTES: Final[Mapping[str, int]] = {"Ti": 1 << 40, "Gi": 1 << 30, "Mi": 1 << 20, "Ki": 1 << 10}
_PREFIXES: Final[Mapping[str, int]] = {"T": 10**12, "G": 10**9, "M": 10**6, "K": 10**3, "": 1}
_MILLION: Final = 1_000_000

_NUMBER: Final = r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
_DURATION: Final = re.compile(rf"(?:{_NUMBER}(?:ns|us|ms|d|h|m|s))+")
_DURATION_PART: Final = re.compile(rf"({_NUMBER})(ns|us|ms|d|h|m|s)")
_SIZE: Final = re.compile(rf"({_NUMBER})(?:([KMGT]i)B?|B)?")
_BANDWIDTH: Final = re.compile(rf"({_NUMBER})([KMGT]?)([Bb])ps")
_SHARE: Final = re.compile(rf"({_NUMBER})(%?)")
_INSTANT: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))"
)
_DURATION_FORMS: Final = "a duration such as 90s, 30m, 12h, 7d, 1d12h or 1.2us (units d h m s ms us ns, largest first)"
_SIZE_FORMS: Final = "a size such as 512MiB, 64Gi or 4096 (units Ki Mi Gi Ti, powers of 1024; KB and GB are not read)"
_BANDWIDTH_FORMS: Final = "a bandwidth such as 64GBps (bytes) or 400Gbps (bits), with K, M, G or T for powers of 1000"
_SHARE_FORMS: Final = "a share of the whole such as 25% or 0.25, with at most millionths"
_INSTANT_FORMS: Final = 'an RFC 3339 time with offset such as "2026-12-05T08:00:00+00:00"'


def parse_duration(text: str) -> int:
    """Nanoseconds of `90s`, `1d12h`, `1.2us`. Only the last part may have decimals.

    Raises: ValueError, saying what is accepted.
    """
    if len(text) > _LONGEST or not _DURATION.fullmatch(text):
        raise _unread(text, _DURATION_FORMS)
    parts = _DURATION_PART.findall(text)
    sizes = [_NANOSECONDS[unit] for _, unit in parts]
    if sizes != sorted(set(sizes), reverse=True) or any("." in number for number, _ in parts[:-1]):
        raise _unread(text, _DURATION_FORMS)
    return sum(_exact(number, size, text, "nanoseconds") for (number, _), size in zip(parts, sizes, strict=True))


def print_duration(nanoseconds: int) -> str:
    """The canonical spelling: `1d12h`, `1m30s`, `1.2us`, `0s`. Raises: ValueError below 0."""
    _refuse_negative(nanoseconds)
    parts: list[str] = []
    rest = nanoseconds
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _NANOSECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    if rest or not parts:
        # A part that follows minutes stays in seconds (`1m0.5s`): one decimal, at the end.
        fitting = (unit for unit in ("s", "ms", "us", "ns") if rest >= _NANOSECONDS[unit])
        unit = "s" if parts else next(fitting, "s")
        parts.append(_decimal(rest, _NANOSECONDS[unit]) + unit)
    return "".join(parts)


def parse_bytes(text: str) -> int:
    """Bytes of `64GiB`, `64Gi`, `1.5Ti`, `4096` or `4096B`. Raises: ValueError, saying what is accepted."""
    found = _SIZE.fullmatch(text) if len(text) <= _LONGEST else None
    if not found:
        raise _unread(text, _SIZE_FORMS)
    return _exact(found[1], _BYTES[found[2]] if found[2] else 1, text, "bytes")


def print_bytes(count: int) -> str:
    """The canonical spelling: `64GiB`, in the largest unit without decimals. Raises: ValueError below 0."""
    _refuse_negative(count)
    for unit, size in _BYTES.items():
        if count and count % size == 0:
            return f"{count // size}{unit}B"
    return f"{count}B"


def parse_bandwidth(text: str) -> int:
    """Bits per second of `400Gbps` (bits) or `64GBps` (bytes). Raises: ValueError, saying what is accepted."""
    found = _BANDWIDTH.fullmatch(text) if len(text) <= _LONGEST else None
    if not found:
        raise _unread(text, _BANDWIDTH_FORMS)
    return _exact(found[1], _PREFIXES[found[2]] * (8 if found[3] == "B" else 1), text, "bits per second")


def print_bandwidth(bits_per_second: int) -> str:
    """The canonical spelling, always in bits: `400Gbps`. Raises: ValueError below 0."""
    _refuse_negative(bits_per_second)
    for prefix, size in _PREFIXES.items():
        if bits_per_second and bits_per_second % size == 0:
            return f"{bits_per_second // size}{prefix}bps"
    return "0bps"


def parse_share(text: str) -> int:
    """Millionths of the whole, 0 to 1,000,000, of `25%` or `0.25`. Raises: ValueError, saying what is accepted."""
    found = _SHARE.fullmatch(text) if len(text) <= _LONGEST else None
    if not found:
        raise _unread(text, _SHARE_FORMS)
    millionths = _exact(found[1], _MILLION // 100 if found[2] else _MILLION, text, "millionths")
    if millionths > _MILLION:
        raise ValueError(f"{_shown(text)} is more than the whole; expected {_SHARE_FORMS}")
    return millionths


_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_SECOND: Final = 1_000_000_000


def parse_instant(text: str) -> int:
    """Nanoseconds since 1970-01-01 UTC of an RFC 3339 time with offset, to the nanosecond.

    A leap second has no instant of its own here and is refused. Raises: ValueError.
    """
    found = _INSTANT.fullmatch(text)
    if not found:
        raise _unread(text, _INSTANT_FORMS)
    year, month, day, hour, minute, second = (int(found[group]) for group in range(1, 7))
    offset_hour, offset_minute = int(found[9] or 0), int(found[10] or 0)
    if hour > 23 or minute > 59 or second > 59 or offset_hour > 23 or offset_minute > 59:
        raise _unread(text, _INSTANT_FORMS)
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise ValueError(f"{_shown(text)}: there is no such day ({error})") from error
    offset = (offset_hour * 60 + offset_minute) * (-60 if found[8] == "-" else 60)
    seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset
    return seconds * _SECOND + int((found[7] or "0").ljust(9, "0"))


def print_instant(nanoseconds: int) -> str:
    """RFC 3339 in UTC, decimals only when needed: `2026-12-05T08:00:00+00:00`.

    Raises: ValueError outside the years 1 to 9999.
    """
    seconds, fraction = divmod(nanoseconds, _SECOND)
    days, second_of_day = divmod(seconds, 86_400)
    try:
        day = date(1970, 1, 1) + timedelta(days=days)
    except OverflowError as error:
        raise ValueError(f"{nanoseconds} ns is outside the years 1 to 9999") from error
    hour, rest = divmod(second_of_day, 3_600)
    minute, second = divmod(rest, 60)
    decimals = f".{fraction:09d}".rstrip("0").rstrip(".")
    return f"{day.isoformat()}T{hour:02d}:{minute:02d}:{second:02d}{decimals}+00:00"


def _exact(number: str, unit: int, text: str, base: str) -> int:
    """`number` times `unit` as an integer; ValueError when it is none."""
    whole, _, decimals = number.partition(".")
    scale: int = 10 ** len(decimals)
    count, remainder = divmod(int(whole + decimals) * unit, scale)
    if remainder:
        raise ValueError(f"{_shown(text)} is no whole number of {base}")
    return count


def _decimal(count: int, unit: int) -> str:
    """`count / unit` in decimals, exact because `unit` is a power of ten."""
    whole, rest = divmod(count, unit)
    width = len(str(unit)) - 1
    return f"{whole}.{rest:0{width}d}".rstrip("0").rstrip(".") if rest else str(whole)


def _refuse_negative(count: int) -> None:
    if count < 0:
        raise ValueError(f"{count} is below 0")


def _unread(text: str, forms: str) -> ValueError:
    return ValueError(f"{_shown(text)} is not {forms}")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
