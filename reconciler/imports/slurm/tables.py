"""What do the tables of `sacctmgr -P` and `sshare -P` say: rows by the names in their first line, counts and times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from reconciler.documents.schema.base import NAME_PATTERN

Row = Mapping[str, str]

_TIME: Final = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)")
_ASSOCIATIONS: Final = frozenset({"account", "user"})
_QOS: Final = frozenset({"name", "priority"})
_SHARES: Final = frozenset({"account", "rawusage"})


def rows_of(text: str) -> tuple[Row, ...]:
    """The rows by lower-case column names without spaces. A column that is missing is absent, not empty."""
    lines = [line for line in text.splitlines() if "|" in line]
    if not lines:
        return ()
    names = [name.strip().lower().replace(" ", "") for name in lines[0].rstrip("|").split("|")]
    return tuple(dict(zip(names, line.split("|"), strict=False)) for line in lines[1:])


def kind_of(text: str) -> str:
    """`associations`, `qos`, `shares`, or "" for none of these tables."""
    first = next((line for line in text.splitlines() if "|" in line), "")
    names = {name.strip().lower().replace(" ", "") for name in first.split("|")}
    if names >= _SHARES:
        return "shares"
    if names >= _ASSOCIATIONS:
        return "associations"
    return "qos" if names >= _QOS else ""


def gpus_in(text: str) -> dict[str, int]:
    """GPUs of a TRES text by type, "" for untyped: `cpu=8,gres/gpu:h100=16,gres/gpu=16`."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        if (name.strip() + ":").startswith("gres/gpu:") and count.strip().isdecimal():
            found[name.strip().removeprefix("gres/gpu").removeprefix(":")] = int(count)
    return found


def duration_of(text: str) -> str:
    """`1-12:00:00` as a duration of ours, `1d12h`; "" for none."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        return f"{text.strip()}m" if text.strip().isdecimal() and int(text) else ""
    parts = zip("dhms", (int(part or 0) for part in found.groups()), strict=True)
    return "".join(f"{number}{unit}" for unit, number in parts if number)


def name_of(text: str) -> str:
    """A name of ours that is as near to theirs as can be; "" when nothing of it is left."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-")
    return name if re.match(NAME_PATTERN, name) else ""
